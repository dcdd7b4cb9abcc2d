"""Turns raw readings into slices of 1 us, so that every marker of any node falls on a slice edge.

Windows are then combined from them like from other slices, for all functions, and late readings revise rows as usual.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edge_agent.algebra.aggregates import Readings, basis_of, lift
from edge_agent.algebra.aggregates.families.weighted import labels_of
from edge_agent.algebra.partials import series
from edge_agent.algebra.partials.partial import NOTHING, Partials, concat
from edge_agent.algebra.partials.segments import Segments, begins_run
from edge_agent.algebra.query.key import key_labels, label_number
from edge_agent.algebra.query.query import Group, Query


def basis_of_all(queries: Iterable[Query], scale: int | None) -> tuple[str, ...]:
    """The state columns of slices that serve these queries."""
    return basis_of((aggregate for query in queries for aggregate in query.aggregates), scale)


def reaches(group: Group) -> bool:
    """Whether a late reading counts only in a window that contains its whole row."""
    return group.late == "per_window"


def slices_of(
    rows: Partials, basis: tuple[str, ...], scale: int | None, texts: Sequence[str], *, reaching: bool
) -> Partials:
    """One row per (time, key, node). rows: raw rows, with a column `series`. texts: key texts by key code.

    reaching: if all readings of a row have the same time, their slice ends where the row ends, which may be later than
    1 us after it (see machines/slicing/punctuation_slicer.py).
    """
    if not len(rows):
        return NOTHING
    found = series.flat(rows.states["series"])
    key, end = rows.key[found.rows], found.time_us + 1
    if reaching:
        single = found.time_us[found.starts] == found.time_us[found.starts + found.sizes - 1]
        end = np.where(single[found.rows], rows.end[found.rows], end)
    parts = []
    for node in np.unique(found.node).tolist():
        mine = np.flatnonzero(found.node == node)
        by = mine[np.lexsort((found.order[mine], key[mine], end[mine], found.time_us[mine]))]
        starts, ends, keys = found.time_us[by], end[by], key[by]
        first = np.flatnonzero(begins_run(starts, ends, keys))
        numbers = {}
        for label in labels_of(basis):
            codes, place = np.unique(keys, return_inverse=True)
            by_code = np.array([label_number(key_labels(texts[code]).get(label, "")) for code in codes.tolist()])
            numbers[label] = by_code[place]
        readings = Readings(starts, found.value[by], found.order[by], node, numbers)
        states = lift(readings, Segments.runs(first, len(by)), basis, scale)
        parts.append(Partials(starts[first], ends[first], keys[first], states))
    return concat(parts)
