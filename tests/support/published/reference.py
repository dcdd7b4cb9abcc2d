"""The tables of docs/configure.md, made from what the checker uses, so that they cannot say anything else.

`python -m tests.support.published.reference` rewrites them between their marks; a test holds them up to date.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from edge_agent.algebra.aggregates import FUNCTIONS, Param
from edge_agent.algebra.frame import MAX_FRAME_BYTES
from edge_agent.algebra.windows import ALL
from edge_agent.config.checking.checker import REQUIRED, Key
from edge_agent.config.definitions.definitions import SHARED
from edge_agent.config.definitions.drivers import DRIVERS
from edge_agent.config.definitions.queries import KEYS
from edge_agent.config.definitions.sensors import COMMON
from edge_agent.config.definitions.window_table import keys_of_window
from edge_agent.config.node_file.node_tables import TABLES, keys_of
from edge_agent.config.node_file.settings import GRACE_PER_TIER_US

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "configure.md"


def keys(listed: Sequence[Key]) -> str:
    """Key, default, what it is."""
    rows = [(f"`{key.name}`", _default(key), key.doc + (f" ({key.why})" if key.why else "")) for key in listed]
    return _table(("key", "default", "what it is"), rows)


def drivers() -> str:
    """What each driver reads, and its keys."""
    return "\n\n".join(f"`{name}`: {driver.about}\n\n{keys(driver.keys)}" for name, driver in DRIVERS.items())


def windows() -> str:
    """The window types with their keys, and the defaults of those that may be left out."""
    rows = [(f"`{name}`", ", ".join(f"{_preset(key)} ({key.doc})" for key in keys_of_window(name))) for name in ALL]
    return _table(("type", "keys"), rows)


def functions() -> str:
    """The functions with their parameters."""
    rows = []
    for name, function in FUNCTIONS.items():
        params = [f"`{n}`: {_allowed(p)}" for n, p in function.params]
        rows.append((f"`{name}`", function.about, "; ".join(params)))
    return _table(("function", "gives", "parameters"), rows)


def settings() -> str:
    """Every table of the local file."""
    parts = []
    for name, table in TABLES.items():
        about = (table.__doc__ or "").partition("]: ")[2].splitlines()[0]
        parts.append(f"`[{name}]` {about}\n\n{keys(keys_of(table))}")
    return "\n\n".join(parts)


def defaults() -> str:
    """The defaults that decide how the system behaves, with the reason for each."""
    rows = []
    wanted = {"uplink": ("heartbeat", "keepalive", "in_flight"), "spool": ("commit_interval", "quota")}
    wanted |= {
        "lander": ("flush_interval",),
        "root": ("horizon", "revise_every"),
        "limits": ("sensors", "queries"),
    }
    for name, names in wanted.items():
        found = {key.name: key for key in keys_of(TABLES[name])}
        rows += [(f"`[{name}] {n}`", _default(found[n]), found[n].why) for n in names]
    grace = next(key for key in keys_of(TABLES["lower"]) if key.name == "grace")
    rows.insert(1, ("`[lower] grace`", f"{GRACE_PER_TIER_US // 10**6}s for each tier below", grace.why))
    for key in (*KEYS, *COMMON):
        if key.name in {"lateness", "timeout"}:
            rows.append((f"`{key.name}` of a {'query' if key in KEYS else 'sensor'}", _default(key), key.why))
    rows.append(
        ("size of a frame", f"at most {MAX_FRAME_BYTES // 1024} KiB", "passes every broker; never split once numbered")
    )
    rows.append(
        ("memory of the gateway service", "96 MB (`MemoryMax`)", "36 MB are libraries; the rest is open windows")
    )
    return _table(("setting", "default", "reason"), rows)


BLOCKS: Final[dict[str, Callable[[], str]]] = {
    "shared": lambda: keys(SHARED),
    "sensor": lambda: keys(COMMON),
    "drivers": drivers,
    "query": lambda: keys(KEYS),
    "windows": windows,
    "functions": functions,
    "defaults": defaults,
    "settings": settings,
}


def page(text: str) -> str:
    """The page with every block between its marks made anew."""
    for name, make in BLOCKS.items():
        begin, end = f"<!-- {name}: from the checker -->", f"<!-- /{name} -->"
        found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not found.search(text):
            raise ValueError(f"{PAGE.name} has no place for {name}: {begin} ... {end}")
        made = f"{begin}\n{make()}\n{end}"
        text = found.sub(lambda _, made=made: made, text)  # type: ignore[misc]
    return text


def _preset(key: Key) -> str:
    """A key of a table that is written on one line: `offset = "0s"`, or its name alone if it must be said."""
    preset = "" if key.default is REQUIRED else f" = {json.dumps(key.kind.write(key.default), ensure_ascii=False)}"
    return f"`{key.name}{preset}`"


def _default(key: Key) -> str:
    if key.default is REQUIRED:
        return "needed"
    if key.default is None or key.default == ():
        return ""
    written = key.kind.write(key.default)
    return "" if written == "" else f"`{_text(written)}`"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _allowed(param: Param) -> str:
    what = param.wanted if param.within is not None or param.text else _or(param.choices)
    return f"{what}, {'required' if param.default is None else f'default {_text(param.default)}'}"


def _or(choices: Sequence[object]) -> str:
    return " or ".join(_text(choice) for choice in choices)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main() -> int:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
