"""Decides what time it is at a node, and whether the time is known (docs/protocol.md 4.3). Pure.

A node's time is the time since boot, which never steps, plus an offset. The offset comes from the computer's clock if a
time service (NTP) confirms it; without a time service, from the computer's clock as long as it is plausible and does
not step; or from a parent's answer, which is exact to half the round trip.

    UNKNOWN --time service, plausible clock or parent--> known --unconfirmed step--> UNKNOWN
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from edge_agent.algebra.frame import ParentTime

UNKNOWN: Final = ""
SERVICE: Final = "time service"
COMPUTER: Final = "computer"
PARENT: Final = "parent"
STEP_US: Final = 500_000  # time services slew by up to 500 ppm; a jump of half a second is a step
SETTLED_US: Final = 60_000_000  # an unconfirmed step of the clock is accepted after this time
ASK_US: Final = 5_000_000  # interval of questions to the parent while the time is unknown
ASK_AGAIN_US: Final = 600_000_000  # interval while the time is known, but no time service confirms it


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The computer's clocks at one moment. boot_us: time since boot.

    vouched: whether a time service confirms wall_us; False: the service does not confirm it yet; None: no time service.
    """

    wall_us: int
    boot_us: int
    vouched: bool | None = None

    @property
    def offset_us(self) -> int:
        return self.wall_us - self.boot_us


@dataclass(frozen=True, slots=True)
class ClockState:
    """The node's time. offset_us: node time minus time since boot. source: UNKNOWN: the offset is a guess.

    error_us: how far the offset may be off.
    """

    offset_us: int
    source: str
    error_us: int = 0

    @property
    def known(self) -> bool:
        return self.source != UNKNOWN


@dataclass(frozen=True, slots=True)
class Trusted:
    """A period [from_us, upto_us) since boot in which the computer's clock counted as known without confirmation.

    upto_us: None: the period lasts. offset_us: the offset that was used.
    """

    from_us: int
    upto_us: int | None
    offset_us: int


class NodeClock:
    """Decides what time it is: `look` and `answered` take input and update `state`."""

    def __init__(self, first: ClockReading, *, trust: str, max_error_us: int, floor_us: int) -> None:
        """trust: 'always': the computer's clock is right; 'synced': it counts only if a time service confirms it;
        'auto': a plausible clock also counts where there is no time service.

        max_error_us: a parent's answer with a greater possible error is ignored. floor_us: no right clock is earlier.
        """
        self._trust, self._max_error_us, self._floor_us = trust, max_error_us, floor_us
        self._wall_offset_us = first.offset_us  # of the computer's clock, without its slow drift
        self._stepped_us: int | None = None  # time since boot of the last step
        self._asked_us: int | None = None
        self._trusted: Trusted | None = None
        self.state = ClockState(max(first.wall_us, floor_us) - first.boot_us, UNKNOWN)
        # [from, upto) of times that readings got, or should have got, while the offset was wrong
        self.wrong: tuple[int, int] | None = None
        self.look(first)

    def look(self, now: ClockReading) -> ClockState:
        """Update the state from the computer's clocks."""
        stepped = abs(now.offset_us - self._wall_offset_us) >= STEP_US
        if stepped:
            self._wall_offset_us, self._stepped_us = now.offset_us, now.boot_us
        known, before = self.state.known, self.state.source
        if now.vouched or self._trust == "always":
            if before != SERVICE or stepped:
                self._become(ClockState(self._wall_offset_us, SERVICE), now.boot_us)
        elif known and before != PARENT and stepped:
            self._become(ClockState(self.state.offset_us, UNKNOWN), now.boot_us)
        elif not known and self._may_trust(now):
            self._become(ClockState(self._wall_offset_us, COMPUTER), now.boot_us)
        return self.state

    def _may_trust(self, now: ClockReading) -> bool:
        """Whether the computer's clock counts although no service confirms it."""
        if now.wall_us < self._floor_us:
            return False
        alone = self._trust == "auto" and now.vouched is None
        if self._stepped_us is None:
            return alone
        back = abs(self._wall_offset_us - self.state.offset_us) < STEP_US  # it has stepped back to the node's time
        return back or (alone and now.boot_us - self._stepped_us >= SETTLED_US)

    def _become(self, state: ClockState, boot_us: int) -> None:
        self.state, trusted = state, self._trusted
        if not state.known:
            if trusted is not None:
                self._trusted = replace(trusted, upto_us=boot_us)
            return
        if trusted is not None and abs(trusted.offset_us - state.offset_us) >= STEP_US:
            upto_us = boot_us if trusted.upto_us is None else trusted.upto_us
            low, high = sorted((trusted.offset_us, state.offset_us))
            self.wrong, trusted = (trusted.from_us + low, upto_us + high), None
        if state.source == COMPUTER:
            self._trusted = Trusted(boot_us if trusted is None else trusted.from_us, None, state.offset_us)
        else:
            self._trusted = None

    def answered(self, answer: ParentTime, boot_us: int) -> ClockState:
        """Update the state from a parent's answer. boot_us: time since boot at its arrival."""
        width_us = boot_us - answer.asked_us
        error_us = width_us // 2 + (answer.error_us or 0)
        if width_us < 0 or error_us > self._max_error_us:
            return self.state
        offset_us = answer.time_us - boot_us + width_us // 2
        near_us = error_us + STEP_US
        if not self.state.known:
            right = self._trust == "auto" and abs(self._wall_offset_us - offset_us) <= near_us
            if right:
                self._become(ClockState(self._wall_offset_us, COMPUTER, error_us), boot_us)
            else:
                self._become(ClockState(offset_us, PARENT, error_us), boot_us)
        elif answer.error_us is not None and self.state.source != SERVICE:
            if abs(self.state.offset_us - offset_us) > near_us + self.state.error_us:
                self._become(ClockState(offset_us, PARENT, error_us), boot_us)
            elif self._trusted is not None:  # the answer confirms the clock up to now
                self._trusted = replace(self._trusted, from_us=boot_us)
        return self.state

    def asks(self, boot_us: int) -> bool:
        """Whether to ask the parent for its time now."""
        if self.state.source == SERVICE:
            return False
        every_us = ASK_AGAIN_US if self.state.known else ASK_US
        if self._asked_us is not None and 0 <= boot_us - self._asked_us < every_us:
            return False
        self._asked_us = boot_us
        return True
