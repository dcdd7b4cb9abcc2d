"""protocol 6.3: what a later change of definitions does to revisions that an earlier one has ended."""

from __future__ import annotations

from edge_agent.algebra.frame import Serving
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.gateway.group_state import withdrawn
from edge_agent.machines.slicing.query_validity import QueryValidity, changed

S = 1_000_000


def query(name: str, revision: int, length: int) -> Query:
    return Query(name, revision, "s", Tumbling(length * S), (Aggregate("sum", "sum"),))


OLD, NEW = query("q", 1, 60), query("q", 2, 30)
AFTER_EDIT = (QueryValidity(OLD, start_until_us=1_040 * S), QueryValidity(NEW, 1_040 * S))


def test_a_query_that_is_added_at_an_idle_sensor_moves_no_earlier_change() -> None:
    """The time of the second change lies before that of the first, because the sensor has sent nothing since."""
    added = query("r", 1, 15)
    assert changed(AFTER_EDIT, (NEW, added), 1_010 * S, {}) == (*AFTER_EDIT, QueryValidity(added, 1_010 * S))


def test_a_query_that_is_removed_at_an_idle_sensor_ends_only_its_present_revision() -> None:
    other = query("r", 1, 15)
    before = (*AFTER_EDIT, QueryValidity(other, 1_010 * S))
    left = changed(before, (NEW,), 1_050 * S, {})
    assert left == (*AFTER_EDIT, QueryValidity(other, 1_010 * S, end_until_us=1_050 * S))
    again = changed(left, (NEW, query("t", 1, 15)), 1_020 * S, {})
    assert again[:3] == left


def test_a_revision_that_is_replaced_before_its_begin_gives_its_time_back_to_the_next() -> None:
    third = query("q", 3, 10)
    planned = (QueryValidity(OLD, start_until_us=5_000 * S), QueryValidity(NEW, 5_000 * S))
    assert changed(planned, (third,), 1_000 * S, {}) == (
        QueryValidity(OLD, start_until_us=1_000 * S),
        QueryValidity(third, 1_000 * S),
    )


def test_a_range_with_an_end_ahead_of_the_frontier_is_taken_back_if_it_is_served_no_more() -> None:
    """Else the parent expects its windows up to that end, and says that they are complete."""
    ahead, over, stays = Serving("q", 1, None, 5_000), Serving("q", 0, None, 50), Serving("q", 3, None)
    ended = Serving("r", 1, 10, None, 5_000)
    assert withdrawn((ahead, over, stays, ended), (stays,), 100) == (
        Serving("q", 1, None, 5_000, 0),
        Serving("r", 1, 10, None, 10),
    )
