"""The members of a group below a parent: which are expected, which are left out, and the frontier of the group.

Rules (docs/protocol.md): the frontier is the minimum over expected members that are not left out. It never falls, stays
when all are left out, and is minus infinity without members (4.4, 4.5). A member is left out when it was silent for the
grace time, when the others' minimum was past its present frontier one grace time ago, or when its frontier lies more
than 5 minutes after its receipt (4.4). Members left out are stated upward as exceptions (4.6).
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from edge_agent.algebra.frame import LATEST_US, NEVER_US, ExcludedLeaf, GroupPart, Leaf, Members, Serving
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.slots import AgreementState, MembershipState
from edge_agent.machines.downlink.member import AHEAD_US, Member
from edge_agent.machines.downlink.moves import Moves, lowest
from edge_agent.machines.downlink.serving_agreement import ServingAgreement, Times

Several = Mapping[str, Mapping[str, Leaf]]  # leaf -> its entries by member
Counts = Callable[[str, Container[str], Serving, int], bool]  # see Definitions.serves


class GroupMembership:
    """The members of one group at one parent. published_us: the group's frontier. moved_us: when it last rose."""

    def __init__(self, grace_us: int) -> None:
        """grace_us: after this silence or lag a member no longer holds the others back."""
        self.grace_us = grace_us
        self.members: dict[str, Member] = {}
        self.published_us = NEVER_US
        self.moved_us = 0
        # (time, lowest frontier, its member, second lowest frontier), newest last; for "one grace time ago" of 4.4
        self._history: deque[tuple[int, int, str, int]] = deque()
        self._agreement = ServingAgreement(grace_us)
        self.moves = Moves()
        # the child whose section dropped the last leaves since the last step, those leaves, and their exceptions
        self._last: tuple[str, tuple[Leaf, ...], dict[str, tuple[int, int]]] | None = None
        self.deserted = False  # configuration has retired the last members that listed leaves
        # the member with the highest frontier of those that were retired, with its leaves and exceptions
        self._retired: tuple[str, Member, tuple[Leaf, ...], dict[str, tuple[int, int]]] | None = None
        self._mergers: set[str] = set()  # members that have listed another node than themselves
        # cache of `_of_rosters`: the rosters, and the result for them
        self._listed: tuple[list[tuple[str, ...]], Several, tuple[str, ...]] = [], {}, ()

    # --- members -------------------------------------------------------------------------------------------------

    def member(self, node: str) -> Member:
        """The member of a node; it is added if the node has none."""
        found = self.members.get(node)
        if found is None:
            found = self.members[node] = Member()
        return found

    def begin_anew(self, node: str) -> None:
        """Forget the serving ranges of a child without leaves, because with the first leaf it states them all (6.3)."""
        member = self.members.get(node)
        if member is not None and not member.leaves:
            member.forget_ranges()

    def change(self, node: str, change: Members, new: set[str] | None = None) -> None:
        """Apply a definition section of a child. A section that lists and drops a leaf reports its move.

        new: leaves that the frame has listed for the first time so far; those of this section are added.
        """
        new = set() if new is None else new
        gone = [leaf for leaf in change.leaves if leaf.node in change.dropped and leaf.before_move is not None]
        if gone:
            names = {leaf.node for leaf in gone}
            leaves = tuple(leaf for leaf in change.leaves if leaf.node not in names)
            change = replace(change, leaves=leaves, dropped=tuple(n for n in change.dropped if n not in names))
        member = self.member(node)
        before = {leaf.node: member.leaves.get(leaf.node) for leaf in change.leaves}
        dropped = tuple(member.leaves[name] for name in change.dropped if name in member.leaves)
        behind = {leaf.node for leaf in dropped}.intersection(member.apart) if dropped else ()
        apart = {leaf: member.times_of(leaf) for leaf in behind}
        member.change(change)
        if change.leaves:
            self._forget_last()
        if dropped and not self.expected():
            self._last = node, dropped, apart
        for leaf in change.leaves:
            self.moves.listed(leaf, before[leaf.node], node, self.members)
            if leaf.node != node:
                self._mergers.add(node)
        new.update(leaf for leaf, listed in before.items() if listed is None)
        for leaf in gone:
            self.leave(node, leaf, new)

    def leave(self, node: str, report: Leaf, new: Container[str] = ()) -> None:
        """Note that a leaf below the child `node` has moved to another parent.

        report: the leaf with its next epoch, and the epoch that it left. new: leaves whose frontier the child has not
        stated yet.
        """
        member = self.member(node)
        self._forget_last()
        listed = report.node in member.leaves
        self.moves.leave(node, self.members, report, new)
        if listed:
            announced = self._agreement.announced
            later = [serving for key, serving in member.serving.items() if key not in announced]
            ranges = [Serving(*key, LATEST_US) for key in announced if key not in member.serving]
            self.moves.note_ranges((report.node,), [*ranges, *later])

    def leave_retired(self, child: str, entry: Leaf, report: Leaf) -> None:
        """Note that a leaf has moved away from a child that is no member any more. entry: as that child listed it."""
        self.moves.leave(child, {**self.members, child: Member(leaves={entry.node: entry})}, report)

    def retire(self, node: str) -> None:
        """Remove a node that configuration retired, as a member and as a leaf of other members (1.5).

        If no member lists a leaf any more, the one with the highest frontier stays until the next step, because what it
        had promised becomes the group's: see `list_last`.
        """
        leaving = [(of, each) for of, each in self.expected().items() if of == node or each.leaves.keys() == {node}]
        for of, member in leaving:
            if self._retired is None or member.frontier_us > self._retired[1].frontier_us:
                apart = {leaf: member.times_of(leaf) for leaf in member.apart}
                self._retired = of, member, tuple(member.leaves.values()), apart
        self.members.pop(node, None)
        self._mergers.discard(node)
        self.moves.transit.pop(node, None)
        self.moves.served.pop(node, None)
        for member in self.members.values():
            member.drop(node)
        if not leaving or self._retired is None or self.expected():
            return
        self.deserted = True
        of, member, leaves, apart = self._retired
        if member.frontier_us > self.published_us:
            self.members[of], self._last = member, (of, leaves, apart)
            self._list_again(member, leaves, apart)

    def lives_elsewhere(self, node: str, leaf: Leaf) -> bool:
        """Whether others list, or had, a leaf that `node` lists anew, in lines which its line does not know (1.2)."""
        own = self.members.get(node)
        if leaf.before_move is not None or (own is not None and leaf.node in own.leaves):
            return False
        others = (self.members.get(of) for of in {leaf.node, *self._mergers} - {node})
        entries = [other.leaves[leaf.node] for other in others if other is not None and leaf.node in other.leaves]
        return self.moves.strays(leaf) or (bool(entries) and not self.moves.explains(leaf, entries))

    def listed_elsewhere(self, node: str) -> set[str]:
        """The leaves of a member that other members list too."""
        return {leaf for leaf, of in self._of_rosters()[0].items() if node in of}

    def expected(self) -> dict[str, Member]:
        """The members that list leaves; others do not count (4.6)."""
        return {n: m for n, m in self.members.items() if m.leaves}

    @property
    def forgotten(self) -> dict[str, int]:
        """How many moves of leaves and agreed starts of queries were dropped because of a bound, since the start."""
        return {"moves": self.moves.forgotten, "starts": self._agreement.forgotten}

    @property
    def gone(self) -> bool:
        """Whether all members have left: their last query of the group is removed, and no row can change."""
        if self.moves.transit or self.expected():
            return False
        if self.deserted:
            return True
        if not self.members and self.published_us > NEVER_US:  # all members are retired
            return True
        begun = self.published_us > NEVER_US or self._last is not None  # a member may promise before it lists leaves
        promised = any(m.frontier_us > NEVER_US and (begun or not m.fresh) for m in self.members.values())
        return promised or bool(self.moves.left)

    # --- the last leaves -----------------------------------------------------------------------------------------

    def list_last(self) -> bool:
        """List the last leaves again if they dropped with a frontier that the group has not reached (4.4).

        All rows up to that frontier have come, so it is the group's from now on. Returns whether it rose: then what it
        closes is to be decided with these leaves, before `drop_last`.
        """
        if self._last is None or not (self.gone or self.deserted):
            return False
        node, leaves, apart = self._last
        member = self.members.get(node)
        if member is None or member.frontier_us <= self.published_us:
            self._last = None
            return False
        self.published_us, member.out, member.fresh = member.frontier_us, False, False
        self.deserted = False
        self._list_again(member, leaves, apart)
        return True

    @staticmethod
    def _list_again(member: Member, leaves: tuple[Leaf, ...], apart: Mapping[str, tuple[int, int]]) -> None:
        member.change(Members(0, leaves))
        member.exceptions.update(apart)

    def _forget_last(self) -> None:
        """Go on with other members; one that was retired does not stay."""
        if self.deserted:
            self.drop_last()
        self._last, self.deserted = None, False

    def drop_last(self) -> None:
        """Drop what `list_last` has listed."""
        last, self._last = self._last, None
        if last is not None and last[0] in self.members:
            for leaf in last[1]:
                self.members[last[0]].drop(leaf.node)

    # --- the frontier --------------------------------------------------------------------------------------------

    def advance_frontier(self, now_us: int, silent: Mapping[str, bool]) -> int:
        """Decide which members are left out. Returns the frontier. silent: child -> not heard for the grace time."""
        members = self.expected()
        past = self._past(now_us, members)
        for node, member in members.items():
            quiet = silent.get(node, True)
            behind = False
            if past is not None:
                lowest, whose, second = past
                others = second if whose == node else lowest
                behind = others > member.frontier_us
            if member.fresh:
                member.out, member.fresh = member.ahead or member.frontier_us < self.published_us, False
            elif quiet or behind or member.ahead:
                member.out = True
            elif member.out:
                member.out = False  # no reason is left: the member counts again, and the frontier waits for it
        counted = [m.frontier_us for m in members.values() if not m.out]
        if counted and min(counted) > self.published_us:
            self.published_us, self.moved_us = min(counted), now_us
        return self.published_us

    def _past(self, now_us: int, members: Mapping[str, Member]) -> tuple[int, str, int] | None:
        """Remember the two lowest frontiers. Returns those of one grace time ago: (lowest, its member, second lowest).

        None if the history does not reach back so far.
        """
        low, whose, second = 2**62, "", 2**62
        for node, member in members.items():
            if member.out:
                continue
            if member.frontier_us < low:
                low, whose, second = member.frontier_us, node, low
            elif member.frontier_us < second:
                second = member.frontier_us
        if low == 2**62:
            low = NEVER_US
        if second == 2**62:
            second = NEVER_US
        if self._history and self._history[-1][0] == now_us:
            self._history.pop()  # replace the entry of the same time, as in runs whose time stands still
        if not self._history or self._history[-1][1:] != (low, whose, second):
            self._history.append((now_us, low, whose, second))
        while len(self._history) > 1 and self._history[1][0] <= now_us - self.grace_us:
            self._history.popleft()
        if now_us - self._history[0][0] < self.grace_us:
            return None
        return self._history[0][1:]

    def shift(self, by_us: int) -> None:
        """Shift all times from which durations are counted, by a step of the clock."""
        self.moved_us += by_us
        self._history = deque((us + by_us, low, whose, second) for us, low, whose, second in self._history)
        self._agreement.shift(by_us)

    def stepped_back(self, now_us: int) -> None:
        """The parent's clock stepped back: lower promises that were made while it was ahead."""
        self.forget_history()
        self.moved_us = min(self.moved_us, now_us)
        likely_us = now_us + AHEAD_US
        for member in self.members.values():
            # both clocks were ahead; the member's frontier from before that is not known
            if member.frontier_us > likely_us:
                member.ahead = True
                member.frontier_us = self.published_us if self.published_us <= likely_us else NEVER_US
        if self.published_us > likely_us:
            self.published_us = now_us

    def forget_history(self) -> None:
        """Forget the frontiers of the past, so that no lag from before a restart counts."""
        self._history.clear()

    # --- for the tier above ---------------------------------------------------------------------------------------

    def _of_rosters(self) -> tuple[Several, tuple[str, ...]]:
        """Returns (leaves that several members list, sorted names of all leaves). Cached while no roster changes."""
        rosters = [member.roster for member in self.expected().values()]
        known, several, names = self._listed
        if len(rosters) != len(known) or not all(map(operator.is_, rosters, known)):
            several, names = self._several(), tuple(sorted(set().union(*rosters)))
            self._listed = rosters, several, names
        return several, names

    def _several(self) -> Several:
        """Leaf that more than one member lists -> member -> its entry.

        A leaf that is itself a child here is the best source. Of other members' entries only those count from whose
        epoch the leaf came, or that continue its own.
        """
        seen, twice = set[str](), set[str]()
        expected = self.expected()
        for member in expected.values():
            twice |= seen & member.leaves.keys()
            seen.update(member.leaves)  # not `|=` with keys(), which is slower
        out: dict[str, dict[str, Leaf]] = {}
        for leaf in twice:
            entries = {node: member.leaves[leaf] for node, member in expected.items() if leaf in member.leaves}
            own = entries.get(leaf)
            out[leaf] = {
                node: entry
                for node, entry in entries.items()
                if own is None or node == leaf or own.before_move == entry.epoch or entry.before_move == own.epoch
            }
        return out

    def leaf_times(self) -> tuple[LeafTimes, LeafTimes]:
        """Returns (leaf -> its frontier, leaf -> its session bound) for all expected leaves, as members state them.

        If several members list a leaf, the least values count.
        """
        expected, (several, names), moves = self.expected(), self._of_rosters(), self.moves
        missing = {leaf for leaf, of in several.items() if any(map(moves.missing, moves.oldest(of.values())))}
        own: dict[str, tuple[int, int]] = {}
        for member in expected.values():
            own.update((leaf, member.times_of(leaf)) for leaf in member.apart)
            missing |= {x for x in member.moved - several.keys() if moves.missing(member.leaves[x])}
        own.update((leaf, _least(expected[node].times_of(leaf) for node in of)) for leaf, of in several.items())
        moving = moves.on_move.union(missing)
        for member in expected.values() if moving else ():
            own.update((x, member.times_of(x)) for x in moving.intersection(member.leaves) if x not in own)
        moves.bounds(own, missing)
        if moves.transit:
            names = tuple(sorted({*names, *own}))
        shared = [(member.roster, member.frontier_us) for member in expected.values()]
        frontiers, bounds = ({leaf: times[i] for leaf, times in own.items()} for i in (0, 1))
        return LeafTimes(names, shared, frontiers), LeafTimes(names, shared, bounds)

    def leaf_frontiers(self) -> dict[str, tuple[int, int]]:
        """Every expected leaf -> (frontier, session bound); see `leaf_times`."""
        frontiers, bounds = self.leaf_times()
        return {leaf: (us, bounds[leaf]) for leaf, us in frontiers.items()}

    def leaves(self) -> dict[str, Leaf]:
        """Leaf name -> its entry to pass on, for all listed leaves. If there are several entries, the oldest."""
        out: dict[str, Leaf] = {}
        for member in self.expected().values():
            out.update(member.leaves)
        out.update((leaf, self.moves.oldest(of.values())[0]) for leaf, of in self._of_rosters()[0].items())
        return out

    def exceptions_at(self, frontier_us: int) -> tuple[ExcludedLeaf, ...]:
        """Leaves behind a published frontier, and those that members state as exceptions, sorted by name (4.6)."""
        out: dict[str, ExcludedLeaf] = {}
        expected, (several, _) = self.expected(), self._of_rosters()
        for node, member in expected.items():
            for each in member.exceptions_at(frontier_us):
                if each.node not in several or node in several[each.node]:
                    out[each.node] = each
        for leaf, of in several.items():  # a moving leaf: the times of all its members count
            own_us, bound_us = _least(expected[node].times_of(leaf) for node in of)
            if any(map(self.moves.missing, self.moves.oldest(of.values())[1:])):  # the tier above checks the first
                own_us = bound_us = NEVER_US
            if own_us < frontier_us or leaf in out:
                out[leaf] = ExcludedLeaf(leaf, own_us, min(bound_us, *(expected[node].lowest_us for node in of)))
        return tuple(sorted(out.values(), key=lambda e: e.node))

    @property
    def settled(self) -> bool:
        """Whether no leaf is on its way, and no two members list the same one."""
        return not (self.moves.transit or self.moves.served or self.moves.reports or self._of_rosters()[0])

    def level_at(self, frontier_us: int) -> bool:
        """Whether it is settled, and no leaf of a member can be an exception at a frontier."""
        moves = self.moves
        return not (moves.transit or moves.served or moves.reports or moves.skipped) and all(
            not (member.out or member.exceptions or member.reached or member.frontier_us < frontier_us)
            for member in self.members.values()
            if member.leaves
        )

    def registers(self) -> dict[str, dict[str, int]]:
        """Leaf -> registers of its member (key -> start), for coverage (4.7). Members left out are included."""
        out: dict[str, dict[str, int]] = {}
        for member in self.expected().values():
            if member.hints or member.held:
                own = {key: member.hint(key) for key in (*member.hints, *member.held)}
                twice = out.keys() & member.leaves.keys()
                out.update({**dict.fromkeys(member.leaves, own), **{leaf: lowest(out[leaf], own) for leaf in twice}})
        return out

    def hints(self) -> dict[str, int]:
        """Key -> least register of all members that are not left out (5.2)."""
        out: dict[str, int] = {}
        for member in self.expected().values():
            if not member.out:
                for registers in (member.hints, member.held):
                    for key, start_us in registers.items():
                        out[key] = min(start_us, out.get(key, start_us))
        return out

    def serving(
        self, now_us: int, counts: Counts | None = None, awaited: Callable[[QueryKey], Iterable[str]] | None = None
    ) -> dict[QueryKey, Serving]:
        """The common serving range of each query (6.3).

        counts: whether a member's statement counts (6.5); None: all do. awaited: query -> children that are to serve it
        because of their other groups, members here or not; None: no child is.
        """
        expected = self.expected()
        members = list(expected.values())
        if counts is not None:
            for node, member in expected.items():
                unheeded = {
                    key for key, each in member.serving.items() if not counts(node, member.leaves, each, now_us)
                }
                member.heed_all_but(unheeded)
        before = set(self._agreement.announced) if self.moves.transit else set[QueryKey]()
        nobody = Member()

        def known_here(key: QueryKey) -> list[Member]:
            return [] if awaited is None else [expected.get(child, nobody) for child in awaited(key)]

        counted = [m for m in members if not m.out] or members
        out = self._agreement.serving(counted, members, now_us, known_here)
        if self.moves.transit:
            new = [Serving(*key, LATEST_US) for key in self._agreement.announced if key not in before]
            self.moves.note_ranges(tuple(self.moves.transit), new)
        return out

    def serves(self, key: QueryKey) -> bool:
        """Whether a member, or a leaf in transit, serves a query, even if the statement does not count."""
        ranges = [served[key] for served in self.moves.served.values() if key in served]
        return any(each.from_us < LATEST_US for each in ranges) or any(
            key in member.serving for member in self.expected().values()
        )

    def forget(self, key: QueryKey) -> None:
        """Forget all statements about a query that ended long ago."""
        self._agreement.forget(key)
        for member in self.members.values():
            member.forget(key)

    def begins(self) -> Times:
        """Query -> leaf -> start, for leaves that begin after the agreed start, or never (LATEST_US) (4.5)."""
        members = list(self.expected().values())
        return self._agreement.begins(members, self._on_way(members))

    def ends(self) -> Times:
        """Query -> leaf -> latest window end that it serves, for leaves that stopped before others (6.3)."""
        members = list(self.expected().values())
        return self._agreement.ends(members, self._on_way(members))

    def _on_way(self, members: Sequence[Member]) -> list[Serving]:
        """The ranges served by leaves in transit that no member lists."""
        served = self.moves.served
        away = (leaf for leaf in served if not any(leaf in member.leaves for member in members))
        return [serving for leaf in away for serving in served[leaf].values()]

    # --- the spool -----------------------------------------------------------------------------------------------

    def snapshot(self, *, history: bool = True) -> MembershipState:
        """history: with the frontiers of the past, of which a merger makes no use after a start."""
        agreed = self._agreement.snapshot()
        return MembershipState(
            published_us=self.published_us,
            moved_us=self.moved_us,
            members={node: member.snapshot() for node, member in self.members.items()},
            history=list(self._history) if history else [],
            since=agreed.since,
            starts=agreed.starts,
            moves=self.moves.snapshot(),
        )

    @classmethod
    def restore(cls, grace_us: int, state: MembershipState) -> GroupMembership:
        membership = cls(grace_us)
        membership.published_us, membership.moved_us = state.published_us, state.moved_us
        membership.members = {node: Member.restore(member) for node, member in state.members.items()}
        membership._mergers = {n for n, member in membership.members.items() if member.leaves.keys() - {n}}
        membership._history = deque(state.history)
        membership.moves = Moves.restore(state.moves)
        membership._agreement = ServingAgreement.restore(
            grace_us, AgreementState(state.since or {}, state.starts or {})
        )
        return membership


Memberships = Mapping[Group, GroupMembership]
MemberChanges = Iterable[tuple[Group, Members]]  # of a frame of one child
GroupParts = Iterable[tuple[Group, GroupPart]]  # of a frame of one child


def _least(times: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The least frontier and the least session bound of several (frontier, session bound)."""
    frontiers, bounds = zip(*times, strict=True)
    return min(frontiers), min(bounds)
