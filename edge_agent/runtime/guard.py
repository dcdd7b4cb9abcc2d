"""Leaves out a message that cannot be handled; all others are processed.

Bad bytes and texts are found before anything changes. After an unexpected exception the service starts a new loop in
the same process, which continues from the last commit, as after a kill. Messages that were not committed were not
acknowledged, so the broker sends them again. The message at fault is quarantined, counted, and left out when it arrives
again. If it is not known which message was at fault, messages are handled one by one for a while, each with its own
commit, until it is known. A fault of the disk is none of the message: the new loop handles it again.
"""

from __future__ import annotations

import hashlib
import logging
import time
import traceback
from collections.abc import Callable
from typing import Any, Final, Protocol

from edge_agent.errors import ConfigError
from edge_agent.ports.clock import SystemClock
from edge_agent.ports.mqtt.link import TooLargeError
from edge_agent.ports.sqlite_file import from_disk
from edge_agent.runtime.quarantine import QuarantineFile
from edge_agent.runtime.refusals import Refusals
from edge_agent.runtime.start_record import DEFINITIONS, NAME, SETTLED_S, StartRecord

log = logging.getLogger("headwater")

MOST_LEFT_OUT: Final = 10_000  # messages at fault that are remembered
ONE_BY_ONE: Final = 200  # messages handled one by one after a failure whose cause is not known
MOST_UNKNOWN: Final = 5  # failures in a row without a message at fault; then the process ends, for systemd to restart
UNKNOWN_AT_START: Final = 3  # such failures before the first turn; then the definitions of the last run are left out
MOST_OF_TOPIC: Final = 5  # messages at fault per topic; then the whole topic is left out for MUTED_S
MUTED_S: Final = 600.0
FATAL: Final = "three starts in a row ended while it was handled"
PAUSE_S: Final = 0.1  # doubled with every failure in a row


class Served(Protocol):
    """The attributes of a loop that the guard uses. handling: topic and payload of the present message, if any."""

    guard: Guard | None
    handling: tuple[str, bytes] | None
    stopping: bool
    turned: bool

    @property
    def clock(self) -> SystemClock: ...

    def run(self, until: Callable[[], bool] | None = None) -> None: ...

    def stop(self) -> None: ...


class Guard:
    """Decides which messages a process leaves out. It stays when a failed loop is replaced."""

    def __init__(self, quarantine: QuarantineFile) -> None:
        self.quarantine, self.refusals = quarantine, Refusals()
        self.starts = StartRecord(quarantine.path.with_name(NAME), begun=False)
        self._began_s: float | None = time.monotonic()  # None: the start is over
        self.without_definitions = False  # start without those of the last run; the broker sends them again
        self.restarts = 0
        self._left_out: dict[bytes, str] = {}  # digest of topic and payload -> why
        self._faults: dict[str, int] = {}  # topic -> messages at fault
        self._muted: dict[str, float] = {}  # topic -> end of its muting, by time.monotonic
        self._one_by_one = ONE_BY_ONE if self.starts.careful else 0
        self._unknown = 0
        self._disk_faults, self._disk_failed_s = 0, -SETTLED_S  # faults in a row, and when the last one was
        if self.starts.is_fatal(DEFINITIONS):
            self.without_definitions = True
        if self.starts.fatal:
            log.error("start.left_out", extra={"what": self.starts.fatal, "why": FATAL})
            self.refusals.add(FATAL, self.starts.fatal)

    def turned(self) -> None:
        """Note the end of a turn. A start is over once turns have ended for a minute."""
        if self._began_s is not None and time.monotonic() - self._began_s > SETTLED_S:
            self._began_s = None
            self.starts.settled()

    @property
    def calm(self) -> bool:
        """Whether messages can be handled together, because nothing has failed lately."""
        return not (self._left_out or self._muted or self._one_by_one or self.starts.fatal)

    @property
    def one_by_one(self) -> bool:
        """Whether each message gets its own commit."""
        return self._one_by_one > 0

    def begins(self, topic: str, payload: bytes) -> None:
        """Note that the handling of a single message begins."""
        if self._began_s is not None and self.starts.careful:
            self.starts.handling(_named(topic, _digest(topic, payload)))

    def passed(self) -> None:
        """Note that a message was handled and its effects are committed."""
        self._one_by_one = max(0, self._one_by_one - 1)
        if self._began_s is not None and self.starts.careful:
            self.starts.handling("")
        self._unknown = 0

    def why_left_out(self, topic: str, payload: bytes) -> str:
        """The reason to leave a message out; '' to handle it."""
        until = self._muted.get(topic)
        if until is not None and time.monotonic() >= until:
            del self._muted[topic], self._faults[topic]
            until = None
        digest = _digest(topic, payload)
        why = self._left_out.get(digest, "")
        if self.starts.fatal and self.starts.is_fatal(_named(topic, digest)):
            if not why:
                self._leave_out(topic, payload, FATAL)
                self.quarantine.put(time.time_ns() // 1000, topic, FATAL, payload)
            why = FATAL
        if not why and until is not None:
            why = f"{MOST_OF_TOPIC} messages of this topic could not be handled"
        if why:
            self.refusals.add(why, topic)
        return why

    def failed(self, error: Exception, loop: Served) -> bool:
        """Note the error that ended a loop. Returns whether to start a new loop."""
        if isinstance(error, ConfigError) or loop.stopping:
            return False
        if from_disk(error) and not isinstance(error, TooLargeError):
            return self._disk_failed(error)
        at = loop.handling
        why = reason(error)
        self.restarts += 1
        if at is None:
            self._unknown += 1
            self._one_by_one = ONE_BY_ONE
            self.without_definitions |= self._unknown >= UNKNOWN_AT_START and not loop.turned
            self.refusals.add(why, "not known which message")
            log.error("begins_again", extra={"why": why, "in_a_row": self._unknown}, exc_info=error)
            time.sleep(PAUSE_S * 2**self._unknown)
            return self._unknown <= MOST_UNKNOWN
        topic, payload = at
        self._unknown = 0
        self._leave_out(topic, payload, why)
        if self.refusals.add(why, topic):
            log.error(
                "message.left_out", extra={"topic": topic, "why": why, "size_bytes": len(payload)}, exc_info=error
            )
        self.quarantine.put(loop.clock.now_us(), topic, why, payload)
        return True

    def _disk_failed(self, error: Exception) -> bool:
        """Note a fault of the disk, which no message has caused. Returns whether to start a new loop.

        A new loop sets a damaged spool aside.
        """
        self.restarts += 1
        now_s = time.monotonic()
        in_a_row = self._disk_faults + 1 if now_s - self._disk_failed_s < SETTLED_S else 1
        self._disk_faults, self._disk_failed_s = in_a_row, now_s
        if self._began_s is not None and self.starts.careful:
            self.starts.handling("")  # the message in hand is not what ends this start
        log.error("begins_again", extra={"why": str(error), "in_a_row": in_a_row})
        time.sleep(PAUSE_S * 2**in_a_row)
        return in_a_row <= MOST_UNKNOWN

    def _leave_out(self, topic: str, payload: bytes, why: str) -> None:
        self._left_out[_digest(topic, payload)] = why
        self._faults[topic] = self._faults.get(topic, 0) + 1
        if self._faults[topic] >= MOST_OF_TOPIC:
            self._muted[topic] = time.monotonic() + MUTED_S
        if len(self._left_out) > MOST_LEFT_OUT:
            del self._left_out[next(iter(self._left_out))]
        if len(self._faults) > MOST_LEFT_OUT:
            gone = next(iter(self._faults))
            del self._faults[gone]
            self._muted.pop(gone, None)


class Service:
    """Runs a loop, and a new one after each failure. `stop` may be called from a signal handler."""

    def __init__(self, make: Callable[[Guard], Served], guard: Guard) -> None:
        self._make, self._guard = make, guard
        self._loop: Served | None = None
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True
        if self._loop is not None:
            self._loop.stop()

    def run(self, until: Callable[[Any], bool] | None = None) -> None:
        """Serve until `stop`, or until `until(loop)` is true. Raises: errors that remain without the message."""
        try:
            self._serve(until)
            self._guard.starts.settled()
        finally:
            self._guard.starts.close()

    def _serve(self, until: Callable[[Any], bool] | None) -> None:
        while not self._stopping:
            loop = self._loop = self._make(self._guard)
            self._guard.starts.begin()  # not before: the process that has the lock of the spool has its own record
            loop.guard = self._guard
            loop.stopping |= self._stopping  # `stop` came while the loop was being made
            try:
                loop.run(None if until is None else lambda: until(loop))  # noqa: B023 - called in this iteration only
                return
            except Exception as err:
                if not self._guard.failed(err, loop):
                    raise


def reason(error: BaseException) -> str:
    """An exception as one line: its type, its text and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].name}" if frames else ""
    return f"{type(error).__name__}: {str(error)[:200]}{where}"


def _named(topic: str, digest: bytes) -> str:
    """The name of a message in the record of starts."""
    return f"{topic} {digest.hex()}"


def _digest(topic: str, payload: bytes) -> bytes:
    return hashlib.blake2b(topic.encode() + b"\0" + payload, digest_size=16).digest()
