"""Computes the functions without native Spark expressions in numpy, with one call per batch of windows.

States that Spark cannot combine are collected and combined here. So a new family of aggregates, also of an installed
package, works in Spark at once; native expressions (plan.py and lower.py) only make it faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from cloud_job.spark.native import answers, cell_arrays, column_types
from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import COMPONENTS, basis_of, columns_of
from edge_agent.algebra.partials.segments import Segments

if TYPE_CHECKING:
    from edge_agent.algebra.partials.arrays import Array
    from edge_agent.algebra.query.query import Aggregate

Names = Callable[[str], str]  # state column of the registry -> Spark column
ROWS: Final = "in_numpy_"  # prefix of the column with a component's collected states


def parts_of(component: str) -> tuple[str, ...]:
    """The state columns to collect for a component: its own, then other columns that combining them needs."""
    own = COMPONENTS[component].columns
    return (*own, *sorted(columns_of(COMPONENTS[component]) - set(own)))


def collected(component: str, name: Names) -> Column:
    """Aggregate expression: the states of a group's rows as an array of structs, without rows that have none."""
    fields = [F.col(_quoted(name(column))) for column in parts_of(component)]
    cells = F.struct(*(field.alias(f"c{i}") for i, field in enumerate(fields)))
    return F.collect_list(F.when(fields[0].isNotNull(), cells))


def _quoted(name: str) -> str:
    return f"`{name}`"


def answered(
    asked: Sequence[Aggregate], scale: int | None, native: Callable[[str], bool], name: Names
) -> dict[str, tuple[Column, Column]]:
    """Columns (value, details) of each of these aggregates, by name. native: whether Spark combines a component."""
    basis = basis_of(asked, scale)
    components = [component.name for component in aggregates.components_of(basis)]
    foreign = tuple(component for component in components if not native(component))
    elsewhere = {column for component in foreign for column in COMPONENTS[component].columns}
    plain = tuple(column for column in basis if column not in elsewhere)
    columns = (*plain, *(ROWS + component for component in foreign))
    given = F.struct(*(F.col(_quoted(name(column))).alias(f"c{i}") for i, column in enumerate(columns)))
    return answers.answers(asked, scale, CollectedCells(plain, foreign).states, given)


@dataclass(frozen=True, slots=True)
class CollectedCells:
    """Reads states from structs. plain: state columns that Spark combined, one field each. foreign: components that
    Spark cannot combine, each an array of its rows' states; these fields follow.
    """

    plain: tuple[str, ...]
    foreign: tuple[str, ...]

    def states(self, given: pa.Array, scale: int | None) -> answers.Found:
        """Yields (row numbers, their states), without rows that lack states."""
        lists = [given.field(len(self.plain) + i) for i in range(len(self.foreign))]
        place = self._present(given, lists, scale)
        if len(place):
            found = given.take(pa.array(place)), [rows.take(pa.array(place)) for rows in lists]
            yield place, self._states(*found, scale)

    def _present(self, given: pa.Array, lists: Sequence[pa.Array], scale: int | None) -> Any:
        """Numbers of the rows that have all states."""
        sound = np.ones(len(given), np.bool_)
        for i, name in enumerate(self.plain):
            sound &= column_types.form_of(name, scale).valid(given.field(i))
        for component, rows in zip(self.foreign, lists, strict=True):
            found = cell_arrays.MetCells.of(rows)
            sound &= found.many > 0
            for i, name in enumerate(parts_of(component)):
                if mark := column_types.form_of(name, scale).mark:
                    sound &= cell_arrays.MetCells(found.many, found.content.field(i)).whole(mark)
        return np.flatnonzero(sound)

    def _states(self, given: pa.Array, lists: Sequence[pa.Array], scale: int | None) -> Mapping[str, Array]:
        """All states of the rows; those of foreign components are combined here."""
        states = _columns(given, self.plain, scale)
        for component, rows in zip(self.foreign, lists, strict=True):
            sizes = pc.list_value_length(rows).to_numpy(zero_copy_only=False).astype(np.int64)
            flat = rows.flatten()
            names = parts_of(component)
            single = _columns(flat, names, scale)
            groups = Segments.runs(np.cumsum(sizes) - sizes, len(flat))
            made = aggregates.combine(single, groups, names)
            states |= {name: made[name] for name in COMPONENTS[component].columns}
        return states


def _columns(structs: pa.Array, names: Sequence[str], scale: int | None) -> dict[str, Array]:
    """State columns of the algebra, from the fields of structs."""
    return {name: column_types.form_of(name, scale).from_arrow(structs.field(i), scale) for i, name in enumerate(names)}
