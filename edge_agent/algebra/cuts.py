"""A row whose bag does not fit a frame, as several rows of the same range and key: bags are deltas and add up.

Each piece holds the states of the very readings in its part of the bag, so that a piece is a sound partial by itself.
States that pick one reading (first, last, extremes and their times) stand in every piece: picking is idempotent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import COLUMNS, Readings
from edge_agent.algebra.bags import Bag
from edge_agent.algebra.partial import NO_INTS, Partials, concat
from edge_agent.algebra.segments import Segments

if TYPE_CHECKING:
    from edge_agent.algebra.partial import Column, Ints

_READINGS: Final = 2**16  # of a bag written out at once
_OF_A_READING: Final = ("time", "node", "order")  # kinds of columns that a bag knows nothing of


def sizes(partials: Partials) -> Ints:
    """Distinct values in the bag of each row."""
    return np.fromiter((len(bag.values) for bag in partials.states["bag"].tolist()), np.int64, len(partials))


def cut(partials: Partials, basis: tuple[str, ...], scale: int | None, most: int) -> Partials:
    """The same content with at most so many distinct values a row. basis: with 'bag' in it; every column is there."""
    many = sizes(partials) > most
    if not many.any():
        return partials
    parts = [partials.take(~many)]
    for row in np.flatnonzero(many).tolist():
        parts += _pieces(partials.take(slice(row, row + 1)), basis, scale, most)
    return concat(parts)


def _pieces(row: Partials, basis: tuple[str, ...], scale: int | None, most: int) -> Iterator[Partials]:
    """One row cut."""
    whole: Bag = row.states["bag"][0]
    lifted = _lifted_columns(basis)
    for first in range(0, len(whole.values), most):
        part = Bag(whole.values[first : first + most], whole.counts[first : first + most])
        states = {**row.states, **_states(part, lifted, scale)}
        states["bag"] = np.empty(1, object)
        states["bag"][0] = part
        yield Partials(row.start, row.end, row.key, {name: states[name] for name in row.states})


def _lifted_columns(basis: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that follow from values alone, without the bag."""
    components = aggregates.components_of(basis)
    known = [c for c in components if not any(COLUMNS[name].kind in _OF_A_READING for name in c.columns)]
    wanted = {name for c in known for name in c.columns} - {"bag"}
    return tuple(name for name in basis if name in wanted)


def _states(bag: Bag, basis: tuple[str, ...], scale: int | None) -> dict[str, Column]:
    """The states of the readings in a bag, a row each; written out a portion at a time."""
    upto = np.cumsum(bag.counts)
    parts: list[dict[str, Column]] = []
    for first in range(0, int(upto[-1]), _READINGS):
        rank = np.arange(first, min(first + _READINGS, int(upto[-1])))
        value = bag.values[np.searchsorted(upto, rank, side="right")]
        readings = Readings(np.zeros(len(value), np.int64), value, NO_INTS)
        groups = Segments.runs(np.zeros(1, np.int64), len(value))
        parts.append(aggregates.lift(readings, groups, basis, scale))
    if len(parts) == 1:
        return parts[0]
    states = {name: np.concatenate([part[name] for part in parts]) for name in basis}
    return aggregates.combine(states, Segments.runs(np.zeros(1, np.int64), len(parts)), basis)
