"""Losses are declared as far as they may reach, though the clock of the parent is behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from edge_agent.algebra.frame import BEGAN, DAMAGED, LOST, Frame, Gap, Leaf, Members
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.losses.let_go import LET_GO
from edge_agent.machines.downlink.losses.loss_records import LATE_US, PAST_LOST
from edge_agent.machines.events import BadFrame
from edge_agent.machines.uplink.step import GroupStep, Step
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.machines.scripted_child import GRACE, JOURNAL, Sender
from tests.support.machines.simulated_host import S

QUERY = Query("q", 1, "s", Tumbling(5 * S), (Aggregate("count", "count"),), lateness_us=0)
NOW = 8 * S  # of the parent, half a minute behind


def lives() -> tuple[Sender, Sender]:
    """One gateway twice, the second time without what it knew."""
    old, new = Sender("a", QUERY), Sender("a", QUERY)
    new.outbox.random.seed(2)
    return old, new


def born(sender: Sender, predecessor: str | None = LOST) -> Frame:
    """The birth of a gateway that does not know its past; None: nor that it has one."""
    frame = sender.birth()
    assert frame.birth is not None
    return replace(frame, birth=replace(frame.birth, predecessor=predecessor))


def heard(sender: Sender, since: int) -> Frame:
    """A frame which says that the sensor was heard from that second on."""
    (frame,) = sender.outbox.put(Step(gaps=(Gap((QUERY.group,), (since - 1) * S, since * S, -1, ("a",), BEGAN),)))
    return frame


def declared(frames: Sequence[Frame], grace_us: int = GRACE) -> list[tuple[int, int]]:
    """Seconds (from, up to) of the losses that the root declares of these frames, but not of those in them."""
    root = NumpyRoot(JOURNAL, grace_us=grace_us, revise_every_us=0)
    for frame in frames:
        root.take("a", frame, NOW)
    root.step(NOW)
    gaps = [gap for _, gap in root.decider.gaps if gap.reason != BEGAN]
    assert all(gap.nodes == ("a",) and gap.groups == (QUERY.group,) for gap in gaps)
    return [(gap.start_us // S, gap.end_us // S) for gap in gaps]


def test_a_loss_of_a_line_that_had_promised_nothing_ends_where_listening_began() -> None:
    """protocol 1.2, seed 54520: what was open at the gateway was missing without a record."""
    old, new = lives()
    assert declared([old.birth(), born(new), heard(new, 39)]) == [(0, 8), (0, 38)]


def test_a_loss_of_a_line_that_no_parent_had_heard_ends_where_listening_began() -> None:
    _, new = lives()
    assert declared([born(new), heard(new, 39)]) == [(0, 8), (0, 38)]


@pytest.mark.parametrize("predecessor", [LOST, None])
def test_a_loss_behind_a_promise_ends_where_listening_began(predecessor: str | None) -> None:
    """A gateway whose spool is gone altogether does not know that it has a past; its parent does."""
    old, new = lives()
    known = [old.birth(), old.send((0, 5 * S, "", 1.0), frontier_us=33 * S)]
    frames = [*known, born(new, predecessor), heard(new, 39)]
    assert declared(frames, grace_us=0) == [(33, 308), (33, 38)]  # 0: else two devices of one name may be speaking


def test_once_the_new_line_has_promised_or_says_it_again_nothing_more_is_lost() -> None:
    """A sensor that is added later is heard from then on only, and this says nothing of the spool."""
    for again in (True, False):
        old, new = lives()
        first = [old.birth(), old.send((0, 5 * S, "", 1.0), frontier_us=5 * S), born(new)]
        after = [heard(new, 39)] if again else [new.send(frontier_us=40 * S)]
        assert declared([*first, *after, heard(new, 90)]) == [(5, 8), (5, 38)][: 1 + again]
    _, new = lives()
    assert declared([born(new), heard(new, 39), heard(new, 90)]) == [(0, 8), (0, 38)]


def test_a_loss_does_not_end_before_it_begins() -> None:
    """As of a gateway whose clock is behind itself, or of rows of before 1970."""
    old, new = lives()
    first = [old.birth(), old.send((0, 5 * S, "", 1.0), frontier_us=33 * S), born(new)]
    assert declared([*first, heard(new, 20)]) == [(33, 308)]
    old, new = lives()
    first = [old.birth(), old.send((-9 * S, -5 * S, "", 1.0), frontier_us=-5 * S), born(new)]
    assert declared([*first, heard(new, -1)]) == [(0, 8)]


@pytest.mark.parametrize("behind", [0, 30])
@pytest.mark.parametrize("way", ["damaged at the child", "bad here", "deleted at the child"])
def test_what_was_in_a_lost_frame_is_declared_for_later_times_than_those_of_the_parent(way: str, behind: int) -> None:
    """protocol 3.6: else its windows are missing, or are complete without its rows."""
    child, root = Sender("a", QUERY), NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0)

    def send(*starts: int, upto: int) -> Frame:
        return child.send(*((s * S, (s + 5) * S, "", 1.0) for s in starts), frontier_us=upto * S)

    root.take("a", child.birth(), (100 - behind) * S)
    root.take("a", send(100, upto=107), (107 - behind) * S)
    lost = send(105, 110, upto=117)
    damaged = replace(lost, define=None, groups=(), gaps=(Gap((QUERY.group,), 0, 0, -1, ("a",), DAMAGED),))
    bad, gone = (BadFrame(lost.epoch, lost.seq, why, b"") for why in ("bad", LET_GO))
    ways: dict[str, Frame | BadFrame] = {"damaged at the child": damaged, "bad here": bad}
    root.take("a", ways.get(way, replace(gone, run=1)), (117 - behind) * S)
    root.take("a", send(115, upto=122), (122 - behind) * S)
    root.step((122 - behind) * S)
    ((start_us, end_us),) = ((gap.start_us, gap.end_us) for _, gap in root.decider.gaps)
    assert start_us <= 107 * S
    assert end_us == (387 if behind else 117) * S + 1  # 387: five minutes after its time


@pytest.mark.parametrize(("behind", "more"), [(0, 0), (30, 1), (400, 0)])
@pytest.mark.parametrize("way", ["damaged at the child", "deleted at the child"])
def test_that_the_clock_of_the_parent_is_behind_may_show_behind_the_lost_frame_only(
    way: str, behind: int, more: int
) -> None:
    """protocol 3.6, 4.3: the promise before it was below the parent's time. A clock is 5 minutes behind at most."""
    child, root = Sender("a", QUERY), NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0)
    root.take("a", child.birth(), (500 - behind) * S)
    root.take("a", child.send((55 * S, 60 * S, "", 1.0), frontier_us=60 * S), (500 - behind) * S)
    lost = child.send((505 * S, 510 * S, "", 1.0), frontier_us=510 * S)
    damaged = replace(lost, define=None, groups=(), gaps=(Gap((QUERY.group,), 0, 0, -1, ("a",), DAMAGED),))
    if way == "damaged at the child":
        damaged = replace(damaged, gaps=(replace(damaged.gaps[0], nodes=()),))
    gone = BadFrame(lost.epoch, lost.seq, LET_GO, b"", run=1)
    root.take("a", damaged if way == "damaged at the child" else gone, (510 - behind) * S)
    root.decider.restore(root.decider.snapshot(lambda f: f), lambda f: f)
    for upto in (515, 520):
        root.take("a", child.send(((upto - 5) * S, upto * S, "", 1.0), frontier_us=upto * S), (upto - behind) * S)
    root.step((520 - behind) * S)
    ends = [(gap.start_us, gap.end_us) for _, gap in root.decider.gaps]
    until_us = (510 - behind) * S + 1
    assert [end_us for _, end_us in ends] == [until_us, until_us + 300 * S][: 1 + more]
    assert all(start_us == until_us for start_us, _ in ends[1:])


@pytest.mark.parametrize(("now", "until"), [(4_100, 4_100), (3_900, 4_200)])
@pytest.mark.parametrize("retired_first", [False, True])
def test_what_a_retired_region_had_of_a_leaf_reaches_above_the_time_of_a_slow_parent(
    retired_first: bool, now: int, until: int
) -> None:
    """protocol 1.5, 3.6: the region to which the leaf has moved had promised more than that time."""
    parent = ChildFrames(JOURNAL, GRACE)
    old, new = Sender("old", QUERY, leaves=("g", "h")), Sender("new", QUERY, leaves=("i",))
    for node, frame in (("old", old.birth()), ("old", old.send(frontier_us=3_000 * S)), ("new", new.birth())):
        parent.take(node, frame, now * S)
    parent.take("new", new.send(frontier_us=4_000 * S), now * S)
    (lists,) = new.outbox.put(Step((GroupStep(QUERY.group, leaves=(Leaf("g", 9, 1),)),)))
    losses = parent.retire("old", now * S) if retired_first else []
    (applied,) = parent.take("new", lists, now * S)
    losses += applied.losses if retired_first else parent.retire("old", now * S)
    assert losses == [Gap((QUERY.group,), 3_000 * S - LATE_US, until * S + 1, -1, ("g",), LET_GO)]


@pytest.mark.parametrize(("now", "until"), [(4_100, 4_100), (3_900, 4_200)])
def test_what_a_gateway_lost_on_the_way_reaches_above_the_time_of_a_slow_parent(now: int, until: int) -> None:
    """protocol 1.2, 3.6: it lost its spool between the regions m and n, and n had promised more than that time."""
    parent = ChildFrames(JOURNAL, GRACE)
    old, new = Sender("m", QUERY, leaves=("x", "y")), Sender("n", QUERY, leaves=("z",))
    reports, lists = Members(0, (Leaf("x", 7, 1),), ("x",)), Members(0, (Leaf("x", 2),))
    left = [old.birth(), replace(old.send(frontier_us=3_000 * S), members=(reports,))]
    came = [new.birth(), new.send(frontier_us=4_000 * S), replace(new.send(frontier_us=4_000 * S), members=(lists,))]
    found = [parent.take(node, frame, now * S) for node, frames in (("m", left), ("n", came)) for frame in frames]
    losses = [gap for each in found for applied in each for gap in applied.losses if gap.reason == PAST_LOST]
    assert [(gap.nodes, gap.end_us) for gap in losses] == [(("x",), until * S + 1)]
