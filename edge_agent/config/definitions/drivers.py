"""The registry of sensor drivers. Each driver is a file in ports/sensors/ and a line in FILES here.

The file of a driver contains its record, DRIVER, with all facts that other code needs, and the class that reads. The
registry imports the file only when the driver is used. Installed packages add records by entry points of the group
`headwater.drivers` (docs/extend.md).
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

FILES: Final = (  # files of ports/sensors; the DRIVER in each has the name of the file
    "mqtt",
    "host",
    "file",
    "simulated",
)
ROOM: Final = "edge_agent.ports.sensors"
LATER_DRIVERS: Final = ("w1", "iio", "modbus", "gpio", "i2c", "serial", "ble", "can", "opcua")  # not supported yet
TEMPLATES: Final = frozenset({"topic", "payload"})  # parts of a message that labels may insert
REFUSED: Final[dict[str, str]] = {}  # entry point -> why its driver cannot be used

Check = Callable[[Mapping[str, Any], Path, Report], None]
Rate = Callable[[Sensor, Collection[str]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """All facts about one sensor driver. No field has a default, so that none can be forgotten.

    about: what it reads, one line for docs/configure.md.
    keys: the driver's own keys in definitions; `sensor.option(key.inside)` returns their values.
    start: (sensor, position, clock) -> ports.SensorDriver. Only start may import the libraries of `extra`.
    check: gets the values of all keys and reports mistakes that involve several keys; None: there are none.
    labels: labels that the driver adds to its readings.
    templates: members of TEMPLATES that its readings have, for `{topic[1]}` and `{/pointer}` in labels.
    rate: (sensor, labels of the key) -> readings per second of one key; None if the definition does not determine it.
    rereadable: whether a sensor continues at its last committed position, so that a stop of the node loses nothing.
    own_clock: whether the source has its own clock and is read from its beginning (protocol 3.1, 4.1). Then its first
    window is complete, and `simulate` runs it faster than real time.
    ends: whether the source has an end; `run --once` waits for it.
    local: whether it reads the broker of [local]. Then start is (clock) -> one MqttSensors for all its sensors.
    extra: the extra of `headwater[...]` that installs its libraries; '' if it needs none.
    """

    name: str
    about: str
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
    """Drivers by name. Iterating over the names does not import the drivers."""

    def __init__(self) -> None:
        self._loaded: dict[str, Driver] = {}
        self._of_packages: dict[str, Driver] = {}

    def __getitem__(self, name: str) -> Driver:
        found = self._of_packages.get(name) or self._loaded.get(name)
        if found is None:
            if name not in FILES:
                raise KeyError(name)
            found = record(ROOM, name, "DRIVER", Driver, f"FILES of {source(*__name__.rsplit('.', 1))}")
            if found.name != name:
                raise TypeError(f"{source(ROOM, name)}: DRIVER is named {found.name!r}, its file {name!r}")
            self._loaded[name] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter((*FILES, *self._of_packages))

    def __len__(self) -> int:
        return len(FILES) + len(self._of_packages)

    @property
    def of_packages(self) -> tuple[str, ...]:
        """The names of the drivers from installed packages."""
        return tuple(self._of_packages)

    def add(self, loaded: Iterable[Loaded[Driver]], refused: Mapping[str, str]) -> None:
        """Add drivers of installed packages; reasons why others cannot be used go to REFUSED.

        refused: entry point -> why it failed to load.
        """
        REFUSED.update(refused)
        for each in usable(loaded, REFUSED, lambda driver: _refusal(driver, self)):
            self._of_packages[each.found.name] = each.found


def _refusal(found: Driver, registry: Collection[str]) -> str:
    """Why a record of a package cannot be used; '' if it can."""
    if not re.fullmatch("[a-z][a-z0-9_]{0,63}", found.name):
        return f"{found.name!r} is not a name: lower-case letters, digits and _"
    if found.name in registry or found.name in LATER_DRIVERS:
        return f"driver {found.name!r} exists already; choose another name"
    if found.local:
        return "a driver of a package cannot read the broker of [local]"
    if not found.templates <= TEMPLATES:
        return f"templates may only contain {', '.join(sorted(TEMPLATES))}"
    return ""


DRIVERS: Final = DriverRegistry()
