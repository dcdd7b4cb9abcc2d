"""Calendar windows: days, weeks and months of a time zone. A day may have 23 or 25 hours.

An edge is the first instant at which clocks of the zone show the beginning of a day, of a Monday (week, ISO 8601) or of
the 1st of a month. The offset moves edges on the wall clock: with offset 6h a day lasts from 06:00 to 06:00, also when
summer time begins or ends. Edges are computed per year, on demand.
"""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Final

import numpy as np

from edge_agent.algebra.partials.arrays import Ints, distinct
from edge_agent.algebra.span import FAR_US, NO_EDGE, Lattice, Run, between
from edge_agent.algebra.windows.declaration import Setting, Wrong
from edge_agent.algebra.zones import instant_us, zone

DAY_US: Final = 86_400_000_000
NOMINAL_US: Final = {"day": DAY_US, "week": 7 * DAY_US, "month": 2_629_746_000_000}  # mean; month: CYCLE_US / 4 800
SHORTEST_US: Final = {"day": DAY_US, "week": 7 * DAY_US, "month": 28 * DAY_US}  # ignoring changes of clocks
LONGEST_US: Final = {"day": DAY_US, "week": 7 * DAY_US, "month": 31 * DAY_US}
SHIFT_US: Final = 2 * DAY_US  # more than any change of clocks: no zone has ever set them back by more than a day
CYCLE: Final = 400  # years after which dates and weekdays repeat, and with unchanged rules also edges
CYCLE_US: Final = 146_097 * DAY_US
SETTLED: Final = 2100  # from this year on every zone follows its last rule


@dataclass(frozen=True, slots=True)
class Dates:
    """A set of edges: the beginnings of days, weeks or months from 1970 UTC on. Fields: as in Calendar."""

    every: str
    tz: str
    offset_us: int

    @property
    def step_us(self) -> int:
        """Mean distance between edges."""
        return NOMINAL_US[self.every]

    @property
    def first_us(self) -> int:
        edges = self._of(np.array([1969, 1970]))  # with an offset, the last date of 1969 may begin in 1970
        return int(edges[edges >= 0][0])

    @property
    def last_us(self) -> int:
        return FAR_US

    def points(self, low_us: int, high_us: int) -> Ints:
        low_us = max(low_us, 0)
        if high_us < low_us:
            return np.zeros(0, np.int64)
        first, last = _years(np.array([low_us, high_us])).tolist()
        edges = self._of(np.arange(first - 1, last + 2))
        return edges[(edges >= low_us) & (edges <= high_us)]

    def around(self, time_us: Ints) -> tuple[Ints, Ints]:
        if not len(time_us):
            return time_us, time_us
        years = distinct(np.maximum(_years(time_us), 1970))
        edges = self._of(distinct(np.concatenate([years - 1, years, years + 1])))
        before, after = between(edges[edges >= 0], time_us)
        return np.where(time_us < 0, NO_EDGE, before), after

    def _of(self, years: Ints) -> Ints:
        """The edges of these years, increasing. Equal edges, from a day that clocks skipped, are returned once."""
        return distinct(np.concatenate([_edges(self.every, self.tz, self.offset_us, year) for year in years.tolist()]))


def _years(time_us: Ints) -> Ints:
    """The year of each time, in UTC."""
    return time_us.astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970


@functools.lru_cache(maxsize=2_048)  # an entry, a year of days, takes 3 kB
def _edges(every: str, tz: str, offset_us: int, year: int) -> Ints:
    """The edges of the dates in one year."""
    if year >= SETTLED + CYCLE:
        cycles = (year - SETTLED) // CYCLE
        return _edges(every, tz, offset_us, year - cycles * CYCLE) + cycles * CYCLE_US
    rules, offset = zone(tz), datetime.timedelta(microseconds=offset_us)
    return np.array([instant_us(date + offset, rules) for date in _dates(every, year)], np.int64)


def _dates(every: str, year: int) -> Iterator[datetime.datetime]:
    """The beginnings of a year's days, weeks or months as wall-clock times."""
    if every == "month":
        yield from (datetime.datetime(year, month, 1) for month in range(1, 13))  # noqa: DTZ001 - on the wall
        return
    date, days = datetime.datetime(year, 1, 1), 1  # noqa: DTZ001 - on the wall
    if every == "week":
        date, days = date + datetime.timedelta(-date.weekday() % 7), 7
    while date.year == year:
        yield date
        date += datetime.timedelta(days)


@dataclass(frozen=True, slots=True)
class Calendar:
    """Windows from the beginning of a day, week or month of a time zone to the next, from 1970 UTC on."""

    every: str
    tz: str = "UTC"
    offset_us: int = 0
    type: ClassVar[str] = "calendar"
    KEYS: ClassVar[tuple[Setting, ...]] = (
        Setting("every", "word", "day, week (from Monday) or month", words=("day", "week", "month")),
        Setting("tz", "zone", "the time zone whose clocks count, like Europe/Berlin", "UTC"),
        Setting("offset", "duration", "moves every edge on the wall clock: 6h is a day from 06:00", 0),
    )

    def wrong(self) -> Wrong | None:
        if self.offset_us >= SHORTEST_US[self.every]:
            return Wrong("offset", "not shorter than the shortest {every}", self.offset_us % SHORTEST_US[self.every])
        return None

    @property
    def dates(self) -> Dates:
        return Dates(self.every, self.tz, self.offset_us)

    @property
    def longest_us(self) -> int:
        return LONGEST_US[self.every] + SHIFT_US

    @property
    def one_length(self) -> bool:
        """False: days differ with summer time, and months differ."""
        return False

    @property
    def unit_us(self) -> int:
        return math.gcd(1_000_000, self.offset_us)

    @property
    def edge_sets(self) -> tuple[Dates, ...]:
        return (self.dates,)

    @property
    def spacing(self) -> tuple[Lattice, ...]:
        """Evenly spaced edges with the same mean distance."""
        return (Lattice(NOMINAL_US[self.every], self.offset_us),)

    def edges(self, low_us: int, high_us: int) -> Ints:
        return self.dates.points(low_us, high_us)

    def ends(self, start: Ints) -> Ints:
        return self.dates.around(start)[1]

    def assign(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        opens, closes = self.dates.around(start)
        rows = np.flatnonzero((opens != NO_EDGE) & (end <= closes))
        return rows, opens[rows]

    def runs(self, after_us: int, upto_us: int) -> Iterator[Run]:
        edges = self.dates.points(after_us - self.longest_us, upto_us)
        edges = edges[max(int(np.searchsorted(edges, after_us, side="right")) - 1, 0) :]
        lengths = np.diff(edges)
        cuts = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]
        for first, last in pairwise(cuts):
            if first < last:
                length, start = int(lengths[first]), int(edges[first])
                yield Run(length, length, start % length, max(after_us, start), int(edges[last]))
