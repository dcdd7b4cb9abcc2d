"""Rows of more plans, or more groups, than an epoch numbers leave in several epochs; no start fails for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from edge_agent.algebra.frame import Define, Frame, GroupPart, Leaf, Members, Plan, Section, Serving
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink import room
from edge_agent.machines.region import partial_store
from edge_agent.machines.uplink.encoding import epoch_encoder
from edge_agent.wire import fields, frames
from tests.hostile.fed_region import COUNTED, NOW_US, Region, S

MOST = 50
LIMITS = epoch_encoder.MAX_PLANS, epoch_encoder.MAX_GROUPS


@pytest.fixture(autouse=True)
def few() -> Iterator[None]:
    with mock.patch.object(epoch_encoder, "MAX_PLANS", MOST), mock.patch.object(epoch_encoder, "MAX_GROUPS", MOST):
        yield


def of_plans(seq: int, first: int, number: int, ahead: int = 1_000_000) -> Frame:
    """One row of one reading in each of some plans, in windows that close long after."""
    start = np.array([NOW_US + ahead * S])
    plans = [Plan(b"%08d" % n, "slice", ("count",), None, S, ((f"q{n}", 1),)) for n in range(first, first + number)]
    row = Partials(start, start + S, np.zeros(1, np.int64), {"count": np.ones(1, np.int64)})
    sections = tuple(Section.of(1 + first + n, plan, row) for n, plan in enumerate(plans))
    define = Define(plans=tuple((1 + first + n, 0, plan) for n, plan in enumerate(plans)))
    return Frame(7, seq, define=define, groups=(GroupPart(0, None, sections),))


def numbers(region: Region) -> tuple[int, int]:
    """The highest number of a plan, and of a group, that the region defined."""
    defined = [frame.define for frame in region.sent if frame.define is not None]
    plans = [number for define in defined for number, _, _ in define.plans]
    return max(plans), max(number for define in defined for number, _ in define.groups)


def test_the_limits_are_those_of_frames() -> None:
    assert (fields.MAX_PLANS, fields.MAX_GROUPS) == LIMITS


@pytest.mark.parametrize("number", [MOST - 1, MOST, 3 * MOST])
def test_a_region_with_open_rows_of_more_plans_than_an_epoch_numbers_starts_again(number: int) -> None:
    """protocol 1.3, 2.4: at a start all open rows leave as the last frames of the epoch before."""
    region = Region()
    for child in ("good", "bad"):
        region.hears(child, region.birth(child, COUNTED))
    region.hears("bad", of_plans(1, 0, number))
    part = of_plans(1, 0, 1).groups[0].sections[0].partials
    states = {"count": np.array([5]), "sum": np.array([5], object)}
    own = Section.of(0, COUNTED, Partials(part.start, part.end, part.key, states))
    region.hears("good", Frame(7, 1, groups=(GroupPart(0, None, (own,)),)))
    for _ in range(2):
        region.start()
        region.waits()
    assert region.readings() == number + 5
    assert numbers(region)[0] < MOST
    assert not region.losses()


def test_late_rows_of_many_plans_leave_in_several_epochs() -> None:
    region = Region()
    region.hears("bad", region.birth("bad", COUNTED))
    region.hears("bad", Frame(7, 1, groups=(GroupPart(0, NOW_US),)))
    frame = of_plans(2, 0, 2 * MOST, ahead=-100)
    (part,) = frame.groups
    region.hears("bad", replace(frame, groups=(replace(part, sections=(), late=part.sections),)))
    region.waits()
    assert region.readings() == 2 * MOST
    assert numbers(region)[0] < MOST


def test_groups_that_come_and_go_begin_a_new_epoch_when_their_numbers_are_used_up() -> None:
    region = Region()
    region.hears("c", region.birth("c", COUNTED))
    for n in range(1, 2 * MOST):
        group = Define(groups=((n, Group(f"s-{n}", "", (), 0, "revise")),))
        members = (Members(n, (Leaf("c", 1),), (), (Serving("q", 1),)),)
        region.hears("c", Frame(7, 2 * n - 1, define=group, members=members, groups=(GroupPart(n, NOW_US),)))
        region.hears("c", Frame(7, 2 * n, members=(Members(n, (), ("c",)),)))
    defined = {group.source for frame in region.sent if frame.define for _, group in frame.define.groups}
    assert len(defined) == 2 * MOST
    assert max(n for frame in region.sent if frame.define for n, _ in frame.define.groups) < MOST


def naming(seq: int, first: int, number: int, child: str) -> Frame:
    """A child names some groups of its own."""
    names = range(first, first + number)
    groups = tuple((n + 1, Group(f"{child}-{n}", "", (), 0, "revise")) for n in names)
    members = tuple(Members(n + 1, (Leaf(child, 1),)) for n in names)
    return Frame(7, seq, define=Define(groups=groups), members=members)


def test_one_child_cannot_name_so_many_groups_that_those_of_its_siblings_have_no_number() -> None:
    """protocol 2.2: the region numbers the groups of all its children."""
    with mock.patch.multiple(room, MOST_TOGETHER=20, RESERVED=10, FEW=3):
        region = Region()
        for child in ("good", "bad"):
            region.hears(child, region.birth(child, COUNTED))
        region.hears("bad", naming(1, 0, 19, "bad"))
        assert not region.quarantined
        region.hears("bad", naming(2, 19, 2, "bad"))
        assert region.quarantined == ["more than 20 groups of all children together"]
        region.hears("good", naming(1, 0, 2, "good"))
        region.hears("good", Frame(7, 2, groups=(GroupPart(1, NOW_US),)))
        assert len(region.quarantined) == 1
        assert Group("good-0", "", (), 0, "revise") in region.merger.parent.children.memberships


def test_the_groups_of_all_children_leave_room_for_those_that_have_ended() -> None:
    assert room.MOST_TOGETHER + room.RESERVED + 8_192 <= fields.MAX_GROUPS


def test_plans_with_open_rows_are_bounded_and_those_of_the_largest_group_leave_early() -> None:
    """protocol 6.1: each has slots of its own in the spool."""
    with mock.patch.object(partial_store, "MOST_OPEN", 10 * partial_store.OF_PLAN):
        region = Region()
        region.hears("bad", region.birth("bad", COUNTED))
        for n in range(5):
            region.gives("bad", frames.encode(of_plans(1 + n, 8 * n, 8)))
            region.waits()
            assert len(region.merger.store._stores) <= 10
        assert region.merger.counters()["beyond_bounds"]["open rows"] > 0
        assert region.readings() + region.merger.store.readings == 40
