"""Exact medians: the slicer alone, and the bytes of a frame a reading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

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

SECOND: Final = 1_000_000
BEGIN_US: Final = 1_789_999_200 * SECOND  # a whole hour
MEDIAN: Final = (Aggregate("median", "median"),)
LATENESS_US: Final = 2 * SECOND
Series = tuple[Any, Any, Any]  # times in us, values, place of each one's labels


def asked(length_us: int, by: tuple[str, ...]) -> Query:
    """A tumbling median."""
    return Query("q", 1, "s", Tumbling(length_us), MEDIAN, by=by, lateness_us=LATENESS_US)


@bench("median_batches", "median_batches_floats", budget_s=90)
def rates() -> None:
    """Closed windows hold sorted values with counts: all the sorting there is lies in the figure."""
    query = asked(SECOND, ("unit",))
    floats = bench_slicer.batches(1)
    units = [Batch(b.time_us, np.rint(b.value * 10).astype(np.int64), b.series, b.labels) for b in floats]
    how = "batches of 65 536, 1 M readings/s of event time, tumbling 1 s median, one key, one core, CPU time; "
    value = bench_slicer.rate(units, (query,), -1)
    record("median_batches", value, "readings/s", how + "a sensor of resolution 0.1, normal with sigma 3")
    value = bench_slicer.rate(floats, (query,), None)
    record("median_batches_floats", value, "readings/s", how + "float64 that are all different: numpy sorts them")


def sent(series: Series, length_us: int, scale: int | None, keys: int) -> float:
    """Bytes of all frames with rows, envelopes included, over the readings in them."""
    times, values, place = series
    by = ("house",) if keys > 1 else ()
    labels = [(("house", str(key)),) for key in range(keys)]
    slicer = Slicer(Group("s", "", by, LATENESS_US), scale, "gw-0001")
    slicer.change((asked(length_us, by),))
    numbering = EpochEncoder()
    size, last = 0, int(times[-1]) + length_us
    for begin in range(BEGIN_US, last, length_us):
        mine = slice(*np.searchsorted(times, [begin, begin + length_us]).tolist())
        slicer.push(Batch(times[mine], values[mine], place[mine], labels))
        frontier_us = begin + length_us
        releases = tuple(slicer.advance(frontier_us))
        made = numbering.encode_step(1, 1_000, Step(groups=(GroupStep(slicer.group, frontier_us, releases),)))
        size += sum(len(frames.encode(f)) for f in made if any(part.sections for part in f.groups))
    return size / len(times)


def one_key(values: Any, step_us: int) -> Series:
    """A reading each step_us."""
    return BEGIN_US + step_us * np.arange(len(values)), values, np.zeros(len(values), np.int64)


def walk() -> float:
    """24 h of a thermometer: a random walk of 0.1 degree, 1 Hz."""
    steps = np.random.default_rng(7).choice([-1, 0, 1], 24 * 3_600, p=(0.1, 0.8, 0.1))
    return sent(one_key(200 + np.cumsum(steps), SECOND), 3_600 * SECOND, -1, 1)


def adc() -> float:
    """A minute of a 12-bit converter at 1 kHz, sigma 50 counts."""
    counts = np.clip(np.rint(np.random.default_rng(7).normal(2_048, 50, 60_000)), 0, 4_095).astype(np.int64)
    return sent(one_key(counts, 1_000), 10 * SECOND, 0, 1)


def plugs() -> float:
    """An hour of 40 houses with 12 plugs each, a reading a plug and 2 s, in 1 mW: off, standby, or a noisy load."""
    random = np.random.default_rng(7)
    houses, each, ticks = 40, 12, 1_800
    level = random.choice([0, 0, 2_100, 8_400, 61_000, 840_000], (houses, each))
    noise = np.where(level > 10_000, 400, np.where(level > 0, 60, 0))
    load = level + np.rint(random.normal(0, 1, (ticks, houses, each)) * noise / 133).astype(np.int64) * 133
    times = BEGIN_US + np.repeat(np.arange(ticks) * 2 * SECOND, houses * each)
    house = np.tile(np.repeat(np.arange(houses), each), ticks)
    return sent((times, load.ravel(), house), 600 * SECOND, -3, houses)


def noise() -> float:
    """A minute of random float64 at 1 kHz."""
    return sent(one_key(np.random.default_rng(7).normal(20, 3, 60_000), 1_000), 10 * SECOND, None, 1)


BYTES: Final[dict[str, tuple[Callable[[], float], str]]] = {
    "bytes_median_quantised": (walk, "0.1 degree at 1 Hz, random walk, 1 h windows, 24 h"),
    "bytes_median_adc": (adc, "12-bit ADC at 1 kHz, sigma 50 counts, 10 s windows, 1 min"),
    "bytes_median_plugs": (plugs, "40 houses of 12 smart plugs, one key a house, 2 s, 1 mW, 10 min windows, 1 h"),
    "bytes_median_random": (noise, "random float64 at 1 kHz, normal, 10 s windows, 1 min"),
}


@bench(*BYTES, budget_s=60)
def sizes() -> None:
    """Definitions of the first frame are in it too."""
    for name, (measured, about) in BYTES.items():
        record(name, measured(), "B/reading", f"exact median, frames with envelopes over readings; {about}")
