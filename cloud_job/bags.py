"""Bags in Spark: two arrays a row, joined natively; one call of numpy a batch of windows merges them and answers.

Spark's own `percentile` would explode every value into a row of its own first, half as fast, and has no twin of every
function; here the algebra of the edge itself lowers what Spark brought together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from edge_agent.algebra import aggregates, bags
from edge_agent.algebra.aggregates import FUNCTIONS
from edge_agent.algebra.bags import Flat

if TYPE_CHECKING:
    from pyspark.sql import Column

    from edge_agent.algebra.aggregates import Lowered
    from edge_agent.algebra.partial import Column as Array
    from edge_agent.algebra.partial import Ints
    from edge_agent.algebra.query import Aggregate

FLOATS, UNITS = "struct<v:array<double>,c:array<bigint>>", "struct<v:array<bigint>,c:array<bigint>>"
FLOATS_ARROW: Final = pa.struct([("v", pa.list_(pa.float64())), ("c", pa.list_(pa.int64()))])
UNITS_ARROW: Final = pa.struct([("v", pa.list_(pa.int64())), ("c", pa.list_(pa.int64()))])
HOLISTIC: Final = frozenset(name for name, function in FUNCTIONS.items() if "bag" in function.needs)
_TOO_WIDE: Final = -1  # a count that says: a value of this row is beyond 64 bits, there is no answer
_LIMIT: Final = 2**63 - 1


def to_arrow(column: Array) -> pa.Array:
    """A column of bags as struct<v, c>."""
    found = bags.flat(column)
    values, counts = found.values, np.array(found.counts)
    if values.dtype == object:  # units of a coarser scale, made finer
        wide = np.abs(values) > _LIMIT
        counts[wide.astype(bool)] = _TOO_WIDE
        values = np.where(wide, 0, values).astype(np.int64)
    offsets = pa.array(np.concatenate([[0], np.cumsum(found.sizes)]).astype(np.int32))
    lists = [pa.ListArray.from_arrays(offsets, pa.array(flat)) for flat in (values, counts)]
    return pa.StructArray.from_arrays(lists, names=["v", "c"])


def answers(asked: Sequence[Aggregate], scale: int | None, bag: Column) -> dict[str, tuple[Column, Column]]:
    """(value, details) of each of these, by name; bag: the joined arrays, equal values still several times."""
    from pyspark.sql.pandas.functions import arrow_udf

    fields = ",".join(f"v{i}:double,d{i}:string" for i in range(len(asked)))
    both = arrow_udf(lowering(tuple(asked), scale), f"struct<{fields}>")(bag)  # type: ignore[call-overload]
    return {aggregate.name: (both[f"v{i}"], both[f"d{i}"]) for i, aggregate in enumerate(asked)}


def lowering(asked: tuple[Aggregate, ...], scale: int | None) -> Callable[[pa.Array], pa.Array]:
    """For arrow_udf: struct<v, c> a row to struct<v0, d0, v1, d1, ...>; a row without values has no answers."""

    def lower(rows: pa.Array) -> pa.Array:
        value = np.zeros((len(asked), len(rows)))
        null = np.ones((len(asked), len(rows)), np.bool_)
        texts: list[list[str | None]] = [[None] * len(rows) for _ in asked]
        for place, column in _merged(rows):
            for i, aggregate in enumerate(asked):
                lowered: Lowered = aggregates.lower(aggregate, {"bag": column}, scale)
                value[i, place], null[i, place] = lowered.value, lowered.null
                for row, text in zip(place.tolist(), lowered.details or (), strict=False):
                    texts[i][row] = text
        arrays: list[pa.Array] = []
        for i in range(len(asked)):
            arrays += [pa.array(value[i], mask=null[i]), pa.array(texts[i], pa.string())]
        names = [f"{letter}{i}" for i in range(len(asked)) for letter in "vd"]
        return pa.StructArray.from_arrays(arrays, names=names)

    return lower


def _merged(rows: pa.Array) -> Iterator[tuple[Ints, Array]]:
    """(row numbers, their bags) of the rows that have an answer, so many at once as fit the memory."""
    values, counts = (rows.field(name) for name in ("v", "c"))
    sizes = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    place = np.flatnonzero(sizes)
    if not len(place):
        return
    flat_values, flat_counts = (part.flatten().to_numpy(zero_copy_only=False) for part in (values, counts))
    full = Flat(flat_values, flat_counts, sizes[place])
    least = np.minimum.reduceat(full.counts, full.starts)
    starts = [*full.starts.tolist(), len(full.values)]
    for first, last in bags.blocks(np.arange(len(place)), full.sizes):
        part = slice(starts[first], starts[last])
        owner = np.repeat(np.arange(last - first), full.sizes[first:last])
        counted = full.counts[part]
        counted = counted[:0] if int(counted.max()) == 1 else counted  # different floats: quicker without
        column = bags.tally(full.values[part], owner, counted, last - first).column()
        sound = least[first:last] > 0
        yield place[first:last][sound], column[sound]
