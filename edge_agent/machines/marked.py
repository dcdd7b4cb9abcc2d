"""Which windows between markers get rows now: shared by both roots. Pure; its whole state is plain values.

Rules (docs/protocol.md): of one node or of equal bounds, a window is complete when the frontier has reached its end
(4.4); the i-th windows of all nodes are one once every one of them has sent it; windows that overlap or touch are one,
complete when the bound of their markers lies past the end (5.1); a window that another joins after it was shown is
withdrawn (5.4); rows are revised when readings come late or their coverage changes (4.2, 4.7), at most once in
`revise_every` (8.3). A window is here with or without a reading: where it begins and ends follows from markers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_agent.algebra.coverage import Coverage, session_coverage, window_coverage
from edge_agent.algebra.frame import NEVER_US, Gap
from edge_agent.algebra.markers import MARKER_KEY, interpretation_of, is_marked, ordinal_of
from edge_agent.algebra.query import Group
from edge_agent.machines.decider import Decision, GroupView
from edge_agent.machines.session_results import belongs

Key = tuple[str, int]  # query and its revision
Place = tuple[str, int, int]  # node of the rows, start, end
Pick = tuple[str, int, int]  # node of a group, start, end
Members = Mapping[str, tuple[Group, GroupView]]  # the groups that serve a query, by node


@dataclass(frozen=True, slots=True)
class Joint:
    """One window of a query: rows of these picks are in it. within: rows inside a pick, not only those equal to it."""

    place: Place
    picks: tuple[Pick, ...]
    coverage: Coverage
    within: bool


@dataclass(frozen=True, slots=True)
class Found:
    """closing: windows that get their first rows. revising: those whose rows are made again. gone: withdrawn."""

    closing: tuple[Joint, ...] = ()
    revising: tuple[Joint, ...] = ()
    gone: tuple[Place, ...] = ()


@dataclass(slots=True)
class Marked:
    """The windows of one query revision.

    known: node of the group -> (start, end) of windows that have no rows yet -> number at the node. made: the last
    number of each node. next: of the window of all nodes that comes next. shown: windows that have rows, with what they
    were made of. touched: those of them to be made again. lacking: those whose coverage lacks something. revised_us:
    when rows were made again last. floor_us: what ended before has been forgotten.
    """

    known: dict[str, dict[tuple[int, int], int]] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    next: int = 0
    shown: dict[Place, tuple[tuple[Pick, ...], Coverage]] = field(default_factory=dict)
    touched: set[Place] = field(default_factory=set)
    lacking: set[Place] = field(default_factory=set)
    revised_us: int | None = None
    floor_us: int = NEVER_US
    _reach: dict[str, int] = field(default_factory=dict)  # node of a group -> latest end of what was shown of it

    @property
    def waiting(self) -> bool:
        """Whether rows may have to be revised once it is due."""
        return bool(self.touched)

    @property
    def low_us(self) -> int | None:
        """Where the first window begins that has no row yet; None: there is none."""
        return min((start for windows in self.known.values() for start, _ in windows), default=None)

    def tell(self, node: str, keys: Iterable[str], starts: Iterable[int], ends: Iterable[int]) -> None:
        """Rows of markers of a group that took effect."""
        known = self.known.setdefault(node, {})
        for key, start_us, end_us in zip(keys, starts, ends, strict=True):
            number = -1
            if key != MARKER_KEY:
                number = self.made[node] = ordinal_of(key, self.made.get(node, -1))
            if (node, start_us, end_us) not in self.shown:  # equal bounds of a member that is behind come later
                known[start_us, end_us] = number

    def touch(self, node: str, low_us: int, high_us: int) -> None:
        """Rows of readings in [low, high) of a group took effect."""
        if low_us >= self._reach.get(node, NEVER_US):
            return
        for place, (picks, _) in self.shown.items():
            if any(of == node and start < high_us and end > low_us for of, start, end in picks):
                self.touched.add(place)

    def step(
        self, key: Key, members: Members, decision: Decision, gaps: Sequence[Gap], *, due_us: int, horizon_us: int
    ) -> Found:
        """What gets rows now. gaps: all known. due_us: revised if that was not since then."""
        self._recover(members, decision)
        due = self.revised_us is None or self.revised_us <= due_us
        joins = any(interpretation_of(group) == "overlap" for group, _ in members.values())
        closing: list[Joint] = []
        revising: list[Joint] = []
        gone: list[Place] = []
        for place, picks in list(self._complete(key, members)):
            node, start_us, end_us = place
            shown = self.shown if joins else ()
            inside = [old for old in shown if old[0] == node and old[1] >= start_us and old[2] <= end_us]
            if inside and not due:
                continue
            for old in inside:
                self._drop(old)
            self._show(Joint(place, picks, self._coverage(key, place, picks, members, gaps), joins))
            again = any(old[1] == start_us for old in inside)
            (revising if again else closing).append(self._joint(place, joins))
            gone += [old for old in inside if old[1] != start_us]
        fresh = {joint.place for joint in (*closing, *revising)}
        for place in sorted((self.touched | self.lacking) - fresh) if due else ():
            picks, before = self.shown[place]
            coverage = self._coverage(key, place, picks, members, gaps)
            if coverage != before or place in self.touched:
                self._show(Joint(place, picks, coverage, joins))
                revising.append(self._joint(place, joins))
        if due:
            self.touched.clear()
        if revising or gone:
            self.revised_us = decision.now_us
        self._forget(members, horizon_us)
        return Found(tuple(closing), tuple(revising), tuple(gone))

    def _joint(self, place: Place, joins: bool) -> Joint:
        return Joint(place, *self.shown[place], joins)

    def _show(self, joint: Joint) -> None:
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

    def _recover(self, members: Members, decision: Decision) -> None:
        """Windows whose coverage may have changed: a leaf caught up, or a gap record came (4.7)."""
        for (group, _leaf), (old_us, new_us) in decision.caught_up.items():
            if group.node in members and members[group.node][0] == group:
                self.touched |= {p for p, (picks, _) in self.shown.items() for at in picks if old_us < at[2] <= new_us}
        for _node, gap in decision.gaps:
            for node, (group, _) in members.items():
                if group in gap.groups:
                    self.touch(node, gap.start_us, gap.end_us)

    def _complete(self, key: Key, members: Members) -> Iterator[tuple[Place, tuple[Pick, ...]]]:
        """Every window that may have rows, in order of time, with what it is made of."""
        kinds = {interpretation_of(group) for group, _ in members.values()}
        if kinds == {"order"}:
            yield from self._ordered(key, members)
            return
        for node, (group, view) in members.items():
            serving, known = view.serving[key], self.known.get(node, {})
            if kinds == {"overlap"}:
                bound_us = view.bound_us(MARKER_KEY)
                whole = _joined(sorted([*known, *((start, end) for _, start, end in self.shown)])) if known else ()
                windows = [w for w in whole if bound_us > w[1] and ("", *w) not in self.shown]
            else:
                windows = [window for window in sorted(known) if window[1] <= view.frontier_us]
            for start_us, end_us in windows:
                if belongs(serving, start_us, end_us):
                    yield (group.node, start_us, end_us), ((node, start_us, end_us),)

    def _ordered(self, key: Key, members: Members) -> Iterator[tuple[Place, tuple[Pick, ...]]]:
        """The next windows that every node has, one after the other."""
        own = {node: {number: window for window, number in self.known.get(node, {}).items()} for node in members}
        while own and all(
            self.next in windows and windows[self.next][1] <= members[node][1].frontier_us
            for node, windows in own.items()
        ):
            picks = tuple((node, *windows[self.next]) for node, windows in own.items())
            self.next += 1
            if all(belongs(members[node][1].serving[key], start, end) for node, start, end in picks):
                yield ("", min(start for _, start, _ in picks), max(end for _, _, end in picks)), picks

    @staticmethod
    def _coverage(key: Key, place: Place, picks: Sequence[Pick], members: Members, gaps: Sequence[Gap]) -> Coverage:
        expected: set[str] = set()
        missing: set[tuple[str, str]] = set()
        for node, start_us, end_us in picks:
            if node not in members:
                continue
            group, view = members[node]
            begins = view.begins.get(key, {})
            if group.gap_us:
                bounds = {leaf: view.leaf_bound_us(leaf, MARKER_KEY) for leaf in view.leaves}
                found = session_coverage(bounds, gaps, group, place[1], place[2] - group.gap_us, begins=begins)
            else:
                found = window_coverage(view.leaves, gaps, group, start_us, end_us, begins=begins)
            expected |= set(found.expected)
            missing |= set(found.missing)
        return Coverage(tuple(sorted(expected)), tuple(sorted(missing)))

    def _forget(self, members: Members, horizon_us: int) -> None:
        """What nothing can revise any more; now and then, for it looks at everything."""
        floor_us = min((view.frontier_us for _, view in members.values()), default=NEVER_US) - horizon_us
        if floor_us - self.floor_us < horizon_us // 64:
            return
        self.floor_us = floor_us
        for node, windows in self.known.items():
            self.known[node] = {w: number for w, number in windows.items() if w[1] > floor_us or number >= 0}
        for place in [place for place in self.shown if place[2] <= floor_us]:
            self._drop(place)

    def snapshot(self) -> dict[str, object]:
        """Plain values."""
        return {
            "known": [[node, [[*window, number] for window, number in of.items()]] for node, of in self.known.items()],
            "made": dict(self.made),
            "next": self.next,
            "shown": [
                [list(place), [list(pick) for pick in picks], list(cover.expected), [list(m) for m in cover.missing]]
                for place, (picks, cover) in self.shown.items()
            ],
            "touched": [list(place) for place in sorted(self.touched)],
            "revised": self.revised_us,
            "floor": self.floor_us,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Marked:
        """The twin of `snapshot`."""
        shown = {
            (node, start, end): (
                tuple((of, low, high) for of, low, high in picks),
                Coverage(tuple(expected), tuple((leaf, why) for leaf, why in missing)),
            )
            for (node, start, end), picks, expected, missing in state["shown"]
        }
        made = cls(
            {node: {(start, end): number for start, end, number in windows} for node, windows in state["known"]},
            dict(state["made"]),
            state["next"],
            touched={(node, start, end) for node, start, end in state["touched"]},
            revised_us=state["revised"],
            floor_us=state["floor"],
        )
        for place, (picks, coverage) in shown.items():
            made._show(Joint(place, picks, coverage, within=False))
        return made


def members_of(decision: Decision) -> dict[Key, dict[str, tuple[Group, GroupView]]]:
    """Of every query of windows between markers, the groups that serve it, by node; not those that expect nobody."""
    out: dict[Key, dict[str, tuple[Group, GroupView]]] = {}
    for group, view in decision.groups.items():
        for key in view.serving if is_marked(group) and view.leaves else ():
            out.setdefault(key, {})[group.node] = (group, view)
    return out


def _joined(windows: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Windows in order of start as those that they make together: joined where they overlap or touch."""
    out: list[tuple[int, int]] = []
    for start_us, end_us in windows:
        if out and start_us <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end_us))
        else:
            out.append((start_us, end_us))
    return out
