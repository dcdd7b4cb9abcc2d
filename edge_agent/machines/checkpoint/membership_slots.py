"""Stores a merger's memberships in slots of its spool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.codec import encode
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


class MembershipSlots:
    """The slots of all memberships.

    Leaves, serving ranges and agreed starts change only with definitions or nodes, frontiers every second; they are
    stored apart so that a commit does not rewrite all.
    """

    __slots__ = ("_rows",)

    def __init__(self, state: Mapping[str, Any]) -> None:
        """state: the rows of a spool."""
        # row of a member -> its leaves, serving, begins and ends: `Member.snapshot` returns the same lists until one
        # changes; of a group -> what its agreement contains
        self._rows: dict[str, tuple[object, ...]] = {row: () for row in state if row.startswith(f"{MEMBER.name}/")}

    def changes(
        self, memberships: Mapping[Group, MembershipState], retired: RetiredState | None = None
    ) -> dict[str, object]:
        """The rows to commit. retired: leaves of retired children; None: unchanged."""
        rows = {} if retired is None else RETIRED_LEAVES.write(retired or None)
        moving: dict[Group, MembershipState] = {}
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
                members[node] = replace(member, leaves=None, serving=None, begins=None, ends=None)
            row, agreed = f"{AGREEMENT.name}/{name}", (each.since or {}, each.starts or {})
            there[row] = agreed
            if self._rows.get(row) != agreed:
                rows |= AGREEMENT.write(AgreementState(*agreed), name)
            moving[group] = replace(each, members=members, since=None, starts=None)
        gone, self._rows = self._rows.keys() - there.keys(), there
        return {**dict.fromkeys(gone), **rows, **MEMBERSHIPS.write(moving)}

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
