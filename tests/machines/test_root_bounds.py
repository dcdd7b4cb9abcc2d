"""What a root keeps of statements that children can make without end (docs/protocol.md 3.5, 4.5, 6.3)."""

from __future__ import annotations

import pytest

from edge_agent.algebra.frame import LOST, Gap
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.root import bounds

GROUP, OTHER = Group("s", "", (), 0), Group("t", "", (), 0)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_SERVED", "MOST_GAPS", "MOST_UNDATED"):
        monkeypatch.setattr(bounds, name, 3)


def gap(start_us: int, end_us: int, *nodes: str, group: Group = GROUP, reason: str = "quota") -> Gap:
    return Gap((group,), start_us, end_us, 5, nodes, reason)


def test_gap_records_beyond_the_bound_are_joined_and_touch_all_windows_that_they_touched() -> None:
    """protocol 3.5: equal ones first."""
    few = [("a", gap(0, 10, "x")), ("a", gap(20, 90, "x")), ("a", gap(30, 40, "x"))]
    assert bounds.bounded_gaps(few) == few
    other = ("b", gap(5, 6, "y"))
    assert bounds.bounded_gaps([*few, other]) == [("a", Gap((GROUP,), 0, 90, -1, ("x",), "quota")), other]


def test_gap_records_that_differ_are_joined_too_and_name_leaves_only_if_all_of_them_do() -> None:
    """protocol 3.5: a record without leaves concerns all leaves of its child."""
    many = [("a", gap(10 * n, 10 * n + 5, f"x{n}", group=OTHER if n else GROUP)) for n in range(4)]
    names = ("x0", "x1", "x2", "x3")
    assert bounds.bounded_gaps(many) == [("a", Gap((GROUP, OTHER), 0, 35, -1, names, "quota"))]
    every = ("a", gap(0, 5, reason="poison"))
    assert bounds.bounded_gaps([*many, every]) == [("a", Gap((GROUP, OTHER), 0, 35, -1, (), LOST))]


def test_of_gap_records_that_touch_no_window_the_last_ones_stay() -> None:
    """protocol 3.5"""
    undated = [("a", gap(n, n, f"x{n}")) for n in range(9)]
    assert bounds.bounded_gaps(undated) == undated[-3:]


def test_of_revisions_that_nobody_serves_and_of_leaves_that_were_behind_the_newest_stay() -> None:
    """protocol 4.5, 6.3"""
    held = [QueryKey("q", revision) for revision in range(6)]
    assert bounds.surplus(held, {held[0]: None}) == held[1:3]
    assert bounds.newest({"a": 1, "b": 2, "c": 3}, 2) == {"b": 2, "c": 3}
