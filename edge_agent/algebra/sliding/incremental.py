"""Forms overlapping windows step by step. The cost of a window does not depend on its length.

This is the incremental form of `batch`. The states of the current block up to its end are precomputed (`_left`), and
newer slices are combined to one running state per key (`_run`). After each block, both are rebuilt from the slices that
are still needed ("two stacks", amortised O(1)). Windows of a step that spans a block or more are formed by `batch`.
Source: Tangwongsan et al. (2015), "General Incremental Sliding-Window Aggregation", section 5 (two stacks).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_agent.algebra.partials.arrays import NO_INTS, Ints, Mask
from edge_agent.algebra.partials.partial import NOTHING, Partials, combine, concat, in_windows
from edge_agent.algebra.partials.store import Store
from edge_agent.algebra.sliding import batch
from edge_agent.algebra.sliding.two_stacks import suffixes
from edge_agent.algebra.windows import Sliding, Window, evenly

_NEVER: Final = -(2**62)
_MANY: Final = 65_536  # slices (some 3 MB) to collect before those that no window needs are dropped


class Rolling:
    """Forms the windows of one sliding spec in the order of time, from slices that are cut at least at its edges."""

    __slots__ = (
        *("_base", "_fresh", "_held", "_left", "_left_keys", "_next", "_places", "_run", "_span"),
        *("basis", "reach", "window"),
    )

    def __init__(self, window: Sliding, basis: tuple[str, ...]) -> None:
        self.window, self.basis = window, basis
        self.reach = -(-window.length_us // window.slide_us)  # most windows that contain one slice
        self._next = _NEVER  # number of the first window that is not formed yet
        self._base: int | None = None  # first window of the current block, which has `reach` windows
        # One row per (key, end): all slices of the key in window `_base` whose last window is `end` or a later one.
        self._left = NOTHING
        self._left_keys = NO_INTS  # keys in `_left`; _places: its (key, window) as one integer, with factor _span
        self._places = NO_INTS
        self._span = 1
        self._run = NOTHING  # one row per key: slices that begin after `_base` and are in a formed window
        self._held: list[Partials] = []  # the slices of `_left` and `_run`
        self._fresh: list[Partials] = []  # slices in neither

    def __len__(self) -> int:
        return sum(len(part) for part in (*self._held, *self._fresh))

    def add(self, rows: Partials) -> None:
        """Add slices. None of them may lie in a window that is already formed."""
        if len(rows):
            self._fresh.append(rows)

    def upto(self, end_us: int, ranks: Ints | None = None) -> Partials:
        """Form the windows that end at or before end_us and are not formed yet, sorted by (start, key)."""
        window = self.window
        last = (end_us - window.length_us - window.offset_us) // window.slide_us
        if last < self._next or not len(self):
            self._next = max(self._next, last + 1)
            return NOTHING
        fresh = concat(self._fresh)
        lowest = max(self._next, int(self._numbers(fresh)[0].min()) if not self._held else self._next)
        if last < lowest:
            self._next = last + 1
            return NOTHING
        made: list[Partials] = []
        if last - lowest >= self.reach:
            made.append(self._at_once(lowest, last, ranks))
        else:
            while lowest <= last:
                if self._base is None or lowest >= self._base + self.reach:
                    self._rebase(lowest, ranks)
                assert self._base is not None
                upto = min(last, self._base + self.reach - 1)
                made.append(self._step(lowest, upto, ranks))
                lowest = upto + 1
        self._next = last + 1
        found = concat(made)
        start = window.offset_us + found.start * window.slide_us
        return Partials(start, start + window.length_us, found.key, found.states)

    def open(self, ranks: Ints | None = None) -> Partials:
        """All windows with a row that are not formed yet, without marking them as formed."""
        low = _NEVER if self._next == _NEVER else self.window.offset_us + self._next * self.window.slide_us
        return batch.in_windows_of(self.rows(), self.window, self.basis, (low, -_NEVER), ranks)

    def clear(self) -> None:
        """Drop all rows. Formed windows stay marked as formed."""
        self._base, self._left, self._run, self._held, self._fresh = None, NOTHING, NOTHING, [], []

    def rows(self) -> Partials:
        """The slices that later windows need."""
        rows = concat([*self._held, *self._fresh])
        return rows.take(self.needs(rows)) if len(rows) else rows

    def needs(self, rows: Partials) -> Mask:
        """Mask of the rows that lie in a window that is not formed yet."""
        first, last = self._numbers(rows)
        needed: Mask = last >= np.maximum(first, self._next)
        return needed

    def reopen(self, end_us: int) -> None:
        """Mark windows that end after end_us as not formed. Allowed only without rows."""
        assert not len(self)
        window = self.window
        self._next = min(self._next, (end_us - window.length_us - window.offset_us) // window.slide_us + 1)

    @property
    def formed_us(self) -> int:
        """Start of the first window that is not formed yet."""
        return _NEVER if self._next == _NEVER else self.window.offset_us + self._next * self.window.slide_us

    def restore(self, rows: Partials, formed_us: int) -> None:
        """Continue from `rows` and `formed_us` of another instance."""
        self.clear()
        self._next = _NEVER if formed_us == _NEVER else (formed_us - self.window.offset_us) // self.window.slide_us
        self.add(rows)

    def _numbers(self, rows: Partials) -> tuple[Ints, Ints]:
        """(first, last) number of the windows that contain each row."""
        return batch.numbers(self.window, rows.start, rows.end)

    def _at_once(self, low: int, last: int, ranks: Ints | None) -> Partials:
        rows = concat([*self._held, *self._fresh])
        first, final = self._numbers(rows)
        _, made = batch.over(rows, np.maximum(first, low), np.minimum(final, last), self.basis, ranks)
        self.clear()
        self.add(rows.take(final > last))
        return made

    def _rebase(self, base: int, ranks: Ints | None) -> None:
        """Begin the block of windows that starts with number `base`: compute `_left` from the slices."""
        rows = concat([*self._held, *self._fresh])
        first, final = self._numbers(rows)
        needed = final >= base
        begun = needed & (first <= base)
        self.clear()
        self._base = base
        self._held = [rows.take(begun)]
        self.add(rows.take(needed & ~begun))
        self._left = suffixes(self._held[0], final[begun], self.basis, ranks)
        self._left_keys, index = np.unique(self._left.key, return_inverse=True)
        self._span = 1 + (int(self._left.end.max()) - base if len(self._left) else 0)
        self._span = max(self._span, self.reach) + 1
        self._places = index * self._span + self._left.end - base

    def _step(self, low: int, last: int, ranks: Ints | None) -> Partials:
        """Form windows low..last of the current block. start and end of the result are the window's number."""
        fresh = concat(self._fresh)
        first, final = self._numbers(fresh)
        taken = first <= last
        rows, first, final = fresh.take(taken), first[taken], final[taken]
        self._fresh = [] if taken.all() else [fresh.take(~taken)]
        running = Partials(np.full(len(self._run), low), np.full(len(self._run), last), self._run.key, self._run.states)
        both = concat([running, Partials(np.maximum(first, low), np.minimum(final, last), rows.key, rows.states)])
        _, right = batch.over(both, both.start, both.end, self.basis, ranks)
        made = combine(concat([self._ends(low, last), right]), self.basis, 1, ranks)
        if len(rows):
            self._held.append(rows)
            zero = np.zeros(len(self._run) + len(rows), np.int64)
            since = concat([self._run, Partials(rows.start, rows.end, rows.key, dict(rows.states))])
            self._run = combine(Partials(zero, zero, since.key, since.states), self.basis, 1, ranks)
        return made

    def _ends(self, low: int, last: int) -> Partials:
        """For each window low..last and key, the state of the rows in `_left` that lie in the window."""
        left, keys = self._left, self._left_keys
        if not len(left):
            return NOTHING
        assert self._base is not None
        key = np.tile(np.arange(len(keys)), last - low + 1)
        number = np.repeat(np.arange(low, last + 1), len(keys))
        place = np.searchsorted(self._places, key * self._span + number - self._base)
        place = np.minimum(place, len(left) - 1)
        there = (left.key[place] == keys[key]) & (left.end[place] >= number)
        place, number, key = place[there], number[there], key[there]
        states = {name: column[place] for name, column in left.states.items()}
        return Partials(number, number, keys[key], states)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRows:
    """The rows of a WindowStore. whole: rows of whole windows. slices: slices of overlapping windows.

    formed: `Rolling.formed_us` of each overlapping spec.
    """

    whole: Partials
    slices: Partials
    formed: list[int]


class WindowStore:
    """A Store for plans whose windows are formed at the gateway: takes slices, returns whole windows.

    Overlapping windows are formed when they close, at a constant cost per slice. For other windows each slice is stored
    as a part of its window at once.
    """

    def __init__(self, basis: tuple[str, ...], windows: Iterable[Window], nodes: Sequence[str] = ()) -> None:
        """windows: those of the plan's queries; slices are cut at the edges of all of them. nodes: as in Store."""
        each = list(dict.fromkeys(windows))
        self.basis = basis
        even = {w: found for w in each if (found := evenly(w)) is not None and found.length_us > found.slide_us}
        self._rolls = [Rolling(found, basis) for found in dict.fromkeys(even.values())]
        self._others = [w for w in each if w not in even]
        self._store = Store(basis, None, nodes)
        self._slices: list[Partials] = []  # the slices that were added to `_rolls`
        self._rows, self._kept = 0, 0  # rows in `_slices`: now, and after the last call of `_needed`

    def __len__(self) -> int:
        return max([len(self._store), *(len(roll) for roll in self._rolls)])

    @property
    def lowest_start(self) -> int | None:
        """The lowest start of an open row, in us; None if there is none."""
        return min((int(rows.start.min()) for rows in self._parts()), default=None)

    def add(self, slices: Partials) -> None:
        """Add slices; ranges and keys may repeat. None may lie in a window that was already returned."""
        if not len(slices):
            return
        if self._others:
            self._store.add(in_windows(slices, self._others))
        if self._rolls:
            self._slices.append(slices)
            self._rows += len(slices)
            if self._rows > 2 * self._kept + _MANY:
                self._needed()
            for roll in self._rolls:
                roll.add(slices)

    def close(self, frontier_us: int) -> Partials:
        """Remove and return the windows that end at or before frontier_us, combined and in order."""
        ranks = self._store.ranks()
        return self._once([self._store.close(frontier_us), *(roll.upto(frontier_us, ranks) for roll in self._rolls)])

    def flush(self) -> Partials:
        """Remove and return all open windows. Slices that are added later are further deltas of the same windows."""
        ranks = self._store.ranks()
        windows = self._once([self._store.flush(), *(roll.open(ranks) for roll in self._rolls)])
        self._slices, self._rows, self._kept = [], 0, 0
        for roll in self._rolls:
            roll.clear()
        return windows

    def reopen(self, frontier_us: int) -> None:
        """After `flush`: accept slices, as deltas, for windows that end after this frontier, even if already formed."""
        for roll in self._rolls:
            roll.reopen(frontier_us)

    def view(self) -> Partials:
        """All open windows, without removing them."""
        ranks = self._store.ranks()
        return self._once([self._store.view(), *(roll.open(ranks) for roll in self._rolls)])

    def snapshot(self) -> WindowRows:
        """All rows, and how far windows have been formed."""
        return WindowRows(whole=self._store.view(), slices=self._needed(), formed=[r.formed_us for r in self._rolls])

    def restore(self, state: WindowRows) -> None:
        """Replace all rows by those of a snapshot."""
        self._store.restore(state.whole)
        self._slices, self._rows, self._kept = [state.slices], len(state.slices), len(state.slices)
        for roll, formed_us in zip(self._rolls, state.formed, strict=True):
            roll.restore(state.slices, formed_us)

    def _parts(self) -> list[Partials]:
        return [rows for rows in (self._store.view(), self._needed()) if len(rows)]

    def _needed(self) -> Partials:
        """Drop the slices that no window needs any more. Returns the others, combined."""
        slices = concat(self._slices)
        keep = np.zeros(len(slices), np.bool_)
        for roll in self._rolls:
            keep |= roll.needs(slices)
        slices = combine(slices if keep.all() else slices.take(keep), self.basis, None, self._store.ranks())
        self._slices = [slices]
        self._rows = self._kept = len(slices)
        return slices

    def _once(self, parts: list[Partials]) -> Partials:
        """Join parts and sort them. A window of several specs is returned once."""
        found = [part for part in parts if len(part)]
        if len(found) < 2:
            return found[0] if found else NOTHING
        rows = concat(found)
        order = np.lexsort((rows.key, rows.end, rows.start))
        start, end, key = rows.start[order], rows.end[order], rows.key[order]
        again = (start[1:] == start[:-1]) & (end[1:] == end[:-1]) & (key[1:] == key[:-1])
        return rows.take(order[np.concatenate([[True], ~again])])
