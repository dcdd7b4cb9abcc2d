"""Judges how far a parent's clock may be ahead of the right time (docs/protocol.md 4.3, 4.4, 8.1).

A step of it may be an error, or the end of a stop, and nothing distinguishes the two. Until a step has stood for a
minute, promises of children are judged by the time without it, as at a node whose time service does not confirm a step:
a child whose clock is as wrong as the parent's is not believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from edge_agent.machines.downlink.member import AHEAD_US

SETTLED_US: Final = 60_000_000
STILL_US: Final = 10_000_000  # ten times what lies between two looks at the clock: it stepped, or nobody looked
BACK_US: Final = 1_000_000  # more than the jitter of two readings of a clock


class ClockSteps:
    """The steps ahead of the last minute. Of each: the time after it, on the same clock, and its size."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, int]] = []

    def look(self, before_us: int, now_us: int) -> int:
        """Note two looks at the clock, one after the other. Returns by how much it may be ahead."""
        by_us = now_us - before_us
        if by_us > AHEAD_US or by_us < -BACK_US:  # else, if not as usual, a short stop: others are that much longer ago
            self._steps = [(since_us + by_us, step_us) for since_us, step_us in self._steps]
        if by_us > STILL_US:
            self._steps.append((now_us, by_us))
        elif by_us < -BACK_US:
            self._take_back(-by_us)
        self._steps = [(since_us, step_us) for since_us, step_us in self._steps if now_us - since_us < SETTLED_US]
        return self.ahead_us

    @property
    def ahead_us(self) -> int:
        """By how much it may be ahead, as of the last look."""
        return sum(step_us for _, step_us in self._steps)

    def _take_back(self, by_us: int) -> None:
        """Forget steps ahead that were wrong, for the clock went back; the newest first."""
        while self._steps and by_us > 0:
            since_us, step_us = self._steps.pop()
            if step_us > by_us:
                self._steps.append((since_us, step_us - by_us))
            by_us -= step_us

    def snapshot(self) -> list[list[int]]:
        return [list(step) for step in self._steps]

    def restore(self, state: Iterable[Sequence[int]]) -> None:
        self._steps = [(since_us, step_us) for since_us, step_us in state]
