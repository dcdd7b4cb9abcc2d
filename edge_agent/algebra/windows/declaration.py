"""Declarations of the settings of window types, and code that several types share.

config/definitions/window_table.py generates the checker, the JSON Schemas and the tables of the docs from these
settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edge_agent.algebra.partials.arrays import Ints

SHORTEST_US: Final = 1_000  # least length or slide: more than a thousand edges per second would overload an uplink
LONGEST_US: Final = 366 * 86_400_000_000  # a leap year: a longer duration is probably a mistake in the unit

NEEDED: Final = object()  # marks a setting without default, which is required


@dataclass(frozen=True, slots=True)
class Setting:
    """A key in the table that defines a window.

    kind: 'duration', 'instant', 'word' (one of `words`), 'zone', 'count', 'condition', 'text' or 'flag'. Durations and
    instants are us in the spec, in a field with that suffix: length -> length_us. about: description in the docs.
    default: as in the spec. low, high: bounds of durations (us) and counts. most: name of the upper bound in messages.
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
    """A mistake in a window whose settings may be valid one by one.

    key: the setting at fault. why: the message; a key in braces stands for the user's text ('longer than {length}').
    hint: a valid value as in the spec, or a text. live: a limit of a running tree, which a recording does not have.
    """

    key: str
    why: str
    hint: int | str = ""
    live: bool = False


LENGTH: Final = Setting("length", "duration", "end minus start", low=SHORTEST_US)
OFFSET: Final = Setting("offset", "duration", "shifts every start by that much from 1970 UTC", 0)


def not_positive(**measures: int) -> Wrong | None:
    """The mistake if a measure is 0 or less, else None. Only recordings need this: they skip the bounds of settings."""
    return next((Wrong(name, "must be more than 0") for name, us in measures.items() if us <= 0), None)


class OneLength:
    """Base of time windows (windows.protocols.Window) that all have one length."""

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
