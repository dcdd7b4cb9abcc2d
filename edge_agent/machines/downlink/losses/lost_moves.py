"""Leaves whose `leave` nobody will report: it was in a lost frame, or went with a journal (protocol 1.5, 3.7)."""

from __future__ import annotations

from collections.abc import Iterator, Set

from edge_agent.algebra.frame import Leaf
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.epochs.epoch_frames import Effect
from edge_agent.machines.downlink.group_membership import GroupMembership, MemberChanges, Memberships
from edge_agent.machines.downlink.losses.let_go import LET_GO
from edge_agent.machines.downlink.losses.loss_records import latest_us, of_leaf
from edge_agent.machines.downlink.losses.unlisted import Unseen


def left_unreported(effect: Effect, changes: MemberChanges, children: Children, now_us: int) -> Iterator[Unseen]:
    """Yields leaves that have left a child and that no report will name, found by what a frame lists.

    changes: definition sections of the frame, which have been applied.
    """
    yield from children.unlisted.left_by(effect, changes, children.memberships)
    yield from _with_journals(effect, changes, children.memberships, now_us)


def _with_journals(effect: Effect, changes: MemberChanges, memberships: Memberships, now_us: int) -> Iterator[Unseen]:
    """Yields leaves that another child lists, or has listed, as moved, and the former one's new journal does not list.

    The leaf does not send its `leave` again: the lost journal had receipted it, or its frames are in doubt. All of
    its rows from the place where it stood until now count as lost, also those that may still come from below the former
    child.
    """
    names = {leaf.node for _, change in changes for leaf in change.leaves}
    groups = memberships if effect.forgot else dict.fromkeys(group for group, change in changes if change.leaves)
    for group in groups:
        membership = memberships[group]
        for child, member in membership.members.items():
            if child == effect.node and effect.forgot:
                yield from _left(membership, group, child, member.unlisted.keys(), now_us)
            elif child != effect.node and member.unlisted:
                yield from _left(membership, group, child, member.unlisted.keys() & names, now_us)


def _left(membership: GroupMembership, group: Group, child: str, names: Set[str], now_us: int) -> Iterator[Unseen]:
    """Yields those of these leaves that have left a child whose journal was lost."""
    lost, gone = membership.members[child], set[str]()
    for of, leaf in _listed(membership, child, names):
        name = leaf.node
        entry = lost.leaves.get(name)
        if name in gone or entry is None or lost.unlisted[name] or not membership.moves.awaited(leaf):
            continue
        others = (each.leaves.get(name) for node, each in membership.members.items() if node != child)
        if leaf.before_move == entry.before_move or any(
            other is not None and other.epoch == leaf.before_move for other in others
        ):
            continue  # it came from elsewhere
        gone.add(name)
        until_us = max(
            latest_us(membership.members[each], now_us) for each in (child, of) if each in membership.members
        )
        loss = of_leaf(group, name, min(lost.times_of(name)), until_us, LET_GO)
        yield Unseen(membership, child, leaf, loss)


def _listed(membership: GroupMembership, child: str, names: Set[str]) -> Iterator[tuple[str, Leaf]]:
    """Yields (child, entry) of these leaves where others list them as moved, then the entries replaced since."""
    for of, member in membership.members.items():
        for name in sorted(member.moved & names) if of != child else ():
            yield of, member.leaves[name]
    replaced = membership.moves.replaced
    for name in sorted(replaced.keys() & names) if replaced else ():
        yield from ((of, entry) for of, entry in replaced[name] if of != child)
