"""Finds out when readings of `mqtt` sensors may have been lost, because no connection to the local broker was up.

The broker keeps messages of QoS 1 for a node that is away, as long as it keeps the node's session. A broker that stores
nothing has lost all sessions when it comes back, and has acknowledged to its devices whatever they sent before the node
subscribed again (docs/protocol.md 3.1). It keeps nothing for subscriptions of QoS 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from edge_agent.algebra.query.query import Sensor
from edge_agent.machines.events import Unheard
from edge_agent.ports import Clock

SHOWN_US: Final = 10_000_000  # the broker is away for so long before its sensors count as failing
HEALED_US: Final = 60_000_000  # after such an outage, the connection is up for so long before they work again
LATE_NOTICES: Final = 2  # keepalive intervals after which a lost connection is noticed at the latest


class LocalOutages:
    """The times without a connection to the local broker, from the last commit of the process before on."""

    def __init__(self, clock: Clock, keepalive_s: int, saved: str = "", committed_us: int | None = None) -> None:
        """saved: `save` of the process before. committed_us: its last commit; None: the spool is new."""
        self._clock = clock
        self._notice_us = LATE_NOTICES * keepalive_s * 1_000_000
        since_us: int | None
        self._forgotten: bool  # the broker had lost the session since then, which is not declared yet
        since_us, self._forgotten = json.loads(saved) if saved else (None, False)
        self._since_us = committed_us if since_us is None else since_us
        self._down_us = clock.boot_us() if self._since_us is None else None  # since boot
        self._up = self._hears = False  # connected; and the broker has read the subscriptions
        self._undated = False  # a loss waits in memory for a clock that is known
        self._lost_us = self._heard_us = clock.boot_us()  # since boot
        self._up_us = 0  # since boot
        self._shown, self._why = False, "no answer"

    def heard(self) -> None:
        """Messages have arrived, so the connection is alive."""
        self._heard_us = self._clock.boot_us()

    def up(self, *, session: bool) -> None:
        """Note that the connection is up. session: the broker kept the session."""
        self._up, self._up_us = True, self._clock.boot_us()
        self._forgotten = self._forgotten or not session

    def hears(self, sensors: Iterable[Sensor]) -> Unheard | None:
        """Note that the broker has read the subscriptions of this connection. Returns the loss to declare, if any."""
        at_us, down_us, since_us = self._clock.boot_us(), self._down_us, self._since_us
        names = tuple(sensor.id for sensor in sensors if self._forgotten or not sensor.rereadable)
        self._hears, self._forgotten, self._heard_us = True, False, at_us
        if not names:
            return None
        self._undated = self._undated or not self._clock.synced
        return Unheard(names, since_us) if down_us is None else Unheard(names, None, at_us - down_us)

    def down(self, why: str, *, was_up: bool) -> None:
        """Note that the connection was lost, or could not be made. why: one line for the operator."""
        self._why = why
        if was_up:
            self._up, self._lost_us = False, self._clock.boot_us()
        if was_up and self._hears:
            self._hears, self._since_us = False, None
            # a broker whose host lost its power is missed late: it may have come back long ago
            self._down_us = max(self._heard_us, self._lost_us - self._notice_us)

    def save(self) -> str:
        """The outage that no committed gap record declares yet, as text for the next commit; '' if there is none."""
        if self._clock.synced:
            self._undated = False  # the commit that asks for this text contains its record
            if self._since_us is None and self._down_us is not None:
                self._since_us = self._clock.now_us() - (self._clock.boot_us() - self._down_us)
        if self._hears and not self._undated:
            return ""
        return json.dumps([self._since_us, self._undated or self._forgotten])

    def failing(self, sensors: Iterable[Sensor]) -> dict[str, str]:
        """Sensor -> why it gets no messages, if the broker has been away for a while or was so in the last minute."""
        at_us = self._clock.boot_us()
        self._shown = at_us - self._up_us < HEALED_US and self._shown if self._up else at_us - self._lost_us >= SHOWN_US
        if not self._shown:
            return {}
        return {sensor.id: f"no connection to the local broker: {self._why}" for sensor in sensors}
