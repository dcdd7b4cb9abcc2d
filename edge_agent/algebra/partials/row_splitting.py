"""Splits a row whose multiset or series does not fit a frame into several rows of the same range and key.

Each piece contains the states of its part of the readings, so that it is a valid partial of its own. A row with a
series is split by the series, else by the multiset. States that pick one reading (first, last, extremes and their
times) are repeated in every piece, because picking is idempotent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import COLUMNS, Readings
from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.partials.arrays import NO_INTS, Array, Ints
from edge_agent.algebra.partials.multisets import Multiset
from edge_agent.algebra.partials.partial import Partials, concat
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.series import Series


def is_cut(basis: tuple[str, ...]) -> bool:
    """Whether rows with this basis may be larger than a frame."""
    return "bag" in basis or "series" in basis


def sizes(partials: Partials) -> Ints:
    """Size of each row: readings in its series or, without a series, distinct values in its multiset."""
    if "series" in partials.states:
        counts = (len(series.time_us) for series in partials.states["series"].tolist())
    else:
        counts = (len(multiset.values) for multiset in partials.states["bag"].tolist())
    return np.fromiter(counts, np.int64, len(partials))


def cut(partials: Partials, basis: tuple[str, ...], scale: int | None, most: int) -> Partials:
    """Split rows so that each has at most `most` readings or distinct values. basis: one for which `is_cut` is true."""
    many = sizes(partials) > most
    if not many.any():
        return partials
    parts = [partials.take(~many)]
    for row in np.flatnonzero(many).tolist():
        pieces = list(_pieces(partials.take(slice(row, row + 1)), basis, scale, most))
        parts += [pieces[0], *(_less(piece, _added(basis)) for piece in pieces[1:])]
    return concat(parts)


def _added(basis: tuple[str, ...]) -> tuple[str, ...]:
    """Columns that do not follow from values, and in which zeros add nothing: only the first piece has their state."""
    return tuple(name for c in aggregates.components_of(basis) if c.apart for name in c.columns)


def _less(piece: Partials, columns: tuple[str, ...]) -> Partials:
    """The piece with zeros in these columns."""
    none = {name: np.zeros_like(piece.states[name]) for name in columns}
    return Partials(piece.start, piece.end, piece.key, {**piece.states, **none})


def _pieces(row: Partials, basis: tuple[str, ...], scale: int | None, most: int) -> Iterator[Partials]:
    """Split one row by its series or, without a series, by its multiset."""
    lifted = _lifted_columns(basis)
    name = "series" if "series" in basis else "bag"
    whole: Any = row.states[name][0]
    for first in range(0, int(sizes(row)[0]), most):
        part = slice(first, first + most)
        if name == "series":
            piece = Series(whole.time_us[part], whole.value[part], whole.node[part], whole.order[part])
            one = Segments.runs(np.zeros(1, np.int64), len(piece.time_us))
            states = aggregates.lift(Readings(piece.time_us, piece.value, NO_INTS), one, lifted, scale)
            states[name] = _cell(piece)
        else:
            values = Multiset(whole.values[part], whole.counts[part])
            states = {**_states(values, lifted, scale), name: _cell(values)}
        yield Partials(row.start, row.end, row.key, {**row.states, **states})


def _cell(value: Multiset | Series) -> Array:
    """A column of one row."""
    column = np.empty(1, object)
    column[0] = value
    return column


def _lifted_columns(basis: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that can be computed from values alone, without the column that is split."""
    components = aggregates.components_of(basis)
    known = [c for c in components if not (c.apart or any(KINDS[COLUMNS[name].kind].of_reading for name in c.columns))]
    wanted = {name for c in known for name in c.columns}
    wanted -= {"series"} if "series" in basis else {"bag"}
    return tuple(name for name in basis if name in wanted)


def _states(multiset: Multiset, basis: tuple[str, ...], scale: int | None) -> dict[str, Array]:
    """The states, one row, of the readings in a multiset."""
    column = _cell(multiset)
    states: dict[str, Array] = {}
    for component in aggregates.components_of(basis):
        if component.of_bag is not None:
            states |= component.of_bag(column, scale)
    others = tuple(name for name in basis if name not in states)
    return states | _added_up(multiset, others, scale)


def _added_up(multiset: Multiset, basis: tuple[str, ...], scale: int | None) -> dict[str, Array]:
    """The states of a multiset: those of each value, combined as often as it counts, in log2(count) doublings."""
    k = len(multiset.values)
    readings = Readings(np.zeros(k, np.int64), multiset.values, NO_INTS)
    copies = aggregates.lift(readings, Segments.runs(np.arange(k), k), basis, scale)  # states of 1, 2, 4, ... readings
    twice = Segments.coded(np.tile(np.arange(k), 2), k)
    left, parts = np.array(multiset.counts), []
    while True:
        odd = left % 2 == 1
        parts.append({name: column[odd] for name, column in copies.items()})
        left //= 2
        if not left.any():
            break
        doubled = {name: np.concatenate([column, column]) for name, column in copies.items()}
        copies = aggregates.combine(doubled, twice, basis)
    states = {name: np.concatenate([part[name] for part in parts]) for name in basis}
    return aggregates.combine(states, Segments.runs(np.zeros(1, np.int64), len(states["count"])), basis)
