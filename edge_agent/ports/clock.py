"""Reads the clocks of the computer. Only the runtime does; machines get the time as an argument."""

from __future__ import annotations

import ctypes
import struct
import time
from functools import cache
from pathlib import Path
from typing import Any, Final

from edge_agent.machines.node_clock import ClockReading, ClockState, NodeClock

STEP_US: Final = 500_000  # time services slew by up to 500 ppm; a jump of half a second is a step
RELEASED_US: Final = 1_767_225_600_000_000  # 2026-01-01: no correct clock is before the release of this program
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# files in /run of the time services systemd-timesyncd, chrony, ntpd and OpenNTPD
SERVICES: Final = ("systemd/timesync", "chrony", "chronyd.pid", "ntpd.pid", "ntpd", "openntpd")
UNSYNCED: Final = 0x40  # STA_UNSYNC of adjtimex(2): no time service disciplines the clock, or it was set by hand since
LOOK_US: Final = 1_000_000  # the kernel is asked at most this often
TIMEX_BYTES: Final = 512  # more than sizeof(struct timex)


class SystemClock:
    """The computer's clocks. Use one object per caller of `step_us`, which compares with its previous call."""

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
        """By how much the wall clock stepped since the last call; 0 if by less than half a second.

        A step backwards begins a new epoch (docs/protocol.md 1.1).
        """
        offset_us = self.now_us() - self.boot_us()
        step_us = offset_us - self._offset_us
        if abs(step_us) < STEP_US:
            return 0  # keep the old offset: a slow drift must not hide a later step, nor add up to one
        self._offset_us = offset_us
        return step_us


class JudgedClock(SystemClock):
    """The time of a node: boot time plus an offset, which does not follow every step (machines/node_clock.py)."""

    def __init__(self, *, trust: str, max_error_us: int, floor_us: int = 0, run: Path = Path("/run")) -> None:
        """trust, max_error_us: see NodeClock. floor_us: time of the last commit. run: folder of SERVICES."""
        self._run, self._looked_us = run, -LOOK_US
        self._vouched: bool | None = None
        self.boot_id = BOOT_ID.read_text("ascii").strip() if BOOT_ID.exists() else "unknown"
        floor_us = max(floor_us, RELEASED_US)
        self.judge = NodeClock(self.reading(), trust=trust, max_error_us=max_error_us, floor_us=floor_us)
        self.state = self.judge.state
        super().__init__()

    def now_us(self) -> int:
        return self.boot_us() + self.state.offset_us

    @property
    def synced(self) -> bool:
        """Whether the node knows the time."""
        return self.state.known

    def reading(self) -> ClockReading:
        """Read the computer's clocks now."""
        boot_us = self.boot_us()
        if boot_us - self._looked_us >= LOOK_US:
            self._looked_us, self._vouched = boot_us, vouched(self._run)
        return ClockReading(time.time_ns() // 1000, boot_us, self._vouched)

    def use(self, state: ClockState) -> int:
        """Use this state from now on. Returns by how much the node's time steps, in microseconds."""
        by_us, self.state = state.offset_us - self.state.offset_us, state
        return by_us


def vouched(run: Path = Path("/run")) -> bool | None:
    """Whether a time service confirms the clock; None: no time service runs."""
    buffer = ctypes.create_string_buffer(TIMEX_BYTES)  # modes 0: nothing is set
    ask = _adjtimex()
    if ask is not None and ask(buffer) >= 0 and not struct.unpack_from("@Illlli", buffer)[5] & UNSYNCED:
        return True
    return False if any((run / name).exists() for name in SERVICES) else None


@cache
def _adjtimex() -> Any:
    """The function adjtimex(2); None if the C library has none."""
    try:
        return ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError):
        return None
