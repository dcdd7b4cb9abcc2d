"""The `window` table of a query: which types there are, what each is measured in, and which measures make sense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from edge_agent.algebra.windows import Session, Window
from edge_agent.algebra.windows.sliding import Sliding
from edge_agent.algebra.windows.tumbling import Tumbling
from edge_agent.config.checker import BAD, REQUIRED, Key, Report, complete, one_of, read_table, type_of
from edge_agent.config.documents import Path
from edge_agent.config.drivers import DAY_US
from edge_agent.config.durations import format_duration
from edge_agent.config.kinds import Choice
from edge_agent.config.quantities import Duration
from edge_agent.config.shapes import object_schema

SHORTEST_US: Final = 1_000  # of a length or slide: a thousand edges a second is more than any uplink wants
LONGEST_US: Final = 366 * DAY_US
MOST_OVERLAP: Final = 86_400  # windows that hold one reading: a day that slides by a second

_SPAN: Final = Duration(SHORTEST_US, LONGEST_US)
_OFFSET: Final = Key("offset", Duration(0, LONGEST_US), 0, "shifts every start by that much from 1970 UTC")
WINDOWS: Final[dict[str, tuple[Key, ...]]] = {
    "tumbling": (Key("length", _SPAN, REQUIRED, "end minus start"), _OFFSET),
    "sliding": (
        Key("length", _SPAN, REQUIRED, "end minus start"),
        Key("slide", _SPAN, REQUIRED, "start to start; need not divide the length"),
        _OFFSET,
    ),
    "session": (
        Key("gap", Duration(SHORTEST_US, 7 * DAY_US), REQUIRED, "silence that ends it; at most the correction horizon"),
        Key("max", Duration(0, LONGEST_US), 0, "cut at its multiples since 1970 UTC; 0: no longest duration"),
    ),
}
LATER_WINDOWS: Final = (*("count_tumbling", "count_sliding", "punctuation", "state", "fixed_band", "calendar"),)


@dataclass(frozen=True, slots=True)
class WindowTable:
    """The `window` table: `type` says which keys it has."""

    suffix: ClassVar[str] = ""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        """Read a Window."""
        if not isinstance(value, Mapping):
            return report.wrong(
                at, value, f"wanted a table, got {type_of(value)}", '{type = "tumbling", length = "1m"}'
            )
        word = value.get("type")
        if word is None:
            return report.wrong(at, None, '"type" is missing', one_of("", (*WINDOWS, *LATER_WINDOWS)))
        if Choice(tuple(WINDOWS), LATER_WINDOWS, "window type").read(word, (*at, "type"), report) is BAD:
            return BAD
        own = {name: item for name, item in value.items() if name != "type"}
        if word == "tumbling" and "slide" in own and not report.lenient:
            return report.unknown(at, "slide", (), 'a tumbling window has none; say type = "sliding"')
        values = read_table(WINDOWS[word], own, at, report)
        if not complete(values):
            return BAD
        if word == "session":
            return self._session(values, value, at, report)
        length, slide = values["length"], values.get("slide", values["length"])
        if (wrong := _wrong(length, slide, values["offset"])) is not None:
            name, why, hint = wrong
            return report.wrong((*at, name), value.get(name), why, hint)
        return Tumbling(length, values["offset"]) if word == "tumbling" else Sliding(length, slide, values["offset"])

    @staticmethod
    def _session(values: Mapping[str, Any], given: Mapping[str, Any], at: Path, report: Report) -> Any:
        gap, most = values["gap"], values["max"]
        if gap <= 0:  # only a recording's plain numbers come this far
            return report.wrong((*at, "gap"), given.get("gap"), "must be more than 0", "")
        if most and most <= gap:
            why = f"not longer than the gap {format_duration(gap)}: every pause would be a cut"
            return report.wrong((*at, "max"), given.get("max"), why, format_duration(2 * gap))
        return Session(gap, most)

    def write(self, value: Any) -> object:
        """Write the table."""
        return write_window(value)

    def schema(self) -> dict[str, object]:
        """One branch a type."""
        branches = []
        for word, keys in WINDOWS.items():
            branch = object_schema(keys, {"type": {"const": word}})
            required = branch["required"]
            branches.append({**branch, "required": ["type", *(required if isinstance(required, list) else [])]})
        return {"oneOf": branches}


def _wrong(length_us: int, slide_us: int, offset_us: int) -> tuple[str, str, str] | None:
    """What one key of a window alone cannot show: (key, why, hint), None if all is well."""
    if length_us <= 0 or slide_us <= 0:  # only a recording's plain numbers come this far
        return ("length" if length_us <= 0 else "slide", "must be more than 0", "")
    if slide_us > length_us:
        return ("slide", f"longer than length {format_duration(length_us)}", format_duration(length_us))
    if offset_us >= slide_us:
        return ("offset", "not shorter than the slide (tumbling: the length)", format_duration(offset_us % slide_us))
    if length_us > slide_us * MOST_OVERLAP:
        least_us = -(-length_us // MOST_OVERLAP // SHORTEST_US) * SHORTEST_US
        why = f"every reading would be in {-(-length_us // slide_us)} windows, at most {MOST_OVERLAP}"
        return ("slide", why, f"say a slide of {format_duration(least_us)} or more")
    return None


def write_window(window: Window | Session) -> dict[str, object]:
    """The table that reads back to the window."""
    if isinstance(window, Session):
        most = {"max": format_duration(window.max_us)} if window.max_us else {}
        return {"type": window.type, "gap": format_duration(window.gap_us), **most}
    offset = getattr(window, "offset_us", 0)
    made: dict[str, object] = {"type": window.type, "length": format_duration(window.length_us)}
    if window.type == "sliding":
        made["slide"] = format_duration(window.slide_us)
    return {**made, "offset": format_duration(offset)} if offset else made
