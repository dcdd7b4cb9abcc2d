"""The last leaf of a group drops in the decision in which its frontier rises: its windows close (protocol 4.4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.algebra.frame import ExcludedLeaf
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Session, Tumbling
from edge_agent.machines.uplink.step import GroupStep
from tests.support.machines.scripted_child import SUM, S, Sender, root_of

TEN = Query("ten", 1, "boiler", Tumbling(10 * S), SUM, lateness_us=0)
HORIZON_US = 1_000 * S
FAR = 5_000 * S  # a backlog longer than the horizon


@pytest.mark.parametrize("query", [TEN, replace(TEN, window=Session(10 * S))])
@pytest.mark.parametrize("one_frame", [True, False])
def test_its_windows_get_their_rows(query: Query, one_frame: bool) -> None:
    a = Sender("a", query)
    root = root_of(a, horizon_us=HORIZON_US)
    root.take("a", a.send((0, 10 * S, "", 1.0), frontier_us=10 * S), S)
    root.step(S)
    pieces = [(at * S, (at + 10) * S, "", at + 0.0) for at in (30, 60)]
    rows = (a._release(pieces, late=False, kind=None),)
    if one_frame:
        root.take("a", a._put(GroupStep(query.group, FAR, rows, dropped=("a",))), FAR)
    else:
        root.take("a", a._put(GroupStep(query.group, FAR, rows)), FAR)
        root.take("a", a._put(GroupStep(query.group, None, dropped=("a",))), FAR)
    found = [row for row in root.step(FAR) if row.start > 0]
    assert [(row.start // S, row.values["sum"], row.expected, row.complete) for row in found] == [
        (30, 30.0, 1, True),
        (60, 60.0, 1, True),
    ]
    assert root.step(FAR + S) == []
    assert not root.decider.parent.children.memberships, "the group ends with the next decision"


def test_the_windows_of_a_region_say_which_of_its_leaves_was_behind() -> None:
    """protocol 4.6: it drops all of them in one frame."""
    region = Sender("region", TEN, leaves=("a", "b"))
    root = root_of(region, horizon_us=HORIZON_US)
    out = (ExcludedLeaf("b", 5 * S, 5 * S),)
    root.take("region", region.send((0, 10 * S, "", 1.0), frontier_us=10 * S, exceptions=out), S)
    root.step(S)
    rows = (region._release([(30 * S, 40 * S, "", 3.0)], late=False, kind=None),)
    root.take("region", region._put(GroupStep(TEN.group, FAR, rows, dropped=("a", "b"))), FAR)
    (row,) = root.step(FAR)
    assert (row.start, row.expected, row.coverage.missing) == (30 * S, 2, (("b", "behind"),))


def test_a_leaf_that_is_listed_again_is_not_taken_for_gone() -> None:
    a = Sender("a", TEN)
    root = root_of(a, horizon_us=HORIZON_US)
    root.take("a", a._put(GroupStep(TEN.group, FAR, dropped=("a",))), FAR)
    root.take("a", a.birth(FAR), FAR)
    root.step(FAR)
    (family,) = root.decider.parent.children.memberships.values()
    assert (list(family.expected()), family.published_us) == (["a"], FAR)


def test_rows_of_leaves_that_dropped_before_the_last_one_count() -> None:
    a, b = Sender("a", TEN), Sender("b", TEN)
    root = root_of(a, b, horizon_us=HORIZON_US)
    for sender in (a, b):
        rows = (sender._release([(30 * S, 40 * S, "", 3.0)], late=False, kind=None),)
        root.take(sender.node, sender._put(GroupStep(TEN.group, FAR, rows, dropped=(sender.node,))), FAR)
    (row,) = root.step(FAR)
    assert (row.start, row.values["sum"], row.complete) == (30 * S, 6.0, True)


def test_a_query_that_came_and_went_within_one_decision_has_rows() -> None:
    a = Sender("a", TEN)
    root = root_of(horizon_us=HORIZON_US)
    root.take("a", a.birth(), FAR)
    root.take("a", a.send((30 * S, 40 * S, "", 3.0), frontier_us=FAR), FAR)
    root.take("a", a._put(GroupStep(TEN.group, None, dropped=("a",))), FAR)
    (row,) = root.step(FAR)
    assert (row.start, row.expected, row.complete) == (30 * S, 1, True)
