"""Simulates a sensor: each reading is a function of (seed, index) alone, so any reading can be computed again.

Reading i belongs to series i mod S, where S is the number of series. Its event time is begin + floor(i / S) / rate. It
arrives up to `disorder` later, unless it is one of the `gaps` or falls into an outage. The sensor has its own clock:
begin + elapsed time x speed (docs/protocol.md 4.1). This clock runs while the process is down; a restart catches up.
Source of the random numbers: SplitMix64 (Steele, Lea & Flood, 2014), as a hash of a counter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials.arrays import Floats, Ints, Mask
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Sensor
from edge_agent.config.checking.checker import Key, Report
from edge_agent.config.checking.documents import Path
from edge_agent.config.checking.quantities import DAY_US, Duration, Instant, Speed
from edge_agent.config.checking.value_types import Choice, Number
from edge_agent.config.definitions.drivers import Driver
from edge_agent.errors import PortError
from edge_agent.machines.events import Read
from edge_agent.ports import Clock
from edge_agent.ports.sensors.quality import CheckedSensor

Bits = NDArray[np.uint64]

MOST: Final = 65_536  # readings in one batch
BATCHES: Final = 8  # most batches in one poll, so that a sensor that catches up leaves time for others
# from a `begin` up to an hour ago, event time follows the wall clock; from an older one, readings are replayed from now
# on
SHARED_BEGIN_US: Final = 3_600_000_000
WAVES: Final = ("sine", "square", "saw", "walk", "noise", "steps", "constant")
OCTAVES: Final = 6  # of the walk: its finest structure is a 32nd of the period
INCREMENT: Final = np.uint64(0x9E3779B97F4A7C15)
MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def _hash(seed: int, stream: int, counter: NDArray[np.generic]) -> Bits:
    """64 random bits for each counter. Different streams give independent bits."""
    with np.errstate(over="ignore"):
        start = np.uint64((seed * 0x632BE59BD9B4E019 + stream * 0xD1B54A32D192ED03) & (2**64 - 1))
        bits: Bits = (counter.astype(np.int64).view(np.uint64) + start) * INCREMENT + INCREMENT
        bits = (bits ^ (bits >> np.uint64(30))) * MIX[0]
        bits = (bits ^ (bits >> np.uint64(27))) * MIX[1]
        return bits ^ (bits >> np.uint64(31))


def _uniform(seed: int, stream: int, counter: NDArray[np.generic]) -> Floats:
    """A random number in [0, 1) for each counter."""
    return (_hash(seed, stream, counter) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _normal(seed: int, stream: int, counter: NDArray[np.generic]) -> Floats:
    """A normal random number, mean 0 and standard deviation 1, for each counter. Source: Box & Muller (1958)."""
    radius = np.sqrt(-2.0 * np.log1p(-_uniform(seed, stream, counter)))
    angle = 2.0 * np.pi * _uniform(seed, stream + 1, counter)
    turned: Floats = radius * np.cos(angle)
    return turned


GAP, DELAY, PHASE, NOISE, LEVEL, ROUGH = 1, 2, 3, 4, 8, 16  # streams; NOISE uses two, ROUGH one per octave


@dataclass(frozen=True, slots=True)
class SimulatedReadings:
    """Simulated readings as columns of shape (k,), without gaps and outages. value: in the unit of the sensor."""

    index: Ints
    time_us: Ints
    arrival_us: Ints
    value: Floats
    series: Ints

    def take(self, rows: Mask | Ints) -> SimulatedReadings:
        """The selected rows. rows: indices or a mask."""
        return SimulatedReadings(
            self.index[rows], self.time_us[rows], self.arrival_us[rows], self.value[rows], self.series[rows]
        )


class Simulation:
    """Computes any reading that a simulated sensor delivers, also as the reference for comparing results."""

    def __init__(self, sensor: Sensor, begin_us: int) -> None:
        number = sensor.number
        self.begin_us = begin_us
        self.wave = str(sensor.option("wave", "sine"))
        self.seed = int(number("seed", 0))
        self.n_series = int(number("series", 1))
        self.rate = number("rate", 1.0)
        self.mean, self.amplitude = number("mean", 0.0), number("amplitude", 1.0)
        self.period_us = number("period_us", 60_000_000)
        self.noise, self.gaps = number("noise", 0.0), number("gaps", 0.0)
        self.disorder_us = int(number("disorder_us", 0))
        self.outage_every_us = int(number("outage_every_us", 0))
        self.outage_for_us = int(number("outage_for_us", 0))
        self._step_us = 1e6 / self.rate

    def times(self, ticks: Ints) -> Ints:
        """Event times of ticks. Every series has one reading per tick."""
        times: Ints = self.begin_us + np.floor(ticks * self._step_us).astype(np.int64)
        return times

    def tick_at(self, time_us: int) -> int:
        """The first tick at or after an event time; at least 0."""
        tick = max(0, int((time_us - self.begin_us) / self._step_us) - 1)
        while self.begin_us + int(np.floor(tick * self._step_us)) < time_us:
            tick += 1
        return tick

    def readings(self, start: int, n: int) -> SimulatedReadings:
        """The readings with index start to start + n - 1, without gaps and outages, in order of index."""
        index = np.arange(start, start + n, dtype=np.int64)
        ticks, series = np.divmod(index, self.n_series)
        made = SimulatedReadings(index, self.times(ticks), index, index.astype(np.float64), series)
        there = np.ones(n, np.bool_)
        if self.gaps:
            there &= _uniform(self.seed, GAP, index) >= self.gaps
        if self.outage_every_us and self.outage_for_us:
            there &= made.time_us % self.outage_every_us >= self.outage_for_us
        if not there.all():
            made = made.take(there)
        late_us = np.zeros(len(made.index), np.int64)
        if self.disorder_us:
            late_us = (_uniform(self.seed, DELAY, made.index) * (self.disorder_us + 1)).astype(np.int64)
        value = self.mean + self.amplitude * self._shape(made.time_us, made.series, made.index)
        if self.noise:
            value = value + self.noise * _normal(self.seed, NOISE, made.index)
        return SimulatedReadings(made.index, made.time_us, made.time_us + late_us, value, made.series)

    def between(self, start_us: int, end_us: int) -> SimulatedReadings:
        """The readings with start_us <= event time < end_us, without gaps and outages, in order of index."""
        first, last = self.tick_at(start_us), self.tick_at(end_us)
        return self.readings(first * self.n_series, max(0, last - first) * self.n_series)

    def arriving(self, after_us: int, until_us: int) -> SimulatedReadings:
        """The readings that arrive in (after_us, until_us], in order of arrival."""
        made = self.between(after_us - self.disorder_us, until_us + 1)
        made = made.take((made.arrival_us > after_us) & (made.arrival_us <= until_us))
        return made.take(np.argsort(made.arrival_us, kind="stable")) if self.disorder_us else made

    def _shape(self, time_us: Ints, series: Ints, index: Ints) -> Floats:
        """The wave, in [-1, 1]. Each series has a random phase; the phase of the first is 0."""
        if self.wave == "constant":
            return np.zeros(len(time_us))
        if self.wave == "noise":
            return 2.0 * _uniform(self.seed, LEVEL, index) - 1.0
        phase = np.where(series > 0, _uniform(self.seed, PHASE, series), 0.0) if self.n_series > 1 else 0.0
        turns: Floats = time_us / self.period_us + phase
        if self.wave == "steps":
            return 2.0 * _uniform(self.seed, LEVEL, np.floor(turns) * self.n_series + series) - 1.0
        if self.wave == "walk":
            return self._walk(turns, series)
        part = turns - np.floor(turns)
        if self.wave == "square":
            return np.where(part < 0.5, 1.0, -1.0)
        if self.wave == "saw":
            return 2.0 * part - 1.0
        return np.sin(2.0 * np.pi * part)

    def _walk(self, turns: Floats, series: Ints) -> Floats:
        """Resembles a random walk, but computes each point directly: a sum of noises of halving period and height."""
        total = np.zeros(len(turns))
        for octave in range(OCTAVES):
            x = turns * 2.0**octave
            left = np.floor(x)
            counter = (left * self.n_series + series).astype(np.int64)
            a = _uniform(self.seed, ROUGH + octave, counter)
            b = _uniform(self.seed, ROUGH + octave, counter + self.n_series)
            total += (2.0 * (a + (b - a) * (x - left)) - 1.0) * 2.0 ** -(octave + 1)
        return total


class SimulatedSensor(CheckedSensor):
    """The driver. It delivers the readings that have arrived by its own clock, and can continue from any position."""

    def __init__(self, sensor: Sensor, position: object, clock: Clock) -> None:
        super().__init__(sensor, oldest_us=None)
        if not (clock.synced or position):
            raise PortError("the clock of this node is not synchronised yet; readings begin when it is")
        now_us = clock.now_us()
        self.speed = sensor.number("speed", 1.0)
        begin = sensor.option("begin_us")
        begin_us = begin if isinstance(begin, int) else now_us
        near = begin_us > now_us - SHARED_BEGIN_US
        match position:
            case [int(was), int(anchor_us), int(until_us)] if was == begin_us or begin is None:
                begin_us, self._anchor_us, self._clock_us = was, anchor_us, until_us
            case _:  # first start, or a changed `begin`
                self._anchor_us, self._clock_us = (begin_us if near else now_us), begin_us - 1
        self.simulation = Simulation(sensor, begin_us)
        for number in range(self.simulation.n_series):
            self.quality.series(tuple(sorted({**dict(sensor.labels), "series": str(number)}.items())))

    @property
    def position(self) -> object:
        """[begin, wall time of the begin, own clock]. Readings that arrived by this clock have been delivered."""
        return [self.simulation.begin_us, self._anchor_us, self._clock_us]

    def _target_us(self, now_us: int) -> int:
        return self.simulation.begin_us + int((now_us - self._anchor_us) * self.speed)

    def _stride_us(self) -> int:
        """Length of event time that contains about one full batch."""
        return max(1, int(MOST / self.simulation.n_series * 1e6 / self.simulation.rate))

    def poll(self, now_us: int) -> list[Read]:
        """Returns the readings that have arrived since the last call; at full speed always one batch."""
        reads: list[Read] = []
        target_us = self._target_us(now_us) if self.speed else self._clock_us + self._stride_us()
        while self._clock_us < target_us and len(reads) < BATCHES:
            until_us = min(target_us, self._clock_us + self._stride_us())
            made = self.simulation.arriving(self._clock_us, until_us)
            self._clock_us = until_us
            reads.append(Read(self.sensor.id, self._batch(made), self.position, None, until_us))
        return reads

    def _batch(self, made: SimulatedReadings) -> Batch:
        scale = self.sensor.scale
        value = made.value if scale is None else np.rint(made.value / 10.0**scale) * 10.0**scale
        series: Ints | int = 0 if self.simulation.n_series == 1 else made.series
        return self.quality.batch(made.time_us, value, series, None)

    def due_us(self, now_us: int) -> int:
        """When the next reading is due; not after now_us if readings are waiting, or at full speed."""
        if not self.speed:
            return now_us
        tick = self.simulation.tick_at(self._clock_us + 1)
        next_us = int(self.simulation.times(np.array([tick]))[0])
        return self._anchor_us + int((next_us - self.simulation.begin_us) / self.speed) + 1


def _check(values: Mapping[str, Any], at: Path, report: Report) -> None:
    if values["outage_for"] and values["outage_for"] >= values["outage_every"]:
        report.wrong((*at, "outage_for"), None, "must be shorter than outage_every", "set outage_every too")


def _rate(sensor: Sensor, by: Collection[str]) -> float:
    """Readings a second of one key. A key is one series if `by` has the label series, else all series."""
    return sensor.number("rate", 1.0) * (1.0 if "series" in by else sensor.number("series", 1.0))


DRIVER: Final = Driver(
    name="simulated",
    about="computed readings, the same for the same seed",
    keys=(
        Key("wave", Choice(WAVES, what="wave"), "sine", "shape of the value over event time"),
        Key("seed", Number(0, 2**53, whole=True), 0, "the same seed gives the same readings"),
        Key("rate", Number(0, 1e7, above=True), 1.0, "readings a second, of each series"),
        Key("series", Number(1, 65536, whole=True), 1, "number of series; each has its number as the label series"),
        Key("mean", Number(-1e12, 1e12), 0.0, "middle of the wave"),
        Key("amplitude", Number(0, 1e12), 1.0, "height of the wave above its middle"),
        Key("period", Duration(1000, 366 * DAY_US), 60_000_000, "period of the wave, or duration of one step"),
        Key("noise", Number(0, 1e12), 0.0, "standard deviation of the noise added to each value"),
        Key("gaps", Number(0, 1), 0.0, "share of readings that are missing"),
        Key("disorder", Duration(0, DAY_US), 0, "longest random delay of a reading"),
        Key("outage_every", Duration(0, 366 * DAY_US), 0, "an outage begins at each multiple of this; 0s: never"),
        Key("outage_for", Duration(0, 366 * DAY_US), 0, "duration of an outage"),
        Key("begin", Instant(), None, "event time of the first reading; left out: when the sensor starts"),
        Key("speed", Speed(), 1.0, "speed of event time relative to the clock"),
    ),
    start=SimulatedSensor,
    check=_check,
    labels=("series",),
    templates=frozenset(),
    rate=_rate,
    rereadable=lambda sensor: True,
    own_clock=True,
    ends=False,
    local=False,
    extra="",
)
