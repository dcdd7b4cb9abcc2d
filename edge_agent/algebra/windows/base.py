"""Declares the keys of a window's table in a definition, and the parts that window types share.

config/definitions/window_table.py makes the checker, the JSON Schemas and the tables of the docs from these keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edge_agent.algebra.partials.arrays import Ints

SHORTEST_US: Final = 1_000  # of a length or slide: a thousand edges a second is more than any uplink wants
LONGEST_US: Final = 366 * 86_400_000_000  # a leap year: what is longer is a mistake in the unit

NEEDED: Final = object()  # the default of a key that has none


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of a window's table.

    kind: 'duration', 'instant' (both are us in the spec, in a field with that suffix: length -> length_us), 'word' (one
    of `words`), 'zone', 'count', 'condition', 'text' or 'flag'. about: description in the docs. default: value in the
    spec. low, high: bounds of durations (us) and counts. most: name of the upper bound in messages.
    """

    name: str
    kind: str
    about: str
    default: object = NEEDED
    low: int = 0
    high: int = LONGEST_US
    words: tuple[str, ...] = ()
    most: str = ""

    @property
    def inside(self) -> str:
        """Name of the field in the spec."""
        return f"{self.name}_us" if self.kind in {"duration", "instant"} else self.name


@dataclass(frozen=True, slots=True)
class Wrong:
    """A mistake that involves several keys of a window. Settings check one key alone; recordings skip their bounds.

    why: a key in braces stands for the text that the user wrote ('longer than {length}').
    hint: a valid value as in the spec, or a text.
    """

    key: str
    why: str
    hint: int | str = ""


LENGTH: Final = Setting("length", "duration", "end minus start", low=SHORTEST_US)
OFFSET: Final = Setting("offset", "duration", "shifts every start by that much from 1970 UTC", 0)


def not_positive(**measures: int) -> Wrong | None:
    """The first measure that is 0 or less: possible only in recordings, whose numbers have no bounds."""
    return next((Wrong(name, "must be more than 0") for name, us in measures.items() if us <= 0), None)


class OneLength:
    """The part of a time window (windows.protocols.Window) that follows from its one length."""

    __slots__ = ()
    length_us: int

    @property
    def longest_us(self) -> int:
        return self.length_us

    @property
    def one_length(self) -> bool:
        return True

    def ends(self, start: Ints) -> Ints:
        return start + self.length_us
