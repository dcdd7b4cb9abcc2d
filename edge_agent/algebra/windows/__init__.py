"""Window types: one a file, each a frozen spec with the slice edges it causes; one line of the registry here."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from edge_agent.algebra.aggregates.plugins import Brought
from edge_agent.algebra.plugin_calls import PLAIN, Watch
from edge_agent.algebra.span import Lattice
from edge_agent.algebra.windows import plugins
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

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "ALL", "ORDERED", "REFUSED", "TYPES", "WHOSE", "Calendar", "CountSliding", "CountTumbling", "FixedBand",
    "OrderedWindow", "Punctuation", "Session", "Sliding", "Spec", "State", "Tumbling", "Window", "add", "evenly",
    "extent_us", "tried",
]  # fmt: skip

_FILES: Final = (  # the registry: files of this folder, each named like the word of its type
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


def _type_in(file: str) -> type[Any]:
    """The class of a file whose word is the file's name."""
    found = vars(import_module(f"{__name__}.{file}")).values()
    return next(each for each in found if isinstance(each, type) and getattr(each, "type", None) == file)


ALL: Final[dict[str, type[Window] | type[Session] | type[Punctuation] | type[OrderedWindow]]] = {
    word: _type_in(word) for word in _FILES
}
ORDERED: Final[dict[str, type[OrderedWindow]]] = {
    word: _type_in(word) for word, cls in ALL.items() if hasattr(cls, "cut")
}
TYPES: Final[dict[str, type[Window]]] = {word: _type_in(word) for word, cls in ALL.items() if hasattr(cls, "runs")}
REFUSED: Final[dict[str, str]] = {}  # entry point -> why its type is left out
WHOSE: Final[dict[str, Brought]] = {}  # type of another package -> which


def add(points: Iterable[EntryPoint], watch: Watch = PLAIN) -> None:
    """Window types of other packages, those that can be used; of the others REFUSED says why (docs/extend.md).

    Once a process, before anything is asked of the registry. Calls of their methods go through the watch.
    """
    by_time, central, refused, whose = plugins.types(ALL, points, watch)
    REFUSED.update(refused)
    WHOSE.update(whose)
    TYPES.update(by_time)
    ORDERED.update(central)
    ALL.update({**by_time, **central})


def tried(spec: Spec) -> str:
    """Why a definition of a package's type cannot be taken: what it raised; '' if nothing, and of our own types."""
    by = WHOSE.get(spec.type)
    return "" if by is None else plugins.tried(spec, by)


def evenly(window: Spec) -> Sliding | None:
    """The same windows as a sliding spec, of every type whose windows are as long and evenly spaced; else None."""
    if isinstance(window, Sliding) or window.type not in TYPES:
        return window if isinstance(window, Sliding) else None
    by_time = cast("Window", window)
    starts = by_time.edge_sets[0]
    if not by_time.one_length or not isinstance(starts, Lattice):
        return None
    return Sliding(by_time.longest_us, starts.step_us, starts.phase_us)


def extent_us(window: Spec) -> int:
    """How far from a reading the window that holds it may lie: its length, or the gap of a session.

    Of windows between markers and of positions nothing is known beforehand; their rows say it themselves.
    """
    if isinstance(window, Punctuation) or window.type in ORDERED:
        return 0
    return window.gap_us if isinstance(window, Session) else cast("Window", window).longest_us
