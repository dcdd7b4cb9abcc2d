"""Loads aggregates, window types and drivers of other packages, by entry points (docs/extend.md)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from edge_agent.algebra import aggregates, windows
from edge_agent.algebra.aggregates.non_commutative import with_needs
from edge_agent.algebra.plugin_calls import Failure, Loaded, PluginGuard, Result, error_text
from edge_agent.algebra.query.query import Query
from edge_agent.config.definitions import drivers

SLOW_S: Final = 0.25  # longest call of a package's function on a node: a quarter of the commit interval
_installed: Final[list[bool]] = []  # not empty once `install` has run
_guards: Final[list[PluginGuard]] = []  # the guards of this process, one per loaded object


def load(group: str, wanted: type[Result]) -> tuple[list[Loaded[Result]], dict[str, str]]:
    """Load the entry points of a group. Returns (objects, entry point -> why it cannot be used), sorted by name.

    wanted: type of the objects.
    """
    loaded: list[Loaded[Result]] = []
    refused: dict[str, str] = {}
    if not any(_may_bring(folder, group) for folder in sys.path):
        return loaded, refused
    from importlib.metadata import entry_points  # here, because it takes 1 MB of memory

    for point in sorted(entry_points(group=group), key=lambda point: (point.name, point.value)):
        try:
            found = point.load()
        except Exception as err:
            refused[point.name] = f"{point.value}: {error_text(err)}"
            continue
        if isinstance(found, wanted):
            package = point.name if point.dist is None else f"{point.dist.name} {point.dist.version}"
            loaded.append(Loaded(point.name, point.value, found, package))
        else:
            kind = "a class" if wanted is type else f"a {wanted.__name__} ({wanted.__module__})"
            refused[point.name] = f"{point.value}: wanted {kind}, got {type(found).__name__}"
    return loaded, refused


def _may_bring(folder: str, group: str) -> bool:
    """Whether a folder of sys.path is an archive, or contains a distribution with entry points of the group."""
    wanted = f"[{group}]"
    files = (file for kind in ("dist", "egg") for file in Path(folder).glob(f"*.{kind}-info/entry_points.txt"))
    try:
        return Path(folder).is_file() or any(wanted in _text(file) for file in files)
    except OSError:  # this user may not read it: Python, too, imports nothing from it
        return False


def _text(file: Path) -> str:
    """The text of a file; '' if this user may not read it: Python, too, then finds no entry points in it."""
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def install(*, edge: bool = False) -> None:
    """Add aggregates, window types and drivers of packages to the registries, once per process.

    edge: whether the process is a node, which switches off slow functions. The root and commands wait for them.
    """
    if _installed:
        return
    _installed.append(edge)

    def guard(package: str) -> PluginGuard:
        _guards.append(PluginGuard(package, SLOW_S if edge else None, time.perf_counter))
        return _guards[-1]

    aggregates.add(*load("headwater.aggregates", aggregates.Family), guard)
    windows.add(*load("headwater.windows", type), guard)
    drivers.DRIVERS.add(*load("headwater.drivers", drivers.Driver))


def news() -> list[Failure]:
    """Failures of a new kind in this process since the last call of this function."""
    return [failure for guard in _guards for failure in guard.news()]


def complain() -> None:
    """Write new failures to standard error. Used by commands and by tasks of a Spark job."""
    for failure in news():
        sys.stderr.write(f"headwater: {failure.text}; {failure.hint}\n")


def users(name: str, queries: Iterable[Query]) -> list[str]:
    """Ids of the queries that use a component, function or window type. name: of any of these."""
    functions = aggregates.FUNCTIONS
    needing = {
        fn
        for fn, f in functions.items()
        if name in {fn, *(c.name for c in with_needs((*f.needs, *(f.scaled or ())), aggregates.COMPONENTS))}
    }
    return [q.id for q in queries if q.window.type == name or any(a.fn in needing for a in q.aggregates)]
