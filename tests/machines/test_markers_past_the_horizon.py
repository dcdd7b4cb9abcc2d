"""Windows between markers of several gateways that leave the correction horizon while a gateway is away (4.2, 4.7)."""

from __future__ import annotations

import numpy as np
import pytest

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.punctuation.markers import MARKER_KEY, role_key
from edge_agent.algebra.query.planner import plan
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Punctuation
from edge_agent.machines.uplink.step import GroupStep, StepRows
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from tests.support.machines.scripted_child import GRACE, SUM, S, Sender, root_of

HORIZON_US = 640 * S  # windows are forgotten in steps of a 64th: 10 s
HOW = pytest.mark.parametrize("how", ["bounds", "overlap", "central"])


def query_of(how: str) -> Query:
    return Query("q", 1, "boiler", Punctuation(how), SUM, on_missing="skip" if how == "central" else "hold")


def window(sender: Sender, value: float, frontier_us: int, end_us: int = 100 * S) -> Frame:
    """A frame with a reading of this value in the window [0, end_us) between two markers."""
    _, marks = plan(sender.queries, None)
    if marks.plan.kind == "marker" and plan(sender.queries, None)[0].plan.kind == "raw":
        key, starts, ends = role_key(""), [0, end_us], [1, end_us + 1]
        rows = sender._release([(50 * S, 50 * S + 1, "", value)], late=False, kind=None)
    else:
        key, starts, ends = MARKER_KEY, [0], [end_us]
        rows = sender._release([(0, end_us, "", value)], late=False, kind=None)
    listed = Partials(
        np.array(starts), np.array(ends), np.zeros(len(ends), np.int64), {"count": np.ones(len(ends), np.int64)}
    )
    markers = StepRows(marks.plan, False, listed, [key], [sender.node])
    return sender._put(GroupStep(sender.queries[0].group, frontier_us, (rows, markers)))


def without_b(how: str, *frontiers_us: int, end_us: int = 100 * S) -> tuple[NumpyRoot, Sender]:
    """A root that has shown the window without b, and then took these frontiers of a."""
    a, b = Sender("a", query_of(how)), Sender("b", query_of(how))
    root = root_of(a, b, horizon_us=HORIZON_US)
    root.take("a", window(a, 1.0, 110 * S, end_us), 110 * S + GRACE)
    (row,) = root.step(110 * S + GRACE)
    assert (row.values, row.coverage.missing) == ({"sum": 1.0}, (("b", "behind"),))
    for at_us in frontiers_us:
        root.take("a", a.send(frontier_us=at_us), at_us)
        assert root.step(at_us) == []
    return root, b


def back(root: NumpyRoot, b: Sender, at_us: int, end_us: int = 100 * S) -> list[Row]:
    """The rows when b is back with its reading."""
    root.take("b", window(b, 2.0, at_us, end_us), at_us)
    return root.step(at_us)


@HOW
def test_a_gateway_that_is_back_within_the_horizon_completes_the_row(how: str) -> None:
    root, b = without_b(how, 739 * S)
    (row,) = back(root, b, 739 * S)
    assert (row.values, row.complete, row.revision) == ({"sum": 3.0}, True, 1)
    assert not root.beyond


@HOW
@pytest.mark.parametrize("after_us", [S, 2 * S, 40 * S])
def test_a_row_beyond_the_horizon_is_not_complete_without_the_readings_that_came_too_late(
    how: str, after_us: int
) -> None:
    """protocol 4.2: it was, until the window was forgotten: up to a 64th of the horizon, or a step, later."""
    at_us = 740 * S + after_us
    root, b = without_b(how, 735 * S, at_us)
    assert back(root, b, at_us) == []
    assert [(late.node, late.readings) for late in root.beyond] == [("b", 1)]


def test_a_window_that_leaves_the_horizon_at_the_step_that_brings_the_readings_keeps_its_row() -> None:
    root, b = without_b("bounds", 735 * S)
    a_us = 745 * S
    root.take("b", window(b, 2.0, a_us), a_us)
    assert root.decider.parent.children.memberships
    rows = root.step(a_us)
    assert [(row.values, row.complete) for row in rows] == [({"sum": 3.0}, True)], "the frontier is still that of a"


@pytest.mark.parametrize("how", ["bounds", "overlap"])
def test_the_last_window_within_the_horizon_takes_readings_and_the_next_does_not(how: str) -> None:
    """protocol 4.2: to the microsecond."""
    for beyond_us in (0, 1):
        root, b = without_b(how, 739 * S, 740 * S, end_us=100 * S + 1 - beyond_us)
        rows = back(root, b, 740 * S, end_us=100 * S + 1 - beyond_us)
        assert [row.values["sum"] for row in rows] == ([] if beyond_us else [3.0])
        assert len(root.beyond) == beyond_us
