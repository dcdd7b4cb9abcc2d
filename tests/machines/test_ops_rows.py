"""Rows of the ops tables, as both roots write them."""

from __future__ import annotations

from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.query.query import Group
from edge_agent.root.completeness import Decision, GroupView
from edge_agent.root.decision.ops_rows import NodeRows

START_US = 1_800_000_000_000_000


def test_the_frontier_of_a_source_without_a_reading_is_null() -> None:
    group = Group("host", "", ("metric",), 0)
    view = GroupView(NEVER_US, {"gw-1": START_US, "gw-2": NEVER_US}, {}, {})
    rows = NodeRows().rows(Decision(START_US, (), {group: view}, {}, (), (), ()), 7)
    assert rows is not None
    assert [(row["node"], row["frontier"], row["group_frontier"]) for row in rows] == [
        ("gw-1", START_US, None),
        ("gw-2", None, None),
    ]
