"""Adapters to the outside world: one per file, without decisions. Machines never import them; runtime/ does.

- mqtt: one MQTT connection; dial, paho_client, socket_stream, packets, outgoing, backoff: its parts; link: its settings
- spool, spool_file: frames and checkpoints of a node; journal: state of the lander; sqlite_file: the file of each
- clock, waiter: time, and the one place where a process sleeps
- sensors/: drivers

The Protocols below are the interfaces that the runtime and the simulation share.
"""

from __future__ import annotations

from typing import Protocol

from edge_agent.algebra.query.query import Sensor
from edge_agent.machines.events import Commit, Note, Read, Restored


class Clock(Protocol):
    """Wall time and boot time."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC; may step."""

    def boot_us(self) -> int:
        """Microseconds since boot; never steps."""

    @property
    def synced(self) -> bool:
        """Whether the wall clock is plausible."""


class Spool(Protocol):
    """Durable storage of a node."""

    def open(self) -> Restored:
        """Lock it for this process and return its content."""

    def commit(self, commit: Commit) -> None:
        """Make all of it durable, or nothing. Raises: PortError."""

    def payload(self, epoch: int, seq: int) -> bytes:
        """The bytes of a committed frame. Raises: PortError."""


class SensorDriver(Protocol):
    """One configured source, from its constructor (sensor, position, clock) to `close`."""

    sensor: Sensor

    def poll(self, now_us: int) -> list[Read]:
        """The readings since the last call, in batches; quickly, without waiting."""

    def due_us(self, now_us: int) -> int:
        """When to call `poll` next, on the same clock."""

    @property
    def position(self) -> object:
        """Where to continue after a restart, a plain value; None for sources that cannot be read again."""

    def notes(self) -> list[Note]:
        """Notes for the operator, each once."""

    def counters(self) -> dict[str, int]:
        """Readings taken and refused since the start, by kind."""

    def close(self) -> None:
        """Close files and devices."""
