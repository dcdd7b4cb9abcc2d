"""Frames of children for the root, written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edge_agent.algebra.frame import (
    Birth,
    Define,
    ExcludedLeaf,
    Frame,
    Gap,
    GroupPart,
    Heartbeat,
    Leaf,
    Members,
    Plan,
    Section,
    Serving,
)
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.planner import plan as planned
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import OrderedWindow, Session, Tumbling, Window
from edge_agent.config import topics
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.wire import frames, landing

SECOND = 1_000_000
START = 1_800_000_000 * SECOND  # event time of the first window, on every lattice used here
JOURNAL = 4711
ROOT = "root"


def at(second: float) -> int:
    """Event time, and the lander's: the tests' day begins at START."""
    return START + round(second * SECOND)


def starts(*seconds: float) -> Ints:
    """Several times, as in `Child.rows`."""
    return np.array([at(second) for second in seconds], np.int64)


def query(
    name: str = "q",
    window: Window | Session | OrderedWindow | None = None,
    fns: Sequence[str] = ("avg", "count"),
    *,
    by: tuple[str, ...] = ("site",),
    revision: int = 1,
    source: str = "s",
    lateness_us: int = SECOND,
) -> Query:
    """A query with plain aggregates."""
    aggregates = tuple(Aggregate(fn, fn) for fn in fns)
    return Query(name, revision, source, window or Tumbling(SECOND), aggregates, by=by, lateness_us=lateness_us)


@dataclass(slots=True)
class Child:
    """One child in one epoch: a single group, its plan, its keys. Frames come numbered and encoded."""

    node: str
    queries: tuple[Query, ...]
    keys: tuple[str, ...] = ("site=a",)
    scale: int | None = None
    epoch: int = 1
    leaves: tuple[str, ...] = ()
    seq: int = 0
    plan: Plan = field(init=False)

    def __post_init__(self) -> None:
        self.plan = planned(self.queries, self.scale)[0].plan

    def birth(
        self,
        predecessor: tuple[int, int] | str | None = None,
        *,
        journal: int = JOURNAL,
        held: tuple[int, ...] | None = None,
    ) -> bytes:
        """Frame 0: who is there, what is served, what the numbers mean."""
        define = Define(
            keys=(0, self.keys),
            nodes=(0, (self.node,)),
            groups=((0, self.queries[0].group),),
            plans=((0, 0, self.plan),),
            queries=tuple(canonical_query(q) for q in self.queries),
        )
        leaves = tuple(Leaf(name, self.epoch) for name in self.leaves or (self.node,))
        members = Members(0, leaves, serving=tuple(Serving(q.id, q.revision) for q in self.queries))
        birth = Birth(self.epoch << 32, journal, predecessor, "0.1.0", held=held)
        return self._next(birth=birth, define=define, members=(members,))

    def rows(
        self,
        frontier_us: int,
        start: Ints | None = None,
        values: Array | None = None,
        key: Ints | None = None,
        *,
        length_us: int = SECOND,
        late: bool = False,
        exceptions: tuple[ExcludedLeaf, ...] | None = None,
    ) -> bytes:
        """A frame with one reading a row; without rows only a frontier. start, values, key: shape (n,)."""
        sections: tuple[Section, ...] = ()
        if start is not None and len(start):
            value = np.asarray(np.ones(len(start)) if values is None else values)
            numbers = np.zeros(len(start), np.int64) if key is None else key
            states = lifted(value, start, self.plan, self.scale)
            partials = Partials(start, start + length_us, numbers, states)
            sections = (Section.of(0, self.plan, partials),)
        on_time, behind = ((), sections) if late else (sections, ())
        return self._next(groups=(GroupPart(0, frontier_us, on_time, behind, exceptions),))

    def gap(self, gap: Gap) -> bytes:
        """A gap record."""
        return self._next(gaps=(gap,))

    def beat(self, frontier_us: int) -> bytes:
        """A heartbeat after what was made so far."""
        return frames.encode_heartbeat(Heartbeat(self.epoch, self.seq - 1, ((0, frontier_us),)))

    def _next(self, **content: object) -> bytes:
        made = frames.encode(Frame(self.epoch, self.seq, **content))  # type: ignore[arg-type]
        self.seq += 1
        return made


def lifted(value: Array, time: Ints, plan: Plan, scale: int | None) -> Mapping[str, Array]:
    """States of one reading a row, in the columns of the plan."""
    from edge_agent.algebra.aggregates import Readings, lift
    from edge_agent.algebra.partials.segments import Segments

    readings = Readings(time, value if scale is not None else value.astype(np.float64), np.arange(len(time)))
    return lift(readings, Segments.runs(np.arange(len(time)), len(time)), plan.basis, scale)


def tick(received_us: int, *, journal: int = JOURNAL, connected: bool = True) -> bytes:
    """The lander's own record."""
    return landing.encode_tick(received_us, journal, connected=connected)


def ticks(after_us: int, upto_us: int) -> bytes:
    """The records of a lander that runs all that time; time without records is no grace (docs/protocol.md 8.1)."""
    return b"".join(tick(us) for us in (*range(after_us + 5 * SECOND, upto_us, 5 * SECOND), upto_us))


def record(child: Child | str, received_us: int, payload: bytes) -> bytes:
    """A message as it lands."""
    node = child if isinstance(child, str) else child.node
    return landing.encode(topics.frames(node, ROOT), received_us, payload)


def one(child: Child, second: float, frontier: float, value: float = 1.0, *, late: bool = False) -> bytes:
    """A message with one reading, as it lands."""
    length_us = 1 if late else SECOND
    rows = child.rows(at(frontier), starts(second), np.array([value]), length_us=length_us, late=late)
    return record(child, at(frontier), rows)


__all__ = ["JOURNAL", "SECOND", "START", "Child", "at", "lifted", "one", "query", "record", "starts", "tick"]
