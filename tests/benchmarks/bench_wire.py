"""Bytes of a frame and the time to write and read it.

The frames are those of a gateway: readings through the slicer, its releases through the numbering, seq from 1000.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Aggregate, Group, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.slicing.slicer import Slicer
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder
from edge_agent.machines.uplink.step import GroupStep, Step
from edge_agent.wire import frames, readings
from tests.benchmarks.bench import bench, record

SECOND: Final = 1_000_000
BEGIN_US: Final = 1_790_000_000 * SECOND
LATENESS_US: Final = 2 * SECOND
WINDOWS: Final = 30
EPOCH: Final = 0xC0FFEE01
HOW: Final = "tumbling 1 s avg, float values, 128 to 255 readings a key and window at random microseconds"


def sent(keys: int) -> list[Frame]:
    """One frame a second of a gateway whose keys were announced before."""
    rng = np.random.default_rng(7)
    by = ("unit",) if keys > 1 else ()
    query = Query("q", 1, "s", Tumbling(SECOND), (Aggregate("avg", "avg"),), by=by, lateness_us=LATENESS_US)
    labels = [(("unit", str(key)),) for key in range(keys)]
    slicer = Slicer(Group("s", "", by, LATENESS_US), None, "gw-0001")
    slicer.change((query,))
    numbering = EpochEncoder()
    out: list[Frame] = []
    for second in range(WINDOWS):
        series = rng.permutation(np.repeat(np.arange(keys), rng.integers(128, 256, keys)))
        n = len(series)
        times = BEGIN_US + second * SECOND + np.sort(rng.integers(0, SECOND, n))
        slicer.push(Batch(times, rng.normal(20.0, 3.0, n), series, labels))
        frontier_us = slicer.newest_us - LATENESS_US
        releases = tuple(slicer.advance(frontier_us))
        step = Step(groups=(GroupStep(slicer.group, frontier_us, releases),))
        out += numbering.encode_step(EPOCH, 1_000 + len(out), step)
    return [frame for frame in out if frame.define is None and any(part.sections for part in frame.groups)]


@bench("payload_one_bytes", "payload_key_bytes", budget_s=60)
def payload() -> None:
    """The longest of the frames counts, envelope included."""
    one = [len(frames.encode(frame)) for frame in sent(1)]
    hundred = [len(frames.encode(frame)) for frame in sent(100)]
    record("payload_one_bytes", max(one), "B", f"{HOW}; longest of {len(one)} frames")
    record("payload_key_bytes", max(hundred) / 100, "B", f"{HOW}; 100 keys, longest of {len(hundred)} frames")


@bench("frame_encode_s", "frame_decode_s", "readings_decode_s", budget_s=60)
def speed() -> None:
    """One frame of 100 rows and 2 columns; one batch of 1 000 readings as a device sends it."""
    frame = sent(100)[-1]
    bytes_ = frames.encode(frame)
    batch = readings.encode(BEGIN_US + np.arange(1_000), np.random.default_rng(7).normal(20.0, 3.0, 1_000))
    record("frame_encode_s", best(lambda: frames.encode(frame)), "s", "one frame of 100 rows, 2 columns")
    record("frame_decode_s", best(lambda: frames.decode(bytes_)), "s", "one frame of 100 rows, 2 columns")
    record("readings_decode_s", best(lambda: readings.decode(batch)), "s", "one CBOR batch of 1 000 readings, 16 kB")


def best(call: Callable[[], object], rounds: int = 7, calls: int = 2_000) -> float:
    """Seconds a call in the best round: others share the machine."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        taken.append((time.perf_counter() - began) / calls)
    return min(taken)
