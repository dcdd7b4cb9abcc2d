"""What a root knows goes through the bytes of its decision row (docs/protocol.md 8.1). No JVM."""

from __future__ import annotations

from dataclasses import fields

from cloud_job.spark import decision_checkpoint
from edge_agent.algebra.frame import Plan
from edge_agent.algebra.query.group_cut import SessionCut
from edge_agent.algebra.query.key import EpochKey, QueryKey, QueryPlace
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.epochs.counting import Counting, Repeats
from edge_agent.machines.events import BadFrame
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.work import TooLate, identity

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
