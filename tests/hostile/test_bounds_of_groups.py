"""What a child says of groups, definitions, leaves and losses has bounds at its parent (protocol 2.2)."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import (
    BEGAN,
    DAMAGED,
    JOURNAL_LOST,
    LOST,
    Birth,
    Define,
    ExcludedLeaf,
    Frame,
    Gap,
    GroupPart,
    Heartbeat,
    Leaf,
    Members,
    Plan,
    Serving,
)
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.text_shares import TextShares
from edge_agent.config.in_force import known_definitions
from edge_agent.machines.downlink import definitions, moves, room, serving_agreement
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.downlink.moves import Moves
from edge_agent.machines.region import merger as of_merger
from edge_agent.machines.region import partial_store
from edge_agent.root import bounds
from edge_agent.root.completeness import Decider
from edge_agent.wire import frames
from tests.hostile.fed_region import COUNTED, GROUP, NOW_US, Region, S, counted, rows


@pytest.mark.parametrize("what", ["leaves", "queries", "groups"])
def test_what_a_child_says_of_groups_is_bounded_and_a_sibling_goes_on(what: str) -> None:
    limits = {"leaves": "MOST_LEAVES", "queries": "MOST_SERVINGS", "groups": "MOST_GROUPS"}
    with mock.patch.object(room, limits[what], 3):
        region = Region(gateways_only=False)
        region.hears("good", region.birth("good", COUNTED))
        region.hears("bad", region.birth("bad", COUNTED))
        if what == "groups":
            many = tuple((n, Group(f"s-{n}", "", (), 0, "revise")) for n in range(1, 5))
            members = tuple(Members(n, (Leaf("bad", 1),)) for n, _ in many)
            over = Frame(7, 1, define=Define(groups=many), members=members)
        else:
            leaves = tuple(Leaf(f"l-{n}", 1) for n in range(5)) if what == "leaves" else ()
            servings = tuple(Serving(f"q-{n}", 1) for n in range(5)) if what == "queries" else ()
            over = Frame(7, 1, members=(Members(0, leaves, (), servings),))
        region.hears("bad", over)
        region.hears("good", counted(1, 5))
        region.goes_on("good")
        assert any(f"more than 3 {what} of one child" in why for why in region.quarantined)
        assert region.readings() == 5


@pytest.mark.parametrize("reason", [LOST, BEGAN, DAMAGED, JOURNAL_LOST])
def test_groups_that_only_a_record_or_a_heartbeat_names_are_not_kept(reason: str) -> None:
    """protocol 2.2: a parent works on every group that it knows in every step, for as long as it runs."""
    region = Region()
    region.hears("bad", region.birth("bad", COUNTED))
    many = tuple(Group(f"s-{n}", "", (), 0, "revise") for n in range(50))
    defined = Define(groups=tuple(enumerate(many, 1)))
    for start_us, end_us in ((0, 0), (NOW_US, NOW_US + S)):
        region.hears("bad", Frame(7, 1 + (end_us > 0), gaps=(Gap(many, start_us, end_us, -1, ("bad",), reason),)))
    region.hears("bad", Frame(7, 3, define=defined))
    beat = Heartbeat(7, 3, tuple((n, region.now_us) for n in range(1, 51)))
    region.gives("bad", frames.encode_heartbeat(beat))
    region.waits()
    assert [*region.merger.parent.children.memberships] == [GROUP]
    assert region.quarantined == []
    declared = {group for gap in region.losses() for group in gap.groups}
    assert declared == set(many)


def test_groups_that_a_child_only_promises_are_bounded_as_those_that_it_lists() -> None:
    with mock.patch.object(room, "MOST_GROUPS", 3):
        region = Region()
        region.hears("bad", region.birth("bad", COUNTED))
        many = Define(groups=tuple((n, Group(f"s-{n}", "", (), 0, "revise")) for n in range(1, 5)))
        parts = tuple(GroupPart(n, NOW_US, exceptions=(ExcludedLeaf("bad", 0, 0),)) for n in range(1, 5))
        region.hears("bad", Frame(7, 1, define=many, groups=parts))
        assert any("more than 3 groups of one child" in why for why in region.quarantined)
        assert [*region.merger.parent.children.memberships] == [GROUP]


def test_definitions_of_sensors_are_bounded_and_counted() -> None:
    with mock.patch.object(of_merger, "MOST_TEXTS", 10):
        region = Region()
        region.hears("c", region.birth("c", COUNTED))
        texts = tuple(f'{{"id":"s-{n}"}}' for n in range(25))
        region.hears("c", Frame(7, 1, define=Define(sensors=texts)))
        assert len(region.merger._sensors) == 10
        assert region.merger.counters()["beyond_bounds"]["definitions"] == 15
        region.hears("good", region.birth("good", COUNTED))
        region.hears("good", Frame(7, 1, define=Define(sensors=('{"id":"of a sibling"}',))))
        assert '{"id":"of a sibling"}' in region.merger._sensors


@pytest.mark.parametrize("kind", ["queries", "sensors"])
def test_a_child_that_sends_too_many_definitions_costs_only_itself_also_at_the_root(kind: str) -> None:
    """Definitions that are only in files: those of a sibling must still reach the root."""
    with (
        mock.patch.object(of_merger, "MOST_TEXTS", 10),
        mock.patch.object(definitions, "MOST_TEXTS", 10),
        mock.patch.object(known_definitions, "MOST_TEXTS", 10),
        mock.patch.object(bounds, "MOST_SENSORS", 10),
    ):
        region, root = Region(), Decider(1, 60 * S)
        for child, count in (("bad", 1_000), ("good", 3)):
            region.hears(child, region.birth(child, COUNTED))
            texts = tuple(f'{{"id":"{child}-{n}"}}' for n in range(count))
            define = Define(queries=texts) if kind == "queries" else Define(sensors=texts)
            region.hears(child, Frame(7, 1, define=define))
        assert region.merger.counters()["beyond_bounds"]["definitions"] == 990
        for frame in region.sent:
            birth = frame.birth and replace(frame.birth, journal=1)
            root.take("m", replace(frame, birth=birth), region.now_us)
        decision = root.decide(region.now_us)
        found = decision.queries if kind == "queries" else decision.sensors
        assert [text for text in found if "good" in text] == [f'{{"id":"good-{n}"}}' for n in range(3)]
        assert len(found) == 13


def test_the_share_of_a_text_grows_with_its_length_and_is_given_back() -> None:
    shares = TextShares(5)
    assert shares.add("x" * 4_100, "a")
    assert not shares.add("y", "a")
    assert shares.add("y", "b"), "another child has a share of its own"
    assert shares.add("y", "a"), "it is here already"
    assert shares.add("z" * 9_000, "m", gateways=2)
    shares.remove("x" * 4_100)
    assert shares.add("y-2", "a")
    assert list(shares) == ["y", "z" * 9_000, "y-2"]
    restored = TextShares(5, shares)
    restored.assign(shares.of.items())
    assert (restored.of, restored._used) == (shares.of, {each: n for each, n in shares._used.items() if n})


def test_texts_and_plans_of_no_open_row_go_and_open_rows_stay_what_they_are() -> None:
    with mock.patch.object(partial_store, "MOST_KEYS", 40), mock.patch.object(partial_store, "MOST_PLANS", 5):
        region, plain = Region(), Region()
        region.merger.store._tidy_at = 40
        for each in (region, plain):
            each.hears("c", each.birth("c", COUNTED))
            for n in range(1, 60):
                keys = Define(keys=(n, (f"k-{n}",)), plans=((n, 0, _plan(n)),))
                made = rows(n, _plan(n), {"count": np.array([n]), "sum": np.array([n * 7], object)})
                part = made.groups[0].sections[0]
                moved = part.partials.take(np.array([0]))
                moved.key[:] = n
                section = type(part).of(n, _plan(n), moved)
                on_time, late = ((section,), ()) if n % 5 == 0 else ((), (section,))  # those stay open till the end
                each.hears("c", Frame(7, n, define=keys, groups=(GroupPart(0, NOW_US - 10 * S, on_time, late),)))
            each.goes_on("c", 60)
        assert region.merger.store.tidied > 0
        assert len(region.merger.store.keys.texts) <= 41
        assert len(region.merger.store.plans) <= 6
        assert said(region) == said(plain)
        assert region.readings() == plain.readings() == sum(range(1, 60))


def _plan(n: int) -> Plan:
    return Plan(n.to_bytes(8, "big"), "slice", ("count", "sum"), 0, S, (("q", 1),))


def said(region: Region) -> list[tuple[str, int]]:
    """(key, count) of every row that left."""
    keys: list[str] = []
    out = []
    for frame in region.sent:
        if frame.birth is not None:
            keys = []
        if frame.define is not None:
            keys += frame.define.keys[1]
        for part in frame.groups:
            for section in (*part.sections, *part.late):
                column = next(iter(section.partials.states.values()))
                out += [(keys[k], int(c)) for k, c in zip(section.partials.key.tolist(), column.tolist(), strict=True)]
    return sorted(out)


def test_entries_that_mergers_replaced_are_bounded() -> None:
    """protocol 1.5: a leaf below two mergers is listed in a new epoch by one of them, again and again."""
    known = Moves()
    with mock.patch.object(moves, "MOST_MOVED", 80):
        for number in range(100):
            listed = {str(number): Leaf(str(number), 1)}
            known._replace(Leaf(str(number), 1), "m1", {"m1": Member(leaves=listed), "m2": Member(leaves=listed)})
        assert (len(known.replaced), known.forgotten) == (80, 20)
        assert "99" in known.replaced
        for number in range(100):
            known._skip(Leaf(str(number), 1), "m1", {})
        for number in range(1_000):
            known._skip(Leaf("99", number), "m1", {})
    assert (len(known.skipped), known.forgotten) == (80, 40)
    assert len(known.take_skipped()) == 79 + moves.KEPT_LEAVES


def test_leaves_that_moved_are_bounded_and_who_reports_most_forgets_first() -> None:
    with mock.patch.object(moves, "MOST_MOVED", 80):
        family = GroupMembership(60 * S)
        for child in ("good", "bad"):
            family.change(child, Members(0, (Leaf(f"{child}-own", 1),)))
        family.change("good", Members(0, (Leaf("g", 1),)))
        family.leave("good", Leaf("g", 2, 1))
        for n in range(1_000):
            family.leave("bad", Leaf(f"x-{n}", 2, 1))
        for n in range(1_000):
            family.leave("bad", Leaf("x", n + 2, n + 1_000_000))
        assert len(family.moves.left) <= 80
        assert "g" in family.moves.left
        assert family.leaf_frontiers().keys() >= {"g", "good-own", "bad-own"}
        assert len(family.moves.transit["x"]) <= moves.KEPT_LEAVES
        assert family.forgotten["moves"] > 1_000
        restored = GroupMembership.restore(60 * S, family.snapshot())
        assert restored.leaf_frontiers() == family.leaf_frontiers()


def test_older_lines_of_a_child_in_many_groups_have_a_bound_for_all_groups_together() -> None:
    """protocol 1.2, 2.2: each birth without a past, of 60 bytes, made an entry in each group for each one before it."""
    with mock.patch.multiple(room, MOST_OLDER=12, FEWEST_LOST=2, create=True):
        region, groups = Region(), tuple(Group(f"s-{n}", "", (), 0, "revise") for n in range(3))
        region.hears("good", region.birth("good", COUNTED))
        for epoch in range(1, 20):
            birth = Birth(epoch << 32, region.merger.journal, LOST, "1")
            define = Define(keys=(0, ("",)), groups=tuple(enumerate(groups)), plans=((0, 0, COUNTED),))
            members = tuple(Members(n, (Leaf("bad", epoch),), (), (Serving("q", 1),)) for n in range(3))
            parts = tuple(GroupPart(n, NOW_US) for n in range(3))
            region.hears("bad", Frame(epoch, 0, birth, define, members, parts))
        region.hears("good", counted(1, 5))
        region.goes_on("good")
        memberships = region.merger.parent.children.memberships
        older = {epoch for group in groups for epoch in memberships[group].members["bad"].older}
        assert older == {15, 16, 17, 18}, "the newest"
        assert region.merger.counters()["beyond_bounds"]["epochs"] == 14
        assert region.readings() == 5


def test_starts_agreed_for_revisions_that_nobody_serves_are_bounded() -> None:
    with mock.patch.object(serving_agreement, "MOST_AGREED", 40):
        family = GroupMembership(60 * S)
        family.change("good", Members(0, (Leaf("g", 1),), serving=(Serving("q", 1, 5),)))
        for n in range(200):
            family.member("bad").begin(anew=False)
            family.change("bad", Members(0, (Leaf("b", 1),), serving=(Serving(f"x-{n}", 1),)))
            family.serving(n * 100 * S)
        state = family.snapshot()
        assert len(state.since or ()) <= 42
        assert (state.starts or {})[QueryKey("q", 1)] == 5
        assert family.forgotten["starts"] >= 150


def test_queries_that_wait_for_other_children_are_not_each_compared_with_all_queries_of_these() -> None:
    """protocol 6.3: a child with 20 000 queries that no sibling serves held up its region for minutes, each step."""
    region = Region()
    for child in ("good", "bad"):
        region.hears(child, region.birth(child, COUNTED))
    many = tuple(Serving(f"x-{n}", 1, 0) for n in range(300))
    region.hears("bad", Frame(7, 1, members=(Members(0, (), (), many),)))
    real = serving_agreement._by_query
    with mock.patch.object(serving_agreement, "_by_query", side_effect=real) as gone_through:
        region.waits()
    assert gone_through.call_count <= 2
    for n in range(4):
        region.now_us += 20 * S
        for child in ("good", "bad"):
            region.hears(child, Frame(7, 1 + n + (child == "bad"), groups=(GroupPart(0, region.now_us),)))
    served = {serving.query for frame in region.sent for change in frame.members for serving in change.serving}
    assert served >= {serving.query for serving in many}, "after the grace time"


RECORDS = st.builds(
    lambda child, groups, start, length, nodes, reason: (
        child,
        Gap(tuple(Group(f"s-{n}", "", (), 0) for n in sorted(groups)), start, start + length, -1, nodes, reason),
    ),
    st.sampled_from(["a", "b", "c"]),
    st.sets(st.integers(0, 1), min_size=1),
    st.integers(0, 30),
    st.integers(0, 5),
    st.sampled_from([(), ("x",), ("x", "y")]),
    st.sampled_from([LOST, "poison"]),
)


@given(st.lists(RECORDS, max_size=40))
def test_gap_records_beyond_the_bound_are_joined_and_every_loss_stays_declared(found: list[tuple[str, Gap]]) -> None:
    with mock.patch.object(bounds, "MOST_GAPS", 8), mock.patch.object(bounds, "MOST_UNDATED", 3):
        kept = bounds.bounded_gaps(found)
    assert len(kept) <= 8
    assert sum(gap.end_us <= gap.start_us for _, gap in kept) <= 3
    for child, gap in found:
        if gap.end_us > gap.start_us:
            assert any(
                child == of
                and set(gap.groups) <= set(each.groups)
                and each.start_us <= gap.start_us < gap.end_us <= each.end_us
                and (not each.nodes or (gap.nodes and set(gap.nodes) <= set(each.nodes)))
                for of, each in kept
            ), (child, gap)


def test_what_a_child_tells_the_root_is_bounded_and_said() -> None:
    """Revisions served once, sensors, leaves that are behind and go."""
    with mock.patch.multiple(bounds, MOST_SERVED=5, MOST_SENSORS=5, MOST_GONE=5):
        decider = Decider(1, 60 * S)
        for n in range(30):
            define = Define(groups=((0, GROUP),), sensors=(f'{{"id":"s-{n}"}}',))
            leaves = (Leaf("good", 1), Leaf(f"l-{n}", 1))
            members = (Members(0, leaves, (f"l-{n - 1}",), (Serving(f"x-{n}", 1),)),)
            birth = Birth(n + 1 << 32, 1, LOST if n == 0 else (n, 1), "1", 1, ())
            at_us = NOW_US + n * S
            late = (ExcludedLeaf(f"l-{n}", 0, 0),)
            decider.take("m", Frame(n + 1, 0, birth, define, members=members, groups=(GroupPart(0, at_us),)), at_us)
            decider.take("m", Frame(n + 1, 1, groups=(GroupPart(0, at_us, exceptions=late),)), at_us)
            decision = decider.decide(at_us)
            assert len(decision.groups[GROUP].serving) <= 6
        assert len(decider._sensor_texts) == 3 * 5, "for two gateways, and one that comes"
        assert len(decider.behind.of[GROUP]) <= 6
        assert decider.take_beyond() == {"servings": 24, "sensors": 15, "leaves": 24}
        assert decider.take_beyond() == {}
