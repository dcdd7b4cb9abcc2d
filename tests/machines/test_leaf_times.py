"""What a parent says of single leaves, in the space and time of what differs: the same as leaf by leaf."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.coverage import Coverage, session_coverage, window_coverage
from edge_agent.algebra.frame import BEGAN, ENDED, LATEST_US, LOST, NEVER_US, ExcludedLeaf, Gap, Leaf, Members, Serving
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.group_cut import SessionCut
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import Session, Tumbling, Window
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.uplink.step import GroupStep
from edge_agent.root.decision.window_ranges import CoverageRef
from tests.benchmarks import bench_decision
from tests.support.machines.scripted_child import SUM, S, Sender, root_of

GROUP, SESSIONS = Group("s", "", (), 0), Group("s", "", (), 0, cut=SessionCut(5))
KEY = QueryKey("q", 1)
Shares = tuple[Mapping[str, int], Mapping[str, int]]  # leaf -> from when, until when it serves a query
CHILDREN, LEAVES = ("a", "b", "m", "n"), ("a", "b", "x", "y", "z")
TIMES, EPOCHS = st.integers(0, 30), st.integers(1, 4)
SHARES = st.dictionaries(st.sampled_from(LEAVES), st.one_of(TIMES, st.just(LATEST_US)), max_size=3)
LISTED = st.builds(Leaf, st.sampled_from(LEAVES), EPOCHS, st.one_of(st.none(), EPOCHS))
SERVED = st.one_of(
    st.builds(lambda at: Serving(*KEY, at), st.one_of(st.none(), TIMES)),
    st.builds(lambda at, until: Serving(*KEY, at, None, until), TIMES, TIMES),
    st.builds(lambda leaf, at: Serving(*KEY, at, node=leaf), st.sampled_from(LEAVES), st.one_of(st.none(), TIMES)),
    st.builds(lambda leaf, until: Serving(*KEY, 0, None, until, leaf), st.sampled_from(LEAVES), TIMES),
)
CHANGES = st.builds(
    lambda leaves, dropped, serving: Members(0, leaves, tuple(dropped), serving),
    st.lists(LISTED, max_size=3).map(tuple),
    st.sets(st.sampled_from(LEAVES), max_size=1),
    st.lists(SERVED, max_size=2).map(tuple),
)
EXCLUDED = st.lists(st.builds(ExcludedLeaf, st.sampled_from(LEAVES), TIMES, TIMES), max_size=2)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(CHILDREN),
        st.one_of(
            st.tuples(st.just("change"), CHANGES),
            st.tuples(st.just("promise"), TIMES),
            st.tuples(st.just("except"), EXCLUDED),
            st.tuples(st.just("hint"), TIMES),
            st.tuples(st.just("lose"), st.none()),
            st.tuples(st.just("drop"), st.sampled_from(LEAVES)),
            st.tuples(st.just("leave"), st.builds(Leaf, st.sampled_from(LEAVES), EPOCHS, EPOCHS)),
        ),
    ),
    max_size=25,
)


def do(family: GroupMembership, node: str, what: str, value: object) -> None:
    member = family.member(node)
    match value:
        case Members():
            family.change(node, value)
        case Leaf():
            family.leave(node, value)
        case list():
            member.except_leaves(value)
        case str():
            member.drop(value)
        case int() if what == "promise":
            member.promise(value, 1_000)
            family.advance_frontier(1_000, dict.fromkeys(family.members, node == "n"))
        case int():
            member.take_hints((), [("k", value)])
        case _:
            member.lose(node, 0)


def leaf_by_leaf(member: Member) -> dict[str, tuple[int, int]]:
    out = {}
    for leaf in member.leaves:
        frontier, bound = member.exceptions.get(leaf, (member.frontier_us, member.frontier_us))
        frontier = min(frontier, member.frontier_us)
        bound = min(bound, frontier)
        if leaf in member.reached:
            before = member.reached[leaf]
            frontier, bound = before if leaf in member.unlisted else (max(frontier, before[0]), max(bound, before[1]))
        out[leaf] = (frontier, bound)
    return out


def times_by_leaf(family: GroupMembership) -> dict[str, tuple[int, int]]:
    """Every expected leaf -> (frontier, session bound): each leaf of each member in turn."""
    out: dict[str, tuple[int, int]] = {}
    several, moves = family._several(), family.moves
    missing = {leaf for leaf, of in several.items() if any(map(moves.missing, moves.oldest(of.values())))}
    for node, member in family.expected().items():
        for leaf, (frontier_us, bound_us) in leaf_by_leaf(member).items():
            if leaf not in several or node in several[leaf]:
                known = out.get(leaf, (frontier_us, bound_us))
                out[leaf] = min(frontier_us, known[0]), min(bound_us, known[1])
        missing |= {leaf for leaf in member.moved - several.keys() if moves.missing(member.leaves[leaf])}
    moves.bounds(out, missing)
    return out


def excluded_by_leaf(member: Member, frontier_us: int) -> list[ExcludedLeaf]:
    low, out = member.out or member.frontier_us < frontier_us, []
    for leaf, (own_us, bound_us) in leaf_by_leaf(member).items():
        lowest_us = min(bound_us, member.lowest_us) if low else bound_us
        behind = own_us < frontier_us and (low or leaf in member.exceptions or leaf in member.unlisted)
        if behind or ((member.out or leaf in member.exceptions) and lowest_us < frontier_us):
            out.append(ExcludedLeaf(leaf, own_us, lowest_us))
    return sorted(out, key=lambda each: each.node)


def moves(family: GroupMembership, leaf: str) -> bool:
    return any(leaf in member.moved for member in family.expected().values())


def begins_by_leaf(family: GroupMembership) -> dict[str, int]:
    """Of several members that list a leaf which moves, the earliest start counts; the new one may state it later."""
    agreed_us, found = family._agreement._start_us[KEY], dict[str, list[int]]()
    start_us = NEVER_US if agreed_us is None else agreed_us
    for member in family.expected().values():
        serving, own = member.serving.get(KEY), member.begins.get(KEY, {})
        for leaf in member.leaves:
            begin_us = max(LATEST_US if serving is None else serving.from_us, own.get(leaf, NEVER_US))
            found.setdefault(leaf, []).append(begin_us)
    later = {leaf: [us for us in begin if us > start_us or moves(family, leaf)] for leaf, begin in found.items()}
    least = {leaf: min(begin) if moves(family, leaf) else begin[-1] for leaf, begin in later.items() if begin}
    return {leaf: us for leaf, us in least.items() if us > start_us}


def ends_by_leaf(family: GroupMembership) -> dict[str, int]:
    members = [member for member in family.expected().values() if KEY in member.serving]
    last_us = max((member.serving[KEY].bounds_us[2] for member in members), default=-NEVER_US)
    found = dict[str, list[int]]()
    for member in members:
        for leaf in member.leaves:
            end_us = min(member.serving[KEY].bounds_us[2], member.ends.get(KEY, {}).get(leaf, -NEVER_US))
            found.setdefault(leaf, []).append(end_us)
    earlier = {leaf: [us for us in ends if us < last_us or moves(family, leaf)] for leaf, ends in found.items()}
    last = {leaf: max(ends) if moves(family, leaf) else ends[-1] for leaf, ends in earlier.items() if ends}
    return {leaf: us for leaf, us in last.items() if us < last_us}


@given(STEPS)
def test_a_group_says_of_every_leaf_what_its_members_say_leaf_by_leaf(
    steps: list[tuple[str, tuple[str, object]]],
) -> None:
    """protocol 4.5, 4.6, 6.3; on a move 1.5, with a lost journal 3.7."""
    family = GroupMembership(60)
    for node, (what, value) in steps:
        do(family, node, what, value)
        wanted = times_by_leaf(family)
        assert family.leaf_frontiers() == wanted
        frontiers, bounds = family.leaf_times()
        assert frontiers.names == bounds.names == tuple(sorted(wanted))
        for member in family.members.values():
            assert member.leaf_frontiers() == leaf_by_leaf(member)
            found = sorted(member.exceptions_at(family.published_us), key=lambda each: each.node)
            assert found == excluded_by_leaf(member, family.published_us)
        family.serving(1_000)
        if KEY in family._agreement._start_us:
            listed = {leaf for member in family.expected().values() for leaf in member.leaves}
            for found_us, wanted_us in ((family.begins(), begins_by_leaf), (family.ends(), ends_by_leaf)):
                # a leaf that no member lists is on its way: see the tests of moves
                of_listed = {leaf: us for leaf, us in found_us.get(KEY, {}).items() if leaf in listed}
                assert of_listed == wanted_us(family)


def test_a_leaf_that_moves_is_expected_between_the_frame_that_lists_it_and_the_one_with_its_ranges() -> None:
    """protocol 1.5, 6.3: a step takes several frames, and the new parent's first query may be stated after the leaf."""
    family = GroupMembership(60)
    do(family, "a", "change", Members(0, (Leaf("x", 1), Leaf("y", 1)), (), (Serving(*KEY),)))
    family.serving(0)
    do(family, "b", "change", Members(0, (Leaf("x", 2, 1),)))
    assert family.begins() == {}
    do(family, "b", "change", Members(0, (), (), (Serving(*KEY, None, None, 30),)))
    assert family.ends() == {}
    do(family, "a", "drop", "x")
    assert family.ends() == {KEY: {"x": 30}}


TIMES_OF_LEAVES = st.builds(
    lambda shared, own: (shared, own),
    st.lists(st.tuples(st.sets(st.sampled_from(LEAVES)).map(sorted).map(tuple), TIMES), max_size=3),
    st.dictionaries(st.sampled_from(LEAVES), TIMES, max_size=3),
)


@given(TIMES_OF_LEAVES, TIMES, st.dictionaries(st.sampled_from(("a", "q")), TIMES))
def test_times_answer_as_a_plain_dict(
    made: tuple[list[tuple[tuple[str, ...], int]], dict[str, int]], before_us: int, more: dict[str, int]
) -> None:
    shared, own = made
    seen: set[str] = set()
    apart = []  # no leaf is in two of them, unless it has its own
    for leaves, us in shared:
        apart.append((tuple(leaf for leaf in leaves if leaf not in seen or leaf in own), us))
        seen.update(leaves)
    plain = {leaf: us for leaves, us in apart for leaf in leaves} | own
    times = LeafTimes(tuple(sorted(plain)), apart, own)
    assert times == plain
    assert (len(times), list(times)) == (len(plain), sorted(plain))
    assert times.below(before_us) == {leaf: us for leaf, us in plain.items() if us < before_us}
    assert times.distinct() == set(plain.values())
    assert times.in_order() == [plain[leaf] for leaf in sorted(plain)]
    assert {leaf for leaf in (*LEAVES, "q") if leaf in times} == plain.keys()
    assert times.also(more) == more | plain
    assert times.also(more).names == tuple(sorted(more | plain))


def window_by_leaf(leaves: Mapping[str, int], gaps: list[Gap], span_us: tuple[int, int], shares: Shares) -> Coverage:
    (start_us, end_us), (begins, ends) = span_us, shares
    here = [x for x in sorted(leaves) if begins.get(x, start_us) < end_us and ends.get(x, end_us) > start_us]
    missing = {(leaf, "behind") for leaf in here if leaves[leaf] < end_us}
    missing |= {(leaf, BEGAN) for leaf in here if begins.get(leaf, start_us) > start_us}
    missing |= {(leaf, ENDED) for leaf in here if ends.get(leaf, end_us) < end_us}
    for gap in gaps:
        if gap.start_us < end_us and gap.end_us > start_us:
            for leaf in gap.nodes or here:
                if ends.get(leaf, end_us) >= end_us and begins.get(leaf, start_us) <= start_us:
                    missing.add((leaf, BEGAN if gap.reason == BEGAN else LOST))
    return Coverage(tuple(here), tuple(sorted(missing)))


def session_by_leaf(bounds: Mapping[str, int], gaps: list[Gap], span_us: tuple[int, int], shares: Shares) -> Coverage:
    (first_us, last_us), (begins, ends) = span_us, shares
    end_us, low_us = last_us + 5, first_us - 5
    here = [x for x in sorted(bounds) if begins.get(x, end_us) <= end_us and ends.get(x, low_us + 1) > low_us]
    missing = {(leaf, "behind") for leaf in here if bounds[leaf] <= end_us}
    missing |= {(leaf, BEGAN) for leaf in here if begins.get(leaf, low_us) > low_us}
    missing |= {(leaf, ENDED) for leaf in here if ends.get(leaf, end_us + 1) <= end_us}
    for gap in gaps:
        if gap.start_us <= end_us and gap.end_us > low_us:
            reason = BEGAN if gap.reason == BEGAN else LOST
            there = [x for x in gap.nodes if begins.get(x, end_us) <= end_us and ends.get(x, low_us + 1) > low_us]
            missing |= {(leaf, reason) for leaf in (there if gap.nodes else here)}
    return Coverage(tuple(here), tuple(sorted(missing)))


GAPS = st.lists(
    st.builds(
        lambda start, length, nodes, reason: Gap((GROUP, SESSIONS), start, start + length, -1, nodes, reason),
        TIMES,
        st.integers(1, 9),
        st.sampled_from([("a",), ("x", "q"), ()]),
        st.sampled_from([LOST, BEGAN]),
    ),
    max_size=3,
)


@given(
    st.dictionaries(st.sampled_from(LEAVES), TIMES),
    GAPS,
    st.tuples(TIMES, st.integers(1, 9)),
    st.tuples(SHARES, SHARES),
)
def test_coverage_is_the_same_as_leaf_by_leaf(
    leaves: dict[str, int], gaps: list[Gap], at_us: tuple[int, int], shares: Shares
) -> None:
    """protocol 4.7."""
    (start_us, end_us), (begins, ends) = (at_us[0], sum(at_us)), shares
    found = window_coverage(leaves, gaps, GROUP, start_us, end_us, begins=begins, ends=ends)
    assert found == window_by_leaf(leaves, gaps, (start_us, end_us), shares)
    sessions = session_coverage(leaves, gaps, SESSIONS, start_us, end_us, begins=begins, ends=ends)
    assert sessions == session_by_leaf(leaves, gaps, (start_us, end_us), shares)
    for each in (found, sessions):
        assert each.received == len({*each.expected} - {leaf for leaf, _ in each.missing})


@pytest.mark.parametrize("window", [Tumbling(10 * S), Session(2 * S)])
def test_a_loss_of_a_gateway_that_has_left_counts_in_rows_of_every_kind(window: Window | Session) -> None:
    """protocol 4.7: the row is not complete, and all gateways that it expects are in it."""
    query = Query("q", 1, "s", window, SUM, lateness_us=0)
    stays, leaves = Sender("stays", query), Sender("leaves", query)
    root, start_us = root_of(stays, leaves), 1_000_000 * S
    root.take("leaves", leaves.send((start_us, start_us + S, "", 1.0), frontier_us=start_us + S), start_us)
    root.take("leaves", leaves.lose(start_us + 2 * S, start_us + 3 * S), start_us)
    root.take("leaves", leaves._put(GroupStep(query.group, None, dropped=("leaves",))), start_us)
    later = (start_us + S, start_us + 2 * S, "", 1.0)
    root.take("stays", stays.send(later, frontier_us=start_us + 20 * S), start_us)
    (row,) = root.step(start_us)
    assert (row.coverage.expected, row.coverage.received, row.complete) == (("stays",), 1, False)


def test_the_id_of_a_coverage_stays_what_it_was() -> None:
    cover = CoverageRef.of(Coverage(("a", "b", "c"), (("b", "behind"),)))
    assert cover.id == "8da4b74064989f58"


def test_a_decision_looks_at_no_leaf_where_none_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU of a decision follows the mergers and groups, not the leaves below them."""
    for size in ("MERGERS", "LEAVES", "QUERIES"):
        monkeypatch.setattr(bench_decision, size, 3)
    driver = bench_decision.Driver()
    birth, *seconds = bench_decision.batches(3, 0)
    driver.batch(birth)
    driver.batch(seconds[0])

    def refuse(times: LeafTimes) -> dict[str, int]:
        raise AssertionError("a time of every leaf")

    monkeypatch.setattr(LeafTimes, "_times", refuse)
    monkeypatch.setattr(GroupMembership, "_several", refuse)
    for content in seconds[1:]:
        _, decision, work = driver.batch(content)
        assert [(span.expected, span.complete) for span in work.closing] == [(9, True)] * 3
        assert all(len(view.leaves) == 9 for view in decision.groups.values())
