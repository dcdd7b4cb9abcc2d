"""Validation of received rows against their plan: names and kinds of columns, and consistency between columns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from edge_agent.algebra import sketches
from edge_agent.algebra.aggregates import COLUMNS, components_of
from edge_agent.algebra.columns import KINDS, OF_NODES
from edge_agent.algebra.columns.kind import LETTER_WORDS, ColumnKind
from edge_agent.algebra.partials import series
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.multisets import totals
from edge_agent.errors import WireError

HELD: Final = frozenset(("bag", "series", "kll", "frequent"))  # columns whose number of readings must fit `count`


def check_held(plan: int, states: Mapping[str, Array]) -> None:
    """Refuse rows whose columns contradict each other. plan: its number, for messages. Raises: WireError."""
    if "min" in states and "max" in states and bool((states["min"] > states["max"]).any()):
        raise WireError(f"plan {plan}: a row has a minimum above its maximum")
    for name, held in (
        ("bags", totals(states["bag"]) if "bag" in states else None),
        ("series", series.flat(states["series"]).sizes if "series" in states else None),
        ("sketches", sketches.kll.readings(states["kll"]) if "kll" in states else None),
    ):
        if held is not None and bool((held != states["count"]).any()):
            raise WireError(f"plan {plan}: the number of readings in {name} differs from `count` of the row")
    for name in ("bag", "frequent"):
        if name in states and any(
            len(each.counts) and int(each.counts.max()) > most
            for each, most in zip(states[name].tolist(), states["count"].tolist(), strict=True)
        ):
            raise WireError(f"plan {plan}: a value of {name!r} occurs more often than the row has readings")
    if "frequent" in states and bool((totals(states["frequent"]) > states["count"]).any()):
        raise WireError(f"plan {plan}: the counts of 'frequent' sum to more than the row has readings")


def bounds(column: Array) -> tuple[int, int]:
    """(lowest, highest) value of 64-bit integers, or node number of series; else (0, 0). column: at least one row."""
    if series.is_series(column):
        column = series.flat(column).node
    if column.dtype != np.int64:
        return 0, 0
    if len(column) == 1:  # frequent: a merger of many groups sends one row for most groups
        return int(column[0]), int(column[0])
    return int(column.min()), int(column.max())


class Checked(NamedTuple):
    """Checks of a plan's rows that remain once the kinds of their columns fit.

    bounded: columns whose values have bounds, as (position, name, whether it counts readings, whether it contains node
    numbers). held: whether `check_held` applies.
    """

    bounded: tuple[tuple[int, str, bool, bool], ...]
    held: bool


@lru_cache(maxsize=1024)
def check_columns(basis: tuple[str, ...], letters: str, scale: int | None) -> Checked:
    """Refuse columns whose values are not of the registered kind. letters: as Extent.kinds. Raises: WireError."""
    bounded = []
    for i, (name, letter) in enumerate(zip(basis, letters, strict=True)):
        kind = check_column(name, letter, scale)
        if kind.name == "count" or kind.renumber is not None:
            bounded.append((i, name, kind.name == "count", kind.renumber is not None))
    held = {"min", "max"} <= set(basis) or not HELD.isdisjoint(basis)
    return Checked(tuple(bounded), held)


@lru_cache(maxsize=1024)
def node_columns(basis: tuple[str, ...]) -> tuple[int, ...]:
    """Positions of the columns that contain node numbers."""
    return tuple(i for i, name in enumerate(basis) if name in COLUMNS and COLUMNS[name].kind in OF_NODES)


@lru_cache(maxsize=1024)
def check_basis(basis: tuple[str, ...]) -> None:
    """Refuse columns that this version cannot merge. Called for plans with rows only: others may name any column.

    Raises: WireError.
    """
    unknown = [name for name in basis if name not in COLUMNS]
    if unknown:
        raise WireError(
            f"state columns that this node does not know: {', '.join(unknown)[:200]}; update it, or install the "
            "package that defines them"
        )
    try:
        components_of(basis)
    except ValueError as err:
        raise WireError(str(err)[:200]) from None


@lru_cache(maxsize=1024)
def check_column(name: str, letter: str, scale: int | None) -> ColumnKind:
    """The registered kind of a column. letter: from sketches.kind_of. Raises: WireError if the values do not fit it."""
    kind = KINDS[COLUMNS[name].kind]
    if letter not in kind.letters(scale) or sketches.LETTERS.get(name, letter) != letter:
        wanted = " or ".join(LETTER_WORDS[each] for each in sketches.LETTERS.get(name, kind.letters(scale)))
        got = LETTER_WORDS.get(letter, repr(letter))
        raise WireError(f"column {name} ({kind.name}, scale {scale}): wanted {wanted}, got {got}")
    return kind
