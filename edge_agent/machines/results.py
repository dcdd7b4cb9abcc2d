"""What the plain-Python root answers, rows as in gold.results, and how windows are made from the rows it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.aggregates import basis_of, convert, lower
from edge_agent.algebra.coverage import Coverage
from edge_agent.algebra.frame import Plan, Serving
from edge_agent.algebra.partial import Ints, Partials, combine, concat
from edge_agent.algebra.query import Aggregate, Query
from edge_agent.algebra.windows import Window

_CHUNKS: Final = 64  # a holding looks at each chunk's bounds; so many before they are joined and cut anew
_CHUNK_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True)
class Row:
    """One row of results (docs/query.md). start, end in us; values by aggregate name, None: no answer.

    details: a JSON object of what a double cannot say, or None. revision: 0 for the first row of its identity
    (query, node, key, start). readings, late: how many it holds, and of these how many came late.
    """

    query: str
    definition_revision: int
    node: str
    key: str
    labels: Mapping[str, str]
    start: int
    end: int
    values: Mapping[str, float | None]
    details: str | None
    readings: int
    revision: int
    withdrawn: bool
    late: int
    coverage: Coverage

    @property
    def complete(self) -> bool:
        """Every expected gateway is in it and nothing was lost."""
        return self.coverage.complete

    @property
    def expected(self) -> int:
        """Gateways expected."""
        return len(self.coverage.expected)

    @property
    def received(self) -> int:
        """Gateways in it."""
        return self.coverage.received


@dataclass(frozen=True, slots=True)
class Beyond:
    """Readings that came after the correction horizon: in no result. reason: why, for people."""

    node: str
    source: str
    key: str
    start: int
    end: int
    readings: int
    reason: str = "beyond the correction horizon"


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows with their bounds: lowest start, latest end."""

    rows: Partials
    late: bool
    low_us: int
    high_us: int

    @classmethod
    def of(cls, rows: Partials, *, late: bool) -> _Chunk:
        return cls(rows, late, int(rows.start.min()), int(rows.end.max()))


class Holding:
    """All rows of one plan that some window may still need, under the root's own key and node numbers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._chunks: list[_Chunk] = []
        self._most = _CHUNKS

    def __len__(self) -> int:
        return sum(len(chunk.rows) for chunk in self._chunks)

    def add(self, rows: Partials, *, late: bool) -> None:
        """Take rows, at least one."""
        self._chunks.append(_Chunk.of(rows, late=late))
        if len(self._chunks) > self._most:
            self._join()

    def within(self, low_us: int, high_us: int) -> Iterator[tuple[Partials, bool]]:
        """(rows, late) of all rows with start >= low and end <= high."""
        for chunk in self._chunks:
            if chunk.high_us <= low_us or chunk.low_us >= high_us:
                continue
            inside = (chunk.rows.start >= low_us) & (chunk.rows.end <= high_us)
            if inside.any():
                yield (chunk.rows if inside.all() else chunk.rows.take(inside)), chunk.late

    def windows(self, rows: Partials, window: Window) -> tuple[Ints, Ints]:
        """(row index, window start) of the windows in which rows count (docs/protocol.md 6.2)."""
        index, start = window.assign(rows.start, rows.end)
        if self.plan.kind == "window":
            equal = (rows.start[index] == start) & (rows.end[index] == window.ends(start))
            return index[equal], start[equal]
        return index, start

    def states(self, rows: Partials, aggregates: tuple[Aggregate, ...], scale: int | None) -> Partials:
        """The rows with the states of these aggregates only, at a scale (docs/protocol.md 7.1)."""
        basis = basis_of(aggregates, self.plan.scale)
        states = convert({name: rows.states[name] for name in basis}, self.plan.scale, scale)
        return Partials(rows.start, rows.end, rows.key, {name: states[name] for name in basis_of(aggregates, scale)})

    def free(self, below_us: int) -> None:
        """Let go what ends below."""
        self._chunks = [chunk for chunk in self._chunks if chunk.high_us >= below_us]

    def _join(self) -> None:
        """Few chunks in the order of time, late rows apart."""
        joined: list[_Chunk] = []
        for late in (False, True):
            rows = concat([chunk.rows for chunk in self._chunks if chunk.late == late])
            order = np.argsort(rows.start, kind="stable")
            cuts = range(0, len(order), _CHUNK_ROWS)
            joined += [_Chunk.of(rows.take(order[cut : cut + _CHUNK_ROWS]), late=late) for cut in cuts]
        self._chunks, self._most = joined, max(_CHUNKS, 2 * len(joined))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Windows of one query: those with an end in (after_us, upto_us], and those of `starts` (sorted), all in us.

    serving: only those that belong to this revision (docs/protocol.md 6.3). Nothing closes if upto_us <= after_us.
    """

    query: Query
    serving: Serving
    after_us: int
    upto_us: int
    starts: Ints

    def range(self) -> tuple[int, int] | None:
        """What holds all of them: (lowest start, latest end); None for no window."""
        window = self.query.time_window
        lows, highs = [], []
        if self.upto_us > self.after_us:
            lows, highs = [self.after_us + 1 - window.longest_us], [self.upto_us]
        if len(self.starts):
            lows.append(int(self.starts[0]))
            highs.append(int(window.ends(self.starts[-1:])[0]))
        return (min(lows), max(highs)) if lows else None

    def mask(self, start: Ints) -> NDArray[np.bool_]:
        """Which windows with these starts are wanted."""
        end = self.query.time_window.ends(start)
        wanted = (end > self.after_us) & (end <= self.upto_us)
        if len(self.starts):
            wanted |= np.isin(start, self.starts)
        if self.serving.start_from_us is not None:
            wanted &= start >= self.serving.start_from_us
        if self.serving.start_until_us is not None:
            wanted &= start < self.serving.start_until_us
        if self.serving.end_until_us is not None:
            wanted &= end <= self.serving.end_until_us
        return wanted


@dataclass(frozen=True, slots=True)
class Windows:
    """Combined states, a row a (window, key), sorted by them. late: readings in each that came late. scale: of all."""

    rows: Partials
    late: Ints
    scale: int | None

    def answers(self, aggregate: Aggregate) -> tuple[list[float | None], list[str | None] | None]:
        """Values and details of one aggregate, a row each."""
        lowered = lower(aggregate, self.rows.states, self.scale)
        pairs = zip(lowered.value.tolist(), lowered.null.tolist(), strict=True)
        return [None if null else value for value, null in pairs], lowered.details


def common_scale(holdings: Sequence[Holding]) -> int | None:
    """The scale at which plans meet: the finest, floats where one is of floats (docs/protocol.md 7.1)."""
    scales = {holding.plan.scale for holding in holdings}
    return None if None in scales else min((s for s in scales if s is not None), default=None)


def windows(wanted: Wanted, holdings: Sequence[Holding], ranks: Ints | None) -> Windows | None:
    """The windows that hold a reading, from the rows of all plans that serve the query; None for none.

    Plans of unequal scales meet at the finest, and at floats where one is of floats. ranks: of node numbers.
    """
    query, span = wanted.query, wanted.range()
    if span is None:
        return None
    scale = common_scale(holdings)
    parts: list[Partials] = []
    late_parts: list[Partials] = []
    for holding in holdings:
        for rows, late in holding.within(*span):
            index, start = holding.windows(rows, query.time_window)
            mask = wanted.mask(start)
            if mask.any():
                states = holding.states(rows.take(index[mask]), query.aggregates, scale)
                start = start[mask]
                parts.append(Partials(start, query.time_window.ends(start), states.key, states.states))
                late_parts += parts[-1:] if late else []
    if not parts:
        return None
    combined = combine(concat(parts), basis_of(query.aggregates, scale), query.time_window.rhythm[0].step_us, ranks)
    counts = np.zeros(len(combined), np.int64)
    for part in late_parts:
        np.add.at(counts, _places(combined, part), part.states["count"])
    return Windows(combined, counts, scale)


def _places(rows: Partials, part: Partials) -> Ints:
    """The row of each (start, key) of part; rows is sorted by them and holds them all."""
    many = int(rows.key.max()) + 1
    starts = np.unique(rows.start)
    known = np.searchsorted(starts, rows.start) * many + rows.key
    return np.searchsorted(known, np.searchsorted(starts, part.start) * many + part.key)
