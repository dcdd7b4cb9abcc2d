"""Checks, scales and counts raw numbers before they become readings, for every driver. Vectorised.

A value that is not a valid number is dropped and counted by kind. A few of each kind are shown to the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials.arrays import NO_INTS, Floats, Ints, Mask, constant
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.key import Labels
from edge_agent.algebra.query.query import Sensor
from edge_agent.machines.events import Note
from edge_agent.ports.sensors.payloads import BEYOND_US, BadPayloadError, whole

YEAR_2000_US: Final = 946_684_800_000_000  # an earlier time comes from a clock that was never set
FUTURE_US: Final = 300_000_000  # docs/protocol.md 4.3
EXACT: Final = 2**53  # greater scaled integers are refused at the sensor (docs/protocol.md 7.1)
STEP_TOLERANCE: Final = 1e-6  # distance from a multiple of the resolution, in steps, explained by binary fractions
FLOAT32_TOLERANCE: Final = 1e-7  # the same relative to the value, for sensors that compute in 32 bits
MAX_SERIES: Final = 2**16  # per sensor: as many keys as an epoch can number (docs/protocol.md 2.4)
FEW_SERIES: Final = 1_024  # a table up to this size is never reduced, unless it is full
NO_LABEL: Final = -1  # in place of a series number: a label cannot be filled in
TOO_MANY: Final = -2  # in place of a series number: the sensor has too many series
NOTES: Final = 3  # most notes of one kind between two calls of `notes`
SHOWN_BYTES: Final = 200  # shown part of a bad payload

REFUSALS: Final = (  # names of the counters of dropped readings
    *("bad_value", "bad_time", "bad_label", "too_many_keys", "nan", "out_of_range", "future"),
)

Values = Floats | Ints


@dataclass(slots=True)
class Counters:
    """Counts since the start of the driver: readings, unless a comment says messages."""

    messages: int = 0  # messages received
    readings: int = 0  # readings passed on
    bad_value: int = 0  # not a number, infinite, or beyond 2^53 steps of the resolution
    rounded: int = 0  # passed on, rounded to a multiple of the resolution, or an integer to the nearest float
    bad_time: int = 0  # unreadable, before 2000, or not in the years 828 to 3111
    bad_label: int = 0  # a label cannot be filled in
    too_many_keys: int = 0  # the sensor has more series than [limits] keys
    nan: int = 0
    out_of_range: int = 0
    future: int = 0
    absent: int = 0  # messages without the value: common where one topic carries several
    retained: int = 0  # messages with old values that the broker sends at a subscription
    repeated: int = 0  # messages of QoS 1 that the broker sent again

    def as_dict(self) -> dict[str, int]:
        """Name -> count, for status and logs."""
        return {name: getattr(self, name) for name in COUNTERS}


COUNTERS: Final = tuple(each.name for each in fields(Counters))


class CheckedSensor:
    """Base class of drivers that check readings with one Quality. A driver adds `poll` and `due_us` of SensorDriver."""

    def __init__(self, sensor: Sensor, *, oldest_us: int | None = YEAR_2000_US, shows: bool = True) -> None:
        self.sensor = sensor
        self.quality = Quality(sensor, oldest_us=oldest_us, shows=shows)

    @property
    def position(self) -> object:
        """None: old values cannot be read again."""
        return None

    def notes(self) -> list[Note]:
        """Notes for the operator, once each."""
        return self.quality.notes()

    def counters(self) -> dict[str, int]:
        """Readings taken and refused since the start, by kind."""
        return self.quality.count.as_dict()

    def give_back(self) -> bool:
        """End a turn (Quality.give_back). The default removes no series, because the driver may keep their numbers."""
        return False

    def close(self) -> None:
        """Release files and devices. The default has none."""


class Quality:
    """Checks the readings of one sensor.

    oldest_us: earlier times are refused; None: any time within +-BEYOND_US is allowed (recordings). shows: whether
    notes for the operator contain refused values; False for files, whose content may be secret.
    """

    def __init__(self, sensor: Sensor, *, oldest_us: int | None = YEAR_2000_US, shows: bool = True) -> None:
        self.sensor = sensor
        self.count = Counters()
        self._shows = shows
        self.labels: list[Labels] = []  # the driver's append-only table of series
        self.most_series = MAX_SERIES
        self.forgotten: Callable[[], None] = lambda: None  # called when series get new numbers
        self._series: dict[Labels, int] = {}
        self._seen: NDArray[np.bool_] = np.zeros(0, np.bool_)  # by series: had a reading in this turn (large tables)
        self._oldest_us = -BEYOND_US if oldest_us is None else oldest_us
        self._notes: list[Note] = []

    def series(self, labels: Labels) -> int:
        """The number of a series, assigned at its first use; TOO_MANY if the sensor has most_series already."""
        number = self._series.get(labels)
        if number is None:
            if len(self.labels) >= self.most_series:
                return TOO_MANY
            number = self._series[labels] = len(self.labels)
            self.labels.append(labels)
        return number

    def give_back(self, waiting: Ints = NO_INTS) -> bool:
        """End a turn. Returns whether series without a reading in it were removed.

        That happens if the table is large and half of its series had no reading, or if it is full. The other series
        get new numbers in a new table; batches keep the old table. waiting: series of readings not checked yet.
        """
        many = len(self.labels)
        if many <= self._few:
            return False
        self._see(waiting)
        live = np.flatnonzero(self._seen[:many])
        self._seen = np.zeros(many, np.bool_)
        if len(live) > many // 2 and (many < self.most_series or len(live) == many):
            return False
        self.labels = [self.labels[number] for number in live.tolist()]
        self._series = {labels: number for number, labels in enumerate(self.labels)}
        self.forgotten()
        return True

    @property
    def _few(self) -> int:
        """Series of a table that is never reduced, because it has room and costs little."""
        return min(FEW_SERIES, self.most_series - 1)

    def _see(self, numbers: Ints) -> None:
        many = len(self.labels)
        if many > len(self._seen):
            grown = np.ones(max(many, 2 * len(self._seen)), np.bool_)  # a new series has its first reading now
            grown[: len(self._seen)] = self._seen
            self._seen = grown
        self._seen[numbers] = True

    def batch(self, time_us: Ints, value: Values, series: Ints | int, latest_us: int | None) -> Batch:
        """Returns the readings that pass the checks. time_us, value: shape (k,).

        series: numbers from `series`, shape (k,), or one number for all; NO_LABEL and TOO_MANY are refused. latest_us:
        the time now; readings more than 5 minutes ahead of it are refused. None: the clock is not synchronised.
        """
        k = len(value)
        numbers = constant(series, k) if isinstance(series, int) else series
        if not k:
            return Batch(time_us, self._empty(), numbers, self.labels)
        lowest = series if isinstance(series, int) else int(series.min())
        good = self._good_values(value)
        value, good = self._scaled(value, good)
        good = self._good_times(time_us, good, latest_us)
        if lowest < 0:
            good = self._drop(numbers == NO_LABEL, good, "bad_label", value)
            good = self._drop(numbers == TOO_MANY, good, "too_many_keys", value)
        if good is not None:
            time_us, value = time_us[good], value[good]
            numbers = constant(series, len(value)) if isinstance(series, int) else numbers[good]
        self.count.readings += len(value)
        if len(self.labels) > self._few:
            self._see(numbers[:1] if isinstance(series, int) else numbers)
        return Batch(time_us, value, numbers, self.labels)

    def _empty(self) -> Values:
        return np.zeros(0, np.float64) if self.sensor.scale is None else np.zeros(0, np.int64)

    def _drop(self, bad: Mask, good: Mask | None, kind: str, shown: Values) -> Mask | None:
        """Count and show the good rows that are `bad`. Returns the rows that stay good; None: all rows are good."""
        fresh = bad if good is None else bad & good
        n = int(np.count_nonzero(fresh))
        if not n:
            return good
        setattr(self.count, kind, getattr(self.count, kind) + n)
        if kind != "nan" or self.sensor.nan == "quarantine":
            self.note(kind, shown[int(np.argmax(fresh))].item(), readings=n)
        return ~fresh if good is None else good & ~fresh

    def _good_values(self, value: Values) -> Mask | None:
        good: Mask | None = None
        if value.dtype.kind == "f":
            with np.errstate(over="ignore", invalid="ignore"):
                finite = bool(np.isfinite(value.sum()))
            if not finite:  # a value is NaN or infinite, or only the sum is too great
                good = self._drop(np.isnan(value), good, "nan", value)
                good = self._drop(np.isinf(value), good, "bad_value", value)
        if self.sensor.range is not None:
            low, high = self.sensor.range
            if not (value.min() >= low and value.max() <= high):
                good = self._drop((value < low) | (value > high), good, "out_of_range", value)
        return good

    def _scaled(self, value: Values, good: Mask | None) -> tuple[Values, Mask | None]:
        """Returns (values as int64 counts of 10**scale, or as float64 if scale is None; good rows as in _drop)."""
        scale = self.sensor.scale
        if scale is None:
            if value.dtype == np.float64:
                return value, good
            floats = value.astype(np.float64)
            kept = slice(None) if good is None else good
            self.rounds(value[kept], floats[kept])
            return floats, good
        if value.dtype.kind != "f" and scale <= 0:
            factor = 10**-scale
            most = EXACT // factor
            if value.max() > most or value.min() < -most:
                good = self._drop((value > most) | (value < -most), good, "bad_value", value)
                value = np.where((value > most) | (value < -most), 0, value)
            return value.astype(np.int64, copy=False) * factor, good
        with np.errstate(invalid="ignore", over="ignore"):
            exact = value * 10.0**-scale if scale <= 0 else value / 10.0**scale
            steps = np.rint(exact)
            allowed = np.minimum(STEP_TOLERANCE + FLOAT32_TOLERANCE * np.abs(steps), 0.25)
            fits = np.abs(steps) <= EXACT
            between = fits & (np.abs(exact - steps) > allowed)
        if between.any():  # the sensor is finer than its declared resolution: round, count, pass the readings on
            self.count.rounded += int(np.count_nonzero(between if good is None else between & good))
        if not fits.all():
            good = self._drop(~fits, good, "bad_value", value)
            steps = np.where(fits, steps, 0.0)
        return steps.astype(np.int64), good

    def rounds(self, found: Sequence[Any] | Values, floats: Floats) -> None:
        """Count and show the integers that differ from the floats read of them. Only beyond 2^53 there are such.

        found: numbers, or payloads with a bare number; shape (k,), as floats. Scaled values beyond 2^53 steps are
        refused, and others are rounded to a step.
        """
        if self.sensor.scale or not len(floats) or (floats.max() < EXACT and floats.min() > -EXACT):
            return
        rows = np.flatnonzero(np.abs(floats) >= EXACT).tolist()
        pairs = [(whole(found[row]) if isinstance(found[row], bytes) else found[row], floats[row]) for row in rows]
        other = [
            int(number) for number, near in pairs if isinstance(number, int | np.integer) and _differs(number, near)
        ]
        if other:
            self.count.rounded += len(other)
            self.note("rounded", other[0], readings=len(other))

    def _good_times(self, time_us: Ints, good: Mask | None, latest_us: int | None) -> Mask | None:
        latest = int(time_us.max())
        if int(time_us.min()) < self._oldest_us or latest > BEYOND_US:
            good = self._drop((time_us < self._oldest_us) | (time_us > BEYOND_US), good, "bad_time", time_us)
        if latest_us is not None and latest > latest_us + FUTURE_US:
            good = self._drop(time_us > latest_us + FUTURE_US, good, "future", time_us)
        return good

    def refuse(self, kind: str, payload: bytes, why: str) -> None:
        """Count one message or reading that cannot be read, and note its payload. kind: a name in REFUSALS."""
        setattr(self.count, kind, getattr(self.count, kind) + 1)
        self.note(kind, payload[:SHOWN_BYTES], why=why)

    def each(
        self, found: Sequence[Any], shown: Sequence[bytes], parse: Callable[[Any], Any], kind: str = "bad_value"
    ) -> tuple[Ints, list[Any]]:
        """Parse items one at a time, which is slow. Returns (rows that were parsed, their values); refuses the others.

        found: items for `parse`. shown: the payload of each item, for notes. kind: counter of the refused items.
        """
        rows: list[int] = []
        good: list[Any] = []
        for row, one in enumerate(found):
            try:
                good.append(parse(one))
                rows.append(row)
            except BadPayloadError as err:
                self.refuse(kind, shown[row], str(err))
            except Exception as err:  # foreign bytes may raise anything; the other items must be read
                self.refuse(kind, shown[row], f"cannot be read: {type(err).__name__}")
        return np.array(rows, np.int64), good

    def note(self, kind: str, shown: object, **fields: object) -> None:
        """Keep a note for the operator, at most NOTES of each kind."""
        name = f"sensor.{kind}"
        if sum(note.name == name for note in self._notes) < NOTES:
            got = {"got": shown} if self._shows else {}
            self._notes.append(Note(name, {"sensor": self.sensor.id, **got, **fields}))

    def notes(self) -> list[Note]:
        """Removes and returns the notes since the last call."""
        notes, self._notes = self._notes, []
        return notes


def _differs(number: int | np.integer[Any], near: float) -> bool:
    return bool(np.isfinite(near)) and int(number) != int(near)
