"""Sketches: small states of stated error, one per row of a state column, as bytes that other tools can read and merge.

The formats are those of DataSketches, which Spark SQL merges directly (hll_union_agg, theta_union_agg,
kll_sketch_merge_double). numpy makes and merges them here, over batches: the library hashes values one by one, and its
readers do not validate hostile bytes.

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

LETTERS: Final = {"hll": "H", "theta": "T", "kll": "K"}  # state column -> kind of its values, see kind_of
_FORMATS: Final[dict[int, tuple[str, ModuleType]]] = {
    hll.FAMILY: ("H", hll),
    theta.FAMILY: ("T", theta),
    kll.FAMILY: ("K", kll),
}
MOST_BYTES: Final = max(hll.MOST_BYTES, theta.MOST_BYTES, kll.MOST_BYTES)  # of one sketch


def is_sketches(column: Array) -> bool:
    """Whether a column, not empty, is one of sketches."""
    return column.dtype == object and len(column) > 0 and isinstance(column[0], bytes)


def kind_of(column: Array) -> str:
    """The kind of any column as a letter: as series.kind_of, and of sketches 'H', 'T' or 'K'."""
    if column.dtype.kind != "O":
        return column.dtype.kind
    return _FORMATS[column[0][2]][0] if is_sketches(column) else series.kind_of(column)


def check(cells: list[bytes]) -> None:
    """Refuse foreign bytes unless all are sound sketches of one kind. Raises: ValueError."""
    found = {cell[2] if len(cell) > 2 else -1 for cell in cells}
    if len(found) != 1 or not found <= _FORMATS.keys():
        raise ValueError("no sketches of one known kind")
    for cell in cells:
        _FORMATS[cell[2]][1].check(cell)
