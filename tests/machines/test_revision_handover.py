"""Which revision a window belongs to, whoever tells of it when: agreed ranges get narrower, never wider."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import Serving
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.root.revision_handover import Servings, agreed, narrowed

ONE, OTHER = Group("s", "", (), 0), Group("s", "value > 0", (), 0)
TIMES = st.none() | st.integers(0, 50)
TOLD = st.dictionaries(st.integers(1, 3), st.tuples(TIMES, TIMES), max_size=3).map(
    lambda told: {
        group: {("q", n): Serving("q", n, *times) for n, times in told.items() if (n == 2) == (group == OTHER)}
        for group in (ONE, OTHER)
    }
)


def owners(servings: Servings, start_us: int) -> list[QueryKey]:
    """The revisions that may give a row for a window with that start."""
    return [
        key
        for of in servings.values()
        for key, serving in of.items()
        if serving.start_from_us is None or start_us >= serving.start_from_us
        if serving.start_until_us is None or start_us < serving.start_until_us
    ]


@given(said=st.lists(st.tuples(TOLD, st.integers(0, 60)), min_size=1, max_size=5))
def test_what_was_agreed_gets_narrower_and_what_is_lost_is_told(
    said: list[tuple[dict[Group, dict[QueryKey, Serving]], int]],
) -> None:
    """protocol 6.3: told once, from when it holds does not move; it never ends later than it was once said to."""
    before: dict[Group, dict[QueryKey, Serving]] = {}
    for told, frontier_us in said:
        frontiers = {ONE: frontier_us, OTHER: frontier_us // 2}
        after = agreed(before, told, frontiers)
        over = narrowed(before, after, frontiers)
        for group, known in before.items():
            for key, was in known.items():
                now = after[group][key]
                assert now.start_from_us == was.start_from_us
                for start_us in range(60):
                    had, has = (
                        key in owners({group: {key: was}}, start_us),
                        key in owners({group: {key: now}}, start_us),
                    )
                    assert had or not has
                    if had and not has and start_us < frontiers[group]:
                        assert start_us >= over[group, key]
        for start_us in range(60):
            assert len(owners(after, start_us)) <= 1
        before = after


def test_a_revision_that_nobody_dates_begins_after_the_rows_of_the_one_before() -> None:
    """protocol 6.3: a gateway that comes up with the second revision while those with the first are away."""
    first = agreed({}, {ONE: {QueryKey("q", 1): Serving("q", 1)}}, {ONE: 10})
    second = agreed(first, {ONE: {QueryKey("q", 2): Serving("q", 2)}}, {ONE: 40})
    assert second[ONE][QueryKey("q", 2)].start_from_us == second[ONE][QueryKey("q", 1)].start_until_us == 40
    assert not narrowed(first, second, {ONE: 40})
    alone = agreed({}, {ONE: {QueryKey("q", 2): Serving("q", 2)}}, {ONE: 40})
    assert alone[ONE][QueryKey("q", 2)].start_from_us is None


def test_rows_are_withdrawn_once_and_not_at_each_decision() -> None:
    """protocol 6.3"""
    key, frontiers = QueryKey("q", 1), {ONE: 50}
    before: Servings = {ONE: {key: Serving("q", 1)}}
    after: Servings = {ONE: {key: Serving("q", 1, None, 30)}}
    assert narrowed(before, after, frontiers) == {(ONE, key): 30}
    assert narrowed(after, after, frontiers) == {}
