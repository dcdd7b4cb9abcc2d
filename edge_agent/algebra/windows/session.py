"""Session windows: the readings of a key without a pause longer than the gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edge_agent.algebra.windows.declaration import SHORTEST_US, Setting, Wrong, not_positive

LONGEST_GAP_US = 7 * 86_400_000_000  # the root's default horizon: with longer gaps rows would be final before they join


@dataclass(frozen=True, slots=True)
class Session:
    """Windows from the first reading to the last reading + gap. Readings exactly one gap apart are in one session.

    max_us: sessions are cut at multiples of max_us since 1970; 0: no maximum duration (docs/protocol.md 5.5).
    """

    gap_us: int
    max_us: int = 0
    type: ClassVar[str] = "session"
    KEYS: ClassVar[tuple[Setting, ...]] = (
        Setting(
            *("gap", "duration", "silence that ends it; at most 7d, and at most the root's correction horizon"),
            low=SHORTEST_US,
            high=LONGEST_GAP_US,
            most="the usual correction horizon",
        ),
        Setting("max", "duration", "cut at its multiples since 1970 UTC; 0: no longest duration", 0),
    )

    def wrong(self) -> Wrong | None:
        if (wrong := not_positive(gap=self.gap_us)) is not None:
            return wrong
        if self.max_us and self.max_us <= self.gap_us:
            return Wrong("max", "not longer than the gap {gap}: every pause would be a cut", 2 * self.gap_us)
        if self.gap_us > LONGEST_GAP_US:
            return Wrong("gap", "longer than 7d, the usual correction horizon", LONGEST_GAP_US, live=True)
        return None
