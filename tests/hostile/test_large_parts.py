"""What one child states fits into the frames of its parent, however long its texts are; what cannot fit is refused."""

from __future__ import annotations

import numpy as np
import pytest

from edge_agent.algebra.frame import DAMAGED, Define, Frame, Gap, GroupPart, Leaf, Members, Plan, Section, Serving
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.losses.bad_messages import MOST_REASON_BYTES
from edge_agent.machines.uplink.encoding import size_bounds
from edge_agent.wire import definitions, frames, members
from edge_agent.wire.cbor import dumps
from edge_agent.wire.frames import MAX_GROUP_BYTES, MAX_ITEM_BYTES
from tests.hostile.fed_region import COUNTED, GROUP, NOW_US, Region, S, counted

WIDE = "\U0001f600"  # four bytes


def two() -> Region:
    region = Region()
    for child in ("good", "bad"):
        region.hears(child, region.birth(child, COUNTED))
    return region


def assert_goes_on(region: Region) -> None:
    """All that was stated is stated again by the next process, and the good child's row arrives."""
    region.start()
    region.hears("good", counted(1, 5))
    region.goes_on("good")
    assert region.readings() >= 5


@pytest.mark.parametrize("letter", ["z", WIDE])
def test_ranges_of_queries_with_the_longest_names_fill_as_many_frames_as_they_need(letter: str) -> None:
    """protocol 2.1"""
    region = two()
    ids = [f"q{n:04}".ljust(256, letter) for n in range(600)]
    for first in range(0, 600, 100):
        some = tuple(Serving(q, 2**62, NOW_US, NOW_US + 10, NOW_US + 20) for q in ids[first : first + 100])
        region.gives("bad", frames.encode(Frame(7, 1 + first // 100, members=(Members(0, (), (), some),))))
    region.waits()
    for turn in range(5):  # the good child is left out, so that the ranges of the other are those of all
        region.now_us += 20 * S
        region.gives("bad", frames.encode(Frame(7, 7 + turn, groups=(GroupPart(0, region.now_us),))))
        region.waits()
    assert not region.quarantined
    stated = {serving.query for frame in region.sent for change in frame.members for serving in change.serving}
    assert stated >= set(ids)
    assert_goes_on(region)


def test_plans_with_long_names_of_queries_fill_as_many_frames_as_they_need() -> None:
    region = two()
    queries = tuple((f"{n:04}{WIDE * 250}", 2**62) for n in range(100))
    one = np.array([NOW_US - 5 * S])
    rows = Partials(one, one + S, np.zeros(1, np.int64), {"count": np.ones(1, np.int64), "sum": np.ones(1, np.int64)})
    for seq in (1, 2, 3):
        plan = Plan(b"1234567%d" % seq, "slice", ("count", "sum"), 0, S, queries)
        parts = (GroupPart(0, NOW_US, (Section.of(seq, plan, rows),)),)
        region.gives("bad", frames.encode(Frame(7, seq, define=Define(plans=((seq, 0, plan),)), groups=parts)))
    region.waits()
    assert not region.quarantined
    assert_goes_on(region)
    assert len({plan.hash for frame in region.sent if frame.define for _, _, plan in frame.define.plans}) == 4


def text_of(size_bytes: int) -> str:
    """A text of this many bytes as CBOR, with few characters."""
    return WIDE * ((size_bytes - 5) // 4) + "x" * ((size_bytes - 5) % 4)


LARGE = {
    "a sensor": lambda size: Frame(7, 1, define=Define(sensors=(text_of(size),))),
    "a query": lambda size: Frame(7, 1, define=Define(queries=(text_of(size),))),
    "a key": lambda size: Frame(
        7,
        1,
        define=Define(keys=(1, (text_of(size),))),
        groups=(GroupPart(0, NOW_US, registers=((1, NOW_US - S),)),),
    ),
    "a group": lambda size: Frame(
        7,
        1,
        define=Define(groups=((1, Group("s", text_of(size - 13), (), 0, "revise")),)),
        members=(Members(1, (), (), (Serving("q", 1),)),),
    ),
    "a gap record": lambda size: Frame(7, 1, gaps=(Gap((GROUP,), 0, 1, 1, ("bad",), text_of(size - 29), 0, ""),)),
}

MOST = {"a group": MAX_GROUP_BYTES}  # others: MAX_ITEM_BYTES


@pytest.mark.parametrize("what", LARGE)
def test_a_text_that_would_not_fit_beside_the_headers_of_the_next_frame_is_refused(what: str) -> None:
    """protocol 2.1, 3.6"""
    region = two()
    most = MOST.get(what, MAX_ITEM_BYTES)
    region.gives("bad", frames.encode(LARGE[what](most + 10)))
    region.waits()
    assert f"at most {most} are allowed" in region.quarantined[0]
    assert_goes_on(region)


@pytest.mark.parametrize("what", LARGE)
def test_a_text_that_just_fits_is_passed_on(what: str) -> None:
    """protocol 2.1"""
    region = two()
    region.gives("bad", frames.encode(LARGE[what](MOST.get(what, MAX_ITEM_BYTES))))
    region.waits()
    assert not region.quarantined
    assert_goes_on(region)


def group_of(size_bytes: int) -> Group:
    """A group whose definition takes this many bytes."""
    return Group("s", text_of(size_bytes - 13), (), 0, "revise")


def test_a_group_that_is_defined_twice_gives_a_gap_record_that_the_parent_can_read() -> None:
    """protocol 2.1, 3.6: the region's frames are decoded as its parent does it."""
    region = two()
    for seq in (1, 2):
        group = Group("s", f"{seq}" * 40_000, (), 0, "revise")
        region.gives("bad", frames.encode(Frame(7, seq, define=Define(groups=((1, group),)))))
    region.waits()
    assert region.quarantined == ["group number 1 is defined already with other content"]
    (gap,) = region.losses()
    assert gap.reason == f"quarantined: {region.quarantined[0]}"
    assert_goes_on(region)


def test_the_largest_group_has_room_in_a_gap_record_beside_the_evidence() -> None:
    region = two()
    define = Define(groups=((1, group_of(MAX_GROUP_BYTES)),))
    members_of = (Members(1, (Leaf("bad", 1),)),)
    part = GroupPart(1, NOW_US - S)
    region.hears("bad", Frame(7, 1, define=define, members=members_of, groups=(part,)))
    region.gives("bad", dumps([1, 7, 2, b"z" * 6_000]))
    region.waits()
    assert len(region.quarantined) == 1
    assert max(len(gap.groups[0].where) for gap in region.losses()) > 20_000
    assert_goes_on(region)


@pytest.mark.parametrize("reason", ["r" * 200, WIDE * 1_500, DAMAGED])
def test_a_gap_record_that_just_fits_is_passed_on_although_it_grows(reason: str) -> None:
    """protocol 3.6: this node adds the leaves and the time."""
    region = two()
    room = MAX_ITEM_BYTES - MAX_GROUP_BYTES - len(reason.encode()) - 60
    gap = Gap((group_of(MAX_GROUP_BYTES),), 0, 0, -1, (), reason, 1, "d" * room)
    region.gives("bad", frames.encode(Frame(7, 1, gaps=(gap,))))
    region.waits()
    assert not region.quarantined
    assert all(len(gap.reason.encode()) <= MOST_REASON_BYTES for gap in region.losses())
    assert_goes_on(region)


def test_a_long_reason_is_not_repeated_for_each_group() -> None:
    """One record of 90 kB names a thousand groups; those in which its child has the same leaves share a record."""
    region = two()
    groups = tuple(Group(f"{n}", "", (), 0, "revise") for n in range(1_000))
    region.gives("bad", frames.encode(Frame(7, 1, gaps=(Gap(groups, 0, 0, -1, (), "r" * 65_000, 1, "d" * 9_000),))))
    region.waits()
    assert sum(len(gap.groups) for gap in region.losses()) == 1_000
    assert sum(len(gap.reason) + len(gap.detail) for gap in region.losses()) < 1_000_000


def test_the_estimated_sizes_are_smaller_than_the_real_ones_by_no_more_than_some_bytes() -> None:
    """protocol 2.1: a quarter of a frame is left for this and for headers."""
    long, most = WIDE * 256, 2**62
    serving = Serving(long, most, most, most, most, long)
    group = Group(long, long, (long,) * 3, most, "revise", GROUP.cut, long)
    plan = Plan(bytes(8), "session", (long,) * 9, -30, most, ((long, most),) * 30, most)
    item_of = members.members_item([Members(2**16 - 1, (), (), (serving,))])
    item = definitions.define_item(Define(groups=((2**16 - 1, group),), plans=((2**16 - 1, 2**16 - 1, plan),)))
    assert len(dumps(item_of[0][3][0])) <= size_bounds.of_serving(serving) + 12
    assert len(dumps(item[2][0])) <= size_bounds.of_group(group) + 12
    assert len(dumps(item[3][0])) <= size_bounds.of_plan(plan) + 12
