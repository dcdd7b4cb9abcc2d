"""Which files a sensor may read: files that the node's own settings name or allow, never those with a secret of the
node.

A definition that arrives over MQTT comes from somebody who may configure sensors; only the owner of this machine
decides about its files. Links are followed before a path is judged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edge_agent.algebra.query.query import Sensor
from edge_agent.config.checking.value_types import FilePath
from edge_agent.config.definitions.drivers import DRIVERS
from edge_agent.errors import PortError


def paths_of(sensors: Iterable[Sensor]) -> frozenset[str]:
    """The files that sensors name."""
    return frozenset(path for sensor in sensors for path in _paths(sensor))


def _paths(sensor: Sensor) -> list[str]:
    """The values of the keys that are paths, whatever the driver."""
    names = [key.inside for key in DRIVERS[sensor.driver].keys if isinstance(key.kind, FilePath)]
    return [str(value) for name in names if (value := sensor.option(name)) is not None]


@dataclass(frozen=True, slots=True)
class FileAccess:
    """folders: allowed by `[files] folders`. named: files of sensors in the node's own file. secrets: never read."""

    folders: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()
    secrets: tuple[str, ...] = ()

    def check(self, sensor: Sensor) -> None:
        """Raises: PortError, which names the path and what to do, if a file of the sensor may not be read."""
        for path in _paths(sensor):
            real = Path(path).resolve()
            if any(_same(real, Path(secret)) for secret in self.secrets):
                raise PortError(f"{path} is not read: it belongs to this node itself")
            if path not in self.named and not any(real.is_relative_to(Path(each).resolve()) for each in self.folders):
                raise PortError(
                    f"{path} is not read: the file of this node does not allow it; "
                    'add its folder, [files] folders = ["..."], or define the sensor there'
                )


def _same(path: Path, secret: Path) -> bool:
    """Whether two names are of one file."""
    try:
        return path == secret.resolve() or path.samefile(secret)
    except OSError:
        return False
