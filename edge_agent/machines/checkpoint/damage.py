"""Decides what a node may use of a spool with damaged slots. Pure; the spool finds the damage (docs/protocol.md
1.2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from edge_agent.machines.checkpoint import slots
from edge_agent.machines.checkpoint.slot import Slot

# A parent stores its journal id in two slots, because without the id all its children treat it as a new parent (3.7).
JOURNALS: Final = (slots.JOURNAL, slots.JOURNAL_AGAIN)
_SLOTS: Final[tuple[Slot[Any], ...]] = (slots.LAYOUT, slots.HORIZON, slots.NUMBERER, slots.COMMANDS, *JOURNALS)
DISPENSABLE: Final = {slot.name: slot.without for slot in _SLOTS}  # name -> what the node does without the slot
COSTS_THE_PAST: Final = "what the node knew is lost; its frames are sent"


class Remains(NamedTuple):
    """The usable part of a spool.

    state: the slots to continue from. obsolete: slots to delete with the next commit. lost: the node's past is unknown.
    """

    state: Mapping[str, object]
    obsolete: frozenset[str]
    lost: bool


def remains(good: Mapping[str, object], damaged: Collection[str]) -> Remains:
    """Decide which slots a node may use. good: readable slots by name. damaged: names of unreadable slots.

    If the node can do without every damaged slot, only these are lost. Otherwise it would count readings twice or omit
    some without a record, so no slot is used.
    """
    dispensable = set(damaged) <= DISPENSABLE.keys()
    no_journal = any(slot.name in damaged for slot in JOURNALS) and not any(slot.name in good for slot in JOURNALS)
    if dispensable and not no_journal:
        return Remains(good, frozenset(damaged), lost=False)
    return Remains({}, frozenset(damaged) | good.keys(), lost=True)


def journal_of(state: Mapping[str, Any]) -> int | None:
    """The journal id from either of its two slots; None if neither contains it."""
    known = slots.JOURNAL.read(state)
    return slots.JOURNAL_AGAIN.read(state) if known is None else known
