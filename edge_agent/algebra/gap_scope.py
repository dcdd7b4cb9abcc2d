"""Which groups a gap record concerns (docs/protocol.md 3.5)."""

from __future__ import annotations

from typing import Final

from edge_agent.algebra.frame import DAMAGED, Gap

QUOTA: Final = "quota"  # reason of a record for frames that a full spool drops (3.5)
POISON: Final = "poison"  # reason of a record for a frame that the parent never receipted (3.6)
IN_PLACE: Final = frozenset((DAMAGED, QUOTA, POISON))  # reasons of records in the place of frames

RETIRED: Final = "retired"  # reason of a record that declares no loss, but that its nodes are retired there (1.5)


def of_all_groups(gap: Gap) -> bool:
    """Whether a record concerns all groups of its sender, because a frame has no room for their names."""
    if gap.groups or gap.nodes or gap.reason not in IN_PLACE:
        return False
    return gap.end_us > gap.start_us or gap.readings < 0


def names_retired(gap: Gap) -> bool:
    """Whether a record declares no loss, but that its nodes are retired at its sender (1.5)."""
    return gap.reason == RETIRED and not gap.groups and gap.readings == 0


def has_times(gap: Gap) -> bool:
    """Whether a record says itself in which time windows may lack readings."""
    return gap.end_us > gap.start_us and (bool(gap.groups) or of_all_groups(gap))
