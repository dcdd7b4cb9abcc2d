"""The registry of sensor drivers: one driver per file in ports/sensors/, one line in FILES here.

A driver's file contains its record, DRIVER, with every fact that other packages need, and the class that reads. The
registry imports the file when a definition names the driver, not before. Other packages add records under entry points
of the group `headwater.drivers` (docs/extend.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.algebra.built_in import record, source
from edge_agent.algebra.plugin_calls import Loaded, usable
from edge_agent.algebra.query.query import Sensor
from edge_agent.config.checking.checker import Key, Report
from edge_agent.config.checking.documents import Path

FILES: Final = (  # each is a file of ports/sensors with a DRIVER of that name
    "mqtt",
    "host",
    "file",
    "simulated",
)
ROOM: Final = "edge_agent.ports.sensors"
LATER_DRIVERS: Final = ("w1", "iio", "modbus", "gpio", "i2c", "serial", "ble", "can", "opcua")  # named, not built yet
TEMPLATES: Final = frozenset({"topic", "payload"})  # what labels may take text from
REFUSED: Final[dict[str, str]] = {}  # entry point -> why its driver is left out

Check = Callable[[Mapping[str, Any], Path, Report], None]
Rate = Callable[[Sensor, Collection[str]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """All facts of one sensor driver. No field has a default, so that none can be forgotten.

    keys: the fields of its definitions; what start reads is `sensor.option(key.inside)`, defaults filled in.
    start: (sensor, position, clock) -> ports.SensorDriver. It imports what `extra` installs, this file does not.
    check: reports mistakes that involve several keys; gets the values of all keys.
    labels: the labels that it adds to readings by itself.
    templates: of TEMPLATES, the sources from which `{topic[1]}` and `{/pointer}` in labels may take text.
    rate: readings per second of one key, from the sensor and the labels of the key; None if the definition does not
    say.
    rereadable: whether a sensor continues at its last committed position, so that a stop of the node loses nothing.
    own_clock: whether the source is read from its beginning by a clock of its own (protocol 3.1, 4.1): its first window
    is complete, and `simulate` runs it faster than real time.
    ends: whether the source has an end, for which `run --once` waits.
    local: whether it reads the broker of [local]. Then start is (clock) -> one MqttSensors for all its sensors.
    extra: the extra `headwater[extra]` that installs its libraries; '' if it needs none.
    """

    name: str
    keys: tuple[Key, ...]
    start: Callable[..., Any]
    check: Check | None
    labels: tuple[str, ...]
    templates: frozenset[str]
    rate: Rate | None
    rereadable: Callable[[Sensor], bool]
    own_clock: bool
    ends: bool
    local: bool
    extra: str


class DriverRegistry(Mapping[str, Driver]):
    """Drivers by name. Iterating gives the names and imports nothing."""

    def __init__(self) -> None:
        self._loaded: dict[str, Driver] = {}
        self._brought: dict[str, Driver] = {}

    def __getitem__(self, name: str) -> Driver:
        found = self._brought.get(name) or self._loaded.get(name)
        if found is None:
            if name not in FILES:
                raise KeyError(name)
            found = record(ROOM, name, "DRIVER", Driver, f"FILES of {source(*__name__.rsplit('.', 1))}")
            if found.name != name:
                raise TypeError(f"{source(ROOM, name)}: DRIVER is named {found.name!r}, its file {name!r}")
            self._loaded[name] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter((*FILES, *self._brought))

    def __len__(self) -> int:
        return len(FILES) + len(self._brought)

    @property
    def brought(self) -> tuple[str, ...]:
        """The names of drivers from installed packages."""
        return tuple(self._brought)

    def add(self, loaded: Iterable[Loaded[Driver]], refused: Mapping[str, str]) -> None:
        """Add drivers of packages. REFUSED gets the reasons of those that cannot be used. refused: those that failed to
        load.
        """
        REFUSED.update(refused)
        for each in usable(loaded, REFUSED, lambda driver: _refusal(driver, self)):
            self._brought[each.found.name] = each.found


def _refusal(found: Driver, registry: Collection[str]) -> str:
    """Why a record cannot be used, '' if it can."""
    if not re.fullmatch("[a-z][a-z0-9_]{0,63}", found.name):
        return f"{found.name!r} is not a name: lower-case letters, digits and _"
    if found.name in registry or found.name in LATER_DRIVERS:
        return f"driver {found.name!r} exists already; choose another name"
    if found.local:
        return "a driver of a package cannot read the broker of [local]"
    if not found.templates <= TEMPLATES:
        return f"templates are of {', '.join(sorted(TEMPLATES))}"
    return ""


DRIVERS: Final = DriverRegistry()
