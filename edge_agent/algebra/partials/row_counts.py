"""How many readings rows claim to have, alone or together with others of their range and key (docs/protocol.md 7.1)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from edge_agent.algebra.aggregates import COLUMNS
from edge_agent.algebra.partials.arrays import Floats
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import begins_run


@lru_cache(maxsize=1024)
def count_columns(basis: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that count readings: `count`, and those of readings for which a function failed."""
    return tuple(name for name in basis if COLUMNS[name].kind == "count")


def claimed(rows: Partials, basis: tuple[str, ...]) -> float:
    """Readings in all rows, by the column with the most. A float, because a sum of claims may not fit 64 bits."""
    return max((float(rows.states[name].sum(dtype=np.float64)) for name in count_columns(basis)), default=0.0)


def claimed_together(rows: Partials, basis: tuple[str, ...]) -> Floats:
    """For each row, the readings in all rows with its range and key, by the column with the most.

    rows: at least one. Shape (n,), float64.
    """
    order = np.lexsort((rows.key, rows.end, rows.start))
    new = begins_run(rows.start[order], rows.end[order], rows.key[order])
    first = np.flatnonzero(new)
    totals = np.zeros(len(first))
    for name in count_columns(basis):
        totals = np.maximum(totals, np.add.reduceat(rows.states[name][order].astype(np.float64), first))
    out = np.empty(len(rows))
    out[order] = totals[np.cumsum(new) - 1]
    return out
