"""Runs all configured sensors of a node. A sensor that fails is retried; the others continue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from edge_agent.algebra.query.query import Sensor
from edge_agent.config.definitions.drivers import DRIVERS
from edge_agent.errors import ConfigError
from edge_agent.machines.events import Note, Read
from edge_agent.ports import Clock, SensorDriver
from edge_agent.ports.mqtt.packets import Message
from edge_agent.ports.sensors.driver_calls import RAISED, DriverCalls, SensorFailures, failure_text
from edge_agent.ports.sensors.file_access import FileAccess
from edge_agent.ports.sensors.quality import MAX_SERIES, CheckedSensor

if TYPE_CHECKING:
    from edge_agent.ports.sensors.mqtt import MqttSensors

GATHER_US: Final = 1_000_000  # a sensor is polled at most this often: a batch of 1 reading costs as much as of 10 000
TURN_US: Final = 15_000_000  # a series without a reading for longer may be removed (Quality.give_back)
RETRY_US: Final = 10_000_000  # pause before a failed driver is started again, such as one whose file is missing


def start(sensor: Sensor, position: object, clock: Clock) -> SensorDriver:
    """Start a driver. Raises: PortError, or ConfigError if a library that the driver needs is not installed."""
    driver = DRIVERS[sensor.driver]
    try:
        started: SensorDriver = driver.start(sensor, position, clock)
    except ModuleNotFoundError as err:
        hint = f"; in a checkout of Headwater: pip install '.[{driver.extra}]'" if driver.extra else ""
        raise ConfigError(f"driver {driver.name!r} needs the Python package {err.name}{hint}") from err
    return started


class Sensors:
    """All configured sensors of a node. The loop feeds messages of the local broker, and polls.

    Call `poll(now, everything=True)` before a commit, so that it contains all readings collected until then.
    """

    def __init__(
        self,
        clock: Clock,
        gather_us: int = GATHER_US,
        access: FileAccess | None = None,
        *,
        most_series: int = MAX_SERIES,
    ) -> None:
        """gather_us: shortest interval between polls of a sensor. most_series: limit of the series of one sensor.

        access: which files may be read. None: all; right only if the user of this process wrote all definitions.
        """
        self._most_series = most_series
        self._turn_us: int | None = None
        self._clock = clock
        self.access = access
        self._gather_us = gather_us
        self._running: dict[str, DriverCalls] = {}
        self._failures = SensorFailures()
        self._asleep: dict[str, tuple[Sensor, object, int]] = {}  # failed: (sensor, position, next try)
        self._next_us: dict[str, int] = {}  # sensor id -> next poll; polling hundreds in every turn would cost more
        self._mqtt: MqttSensors | None = None
        self.local: tuple[Sensor, ...] = ()  # sensors whose readings come over the local broker
        self.unheard = False  # messages of the local broker came before its first sensor: nobody acknowledges them
        self._notes: list[Note] = []

    # --- configuration -------------------------------------------------------------------------------------------

    def configure(self, sensors: Iterable[Sensor], positions: Mapping[str, object]) -> list[Read]:
        """Start new sensors, stop removed sensors, restart changed sensors. Returns readings collected before.

        positions: sensor id -> position from the spool, for sensors that were not running.
        """
        wanted = {sensor.id: sensor for sensor in sensors}
        held = self.poll(self._clock.now_us(), everything=True)
        local = [sensor for sensor in wanted.values() if DRIVERS[sensor.driver].local]
        self.local = tuple(local)
        if local and self._mqtt is None:
            self._mqtt = DRIVERS[local[0].driver].start(self._clock)
            self._mqtt.most_series = self._most_series
        if self._mqtt is not None:
            self._mqtt.configure(local, positions)
        self._failures.keep(wanted)
        for name, running in list(self._running.items()):
            if wanted.get(name) == running.sensor:
                continue
            sensor = wanted.get(name)
            if (error := running.locate()) is not None:
                self._note_failure(name, error)
            position = running.behind if sensor and source_of(sensor) == source_of(running.sensor) else None
            self._drop(name)
            if sensor is not None and not DRIVERS[sensor.driver].local:
                self._start(sensor, position)
        kept: dict[str, object] = {}  # positions of changed sensors that wait for their next try
        for name, (failed, position, _) in list(self._asleep.items()):
            sensor = wanted.get(name)
            if sensor != failed:
                del self._asleep[name]
                if sensor is not None and source_of(sensor) == source_of(failed):
                    kept[name] = position
        for name, sensor in wanted.items():
            if not (DRIVERS[sensor.driver].local or name in self._running or name in self._asleep):
                self._start(sensor, kept.get(name, positions.get(name)))
        return held

    def _start(self, sensor: Sensor, position: object) -> None:
        calls: DriverCalls | None = None
        try:
            if self.access is not None:
                self.access.check(sensor)
            started = start(sensor, position, self._clock)
            calls = DriverCalls(sensor, started, position)
            if isinstance(started, CheckedSensor):
                started.quality.most_series = self._most_series
            self._next_us[sensor.id] = int(started.due_us(self._clock.now_us()))
            self._running[sensor.id] = calls
        except RAISED as err:  # whatever fails in a driver, the other sensors must start
            self._asleep[sensor.id] = (sensor, position, self._clock.now_us() + RETRY_US)
            self._note_failure(sensor.id, err, "sensor.not_started")
            if calls is not None:
                self._close(calls)

    def _fail(self, name: str, error: BaseException) -> None:
        """Stop the driver of a sensor. It is started again later, behind the readings that it delivered."""
        running = self._running[name]
        self._asleep[name] = (running.sensor, running.behind, self._clock.now_us() + RETRY_US)
        self._note_failure(name, error)
        self._drop(name)

    def _note_failure(self, name: str, error: BaseException, note: str = "sensor.failed") -> None:
        if why := self._failures.add(name, error, self._clock.now_us()):
            self._notes.append(Note(note, {"sensor": name, "why": why}))

    @property
    def failing(self) -> dict[str, str]:
        """Sensors that fail or failed in the last minute -> why."""
        self._failures.look(self._clock.now_us(), self._asleep)
        return dict(self._failures.why)

    # --- readings --------------------------------------------------------------------------------------------------

    def poll(self, now_us: int, *, everything: bool = False) -> list[Read]:
        """Returns the batches of the sensors that are due; with `everything` those of all sensors."""
        for name, (sensor, position, retry_us) in list(self._asleep.items()):
            if now_us >= retry_us or retry_us > now_us + RETRY_US:  # due, or the clock went back
                del self._asleep[name]
                self._start(sensor, position)
        reads: list[Read] = []
        for name, running in list(self._running.items()):
            if everything or now_us >= self._next_us[name]:
                fresh, due_us, error = running.poll(now_us)
                reads += fresh
                if error is not None:  # a device or disk failed: the other sensors continue
                    self._fail(name, error)
                    continue
                self._next_us[name] = due_us if due_us <= now_us else max(due_us, now_us + self._gather_us)
        if self._mqtt is not None and (everything or now_us >= self._mqtt.due_us(now_us, self._gather_us)):
            reads += self._mqtt.poll(now_us)
        return reads

    def give_back(self, now_us: int) -> bool:
        """Every TURN_US, remove series without readings (Quality.give_back). Returns whether any were removed."""
        if self._turn_us is not None and 0 <= now_us - self._turn_us < TURN_US:
            return False
        self._turn_us = now_us
        went = False
        for name, running in list(self._running.items()):
            own, error = running.give_back()
            went |= own
            if error is not None:  # its series may have numbers of both tables
                self._fail(name, error)
        return went | (self._mqtt is not None and self._mqtt.give_back())

    def _drop(self, name: str) -> None:
        del self._next_us[name]
        self._close(self._running.pop(name))

    def _close(self, running: DriverCalls) -> None:
        if (error := running.close()) is not None:  # a device that was unplugged: the other sensors continue
            why = failure_text(error)
            self._notes.append(Note("sensor.not_closed", {"sensor": running.sensor.id, "why": why}))

    def due_us(self, now_us: int) -> int:
        """The wall time of the next useful `poll`."""
        due = [*self._next_us.values()]
        due += [retry_us for _, _, retry_us in self._asleep.values()]
        if self._mqtt is not None:
            due.append(self._mqtt.due_us(now_us, self._gather_us))
        return min(due, default=now_us + RETRY_US)

    # --- the local broker ------------------------------------------------------------------------------------------

    @property
    def filters(self) -> dict[str, int]:
        """Topic filters (filter -> QoS) to subscribe to on the local broker; no message matches two of them."""
        return self._mqtt.filters if self._mqtt is not None else {}

    def feed(self, messages: Iterable[Message], now_us: int) -> None:
        """Take messages of the local broker; `poll` returns their readings."""
        if self._mqtt is not None:
            self._mqtt.feed(messages, now_us)
        else:
            self.unheard = True

    def session(self, present: bool) -> None:
        """Note that the connection to the local broker is up. present: the broker has kept the session."""
        if self._mqtt is not None:
            self._mqtt.session(present)

    def confirmed(self, tokens: Iterable[int]) -> None:
        """Note that the local broker has read the acknowledgements of these tokens (`Confirmed`)."""
        if self._mqtt is not None:
            self._mqtt.confirmed(tokens)

    def acknowledge(self, tokens: Iterable[object]) -> list[int]:
        """Note that readings with these tokens (of `Read`) are durable. Returns tokens to acknowledge at the broker."""
        return self._mqtt.acknowledge(tokens) if self._mqtt is not None else []

    def settled(self) -> list[int]:
        """Removes and returns tokens to acknowledge at the local broker now, because their messages need no commit."""
        return self._mqtt.settled() if self._mqtt is not None else []

    # --- for people --------------------------------------------------------------------------------------------------

    def notes(self) -> list[Note]:
        """Notes for the operator, once each."""
        for name, running in self._running.items():
            own, error = running.notes()
            if error is not None:
                self._note_failure(name, error)
            self._notes += own
        notes, self._notes = self._notes, []
        return notes + (self._mqtt.notes() if self._mqtt is not None else [])

    def counters(self) -> dict[str, dict[str, int]]:
        """Sensor -> the counters of its driver. failed: how often the driver raised an exception, if it ever did."""
        counts: dict[str, dict[str, int]] = {}
        for name, running in self._running.items():
            counts[name], error = running.counters()
            if error is not None:
                self._note_failure(name, error)
        for name, many in self._failures.count.items():
            counts[name] = {**counts.get(name, {}), "failed": many}
        return {**counts, **(self._mqtt.counters() if self._mqtt is not None else {})}

    def close(self) -> None:
        for name in list(self._running):
            self._drop(name)


def source_of(sensor: Sensor) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """The driver and the options that decide which readings a sensor has, not those that decide when they come.

    A position of one sensor is valid for another if these are equal. They may differ in labels, checks and pace.
    """
    pace = {key.inside for key in DRIVERS[sensor.driver].keys if key.pace}
    return sensor.driver, tuple(option for option in sensor.options if option[0] not in pace)
