"""The rows of one plan at the plain-Python root, found by time until no window needs them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edge_agent.algebra.frame import Plan
from edge_agent.algebra.partials.partial import Partials
from edge_agent.root.numpy.partial_index import _CHUNKS, PartialIndex

PLAN = Plan(b"12345678", "slice", ("count",), None, 1, (("q", 1),))


def rows(*spans: tuple[int, int]) -> Partials:
    start, end = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    ones = np.ones(len(spans), np.int64)
    return Partials(start, end, 0 * ones, {"count": ones})


def holding(*spans: tuple[int, int], late: bool = False) -> PartialIndex:
    index = PartialIndex(PLAN)
    index.add(rows(*spans), late=late)
    return index


def test_rows_are_found_within_touching_and_ending_in_a_range() -> None:
    index = holding((0, 10), (10, 20), (20, 30))
    index.add(rows((15, 16)), late=True)

    def spans(found: Iterator[tuple[Partials, bool]]) -> list[tuple[int, int, bool]]:
        return [
            (start, end, late)
            for part, late in found
            for start, end in zip(part.start.tolist(), part.end.tolist(), strict=True)
        ]

    assert spans(index.within(10, 20)) == [(10, 20, False), (15, 16, True)]
    assert spans(index.within(11, 19)) == [(15, 16, True)]
    assert spans(index.touching(10, 20)) == [(10, 20, False), (15, 16, True)]
    assert spans(index.touching(9, 21)) == [(0, 10, False), (10, 20, False), (20, 30, False), (15, 16, True)]
    assert spans(index.ending(10, 20)) == [(10, 20, False), (15, 16, True)]
    assert spans(index.ending(9, 10)) == [(0, 10, False)]
    assert [index.ending_after(us) for us in (9, 10, 29, 30)] == [4, 3, 1, 0]


def test_a_row_that_ends_where_rows_are_needed_stays_also_when_chunks_are_joined() -> None:
    """protocol 8.4: only rows that end before that time may go."""
    index = holding((0, 9))
    index.add(rows((0, 10)), late=False)
    index.add(rows((0, 8), (1, 10), (2, 30)), late=True)
    index.free(10)
    assert len(index) == 4
    for start in range(20, 20 + _CHUNKS):
        index.add(rows((start, start + 1)), late=False)
    found = [(part.end.tolist(), late) for part, late in index.within(0, 10)]
    assert found == [([10], False), ([10], True)]
    assert len(index) == 3 + _CHUNKS
    assert index.added == 5 + _CHUNKS


def test_no_row_starts_before_the_lowest_start() -> None:
    """protocol 8.4: the root looks for rows to drop only if one of them starts before the horizon."""
    index = holding((5, 9), (7, 8))
    index.add(rows((3, 12)), late=True)
    index.add(rows((4, 5)), late=False)
    assert index.low_us == 3
    index.free(6)
    assert index.low_us == 3
    index.free(13)
    assert not len(index)
    assert index.low_us > 13
    index.add(rows((20, 21)), late=False)
    assert index.low_us == 20
