"""Window types that other packages bring: entry points of the group `headwater.windows` (docs/extend.md).

A package that is broken, or takes a word that is taken, is left out, with the reason for whoever asks for its type. A
central window whose `cut` raises gives no rows for what it was asked, says so in the log, and stops nothing.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edge_agent.algebra.windows.base import Setting
from edge_agent.algebra.windows.central import RAW, Cut

if TYPE_CHECKING:
    from edge_agent.algebra.windows.central import Line

GROUP: Final = "headwater.windows"
KINDS: Final = ("duration", "instant", "word", "zone", "count", "condition", "text", "flag")
CENTRAL: Final = ("form", "positions", "labels", "cut")
TIME: Final = (
    *("longest_us", "one_length", "unit_us", "lattices", "rhythm"),
    *("edges", "assign", "ends", "combs"),
)
log = logging.getLogger("headwater.windows")


def types(
    taken: Collection[str], points: Iterable[EntryPoint]
) -> tuple[dict[str, type[Any]], dict[str, type[Any]], Mapping[str, str]]:
    """(types cut by time by their word, central ones, name of an entry point -> why it cannot be used)."""
    by_time: dict[str, type[Any]] = {}
    central: dict[str, type[Any]] = {}
    refused: dict[str, str] = {}
    for point in points:
        try:
            found = point.load()
            why = _wrong(found, {*taken, *by_time, *central})
        except Exception as err:
            why = f"{type(err).__name__}: {err}"
        if why:
            refused[point.name] = f"{point.value}: {why}"
        elif hasattr(found, "cut"):
            found.cut = _guarded(found.cut)
            central[found.type] = found
        else:
            by_time[found.type] = found
    return by_time, central, refused


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


def _guarded(cut: Any) -> Any:
    """The same, which never raises: of a package's cut that does, nothing is kept, or it would raise for ever."""

    @functools.wraps(cut)
    def guarded(self: Any, line: Line) -> Cut:
        try:
            made: Cut = cut(self, line)
            if not _sound(made, line):
                raise ValueError("rows outside the line, or columns of unequal length")
        except Exception:
            log.exception("window type %s failed on %d readings", self.type, len(line.time_us))
            none = np.zeros(0, np.int64)
            return Cut(none, none, none, none, none, np.array(line.until, np.int64))
        return made

    return guarded


def _sound(cut: Cut, line: Line) -> bool:
    """Whether rows lie within their keys."""
    columns = (cut.key, cut.low, cut.high, cut.start, cut.end)
    if any(np.shape(column) != np.shape(cut.key) for column in columns) or np.shape(cut.keep) != np.shape(line.first):
        return False
    within = (cut.low >= line.first[cut.key]) & (cut.low < cut.high) & (cut.high <= line.until[cut.key])
    kept = (cut.keep >= line.first) & (cut.keep <= line.until)
    return bool(within.all()) and bool(kept.all())
