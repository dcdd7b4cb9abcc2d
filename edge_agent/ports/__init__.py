"""Adapters to the outside world: one per file, without decisions. Only runtime/ uses them, never machines/.

- mqtt/: one MQTT connection
- spool, spool_file: frames and checkpoints of a node; journal: state of the lander; sqlite_file: the file of each
- landing_folder: the lander's files
- clock, waiter: time, and the one place where a process sleeps
- memory: freed memory back to the system
- service_manager: ready, alive and stopping, for systemd
- sensors/: drivers

The Protocols below are the interfaces of clocks and sensor drivers.
"""

from __future__ import annotations

from typing import Protocol

from edge_agent.algebra.query.query import Sensor
from edge_agent.machines.events import Note, Read


class Clock(Protocol):
    """Wall time and boot time."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC; may step."""

    def boot_us(self) -> int:
        """Microseconds since boot, suspend included; never steps."""

    @property
    def synced(self) -> bool:
        """Whether the wall clock is plausible."""


class SensorDriver(Protocol):
    """One configured source; constructed from (sensor, position, clock)."""

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

    def close(self) -> None: ...
