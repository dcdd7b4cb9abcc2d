"""Tracks leaves of one group that move between parents below this one (docs/protocol.md 1.5).

The new parent lists a moved leaf with the epoch that it left at the old parent. Windows with the leaf count as complete
only after the old parent has reported the `leave` of that epoch, which follows all rows of the leaf there. While only
the report has come, the leaf is in transit: it stays expected, with its last frontier, until it is listed again.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from edge_agent.algebra.frame import NEVER_US, Leaf, Serving
from edge_agent.algebra.query.key import QueryKey
from edge_agent.machines.checkpoint.slots import MovesState
from edge_agent.machines.downlink.member import Member

KEPT_LEAVES: Final = 64  # most entries kept per leaf; every birth lists the epoch before its last move again
MOST_MOVED: Final = 20_000  # most moved leaves of a group that no member lists now
MOST_SERVED: Final = 1_000  # most leaves in transit whose serving ranges are kept
MOST_NOTED: Final = 1_000  # most ranges that are noted for a leaf in transit, besides those that its member stated
Bounds = tuple[int, int]  # frontier, session bound
Way = tuple[int, int, int]  # next epoch, frontier, session bound


@dataclass(slots=True)
class Moves:
    """The moves of the leaves of one group.

    left: leaf -> epochs whose `leave` was reported. transit: leaf -> epoch left -> (next epoch, frontier, bound), until
    a member lists that next epoch; reports may come in any order. reports: (ended entry, leaf with its next epoch and
    the epoch left), to pass on to the tier above. carried: leaf -> epochs named by former entries whose `leave` was not
    reported. forgotten: moves dropped because of the bounds, since the process started. served: leaf in transit ->
    query -> serving range, for queries that it did not serve for all time or not at all (from LATEST_US on). replaced:
    leaf -> (merger, entry that the merger has replaced while other members listed the leaf too); the tier above may not
    know that entry. skipped: leaf -> entries that mergers have replaced since the last step; see `_skip`. again: leaf
    -> epochs in `transit` that it left twice; see `_not_here`.
    """

    left: dict[str, list[int]] = field(default_factory=dict)
    transit: dict[str, dict[int, Way]] = field(default_factory=dict)
    reports: list[tuple[Leaf | None, Leaf]] = field(default_factory=list)
    carried: dict[str, list[int]] = field(default_factory=dict)
    forgotten: int = 0
    served: dict[str, dict[QueryKey, Serving]] = field(default_factory=dict)
    replaced: dict[str, list[tuple[str, Leaf]]] = field(default_factory=dict)
    skipped: dict[str, list[Leaf]] = field(default_factory=dict)
    again: dict[str, list[int]] = field(default_factory=dict)
    _reporters: dict[str, str] = field(default_factory=dict)  # leaf -> member that last reported it, in this process

    def listed(self, leaf: Leaf, before: Leaf | None, member: str, members: Mapping[str, Member]) -> None:
        """Note that a member lists a leaf, which ends its transit unless the entry is of an older line.

        before: the entry that this entry replaces; None: none. If a leaf has moved away and is back, its former entry
        has ended. If it only began another epoch, no entry can name the former one, and nothing is noted: a leaf may
        start often while a merger above it moves. If a merger lists another line, the former ends only by a report.
        """
        if before is not None and leaf.node == member and leaf.before_move not in (None, before.before_move):
            self._has_left(leaf.node, before.epoch)
        if leaf.before_move is not None and leaf.before_move in self.left.get(leaf.node, ()):
            self._has_left(leaf.node, leaf.before_move)  # moves it to the end, because the oldest are dropped
        if before is not None and before.before_move not in (None, leaf.before_move) and leaf.node != member:
            self._replace(before, member, members)
        if before is not None and before.before_move != leaf.before_move and leaf.node != member:
            self._skip(before, member, members)
        if (ways := self.transit.get(leaf.node)) is not None:
            self._on_way(leaf.node, self._not_here(ways, _entries(leaf.node, members)))

    def _replace(self, before: Leaf, member: str, members: Mapping[str, Member]) -> None:
        """Remember an entry that a merger has replaced, if other members list the leaf too.

        Otherwise the parent from which the leaf came may not have listed it yet: its `leave` stays awaited.
        """
        name = before.node
        if any(name in each.leaves for of, each in members.items() if of != member):
            known = [each for each in self.replaced.get(name, ()) if each != (member, before)]
            self.replaced[name] = [*known[1 - KEPT_LEAVES :], (member, before)]
            if len(self.replaced) > MOST_MOVED:
                del self.replaced[next(iter(self.replaced))]
                self.forgotten += 1
        elif before.before_move is not None and self.awaited(before):
            self._carry(name, before.before_move)

    def _carry(self, name: str, epoch: int) -> None:
        known = [each for each in self.carried.get(name, ()) if each != epoch]
        self.carried[name] = [*known[1 - KEPT_LEAVES :], epoch]
        if len(self.carried) > MOST_MOVED:
            del self.carried[next(iter(self.carried))]
            self.forgotten += 1

    def _skip(self, before: Leaf, member: str, members: Mapping[str, Member]) -> None:
        """Remember an entry that a merger has replaced, if a step before that would have passed it on."""
        others = {of: each for of, each in members.items() if of != member}
        if self.oldest((before, *_entries(before.node, others)))[0] == before:
            self.skipped[before.node] = [*self.skipped.get(before.node, ())[1 - KEPT_LEAVES :], before]
            if len(self.skipped) > MOST_MOVED:
                del self.skipped[next(iter(self.skipped))]
                self.forgotten += 1

    def take_skipped(self) -> list[Leaf]:
        """Remove and return the entries for the tier above that were replaced since the last step, of each in order."""
        skipped, self.skipped = self.skipped, {}
        return [entry for entries in skipped.values() for entry in entries]

    def _not_here(self, ways: Mapping[int, Way], entries: Iterable[Leaf]) -> dict[int, Way]:
        """Returns the ways of one leaf without those on which it has arrived. entries: its entries at all members.

        A leaf below a moving merger keeps its epoch. So while the leave of an older line is awaited, an entry with the
        next epoch of a way may be of that older line, unless it names the epoch left. If the leaf left that epoch twice
        (it came back, and moved on before it had sent anything), an entry that names it may be of the stay between.
        """
        out = dict(ways)
        for entry in entries:
            older = set(self.carried.get(entry.node, ())) - set(self.left.get(entry.node, ()))
            for of, way in ways.items():
                names, has_next = entry.before_move == of, entry.epoch == way[0]
                certain = not older or (names and (has_next or of not in self.again.get(entry.node, ())))
                if certain and (names or has_next):
                    out.pop(of, None)
        return out

    def _on_way(self, name: str, ways: dict[int, Way]) -> None:
        if ways:
            self.transit[name] = ways
        else:
            self.transit.pop(name, None)
            self.served.pop(name, None)
        if again := [epoch for epoch in self.again.get(name, ()) if epoch in ways]:
            self.again[name] = again
        else:
            self.again.pop(name, None)

    @property
    def ended(self) -> dict[str, Leaf]:
        """Leaf -> its ended entry, if the tier above still lists it, because the report was not passed on yet."""
        return {entry.node: entry for entry, _ in reversed(self.reports) if entry is not None}

    def passed_on(self) -> list[tuple[Leaf | None, Leaf]]:
        """Remove and return the reports for the tier above. From now on that tier expects the leaves in transit."""
        reports, self.reports = self.reports, []
        self.transit.clear()
        self.served.clear()
        self.again.clear()
        return reports

    def leave(self, node: str, members: Mapping[str, Member], report: Leaf, new: Container[str] = ()) -> None:
        """Note the report of the member `node` that a leaf has moved away.

        report: the leaf with its next epoch, and the epoch that it, or the merger above it, left. new: leaves listed
        for the first time in the same frame; their frontier was never stated, so they count as behind, which is safe.
        """
        member = members[node]
        name, epoch = report.node, report.before_move
        assert epoch is not None
        own = None if name in new else member.leaf_frontiers().get(name)
        listed = member.leaves.get(name)
        self._report_replaced(node, name, epoch)
        self.reports.append((listed, report))
        went_on = epoch in self.carried.get(name, ())  # its next line was listed here and has ended already
        self._has_left(name, epoch)
        if listed is not None:
            if listed.epoch != report.epoch:  # if equal, the merger above has moved, and the leaf keeps its epoch
                self._has_left(name, listed.epoch)  # no `leave` may name this epoch, if nothing of it was ever sent
            if listed.before_move is not None and self.awaited(listed):
                self._carry(name, listed.before_move)
            if len(self.served) < MOST_SERVED and (served := member.served_by(name)):
                self.served[name] = served
            member.drop(name)
            member.fresh = True
        # if equal, a report of the same leave may follow: see `replaced`
        more = listed is not None and listed.epoch == report.epoch
        left = set(self.left[name]) - ({epoch} if more else set())
        awaited = [each for each in self.carried.pop(name, ()) if each not in left]
        if awaited:
            self.carried[name] = awaited
        ways = {of: way for of, way in self.transit.get(name, {}).items() if way[0] != epoch}
        if not went_on and report.epoch not in self.left[name]:  # else it has left its next parent too
            _, *before = ways.get(epoch, (0, NEVER_US, NEVER_US))  # of an earlier report of the same leave
            frontier_us, bound_us = own or before
            if len(ways) >= KEPT_LEAVES:
                del ways[next(iter(ways))]
                self.forgotten += 1
            ways[epoch] = (report.epoch, frontier_us, min(bound_us, member.lowest_us))
            if listed is not None and listed.epoch not in (report.epoch, epoch):
                self.again[name] = [*self.again.get(name, ()), epoch]
        arrived = {entry.before_move for _, entry in self.replaced.get(name, ())}  # it arrived there, and moved on
        ways = {of: way for of, way in ways.items() if of not in arrived}
        elsewhere = {of: each for of, each in members.items() if of != node}
        self._on_way(name, self._not_here(ways, _entries(name, elsewhere)))
        self._reporters[name] = node
        if len(self.left) > MOST_MOVED:
            self._forget({leaf for each in members.values() for leaf in each.leaves})

    def note_ranges(self, leaves: Iterable[str], ranges: Collection[Serving]) -> None:
        """Note ranges of queries for leaves in transit, unless a range of the query is known."""
        for name in leaves:
            if ranges and name in self.transit and (name in self.served or len(self.served) < MOST_SERVED):
                known = self.served.setdefault(name, {})
                new = [each for each in ranges if each.key not in known][: max(MOST_NOTED - len(known), 0)]
                known.update((each.key, replace(each, node=name)) for each in new)

    def _report_replaced(self, node: str, name: str, epoch: int) -> None:
        """Report replaced entries of a leaf below a merger along with the ended one, because it had arrived there."""
        known = self.replaced.pop(name, ())
        self.reports += [(entry, Leaf(name, entry.epoch, epoch)) for member, entry in known if member == node]
        if others := [each for each in known if each[0] != node]:
            self.replaced[name] = others

    def _forget(self, listed: Container[str]) -> None:
        """Forget the oldest unlisted leaves, until 7/8 of MOST_MOVED are left. They are no longer expected.

        The members with the most reported leaves lose theirs first.
        """
        by_member: dict[str, list[str]] = {}
        for name in self.left:
            if name not in listed:
                by_member.setdefault(self._reporters.get(name, ""), []).append(name)
        many, share = sum(map(len, by_member.values())), MOST_MOVED
        kept = MOST_MOVED * 7 // 8
        if many > kept:  # find the greatest number per member with which all together are at most `kept`
            low = 0
            while low < share:
                middle = (low + share + 1) // 2
                fits = sum(min(len(names), middle) for names in by_member.values()) <= kept
                low, share = (middle, share) if fits else (low, middle - 1)
            for names in by_member.values():
                for name in names[: max(len(names) - share, 0)]:
                    self.forgotten += 1
                    self._on_way(name, {})
                    for known in (self.left, self.carried, self.replaced, self._reporters):
                        known.pop(name, None)

    def _has_left(self, name: str, epoch: int) -> None:
        self.left[name] = [*[each for each in self.left.get(name, ()) if each != epoch][1 - KEPT_LEAVES :], epoch]

    def awaited(self, leaf: Leaf) -> bool:
        """Whether the `leave` of the epoch from which a leaf moved was not reported yet."""
        return leaf.before_move is not None and leaf.before_move not in self.left.get(leaf.node, ())

    def explains(self, leaf: Leaf, others: Iterable[Leaf]) -> bool:
        """Whether a leaf that is listed without an epoch before its move may be in one line with its other entries."""
        if not set(self.carried.get(leaf.node, ())) <= set(self.left.get(leaf.node, ())):
            return True
        return any(leaf.epoch in (each.epoch, each.before_move) or self.awaited(each) for each in others)

    def strays(self, leaf: Leaf) -> bool:
        """Whether a leaf that is listed in this entry has lost its spool in transit, so that it arrives nowhere (1.2).

        A new epoch names the one before the move, until the leaf has forgotten it.
        """
        ways, left = self.transit.get(leaf.node, {}), self.left.get(leaf.node, ())
        if not ways or leaf.before_move is not None or leaf.epoch in {*left, *(way[0] for way in ways.values())}:
            return False
        return set(self.carried.get(leaf.node, ())) <= set(left)

    def end_strayed(self, names: Iterable[str], members: Mapping[str, Member]) -> list[tuple[str, int]]:
        """End the transits of those of these leaves that stray. Returns (leaf, how far its rows had come) of each."""
        out = []
        for name in names:
            if any(map(self.strays, _entries(name, members) if name in self.transit else ())):
                out.append((name, min(min(way[1:]) for way in self.transit[name].values())))
                self._on_way(name, {})
        return out

    def missing(self, leaf: Leaf) -> bool:
        """Whether rows of a leaf may still come from the epoch before its move: no, if a known transit leads there."""
        ways = self.transit.get(leaf.node, {})
        return self.awaited(leaf) and all(way[0] != leaf.before_move for way in ways.values())

    def oldest(self, entries: Iterable[Leaf]) -> list[Leaf]:
        """The entries of one leaf that did not come from another entry; those whose `leave` is awaited come first."""
        entries = list(entries)
        found = [one for one in entries if not any(self._from(one, other) for other in entries if other is not one)]
        return sorted(found or entries, key=lambda leaf: not self.awaited(leaf))

    def _from(self, one: Leaf, other: Leaf) -> bool:
        """Whether a leaf, or a merger above it, moved from the parent of entry `other` to that of entry `one`."""
        moved = one.epoch == other.epoch and self.awaited(one) and not self.awaited(other)  # a merger above moved
        return one.before_move == other.epoch or moved

    @property
    def on_move(self) -> set[str]:
        """Leaves of which rows of a former line may still come."""
        return {*self.transit, *self.carried}

    def bounds(self, found: dict[str, Bounds], missing: Iterable[str]) -> None:
        """Lower the bounds of moving leaves in `found`. missing: leaves whose `leave` at the old parent is awaited."""
        for name, ways in self.transit.items():
            for _, frontier_us, bound_us in ways.values():
                own = found.get(name, (frontier_us, bound_us))
                found[name] = min(own[0], frontier_us), min(own[1], bound_us)
        carried = (name for name, epochs in self.carried.items() if not set(epochs) <= set(self.left.get(name, ())))
        for name in {*carried, *missing} & found.keys():
            found[name] = NEVER_US, NEVER_US

    def snapshot(self) -> MovesState | None:
        if not (self.left or self.transit or self.reports or self.replaced or self.carried or self.skipped):
            return None
        return MovesState(
            left=dict(self.left),
            transit={},
            reports=list(self.reports),
            carried=dict(self.carried),
            ways=[(name, of, *way) for name, ways in self.transit.items() for of, way in ways.items()],
            served=[serving for servings in self.served.values() for serving in servings.values()],
            replaced=dict(self.replaced),
            skipped=dict(self.skipped),
            again=dict(self.again),
        )

    @classmethod
    def restore(cls, state: MovesState | None) -> Moves:
        if state is None:
            return cls()
        transit = {name: {way[1]: (way[0], way[2], way[3])} for name, way in state.transit.items()}
        for name, of, *way in state.ways:
            transit.setdefault(name, {})[of] = (way[0], way[1], way[2])
        moves = cls(dict(state.left), transit, list(state.reports), dict(state.carried))
        moves.replaced, moves.skipped, moves.again = dict(state.replaced), dict(state.skipped), dict(state.again)
        for serving in state.served:
            moves.served.setdefault(serving.node, {})[serving.key] = serving
        return moves


def _entries(name: str, members: Mapping[str, Member]) -> list[Leaf]:
    """The entries of a leaf at all members."""
    return [each.leaves[name] for each in members.values() if name in each.leaves]


def lowest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Join the registers of two members (key -> start): the lesser start of each key."""
    return {key: min(one.get(key, us), other.get(key, us)) for key, us in {**one, **other}.items()}
