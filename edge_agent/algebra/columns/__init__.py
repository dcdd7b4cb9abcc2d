"""The registry of column kinds. tests/laws/test_column_kinds.py checks every kind.

- kind: ColumnKind, the record of a kind; Form, how wire and Spark represent its values
- numbers: one number per row: count, time, value, wide, real, node, order
- cells: one cell per row: multiset (values and how often each occurs), series (readings in their order), sketch
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edge_agent.algebra.built_in import record, source
from edge_agent.algebra.columns.kind import ColumnKind

_FILES: Final = (  # files of this folder, each with its KINDS
    "numbers",
    "cells",
)


def _kinds() -> dict[str, ColumnKind]:
    """The kinds of all files. Raises: TypeError, one line with the file and its mistake."""
    kinds: dict[str, ColumnKind] = {}
    for name in _FILES:
        for kind in record(__name__, name, "KINDS", tuple, f"_FILES of {source(__name__, '__init__')}"):
            if kind.name in kinds:
                raise TypeError(f"{source(__name__, name)}: column kind {kind.name!r} exists already")
            kinds[kind.name] = kind
    return kinds


KINDS: Final[Mapping[str, ColumnKind]] = _kinds()
NUMBERED: Final = frozenset(kind.name for kind in KINDS.values() if kind.arrivals)
OF_NODES: Final = frozenset(kind.name for kind in KINDS.values() if kind.renumber is not None)
