"""The clock of the computer. Machines get time as an argument; only the runtime reads clocks."""

from __future__ import annotations

import time
from typing import Final

STEP_US: Final = 500_000  # time services slew by up to 500 ppm; a jump of half a second is a step
RELEASED_US: Final = 1_767_225_600_000_000  # 2026-01-01: no correct clock is before the release of this program


class SystemClock:
    """The computer's clocks. One owner: `step_us` compares with the previous call."""

    def __init__(self) -> None:
        self._offset_us = self.now_us() - self.boot_us()

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def boot_us(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000

    @property
    def synced(self) -> bool:
        """False if the wall clock is certainly wrong, as on a board without battery that boots in 1970."""
        return self.now_us() >= RELEASED_US

    def step_us(self) -> int:
        """Step of the wall clock since the last call; 0 for less than half a second.

        A step backwards begins a new epoch (docs/protocol.md 1.1).
        """
        offset_us = self.now_us() - self.boot_us()
        step_us = offset_us - self._offset_us
        if abs(step_us) < STEP_US:
            return 0  # keep the old offset: a slow drift must not hide a later step, nor add up to one
        self._offset_us = offset_us
        return step_us
