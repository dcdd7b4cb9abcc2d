"""Upper estimates of the bytes that the parts of a frame take, so that a frame never exceeds its limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import numpy as np

from edge_agent.algebra import sketches
from edge_agent.algebra.aggregates import COLUMNS
from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.frame import Plan, Serving
from edge_agent.algebra.partials import multisets, series
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.query.row_sizes import ROW_BYTES

T = TypeVar("T")
LEAF_BYTES: Final = 16  # size of a listed leaf without its name


def of_texts(texts: Iterable[str]) -> int:
    """Size of texts, each with its CBOR head."""
    return sum(len(text.encode()) + 3 for text in texts)


def chunks(items: Sequence[T], bytes_of: Callable[[T], int], most_bytes: int) -> Iterator[tuple[T, ...]]:
    """Split items into runs of at most most_bytes each."""
    some: list[T] = []
    size_bytes = 0
    for item in items:
        more_bytes = bytes_of(item)
        if some and size_bytes + more_bytes > most_bytes:
            yield tuple(some)
            some, size_bytes = [], 0
        some.append(item)
        size_bytes += more_bytes
    if some:
        yield tuple(some)


def of_leaf(name: str, *, excepted: bool) -> int:
    """Size of a listed leaf. excepted: with its exception."""
    return len(name) + LEAF_BYTES + (of_exception(name) if excepted else 0)


def of_exception(name: str) -> int:
    """Size of an exception: the name of the leaf and two times."""
    return len(name) + 22


def of_serving(serving: Serving) -> int:
    """Size of a serving range: its query and leaf, a revision and three times."""
    return len(serving.query.encode()) + len(serving.node.encode()) + 40


def of_group(group: Group) -> int:
    """Size of the definition of a group."""
    more = (group.node, group.cut.text) if group.node or group.cut.text else ()
    return 24 + of_texts((group.source, group.where, *group.by, group.late, *more))


def of_plan(plan: Plan) -> int:
    """Size of the definition of a plan."""
    names = sum(len(name.encode()) + 2 for name in plan.basis)
    return 48 + names + sum(len(query.encode()) + (8 if revision < 1 << 16 else 13) for query, revision in plan.queries)


def of_row(basis: Iterable[str]) -> int:
    """Size of a row without the content of its multisets, series and sketches."""
    return ROW_BYTES + sum(KINDS[COLUMNS[name].kind].bytes for name in basis)


def of_value(rows: Partials) -> int:
    """Uncompressed size of one entry that `row_splitting.sizes` counts.

    An entry is a reading of a series, a value of a multiset, or one of each.
    """
    held = _of_reading(rows.states["series"]) if "series" in rows.states else 0
    return held + (_of_counted(rows.states["bag"]) if "bag" in rows.states else 0)


def of_bounded(rows: Partials) -> Ints:
    """Size of sketches and most frequent values in each row, shape (k,). Only these cells have a bounded size."""
    total = np.zeros(len(rows), np.int64)
    for name, column in rows.states.items():
        if sketches.is_sketches(column):
            total += np.fromiter(map(len, column.tolist()), np.int64, len(rows))
        elif name == "frequent":
            total += _of_counted(column) * multisets.flat(column).sizes
    return total


def _of_reading(column: Array) -> int:
    """Size of a reading of a series: value, widest steps of time and arrival number, and node."""
    found = series.flat(column)
    inner = found.inner()[1:]
    spans = [_span(np.diff(numbers)[inner]) for numbers in (found.time_us, found.order)]
    value = 8 if found.value.dtype.kind == "f" else _span(found.value)
    return value + sum(spans) + _span(found.node)


def _of_counted(column: Array) -> int:
    """Size of a value of a multiset and its count."""
    found = multisets.flat(column)
    counts = _width(int(found.counts.max()))
    if found.values.dtype.kind == "f":
        return 8 + counts
    steps = np.diff(found.values)[np.diff(found.rows) == 0]
    return _width(int(steps.max(initial=0))) + counts


def _span(numbers: Ints) -> int:
    return _width(int(numbers.max()) - int(numbers.min())) if len(numbers) else 1


def _width(most: int) -> int:
    return next(size for size in (1, 2, 4, 8) if most < 1 << (8 * size))
