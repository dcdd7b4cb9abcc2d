"""The fields each sensor driver has of its own. What a driver does with them is told in ports/sensors/.

A value inside goes by the key's name with its unit: `every` is the option `every_us`. Defaults are filled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from edge_agent.config.checking.checker import REQUIRED, Key, Report, type_of
from edge_agent.config.checking.composite_types import ListOf
from edge_agent.config.checking.documents import Path
from edge_agent.config.checking.quantities import Duration, Instant
from edge_agent.config.checking.value_types import Choice, Number, Text
from edge_agent.config.definitions.label_templates import POINTER

DAY_US: Final = 86_400_000_000
MOST_LEVELS: Final = 32  # of a topic: the broker's own limit is 200
LATER_DRIVERS: Final = ("w1", "iio", "modbus", "gpio", "i2c", "serial", "ble", "can", "opcua")  # named, not built yet


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """An MQTT topic filter; `+` stands for a level, `#` at the end for the rest."""

    suffix: ClassVar[str] = ""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        """Read the filter as it is."""
        if not isinstance(value, str):
            return report.wrong(at, value, f"wanted a topic, got {type_of(value)}")
        levels = value.split("/")
        if not value or len(value.encode()) > 1000 or len(levels) > MOST_LEVELS or "\0" in value:
            return report.wrong(at, value, f"wanted a topic of 1 to 1000 bytes and at most {MOST_LEVELS} levels")
        if "#" in value and (levels[-1] != "#" or value.count("#") > 1):
            return report.wrong(
                at, value, "# stands alone at the end of a topic", value.split("#")[0].rstrip("/") + "/#"
            )
        if any("+" in level and level != "+" for level in levels):
            return report.wrong(
                at, value, "+ stands for a whole level", "/".join("+" if "+" in x else x for x in levels)
            )
        if levels[0] == "$share":
            return report.wrong(at, value, "a shared subscription would lose readings", "/".join(levels[2:]))
        return value

    def write(self, value: Any) -> object:
        """Write it as it is."""
        return value

    def schema(self) -> dict[str, object]:
        """A string."""
        return {"type": "string", "minLength": 1, "maxLength": 1000}


@dataclass(frozen=True, slots=True)
class Speed:
    """Replay speed: a factor, or 'max' for as fast as possible, which is 0 inside."""

    suffix: ClassVar[str] = ""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        """Read a factor of 0 (max) or more."""
        if value == "max":
            return 0.0
        read = Number(0, 1e9).read(value, at, report)
        return float(read) if isinstance(read, int | float) else read

    def write(self, value: Any) -> object:
        """Write a number or 'max'."""
        return value or "max"

    def schema(self) -> dict[str, object]:
        """A number or 'max'."""
        return {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1e9}, {"const": "max"}]}


METRICS: Final = ("cpu", "memory", "load", "thermal")
WAVES: Final = ("sine", "square", "saw", "walk", "noise", "steps", "constant")
_POINTER: Final = Text(
    "a JSON pointer", POINTER, 'like "/temperature"; leave it out for a bare number', 200, empty=True
)
_COLUMN: Final = Text("a column or JSON pointer", longest=200)

DRIVERS: Final[dict[str, tuple[Key, ...]]] = {
    "mqtt": (
        Key("topic", TopicFilter(), REQUIRED, "topic filter on the local broker, like plant/+/temp"),
        Key("value", _POINTER, "", "JSON pointer to the value; left out: the payload is a bare number or a CBOR batch"),
        Key("time", _POINTER, "", "JSON pointer to the event time (RFC 3339, or a number); left out: time of arrival"),
        Key("qos", Number(0, 1, whole=True), 1, "of the subscription", "readings wait at the broker while we restart"),
        Key("format", Choice(("auto", "number", "json", "cbor"), what="format"), "auto", "of the payload"),
    ),
    "host": (
        Key("metrics", ListOf(Choice(METRICS, what="metric"), 1), METRICS, "each is a series with the label metric"),
        Key("every", Duration(10_000, DAY_US), 1_000_000, "sampling interval"),
    ),
    "file": (
        Key("path", Text("a path", longest=1000), REQUIRED, "CSV with a header, or JSON lines"),
        Key("format", Choice(("auto", "csv", "jsonl"), what="format"), "auto", "auto goes by the name's ending"),
        Key("time", _COLUMN, "time", "column or JSON pointer of the event time"),
        Key("value", _COLUMN, "value", "column or JSON pointer of the value"),
        Key("speed", Speed(), 1.0, "1 is as recorded, 60 a minute a second, 'max' as fast as possible"),
    ),
    "simulated": (
        Key("wave", Choice(WAVES, what="wave"), "sine", "shape of the value over event time"),
        Key("seed", Number(0, 2**53, whole=True), 0, "the same seed gives the same readings"),
        Key("rate", Number(0, 1e7, above=True), 1.0, "readings a second, of each series"),
        Key("series", Number(1, 65536, whole=True), 1, "how many; each carries the label series"),
        Key("mean", Number(-1e12, 1e12), 0.0, "middle of the wave"),
        Key("amplitude", Number(0, 1e12), 1.0, "from the middle to the top"),
        Key("period", Duration(1000, 366 * DAY_US), 60_000_000, "of the wave; how long a step stands"),
        Key("noise", Number(0, 1e12), 0.0, "standard deviation of what is added to each value"),
        Key("gaps", Number(0, 1), 0.0, "share of readings that never come"),
        Key("disorder", Duration(0, DAY_US), 0, "a reading comes up to that much later than its neighbours"),
        Key("outage_every", Duration(0, 366 * DAY_US), 0, "silence begins at its multiples; 0s is never"),
        Key("outage_for", Duration(0, 366 * DAY_US), 0, "how long the silence lasts"),
        Key("begin", Instant(), None, "event time of the first reading; left out: when the sensor starts"),
        Key("speed", Speed(), 1.0, "event time against the clock"),
    ),
}
IMPLIED_LABELS: Final = {"host": ("metric", "zone"), "simulated": ("series",)}  # labels a driver adds by itself
