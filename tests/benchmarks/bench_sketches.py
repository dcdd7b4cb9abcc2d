"""Sketches beside the exact functions: the slicer alone, and the bytes of a window's frame."""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Aggregate, Group, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.slicing.slicer import Slicer
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder
from edge_agent.machines.uplink.step import GroupStep, Step
from edge_agent.wire import frames
from tests.benchmarks import bench_slicer
from tests.benchmarks.bench import bench, record
from tests.benchmarks.bench_median import BEGIN_US, LATENESS_US, SECOND, one_key

RATES: Final = {
    "slicer_approx_distinct": "approx_distinct",
    "slicer_theta_distinct": "theta_distinct",
    "slicer_approx_median": "approx_median",
    "slicer_top_k": "top_k",
}
SIZES: Final = {
    "bytes_approx_distinct": "approx_distinct",
    "bytes_theta_distinct": "theta_distinct",
    "bytes_approx_median": "approx_median",
}
READINGS: Final = 60_000  # of a window: a minute at 1 kHz


def asked(fn: str, length_us: int) -> Query:
    """Tumbling windows of one function."""
    return Query("q", 1, "s", Tumbling(length_us), (Aggregate(fn, fn),), lateness_us=LATENESS_US)


def rate_of(name: str, fn: str) -> None:
    """Floats that are all different: nothing is saved by values that come again."""

    @bench(name, budget_s=60)
    def rate() -> None:
        readings = bench_slicer.batches(1)[:64]
        how = "batches of 65 536 different floats, 1 M readings/s of event time, tumbling 1 s, one key, CPU time"
        value = bench_slicer.rate(readings, (asked(fn, SECOND),), None) * len(readings) / bench_slicer.BATCHES
        record(name, value, "readings/s", f"{how}; {fn}")


for _name, _fn in RATES.items():  # each in a process of its own: what one leaves in the heap speeds up the next
    rate_of(_name, _fn)


def sent(fn: str, windows: int = 10) -> float:
    """Bytes of the frames of a window, envelope included."""
    length_us = READINGS * 1_000
    times, values, place = one_key(np.random.default_rng(7).normal(20, 3, READINGS * windows), 1_000)
    slicer = Slicer(Group("s", "", (), LATENESS_US), None, "gw-0001")
    slicer.change((asked(fn, length_us),))
    numbering, size = EpochEncoder(), 0
    for number in range(windows):
        mine = slice(number * READINGS, (number + 1) * READINGS)
        slicer.push(Batch(times[mine], values[mine], place[mine], [()]))
        frontier_us = BEGIN_US + (number + 1) * length_us
        releases = tuple(slicer.advance(frontier_us))
        made = numbering.encode_step(1, number, Step(groups=(GroupStep(slicer.group, frontier_us, releases),)))
        size += sum(len(frames.encode(frame)) for frame in made)
    return size / windows


@bench(*SIZES, budget_s=60)
def sizes() -> None:
    """The definitions of the first frame are in it too."""
    exact = round(sent("median"))
    for name, fn in SIZES.items():
        about = f"frames of a window of {READINGS} different floats, {fn} alone, mean of 10 windows"
        record(name, sent(fn), "B/window", f"{about}; an exact median sends {exact} B")
