"""Many concurrent windows and many keys: what they cost (thesis 5.2.3, 5.2.4; docs/performance.md)."""

from __future__ import annotations

import random
import time
from typing import Final

import numpy as np

from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Aggregate, Group, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.slicing.slicer import Slicer
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder, KeysExhausted
from edge_agent.machines.uplink.step import GroupStep, Step, halves
from edge_agent.wire import frames
from tests.benchmarks.bench import bench, record
from tests.benchmarks.bench_slicer import BEGIN_US, LATENESS_US, ROWS

SECOND: Final = 1_000_000
CONCURRENT: Final = (1, 5, 10, 50, 100, 500, 1_000)
EPOCH: Final = 0xC0FFEE01
KEYS: Final = (1, 10, 100, 1_000, 10_000, 100_000)
BATCHES: Final = 160  # 10 s of event time at 1 M readings/s
PASSES: Final = 5
AVG: Final = (Aggregate("avg", "avg"),)


def asked(many: int, fn: str) -> tuple[Query, ...]:
    """Tumbling windows of random whole seconds, 1 to 20."""
    chance = random.Random(1)
    lengths = [1, *(chance.randint(1, 20) for _ in range(many - 1))]
    each = (Aggregate(fn, fn),)
    return tuple(
        Query(f"q{i}", 1, "s", Tumbling(length * SECOND), each, lateness_us=LATENESS_US)
        for i, length in enumerate(lengths)
    )


def one_key(scale: int | None) -> list[Batch]:
    """A sensor of resolution 0.1, or of floats; 1 M readings/s of event time."""
    rng = np.random.default_rng(1)
    series = np.broadcast_to(np.int64(0), (ROWS,))
    labels = [(("unit", "0"),)]
    out = []
    for i in range(BATCHES):
        time_us = BEGIN_US + np.arange(i * ROWS, (i + 1) * ROWS)
        value = rng.normal(20.0, 3.0, ROWS)
        out.append(Batch(time_us, value if scale is None else np.rint(value * 10).astype(np.int64), series, labels))
    return out


def rate(readings: list[Batch], queries: tuple[Query, ...], scale: int | None) -> float:
    """Readings a second of one pass, by the time this process had the core."""
    slicer = Slicer(Group("s", "", queries[0].by, LATENESS_US), scale, "n")
    slicer.change(queries)
    began_s = time.process_time()
    rows = 0
    for batch in readings:
        slicer.push(batch)
        rows += sum(len(release.partials) for release in slicer.advance(slicer.newest_us - LATENESS_US))
    assert rows
    return ROWS * len(readings) / (time.process_time() - began_s)


def rates(readings: list[Batch], fn: str, scale: int | None) -> dict[int, float]:
    """The best of a few passes for each number of windows; passes take turns, so that a busy machine is fair."""
    best = dict.fromkeys(CONCURRENT, 0.0)
    for _ in range(PASSES):
        for many in CONCURRENT:
            best[many] = max(best[many], rate(readings, asked(many, fn), scale))
    return best


def told(found: dict[int, float]) -> str:
    """Each rate, for the figure's `how`."""
    return ", ".join(f"{many}: {value / 1e6:.3g} M/s" for many, value in found.items())


HOW: Final = (
    f"the slicer alone, one key, batches of {ROWS}, 1 M readings/s of event time, tumbling windows of random whole "
    f"seconds, 1-20; best of {PASSES} passes, CPU time; readings/s by concurrent windows: "
)


@bench("windows_flat_avg")
def flat() -> None:
    """The fastest rate over the slowest, 1 to 1 000 concurrent windows."""
    found = rates(one_key(None), "avg", None)
    record("windows_flat_avg", max(found.values()) / min(found.values()), "1", HOW + told(found))


@bench("median_1000_windows")
def medians() -> None:
    """Exact medians; the rate at 1 000 windows."""
    found = rates(one_key(-1), "median", -1)
    record("median_1000_windows", found[1_000], "readings/s", HOW + told(found))


class Sender:
    """What a node makes of a step, as bytes: numbers of an epoch, a new epoch where its keys are used up, frames."""

    def __init__(self) -> None:
        self.numbering, self.seq, self.bytes = EpochEncoder(), 0, 0

    def send(self, step: Step) -> None:
        """Encode the frames of a step."""
        try:
            self._encode(step)
        except KeysExhausted:
            self.numbering, self.seq = EpochEncoder(), 0
            try:
                self._encode(step)
            except KeysExhausted:
                for half in halves(step):
                    self.send(half)

    def _encode(self, step: Step) -> None:
        made = self.numbering.encode_step(EPOCH, self.seq, step)
        self.seq += len(made)
        self.bytes += sum(len(frames.encode(frame)) for frame in made)


def keyed(keys: int) -> list[Batch]:
    """Readings of keys at random."""
    rng = np.random.default_rng(1)
    labels = [(("unit", str(key)),) for key in range(keys)]
    out = []
    for i in range(BATCHES):
        time_us = BEGIN_US + np.arange(i * ROWS, (i + 1) * ROWS)
        out.append(Batch(time_us, rng.normal(20.0, 3.0, ROWS), rng.integers(0, keys, ROWS), labels))
    return out


def encoded_rate(readings: list[Batch]) -> float:
    """Readings a second through the slicer to frames, by the time this process had the core."""
    query = Query("q", 1, "s", Tumbling(SECOND), AVG, by=("unit",), lateness_us=LATENESS_US)
    slicer = Slicer(query.group, None, "gw-0001")
    slicer.change((query,))
    sender = Sender()
    began_s = time.process_time()
    for batch in readings:
        slicer.push(batch)
        frontier_us = (slicer.newest_us - LATENESS_US) // SECOND * SECOND
        releases = tuple(slicer.advance(frontier_us))
        if releases:
            sender.send(Step(groups=(GroupStep(slicer.group, frontier_us, releases),)))
    assert sender.bytes
    return ROWS * len(readings) / (time.process_time() - began_s)


@bench("keys_100000", budget_s=240)
def many_keys() -> None:
    """From 1 to 100 000 keys; the figure is the rate at the last."""
    found = {}
    for keys in KEYS:
        readings = keyed(keys)
        found[keys] = max(encoded_rate(readings) for _ in range(2))
    how = (
        f"slicer to encoded frames, without a spool: batches of {ROWS}, 1 M readings/s of event time, keys at random, "
        "tumbling avg of 1 s, one core, best of 2, CPU time; readings/s by keys: "
    )
    record("keys_100000", found[KEYS[-1]], "readings/s", how + told(found))


def sent(slicers: list[Slicer], readings: list[Batch], *, apart: bool = False) -> int:
    """Bytes of the frames of one node with these slicers, a commit a second; the first, with definitions, not.

    apart: every row is a message of its own.
    """
    sender, first, frontier_us = Sender(), 0, BEGIN_US
    for batch in readings:
        for slicer in slicers:
            slicer.push(batch)
        frontier_us += SECOND
        releases = [release for slicer in slicers for release in slicer.advance(frontier_us)]
        for some in [[release] for release in releases] if apart else [releases]:
            if some:
                sender.send(Step(groups=(GroupStep(slicers[0].group, frontier_us, tuple(some)),)))
        if frontier_us == BEGIN_US + 20 * SECOND:  # every plan has been named by now
            first = sender.bytes
    return sender.bytes - first


def windows_bytes(unit_us: int) -> tuple[int, int, int]:
    """Bytes of 1 000 windows of 1 to 20 s in whole units: a message a window and query, a row each, as planned."""
    chance = random.Random(1)
    longest, least = 20 * SECOND // unit_us, SECOND // unit_us
    queries = tuple(
        Query(f"q{i}", 1, "s", Tumbling(chance.randint(least, longest) * unit_us), AVG, lateness_us=LATENESS_US)
        for i in range(1_000)
    )
    rng = np.random.default_rng(1)
    series = np.zeros(1_000, np.int64)
    seconds = [
        Batch(BEGIN_US + i * SECOND + np.arange(1_000) * 1_000, rng.normal(20.0, 3.0, 1_000), series, [()])
        for i in range(80)
    ]

    def slicer(asked: tuple[Query, ...]) -> Slicer:
        made = Slicer(asked[0].group, None, "gw-0001")
        made.change(asked)
        return made

    messages = sent([slicer((query,)) for query in queries], seconds, apart=True)
    rows = sent([slicer((query,)) for query in queries], seconds)
    return messages, rows, sent([slicer(queries)], seconds)


@bench("windows_bytes_factor", "windows_bytes_factor_rows", "windows_bytes_factor_ms", budget_s=240)
def factors() -> None:
    """A row a window and query, over what is planned."""
    how = (
        "1 000 concurrent tumbling avg windows over one stream, 1 to 20 s in whole {}: bytes {}, over bytes as "
        "planned; 60 s, a commit a second, envelopes included, definitions not"
    )
    messages, rows, planned = windows_bytes(SECOND)
    alone, shared = "of a message with one row a window and query", "of a row a window and query in one frame a commit"
    record("windows_bytes_factor", messages / planned, "1", how.format("seconds", alone))
    record("windows_bytes_factor_rows", rows / planned, "1", how.format("seconds", shared))
    _, rows, planned = windows_bytes(1_000)
    record("windows_bytes_factor_ms", rows / planned, "1", how.format("milliseconds", shared))
