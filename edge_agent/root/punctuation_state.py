"""Decides which windows between markers get rows now. Pure; its state is plain values.

Rules (docs/protocol.md), by interpretation:

- local, bounds: a window is complete when the frontier has reached its end (4.4).
- order: the i-th windows of all nodes form one window as soon as every node has sent its window. If the query allows,
  nodes that are left out are not waited for. Nor is a window that was lost: a later one of the node has closed, and the
  node has promised that nothing before it follows. Numbers: root/window_numbers.py.
- overlap: windows that overlap or touch form one window, complete when the bound of their markers is above its end
  (5.1).
- central: the markers of all nodes cut one stream. A window is complete when every node's frontier has passed its end
  (7.4).

Reasons to withdraw a window with rows: root/decision/withdrawals.py.
Rows are revised when readings come late or their coverage changes (4.2, 4.7), at most once in `revise_every` (8.3).
Markers alone decide where a window begins and ends, so windows without readings are listed too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from edge_agent.algebra.coverage import Coverage
from edge_agent.algebra.frame import NEVER_US, Gap
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.punctuation.marker_merge import MergedMarkers
from edge_agent.algebra.punctuation.markers import LEAD, MARKER_KEY, is_marker_key, role_of
from edge_agent.algebra.query.key import QueryKey
from edge_agent.root.completeness import Decision
from edge_agent.root.decision.withdrawals import superseded
from edge_agent.root.punctuation_windows import (
    Complete,
    JointWindow,
    Members,
    Pick,
    Place,
    WindowChanges,
    coverage_of,
    interpretations,
    joined,
    reached_us,
)
from edge_agent.root.window_numbers import WindowNumbers


@dataclass(slots=True)
class PunctuationWindows:
    """The windows of one query revision.

    known: node of the group -> (start, end) of windows without rows so far -> number at the node. numbers: numbers of
    the windows (interpretation order). shown: windows with rows -> the parts and coverage of these rows. touched: shown
    windows whose rows must be computed again. lacking: shown windows with missing gateways. revised_us: time of the
    last revision. floors: node of the rows -> windows that end by then are forgotten; '' also for nodes without their
    own. merged: the markers of all nodes (interpretation central). numbered: number -> shown window that lacks a node.
    withdrawn: windows whose rows are withdrawn.
    """

    known: dict[str, dict[tuple[int, int], int]] = field(default_factory=dict)
    numbers: WindowNumbers = field(default_factory=WindowNumbers)
    shown: dict[Place, tuple[tuple[Pick, ...], Coverage]] = field(default_factory=dict)
    touched: set[Place] = field(default_factory=set)
    lacking: set[Place] = field(default_factory=set)
    revised_us: int | None = None
    floors: dict[str, int] = field(default_factory=dict)
    merged: MergedMarkers = field(default_factory=MergedMarkers)
    numbered: dict[int, Place] = field(default_factory=dict)
    withdrawn: set[Place] = field(default_factory=set)
    _fresh: list[tuple[int, int]] = field(default_factory=list)  # central: windows that closed at this step
    _reach: dict[str, int] = field(default_factory=dict)  # node of a group -> latest end of its parts of shown windows

    @property
    def waiting(self) -> bool:
        """Whether rows may have to be revised once a revision is due."""
        return bool(self.touched)

    def low_us(self, node: str) -> int | None:
        """Start of the first window without rows of a group's node; None if there is none."""
        starts = [start for start, _ in self.known.get(node, ())]
        starts += [us for us in (self.merged.low_us,) if us is not None]
        return min(starts, default=None)

    def kept_us(self, node: str) -> int | None:
        """Earliest start of the rows of a group's node that windows are computed from, now or in a revision; None: no
        rows.
        """
        starts = [start for picks, _ in self.shown.values() for of, start, _ in picks if of == node]
        starts += [us for us in (self.low_us(node),) if us is not None]
        return min(starts, default=None)

    def first_us(self, node: str, past_us: int) -> int | None:
        """Start of a group's first window that ends after past_us, or without an end so far; None: there is none."""
        starts = [start for of, start, end in self.shown if of == node and end > past_us]
        starts += [us for us in (self.low_us(node),) if us is not None]
        return min(starts, default=None)

    def floor_us(self, node: str) -> int:
        """Windows with rows of this node that end by then are forgotten."""
        return self.floors.get(node, self.floors.get("", NEVER_US))

    def add_markers(
        self, node: str, keys: Iterable[str], starts: Iterable[int], ends: Iterable[int], past_us: int = NEVER_US
    ) -> None:
        """Add marker rows of a group that took effect. A row under a key that is no marker's says nothing.

        past_us: see `step`; earlier markers are ignored.
        """
        known = self.known.setdefault(node, {})
        for key, start_us, end_us in zip(keys, starts, ends, strict=True):
            if not is_marker_key(key):
                continue
            role = role_of(key)
            if (end_us <= past_us) if role is None else (start_us < past_us):
                continue
            if role == LEAD:
                self.merged.add_lead(start_us, end_us)
                continue
            if role is not None:
                self.merged.add(start_us, role)
                continue
            number = -1 if key == MARKER_KEY else self.numbers.take(node, key, start_us, end_us)
            if (node, start_us, end_us) not in self.shown:  # a member that is behind may repeat them
                known[start_us, end_us] = number

    def touch(self, node: str, low_us: Ints, high_us: Ints, past_us: int = NEVER_US) -> None:
        """Mark shown windows that rows in [low, high) touch for revision. past_us: see `step`.

        low_us, high_us: shape (n,), n may be 0.
        """
        near = low_us < self._reach.get(node, NEVER_US)
        if not near.any():
            return
        low_us, high_us = low_us[near], high_us[near]
        for place, (picks, _) in self.shown.items():
            if place[2] > past_us and any(
                of == node and ((low_us < end) & (high_us > start)).any() for of, start, end in picks
            ):
                self.touched.add(place)

    def step(
        self,
        key: QueryKey,
        members: Members,
        decision: Decision,
        gaps: Sequence[Gap],
        *,
        due_us: int,
        horizon_us: int,
        past: Mapping[str, int] = MappingProxyType({}),
    ) -> WindowChanges:
        """The windows that get rows now. gaps: all known. Revisions are due if the last one was at due_us or before.

        past: node of the rows -> windows that end by then are beyond the horizon. Their rows stay as they are, unless
        they wait for a revision already: readings of theirs that come now are in no result.
        """
        self._recover(members, decision, past)
        due = self.revised_us is None or self.revised_us <= due_us
        read_as = interpretations(members)
        within = bool(read_as & {"overlap", "central"})
        closing: dict[Place, None] = {}
        revising: dict[Place, None] = {}
        gone = self._cut_anew(members, due=due) if read_as == {"central"} else []
        gone += self._over(key, decision)
        number_of = {place: number for number, place in self.numbered.items()}
        for place, picks, instead in self._complete(key, members):
            if instead and not due:
                self.touched |= {old for old in instead if old in self.shown}
                continue
            for old in instead:
                self._drop(old)
            number = next((number_of[old] for old in instead if old in number_of), self.numbers.next - 1)
            number_of[place] = number
            expected = self.numbers.expected(members, picks, number) if read_as == {"order"} else members
            lost = self.numbers.lost(expected, number)
            self._show(JointWindow(place, picks, coverage_of(key, (place, picks), expected, gaps, lost), within))
            # rows of windows that may be joined are identified by their start, others by both bounds
            same = [old for old in instead if old == place or (read_as == {"overlap"} and old[1] == place[1])]
            (revising if same or place in self.withdrawn else closing)[place] = None
            gone += [old for old in instead if old not in same]
        # a window that was shown and dropped within this step never had a row
        gone = [old for old in gone if not (old in self.shown or old in closing or old in self.withdrawn)]
        self.withdrawn = (self.withdrawn | {*gone}) - self.shown.keys()
        lacking = {place for place in self.lacking if place[2] > past.get(place[0], NEVER_US)}
        for place in sorted((self.touched | lacking) - closing.keys() - revising.keys()) if due else ():
            picks, before = self.shown[place]
            number = number_of.get(place, -1)
            expected = self.numbers.expected(members, picks, number) if read_as == {"order"} else members
            coverage = coverage_of(key, (place, picks), expected, gaps, self.numbers.lost(expected, number))
            if coverage != before or place in self.touched:
                self._show(JointWindow(place, picks, coverage, within))
                revising[place] = None
        if due:
            self.touched.clear()
        if revising or gone:
            self.revised_us = decision.now_us
        first = tuple(self._joint(place, within) for place in closing if place in self.shown)
        again = tuple(self._joint(place, within) for place in revising if place in self.shown and place not in closing)
        self._forget(members, horizon_us)
        return WindowChanges(first, again, tuple(gone))

    def _over(self, key: QueryKey, decision: Decision) -> list[Place]:
        """Withdraw windows with rows that turn out to belong to a newer revision of the query (6.3)."""
        out: list[Place] = []
        for (group, of), from_us in decision.narrowed.items():
            if of == key:
                mine = [p for p, (picks, _) in self.shown.items() if any(pick[0] == group.node for pick in picks)]
                out += [place for place in mine if superseded(place[1], place[2], from_us, NEVER_US)]
        for place in dict.fromkeys(out):
            self._drop(place)
        return [*dict.fromkeys(out)]

    def _joint(self, place: Place, within: bool) -> JointWindow:
        return JointWindow(place, *self.shown[place], within)

    def _show(self, joint: JointWindow) -> None:
        self.shown[joint.place] = (joint.picks, joint.coverage)
        (self.lacking.discard if joint.coverage.complete else self.lacking.add)(joint.place)
        for node, start_us, end_us in joint.picks:
            self._reach[node] = max(end_us, self._reach.get(node, NEVER_US))
            known = self.known.get(node, {})
            gone = [w for w in known if start_us <= w[0] and w[1] <= end_us] if joint.within else [(start_us, end_us)]
            for window in gone:
                known.pop(window, None)

    def _drop(self, place: Place) -> None:
        del self.shown[place]
        self.touched.discard(place)
        self.lacking.discard(place)

    def _recover(self, members: Members, decision: Decision, past: Mapping[str, int]) -> None:
        """Mark windows whose coverage may have changed, because a leaf caught up or a gap record arrived (4.7)."""
        for (group, _leaf), (old_us, new_us) in decision.caught_up.items():
            if group.node in members and members[group.node][0] == group:
                past_us = max(old_us, past.get(group.node, NEVER_US))
                self.touched |= {p for p, (picks, _) in self.shown.items() for at in picks if past_us < at[2] <= new_us}
        for _node, gap in decision.gaps:
            for node, (group, _) in members.items():
                if group in gap.groups:
                    past_us = past.get(node, NEVER_US)
                    self.touch(node, np.array([gap.start_us]), np.array([gap.end_us]), past_us)

    def _complete(self, key: QueryKey, members: Members) -> Iterator[Complete]:
        """Yields the windows that are complete, in order of time."""
        read_as = interpretations(members)
        if read_as == {"order"}:
            self.numbers.count_from(key, members, self.known)
            yield from self._returned(key, members)
            yield from self._ordered(key, members)
            return
        for node, (group, view) in members.items():
            serving, known = view.serving[key], self.known.get(node, {})
            if read_as == {"overlap"}:
                bound_us = view.bound_us(MARKER_KEY)
                whole = joined(sorted([*known, *((start, end) for _, start, end in self.shown)])) if known else ()
                windows = [w for w in whole if bound_us > w[1] and ("", *w) not in self.shown]
            elif read_as == {"central"}:
                windows = [window for window in self._fresh if ("", *window) not in self.shown]
                self._fresh = []
            else:
                windows = [window for window in sorted(known) if window[1] <= view.frontier_us]
            for start_us, end_us in windows:
                if serving.covers(start_us, end_us):
                    place, shown = (group.node, start_us, end_us), self.shown if read_as == {"overlap"} else ()
                    inside = tuple(old for old in shown if old[1] >= start_us and old[2] <= end_us)
                    yield place, ((node, start_us, end_us),), inside

    def _cut_anew(self, members: Members, *, due: bool) -> list[Place]:
        """Cut the common stream at the markers of this step. Returns the windows with rows that a late marker cut."""
        ((group, view),) = members.values()
        fresh, anew = self.merged.step(reached_us(group, view))
        if not anew:
            self._fresh = list(fresh)
            return []
        now = {("", *window) for window in fresh}
        stale = [place for place in self.shown if place not in now]
        self._fresh = [window for window in fresh if window[1] > self.floor_us("")]
        if not stale:
            return []
        if not due:  # new windows that overlap them wait too, so that no reading is in two rows
            self.merged.look_again()
            self.touched |= {*stale}
            self._fresh = [w for w in self._fresh if not any(w[0] < old[2] and w[1] > old[1] for old in stale)]
            return []
        for place in stale:
            self._drop(place)
        return stale

    def leave(self, node: str) -> None:
        """Forget a node that is gone for good. If its name returns, it joins anew."""
        self.known.pop(node, None)
        self.numbers.leave(node)

    def _awaited(self, node: str, number: int) -> bool:
        """Whether a node's window may still become part of a window of all nodes. number: -1 if it has none."""
        common = self.numbers.common(node, number)
        return number >= 0 and (
            node not in self.numbers.first or common >= self.numbers.next or common in self.numbered
        )

    def _ordered(self, key: QueryKey, members: Members) -> Iterator[Complete]:
        """Yields windows by number while every node has sent the next one, has lost it, or is left out and the query
        allows that.
        """
        numbers = self.numbers
        own = {
            node: {numbers.common(node, number): window for window, number in self.known.get(node, {}).items()}
            for node in members
        }
        while True:
            lost = {node for node in numbers.lost(members, numbers.next) if numbers.next not in own[node]}
            if lost == members.keys():
                numbers.next = min(
                    (n for windows in own.values() for n in windows if n > numbers.next), default=numbers.next + 1
                )
                continue
            here = {
                node: windows[numbers.next]
                for node, windows in own.items()
                if numbers.next in windows and windows[numbers.next][1] <= members[node][1].frontier_us
            }
            lacking = own.keys() - here.keys()
            awaited = [members[node] for node in lacking - lost]
            if not here or not all(group.cut.skips and view.stuck for group, view in awaited):
                return
            picks = tuple((node, *window) for node, window in here.items())
            number, numbers.next = numbers.next, numbers.next + 1
            if all(members[node][1].serving[key].covers(start, end) for node, start, end in picks):
                made = self._whole(picks)
                if lacking:
                    self.numbered[number] = made[0]
                yield made

    def _returned(self, key: QueryKey, members: Members) -> Iterator[Complete]:
        """Yields shown windows that lacked a node, once the window of that node has come."""
        for node, (_, view) in members.items() if self.numbered else ():
            for window, number in sorted(self.known.get(node, {}).items(), key=lambda one: one[1]):
                number = self.numbers.common(node, number)
                old = self.numbered.get(number)
                if old is None or window[1] > view.frontier_us or not view.serving[key].covers(*window):
                    continue
                if old not in self.shown:  # forgotten: it is beyond the horizon
                    del self.numbered[number]
                    continue
                if (node, *window) in self.shown[old][0]:  # its marker was repeated: its rows count once
                    del self.known[node][window]
                    continue
                made = self._whole((*self.shown[old][0], (node, *window)), old)
                yield made
                if made[0] in self.shown:
                    self.numbered[number] = made[0]

    def _whole(self, picks: tuple[Pick, ...], *instead: Place) -> Complete:
        """The window that these parts form. It includes the parts of a shown window with the same bounds."""
        place = ("", min(start for _, start, _ in picks), max(end for _, _, end in picks))
        if place in self.shown and place not in instead:
            return place, (*self.shown[place][0], *picks), (*instead, place)
        return place, picks, instead

    def _forget(self, members: Members, horizon_us: int) -> None:
        """Forget windows beyond the horizon: of each node by itself, unless windows of all nodes form one by number.

        Skips most calls, because it visits all windows. Where windows are cut anew, those that wait to be revised, and
        all later ones, are kept until they are: a window that is formed no more would be withdrawn, and the windows
        that replace one would lack their beginnings.
        """
        read_as = interpretations(members)
        floors = {node: reached_us(*of) - horizon_us for node, of in members.items()}
        if read_as == {"central"}:
            floors = {node: min([us, *(start for _, start, _ in self.touched)]) for node, us in floors.items()}
        common_us = min(floors.values(), default=NEVER_US)
        floors = {"": common_us} if read_as == {"order"} else {"": common_us, **floors}
        if all(us - self.floor_us(node) < horizon_us // 64 for node, us in floors.items()):
            return
        self.floors = {node: max(us, self.floor_us(node)) for node, us in floors.items()}
        for node, windows in self.known.items():
            floor_us = self.floor_us(node)
            self.known[node] = {w: n for w, n in windows.items() if w[1] > floor_us or self._awaited(node, n)}
        for place in [p for p in self.shown if p[2] <= self.floor_us(p[0]) and p not in self.touched]:
            self._drop(place)
        self.withdrawn = {place for place in self.withdrawn if place[2] > self.floor_us(place[0])}
        self.numbered = {number: place for number, place in self.numbered.items() if place in self.shown}
        self.merged.forget(self.floor_us(""))

    def snapshot(self) -> dict[str, object]:
        return {
            "known": [[node, [[*window, number] for window, number in of.items()]] for node, of in self.known.items()],
            **self.numbers.snapshot(),
            "shown": [
                [list(place), [list(pick) for pick in picks], list(cover.expected), [list(m) for m in cover.missing]]
                for place, (picks, cover) in self.shown.items()
            ],
            "touched": [list(place) for place in sorted(self.touched)],
            "merged": self.merged.snapshot(),
            "numbered": [[number, list(place)] for number, place in self.numbered.items()],
            "withdrawn": [list(place) for place in sorted(self.withdrawn)],
            "revised": self.revised_us,
            "floors": dict(self.floors),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> PunctuationWindows:
        shown = {
            (node, start, end): (
                tuple((of, low, high) for of, low, high in picks),
                Coverage(tuple(expected), tuple((leaf, why) for leaf, why in missing)),
            )
            for (node, start, end), picks, expected, missing in state["shown"]
        }
        made = cls(
            {node: {(start, end): number for start, end, number in windows} for node, windows in state["known"]},
            WindowNumbers.restore(state),
            touched={(node, start, end) for node, start, end in state["touched"]},
            revised_us=state["revised"],
            floors=dict(state["floors"]) if "floors" in state else {"": state["floor"]},  # of older versions: one
            merged=MergedMarkers.restore(state["merged"]),
            numbered={number: (node, start, end) for number, (node, start, end) in state["numbered"]},
            withdrawn={(node, start, end) for node, start, end in state["withdrawn"]},
        )
        for place, (picks, coverage) in shown.items():
            made._show(JointWindow(place, picks, coverage, within=False))
        return made
