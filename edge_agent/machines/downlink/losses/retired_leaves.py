"""Remembers the leaves below retired children, because another child may list them as moved later (protocol 1.5).

The same holds for leaves that a child no longer lists, because a node below it was retired there. Nobody reports the
`leave` of such a leaf, so it would stay missing for ever. A leaf is forgotten when another child lists it as moved,
when its own child lists it again, as when configuration no longer retires that, and when it is retired.

An epoch is the same in all groups. So in a group in which the retired child had not listed the leaf yet, the leaf has
left it too if it is listed as moved from the same epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from edge_agent.algebra.frame import NEVER_US, Leaf
from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.slots import RetiredState
from edge_agent.machines.downlink.group_membership import GroupMembership, MemberChanges, Memberships
from edge_agent.machines.downlink.member import Member

MOST_RETIRED: Final = 100_000  # most leaves in all groups; beyond this the oldest are forgotten


class RetiredLeaf(NamedTuple):
    """A leaf below a child that was retired, or that dropped the leaf.

    entry: as the child listed it. low_us: how far its rows had come there.
    """

    child: str
    entry: Leaf
    low_us: int


def retired_leaves(child: str, member: Member, leaves: Iterable[str]) -> list[RetiredLeaf]:
    """What is known of leaves below a child. member: the child in one group, which lists them."""
    low_us = member.lowest_us
    return [RetiredLeaf(child, member.leaves[leaf], min(*member.times_of(leaf), low_us)) for leaf in leaves]


def is_from(leaf: Leaf, former: Leaf) -> bool:
    """Whether a leaf moved away from where its entry `former` was, itself or with a merger that moved."""
    # a leaf below a merger that moves keeps its epoch
    return leaf.before_move != former.before_move and former.epoch in (leaf.before_move, leaf.epoch)


class RetiredLeaves:
    """of: group -> leaf -> what was known of it when its child was retired. forgotten: because of the bound.

    last: leaf -> what was remembered last of it, in any group; those that were found stay, in this process.
    """

    def __init__(self) -> None:
        self.of: dict[Group, dict[str, RetiredLeaf]] = {}
        self.last: dict[str, RetiredLeaf] = {}
        self.forgotten = 0  # since the process started
        self._changed = False

    def remember(self, group: Group, leaves: Collection[RetiredLeaf]) -> None:
        """Remember leaves of a child that is no longer expected, or that no longer lists them."""
        if not leaves:
            return
        known = self.of[group] = self.of.pop(group, {})  # moves it to the end, because the oldest are forgotten
        for leaf in leaves:
            known.pop(leaf.entry.node, None)
            known[leaf.entry.node] = leaf
            self._note(leaf)
        self._changed = True
        for _ in range(sum(map(len, self.of.values())) - MOST_RETIRED):
            of = next(iter(self.of))
            self._forget(of, next(iter(self.of[of])))
            self.forgotten += 1

    def _note(self, leaf: RetiredLeaf) -> None:
        self.last.pop(leaf.entry.node, None)
        self.last[leaf.entry.node] = leaf
        while len(self.last) > MOST_RETIRED:
            del self.last[next(iter(self.last))]

    def dropped(self, group: Group, leaves: Sequence[RetiredLeaf]) -> None:
        """Remember leaves that a child dropped, while there is room: a child may drop as many as it likes."""
        room = MOST_RETIRED - sum(map(len, self.of.values()))
        self.forgotten += max(len(leaves) - room, 0)
        self.remember(group, leaves[:room])

    def gone(self, leaf: str) -> None:
        """Forget a leaf that is retired itself."""
        self.last.pop(leaf, None)
        for group in [group for group, known in self.of.items() if leaf in known]:
            self._forget(group, leaf)

    def listed(
        self, child: str, changes: MemberChanges, memberships: Memberships
    ) -> Iterator[tuple[Group, Leaf, RetiredLeaf]]:
        """Finds leaves that a child lists as moved, with what is known of them from their retired child; forgets these.

        changes: definition sections of the child's frame, which have been applied. The retired child may not have
        passed on in which epoch the leaf moved, so another one counts too, unless another child lists the leaf with an
        epoch from which it did not come to the retired child.
        """
        for group, change in changes if self.last else ():
            for leaf in change.leaves:
                former = self.of.get(group, {}).get(leaf.node)
                if former is None:
                    if (found := self._in_no_list(leaf, child, memberships[group])) is not None:
                        yield group, leaf, found
                elif former.child == child:
                    self._forget(group, leaf.node)
                    self.last.pop(leaf.node, None)
                elif memberships[group].moves.awaited(leaf) and self._from(leaf, former, child, group, memberships):
                    self._forget(group, leaf.node)
                    yield group, leaf, former

    def _in_no_list(self, leaf: Leaf, child: str, membership: GroupMembership) -> RetiredLeaf | None:
        """What is known of a leaf that its retired child had not listed in a group; None if it did not leave that one.

        leaf: as `child` lists it. How far the rows of the group had come is not known.
        """
        former = self.last.get(leaf.node)
        if former is None or former.child == child or not membership.moves.missing(leaf):
            return None
        alive = any(each.epoch == leaf.before_move for each in _elsewhere(leaf.node, child, membership))
        return former._replace(low_us=NEVER_US) if is_from(leaf, former.entry) and not alive else None

    @staticmethod
    def _from(leaf: Leaf, former: RetiredLeaf, child: str, group: Group, memberships: Memberships) -> bool:
        """Whether `leaf`, listed by `child`, moved away from where its former entry was."""
        entry, others = former.entry, _elsewhere(leaf.node, child, memberships[group])
        if leaf.before_move == entry.before_move:
            return False
        return is_from(leaf, entry) or {each.epoch for each in others} <= {entry.before_move}

    def _forget(self, group: Group, leaf: str) -> None:
        del self.of[group][leaf]
        if not self.of[group]:
            del self.of[group]
        self._changed = True

    def snapshot(self) -> RetiredState:
        return {
            group: [(each.child, each.entry, each.low_us) for each in known.values()]
            for group, known in self.of.items()
        }

    def take_changed(self) -> RetiredState | None:
        """The state if it has changed since the last call, else None."""
        changed, self._changed = self._changed, False
        return self.snapshot() if changed else None

    def restore(self, state: RetiredState) -> None:
        """Continue from the result of `snapshot`."""
        self.of = {group: {each[1].node: RetiredLeaf(*each) for each in known} for group, known in state.items()}
        for known in self.of.values():
            for leaf in known.values():
                self._note(leaf)


def _elsewhere(leaf: str, child: str, membership: GroupMembership) -> list[Leaf]:
    """The entries of a leaf at other members than a child."""
    return [each.leaves[leaf] for of, each in membership.members.items() if of != child and leaf in each.leaves]
