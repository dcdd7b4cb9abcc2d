"""Window types that other packages bring: entry points of the group `headwater.windows` (docs/extend.md).

A package that is broken, or takes a word that is taken, is left out, with the reason for whoever asks for its type. A
window of a package that raises gives no rows for what it was asked, and stops nothing. Every call goes through a watch
(algebra/plugin_calls.py), which tells people and keeps what is slow within bounds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edge_agent.algebra.aggregates.plugins import Brought, brought
from edge_agent.algebra.plugin_calls import PLAIN, FailedError, Watch, said
from edge_agent.algebra.windows.base import Setting
from edge_agent.algebra.windows.conformance import disagreement
from edge_agent.algebra.windows.ordered import RAW, RowWindows

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

if TYPE_CHECKING:
    from edge_agent.algebra.windows.ordered import OrderedReadings

GROUP: Final = "headwater.windows"
KINDS: Final = ("duration", "instant", "word", "zone", "count", "condition", "text", "flag")
CENTRAL: Final = ("form", "positions", "labels", "cut")
TIME: Final = (
    *("longest_us", "one_length", "unit_us", "edge_sets", "spacing"),
    *("edges", "assign", "ends", "runs"),
)


def types(
    taken: Collection[str], points: Iterable[EntryPoint], watch: Watch = PLAIN
) -> tuple[dict[str, type[Any]], dict[str, type[Any]], Mapping[str, str], Mapping[str, Brought]]:
    """(types cut by time by their word, central ones, entry point -> why it cannot be used, word -> whose it is)."""
    by_time: dict[str, type[Any]] = {}
    central: dict[str, type[Any]] = {}
    refused: dict[str, str] = {}
    whose: dict[str, Brought] = {}
    for point in points:
        try:
            found = point.load()
            why = _wrong(found, {*taken, *by_time, *central})
        except Exception as err:
            why = said(err)
        if why:
            refused[point.name] = f"{point.value}: {why}"
            continue
        whose[found.type] = brought(point, watch)
        if hasattr(found, "cut"):
            found.cut = _guarded(found.cut, whose[found.type])
            central[found.type] = found
        else:
            for name, rows, nothing in _STEPS:
                setattr(found, name, _guarded_step(getattr(found, name), whose[found.type], name, rows, nothing))
            by_time[found.type] = found
    return by_time, central, refused, whose


def tried(spec: Any, by: Brought) -> str:
    """What a definition of this type would stumble over at once, '' if nothing: asked before it is taken."""

    def asked() -> None:
        if not hasattr(spec, "cut") and (why := disagreement(spec)):
            raise ValueError(why)

    if not by.watch.ready:
        return ""
    try:
        by.watch.call(by.call(spec.type, "definition", 0), asked)
    except FailedError as err:
        return str(err)
    return ""


def _wrong(found: object, taken: Collection[str]) -> str:
    """Why a type cannot be used, '' if it can."""
    if not isinstance(found, type):
        return f"wanted a class with what Window or Central asks for (edge_agent.algebra.windows), got {found!r}"
    lacks = [name for name in ("type", "KEYS", "wrong") if not hasattr(found, name)]
    lacks += [name for name in (CENTRAL if hasattr(found, "cut") else TIME) if not hasattr(found, name)]
    if lacks:
        return f"lacks {', '.join(lacks)}"
    word, keys = getattr(found, "type"), getattr(found, "KEYS")  # noqa: B009 - of a class that is not known here
    if word in taken:
        return f"window type {word!r} is there already; choose another word"
    if hasattr(found, "cut") and getattr(found, "form") != RAW:  # noqa: B009
        return f"form of a central window is {RAW!r}"
    wrong = [key for key in keys if not isinstance(key, Setting) or key.kind not in KINDS]
    return f"KEYS are Settings of the kinds {', '.join(KINDS)}" if wrong else ""


def _guarded(cut: Any, by: Brought) -> Any:
    """The same, which never raises: of a package's cut that does, nothing is kept, or it would raise for ever."""

    @functools.wraps(cut)
    def guarded(self: Any, line: OrderedReadings) -> RowWindows:
        def sound() -> RowWindows:
            made: RowWindows = cut(self, line)
            if not _sound(made, line):
                raise ValueError("rows outside the line, or columns of unequal length")
            return made

        try:
            return by.watch.call(by.call(self.type, "cut", len(line.time_us)), sound)
        except FailedError:
            none = np.zeros(0, np.int64)
            return RowWindows(none, none, none, none, none, np.array(line.until, np.int64))

    return guarded


def _none(*_: Any) -> Any:
    return np.zeros(0, np.int64)


_STEPS: Final[tuple[tuple[str, Callable[..., int], Callable[..., Any]], ...]] = (
    # a method of a window cut by time, how many rows a call of it has, and what stands for its answer if it raises
    ("edges", lambda _low, _high: 0, _none),
    ("assign", lambda start, _end: len(start), lambda start, end: (_none(), _none())),
    ("ends", len, lambda start: np.asarray(start) + 1),
    ("runs", lambda _after, _upto: 0, lambda after, upto: ()),
)


def _guarded_step(method: Any, by: Brought, name: str, rows: Callable[..., int], nothing: Callable[..., Any]) -> Any:
    """The same, which never raises: what it would have said is no windows."""

    @functools.wraps(method)
    def guarded(self: Any, *args: Any) -> Any:
        def whole() -> Any:
            made = method(self, *args)
            return tuple(made) if name == "runs" else made

        try:
            made = by.watch.call(by.call(self.type, name, rows(*args)), whole)
        except FailedError:
            made = nothing(*args)
        return iter(made) if name == "runs" else made

    return guarded


def _sound(cut: RowWindows, line: OrderedReadings) -> bool:
    """Whether rows lie within their keys."""
    columns = (cut.key, cut.low, cut.high, cut.start, cut.end)
    if any(np.shape(column) != np.shape(cut.key) for column in columns) or np.shape(cut.keep) != np.shape(line.first):
        return False
    within = (cut.low >= line.first[cut.key]) & (cut.low < cut.high) & (cut.high <= line.until[cut.key])
    kept = (cut.keep >= line.first) & (cut.keep <= line.until)
    return bool(within.all()) and bool(kept.all())
