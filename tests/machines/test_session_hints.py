"""Registers of open sessions: after every step the parent holds what the sender said (docs/protocol.md 5.2)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.algebra.frame import MAX_FRAME_BYTES, NEVER_US, ExcludedLeaf, Frame, GroupPart, Leaf, Plan, Section
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.group_cut import SessionCut
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.uplink.encoding.session_hints import SessionHints
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.machines.uplink.step import GroupStep, Hints, Step, StepRows, only_rows, without_promise
from edge_agent.wire.frames import encode

S = 1_000_000
GAP_US = 5 * S
DOORS, WINDOWS = (Group(source, "", ("key",), 0, cut=SessionCut(GAP_US)) for source in ("door", "window"))
PLAN = Plan(b"12345678", "session", ("count", "sum"), None, 0, (("q", 1),), GAP_US)
FEW, MANY = 4, 6_000  # so many texts fill more than a frame
KEYS = [f"key={number:012d}" for number in range(20_000)]


SHARES = st.tuples(st.sets(st.integers(0, FEW - 1)), st.dictionaries(st.integers(0, FEW - 1), st.integers(0, 40)))


def group_step(group: Group, sent: list[int], open_: dict[int, int], *, promised_us: int) -> GroupStep:
    """sent: keys a session of which leaves; open_: key -> start of the one that is open."""
    zeros, ones = np.zeros(len(sent), np.int64), np.ones(len(sent), np.int64)
    rows = Partials(zeros, ones, np.array(sent, np.int64), {"count": ones, "sum": ones.astype(np.float64)})
    releases = (StepRows(PLAN, False, rows, KEYS, ["a"]),) if sent else ()
    hints = Hints(KEYS, np.array(list(open_), np.int64), np.array(list(open_.values()), np.int64))
    return GroupStep(group, promised_us, releases, promised_us=promised_us, hints=hints)


class Pair:
    """A sender and its parent."""

    def __init__(self, frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.parent = ChildFrames(7, 60 * S)
        self.box = Outbox("a", Random(1), version="1", in_flight=3, frame_bytes=frame_bytes)
        self.box.journal = 7
        self.box.draw()
        leaf = (Leaf("a", self.box.epoch),)
        self.hear(self.box.open(Step(tuple(GroupStep(group, None, leaves=leaf) for group in (DOORS, WINDOWS)))))

    def hear(self, frames: list[Frame]) -> None:
        for frame in frames:
            self.parent.take("a", frame, 0)

    def send(self, *steps: GroupStep) -> int:
        """Answers how many frames it took."""
        frames = self.box.put(Step(steps))
        assert all(len(encode(frame)) <= MAX_FRAME_BYTES for frame in frames)
        self.hear(frames)
        return len(frames)

    def held(self, group: Group) -> dict[int, int]:
        """Key -> the register that the parent holds of it."""
        hints = self.parent.children.membership(group).member("a").hints
        return {int(key.partition("=")[2]): start_us for key, start_us in hints.items()}


def test_a_register_that_a_partial_clears_stays_cleared_though_another_group_needs_one_more_frame() -> None:
    """Else the parent would wait for a session that has been sent, for ever."""
    pair = Pair()
    pair.send(group_step(DOORS, [], {0: 5 * S}, promised_us=9 * S))
    assert pair.held(DOORS) == {0: 5 * S}
    many = dict.fromkeys(range(1, MANY), 5 * S)
    doors = group_step(DOORS, [0], {}, promised_us=20 * S)
    assert pair.send(doors, group_step(WINDOWS, [], many, promised_us=20 * S)) > 1
    assert pair.held(DOORS) == {}
    assert pair.held(WINDOWS) == many


@given(st.lists(st.tuples(SHARES, SHARES, st.booleans()), max_size=6))
@example([(({0}, {0: 1}), (set(), {}), False), (({0}, {}), (set(), {1: 2}), True)])
@example([(({0}, {0: 1}), (set(), {}), False), (({0}, {0: 1}), (set(), {}), True)])
def test_the_parent_holds_the_starts_below_the_promise(
    steps: list[tuple[tuple[set[int], dict[int, int]], tuple[set[int], dict[int, int]], bool]],
) -> None:
    """The boolean: keys of the second group fill a frame of their own."""
    pair, extra = Pair(), 0
    for number, (*shares, many) in enumerate(steps, 1):
        promised_us = number * 10
        asked = [(set(sent), dict(open_)) for sent, open_ in shares]
        if many:
            extra = MANY - FEW
        asked[1][1].update(dict.fromkeys(range(FEW, FEW + extra), 0))
        pair.send(
            *(
                group_step(group, sorted(sent), open_, promised_us=promised_us)
                for group, (sent, open_) in zip((DOORS, WINDOWS), asked, strict=True)
            )
        )
        for group, (_, open_) in zip((DOORS, WINDOWS), asked, strict=True):
            assert pair.held(group) == {key: us for key, us in open_.items() if us < promised_us}


@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 59)), st.dictionaries(st.integers(0, 59), st.integers(0, 99))), max_size=5
    )
)
def test_more_registers_than_a_frame_holds_are_never_too_high_and_are_right_after_a_few_steps(
    steps: list[tuple[set[int], dict[int, int]]],
) -> None:
    """protocol 2.3, 5.2: those that lower a bound go ahead in frames of their own, others may wait for the next one."""
    pair = Pair(frame_bytes=200)
    for number, (sent, open_) in enumerate(steps, 1):
        promised_us = number * 20
        pair.send(group_step(DOORS, sorted(sent), open_, promised_us=promised_us))
        wanted = {key: us for key, us in open_.items() if us < promised_us}
        held = pair.held(DOORS)
        assert all(held.get(key, us + 1) <= us for key, us in wanted.items())
        for _ in range(10):
            pair.send(group_step(DOORS, [], open_, promised_us=promised_us))
        assert pair.held(DOORS) == wanted


def test_twenty_thousand_sessions_that_open_at_once_fit_into_frames() -> None:
    """protocol 2.1, 5.2."""
    pair, many = Pair(), {key: key + 1 for key in range(20_000)}
    assert pair.send(group_step(DOORS, [], many, promised_us=10**6)) > 3
    assert pair.held(DOORS) == many


@pytest.mark.parametrize("new_epoch", [False, True])
def test_rows_that_come_before_the_promise_of_their_step_leave_the_registers_of_open_sessions(
    *, new_epoch: bool
) -> None:
    """protocol 5.2, 2.3: where a step has more keys than an epoch numbers, its rows go in parts of their own."""
    pair, key = Pair(), KEYS[1]
    pair.send(group_step(DOORS, [0], {1: 5}, promised_us=10))
    member = pair.parent.children.membership(DOORS).members["a"]
    if new_epoch:
        pair.box.draw()
        pair.hear(pair.box.open(without_promise(Step((GroupStep(DOORS, leaves=(Leaf("a", pair.box.epoch),)),)))))
    pair.hear(pair.box.put(only_rows(Step((group_step(DOORS, [0, 1], {1: 5}, promised_us=10),)))))
    assert member.hint(key) == 5
    last = group_step(DOORS, [], {1: 7}, promised_us=10)
    pair.hear(pair.box.put(Step((last,))))
    assert member.hint(key) == 7
    pair.send(group_step(DOORS, [1], {}, promised_us=20))
    assert member.hint(key) == 20


def test_a_register_of_the_epoch_before_ends_with_the_first_promise_although_no_frontier_moved() -> None:
    """protocol 1.2: else a session would wait for a frontier that may never come."""
    pair = Pair()
    pair.send(group_step(DOORS, [0], {1: 5}, promised_us=10))
    pair.box.draw()
    pair.hear(pair.box.open(without_promise(Step((GroupStep(DOORS, leaves=(Leaf("a", pair.box.epoch),)),)))))
    none = Hints(KEYS, np.zeros(0, np.int64), np.zeros(0, np.int64))
    pair.hear(pair.box.put(Step((GroupStep(DOORS, None, promised_us=10, hints=none),))))
    assert pair.parent.children.membership(DOORS).members["a"].hint(KEYS[1]) == 10


def test_a_new_leaf_is_behind_until_the_last_frame_of_the_step_that_lists_it() -> None:
    """protocol 2.3, 4.6: its late rows may stand in the frames between."""
    pair = Pair(frame_bytes=150)
    pair.send(group_step(DOORS, [4], {}, promised_us=10))
    member = pair.parent.children.membership(DOORS).members["a"]
    excepted = (ExcludedLeaf("b", NEVER_US, NEVER_US),)
    rows = group_step(DOORS, [0, 1, 2, 3], {}, promised_us=10).rows
    step = GroupStep(DOORS, None, rows, (), (Leaf("b", 3),), promised_us=10, excepted=excepted)
    frames = pair.box.put(Step((step,)))
    assert len(frames) > 2
    for frame in frames[:-1]:
        pair.hear([frame])
        assert member.leaf_frontiers()["b"] == (NEVER_US, NEVER_US)
    pair.hear(frames[-1:])
    assert member.leaf_frontiers()["b"] == (10, 10)


def test_registers_that_the_parent_may_have_of_the_epoch_before_are_stated_whatever_was_sent() -> None:
    """protocol 1.2, 5.2: a start of an earlier session would hold the key."""
    hints, starts = SessionHints([(0, [5, 6])]), np.array([5, 6], np.int64)
    assert hints.updates(0, starts, (), held=[1]) == ((1, 6),)
    assert hints.split(0, 0) == (((1, 6),), ())


def test_a_lower_start_of_this_epoch_stays_when_rows_come_before_its_promise() -> None:
    """protocol 5.2: also if the parent has a later one of the epoch before."""
    zeros, ones = np.zeros(1, np.int64), np.ones(1, np.int64)
    part = GroupPart(0, sections=(Section(0, Partials(zeros, ones, zeros, {"count": ones})),))
    for before_us, stated_us in ((7, 5), (3, 3)):
        assert SessionHints([(0, [5])]).unchanged(part, {0: before_us}).registers == ((0, stated_us),)


def test_a_register_that_rows_of_its_key_clear_is_stated_again_and_stored() -> None:
    """protocol 1.2, 5.2: of a session that stays open."""
    zeros, ones = np.zeros(1, np.int64), np.ones(1, np.int64)
    hints, rows = SessionHints([(0, [5])]), Partials(zeros, ones, zeros, {"count": ones})
    stated = hints.updates(0, np.array([5], np.int64), [Section(0, rows)])
    assert stated == ((0, 5),)
    assert not hints.unsaved
    hints.sent({0: stated})
    assert hints.unsaved
