"""The slicer alone: batches of 65 536 readings, 1 M readings/s of event time, on one core.

Order and NaN checks, slicing, lifting and closing with a lateness of 2 s are measured; making the readings is not.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Aggregate, Group, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.slicing.slicer import Slicer
from tests.benchmarks.bench import bench, record

ROWS: Final = 65_536
BATCHES: Final = 256  # 17 s of event time a pass
HEAP_BYTES: Final = 16 << 20
PASSES: Final = 9  # the best counts, in time of the core: others share the machine
LATENESS_US: Final = 2_000_000
BEGIN_US: Final = 1_790_000_000_000_000
HOW: Final = (
    f"batches of {ROWS}, 1 M readings/s of event time, tumbling avg, one core, best of {PASSES} passes, CPU time"
)


def queries(lengths_s: Sequence[int], by: tuple[str, ...]) -> tuple[Query, ...]:
    """One tumbling average a length."""
    avg = (Aggregate("avg", "avg"),)
    return tuple(
        Query(f"q{i}", 1, "s", Tumbling(length * 1_000_000), avg, by=by, lateness_us=LATENESS_US)
        for i, length in enumerate(lengths_s)
    )


def batches(keys: int) -> list[Batch]:
    """In order, keys at random; the driver's series is a view where there is one."""
    rng = np.random.default_rng(1)
    labels = [(("unit", str(key)),) for key in range(keys)]
    out = []
    for i in range(BATCHES):
        time_us = BEGIN_US + np.arange(i * ROWS, (i + 1) * ROWS)
        one = np.broadcast_to(np.int64(0), (ROWS,))
        series = one if keys == 1 else rng.integers(0, keys, ROWS)
        out.append(Batch(time_us, rng.normal(20.0, 3.0, ROWS), series, labels))
    return out


def rate(readings: list[Batch], asked: tuple[Query, ...], scale: int | None = None) -> float:
    """Readings a second of the best pass, by the time this process had the core. scale: of the values."""
    best_s = float("inf")
    np.empty(HEAP_BYTES, np.int8)  # glibc gives back no less than the greatest block that was freed, so one decides it
    for _ in range(PASSES):
        slicer = Slicer(Group("s", "", asked[0].by, LATENESS_US), scale, "n")
        slicer.change(asked)
        began_s = time.process_time()
        rows = 0
        for batch in readings:
            slicer.push(batch)
            rows += sum(len(release.partials) for release in slicer.advance(slicer.newest_us - LATENESS_US))
        best_s = min(best_s, time.process_time() - began_s)
        assert rows
    return ROWS * BATCHES / best_s


@bench("slicer_1_key")
def one_key() -> None:
    """One key, one window."""
    record("slicer_1_key", rate(batches(1), queries([1], ("unit",))), "readings/s", HOW + ", 1 s windows, 1 key")


@bench("slicer_1000_keys")
def thousand_keys() -> None:
    """A thousand keys at random."""
    value = rate(batches(1_000), queries([1], ("unit",)))
    record("slicer_1000_keys", value, "readings/s", HOW + ", 1 s windows, 1 000 keys at random")


@bench("slicer_1000_windows_share")
def thousand_windows() -> None:
    """A thousand concurrent windows against one."""
    chance = random.Random(1)
    readings = batches(1)
    many = rate(readings, queries([chance.randint(1, 20) for _ in range(1_000)], ("unit",)))
    share = many / rate(readings, queries([1], ("unit",)))
    how = HOW + "; 1 000 concurrent windows of random whole seconds, 1-20, against one of 1 s; 1 key"
    record("slicer_1000_windows_share", share, "1", how)
