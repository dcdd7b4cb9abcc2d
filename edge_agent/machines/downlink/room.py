"""Limits the groups, leaves and queries that one child can make its parent store (docs/protocol.md 2.2), and its rows.

A frame beyond a limit is settled as bad.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edge_agent.algebra.frame import LEAF_READINGS, MAX_KEYS, GroupPart, Plan, Section
from edge_agent.algebra.partials.arrays import distinct
from edge_agent.algebra.partials.row_counts import claimed_together
from edge_agent.algebra.punctuation.markers import is_marker_key
from edge_agent.algebra.query.query import Group
from edge_agent.errors import WireError
from edge_agent.machines.downlink.group_membership import GroupParts, MemberChanges, Memberships
from edge_agent.machines.downlink.member import Member

MOST_GROUPS: Final = 65_536  # of one child; a large gateway has 2 000
# Of all children of a merger, which numbers them in its own epoch: 65 536 at most, with those that have ended in it.
MOST_TOGETHER: Final = 49_152
RESERVED: Final = 8_192  # beyond those, for children with at most FEW groups: one child cannot take the room of all
FEW: Final = 64
MOST_LEAVES: Final = 200_000  # of one child in one group
MOST_SERVINGS: Final = 65_536  # queries of one child in one group; a large gateway has 10 000
# Registers of one child in one group, of all epochs since its last frontier. An epoch has MAX_KEYS at most, and the one
# after it states the same again.
MOST_REGISTERS: Final = 4 * MAX_KEYS
# Older lines of one child, counted in each of its groups, which know which rows of them count (`Member.older`). However
# many groups it has, so many of its lines stay.
MOST_OLDER: Final = 200_000
FEWEST_LOST: Final = 16


def check_room(
    memberships: Memberships,
    node: str,
    changes: MemberChanges,
    parts: GroupParts = (),
    *,
    numbered: bool = False,
) -> None:
    """Refuse a frame whose definitions would exceed a limit of its child, or of all children.

    numbered: this node numbers the groups of all children. Raises: WireError.
    """
    new: set[Group] = set()
    for group, part in parts:
        membership = memberships.get(group)
        member = None if membership is None else membership.members.get(node)
        if member is None:
            new.add(group)
            continue
        if part.more:
            _check_exceptions(member, part)
        if part.registers:
            _check_registers(member, part)
    for group, change in changes:
        membership = memberships.get(group)
        member = None if membership is None else membership.members.get(node)
        leaves, servings = {each.node for each in change.leaves}, {each.key for each in change.serving}
        if member is not None:
            if len(leaves) + len(member.leaves) > MOST_LEAVES:
                leaves |= member.leaves.keys()
            if len(servings) + len(member.serving) + len(member.begins) > MOST_SERVINGS:
                servings |= member.serving.keys() | member.begins.keys()
        if member is None:
            new.add(group)
        for found, most, what in ((leaves, MOST_LEAVES, "leaves"), (servings, MOST_SERVINGS, "queries")):
            if len(found) > most:
                raise WireError(f"more than {most} {what} of one child in a group")
    if new and len(new) + sum(node in each.members for each in memberships.values()) > MOST_GROUPS:
        raise WireError(f"more than {MOST_GROUPS} groups of one child")
    if numbered and new and len(new) + len(memberships) > MOST_TOGETHER:
        _check_together(memberships, node, new)


def _check_together(memberships: Memberships, node: str, new: set[Group]) -> None:
    """Refuse groups that no child is in yet if there are too many of all children. Raises: WireError."""
    fresh = sum(group not in memberships for group in new)
    own = [group for group, each in memberships.items() if node in each.members]
    most = MOST_TOGETHER + (RESERVED if len(own) + len(new) <= FEW else 0)
    if fresh and fresh + len(memberships) > most:
        raise WireError(f"more than {most} groups of all children together")


def most_lost(memberships: Memberships, node: str) -> int:
    """How many epochs of older lines of a child stay; the oldest of more end (see `Inbox`)."""
    groups = sum(node in each.members for each in memberships.values())
    return max(MOST_OLDER // max(groups, 1), FEWEST_LOST)


def check_together(section: Section, plan: Plan, leaves: int) -> None:
    """Refuse rows of one range and key that have too many readings together: their sum would not fit (7.1).

    A node that takes such rows out itself stays below half of this bound. leaves: gateways below the sender. Raises:
    WireError.
    """
    rows = section.rows(plan.basis)
    most = 2 * LEAF_READINGS * leaves
    if len(rows) and float(claimed_together(rows, plan.basis).max()) > most:
        raise WireError(
            f"plan {section.plan}: more than {most} readings in rows of one range and key of {leaves} gateways"
        )


def check_markers(section: Section, plan: Plan, keys: Sequence[str]) -> None:
    """Refuse marker rows under a key that no marker has: nobody could read them (6.2). keys: of the epoch.

    Raises: WireError.
    """
    if plan.kind != "marker":
        return
    for number in distinct(section.pieces()[0]).tolist():
        if not is_marker_key(keys[number]):
            raise WireError(f"plan {section.plan}: marker rows under {keys[number][:80]!r}, a key no marker has")


def _check_registers(member: Member, part: GroupPart) -> None:
    """Refuse registers beyond the bound. Those of earlier epochs are in force until a frontier (1.2).

    Raises: WireError.
    """
    if len(member.hints) + len(member.held) + len(part.registers) > MOST_REGISTERS:
        known = member.hints.keys() | member.held.keys()
        if len(known) + len(part.registers) > MOST_REGISTERS:
            raise WireError(f"more than {MOST_REGISTERS} registers of one child in a group")


def _check_exceptions(member: Member, part: GroupPart) -> None:
    """Refuse changes after which a child would have more exceptions than leaves are allowed. Raises: WireError."""
    known = member.exceptions.keys() if part.exceptions is None else {each.node for each in part.exceptions}
    if len(known) + len(part.more) > MOST_LEAVES and len(known | {each.node for each in part.more}) > MOST_LEAVES:
        raise WireError(f"more than {MOST_LEAVES} exceptions of one child in a group")
