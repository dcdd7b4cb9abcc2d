"""Sketches: small approximate states with a known error, as bytes in formats that other tools read and merge.

The formats are those of DataSketches, which Spark SQL merges directly (hll_union_agg, theta_union_agg,
kll_sketch_merge_double). These modules implement them with numpy over batches, because the library hashes values one by
one and does not validate untrusted bytes.

- hll, theta: distinct counts
- kll: quantiles
- hashing: the hash of values
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

from edge_agent.algebra.partials import series
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.sketches import hll, kll, theta

LETTERS: Final = {"hll": "H", "theta": "T", "kll": "K"}  # state column -> the kind_of its values
_FORMATS: Final[dict[int, tuple[str, ModuleType]]] = {
    hll.FAMILY: ("H", hll),
    theta.FAMILY: ("T", theta),
    kll.FAMILY: ("K", kll),
}
MOST_BYTES: Final = max(hll.MOST_BYTES, theta.MOST_BYTES, kll.MOST_BYTES)  # size of the largest sketch


def is_sketches(column: Array) -> bool:
    """Whether a column is not empty and contains sketches."""
    return column.dtype == object and len(column) > 0 and isinstance(column[0], bytes)


def kind_of(column: Array) -> str:
    """The kind of a column as a letter: 'H', 'T' or 'K' for sketches, else as series.kind_of."""
    if column.dtype.kind != "O":
        return column.dtype.kind
    return _FORMATS[column[0][2]][0] if is_sketches(column) else series.kind_of(column)


def check(cells: list[bytes]) -> None:
    """Check that untrusted bytes are valid sketches of one kind. Raises: ValueError."""
    found = {cell[2] if len(cell) > 2 else -1 for cell in cells}
    if len(found) != 1 or not found <= _FORMATS.keys():
        raise ValueError("wanted sketches of one known kind")
    for cell in cells:
        _FORMATS[cell[2]][1].check(cell)
