"""Stores a merger's memberships in slots of its spool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.codec import encode, encode_without
from edge_agent.machines.checkpoint.slots import (
    AGREEMENT,
    MEMBER,
    MEMBERSHIPS,
    RETIRED_LEAVES,
    AgreementState,
    MemberDefinitions,
    MembershipState,
    RetiredState,
    slot_name,
)

OF_MEMBERS: Final = ("leaves", "serving", "begins", "ends")  # fields of a MemberState in slots of their own
OF_MEMBERSHIPS: Final = ("members", "since", "starts")  # of a MembershipState; members are encoded one by one


class MembershipSlots:
    """The slots of all memberships.

    Leaves, serving ranges and agreed starts change only with definitions or nodes, frontiers every second; they are
    stored apart so that a commit does not rewrite all.
    """

    __slots__ = ("_rows", "_written")

    def __init__(self, state: Mapping[str, Any]) -> None:
        """state: the rows of a spool."""
        self._written: Mapping[Group, MembershipState] | None = None  # in the last commit; None: there was none
        # row of a member -> its leaves, serving, begins and ends: `Member.snapshot` returns the same lists until one
        # changes; of a group -> what its agreement contains
        self._rows: dict[str, tuple[object, ...]] = {row: () for row in state if row.startswith(f"{MEMBER.name}/")}

    def changes(
        self, memberships: Mapping[Group, MembershipState], retired: RetiredState | None = None
    ) -> dict[str, object]:
        """The rows to commit. retired: leaves of retired children; None: unchanged."""
        rows = {} if retired is None else RETIRED_LEAVES.write(retired or None)
        if memberships == self._written and all(each.moves is None for each in memberships.values()):
            return rows  # as between two promises of the children; a MovesState shares its lists with its owner
        self._written = memberships
        moving: list[list[object]] = []
        there: dict[str, tuple[object, ...]] = {}
        for group, each in memberships.items():
            name, members = slot_name(group), {}
            for node, member in each.members.items():
                row, content = (
                    f"{MEMBER.name}/{name}/{node}",
                    (member.leaves, member.serving, member.begins, member.ends),
                )
                there[row] = content
                known = self._rows.get(row, ())
                if len(known) < len(content) or any(a is not b for a, b in zip(known, content, strict=True)):
                    rows[row] = encode(content)
                members[node] = encode_without(member, OF_MEMBERS)
            row, agreed = f"{AGREEMENT.name}/{name}", (each.since or {}, each.starts or {})
            there[row] = agreed
            if self._rows.get(row) != agreed:
                rows |= AGREEMENT.write(AgreementState(*agreed), name)
            moving.append([encode(group), {**encode_without(each, OF_MEMBERSHIPS), "members": members}])
        gone, self._rows = self._rows.keys() - there.keys(), there
        return {**dict.fromkeys(gone), **rows, MEMBERSHIPS.name: moving or {}}

    @staticmethod
    def retired(state: Mapping[str, Any]) -> RetiredState:
        """The leaves of retired children among the rows of a spool."""
        return RETIRED_LEAVES.read(state) or {}

    @staticmethod
    def read(state: Mapping[str, Any]) -> dict[Group, MembershipState]:
        """The memberships among the rows of a spool."""
        out = {}
        for group, each in (MEMBERSHIPS.read(state) or {}).items():
            name, members = slot_name(group), {}
            for node, member in each.members.items():
                known = MEMBER.read(state, name, node) or MemberDefinitions([], [], [])
                members[node] = replace(
                    member, leaves=known.leaves, serving=known.serving, begins=known.begins, ends=known.ends
                )
            agreed = AGREEMENT.read(state, name) or AgreementState({}, {})
            out[group] = replace(each, members=members, since=agreed.since, starts=agreed.starts)
        return out
