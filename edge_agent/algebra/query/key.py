"""Keys: the labels a query groups by as text, and the names of queries, their rows and epochs as tuples."""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

Labels = tuple[tuple[str, str], ...]  # sorted by name: one series of a sensor


class QueryKey(NamedTuple):
    """One revision of a query."""

    query: str
    revision: int


class QueryPlace(NamedTuple):
    """Where rows of a query revision belong: the node for windows of one node alone, '' for those of the whole tree."""

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
MAX_WEIGHT: Final = 1e150  # no real weight is larger, and sums of larger ones could leave the range of a float


def key_text(labels: Labels, by: tuple[str, ...]) -> str:
    """`site=a,unit=3` in the order of `by`; '' without labels to group by; a label the series lacks is empty.

    `%`, `,` and `=` in names and values are percent-encoded, so that `key_labels` can take the text apart again.
    """
    values = dict(labels)
    return ",".join(f"{_escaped(name)}={_escaped(values.get(name, ''))}" for name in by)


def key_labels(text: str) -> dict[str, str]:
    """The labels of a key text: the inverse of `key_text`."""
    pairs = (part.partition("=") for part in text.split(",")) if text else ()
    return {_plain(name): _plain(value) for name, _sign, value in pairs}


def label_number(text: str) -> float:
    """A label's text as a weight: a decimal of 0 or more. Returns NaN for any other text, and above MAX_WEIGHT."""
    number = float(text) if _NUMBER.fullmatch(text.strip()) else math.nan
    return number if number <= MAX_WEIGHT else math.nan


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace(",", "%2C").replace("=", "%3D")


def _plain(text: str) -> str:
    return text.replace("%3D", "=").replace("%2C", ",").replace("%25", "%")
