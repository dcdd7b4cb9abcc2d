"""Adapters to the outside world, without decisions. runtime/ uses them; machines/ never does.

- mqtt/: one MQTT connection
- spool, spool_file: frames and checkpoints of a node; journal: state of the lander; sqlite_file: the base of both
- landing_folder: the lander's files
- clock: time; waiter: the one place where a process sleeps
- memory: returns freed memory to the system
- service_manager: reports to systemd: ready, alive, stopping
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
        """Whether the wall clock can be trusted."""


class SensorDriver(Protocol):
    """The driver of one configured sensor; constructed from (sensor, position, clock)."""

    sensor: Sensor

    def poll(self, now_us: int) -> list[Read]:
        """Returns the readings since the last call, in batches. Must not wait. now_us: time of the driver's clock."""

    def due_us(self, now_us: int) -> int:
        """When to call `poll` next, as a time of the same clock as now_us."""

    @property
    def position(self) -> object:
        """Where to continue after a restart, a plain value; None for sources that cannot be read again."""

    def notes(self) -> list[Note]:
        """Notes for the operator, each once."""

    def counters(self) -> dict[str, int]:
        """Readings taken and refused since the start, by kind."""

    def close(self) -> None: ...
