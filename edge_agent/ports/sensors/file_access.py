"""Decides which files a sensor may read: those that the node's own file names or allows, except its secrets and data.

Sensors can also be defined over MQTT, but only the owner of the machine decides about its files. Links are followed
before a path is checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edge_agent.algebra.query.query import Sensor
from edge_agent.config.checking.value_types import FilePath
from edge_agent.config.definitions.drivers import DRIVERS
from edge_agent.errors import PortError
from edge_agent.ports.sqlite_file import real_path


def paths_of(sensors: Iterable[Sensor]) -> frozenset[str]:
    """The paths in the definitions of the sensors."""
    return frozenset(path for sensor in sensors for path in _paths(sensor))


def _paths(sensor: Sensor) -> list[str]:
    """The values of all keys of the kind FilePath, for any driver."""
    names = [key.inside for key in DRIVERS[sensor.driver].keys if isinstance(key.kind, FilePath)]
    return [str(value) for name in names if (value := sensor.option(name)) is not None]


@dataclass(frozen=True, slots=True)
class FileAccess:
    """The files that sensors may read.

    folders: from `[files] folders`. named: files of sensors in the node's own file. secrets: files that are never read.
    own: files that the node writes; these, and files beside them whose names begin with theirs, are never read.
    """

    folders: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()
    secrets: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    def check(self, sensor: Sensor) -> None:
        """Raises: PortError if the sensor may not read one of its files."""
        for path in _paths(sensor):
            real = real_path(Path(path))
            if any(_same(real, Path(secret)) for secret in self.secrets):
                raise PortError(f"{path} may not be read as a sensor: it contains secrets of this node")
            if any(_begins_with(real, Path(own)) for own in self.own):
                raise PortError(f"{path} may not be read as a sensor: this node keeps its own data in it")
            if path not in self.named and not any(real.is_relative_to(real_path(Path(each))) for each in self.folders):
                raise PortError(
                    f"{path} may not be read as a sensor: the configuration file of this node does not allow it; "
                    'add its folder there, [files] folders = ["..."], or define the sensor there'
                )


def _same(path: Path, secret: Path) -> bool:
    """Whether two paths lead to the same file."""
    try:
        return path == real_path(secret) or path.samefile(secret)
    except OSError:
        return False


def _begins_with(path: Path, own: Path) -> bool:
    """Whether a path leads to a file in the folder of own whose name begins with own's: its log, or a copy set aside.

    SQLite puts such files beside the file that a link leads to.
    """
    for each in {real_path(own.parent) / own.name, real_path(own)}:
        if path.parent == each.parent and path.name.startswith(each.name):
            return True
        try:
            beside = [found for found in each.parent.iterdir() if found.name.startswith(each.name)]
        except OSError:
            continue
        if any(_same(path, found) for found in beside):
            return True
    return False
