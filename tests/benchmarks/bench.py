"""How a benchmark is registered and how its figure is kept in build/bench.json."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


def results_file() -> Path:
    """Where figures are kept: build/bench.json of the checkout, or $HEADWATER_BENCH."""
    return Path(os.environ.get("HEADWATER_BENCH", ROOT / "build" / "bench.json"))


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One measurement. names: the figures that run() records; budget_s: then it is ended.

    alone: it takes so long that it runs only where it is named.
    """

    names: tuple[str, ...]
    run: Callable[[], None]
    module: str
    budget_s: float
    alone: bool = False


REGISTERED: Final[list[Benchmark]] = []


def bench(
    *names: str, budget_s: float = 120.0, alone: bool = False
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function without arguments that records these figures. Each runs in a process of its own."""

    def register(run: Callable[[], None]) -> Callable[[], None]:
        REGISTERED.append(Benchmark(names, run, run.__module__, budget_s, alone))
        return run

    return register


def record(name: str, value: float, unit: str, how: str) -> None:
    """Keep one figure; an older one of that name is replaced.

    value: in base units (100 million is 1e8). how: what was measured, so that a reader can repeat it.
    """
    entry = {
        "name": name,
        "value": float(value),
        "unit": unit,
        "how": how,
        "at": datetime.now(UTC).isoformat("T", "seconds"),
    }
    with _alone():
        others = [old for old in load() if old["name"] != name]
        _replace(results_file(), json.dumps([*others, entry], indent=1, ensure_ascii=False) + "\n")


def load() -> list[dict[str, object]]:
    """All figures kept so far, oldest first."""
    try:
        kept: list[dict[str, object]] = json.loads(results_file().read_text())
    except FileNotFoundError:
        return []
    return kept


@contextmanager
def _alone() -> Iterator[None]:
    """One writer at a time: benchmarks of several processes share the file."""
    lock = results_file().with_suffix(".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _replace(path: Path, text: str) -> None:
    """Write beside, then rename: a reader sees the old list or the new one."""
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w") as out:
        out.write(text)
    Path(beside).replace(path)
