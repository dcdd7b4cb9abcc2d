"""Judges how far the lander's clock may be ahead of the right time (docs/protocol.md 4.3, 4.4, 8.1).

The root knows the time only from the lander's records. A step of that clock may be an error, or the end of a stop, and
nothing distinguishes the two. Until a step has stood for a minute, promises of children are judged by the time without
it, as at a node whose time service does not confirm a step: a child whose clock is as wrong as the lander's is not
believed.
"""

from __future__ import annotations

from typing import Final

from edge_agent.machines.downlink.member import AHEAD_US

SETTLED_US: Final = 60_000_000


class LanderClock:
    """The steps of the last minute: since when each stands, by the lander's time, and by how much it went ahead."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, int]] = []

    def stepped(self, by_us: int, now_us: int) -> None:
        """Note a step, either way, or a pause without records. now_us: by the clock as it is now."""
        if not 0 < by_us <= AHEAD_US:  # else it was a short stop, and earlier ones are that much longer ago
            self._steps = [(since_us + by_us, step_us) for since_us, step_us in self._steps]
        self._steps.append((now_us, by_us))

    def ahead_us(self, now_us: int) -> int:
        """By how much the clock may be ahead."""
        self._steps = [(since_us, by_us) for since_us, by_us in self._steps if now_us - since_us < SETTLED_US]
        return max(sum(by_us for _, by_us in self._steps), 0)

    def snapshot(self) -> list[list[int]]:
        return [list(step) for step in self._steps]

    def restore(self, state: list[list[int]]) -> None:
        self._steps = [(since_us, by_us) for since_us, by_us in state]
