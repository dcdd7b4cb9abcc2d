"""Time windows of one query from the rows of all plans that serve it: those that close, and those made again.

Rules (docs/protocol.md): a window belongs to the revision in force at its start (6.3); partials add up, of kind
`window` in the window equal to their range only (6.1, 6.2); plans of unequal scales meet at the finest (7.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.frame import Serving
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import NOTHING, Partials, combine, concat
from edge_agent.algebra.partials.segments import begins_run
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.sliding.batch import in_windows_of
from edge_agent.root.numpy.partial_index import PartialIndex, common_scale
from edge_agent.root.numpy.rolling_windows import RollingWindows
from edge_agent.root.numpy.rows import WindowStates


@dataclass(frozen=True, slots=True)
class WantedWindows:
    """Windows of one query: those with an end in (after_us, upto_us], and those of `starts` (sorted), all in us.

    serving: only those that belong to this revision (docs/protocol.md 6.3). Nothing closes if upto_us <= after_us.
    """

    query: Query
    serving: Serving
    after_us: int
    upto_us: int
    starts: Ints

    def runs(self) -> list[tuple[int, int]]:
        """What holds all of them, as few as make sense: (lowest, highest) start, in no order; they may meet."""
        window = self.query.time_window
        found = []
        if self.upto_us > self.after_us:
            shortest_us = window.longest_us if window.one_length else 0
            found.append((self.after_us + 1 - window.longest_us, self.upto_us - shortest_us))
        if len(self.starts):  # windows that share no rows apart from each other
            new = np.flatnonzero(np.diff(self.starts) >= window.longest_us) + 1
            found += [(int(run[0]), int(run[-1])) for run in np.split(self.starts, new)]
        return found

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


def windows(
    wanted: WantedWindows, holdings: Sequence[PartialIndex], ranks: Ints | None, rolled: RollingWindows | None = None
) -> WindowStates | None:
    """The windows that hold a reading, from the rows of all plans that serve the query; None for none.

    Plans of unequal scales meet at the finest, and at floats where one is of floats. ranks: of node numbers. rolled:
    what the query's steps have left, so that the next one costs no more than what is new.
    """
    scale, runs, made = common_scale(holdings), wanted.runs(), list[WindowStates]()
    if rolled is not None and wanted.upto_us > wanted.after_us and rolled.serves(wanted.query, holdings):
        ends = (wanted.after_us, wanted.upto_us)
        rows, late = rolled.close(wanted.query, holdings, scale, ends, ranks)
        made.append(_told(wanted, rows, [late], scale))
        runs = runs[1:]
    made += [_run(wanted, run, holdings, scale, ranks) for run in runs]
    found = [run for run in made if len(run.rows)]
    if not found:
        return None
    if len(found) == 1:
        return found[0]
    every, behind = concat([run.rows for run in found]), np.concatenate([run.late for run in found])
    place = np.lexsort((every.key, every.start))  # runs may meet: a window is then the same in both
    start, key = every.start[place], every.key[place]
    new = begins_run(start, key)
    return WindowStates(every.take(place[new]), behind[place[new]], scale)


def _run(
    wanted: WantedWindows, run: tuple[int, int], holdings: Sequence[PartialIndex], scale: int | None, ranks: Ints | None
) -> WindowStates:
    """The windows wanted with a start in a run, lowest to highest."""
    query, window = wanted.query, wanted.query.time_window
    basis = basis_of(query.aggregates, scale)
    slices: list[Partials] = []
    late_slices: list[Partials] = []
    whole: list[Partials] = []
    late_whole: list[Partials] = []
    for holding in holdings:
        for held, late in holding.within(run[0], run[1] + window.longest_us):
            rows = holding.states(held, query.aggregates, scale)
            if holding.plan.kind == "window":
                index, start = holding.windows(rows, window)
                rows = rows.take(index)
                whole.append(Partials(start, rows.end, rows.key, rows.states))
                late_whole += whole[-1:] if late else []
            else:
                slices.append(rows)
                late_slices += [rows] if late else []
    made = in_windows_of(concat(slices), window, basis, run, ranks) if slices else NOTHING
    if whole:
        made = combine(concat([made, *whole]), basis, None, ranks)
    if late_slices:
        late_whole.append(in_windows_of(_counts(concat(late_slices)), window, ("count",), run))
    return _told(wanted, made, late_whole, scale)


def _told(wanted: WantedWindows, made: Partials, late: Sequence[Partials], scale: int | None) -> WindowStates:
    """Those of the windows that are wanted, with how many of their readings came late. late: counts of some windows."""
    made = made.take(wanted.mask(made.start))
    counts = np.zeros(len(made), np.int64)
    for part in late:
        shown = part.take(wanted.mask(part.start))
        if len(shown):
            np.add.at(counts, _places(made, shown), shown.states["count"])
    return WindowStates(made, counts, scale)


def _counts(rows: Partials) -> Partials:
    return Partials(rows.start, rows.end, rows.key, {"count": rows.states["count"]})


def _places(rows: Partials, part: Partials) -> Ints:
    """The row of each (start, key) of part; rows is sorted by them and holds them all."""
    many = int(rows.key.max()) + 1
    starts = np.unique(rows.start)
    known = np.searchsorted(starts, rows.start) * many + rows.key
    return np.searchsorted(known, np.searchsorted(starts, part.start) * many + part.key)
