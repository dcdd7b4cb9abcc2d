"""Validation of received rows against their plan: names and kinds of columns, and consistency between columns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from edge_agent.algebra import sketches
from edge_agent.algebra.aggregates import COLUMNS, components_of
from edge_agent.algebra.columns import KINDS, OF_NODES
from edge_agent.algebra.columns.kind import ColumnKind
from edge_agent.algebra.partials import series
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.multisets import totals
from edge_agent.errors import WireError

HELD: Final = frozenset(("bag", "series", "kll", "frequent"))  # columns that hold readings, which `count` counts


def check_held(plan: int, states: Mapping[str, Array]) -> None:
    """Refuse columns of one row that contradict each other. Raises: WireError."""
    if "min" in states and "max" in states and bool((states["min"] > states["max"]).any()):
        raise WireError(f"plan {plan}: a minimum above the maximum")
    for name, held in (
        ("bags", totals(states["bag"]) if "bag" in states else None),
        ("series", series.flat(states["series"]).sizes if "series" in states else None),
        ("sketches", sketches.kll.readings(states["kll"]) if "kll" in states else None),
    ):
        if held is not None and bool((held != states["count"]).any()):
            raise WireError(f"plan {plan}: {name} with another number of readings than their count")
    for name in ("bag", "frequent"):
        if name in states and any(
            len(each.counts) and int(each.counts.max()) > most
            for each, most in zip(states[name].tolist(), states["count"].tolist(), strict=True)
        ):
            raise WireError(f"plan {plan}: a value that occurs more often than the count of readings")
    if "frequent" in states and bool((totals(states["frequent"]) > states["count"]).any()):
        raise WireError(f"plan {plan}: more frequent values than the count of readings")


def bounds(column: Array) -> tuple[int, int]:
    """(lowest, highest) of 64-bit integers, of the node numbers of series; 0 for others. At least one row."""
    if series.is_series(column):
        column = series.flat(column).node
    if column.dtype != np.int64:
        return 0, 0
    if len(column) == 1:  # a merger of many groups sends one row of most of them
        return int(column[0]), int(column[0])
    return int(column.min()), int(column.max())


class Checked(NamedTuple):
    """What remains to be checked in a plan's rows, once the kinds of their columns fit.

    bounded: columns with bounds: (position, name, whether it counts readings, whether it contains node numbers). held:
    whether columns of one row may contradict each other.
    """

    bounded: tuple[tuple[int, str, bool, bool], ...]
    held: bool


@lru_cache(maxsize=1024)
def check_columns(basis: tuple[str, ...], letters: str, scale: int | None) -> Checked:
    """Refuse values of another kind than the registry says. letters: one per column. Raises: WireError."""
    bounded = []
    for i, (name, letter) in enumerate(zip(basis, letters, strict=True)):
        kind = check_column(name, letter, scale)
        if kind.name == "count" or kind.renumber is not None:
            bounded.append((i, name, kind.name == "count", kind.renumber is not None))
    held = {"min", "max"} <= set(basis) or not HELD.isdisjoint(basis)
    return Checked(tuple(bounded), held)


@lru_cache(maxsize=1024)
def node_columns(basis: tuple[str, ...]) -> tuple[int, ...]:
    """The positions of columns that hold node numbers."""
    return tuple(i for i, name in enumerate(basis) if name in COLUMNS and COLUMNS[name].kind in OF_NODES)


@lru_cache(maxsize=1024)
def check_basis(basis: tuple[str, ...]) -> None:
    """Refuse columns that this version cannot merge. A plan without rows may name any column.

    Raises: WireError.
    """
    unknown = [name for name in basis if name not in COLUMNS]
    if unknown:
        raise WireError(f"state columns that this version does not know: {', '.join(unknown)[:200]}")
    try:
        components_of(basis)
    except ValueError as err:
        raise WireError(str(err)[:200]) from None


@lru_cache(maxsize=1024)
def check_column(name: str, letter: str, scale: int | None) -> ColumnKind:
    """The kind of a column by the registry, if its values fit it. letter: of sketches.kind_of. Raises: WireError."""
    kind = KINDS[COLUMNS[name].kind]
    if letter not in kind.letters(scale) or sketches.LETTERS.get(name, letter) != letter:
        raise WireError(f"column {name} ({kind.name}, scale {scale}) came with values of kind {letter!r}")
    return kind
