"""Counts refused messages and values by reason, each with its newest example, for the status and the log."""

from __future__ import annotations

import logging
import re
from typing import Final

log = logging.getLogger("headwater")

MOST_REASONS: Final = 32  # counted separately; further reasons are counted together
SHOWN: Final = 160  # characters of a reason and of an example
OTHER: Final = "other"
_NUMBERS: Final = re.compile(r"[0-9a-f]*[0-9]+[0-9a-f]*")


def without_numbers(reason: str) -> str:
    """The beginning of a reason, with # for each number in it: a peer chooses the numbers."""
    return _NUMBERS.sub("#", reason[:SHOWN])


class Refusals:
    """Counters by reason. Reasons that differ only in numbers share a counter."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, str] = {}

    @property
    def total(self) -> int:
        """The count of all refusals since the start of the process."""
        return sum(self._counts.values())

    def add(self, reason: str, example: str) -> bool:
        """Count a refusal. Returns whether to log it: the 1st, 2nd, 4th, 8th... of a reason."""
        name = without_numbers(reason)
        if name not in self._counts and len(self._counts) >= MOST_REASONS:
            name = OTHER
        count = self._counts[name] = self._counts.get(name, 0) + 1
        self._examples[name] = example[:SHOWN]
        return count & (count - 1) == 0

    def restore(self, plain: object) -> None:
        """Continue with the counts that `plain` returned."""
        for name, found in plain.items() if isinstance(plain, dict) else ():
            count = found.get("count") if isinstance(found, dict) else None
            if isinstance(count, int) and len(self._counts) < MOST_REASONS:
                self._counts[name], self._examples[name] = count, str(found.get("example", ""))[:SHOWN]

    def plain(self) -> dict[str, dict[str, object]]:
        """Reason -> count and example, the most frequent first."""
        order = sorted(self._counts, key=lambda name: -self._counts[name])
        return {name: {"count": self._counts[name], "example": self._examples[name]} for name in order}
