"""Tracks the extents of open sessions by key, and finds the sessions that get rows now. Pure.

Rules (docs/protocol.md): a session is complete when the bound of its key is above last + gap; the bound is the lesser
of frontier and hint (5.1). Pieces within one gap form one island (5.3). If a piece joins an island that has a row, the
row is computed again from all pieces (5.4); so is a row whose coverage changed (4.7), but each row at most once in
`revise_every` (8.3).

Only the extents of open sessions are kept here: states stay in bronze.messages and are read once, when a session ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.frame import NEVER_US, Gap, Serving
from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.sessions import breaks
from edge_agent.algebra.query.group_cut import GroupCut
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.downlink.epochs.renumbering import TextNumbers
from edge_agent.root.completeness import GroupView

NO_FLAGS: Final[NDArray[np.bool_]] = np.zeros(0, np.bool_)
Pieces = tuple[Ints, Ints, Ints]  # key code, start, end: one row per piece


@dataclass(frozen=True, slots=True)
class SessionDecisionView:
    """The values of a decision for one query of sessions in its group.

    gaps: declared by frames that took effect since the last decision. floor_us: rows that end earlier are beyond the
    horizon. due: rows may be revised now.
    """

    group: Group
    view: GroupView
    serving: Serving
    begins: Mapping[str, int]
    ends: Mapping[str, int]
    gaps: Sequence[Gap]
    floor_us: int
    due: bool

    def fallen(self, shut: Mapping[str, int], shut_us: int) -> bool:
        """Whether a bound is below that of an earlier step, for example because a member is no longer left out (4.4).

        shut: key -> bound at the earlier step. shut_us: the bound of all other keys then.
        """
        return any(self.view.bound_us(key) < shut.get(key, shut_us) for key in self.view.hints)


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """Bounds of session rows, which limit the coverages to compute (edge_agent/root/decision/session_coverage.py).

    firsts, ends: least and greatest first reading and last + gap. longest_us: greatest time between the two in one row.
    keys: the keys that rows may have; None: any.
    """

    firsts: tuple[int, int]
    ends: tuple[int, int]
    longest_us: int
    keys: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class ClosableSessions:
    """The result of a step. low_us: start of the earliest island that gets its first row; None if there is none.

    bound_us, shut_us: see Islands. touched: rows of any key in this range are computed again. keyed: key -> (bound,
    shut, range to compute again or None), for keys with values of their own. first, again: bounds of the rows that are
    written first, and of those that are computed again.
    """

    bound_us: int
    shut_us: int
    low_us: int | None
    touched: tuple[int, int] | None
    keyed: Mapping[str, tuple[int, int, tuple[int, int] | None]]
    first: SessionBounds | None = None
    again: SessionBounds | None = None


@dataclass(slots=True)
class OpenSessions:
    """The sessions of one query revision.

    code, start, end, again: one row per waiting island; again: it contains a piece that started below the bound at its
    arrival, so that it may join a row. shut: key -> the greatest bound so far; shut_us: that of all other keys. leaves,
    begins, ends, registers: the values from which the coverage of the present rows followed. touched: range of rows to
    compute again. crossing_us: see Islands. longest_us: greatest time from first reading to last + gap of a row;
    `stretch` raises it.
    """

    code: Ints = field(default_factory=lambda: NO_INTS)
    start: Ints = field(default_factory=lambda: NO_INTS)
    end: Ints = field(default_factory=lambda: NO_INTS)
    again: NDArray[np.bool_] = field(default_factory=lambda: NO_FLAGS)
    shut_us: int = NEVER_US
    shut: dict[str, int] = field(default_factory=dict)
    leaves: dict[str, int] = field(default_factory=dict)
    begins: dict[str, int] = field(default_factory=dict)
    registers: dict[str, dict[str, int]] = field(default_factory=dict)
    touched: tuple[int, int] | None = None
    crossing_us: int = NEVER_US
    longest_us: int = 0
    ends: dict[str, int] = field(default_factory=dict)

    @property
    def waiting(self) -> bool:
        """Whether rows may have to be revised once a revision is due."""
        return self.touched is not None or bool(self.again.any())

    @property
    def low_us(self) -> int:
        """The start of the first waiting island; FAR_US if there is none."""
        return int(self.start.min()) if len(self.start) else FAR_US

    def add(self, pieces: Iterable[Pieces], names: TextNumbers, cut: GroupCut, floor_us: int, begun_us: int) -> None:
        """Add pieces that took effect, in any order. Drops pieces that end by floor_us or begin before begun_us."""
        gap_us, max_us = cut.gap_us, cut.max_us
        found = [(self.code, self.start, self.end, self.again)]
        shut = _by_code(names, self.shut, self.shut_us)
        floor_us = min(floor_us, self.shut_us)
        for code, start, end in pieces:
            kept = (end - 1 + gap_us > floor_us) & (start >= begun_us)
            code, start, end = (code, start, end) if kept.all() else (code[kept], start[kept], end[kept])
            found.append((code, start, end, start < shut[code]))
        code, start, end, again = (np.concatenate(columns) for columns in zip(*found, strict=True))
        if len(found) == 1 or not len(code):
            return
        order = np.lexsort((end, start, code))
        rows = Partials(start[order], end[order], code[order], {})
        first = breaks(rows, gap_us, max_us)
        self.code, self.start, self.end = rows.key[first], rows.start[first], np.maximum.reduceat(rows.end, first)
        self.again = np.logical_or.reduceat(again[order], first)

    def drop(self, before_us: int, gap_us: int) -> None:
        """Forget waiting islands whose last + gap is at or before this time."""
        kept = self.end - 1 + gap_us > before_us
        self.code, self.start, self.end, self.again = (
            self.code[kept],
            self.start[kept],
            self.end[kept],
            self.again[kept],
        )

    def step(self, now: SessionDecisionView, names: TextNumbers) -> ClosableSessions | None:
        """Remove complete islands and return which rows to compute; None: no row."""
        view, gap_us = now.view, now.group.cut.gap_us
        self._touch(now)
        revises = now.due and self.touched is not None
        if not len(self.code) and not revises:  # as at most steps: no row, no change
            self._advance(view)
            return None
        bound, reach = _by_code(names, view.hints, view.frontier_us), self.end - 1 + gap_us
        complete = bound[self.code] > reach
        if not complete.any() and not revises:
            self._advance(view)
            return None
        shut = _by_code(names, self.shut, self.shut_us)
        done = self._unjoined(complete, reach)
        touched_code = np.zeros(len(names.texts), np.bool_)
        touched_code[self.code[done & self.again]] = True
        again = done & touched_code[self.code]  # all islands of such a key, so that one time range selects them
        first_rows = done & ~again
        ready = again & (bound >= shut)[self.code] & now.due
        differs = (bound < view.frontier_us) | (shut < self.shut_us)
        touched = self.touched if now.due else None
        # a row in the touched range includes all pieces so far, even of an island that waits for an open one near it
        made_again = again if touched is None else again | (complete & self.again)
        keyed = self._keyed(names, (bound, shut), made_again, differs, gap_us)
        low_us = int(self.start[first_rows].min()) if first_rows.any() else None
        if touched is not None and not now.fallen(self.shut, self.shut_us):
            self.touched = None
        first = self._first(names, first_rows, reach) if low_us is not None else None
        again_there = self._again(touched, keyed) if now.due else None
        found = ClosableSessions(view.frontier_us, self.shut_us, low_us, touched, keyed, first, again_there)
        self._cross(now.serving, first_rows | ready, gap_us)
        gone = first_rows | ready
        if gone.any():
            kept = ~gone
            self.code, self.start, self.end = self.code[kept], self.start[kept], self.end[kept]
            self.again = (self.again | again)[kept]
        else:
            self.again = self.again | again
        self._advance(view)
        return found if low_us is not None or touched is not None or ready.any() else None

    def _unjoined(self, done: NDArray[np.bool_], reach: Ints) -> NDArray[np.bool_]:
        """Which complete islands may get rows: not those that an existing row may join to an open island (5.4).

        Their common row cannot be computed yet, and computing it later requires each of them.
        """
        open_code = self.code[self.again & ~done]
        if not len(open_code):
            return done
        done, opens = done.copy(), dict[int, int]()  # key -> start of its earliest open island so far, backwards
        for at in np.flatnonzero(self.again & np.isin(self.code, open_code))[::-1].tolist():
            code = int(self.code[at])
            if not done[at] or opens.get(code, FAR_US) <= int(reach[at]) + self.longest_us:
                done[at], opens[code] = False, int(self.start[at])
        return done

    def _first(self, names: TextNumbers, rows: NDArray[np.bool_], reach: Ints) -> SessionBounds:
        """Bounds of the islands that get their first rows. rows: mask, at least one is set."""
        start, until = self.start[rows], reach[rows]
        longest_us = int((until - start).max())
        self.longest_us = max(self.longest_us, longest_us)
        keys = frozenset(names.texts[code] for code in np.unique(self.code[rows]).tolist())
        return SessionBounds(
            (int(start.min()), int(start.max())), (int(until.min()), int(until.max())), longest_us, keys
        )

    def _again(
        self, touched: tuple[int, int] | None, keyed: Mapping[str, tuple[int, int, tuple[int, int] | None]]
    ) -> SessionBounds | None:
        """Bounds of the rows that are computed again: touched rows, and rows that these may join on either side."""
        ranges = [touch for _, _, touch in keyed.values() if touch is not None]
        keys = frozenset(key for key, (_, _, touch) in keyed.items() if touch is not None) if touched is None else None
        ranges += [] if touched is None else [touched]
        if not ranges:
            return None
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        away = self.longest_us
        longest_us = max(high - low for low, high in ranges) + 2 * away
        return SessionBounds((low - away, high), (low, high + away), longest_us, keys)

    def stretch(self, longest_us: int) -> None:
        """Note a row of this length, from first reading to last + gap; islands here may all be shorter."""
        self.longest_us = max(self.longest_us, longest_us)

    def _keyed(
        self,
        names: TextNumbers,
        bounds: tuple[Ints, Ints],
        again: NDArray[np.bool_],
        differs: NDArray[np.bool_],
        gap_us: int,
    ) -> dict[str, tuple[int, int, tuple[int, int] | None]]:
        """Key -> (bound, shut, range to compute again), for keys with islands here that differ from all other keys.

        In the order of the keys' texts: their numbers differ in a root that was started again, its decisions must not.
        """
        size, (bound, shut) = len(names.texts), bounds
        low, high = np.full(size, 2**62, np.int64), np.full(size, NEVER_US, np.int64)
        np.minimum.at(low, self.code[again], self.start[again])
        np.maximum.at(high, self.code[again], self.end[again] - 1 + gap_us)
        here = np.zeros(size, np.bool_)
        here[self.code] = True
        codes = np.flatnonzero(here & (differs | (low < 2**62))).tolist()
        return {
            names.texts[c]: (int(bound[c]), int(shut[c]), (int(low[c]), int(high[c])) if low[c] < 2**62 else None)
            for c in sorted(codes, key=names.texts.__getitem__)
        }

    def _cross(self, serving: Serving, gone: NDArray[np.bool_], gap_us: int) -> None:
        """Note islands that began before the first start that may give a row: they never give a row (6.3)."""
        if serving.start_from_us is None or not gone.any():
            return
        over = gone & (self.start < serving.start_from_us)
        self.crossing_us = max(self.crossing_us, int((self.end[over] - 1).max(initial=NEVER_US - gap_us)) + gap_us)

    def _advance(self, view: GroupView) -> None:
        """Note the greatest bounds so far."""
        frontier_us = max(self.shut_us, view.frontier_us)
        bounds = {key: max(self.shut.get(key, self.shut_us), view.bound_us(key)) for key in {*self.shut, *view.hints}}
        self.shut = {key: bound_us for key, bound_us in bounds.items() if bound_us < frontier_us}
        self.shut_us = frontier_us

    def _touch(self, now: SessionDecisionView) -> None:
        """Add the rows whose coverage has changed since the last step to the range of rows to compute again."""
        view, shut_us = now.view, self.shut_us
        lows: list[int] = []
        for leaf in {*self.leaves, *view.bounds}:
            old_us, new_us = self.leaves.get(leaf), view.bounds.get(leaf)
            begin_us = now.begins.get(leaf, NEVER_US)
            if old_us is None or new_us is None:
                lows.append(begin_us)
            else:
                lows += [min(old_us, new_us)] * (old_us != new_us)
                before_us = self.begins.get(leaf, NEVER_US)
                lows += [min(before_us, begin_us)] * (before_us != begin_us)
                was_us, is_us = self.ends.get(leaf, FAR_US), now.ends.get(leaf, FAR_US)
                lows += [min(was_us, is_us) - 2 * now.group.cut.gap_us] * (was_us != is_us)
        registers = behind(view, {}, NEVER_US)
        for leaf in {*self.registers, *registers}:
            old, new = self.registers.get(leaf, {}), registers.get(leaf, {})
            if old != new:
                lows += [us for key in {*old, *new} if old.get(key) != new.get(key) for us in _known(old, new, key)]
        ranges = [(low, shut_us - 1) for low in lows if low < shut_us]
        gap_us = now.group.cut.gap_us
        ranges += [(gap.start_us, gap.end_us + gap_us - 1) for gap in now.gaps if now.group in gap.groups]
        self.leaves, self.begins, self.registers = dict(view.bounds), dict(now.begins), registers
        self.ends = dict(now.ends)
        ranges = [(max(low, now.floor_us), high) for low, high in ranges if high >= now.floor_us]
        if ranges and shut_us > NEVER_US:
            ranges += [self.touched] if self.touched is not None else []
            self.touched = (min(low for low, _ in ranges), max(high for _, high in ranges))

    def snapshot(self, names: TextNumbers) -> dict[str, object]:
        codes, place = np.unique(self.code, return_inverse=True)
        return {
            "keys": [names.texts[code] for code in codes.tolist()],
            "rows": [place.astype(np.int64), self.start, self.end, self.again],
            "shut": [self.shut_us, dict(self.shut)],
            "cover": [dict(self.leaves), dict(self.begins), {leaf: dict(own) for leaf, own in self.registers.items()}],
            "ends": dict(self.ends),
            "touched": self.touched,
            "crossing": self.crossing_us,
            "longest": self.longest_us,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any], names: TextNumbers) -> OpenSessions:
        """The inverse of `snapshot`. names: gives numbers to keys that it does not contain."""
        codes = names.of(state["keys"])
        place, start, end, again = state["rows"]
        shut_us, shut = state["shut"]
        leaves, begins, registers = (dict(part) for part in state["cover"])
        track = cls(codes[place], start, end, again, shut_us, dict(shut), leaves, begins, registers)
        track.touched, track.crossing_us, track.longest_us = state["touched"], state["crossing"], state["longest"]
        track.ends = dict(state.get("ends", {}))
        return track


def _by_code(names: TextNumbers, some: Mapping[str, int], rest_us: int) -> Ints:
    """A value per key: that in `some`, at most `rest_us`; `rest_us` for all other keys."""
    out = np.full(len(names.texts), rest_us, np.int64)
    for key, us in some.items():
        code = names.numbers.get(key)
        if code is not None:
            out[code] = min(us, rest_us)
    return out


def behind(view: GroupView, shut: Mapping[str, int], shut_us: int) -> dict[str, dict[str, int]]:
    """Leaf -> its registers, by key, below the present or an earlier bound of the key: rows may lack the leaf there.

    shut, shut_us: the greatest bounds so far, by key and of all other keys. A member that is no longer left out may
    have a register before rows that were written without it.
    """
    found: dict[int, dict[str, int]] = {}
    out: dict[str, dict[str, int]] = {}
    for leaf, own in view.registers.items():
        mine = found.get(id(own))  # the leaves of one member share them
        if mine is None:
            mine = found[id(own)] = {
                key: us for key, us in own.items() if us < max(view.bound_us(key), shut.get(key, shut_us))
            }
        if mine:
            out[leaf] = mine
    return out


def _known(old: Mapping[str, int], new: Mapping[str, int], key: str) -> list[int]:
    return [us for us in (old.get(key), new.get(key)) if us is not None]
