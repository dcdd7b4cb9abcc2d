"""Reads and writes the definition of a sensor: keys that all drivers share, and the keys of its driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from edge_agent.algebra.plugin_calls import error_text
from edge_agent.algebra.query.query import COARSEST, FINEST, Sensor
from edge_agent.config.checking.checker import BAD, REQUIRED, Key, Report, complete, read_table, type_of
from edge_agent.config.checking.composite_types import MapOf, write_table
from edge_agent.config.checking.documents import Path
from edge_agent.config.checking.quantities import DAY_US, Duration
from edge_agent.config.checking.value_types import BROUGHT, Anything, AsWritten, Choice, Text, left_out
from edge_agent.config.definitions.drivers import DRIVERS, FILES, LATER_DRIVERS, REFUSED, Driver
from edge_agent.config.definitions.label_templates import LabelText, parse

LABEL: Final = Text(
    "a label name",
    "(?!(?:value|and|or|not|in)$)[A-Za-z_][A-Za-z0-9_]{0,63}",
    "letters, digits and _; not a word of `where`",
)
REPAIR: Final = "correct or remove the package of the driver"
EXACT: Final = 2**53  # greater scaled integers are refused at the sensor (docs/protocol.md 7.1)


@dataclass(frozen=True, slots=True)
class Resolution(AsWritten):
    """The smallest step of a sensor. Read as the exponent of the greatest power of ten that divides it."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        """Read 0.1 as -1, 0.25 as -2, 5 as 0, 100 as 2."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return report.wrong(at, value, f"wanted a number, got {type_of(value)}", "like 0.1")
        if value <= 0:
            return report.wrong(at, value, "must be more than 0", "leave it out for floating point")
        exponent = Decimal(repr(value)).normalize().as_tuple().exponent
        if not isinstance(exponent, int) or not FINEST <= exponent <= COARSEST:
            return report.wrong(at, value, "not a step between 1e-9 and 1e9", "like 0.1")
        return exponent

    def write(self, value: Any) -> object:
        return int(10**value) if value >= 0 else float(Decimal(1).scaleb(value))


@dataclass(frozen=True, slots=True)
class Range(AsWritten):
    """[lowest, highest] possible value of a sensor, as two floats."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        numbers = isinstance(value, list | tuple) and all(
            isinstance(v, int | float) and not isinstance(v, bool) for v in value
        )
        if not numbers or len(value) != 2:
            return report.wrong(at, value, "wanted two numbers", "[lowest, highest]")
        low, high = float(value[0]), float(value[1])
        if not low < high:
            return report.wrong(at, value, "the lowest comes first", f"[{value[1]}, {value[0]}]" if high < low else "")
        return (low, high)

    def write(self, value: Any) -> object:
        return list(value)


_DRIVER: Final = Key("driver", Anything(), REQUIRED, "where the readings come from")
COMMON: Final = (
    Key("labels", MapOf(LABEL, LabelText()), (), "name = text; {topic[1]} and {/pointer} insert parts of a reading"),
    Key("unit", Text("a unit", longest=32, empty=True), "", "for people: °C, bar, kWh"),
    Key("resolution", Resolution(), None, "smallest step; makes values scaled integers and sums exact"),
    Key("range", Range(), None, "[lowest, highest] possible value; others are counted and dropped"),
    Key(
        "timeout",
        Duration(10_000, 30 * DAY_US),
        10_000_000,
        "without a reading for this long the sensor is idle",
        "ten missed reports of a 1 s sensor",
    ),
    Key(
        "nan",
        Choice(("skip", "quarantine"), what="policy"),
        "skip",
        "NaN values are counted; quarantine: a few are also shown in the log",
        "they are common",
    ),
    Key("delay", Duration(0, DAY_US), 0, "longest time from a reading to its arrival, for an idle sensor"),
)


def read_sensor(item: str, revision: int, table: Mapping[str, object], at: Path, report: Report) -> Any:
    """Read a sensor from a table without the keys that all definitions share. Returns BAD if there are problems."""
    name: Any = _driver_names().read(table["driver"], (*at, "driver"), report) if "driver" in table else BAD
    if name is BAD:  # the driver is not known: check the shared keys, and that other keys belong to some driver
        others = [replace(key, kind=Anything(), default=None) for driver in DRIVERS.values() for key in driver.keys]
        known = {key.name: key for key in [*others, *COMMON, _DRIVER]}
        read_table(tuple(known.values()), table, at, report)
        return BAD
    driver = DRIVERS[name]
    keys = (_DRIVER, *COMMON, *driver.keys)
    names = {key.name for key in keys}
    strange = [key for key in table if key not in names]  # keys of other drivers, or unknown keys
    foreign = {key.name: other.name for other in DRIVERS.values() for key in other.keys} if strange else {}
    for key in strange:
        if key in foreign:
            report.unknown(at, key, names, f"it belongs to driver {foreign[key]}")
    values = read_table(keys, {key: v for key, v in table.items() if key not in foreign or key in names}, at, report)
    if not complete(values):
        return BAD
    _check(driver, values, at, report)
    sensor = Sensor(
        item,
        revision,
        name,
        tuple((key.inside, values[key.name]) for key in driver.keys if values[key.name] is not None),
        labels=values["labels"],
        unit=values["unit"],
        scale=values["resolution"],
        range=values["range"],
        timeout_us=values["timeout"],
        delay_us=values["delay"],
        nan=values["nan"],
    )
    try:
        return replace(sensor, rereadable=bool(driver.rereadable(sensor)), own_clock=driver.own_clock)
    except Exception as err:  # of a package
        report.wrong((*at, "driver"), name, f"rereadable of the driver failed: {error_text(err)}", REPAIR)
        return BAD


def _driver_names() -> Choice:
    return Choice(FILES, LATER_DRIVERS, "driver", left_out(REFUSED), others=BROUGHT, of_packages=DRIVERS.of_packages)


def _check(driver: Driver, values: Mapping[str, Any], at: Path, report: Report) -> None:
    """Checks that involve several keys."""
    scale, limits = values["resolution"], values["range"]
    if scale is not None and limits is not None and max(map(abs, limits)) > EXACT * 10.0**scale:
        report.wrong((*at, "range"), list(limits), "more than 2^53 steps of the resolution", "use a coarser resolution")
    for name, text in values["labels"]:
        for part in parse(text).parts:
            missing = {int: "topic", tuple: "payload"}.get(type(part), "")
            if missing and missing not in driver.templates:
                why = f"readings of driver {driver.name} have no {missing}"
                report.wrong((*at, "labels", name), text, why, "write the text of the label")
    if driver.check is not None:
        try:
            driver.check(values, at, report)
        except Exception as err:  # of a package
            report.wrong((*at, "driver"), driver.name, f"check of the driver failed: {error_text(err)}", REPAIR)


def write_sensor(sensor: Sensor) -> dict[str, object]:
    """The table of a sensor, without values that equal their default; reading it returns the same sensor."""
    values = {
        "driver": sensor.driver,
        "labels": sensor.labels,
        "unit": sensor.unit,
        "resolution": sensor.scale,
        "range": sensor.range,
        "timeout_us": sensor.timeout_us,
        "nan": sensor.nan,
        "delay_us": sensor.delay_us,
        **dict(sensor.options),
    }
    return write_table((_DRIVER, *DRIVERS[sensor.driver].keys, *COMMON), values)
