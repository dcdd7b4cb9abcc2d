"""The earliest start of late rows and gap records as one number, which landing files contain (docs/protocol.md 3.2)."""

from __future__ import annotations

from collections.abc import Iterable


def earliest_start(starts: Iterable[int]) -> int | None:
    """The earliest start of late rows and gap records, us; None if there are none.

    0: a gap record has no known start (3.7). Negative: so has one, and it is the opposite of the earliest start of the
    others, which must not be forgotten beside it.
    """
    found = [max(us, 0) for us in starts]
    known_us = min((us for us in found if us), default=0)
    return -known_us if 0 in found else known_us or None


def earlier_start(one_us: int, other_us: int) -> int:
    """Joins two results of `earliest_start`."""
    known_us = min((abs(us) for us in (one_us, other_us) if us), default=0)
    return -known_us if min(one_us, other_us) <= 0 else known_us
