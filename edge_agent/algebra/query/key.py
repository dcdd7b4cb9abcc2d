"""Keys of readings as text, and named tuples that identify a query revision, its rows and an epoch."""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

Labels = tuple[tuple[str, str], ...]  # (name, value) of the labels of one series of a sensor, sorted by name


class QueryKey(NamedTuple):
    """One revision of a query."""

    query: str
    revision: int


class QueryPlace(NamedTuple):
    """Identifies rows of a query revision. node: for windows of one node alone; '' for windows of the whole tree."""

    query: str
    revision: int
    node: str

    @property
    def key(self) -> QueryKey:
        """The query revision."""
        return QueryKey(self.query, self.revision)


class EpochKey(NamedTuple):
    """One epoch of a node: the unit of numbering and dedupe (docs/protocol.md 1.2)."""

    node: str
    epoch: int


_NUMBER: Final = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
MAX_WEIGHT: Final = 1e150  # sums of larger weights could leave the range of floats


def key_text(labels: Labels, by: tuple[str, ...]) -> str:
    """The key of a series as text: `site=a,unit=3`, in the order of `by`; '' if `by` is empty.

    A label that the series lacks has an empty value. `%`, `,` and `=` in names and values are percent-encoded, so that
    `key_labels` can parse the text.
    """
    values = dict(labels)
    return ",".join(f"{_escaped(name)}={_escaped(values.get(name, ''))}" for name in by)


def key_labels(text: str) -> dict[str, str]:
    """The labels of a key text: the inverse of `key_text`."""
    pairs = (part.partition("=") for part in text.split(",")) if text else ()
    return {_plain(name): _plain(value) for name, _sign, value in pairs}


def has_label_twice(text: str) -> bool:
    """Whether a text is no key of `key_text` because a label occurs twice in it."""
    if "," not in text:
        return False
    names = [part.partition("=")[0] for part in text.split(",")]
    return len(set(names)) < len(names)


def label_number(text: str) -> float:
    """The weight in the text of a label: a decimal number >= 0. NaN for any other text and for more than MAX_WEIGHT."""
    number = float(text) if _NUMBER.fullmatch(text.strip()) else math.nan
    return number if number <= MAX_WEIGHT else math.nan


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace(",", "%2C").replace("=", "%3D")


def _plain(text: str) -> str:
    return text.replace("%3D", "=").replace("%2C", ",").replace("%25", "%")
