"""What a merger knows of the gateways and queries below, in slots of their own: frontiers move every second, not it.

The form is that of `Family.snapshot`, of which TOLD and the columns SETTLED of every member are taken out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

SETTLED: Final = (1, 3, 7)  # leaves, serving, begins: a row for each gateway or query below
TOLD: Final = ("since", "told")  # of the family, a row for each query


class MembershipSlots:
    """Which slots there are."""

    __slots__ = ("_slots",)

    def __init__(self, state: Mapping[str, Any]) -> None:
        """state: of the spool."""
        self._slots = {slot for slot in state if slot.startswith("member/")}

    def changes(self, families: Sequence[Any]) -> tuple[list[object], dict[str, object]]:
        """(families without what is settled, slots that hold it; None: one that is gone).

        Slots are answered whether they changed or not: the spool writes only those that did.
        """
        slots: dict[str, object] = {}
        rest: list[object] = []
        for group, family in families:
            members = {}
            for node, member in family["members"].items():
                slots[f"member/{group}/{node}"] = [member[i] for i in SETTLED]
                members[node] = [None if i in SETTLED else value for i, value in enumerate(member)]
            slots[f"member/{group}"] = [family[name] for name in TOLD]
            rest.append([group, {**family, "members": members, **dict.fromkeys(TOLD)}])
        gone, self._slots = self._slots - slots.keys(), set(slots)
        return rest, {**dict.fromkeys(gone), **slots}

    @staticmethod
    def read(rest: Sequence[Any], state: Mapping[str, Any]) -> list[object]:
        """The families that `changes` was given. state: of the spool."""
        out: list[object] = []
        for group, family in rest:
            members = {}
            for node, moving in family["members"].items():
                member = members[node] = list(moving)
                for i, value in zip(SETTLED, state[f"member/{group}/{node}"], strict=True):
                    member[i] = value
            told = dict(zip(TOLD, state[f"member/{group}"], strict=True))
            out.append([group, {**family, "members": members, **told}])
        return out
