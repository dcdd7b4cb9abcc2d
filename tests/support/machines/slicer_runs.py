"""A slicer run beside a naive root: readings, queries, and rows that leave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge_agent.algebra.frame import Serving
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.key import Labels
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Sliding, Tumbling
from edge_agent.machines.checkpoint.slots import GroupSlots
from edge_agent.machines.slicing.slicer import Slicer
from edge_agent.machines.uplink.step import StepRows
from edge_agent.wire import snapshot
from tests.oracle import central_computer
from tests.support.naive_root import NaiveRoot

LABELS: list[Labels] = [
    (("room", "1"), ("site", "a"), ("weight", "2.5")),
    (("area", "0"), ("room", "2"), ("site", "a"), ("weight", "1e1")),
    (("site", "b,=%"), ("weight", "heavy")),
    (),
]
SUMS = (Aggregate("sum", "sum"), Aggregate("count", "count"))


def batch(times: list[int], values: list[float] | None = None, series: list[int] | None = None) -> Batch:
    """Floats; value = time where none is given."""
    k = len(times)
    return Batch(
        np.array(times, np.int64),
        np.array(times if values is None else values, np.float64),
        np.array(series or [0] * k, np.int64),
        LABELS,
    )


def query(name: str, window: Tumbling | Sliding, revision: int = 1, **more: Any) -> Query:
    return Query(name, revision, "s", window, more.pop("aggregates", SUMS), lateness_us=0, **more)


def started(*queries: Query, scale: int | None = None, node: str = "n") -> Slicer:
    slicer = Slicer(queries[0].group, scale, node)
    slicer.change(queries)
    return slicer


def spans(releases: list[StepRows]) -> list[tuple[int, int, str, float]]:
    """(start, end, key, sum) of every row."""
    return [
        (int(p.start[i]), int(p.end[i]), r.keys[int(p.key[i])], float(p.states["sum"][i]))
        for r in releases
        for p in [r.partials]
        for i in range(len(p))
    ]


# --- against the oracle ------------------------------------------------------------------------------------------


def restarted(slicer: Slicer) -> Slicer:
    """The slicer that a spool gives back."""
    rows = GroupSlots(slicer.group).changes(slicer.snapshot(), slicer.definitions(), slicer.keys)
    (found,) = GroupSlots.each({name: snapshot.loads(snapshot.dumps(plain)) for name, plain in rows.items()})
    return Slicer.restore(*found, "n")


@dataclass
class Run:
    """A slicer with everything that went in and came out."""

    slicer: Slicer
    root: NaiveRoot = field(default_factory=NaiveRoot)
    readings: list[central_computer.Reading] = field(default_factory=list)
    late: list[tuple[central_computer.Reading, int]] = field(default_factory=list)  # with the frontier they met
    queries: dict[tuple[str, int], Query] = field(default_factory=dict)
    servings: tuple[Serving, ...] = ()

    def reach(self) -> float:
        """The scale of float results: squares for variances; a slope per second between readings some us apart.

        Of scaled integers only slopes are sums of floats.
        """
        values = [float(r.value) for r in (*self.readings, *(late for late, _ in self.late))]
        sloped = any(aggregate.fn == "slope" for query in self.queries.values() for aggregate in query.aggregates)
        slopes = 1e6 * sum(map(abs, values)) if sloped else 0.0
        return slopes if self.slicer.scale is not None else max(slopes, sum(value**2 for value in values))

    def change(self, queries: tuple[Query, ...]) -> None:
        self.queries.update({(q.id, q.revision): q for q in queries})
        self.root.know(queries)
        self.servings = self.slicer.change(queries)
        self.slicer.check()

    def push(self, times: list[int], values: list[Any], series: list[int]) -> None:
        scale = self.slicer.scale
        value = np.array(values, np.float64) if scale is None else np.array(values, np.int64)
        self.slicer.push(Batch(np.array(times, np.int64), value, np.array(series, np.int64), LABELS))
        self.slicer.check()
        for time_us, value, which in zip(times, values, series, strict=True):
            number = value if scale is None else central_computer.exact(value, scale)
            reading = central_computer.Reading(
                time_us, number, "n", len(self.readings) + len(self.late), dict(LABELS[which])
            )
            if time_us < self.slicer.frontier_us:
                self.late.append((reading, self.slicer.frontier_us))
            else:
                self.readings.append(reading)

    def advance(self, frontier_us: int) -> None:
        releases = self.slicer.advance(frontier_us)
        for release in releases:
            assert release.late or (release.partials.end <= self.slicer.frontier_us).all()
        self.root.take(releases)
        self.slicer.check()

    def restart(self) -> None:
        self.slicer = restarted(self.slicer)
        self.slicer.check()

    def flush(self) -> None:
        self.root.take(self.slicer.flush())

    def end(self) -> None:
        self.flush()
        assert not self.slicer.flush()
