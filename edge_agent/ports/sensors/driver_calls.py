"""Calls of one running driver, so that whatever it raises or returns costs its own sensor only.

Readings that a driver has returned are delivered, even if it fails right behind them. `behind` is the position after
these, from which the sensor is tried again: nothing is lost or counted twice as far as the source can be read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.plugin_calls import error_text
from edge_agent.algebra.punctuation.markers import Marker
from edge_agent.algebra.query.key import Labels
from edge_agent.algebra.query.query import Sensor
from edge_agent.errors import ConfigError, PortError
from edge_agent.machines.events import Note, Read
from edge_agent.ports import SensorDriver
from edge_agent.ports.sensors.payloads import BEYOND_US
from edge_agent.ports.sensors.quality import EXACT, CheckedSensor
from edge_agent.wire import snapshot

RAISED: Final = (Exception, SystemExit)  # what a driver may raise; a library may call sys.exit
HEALED_US: Final = 60_000_000  # a sensor without a failure for so long works again; counters are read every 10 s


class Polled(NamedTuple):
    """reads: readings to deliver, also beside an error. due_us: next poll. error: why the driver failed, else None."""

    reads: list[Read]
    due_us: int
    error: BaseException | None


@dataclass(slots=True)
class DriverCalls:
    """The calls of one driver. sensor: its definition. behind: the position behind the readings delivered so far."""

    sensor: Sensor
    driver: SensorDriver
    behind: object
    _labels: Sequence[Labels] = ()  # the table of the last batch, and how many of its entries were checked
    _checked: int = 0
    _counted: dict[str, int] = field(default_factory=dict)  # the last counters that could be read

    def locate(self) -> BaseException | None:
        """Update `behind` from the driver. Returns why the driver cannot tell its position; `behind` then stays."""
        try:
            position = self.driver.position
            snapshot.dumps(position)  # raises unless the spool can store it
        except RAISED as err:
            return err
        self.behind = position
        return None

    def poll(self, now_us: int) -> Polled:
        """Poll the driver. now_us: time of its clock."""
        if (error := self.locate()) is not None:
            return Polled([], now_us, error)
        try:
            reads = list(self.driver.poll(now_us))
            for read in reads:
                self._check(read)
        except RAISED as err:
            return Polled([], now_us, err)
        self.behind = next((read.position for read in reversed(reads) if read.position is not None), self.behind)
        if (error := self.locate()) is not None:
            return Polled(reads, now_us, error)
        try:
            return Polled(reads, int(self.driver.due_us(now_us)), None)
        except RAISED as err:
            return Polled(reads, now_us, err)

    def give_back(self) -> tuple[bool, BaseException | None]:
        """End a turn (Quality.give_back). Returns (whether series were removed, the error of the driver)."""
        try:
            return isinstance(self.driver, CheckedSensor) and bool(self.driver.give_back()), None
        except RAISED as err:
            return False, err

    def notes(self) -> tuple[list[Note], BaseException | None]:
        """The notes of the driver, and its error."""
        try:
            found: list[Any] = list(self.driver.notes())
            if not all(isinstance(note, Note) and isinstance(note.fields, Mapping) for note in found):
                raise TypeError("notes() must return Notes")
        except RAISED as err:
            return [], err
        return found, None

    def counters(self) -> tuple[dict[str, int], BaseException | None]:
        """The counters of the driver, the last ones if it fails; and its error."""
        try:
            self._counted = {str(kind): int(many) for kind, many in self.driver.counters().items()}
        except RAISED as err:
            return self._counted, err
        return self._counted, None

    def close(self) -> BaseException | None:
        """Close the driver. Returns its error."""
        try:
            self.driver.close()
        except RAISED as err:
            return err
        return None

    def _check(self, read: Any) -> None:
        """Raises: TypeError or ValueError if the machine could not use a batch of readings."""
        if not isinstance(read, Read) or not isinstance(read.batch, Batch):
            raise TypeError(f"poll() must return Reads with a Batch, got {type(read).__name__}")
        if read.sensor != self.sensor.id:
            raise ValueError(f"readings of another sensor: {read.sensor!r}")
        snapshot.dumps(read.position)  # raises unless the spool can store it
        _check_promises(read)
        batch = read.batch
        _check_columns(batch, np.float64 if self.sensor.scale is None else np.int64)
        if batch.labels is not self._labels:
            self._labels, self._checked = batch.labels, 0
        labels: Any
        for labels in batch.labels[self._checked :]:
            if not (isinstance(labels, tuple) and all(map(_is_label, labels))):
                raise ValueError(f"labels must be pairs of texts, got {labels!r}")
        self._checked = len(batch.labels)


def _check_columns(batch: Batch, wanted: type[np.float64 | np.int64]) -> None:
    """Raises: ValueError or TypeError unless the columns have the shapes and ranges of a Batch. wanted: of values."""
    time_us, value, series = batch.time_us, batch.value, batch.series
    column: Any
    for name, column, dtype in (("time_us", time_us, np.int64), ("value", value, wanted), ("series", series, np.int64)):
        if not isinstance(column, np.ndarray) or column.dtype != dtype or column.shape != (len(time_us),):
            raise TypeError(f"{name} of a Batch must be an array of {dtype.__name__}, as long as time_us")
    if not len(time_us):
        return
    if max(-int(time_us.min()), int(time_us.max())) > BEYOND_US:
        raise ValueError("a time is not in the years 828 to 3111")
    if value.dtype == np.float64 and not np.isfinite(value).all():
        raise ValueError("a value is not finite")
    if value.dtype == np.int64 and max(-int(value.min()), int(value.max())) > EXACT:
        raise ValueError("a value is beyond 2^53 steps of the resolution")
    if int(series.min()) < 0 or int(series.max()) >= len(batch.labels):
        raise ValueError(f"a series is not in the table of {len(batch.labels)} labels")


def _check_promises(read: Any) -> None:
    """Raises: TypeError or ValueError if a time or a marker beside the readings cannot be used."""
    us: Any
    for name, us in (("clock_us", read.clock_us), ("mark_us", read.mark_us)):
        if us is not None and (isinstance(us, bool) or not isinstance(us, int | np.integer)):
            raise TypeError(f"{name} must be an integer, got {type(us).__name__}")
    if not all(isinstance(marker, Marker) for marker in read.markers):
        raise TypeError("markers must be Markers")


def _is_label(pair: Any) -> bool:
    texts = isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
    return texts and bool(["".join(pair).encode()])  # raises for half a surrogate pair, which no frame can contain


@dataclass(slots=True)
class SensorFailures:
    """What failed in which sensor of a node, for the log, the counters and `state`.

    why: sensor that failed within HEALED_US -> text of its newest kind of failure. count: sensor -> failures so far.
    """

    why: dict[str, str] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    _failed_us: dict[str, int] = field(default_factory=dict)
    _kind: dict[str, str] = field(default_factory=dict)  # the failure that was logged last

    def add(self, sensor: str, err: BaseException, now_us: int) -> str:
        """Count a failure. Returns its text if it is to be logged: once, until the sensor works again or fails anew."""
        text = failure_text(err)
        own = isinstance(err, PortError | ConfigError)
        kind = text if own else text.partition(":")[0]  # the text of a bug may differ each time
        self._failed_us[sensor], self.count[sensor] = now_us, self.count.get(sensor, 0) + 1
        if self._kind.get(sensor) == kind:
            return ""
        self.why[sensor], self._kind[sensor] = text, kind
        return text

    def look(self, now_us: int, waiting: Mapping[str, object]) -> None:
        """Drop sensors that work again. waiting: those whose next try is still to come."""
        for sensor, failed_us in list(self._failed_us.items()):
            if sensor not in waiting and not 0 <= now_us - failed_us < HEALED_US:
                self._drop(sensor)

    def keep(self, sensors: Mapping[str, object]) -> None:
        """Forget sensors that are no longer configured."""
        for sensor in self.count.keys() - sensors.keys():
            del self.count[sensor]
            self._drop(sensor)

    def _drop(self, sensor: str) -> None:
        for table in (self.why, self._kind, self._failed_us):
            table.pop(sensor, None)


def failure_text(err: BaseException) -> str:
    """An error of a driver in one line: its own words if it is meant for the operator, else with its type."""
    own = isinstance(err, PortError | ConfigError)
    return str(err).encode("utf-8", "replace").decode() if own else error_text(err)
