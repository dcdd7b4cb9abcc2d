"""The registry of column kinds. tests/laws/test_column_kinds.py checks every kind.

- kind: ColumnKind, the record of a kind; Form, how wire and Spark represent its values
- numbers: one number per row: count, time, value, wide, real, node, order
- cells: one cell per row: multiset (values and how often each occurs), series (readings in their order), sketch
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from edge_agent.algebra.columns.kind import ColumnKind

_FILES: Final = (  # files of this folder, each with its KINDS
    "numbers",
    "cells",
)
KINDS: Final[Mapping[str, ColumnKind]] = {
    kind.name: kind for name in _FILES for kind in import_module(f"{__name__}.{name}").KINDS
}
NUMBERED: Final = frozenset(kind.name for kind in KINDS.values() if kind.arrivals)
OF_NODES: Final = frozenset(kind.name for kind in KINDS.values() if kind.renumber is not None)
