"""Rows that nobody closes, groups without number and births without end cost bounded memory and linear time."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np

from edge_agent.algebra.frame import Birth, Define, Frame, GroupPart, Leaf, Members, Section, Serving
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.epochs import waiting_frames
from edge_agent.machines.events import Arrived, Tick
from edge_agent.machines.region import partial_store, sent_upward
from edge_agent.runtime.region import heard
from edge_agent.wire import frames
from tests.hostile.fed_region import COUNTED, GROUP, NOW_US, Region, S


def ahead(seq: int, first: int, number: int) -> Frame:
    """Rows of windows that close after the frontier of the child: one reading in each."""
    start = NOW_US + np.arange(first, first + number) * S
    states: Any = {"count": np.ones(number, np.int64), "sum": np.ones(number, object)}
    section = Section.of(0, COUNTED, Partials(start, start + S, np.zeros(number, np.int64), states))
    return Frame(7, seq, groups=(GroupPart(0, NOW_US - 10 * S, (section,)),))


def test_open_rows_are_bounded_and_those_beyond_it_leave_early() -> None:
    """protocol 6.1: the parent merges a row that left early with what comes later, so no reading is lost or twice."""
    with mock.patch.object(partial_store, "MOST_OPEN", 100):
        region = Region()
        region.hears("c", region.birth("c", COUNTED))
        for n in range(10):  # the windows of neighbours overlap by half
            region.hears("c", ahead(n + 1, 30 * n, 60))
            assert sum(map(len, region.merger.store._stores.values())) <= 100
        assert region.readings() > 0
        region.start()
        region.goes_on("c", 11)
        region.hears("c", Frame(7, 17, groups=(GroupPart(0, region.now_us + 400 * S),)))
        region.waits(500)
        assert region.readings() + region.merger.store.readings == 600
        assert region.merger.counters()["beyond_bounds"]["open rows"] == 0, "counted since the process started"
        assert not region.losses()


def test_the_groups_with_most_rows_leave_early_and_others_stay() -> None:
    other = Group("t", "", (), 0, "revise")
    with mock.patch.object(partial_store, "MOST_OPEN", 100):
        region = Region()
        region.hears("c", region.birth("c", COUNTED))
        define = Define(groups=((1, other),), plans=((1, 1, COUNTED),))
        members = (Members(1, (Leaf("c", 1),), (), (Serving("q", 1),)),)
        few = ahead(1, 0, 5).groups[0]
        sections = (replace(few.sections[0], plan=1),)
        part = GroupPart(1, NOW_US - 10 * S, sections)
        region.hears("c", Frame(7, 1, define=define, members=members, groups=(part,)))
        region.hears("c", ahead(2, 0, 120))
        store = region.merger.store
        assert {group: store.holds(group) for group in (GROUP, other)} == {GROUP: False, other: True}
        assert region.merger.counters()["beyond_bounds"]["open rows"] == 1
        assert region.readings() == 120


def steps_of(number: int) -> int:
    """How many Python functions a region calls for one step with so many groups of one child."""
    region = Region()
    region.hears("c", region.birth("c", COUNTED))
    numbers = range(1, number)
    define = Define(
        groups=tuple((n, Group(f"s-{n}", "", (), 0, "revise")) for n in numbers),
        plans=tuple((n, n, COUNTED) for n in numbers),
    )
    open_rows = ahead(1, 100, 1).groups[0].sections
    parts = tuple(GroupPart(n, NOW_US - 10 * S, (replace(open_rows[0], plan=n),)) for n in numbers)
    members = tuple(Members(n, (Leaf("c", 1),)) for n in numbers)
    frame = Frame(7, 1, define=define, members=members, groups=parts)
    region.feed(Arrived((("c", heard(frames.encode(frame)), None),)))
    region.waits()
    calls = calls_of_a_step(region)
    assert len(region.merger.store.plans) == number - 1
    return calls


def calls_of_a_step(region: Region) -> int:
    """How many Python functions a region calls for one step."""
    calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    region.now_us += 2 * S
    sys.setprofile(count)
    region.feed(Tick())
    sys.setprofile(None)
    return calls


def test_the_cost_of_a_step_is_linear_in_the_groups_of_a_child() -> None:
    few, many = steps_of(50), steps_of(400)
    assert many < 10 * few, (few, many)


def test_queries_of_one_child_cost_no_step_anything_for_each_sibling_that_does_not_serve_them() -> None:
    """protocol 4.5, 6.3: the region states once that each sibling never begins with each query."""
    region, siblings, queries = Region(), [f"s{n:02}" for n in range(20)], 200
    for child in ("bad", *siblings):
        region.hears(child, region.birth(child, COUNTED))
    unpublished = tuple(Serving(f"x{n}", 1, 0) for n in range(queries))
    region.hears("bad", Frame(7, 1, members=(Members(0, serving=unpublished),)))
    for n in range(5):  # for longer than the grace time, after which they are announced
        region.now_us += 20 * S
        for child in ("bad", *siblings):
            seq = 1 + n + (child == "bad")
            region.gives(child, frames.encode(Frame(7, seq, groups=(GroupPart(0, region.now_us),))))
        region.feed(Tick())
    stated = [each for frame in region.sent for change in frame.members for each in change.serving if each.node]
    assert len(stated) == queries * len(siblings)
    assert calls_of_a_step(region) < queries * len(siblings)
    region.gives("bad", frames.encode(Frame(7, 7, members=(Members(0, serving=(Serving("x0", 1, 5),)),))))
    assert calls_of_a_step(region) < 2 * queries * len(siblings)


def test_the_frames_of_a_birth_are_bounded_in_bytes_and_a_later_birth_has_room_again() -> None:
    """protocol 2.2: beyond it they are turned away, without a receipt."""
    with mock.patch.object(waiting_frames, "MOST_BIRTH_BYTES", 20_000):
        region = Region()
        region.hears("c", region.birth("c", COUNTED))
        inbox = region.merger.parent.inbox
        birth = Birth(8 << 32, region.merger.journal, (7, 0), "1", 65_536)
        region.hears("c", Frame(8, 0, birth, Define(groups=((0, GROUP),))))
        texts = tuple(f"{n:0>900}" for n in range(2))
        for seq in range(1, 30):
            region.hears("c", Frame(8, seq, define=Define(keys=(2 * seq, texts))))
        assert inbox.waiting._bytes["c"] < 23_000
        assert region.merger.counters()["turned_away"] > 15
        region.hears("d", region.birth("d", COUNTED))
        assert "d" in inbox.current


def test_groups_of_which_only_a_promise_is_left_are_bounded_and_the_oldest_are_forgotten() -> None:
    with mock.patch.object(sent_upward, "MOST_ENDED", 10):
        region = Region()
        region.hears("c", region.birth("c", COUNTED))
        for n in range(1, 25):
            group = Define(groups=((n, Group(f"s-{n}", "", (), 0, "revise")),))
            part = GroupPart(n, NOW_US)
            region.hears("c", Frame(7, 2 * n - 1, define=group, members=(Members(n, (Leaf("c", 1),)),), groups=(part,)))
            region.hears("c", Frame(7, 2 * n, members=(Members(n, (), ("c",)),)))
        sent = region.merger.sent
        assert [group.source for group in sent.ended] == [f"s-{n}" for n in range(15, 25)]
        assert set(sent.ended.values()) == {NOW_US}
        assert region.merger.counters()["beyond_bounds"]["groups"] == 14
