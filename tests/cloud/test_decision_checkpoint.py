"""What a root knows goes through the bytes of its decision row (docs/protocol.md 8.1). No JVM."""

from __future__ import annotations

import zlib
from dataclasses import fields, replace

import pytest

from cloud_job.spark import decision_checkpoint
from edge_agent.algebra.frame import Extent, Frame, Gap, GroupPart, Plan, Section
from edge_agent.algebra.partials.partial import NOTHING
from edge_agent.algebra.query.group_cut import SessionCut
from edge_agent.algebra.query.key import EpochKey, QueryKey, QueryPlace
from edge_agent.algebra.query.query import Group
from edge_agent.errors import WireError
from edge_agent.machines.downlink.epochs.counting import Counting, Repeats
from edge_agent.machines.events import BadFrame
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.punctuation_queries import PunctuationQueries
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.work import TooLate, identity
from edge_agent.root.punctuation_state import PunctuationWindows
from edge_agent.wire import snapshot
from edge_agent.wire.heads import Part

GROUP = Group("s", "", ("site",), 0, cut=SessionCut(5))
PLAN = Plan(b"12345678", "session", ("count",), None, 0, (("q", 1),), 5)
PLACE, LINE = QueryPlace("q", 1, ""), EpochKey("a", 7)
COMPUTED = {"needed_us", "sessions", "markers", "read_plan", "_parsed"}  # anew, or in states of their own


def test_all_of_a_root_s_state_comes_back() -> None:
    """protocol 8.1: without one of these a started root would count rows twice, lose some or keep others for ever."""
    late = TooLate("a", 7, 3, 1, "s", 50, begun_us=40, until_us=60)
    digest = identity(GROUP, PLAN)
    known = RootState(
        RootLimits(5, 100),
        12,
        1_000,
        queries={QueryKey("q", 1): "{}"},
        scales={QueryKey("q", 1): {-2, None}},
        plans={digest: (GROUP, PLAN)},
        closed={PLACE: 10},
        revised={PLACE: 20},
        pending={PLACE: [(1, 5), (7, 9)]},
        applied={LINE: [(0, 3), (5, 5)]},
        extent={LINE: (-4, 90)},
        owners=[(0, "x"), (5, "y")],
        covers_known={"c": None},
        met={("q", ""): 30},
        repeats={LINE: {2: Repeats(Counting(10, 20), 4)}},
        readings={"a": 6},
        floors={GROUP: 900},
        too_late={LINE: {(3, digest, True): late}},
        ends={digest: 80},
        begun={GROUP: 700},
        passed={PLACE: {"a": 600}},
    )
    content = decision_checkpoint.dumps(Decider(1, 60), known, {})
    _, again, _ = decision_checkpoint.loads(content, known.limits, 60)
    assert decision_checkpoint.horizon_us(content) == 100
    empty = RootState(known.limits)
    for name in {field.name for field in fields(RootState)} - COMPUTED - {"limits"}:
        assert getattr(known, name) != getattr(empty, name), name
        assert getattr(again, name) == getattr(known, name), name


def test_a_bad_frame_that_waits_comes_back_with_the_frames_it_stands_for_and_where_they_begin() -> None:
    """protocol 2.2, 3.5"""
    bad = BadFrame(7, 3, "lost", b"", 5, 40)
    assert decision_checkpoint._unpack(decision_checkpoint._pack(bad)) == bad


def test_a_frame_that_waits_comes_back_with_the_heads_of_its_rows_on_time_and_late() -> None:
    """protocol 8.1: its rows are in bronze.messages, and what they are is checked again when their plan is known."""
    on_time, late = (Extent(2, "i", (0,), (n,), b"pieces", 7, 10, 20 + n) for n in range(2))
    parts = (
        GroupPart(3, 900, (Section(1, NOTHING, on_time), Section(2, NOTHING)), (Section(1, NOTHING, late),)),
        GroupPart(0, 800),
    )
    frame = Frame(7, 4, groups=parts, gaps=(Gap((GROUP,), 5, 6, 1, ("a",), "quota"),))
    again = decision_checkpoint._unpack(snapshot.loads(snapshot.dumps(decision_checkpoint._pack(frame))))
    assert isinstance(again, Frame)
    assert (again.epoch, again.seq, again.gaps) == (7, 4, frame.gaps)
    assert [_heads(part) for part in again.groups] == [_heads(part) for part in parts]


def _heads(part: GroupPart) -> object:
    sections = (part.sections, part.late)
    return part.group, part.frontier_us, [[(each.plan, each.extent) for each in found] for found in sections]


def test_the_parts_of_frames_that_wait_come_back_without_their_bodies() -> None:
    """protocol 8.1, 8.4: rows up to their ends stay in bronze.messages."""
    parts = Part(1, 2, 3, True, 4, 5, 6, 7, 8, b"body", 9), Part(2, 3, 4, False, 5, 6, 7, 8, 9, b"", 10)
    known = {("a", 7, 4): parts, ("b", 7, 4): (), ("a", 8, 1): parts[:1]}
    content = decision_checkpoint.dumps(Decider(1, 60), RootState(RootLimits()), known)
    again = decision_checkpoint.loads(content, RootLimits(), 60)[2]
    assert again == {frame: tuple(replace(part, body=b"") for part in found) for frame, found in known.items()}


def test_the_windows_between_markers_come_back() -> None:
    state = RootState(RootLimits())
    state.markers.windows[QueryKey("q", 1)] = windows = PunctuationWindows()
    windows.known["a"] = {(5, 9): 1}
    content = decision_checkpoint.dumps(Decider(1, 60), state, {})
    again = decision_checkpoint.loads(content, RootLimits(), 60)[1]
    assert again.markers.snapshot() == state.markers.snapshot() != PunctuationQueries().snapshot()


def test_a_start_waits_for_the_members_and_bounds_the_windows_that_its_settings_name() -> None:
    """protocol 4.5, 6.5"""
    content = decision_checkpoint.dumps(Decider(11, 60), RootState(RootLimits()), {})
    decider, state, _ = decision_checkpoint.loads(content, RootLimits(5, 100, 9), 70, ("gw-1",))
    assert (decider.parent.inbox.journal, state.limits) == (11, RootLimits(5, 100, 9))
    assert list(decider.parent.children.named) == ["gw-1"]


def test_a_state_of_another_version_or_a_damaged_one_is_not_read() -> None:
    content = decision_checkpoint.dumps(Decider(1, 60), RootState(RootLimits()), {})
    later = {**decision_checkpoint.unpacked(content), "version": decision_checkpoint.VERSION + 1}
    with pytest.raises(WireError, match="state of version 2; this root reads only version 1"):
        decision_checkpoint.loads(zlib.compress(snapshot.dumps(later)), RootLimits(), 60)
    for damaged in (b"", content[:-1], b"y" + content[1:]):
        with pytest.raises(WireError, match=r"ops\.batches has a row that is damaged"):
            decision_checkpoint.loads(damaged, RootLimits(), 60)


def test_a_state_of_an_older_root_is_read_with_what_is_safe_in_the_place_of_what_it_does_not_say() -> None:
    state = RootState(RootLimits(5, 100), plans={identity(GROUP, PLAN): (GROUP, PLAN)})
    state.ends[identity(GROUP, PLAN)] = 1
    state.extent = {LINE: (0, 90), EpochKey("b", 1): (0, 40)}
    plain = decision_checkpoint.unpacked(decision_checkpoint.dumps(Decider(1, 60), state, {}))
    for name in ("ends", "repeats", "too_late", "floors", "begun", "passed", "readings"):
        del plain["ledger"][name]
    _, again, _ = decision_checkpoint.loads(zlib.compress(snapshot.dumps(plain)), state.limits, 60)
    assert again.ends == {identity(GROUP, PLAN): 90}, "as late as the latest row"
    assert (again.repeats, again.too_late, again.floors, again.begun, again.passed) == ({}, {}, {}, {}, {})
    assert again.readings is None, "not known, rather than none"
    assert decision_checkpoint._unpack([7, 3, "lost"]) == BadFrame(7, 3, "lost", b"")
    late = [b"plan", "a", 7, 3, 1, "s", 50, 40, 60]
    both = decision_checkpoint._too_late([late])
    assert {(seq, plan, how) for seq, plan, how in both[LINE]} == {(3, b"plan", False), (3, b"plan", True)}
