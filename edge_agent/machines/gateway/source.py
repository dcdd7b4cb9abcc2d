"""Buffers the readings of one sensor and tracks its event time (docs/protocol.md 4.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.partials.arrays import constant
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.punctuation.markers import Marker
from edge_agent.algebra.query.query import Sensor
from edge_agent.machines.checkpoint.slots import SourceState
from edge_agent.machines.events import Read
from edge_agent.machines.gateway.value_changes import ValueChanges


@dataclass(slots=True)
class Source:
    """One sensor at this node. Times in us.

    heard_us: node time of the last reading. newest_us: newest event time. own_clock, clock_us: the sensor has a clock
    of its own, and its time. mark_us: no reading below this event time follows, by the source's own promise (a
    watermark of a recording); if set, it alone decides. readings: how many were taken. buffered: readings in batches.
    began_us: node time when listening to it began; NEVER_US: in an earlier process. ended: all was read, as far as
    is known. asked: its driver has returned something in this process.
    """

    sensor: Sensor
    heard_us: int
    newest_us: int = NEVER_US
    own_clock: bool = False
    clock_us: int = NEVER_US
    mark_us: int | None = None
    ended: bool = False
    position: object = None
    readings: int = 0
    batches: list[Batch] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)
    changes: ValueChanges = field(default_factory=ValueChanges)
    buffered: int = 0
    stored: SourceState | None = None  # as the last commit wrote it
    began_us: int = NEVER_US
    asked: bool = False

    def take(self, read: Read, now_us: int) -> None:
        """Buffer the readings of an event, so that many small batches are sliced as one."""
        rows = len(read.batch.time_us)
        if rows:
            self.heard_us = now_us
            self.newest_us = max(self.newest_us, int(read.batch.time_us.max()))
            self.readings += rows
            self.buffered += rows
            self.batches.append(read.batch)
        self.markers += read.markers
        if read.clock_us is not None:
            self.own_clock, self.clock_us = True, read.clock_us
        if read.mark_us is not None:
            self.mark_us = read.mark_us
        if read.position is not None:
            self.position = read.position
        # what has ended may go on: a file that has grown, or another file of the same name
        self.ended = read.ended or (self.ended and not rows and read.clock_us is None)
        self.asked = True

    def forget(self) -> None:
        """Drop buffered readings and markers, because no query uses this sensor."""
        self.batches, self.markers, self.buffered = [], [], 0

    def drain(self) -> list[Batch]:
        """Remove and return the buffered readings in arrival order. Batches that share a table of labels are joined."""
        batches, self.batches, self.buffered = self.batches, [], 0
        if len(batches) < 2:
            return batches
        out: list[Batch] = []
        run: list[Batch] = []
        for batch in batches:
            if run and (batch.labels is not run[0].labels or batch.value.dtype != run[0].value.dtype):
                out.append(_joined(run))
                run = []
            run.append(batch)
        out.append(_joined(run))
        return out

    def reached_us(self, now_us: int) -> int:
        """The event time below which no more readings are expected, before lateness is subtracted.

        This is the newest event time, at most the clock. Once a source is silent for its timeout, it is at least its
        clock minus its delay. A source that has ended does not delay anything. NEVER_US while nothing is known.
        """
        if self.mark_us is not None:
            return self.mark_us
        if self.ended:
            return max(now_us, self.newest_us + 1)
        clock_us = self.clock_us if self.own_clock else now_us
        reached_us = min(self.newest_us, clock_us)
        if now_us - self.heard_us >= self.sensor.timeout_us:
            reached_us = max(reached_us, clock_us - self.sensor.delay_us)
        return reached_us

    def changed(self) -> SourceState | None:
        """The state to commit, if it differs from the last one committed."""
        if self.stored is not None and self._equals(self.stored):
            return None
        self.stored = self.snapshot()
        return self.stored

    def _equals(self, state: SourceState) -> bool:
        """Whether `snapshot` would return this state. Makes no new state, because most sources of a commit are idle."""
        return (
            self.readings == state.readings
            and self.newest_us == state.newest_us
            and (self.clock_us if self.own_clock else None) == state.clock_us
            and self.ended == state.ended
            and self.changes.last == state.changes
            and same_position(self.position, state.position)
        )

    def snapshot(self) -> SourceState:
        return SourceState(
            newest_us=self.newest_us,
            position=self.position,
            clock_us=self.clock_us if self.own_clock else None,
            ended=self.ended,
            readings=self.readings,
            changes=dict(self.changes.last),
        )

    def restore(self, state: SourceState) -> None:
        self.newest_us, self.position = state.newest_us, state.position
        self.began_us = NEVER_US
        self.ended, self.readings = state.ended, state.readings
        self.changes = ValueChanges(dict(state.changes))
        if state.clock_us is not None:
            self.own_clock, self.clock_us = True, state.clock_us


def shift(sources: Iterable[Source], by_us: int) -> None:
    """The clock stepped by by_us: shift remembered times with it."""
    for source in sources:
        source.heard_us += by_us
        source.began_us += by_us if source.began_us > NEVER_US else 0


def heard_by(sources: Iterable[Source], now_us: int) -> None:
    """The clock stepped back to now_us: no source was heard later."""
    for source in sources:
        source.heard_us = min(source.heard_us, now_us)


def stood_still(sources: Iterable[Source], us: int) -> None:
    """The node heard nobody for so long, so this was no silence of its sources (docs/protocol.md 4.1)."""
    for source in sources:
        source.heard_us += us


def same_position(one: object, other: object) -> bool:
    """Whether two positions of a driver are equal: plain values, and arrays, also within maps and lists."""
    if one is other:
        return True
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(np.asarray(one), np.asarray(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_position(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_position, one, other))
    return bool(one == other)


def _joined(run: list[Batch]) -> Batch:
    if len(run) == 1:
        return run[0]
    return Batch(
        np.concatenate([b.time_us for b in run]),
        np.concatenate([b.value for b in run]),
        _joined_series(run),
        run[0].labels,
    )


def _joined_series(run: list[Batch]) -> Any:
    """The concatenated series. If all batches have the same single series, a view of stride 0, made without a copy."""
    first = run[0].series
    if all(b.series.strides == (0,) and b.series[0] == first[0] for b in run):
        return constant(int(first[0]), sum(len(b.series) for b in run))
    return np.concatenate([b.series for b in run])
