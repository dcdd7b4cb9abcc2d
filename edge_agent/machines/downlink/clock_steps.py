"""Judges how far a parent's clock may be ahead of the right time (docs/protocol.md 4.3, 4.4, 8.1).

A step ahead may be an error of the clock, or the process stood still meanwhile; the two cannot be distinguished. Until
a minute after a step, promises of children are judged by the time without the step, so that a child whose clock is as
wrong as the parent's is not believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from edge_agent.machines.downlink.member import AHEAD_US

SETTLED_US: Final = 60_000_000  # a step ahead is believed after this time
STILL_US: Final = 10_000_000  # ten times the usual interval of calls of `look`; a longer one counts as a step
BACK_US: Final = 1_000_000  # a smaller step back may be jitter between two readings of the clock


class ClockSteps:
    """The steps ahead in the last minute, each as (time after the step, size of the step)."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, int]] = []

    def look(self, before_us: int, now_us: int) -> int:
        """Compare two successive readings of the clock. Returns by how much the clock may be ahead."""
        by_us = now_us - before_us
        if not self._steps and -BACK_US <= by_us <= STILL_US:
            return 0  # as at nearly every event
        # a large difference is a step, so earlier steps move with the clock; a smaller one is time that has passed
        if by_us > AHEAD_US or by_us < -BACK_US:
            self._steps = [(since_us + by_us, step_us) for since_us, step_us in self._steps]
        if by_us > STILL_US:
            self._steps.append((now_us, by_us))
        elif by_us < -BACK_US:
            self._take_back(-by_us)
        self._steps = [(since_us, step_us) for since_us, step_us in self._steps if now_us - since_us < SETTLED_US]
        return self.ahead_us

    @property
    def ahead_us(self) -> int:
        """By how much the clock may be ahead, as of the last `look`."""
        return sum(step_us for _, step_us in self._steps)

    def _take_back(self, by_us: int) -> None:
        """Subtract a step back from the steps ahead, the newest first: these were wrong."""
        while self._steps and by_us > 0:
            since_us, step_us = self._steps.pop()
            if step_us > by_us:
                self._steps.append((since_us, step_us - by_us))
            by_us -= step_us

    def snapshot(self) -> list[list[int]]:
        return [list(step) for step in self._steps]

    def restore(self, state: Iterable[Sequence[int]]) -> None:
        self._steps = [(since_us, step_us) for since_us, step_us in state]
