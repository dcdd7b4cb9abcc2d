"""Who is missing from a row because it began to serve the query within it, whatever the kind of window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.coverage import session_coverage, window_coverage
from edge_agent.algebra.frame import BEGAN, LATEST_US, LOST, Gap, Serving
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.group_cut import SessionCut
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Aggregate, Group, Query
from edge_agent.algebra.windows.count_tumbling import CountTumbling
from edge_agent.root.completeness import GroupView
from edge_agent.root.decision.ordered_queries import OrderedQueryAtDecision, ordering
from edge_agent.root.decision.window_ranges import CoverageRef

GAP_US, FAR = 5, 1_000
SESSIONS = Group("s", "", (), 0, cut=SessionCut(GAP_US))
COUNTED = Query("q", 1, "s", CountTumbling(3), (Aggregate("sum", "sum"),), lateness_us=0)
TIMES = st.integers(0, 60)
READINGS = st.lists(TIMES, min_size=1, max_size=12).map(sorted)


@given(readings=READINGS, begin=TIMES)
def test_a_session_without_readings_from_before_its_leaf_began_says_so(readings: list[int], begin: int) -> None:
    """protocol 4.5, 4.7: a row from which nobody is missing is what it would be had the leaf served from the beginning.

    A session of one node's readings; the leaf feeds those from `begin` on and had one just before.
    """
    first, last = readings[0], readings[-1]
    bounds = {"a": FAR, "b": FAR}
    found = session_coverage(bounds, (), SESSIONS, first, last, begins={"b": begin})
    touches = first - GAP_US <= begin - 1 <= last + GAP_US
    if "b" in found.expected:
        assert ("b", "began") in found.missing if touches else not found.missing
    else:
        assert begin > last + GAP_US
    assert ("a", "began") not in found.missing
    never = session_coverage(bounds, (), SESSIONS, first, last, begins={"b": LATEST_US})
    assert never.expected == ("a",)


@given(
    leaves=st.fixed_dictionaries({name: st.integers(40, 90) for name in "abc"}),
    begins=st.dictionaries(st.sampled_from("abc"), TIMES),
    lost=st.lists(
        st.tuples(TIMES, st.integers(1, 9), st.sampled_from("abc"), st.sampled_from((LOST, BEGAN))), max_size=3
    ),
    after=TIMES,
    spans=st.lists(st.tuples(TIMES, TIMES), min_size=1),
)
def test_every_count_window_finds_its_own_coverage(
    leaves: dict[str, int],
    begins: dict[str, int],
    lost: list[tuple[int, int, str, str]],
    after: int,
    spans: list[tuple[int, int]],
) -> None:
    """protocol 4.7, 7.4: by first and last reading; a leaf that begins between them is missing, not passed over."""
    group = COUNTED.group
    gaps = [Gap((group,), start, start + length, -1, (node,), reason) for start, length, node, reason in lost]
    serving = {QueryKey("q", 1): Serving("q", 1)}
    view = GroupView(70, LeafTimes.of(leaves), serving, {QueryKey("q", 1): begins})
    made = ordering(
        OrderedQueryAtDecision(COUNTED, group, view, [], {}), after, 70, target=None, orders=(0,), gaps=gaps
    )
    assert made is not None
    names = {cover.id: cover for cover in made[1]}
    for first, last in spans:
        if not first <= last or not after <= last < 70:
            continue
        wanted = window_coverage(leaves, gaps, group, first, last + 1, begins=begins)
        cells = [c for c in made[0].cells if c.first_low <= first < c.first_high and c.end_low <= last < c.end_high]
        assert [names[cell.coverage_id] for cell in cells] == [CoverageRef.of(wanted)]
        for leaf, begin in begins.items():
            declared = any(
                gap.reason == BEGAN and leaf in gap.nodes and gap.start_us <= last and gap.end_us > first
                for gap in gaps
            )
            assert ((leaf, BEGAN) in wanted.missing) == (first < begin <= last or (declared and begin <= first))
