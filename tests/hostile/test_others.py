"""One gateway speaks for itself: not for its siblings, not for the operator, and no row of it ends a merged one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.algebra.frame import (
    LEAF_READINGS,
    Birth,
    Define,
    ExcludedLeaf,
    Frame,
    Gap,
    GroupPart,
    Leaf,
    Members,
    Plan,
    Serving,
)
from edge_agent.algebra.partials.multisets import FlatMultisets
from edge_agent.algebra.query.query import Group
from edge_agent.config.in_force.revision_numbering import MOST_AHEAD, RevisionNumberer
from edge_agent.errors import WireError
from edge_agent.root.completeness import Decider
from edge_agent.wire import frames, receipts
from edge_agent.wire.fields import MAX_SEQ
from tests.hostile.fed_region import COUNTED, GROUP, NOW_US, Region, S, counted, rows


@pytest.mark.parametrize("count", [2**62, 2**61, 2**53, LEAF_READINGS + 1])
def test_a_count_that_no_gateway_has_is_refused_and_the_others_part_arrives(count: int) -> None:
    region = Region()
    for child, many in (("bad", count), ("worse", count), ("good", 5)):
        region.hears(child, region.birth(child, COUNTED), counted(1, many))
    region.goes_on("good")
    assert region.readings() == 5
    assert len(region.quarantined) == 2
    assert "readings in a row of 1 gateways" in region.quarantined[0]


INTS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**61, -(2**61), 2**61 + 1, 2**62, 2**53, 0, 1]))
BAGS = Plan(b"12345678", "slice", ("count", "bag"), 0, S, (("q", 1),))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(INTS, min_size=1, max_size=4, unique=True), st.sampled_from([1, 2, 2**40, 2**45, 2**52])),
        min_size=1,
        max_size=3,
    )
)
def test_all_bags_that_decode_can_be_encoded_again_after_merging(found: list[tuple[list[int], int]]) -> None:
    """protocol 7.1: through two tiers; what a child cannot send is refused there, and costs nobody else a row."""
    region = Region()
    for n, (values, count) in enumerate(found):
        flat = FlatMultisets(np.array(sorted(values)), np.full(len(values), count), np.array([len(values)]))
        states = {"count": np.array([len(values) * count]), "bag": flat.column()}
        try:
            frame = rows(1, BAGS, states)
            frames.encode(frame)
        except (ValueError, WireError):
            continue  # no sender has such
        region.hears(f"bad-{n}", region.birth(f"bad-{n}", BAGS), frame)
    flat = FlatMultisets(np.array([7]), np.array([3]), np.array([1]))
    region.hears("good", region.birth("good", BAGS), rows(1, BAGS, {"count": np.array([3]), "bag": flat.column()}))
    region.goes_on("good")
    assert region.readings() >= 3


def test_a_bag_with_an_integer_that_cannot_be_encoded_again_does_not_decode() -> None:
    for beyond in (2**61 + 1, -(2**61) - 1, 2**62 - 1):
        with pytest.raises(WireError, match="beyond 6"):
            _decoded_bag(beyond)
    _decoded_bag(2**61)


def _decoded_bag(value: int) -> None:
    import cbor2

    from edge_agent.wire.columns import multisets

    item = cbor2.loads(cbor2.dumps([None, 1, [None, value, 0], 1]))
    column, _ = multisets.decode(item, 1, 10, "bag")
    multisets.encode(column)


FOREIGN: dict[str, dict[str, Any]] = {
    "a leaf": {"members": (Members(0, (Leaf("bad", 1), Leaf("good", 9)), (), ()),)},
    "a leaf that is gone": {"members": (Members(0, (Leaf("bad", 1),), ("good",), ()),)},
    "a serving range": {"members": (Members(0, (Leaf("bad", 1),), (), (Serving("q", 1, 0, None, node="good"),)),)},
    "a loss": {"gaps": (Gap((GROUP,), 0, NOW_US, 5, ("good",), "quota"),)},
    "an exception": {"groups": (GroupPart(0, NOW_US - 10 * S, exceptions=(ExcludedLeaf("good", 5, 5),)),)},
    "a loss in the group of another node": {
        "gaps": (Gap((replace(GROUP, node="good"),), 0, NOW_US, 5, ("bad",), "quota"),)
    },
    "30 000 leaves": {"members": (Members(0, tuple(Leaf(f"x-{n}", 1) for n in range(5_000)), (), ()),)},
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_gateway_that_speaks_for_others_is_not_heard_and_they_are(what: str) -> None:
    region = Region()
    region.hears("good", region.birth("good", COUNTED))
    region.hears("bad", region.birth("bad", COUNTED, **FOREIGN[what]))
    region.hears("good", counted(1, 5))
    region.goes_on("good")
    assert region.readings() == 5
    assert any("speaks for" in reason for reason in region.quarantined)
    leaves = {leaf.node for frame in region.sent for change in frame.members for leaf in change.leaves}
    assert leaves == {"good"}
    lost = {node for frame in region.sent for gap in frame.gaps for node in gap.nodes}
    assert lost <= {"bad"}


@pytest.mark.parametrize("gateways_only", [True, None])
def test_a_loss_that_a_gateway_declares_for_nobody_is_its_own(gateways_only: bool | None) -> None:
    """protocol 3.5, 4.7: a record without nodes concerns all leaves, and a gateway has one. Honest ones send such."""
    region = Region(gateways_only=gateways_only)
    region.hears("good", region.birth("good", COUNTED))
    lost = Gap((GROUP,), NOW_US - S, NOW_US, 5, (), "quota")
    region.hears("bad", region.birth("bad", COUNTED, gaps=(lost,)), Frame(7, 1, gaps=(lost,)))
    assert [gap.nodes for gap in region.losses() if gap.reason == "quota"] == [("bad",), ("bad",)]


@pytest.mark.parametrize("gateways_only", [True, None])
def test_a_gateway_sends_no_rows_of_a_siblings_own_group_also_with_a_number_that_it_has_defined(
    gateways_only: bool | None,
) -> None:
    own = Group("s", "", (), 0, "revise", node="good")
    define = Define(groups=((1, own),), plans=((1, 1, COUNTED),))
    region = Region(gateways_only=gateways_only)
    for child in ("good", "bad"):
        region.hears(child, region.birth(child, COUNTED), Frame(7, 1, define=define))
    row = counted(2, 3, 999).groups[0].sections[0]
    claim = Members(1, (Leaf("bad", 7),), (), (Serving("q", 1),))
    region.hears(
        "bad", Frame(7, 2, members=(claim,)), Frame(7, 3, groups=(GroupPart(1, None, (replace(row, plan=1),)),))
    )
    assert own not in region.merger.parent.children.memberships
    assert ["speaks for good" in why for why in region.quarantined] == [True] * 3
    region.goes_on("good")
    assert region.readings() == 0


def test_where_nobody_says_what_children_are_one_that_has_named_itself_names_no_other() -> None:
    region = Region(gateways_only=None)
    region.hears("good", region.birth("good", COUNTED))
    region.hears("below", region.birth("leaf", COUNTED))  # a region from its first word
    region.hears("good", Frame(7, 1, gaps=(Gap((GROUP,), 0, NOW_US, 5, ("leaf",), "quota"),)))
    assert len(region.quarantined) == 1
    assert "is a gateway itself" in region.quarantined[0]
    region.hears("below", Frame(7, 1, members=(Members(0, (Leaf("leaf-2", 1),), (), ()),)))
    assert len(region.quarantined) == 1
    leaves = {leaf.node for frame in region.sent for change in frame.members for leaf in change.leaves}
    assert leaves == {"good", "leaf", "leaf-2"}


def test_a_birth_that_says_it_follows_its_own_epoch_is_refused_and_its_node_can_begin_again() -> None:
    """protocol 1.2: it ended the epoch that it began, and the region reported a second device."""
    region = Region()
    region.hears("good", region.birth("good", COUNTED))
    itself = Birth(7 << 32, region.merger.journal, (7, -1), "1")
    region.hears("bad", replace(region.birth("bad", COUNTED), birth=itself))
    region.merger.parent.inbox.check()
    assert ["names itself as the epoch before" in why for why in region.quarantined] == [True]
    next_one = Birth(8 << 32, region.merger.journal, None, "1")
    again = replace(region.birth("bad", COUNTED), epoch=8, birth=next_one)
    region.hears("bad", again, replace(counted(1, 3), epoch=8))
    region.hears("good", counted(1, 5))
    region.goes_on("good")
    assert region.readings() >= 5


def test_a_record_that_stands_for_more_frames_than_have_numbers_is_refused() -> None:
    """protocol 3.5: the next number of the epoch would fit no receipt."""
    region = Region()
    region.hears("bad", region.birth("bad", COUNTED))
    gap = Gap((), 0, 1, 0, ("bad",), "quota", MAX_SEQ)
    region.hears("bad", Frame(7, 1, gaps=(gap, gap)))
    receipt = region.merger.parent.inbox.receipt("bad", 7)
    assert receipts.decode(receipts.encode(receipt)).upto == 2
    assert ["numbers" in why for why in region.quarantined] == [True]


def test_a_state_with_an_invented_number_leaves_the_next_one_to_the_operator() -> None:
    numberer = RevisionNumberer(settle_us=0)
    topic = "hw/1/all/cfg/query/q"

    def numbered(text: dict[str, object]) -> int:
        numberer.hear(topic, json.dumps(text).encode(), 0)
        (made,) = numberer.due(1)
        return int(json.loads(made.payload)["revision"])

    assert numbered({"source": "a"}) == 1
    for said in (2**53 - 1, 10**9, 1 + MOST_AHEAD + 1):
        numberer.hear_state(json.dumps({"items": {"query/q": {"revision": said}}}).encode(), "bad")
    assert numbered({"source": "b"}) == 2
    numberer.hear_state(b'{"items": {"query/q": {"ok": true, "revision": 5}}}', "honest")  # of a local file
    numberer.hear_state(b'{"items": {}}', "bad")
    assert numbered({"source": "c"}) == 6


def test_a_state_with_invented_ids_costs_a_bounded_memory() -> None:
    numberer = RevisionNumberer(settle_us=0)
    for turn in range(5):
        items = {f"query/x-{turn}-{n}": {"revision": 9} for n in range(20_000)}
        numberer.hear_state(json.dumps({"items": items}).encode(), "bad")
    assert sum(map(len, numberer._taught.values())) <= 3_000
    assert not numberer._highest


def at_the_root(*messages: tuple[str, Frame]) -> tuple[dict[str, int], list[Gap]]:
    """(leaf -> its frontier, gap records) of a root that hears these; it goes on after a start."""
    root, now_us = Decider(1, 60 * S), NOW_US
    for node, frame in messages:
        now_us += S
        birth = frame.birth and replace(frame.birth, journal=1, epoch_id=frame.epoch << 32)
        root.take(node, replace(frame, birth=birth), now_us)
        decision = root.decide(now_us)
        state, root = root.snapshot(lambda each: each), Decider(1, 60 * S)
        root.restore(state, lambda each: each)
    view = decision.groups[GROUP]
    return {leaf: view.leaves[leaf] for leaf in view.leaves.names}, [gap for _, gap in root.gaps]


@pytest.mark.parametrize("what", FOREIGN)
def test_a_gateway_below_the_root_speaks_for_itself_too(what: str) -> None:
    """protocol 4.6: with no region between, or with a broker that it shares with the root."""
    told = Region(gateways_only=False)
    good, bad = (told.birth(node, COUNTED) for node in ("good", "bad"))
    members = (Members(0, (), ("bad",)),)
    over = replace(told.birth("bad", COUNTED, **FOREIGN[what]), seq=2, birth=None, define=None)
    leaves, gaps = at_the_root(("good", good), ("bad", bad), ("bad", Frame(7, 1, members=members)), ("bad", over))
    assert leaves.keys() <= {"good", "bad"}
    assert leaves["good"] == NOW_US - 10 * S
    assert {node for gap in gaps for node in gap.nodes} == {"bad"}
    assert any("speaks for" in gap.reason for gap in gaps)


def test_a_region_names_those_below_it_at_the_root() -> None:
    told = Region(gateways_only=False)
    lost = Gap((GROUP,), 0, NOW_US, 5, ("good",), "quota")
    own = Gap((), 0, 1, 0, ("m",), "a function failed")
    leaves, gaps = at_the_root(("m", told.birth("good", COUNTED)), ("m", Frame(7, 1, gaps=(lost, own))))
    assert leaves == {"good": NOW_US - 10 * S}
    assert {gap.nodes for gap in gaps} == {("good",), ("m",)}
