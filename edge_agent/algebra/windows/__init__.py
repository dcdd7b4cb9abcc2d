"""The registry of window types. Each has a file with a frozen spec, which computes the edges of slices.

- tumbling, sliding, fixed_band: windows of one length
- calendar: days, weeks and months of a time zone
- session: readings without a pause longer than the gap
- punctuation: from marker to marker
- count_tumbling, count_sliding, state: formed at the root from ordered readings
- declaration, ordered: code that several types share
- protocols: the interfaces of types
- edges: slice edges of many windows at once
- package_types: checks and guards the types of other packages
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from edge_agent.algebra.built_in import module, source
from edge_agent.algebra.plugin_calls import Loaded, PluginGuard, usable
from edge_agent.algebra.span import Lattice
from edge_agent.algebra.windows import package_types
from edge_agent.algebra.windows.calendar import Calendar
from edge_agent.algebra.windows.count_sliding import CountSliding
from edge_agent.algebra.windows.count_tumbling import CountTumbling
from edge_agent.algebra.windows.fixed_band import FixedBand
from edge_agent.algebra.windows.protocols import OrderedWindow, Spec, Window
from edge_agent.algebra.windows.punctuation import Punctuation
from edge_agent.algebra.windows.session import Session
from edge_agent.algebra.windows.sliding import Sliding
from edge_agent.algebra.windows.state import State
from edge_agent.algebra.windows.tumbling import Tumbling

__all__ = [
    "ALL", "GUARDS", "ORDERED", "REFUSED", "TYPES", "Calendar", "CountSliding", "CountTumbling", "FixedBand",
    "OrderedWindow", "Punctuation", "Session", "Sliding", "Spec", "State", "Tumbling", "Window", "add", "broken_law",
    "evenly", "extent_us",
]  # fmt: skip

_FILES: Final = (  # the registry: files of this folder, named like the type in definitions
    "tumbling",
    "sliding",
    "fixed_band",
    "calendar",
    "session",
    "punctuation",
    "count_tumbling",
    "count_sliding",
    "state",
)
_OF_MACHINES: Final = ("session", "punctuation")  # the slicers form these, not a method of the spec


def _type_in(file: str) -> type[Any]:
    """The window type in a file of the same name. Raises: TypeError, one line with the file and what it lacks."""
    listed_in, where = f"_FILES of {source(__name__, '__init__')}", source(__name__, file)
    found = vars(module(__name__, file, listed_in)).values()
    made: type[Any] | None = next((c for c in found if isinstance(c, type) and vars(c).get("type") == file), None)
    if made is None:
        raise TypeError(f'{where}: a class in it needs `type: ClassVar[str] = "{file}"`, which is the name of the file')
    if "KEYS" not in vars(made):
        raise TypeError(f"{where}: class {made.__name__} lacks KEYS of its own, the keys of its table")
    if file not in _OF_MACHINES and (why := package_types.lacks(made)):
        raise TypeError(f"{where}: class {made.__name__} {why}")
    return made


ALL: Final[dict[str, type[Window] | type[Session] | type[Punctuation] | type[OrderedWindow]]] = {
    word: _type_in(word) for word in _FILES
}
ORDERED: Final[dict[str, type[OrderedWindow]]] = {
    word: _type_in(word) for word, cls in ALL.items() if hasattr(cls, "cut")
}
TYPES: Final[dict[str, type[Window]]] = {word: _type_in(word) for word, cls in ALL.items() if hasattr(cls, "runs")}
REFUSED: Final[dict[str, str]] = {}  # entry point -> why its type cannot be used
GUARDS: Final[dict[str, PluginGuard]] = {}  # type of another package -> the guard of its calls


def add(loaded: Iterable[Loaded[type]], refused: Mapping[str, str], guard: Callable[[str], PluginGuard]) -> None:
    """Add window types of other packages; record in REFUSED why the others cannot be used (docs/extend.md).

    Called once per process, before the registry is used. refused: entry points that could not be loaded, with reasons.
    guard: makes the guard of a package.
    """
    REFUSED.update(refused)
    for each in usable(loaded, REFUSED, lambda found: package_types.refusal(found, ALL)):
        found: Any = each.found
        GUARDS[found.type] = guard(each.package)
        package_types.guard_methods(found, GUARDS[found.type])
        ALL[found.type] = found
        (ORDERED if hasattr(found, "cut") else TYPES)[found.type] = found


def broken_law(spec: Spec) -> str:
    """Why a window of a package is invalid: its contradiction, or the exception that it raises; '' if it is valid."""
    if spec.type not in GUARDS:
        return ""
    guard = GUARDS[spec.type]
    if spec.type in ORDERED:
        why = guard.call(spec.type, "definition", lambda: "" if len({spec, spec}) == 1 else "it must equal itself")
        return guard.why[spec.type] if why is None else why
    why = guard.call(spec.type, "definition", lambda: package_types.contradiction(cast("Window", spec)))
    return guard.why[spec.type] if why is None else why


def evenly(window: Spec) -> Sliding | None:
    """The windows as a sliding spec, if they have one length and even spacing; None for others."""
    if isinstance(window, Sliding) or window.type not in TYPES:
        return window if isinstance(window, Sliding) else None
    by_time = cast("Window", window)
    starts = by_time.edge_sets[0]
    if not by_time.one_length or not isinstance(starts, Lattice):
        return None
    return Sliding(by_time.longest_us, starts.step_us, starts.phase_us)


def overlap(window: Spec) -> int:
    """In how many windows one reading may be; 1 where that does not follow from a length and a slide."""
    if isinstance(window, ALL["count_sliding"]):
        counted: Any = window
        return int(-(-counted.length // counted.slide))
    even = evenly(window)
    return 1 if even is None else -(-even.length_us // even.slide_us)


def extent_us(window: Spec) -> int:
    """How far a window may extend from a reading in it: the greatest length, or the gap of a session.

    0 for windows between markers and windows by order, whose length is known only from their rows.
    """
    if isinstance(window, Punctuation) or window.type in ORDERED:
        return 0
    return window.gap_us if isinstance(window, Session) else cast("Window", window).longest_us
