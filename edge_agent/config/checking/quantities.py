"""Value types with a unit: durations, sizes, times. The internal values are integers with the unit in the name."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from edge_agent.algebra.zones import names
from edge_agent.config.checking.checker import Report, nearest, type_of
from edge_agent.config.checking.documents import Path
from edge_agent.config.checking.durations import format_duration, format_size, parse_duration, parse_size, whole_us
from edge_agent.config.checking.value_types import AsWritten, Number

DAY_US: Final = 86_400_000_000
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
SLOWEST, FASTEST = 1e-6, 1e9  # of a replay; 0 would stand still for ever
FAR_US: Final = 2**55  # a thousand years, the limit of durations in recordings
LAST_US: Final = 253_402_300_800_000_000  # start of the year 10000, the limit of RFC 3339


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration with its unit, within [low_us, high_us]; read as microseconds."""

    low_us: int = 0
    high_us: int = 366 * DAY_US
    most: str = ""  # the meaning of high_us, for messages

    suffix: ClassVar[str] = "_us"

    def read(self, value: Any, at: Path, report: Report) -> Any:
        if report.unit_us is not None and isinstance(value, int | float) and not isinstance(value, bool):
            us = whole_us(value * report.unit_us)  # a plain number of a recording; the bounds do not apply
            if us < 0 or not us < FAR_US or us != int(us):
                far = "longer than a thousand years" if us >= FAR_US else "not a whole number of microseconds"
                return report.wrong(at, value, "less than 0" if us < 0 else far)
            return int(us)
        if not isinstance(value, str):
            bare = isinstance(value, int | float) and not isinstance(value, bool)
            hint = f'add the unit: "{value}s" or "{value}ms"' if bare else 'like "10s"'
            return report.wrong(at, value, f"wanted a duration with its unit, got {type_of(value)}", hint)
        try:
            us = parse_duration(value)
        except ValueError as err:
            hint = _unit_hint(value)
            if hint and hint == value:  # only its many digits are wrong
                decimals = re.fullmatch(r"([0-9]{1,16}\.[0-9]{6})[0-9]+([a-zµ]+)", value)
                if decimals is None:
                    return self._longer(at, value, report)
                hint = f"{decimals[1].rstrip('0').rstrip('.')}{decimals[2]}"
                return report.wrong(at, value, "has more than 6 decimals", hint)
            return report.wrong(at, value, "not a number with a unit" if hint else str(err), hint)
        if report.unbounded:
            return us
        if us < self.low_us:
            return report.wrong(at, value, f"shorter than {format_duration(self.low_us)}", format_duration(self.low_us))
        if us > self.high_us:
            return self._longer(at, value, report)
        return us

    def _longer(self, at: Path, value: object, report: Report) -> Any:
        most = format_duration(self.high_us)
        return report.wrong(at, value, f"longer than {most}{self.most and f', {self.most}'}", most)

    def write(self, value: Any) -> object:
        """Write a duration in the longest unit that divides it."""
        return format_duration(value)


@dataclass(frozen=True, slots=True)
class ByteSize:
    """A size with its unit, within [low, high] bytes; read as bytes."""

    low: int = 1
    high: int = 10**12

    suffix: ClassVar[str] = "_bytes"

    def read(self, value: Any, at: Path, report: Report) -> Any:
        if not isinstance(value, str):
            return report.wrong(at, value, f"wanted a size with its unit, got {type_of(value)}", 'like "256MB"')
        try:
            size = parse_size(value)
        except ValueError as err:
            return report.wrong(at, value, str(err))
        if not self.low <= size <= self.high:
            return report.wrong(at, value, f"must be {format_size(self.low)} to {format_size(self.high)}")
        return size

    def write(self, value: Any) -> object:
        return format_size(value)


@dataclass(frozen=True, slots=True)
class Instant:
    """A time in RFC 3339 with its zone; read as microseconds since 1970, UTC."""

    suffix: ClassVar[str] = "_us"

    def read(self, value: Any, at: Path, report: Report) -> Any:
        if report.unit_us is not None and isinstance(value, int | float) and not isinstance(value, bool):
            us = whole_us(value * report.unit_us)  # a plain number of a recording
            if not 0 <= us < LAST_US:
                return report.wrong(at, value, "not in the years 1970 to 9999")
            return int(us) if us == int(us) else report.wrong(at, value, "not a whole number of microseconds")
        hint = 'like "2026-11-21T00:00:00Z"'
        if isinstance(value, str):
            try:
                value = datetime.datetime.fromisoformat(value)
            except ValueError:
                return report.wrong(at, value, "not a date and time", hint)
        if not isinstance(value, datetime.datetime):
            return report.wrong(at, value, f"wanted a date and time, got {type_of(value)}", hint)
        if value.tzinfo is None:
            return report.wrong(at, value, "has no time zone", f'"{value.isoformat()}Z" is UTC')
        us = (value - EPOCH) // datetime.timedelta(microseconds=1)
        return us if us >= 0 else report.wrong(at, value, "before 1970", hint)

    def write(self, value: Any) -> object:
        return (EPOCH + datetime.timedelta(microseconds=value)).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Speed(AsWritten):
    """Replay speed: a factor, or 'max' for as fast as possible; 'max' is read as 0."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        if value == "max":
            return 0.0
        read = Number(SLOWEST, FASTEST, hint='"max" is as fast as possible').read(value, at, report)
        return float(read) if isinstance(read, int | float) else read

    def write(self, value: Any) -> object:
        return value or "max"


@dataclass(frozen=True, slots=True)
class Zone(AsWritten):
    """A time zone by its name in the IANA database."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        hint = 'like "Europe/Berlin" or "UTC"'
        if not isinstance(value, str):
            return report.wrong(at, value, f"wanted the name of a time zone, got {type_of(value)}", hint)
        if value not in names():
            return report.wrong(at, value, "not a time zone", nearest(value, names()) or self._of_a_city(value) or hint)
        return value

    @staticmethod
    def _of_a_city(value: str) -> str:
        """The zone for the name of a city alone, such as `Berlin`; '' if there is none."""
        cities = {name.rpartition("/")[2]: name for name in sorted(names())}
        return cities.get(nearest(value.rpartition("/")[2].replace(" ", "_"), cities, 0.75), "")


_UNIT_WORDS: Final = {  # unit -> other words for it
    "s": ("", "sec", "secs", "second", "seconds"),
    "m": ("min", "mins", "minute", "minutes"),
    "h": ("hr", "hour", "hours"),
    "d": ("day", "days"),
    "w": ("week", "weeks"),
    "ms": ("millis", "msec"),
    "us": ("µs", "usec"),
}


def _unit_hint(text: str) -> str:
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ]*)\s*", text)
    if not found:
        return ""
    said = {found[2], found[2].lower()}
    unit = next((unit for unit, words in _UNIT_WORDS.items() if said & {unit, *words}), "")
    return f"{found[1]}{unit}" if unit else ""
