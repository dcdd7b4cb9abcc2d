"""Rows of the ops tables, as both roots write them."""

from __future__ import annotations

import pytest

from cloud_job.delta import tables
from edge_agent.algebra.coverage import Coverage
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.query import Group
from edge_agent.root.completeness import Decision, GroupView
from edge_agent.root.decision import root_state
from edge_agent.root.decision.ops_rows import NodeRows
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.window_ranges import CoverageRef

START_US = 1_800_000_000_000_000


def test_the_frontier_of_a_source_without_a_reading_is_null() -> None:
    group = Group("host", "", ("metric",), 0)
    view = GroupView(NEVER_US, LeafTimes.of({"gw-1": START_US, "gw-2": NEVER_US}), {}, {})
    found = NodeRows().columns(Decision(START_US, (), {group: view}, {}, (), (), ()), 7)
    assert found is not None
    assert (found["node"], found["frontier"], found["group_frontier"]) == (
        ["gw-1", "gw-2"],
        [START_US, None],
        [None, None],
    )


def test_the_state_names_the_coverages_that_were_used_last_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing grows for ever: gateways come and go, and with each the coverages that name it."""
    monkeypatch.setattr(root_state, "MOST_COVERS", 3)
    state = RootState(RootLimits())
    covers = [CoverageRef.of(Coverage(("a", "b"), ((f"gw-{i}", "behind"),))) for i in range(5)]

    def told(*numbers: int) -> list[object]:
        return [row["leaf"] for row in state.cover([covers[i] for i in numbers])]

    assert told(0, 1, 0) == ["gw-0", "gw-1"]
    assert told(0, 2, 3) == ["gw-2", "gw-3"]
    assert told(0, 2, 3) == []
    assert told(4, 1) == ["gw-4", "gw-1"]
    assert list(state.covers_known) == [covers[i].id for i in (3, 4, 1)]
    assert state.covers_full
    assert told(*range(5)) == ["gw-0", "gw-2"]
    assert state.cover([CoverageRef.of(Coverage(("a",), ()))]) == ()


def test_a_table_of_nodes_is_written_when_it_says_something_else_and_a_large_one_less_often() -> None:
    group, nodes = Group("host", "", ("metric",), 0), NodeRows()

    def rows(at_us: int, frontier_us: int, leaves: int = 2) -> object:
        view = GroupView(frontier_us, LeafTimes.of({f"gw-{i:05d}": frontier_us for i in range(leaves)}), {}, {})
        return nodes.columns(Decision(at_us, (), {group: view}, {}, (), (), ()), 7)

    assert rows(START_US, START_US) is not None
    assert rows(START_US + 20_000_000, START_US + 1) is None, "frontiers move every second"
    assert rows(START_US + 40_000_000, START_US) is None, "nothing has changed"
    assert rows(START_US + 40_000_000, START_US + 1) is not None
    assert rows(START_US + 41_000_000, START_US + 1, leaves=100_000) is not None, "somebody came"
    assert rows(START_US + 70_000_000, START_US + 1, leaves=99_999) is None
    assert rows(START_US + 72_000_000, START_US + 1, leaves=99_999) is not None
    assert rows(START_US, START_US + 2, leaves=99_999) is not None, "the lander's clock went back"


def test_the_table_of_nodes_is_empty_once_nobody_is_expected() -> None:
    group, nodes = Group("host", "", ("metric",), 0), NodeRows()
    view = GroupView(START_US, LeafTimes.of({"gw-1": START_US}), {}, {})
    assert nodes.columns(Decision(START_US, (), {group: view}, {}, (), (), ()), 1) is not None
    emptied = nodes.columns(Decision(START_US + 1_000_000, (), {}, {}, (), (), ()), 2)
    assert emptied is not None
    assert set(emptied) == set(tables.NODES.columns)
    assert not any(emptied.values())
