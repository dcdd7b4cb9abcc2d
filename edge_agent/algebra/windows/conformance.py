"""What a window type says of its windows in several ways, held against each other before anybody relies on one of them.

Gateways slice at `edge_sets`, mergers and the plain root ask `assign` and `ends`, Spark gets `runs`: a type of another
package that says one thing here and another there would give other rows at each of them, or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from edge_agent.algebra.partials.arrays import Ints
    from edge_agent.algebra.span import Run
    from edge_agent.algebra.windows.protocols import Window

WINDOWS: Final = 16  # that are looked at, at least, where there are so many
MOST_EDGES: Final = 20_000
FAR_US: Final = 2**52  # some 140 years


def disagreement(spec: Window) -> str:
    """What the window says in two ways, '' if nothing from 0 on. Raises: whatever the spec does."""
    steps = [max(int(lattice.step_us), 1) for lattice in spec.spacing]
    finest_us = min([*steps, *(max(int(each.step_us), 1) for each in spec.edge_sets)])
    upto_us = min(spec.longest_us + WINDOWS * max(steps), MOST_EDGES * finest_us, FAR_US)
    edges = np.asarray(spec.edges(0, upto_us))
    if edges.ndim != 1 or edges.dtype != np.int64 or bool((edges[1:] <= edges[:-1]).any()):
        return "edges are int64, sorted, each once"
    start = np.asarray(spec.edge_sets[0].points(0, upto_us))
    end = np.asarray(spec.ends(start))
    if end.shape != start.shape or bool((end <= start).any()) or bool((end[1:] < end[:-1]).any()):
        return "ends come after the starts of their windows, in their order"
    length = end - start
    if len(length) and (int(length.max()) > spec.longest_us or (spec.one_length and int(np.ptp(length)))):
        said = f"longest_us is {spec.longest_us} and one_length {spec.one_length}"
        return f"{said}, and windows are {_few(length)} us long"
    at = np.unique(np.concatenate([start, end[end <= upto_us]]))
    parted = np.unique(np.concatenate([lattice.points(0, upto_us) for lattice in spec.edge_sets]))
    for name, other in (("edges", edges), ("edge_sets", parted)):
        if not np.array_equal(at, other):
            return f"windows start (edge_sets[0]) and end at {_few(at)} us, {name} are {_few(other)}"
    if len(at) and bool((at % max(int(spec.unit_us), 1)).any()):
        return f"unit_us is {spec.unit_us}, and edges are {_few(at)}"
    return _of_windows(spec, start, end, upto_us)


def _of_windows(spec: Window, start: Ints, end: Ints, upto_us: int) -> str:
    told = [
        (comb.offset_us + i * comb.slide_us, comb.length_us)
        for comb in spec.runs(0, upto_us)
        for i in range(_first(comb.after_us, comb), _first(comb.upto_us, comb))
    ]
    ended = end <= upto_us
    want = list(zip(start[ended].tolist(), (end - start)[ended].tolist(), strict=True))
    if sorted(told) != want:
        return f"runs give windows of (start, length) {_few(sorted(told))}, edge_sets[0] and ends {_few(want)}"
    few, cut = 4 * WINDOWS, np.unique(np.concatenate([start, end[ended]]))[: 4 * WINDOWS]
    low, high = np.concatenate([start[:few], cut[:-1]]), np.concatenate([end[:few], cut[1:]])  # windows, and slices
    row, found = spec.assign(low, high)
    every = set(zip(np.asarray(row).tolist(), np.asarray(found).tolist(), strict=True))
    holds = (start[None, :] <= low[:, None]) & (end[None, :] >= high[:, None])
    held = {(int(i), int(start[j])) for i, j in zip(*np.nonzero(holds), strict=True)}
    if every != held:
        i, us = min(every ^ held)
        return f"assign says that [{low[i]}, {high[i]}) is {'' if (i, us) in every else 'not '}in the window from {us}"
    return ""


def _first(after_us: int, comb: Run) -> int:
    """The number of the first window of a comb that ends after that."""
    return max((after_us - comb.length_us - comb.offset_us) // comb.slide_us + 1, 0)


def _few(found: Iterable[object]) -> str:
    """The first of them."""
    listed = found.tolist() if isinstance(found, np.ndarray) else list(found)
    return str(listed[:4])[:-1] + (", ...]" if len(listed) > 4 else "]")
