"""The rim: one thin adapter a file, no decisions. Machines never see it; the loop does what they ask through these.

The four Protocols are what the loop and the simulation agree on. `Connection`, `Spool`, `SystemClock` and the drivers
of `sensors/` fulfil them with the real world.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from edge_agent.algebra.query.query import Sensor
from edge_agent.machines.events import Commit, Note, Read, Restored


class Clock(Protocol):
    """Time as the machine has it."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC; may step."""

    def boot_us(self) -> int:
        """Microseconds since boot; never steps."""

    @property
    def synced(self) -> bool:
        """Whether the wall clock can be right."""


class Uplink(Protocol):
    """A connection to a broker. What happened comes out of `take` (values of ports/link.py)."""

    def take(self) -> Sequence[object]:
        """What has happened since the last call, in order."""

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, expiry_s: int | None = None
    ) -> int | None:
        """Hand a message over; None: not connected. Raises: PortError if the broker would refuse its size."""

    def subscribe(self, filters: Mapping[str, int]) -> None:
        """Hear these filters (filter -> QoS), now and after every reconnect."""

    def ack(self, tokens: Iterable[int]) -> None:
        """Acknowledge messages of QoS 1."""


class Spool(Protocol):
    """What a node may not lose."""

    def open(self) -> Restored:
        """Take it for this process and say what it holds."""

    def commit(self, commit: Commit) -> None:
        """Make everything in it durable, or nothing. Raises: PortError."""

    def payload(self, epoch: int, seq: int) -> bytes:
        """The bytes of a committed frame. Raises: PortError."""


class SensorDriver(Protocol):
    """One configured source, from its constructor (sensor, position, clock) to `close`."""

    sensor: Sensor

    def poll(self, now_us: int) -> list[Read]:
        """The readings since the last call, in batches; quickly, without waiting."""

    def due_us(self, now_us: int) -> int:
        """When `poll` is wanted next, in the same clock."""

    @property
    def position(self) -> object:
        """Where to go on after a restart, a plain value; None for sources that cannot be read again."""

    def notes(self) -> list[Note]:
        """What an operator may want to read, once each."""

    def counters(self) -> dict[str, int]:
        """Readings taken and refused since the start, by kind."""

    def close(self) -> None:
        """Let go of files and devices."""
