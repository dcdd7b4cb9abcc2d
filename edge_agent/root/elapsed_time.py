"""Measures how much time has passed by the lander's ticks, so that a wrong clock makes nothing old (8.4). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edge_agent.machines.downlink.clock_steps import STILL_US

MOST_STEP_US: Final = 86_400_000_000  # a step ahead counts a day at most: it may be a stop or an error of the clock


class ElapsedTime:
    """us: begins as the time of the first look, never falls, and rises with the clock. us may be read as a time.

    If the clock steps ahead, `us` rises by the part of the step by which it lies behind the clock, a day at most. So a
    step back and its correction count nothing, and neither does the return of a clock that was ahead.
    """

    def __init__(self, us: int = 0, clock_us: int = 0) -> None:
        """us, clock_us: of the last look; 0: none yet."""
        self.us, self._clock_us = us, clock_us

    def look(self, now_us: int) -> None:
        """Take the clock's time: at each tick, and at each decision. A repeated time changes nothing."""
        if not self._clock_us:
            self.us = self.us or now_us
        else:
            by_us = now_us - self._clock_us
            if by_us > STILL_US:
                by_us = min(by_us, now_us - self.us, MOST_STEP_US)
            self.us += max(by_us, 0)
        self._clock_us = now_us

    def snapshot(self) -> list[int]:
        return [self.us, self._clock_us]

    @classmethod
    def restore(cls, state: Sequence[int]) -> ElapsedTime:
        return cls(*state)
