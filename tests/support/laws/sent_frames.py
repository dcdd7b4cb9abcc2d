"""The frames of one query from one slicer, with their bytes: one commit a second, no broker."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.punctuation.markers import Marker
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.query.wire_costs import FRAME_BYTES
from edge_agent.algebra.windows import Punctuation
from edge_agent.machines.slicing.slicer import Slicer
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder
from edge_agent.machines.uplink.step import GroupStep, Step
from edge_agent.wire import frames

SECOND = 1_000_000
HOUR = 3_600 * SECOND
BEGIN_US = 500_000 * HOUR
SEQ = 70_000  # of a gateway that has run for a day


@dataclass(frozen=True, slots=True)
class Stream:
    """Readings of a wave with noise. rate: a second and key; outage_s: silent so long of every ten seconds.

    marked_s: between markers. commit_s: between commits.
    """

    rate: float
    seconds: int
    keys: int = 1
    outage_s: int = 0
    jitter_us: int = 0
    marked_s: int = 0
    commit_s: int = 1

    def readings(self, scale: int | None) -> Batch:
        """All of them, in the order of event time."""
        rng = np.random.default_rng(3)
        tick = (np.arange(int(self.rate * self.seconds)) * (SECOND / self.rate)).astype(np.int64)
        series = np.tile(np.arange(self.keys), len(tick))
        time = np.repeat(tick, self.keys)
        if self.jitter_us:
            time = time + rng.integers(0, self.jitter_us, len(time))
        value = 20 + 5 * np.sin(2 * np.pi * time / (60 * SECOND) + series) + rng.normal(0, 1, len(time))
        there = (time + series * 1_370_000) % (10 * SECOND) >= self.outage_s * SECOND
        order = np.argsort(time, kind="stable")
        order = order[there[order]]
        units = value if scale is None else np.rint(value * 10.0**-scale).astype(np.int64)
        labels = [(("unit", str(key)),) for key in range(self.keys)]
        return Batch(BEGIN_US + time[order], units[order], series[order], labels)


@dataclass(frozen=True, slots=True)
class Sent:
    """frames: how many; rows: of all but markers; bytes: of the frames together; their definitions are taken off."""

    frames: int
    rows: int
    bytes: int

    @property
    def of_rows(self) -> float:
        """Without what every frame has."""
        return float(self.bytes - FRAME_BYTES * self.frames)


def sent(query: Query, scale: int | None, stream: Stream) -> Sent:
    """All that leaves until everything has closed; frames that only say the promise are none."""
    slicer = Slicer(query.group_at("g1"), scale, "g1")
    slicer.change((query,))
    batch, numbering = stream.readings(scale), EpochEncoder()
    if isinstance(query.window, Punctuation):
        slicer.mark(
            [Marker(BEGIN_US + n * stream.marked_s * SECOND) for n in range(stream.seconds // stream.marked_s + 1)]
        )
    frames_, rows, total, window_s = 0, 0, 0, getattr(query.window, "longest_us", 10 * SECOND) // SECOND
    step_us = stream.commit_s * SECOND
    for now_us in range(BEGIN_US, BEGIN_US + (stream.seconds + window_s + 4) * SECOND, step_us):
        here = np.flatnonzero((batch.time_us >= now_us) & (batch.time_us < now_us + step_us))
        slicer.push(Batch(batch.time_us[here], batch.value[here], batch.series[here], batch.labels))
        promise_us = now_us + step_us - 2 * SECOND
        step = GroupStep(
            slicer.group, promise_us, tuple(slicer.advance(promise_us)), promised_us=promise_us, hints=slicer.hints()
        )
        for frame in numbering.encode_step(0xC0FFEE, SEQ, Step((step,))):
            if not any(part.sections or part.registers for part in frame.groups):
                continue
            bare = replace(frame, define=None)  # said once an epoch
            frames_, total = frames_ + 1, total + len(frames.encode(bare))
            rows += sum(
                len(section.partials)
                for part in frame.groups
                for section in part.sections
                if numbering.plan_of[section.plan].kind != "marker"
            )
    return Sent(frames_, rows, total)
