"""How a window type declares the keys of its table in a definition, and checks values that depend on each other.

With these a type is one file and one line of the registry: the checker, the JSON Schemas and the tables of the docs
are made from them (config/definitions/window_table.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SHORTEST_US: Final = 1_000  # of a length or slide: a thousand edges a second is more than any uplink wants
LONGEST_US: Final = 366 * 86_400_000_000  # a leap year: what is longer is a mistake in the unit

NEEDED: Final = object()  # the default of a key that has none


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of a window's table.

    kind: 'duration', 'instant' (both in us inside, and named so: length -> length_us), 'word' (one of `words`), 'zone',
    'count', 'text' or 'flag'. low, high: of durations (us) and counts. most: what high is, for
    people. default: the value inside.
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
        """The field of the spec."""
        return f"{self.name}_us" if self.kind in {"duration", "instant"} else self.name


@dataclass(frozen=True, slots=True)
class Wrong:
    """A mistake that involves several keys of a window.

    why: may name keys in braces, for the text that people wrote ('longer than {length}').
    hint: a value that would do, as it is inside, or a text. A spec's `wrong` is asked for values that its keys let
    through, and for those of recordings, which have no bounds.
    """

    key: str
    why: str
    hint: int | str = ""


LENGTH: Final = Setting("length", "duration", "end minus start", low=SHORTEST_US)
OFFSET: Final = Setting("offset", "duration", "shifts every start by that much from 1970 UTC", 0)


def not_positive(**measures: int) -> Wrong | None:
    """The first of these that is no measure: only a recording's plain numbers come so far."""
    return next((Wrong(name, "must be more than 0") for name, us in measures.items() if us <= 0), None)
