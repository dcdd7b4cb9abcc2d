"""Steps whose promises exceed a frame: many groups, many leaves, many losses at once (protocol 2.1, 2.3)."""

from __future__ import annotations

from random import Random
from unittest import mock

import numpy as np
import pytest

from edge_agent.algebra.frame import (
    LATEST_US,
    MAX_FRAME_BYTES,
    MOST_SECTIONS,
    ExcludedLeaf,
    Frame,
    Gap,
    Leaf,
    Plan,
    Serving,
)
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.group_cut import BY_TIME, SessionCut
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.uplink.encoding import frame_packer
from edge_agent.machines.uplink.encoding.frame_packer import FramePacker
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.machines.uplink.step import GroupStep, Hints, Step, StepRows
from edge_agent.wire.frames import decode, encode, encode_heartbeat

S = 1_000_000
T0 = 1_000 * S
SLICES = Plan(b"12345678", "slice", ("count", "sum"), None, S, (("q", 1),))
VISITS = Plan(b"87654321", "session", ("count", "sum"), None, 1, (("v", 1),), 5 * S)
KEYS = [f"key-{n}" for n in range(50)]


def group(n: int, *, session: bool = False) -> Group:
    return Group("s", "", ("k",), 0, cut=SessionCut(5 * S) if session else BY_TIME, node=f"gw-{n:05}")


def rows(plan: Plan, key: int) -> StepRows:
    ones = np.ones(1, np.int64)
    states = {"count": ones, "sum": ones.astype(np.float64)}
    return StepRows(plan, False, Partials(ones * T0, ones * (T0 + S), ones * key, states), KEYS, [])


def step_of(groups: list[Group], frontier_us: int, gaps: tuple[Gap, ...] = ()) -> Step:
    steps = []
    for n, each in enumerate(groups):
        plan = VISITS if each.cut.gap_us else SLICES
        hints = (
            Hints(KEYS, np.array([n % 50, 7], np.int64), np.full(2, frontier_us - 3 * S)) if plan is VISITS else None
        )
        out = (ExcludedLeaf(each.node, frontier_us - S, frontier_us - S),) if n % 3 == 0 else None
        gone = tuple(f"gone-{n}-{i}" for i in range(n % 4))
        steps.append(GroupStep(each, frontier_us, (rows(plan, n % 50),), out, (), gone, (), frontier_us, hints))
    return Step(tuple(steps), gaps=gaps)


class Pair:
    """A merger's outbox and its parent."""

    def __init__(self, frame_bytes: int, groups: list[Group]) -> None:
        self.limit, self.frames = frame_bytes, list[Frame]()
        self.box = Outbox("m", Random(1), version="1", in_flight=3, frame_bytes=frame_bytes)
        self.box.journal = 7
        self.parent = ChildFrames(7, 60 * S)
        self.box.draw()
        leaves = tuple(GroupStep(each, None, leaves=(Leaf(each.node, 1),)) for each in groups)
        self.hear(self.box.open(Step(leaves)))

    def hear(self, frames: list[Frame]) -> None:
        for frame in frames:
            payload = encode(frame)
            assert len(payload) <= self.limit, frame
            heard = decode(payload)
            assert isinstance(heard, Frame)
            self.frames.append(frame)
            self.parent.take("m", heard, T0)

    def told(self) -> dict[Group, tuple[int, dict[str, tuple[int, int]], dict[str, int]]]:
        return {
            of: (each.member("m").frontier_us, each.member("m").exceptions, each.member("m").hints)
            for of, each in self.parent.children.memberships.items()
        }


@pytest.mark.parametrize("session", [False, True])
def test_what_a_step_promises_takes_as_many_frames_as_it_needs(session: bool) -> None:
    groups = [group(n, session=session and n % 2 == 0) for n in range(60)]
    lost = tuple(Gap((groups[n],), T0, T0 + S, 3, tuple(f"gw-{i}" for i in range(40)), "lost", 0) for n in range(3))
    small, large = Pair(600, groups), Pair(MAX_FRAME_BYTES, groups)
    for pair in (small, large):
        before = len(pair.frames)
        pair.hear(pair.box.put(step_of(groups, T0 + 2 * S, lost)))
        pair.hear(pair.box.put(step_of(groups, T0 + 4 * S)))
        assert (len(pair.frames) - before > 2) == (pair is small)
    assert small.told() == large.told()
    gaps = [gap for frame in small.frames for gap in frame.gaps]
    assert sum(gap.readings for gap in gaps) == 9
    for gap in lost:
        mine = [piece for piece in gaps if piece.groups == gap.groups]
        assert sorted(node for piece in mine for node in piece.nodes) == sorted(gap.nodes)


def test_a_group_promises_behind_all_its_rows() -> None:
    """protocol 2.3: also where groups have frames of their own; gap records come no later."""
    groups = [group(n) for n in range(60)]
    pair = Pair(600, groups)
    lost = tuple(Gap((each,), T0, T0 + S, 1, (each.node,), "lost", 0) for each in groups)
    frames = pair.box.put(step_of(groups, T0 + 2 * S, lost))
    promised: set[int] = set()
    for frame in frames:
        assert not promised & {part.group for part in frame.groups if part.sections}
        assert not (promised and frame.gaps)
        promised |= {part.group for part in frame.groups if part.frontier_us is not None}
    assert len(promised) == 60


@pytest.mark.parametrize("many", [1, 100])
def test_exceptions_end_with_the_last_leaf_that_goes(many: int) -> None:
    """protocol 2.3, 1.5: a leaf that has left, or is retired, is behind until the tier above knows that it went."""
    groups = [group(n) for n in range(20)]
    left = ((Leaf("gone", 1), Leaf("gone", 2, 1)),)
    retired = tuple(f"retired-{n}" for n in range(many))
    for of in ({"left": left}, {"left": left, "stay": (Leaf("gone", 2, 1),)}, {"dropped": retired}):
        pair = Pair(600, groups)
        steps = tuple(GroupStep(each, T0, exceptions=(), promised_us=T0, **of) for each in groups)
        frames = pair.box.put(Step(steps))
        pair.hear(frames)
        assert len(frames) > 1
        ended: set[int] = set()
        for frame in frames:
            assert not ended & {members.group for members in frame.members}
            listed = {members.group for members in frame.members if Leaf("gone", 1) in members.leaves}
            assert listed >= {members.group for members in frame.members if members.dropped == ("gone",)}
            ended |= {part.group for part in frame.groups if part.exceptions is not None}
        assert len(ended) == 20


@pytest.mark.parametrize("frame_bytes", [250, 600])
@pytest.mark.parametrize("retired", [False, True])
def test_ranges_follow_the_leaves_that_a_step_drops(frame_bytes: int, retired: bool) -> None:
    """protocol 2.3, 6.3: until a leaf has gone it serves what it served, or rows would be complete without it."""
    groups = [group(n) for n in range(8)]
    pair = Pair(frame_bytes, groups)
    keys = [QueryKey(f"query-{n}", 1) for n in range(5)]
    began = [
        GroupStep(each, None, leaves=(Leaf("gone", 1),), serving=tuple(Serving(*key) for key in keys))
        for each in groups
    ]
    pair.hear(pair.box.put(Step(tuple(began))))
    goes = {"dropped": ("gone",)} if retired else {"left": ((None, Leaf("gone", 2, 1)),)}
    ended = tuple(Serving(*key, LATEST_US) for key in keys)
    kept = pair.parent.children.memberships
    for frame in pair.box.put(
        Step(tuple(GroupStep(each, T0, promised_us=T0, serving=ended, **goes) for each in groups))
    ):
        pair.hear([frame])
        for each in groups:
            member = kept[each].member("m")
            assert "gone" not in member.leaves or member.serving.keys() == set(keys)
    assert not any(kept[each].member("m").serving for each in groups)
    assert all(kept[each].member("m").leaves.keys() == {each.node} for each in groups)


def test_a_child_whose_last_leaf_had_gone_states_its_queries_with_the_next() -> None:
    """protocol 6.3: what it had stated before ended with the last leaf."""
    of = group(0)
    pair = Pair(600, [of])
    pair.hear(pair.box.put(Step((GroupStep(of, None, serving=(Serving("old", 1), Serving("both", 1))),))))
    pair.hear(pair.box.put(Step((GroupStep(of, T0, promised_us=T0, dropped=(of.node,)),))))
    member = pair.parent.children.memberships[of].member("m")
    back = GroupStep(of, None, leaves=(Leaf(of.node, 2),), serving=(Serving("both", 1, T0),))
    pair.hear(pair.box.put(Step((back,))))
    assert list(member.serving.values()) == [Serving("both", 1, T0)]


@pytest.mark.parametrize("frame_bytes", [250, 333, 600])
def test_a_group_whose_only_leaf_left_and_is_back_is_never_over(frame_bytes: int) -> None:
    """protocol 1.5: between the frame that drops the leaf and one that lists it again a root would end the group."""
    groups = [group(n) for n in range(20)]
    pair = Pair(frame_bytes, groups)
    kept = pair.parent.children.memberships
    pair.hear(pair.box.put(Step(tuple(GroupStep(each, None, leaves=(Leaf(each.node, 3, 2),)) for each in groups))))
    for each in groups:  # another child has reported that the line between has ended
        kept[each].moves.left[each.node] = [2]
    steps = []
    for each in groups:
        left = ((Leaf(each.node, 1), Leaf(each.node, 2, 1)),)
        steps.append(GroupStep(each, T0, exceptions=(), promised_us=T0, left=left, stay=(Leaf(each.node, 3, 2),)))
    for frame in pair.box.put(Step(tuple(steps))):
        pair.hear([frame])
        assert not [each for each in groups if kept[each].gone]
    assert all(kept[each].member("m").leaves == {each.node: Leaf(each.node, 3, 2)} for each in groups)


@pytest.mark.parametrize("frame_bytes", [250, 333, 600])
def test_a_group_whose_only_leaf_left_by_two_lines_is_not_over_between_their_reports(frame_bytes: int) -> None:
    """protocol 1.5 (seed 67000): the root forgot which reports had come, and awaited one of them for ever."""
    groups = [group(n) for n in range(20)]
    pair = Pair(frame_bytes, groups)
    kept = pair.parent.children.memberships
    pair.hear(pair.box.put(Step(tuple(GroupStep(each, None, leaves=(Leaf(each.node, 3, 1),)) for each in groups))))
    for each in groups:
        kept[each].moves.left[each.node] = [2]
    steps = []
    for each in groups:
        left = ((Leaf(each.node, 1), Leaf(each.node, 2, 1)), (Leaf(each.node, 3, 1), Leaf(each.node, 4, 3)))
        steps.append(GroupStep(each, T0, exceptions=(), promised_us=T0, left=left))
    for frame in pair.box.put(Step(tuple(steps))):
        pair.hear([frame])
        assert not [each for each in groups if kept[each].gone]
    assert all(kept[each].moves.transit[each.node].keys() == {3} for each in groups)


@pytest.mark.parametrize("most", [1, 7, MOST_SECTIONS])
def test_a_step_of_many_sections_takes_as_many_frames_as_the_bound_needs(most: int) -> None:
    """protocol 2.1: also rows of a plan with the shortest row that there is."""
    with mock.patch.object(frame_packer, "MOST_SECTIONS", most):
        packer = FramePacker()
        plan = Plan(b"12345678", "slice", ("count",), None, S, (("q", 1),))
        one = np.ones(1, np.int64)
        for n in range(3 * MOST_SECTIONS if most > 7 else 50):
            rows_of = Partials(one * T0, one * (T0 + S), one * 0, {"count": one})
            packer.add_rows(n % 9, n, plan, rows_of, late=n % 2 == 0)
    found = packer.frames(1, 0, {}, {})
    sections = [sum(len(part.sections) + len(part.late) for part in frame.groups) for frame in found]
    assert sum(sections) == (3 * MOST_SECTIONS if most > 7 else 50)
    assert max(sections) <= min(most, 2_457)
    assert all(len(encode(frame)) <= MAX_FRAME_BYTES and isinstance(decode(encode(frame)), Frame) for frame in found)


def test_ten_thousand_groups_at_once_fit_frames_and_heartbeats() -> None:
    groups = [group(n) for n in range(12_000)]
    pair = Pair(MAX_FRAME_BYTES, groups)
    pair.hear(pair.box.put(step_of(groups, T0 + 2 * S)))
    assert {us for us, _, _ in pair.told().values()} == {T0 + 2 * S}
    quiet = Step(tuple(GroupStep(each, T0 + 3 * S, promised_us=T0 + 3 * S) for each in groups))
    assert pair.box.put(quiet) == [], "frontiers alone go by heartbeats"
    pair.box.link(up=True)
    for at_us in range(T0 + 4 * S, T0 + 6 * S, S):
        beat = pair.box.beat(at_us, S, dict.fromkeys(groups, T0 + 3 * S))
        assert beat is not None
        assert len(encode_heartbeat(beat)) <= MAX_FRAME_BYTES
        pair.parent.take("m", beat, at_us)
    assert {us for us, _, _ in pair.told().values()} == {T0 + 3 * S}
