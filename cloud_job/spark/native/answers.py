"""Computes functions in Spark with the algebra of the edge: one call of numpy per batch of windows, never one per
window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from edge_agent import packages
from edge_agent.algebra import aggregates

if TYPE_CHECKING:
    from pyspark.sql import Column

    from edge_agent.algebra.partials.arrays import Array, Ints
    from edge_agent.algebra.query.query import Aggregate

Found = Iterator[tuple["Ints", Mapping[str, "Array"]]]  # (numbers of rows, their states by the registry's names)


def answers(
    asked: Sequence[Aggregate], scale: int | None, states: Callable[[pa.Array, int | None], Found], cells: Column
) -> dict[str, tuple[Column, Column]]:
    """Columns (value, details) of each of these aggregates, by name.

    states: turns a batch of cells and their scale into states, in pieces that fit into memory. Rows in no piece, such
    as rows of other queries, get null. cells: the column with the cells.
    """
    from pyspark.sql.pandas.functions import arrow_udf

    fields = ",".join(f"v{i}:double,d{i}:string" for i in range(len(asked)))
    both = arrow_udf(_lowering(tuple(asked), scale, states), f"struct<{fields}>")(cells)  # type: ignore[call-overload]
    return {aggregate.name: (both[f"v{i}"], both[f"d{i}"]) for i, aggregate in enumerate(asked)}


def _lowering(
    asked: tuple[Aggregate, ...], scale: int | None, states: Callable[[pa.Array, int | None], Found]
) -> Callable[[pa.Array], pa.Array]:
    """For arrow_udf: one cell per row to struct<v0, d0, v1, d1, ...>."""

    def lower(rows: pa.Array) -> pa.Array:
        packages.install()
        value = np.zeros((len(asked), len(rows)))
        null = np.ones((len(asked), len(rows)), np.bool_)
        texts: list[list[str | None]] = [[None] * len(rows) for _ in asked]
        for place, found in states(rows, scale):
            for i, aggregate in enumerate(asked):
                lowered = aggregates.lower(aggregate, found, scale)
                value[i, place], null[i, place] = lowered.value, lowered.null
                for row, text in zip(place.tolist(), lowered.details or (), strict=False):
                    texts[i][row] = text
        packages.complain()
        arrays: list[pa.Array] = []
        for i in range(len(asked)):
            arrays += [pa.array(value[i], mask=null[i]), pa.array(texts[i], pa.string())]
        return pa.StructArray.from_arrays(arrays, names=[f"{letter}{i}" for i in range(len(asked)) for letter in "vd"])

    return lower
