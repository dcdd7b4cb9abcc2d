"""When a connection is made anew because what others have sent does not come over it.

A broker lets only so many messages of QoS 1 be in flight to a client. Mosquitto drops packets for a client whose queue
is full, also those that it has counted as in flight: once they are as many as may be, the client hears nothing of QoS 1
any more, though pings and messages of QoS 0 come. With a new connection the broker counts anew.
"""

from __future__ import annotations

from typing import Final

QUIET_US: Final = 60_000_000  # a re-sending waits up to a minute
MOST_US: Final = 3_600_000_000


class Unheard:
    """Of one connection."""

    def __init__(self) -> None:
        self._heard = 0
        self._since_us: int | None = None  # when it was first seen that something lacks, and nothing has come since
        self._limit_us = QUIET_US

    def look(self, now_us: int, heard: int, *, lacks: bool) -> bool:
        """Whether to connect anew: nothing of QoS 1 has come for long, though something lacks.

        heard: grows with messages of QoS 1. lacks: something was sent over this connection that has not come. Where a
        new connection brings nothing either, the next one is made after twice the time.
        """
        if heard != self._heard:
            self._heard, self._since_us, self._limit_us = heard, None, QUIET_US
        if not lacks:
            self._since_us = None
            return False
        if self._since_us is None:
            self._since_us = now_us
        if now_us - self._since_us < self._limit_us:
            return False
        self._since_us, self._limit_us = None, min(2 * self._limit_us, MOST_US)
        return True
