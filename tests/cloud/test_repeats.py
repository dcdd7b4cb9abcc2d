"""A gateway that lost its past reads its sources again: in the tables no reading counts twice (protocol 1.2)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edge_agent.algebra.frame import LOST
from tests.support.cloud.child_frames import SECOND, Child, at, query, record, starts, tick
from tests.support.cloud.jobs import Roots

pytestmark = pytest.mark.spark


def test_rows_that_a_lost_line_had_delivered_count_once_also_when_they_are_read_back(
    roots: Callable[..., Roots],
) -> None:
    root = roots()
    old, new = Child("gw-1", (query(),)), Child("gw-1", (query(),), epoch=2)
    root.take(
        tick(at(1)),
        record(old, at(1), old.birth()),
        record(old, at(2), old.rows(at(2), starts(0, 1), np.array([1.0, 5.0]))),
    )
    root.take(
        tick(at(5)),
        record(new, at(5), new.birth(LOST)),
        record(new, at(5), new.rows(at(4), starts(0, 1, 2, 3), np.array([1.0, 5.0, 7.0, 9.0]))),
    )

    def found() -> list[tuple[int, float]]:
        rows = sorted(root.results().values(), key=lambda row: row["start"])
        return [((row["start"] - at(0)) // SECOND, row["values"]["avg"]) for row in rows if row["readings"] == 1]

    once = [(0, 1.0), (1, 5.0), (2, 7.0), (3, 9.0)]
    assert found() == once
    root.start()  # its caches are empty: rows are read from bronze.messages
    root.take(tick(at(6)), record(new, at(6), new.rows(at(5), starts(4), np.array([2.0]))))
    late = new.rows(at(6), starts(1, 2), np.array([5.0, 8.0]))
    root.take(tick(at(7)), record(new, at(7), late))
    assert [place for place in found() if place[0] in (0, 1)] == once[:2]
    (revised,) = [row for row in root.results().values() if row["start"] == at(2)]
    assert (revised["readings"], revised["values"]["avg"]) == (2, 7.5)
    rows = {row["start"]: row for row in root.results().values()}
    assert not rows[at(1)]["complete"], "what may be a repeat does not count, and is declared"
