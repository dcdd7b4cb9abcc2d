"""A gateway without a spool begins as a new one; its parent may know that it lived before (protocol 1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from edge_agent.algebra.frame import BEGAN, LATEST_US, LOST, Frame, Gap, Heartbeat, Leaf, Members, Receipt
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.losses.let_go import WAIT_US
from edge_agent.machines.downlink.losses.loss_records import PAST_UNKNOWN, narrowed
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.events import Beat, LinkUp, Receipted, Tick
from edge_agent.machines.uplink.step import Step
from edge_agent.root.completeness import Decider
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.machines.scripted_child import GRACE, JOURNAL, Sender, leaving
from tests.support.machines.simulated_host import T0, S, gateway_host

UNTIL_NOW = (0, 12 * S + 1)  # the times of a loss of all that was before a record which comes after 12 s
QUERY = Query("q", 1, "s", Tumbling(5 * S), (Aggregate("count", "count"),), lateness_us=0)


def rows(sender: Sender, *starts: int, upto: int) -> Frame:
    """A frame with a reading in each window that starts there. upto: its frontier."""
    return sender.send(*((s * S, (s + 5) * S, "", 1.0) for s in starts), frontier_us=upto * S)


def members(sender: Sender) -> Frame:
    """A frame that lists the node as a leaf, and has no time."""
    return replace(rows(sender, upto=0), groups=(), members=(Members(0, (Leaf("a", sender.outbox.epoch),)),))


def began(sender: Sender) -> Frame:
    """A frame which says that the sensor was heard from the ninth second on."""
    (frame,) = sender.outbox.put(Step(gaps=(Gap((QUERY.group,), 8 * S, 9 * S, -1, ("a",), BEGAN),)))
    return frame


def begins(sender: Sender) -> tuple[Heartbeat, Frame]:
    """The question for the journal, and the birth that follows the answer."""
    birth = sender.birth()
    return Heartbeat(sender.outbox.ask_epoch, -1, ()), birth


def lives(count: int) -> list[Sender]:
    """One gateway again and again, each time without what it knew."""
    out = [Sender("a", QUERY) for _ in range(count)]
    for seed, sender in enumerate(out):
        sender.outbox.random.seed(seed)
    return out


def records(frames: Sequence[Frame | Heartbeat], last_us: int = 12 * S) -> list[Gap]:
    """What the root declares lost of an earlier life. last_us: when the last frame comes; the others at 12 s."""
    root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0)
    for place, frame in enumerate(frames, 1):
        root.take("a", frame, 12 * S if place < len(frames) else last_us)
    root.step(last_us)
    return [gap for _, gap in root.decider.gaps if gap.detail == PAST_UNKNOWN and gap.nodes == ("a",)]


def lost(frames: Sequence[Frame | Heartbeat], last_us: int = 12 * S) -> list[tuple[int, int]]:
    """The times of these records."""
    return [(gap.start_us, gap.end_us) for gap in records(frames, last_us)]


@pytest.mark.parametrize("birth", ["lost on the way", "for another journal", "behind one that is lost"])
def test_frames_that_wait_of_a_life_before_are_declared_lost_until_the_record_of_the_new_one_came(birth: str) -> None:
    old, new = lives(2)
    first = old.birth()
    assert first.birth is not None
    waiting = [rows(old, 0, upto=5)]
    if birth == "for another journal":
        waiting.insert(0, replace(first, birth=replace(first.birth, journal=JOURNAL + 1)))
    if birth == "behind one that is lost":
        waiting = [old.birth(), rows(old, 0, upto=5)]
    assert lost([*waiting, *begins(new), began(new), rows(new, 10, upto=15)]) == [UNTIL_NOW]


@pytest.mark.parametrize(("came_us", "until_us"), [(5 * S, 9 * S), (9 * S, 9 * S + 1), (39 * S, 39 * S + 1)])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_life_before_is_lost_until_the_later_of_two_clocks(came_us: int, until_us: int, at_once: bool) -> None:
    """Found by seed 100913: the clock of the new life was 30 s behind when it began, and what was lost was newer.

    at_once: whether the waiting frame shows it with the record, or only when the node speaks later.
    """
    old, new = lives(2)
    old.birth()
    waiting: list[Frame | Heartbeat] = [rows(old, 0, upto=5) if at_once else members(old)]
    decider = Decider(JOURNAL, GRACE)
    for frame in (*waiting, *begins(new), began(new)):
        decider.take("a", frame, came_us)
    decider.take("a", Heartbeat(new.outbox.epoch, 1, ()), 60 * S)
    decider.decide(60 * S)
    assert [(gap.start_us, gap.end_us) for _, gap in decider.gaps if gap.detail == PAST_UNKNOWN] == [(0, until_us)]


def test_a_parent_whose_time_is_unknown_leaves_the_end_of_a_life_before_to_the_tier_above() -> None:
    """protocol 1.2, 4.3: if it learns its time before it decides, the loss ends then."""
    for known, until_us in ((False, LATEST_US + 1), (True, 50 * S + 1)):
        old, new = lives(2)
        old.birth()
        parent = ChildFrames(JOURNAL, GRACE)
        parent.children.pass_time(0, 12 * S, known=False)
        for frame in (members(old), *begins(new), began(new)):
            parent.take("a", frame, 12 * S)
        parent.children.pass_time(12 * S, 50 * S, known=known)
        parent.take("a", Heartbeat(new.outbox.epoch, 1, ()), 50 * S)
        assert [(gap.start_us, gap.end_us) for _, gap in parent.lives.take_found()] == [(0, until_us)]


def test_a_gateway_that_is_new_has_lost_nothing() -> None:
    (new,) = lives(1)
    assert lost([*begins(new), began(new), rows(new, 10, upto=15)]) == []


def test_of_a_line_that_is_known_no_more_is_declared_than_what_came_after_it() -> None:
    """Frames wait of an epoch of it whose birth did not come; its spool is damaged then."""
    old, new = lives(2)
    known = [old.birth(), rows(old, 0, upto=5)]
    old.birth()
    question, birth = begins(new)
    assert birth.birth is not None
    birth = replace(birth, birth=replace(birth.birth, predecessor=LOST))
    assert lost([*known, rows(old, 5, upto=10), question, birth, began(new), rows(new, 10, upto=15)]) == []


def test_epochs_that_follow_the_first_one_and_come_before_it_are_no_life_before() -> None:
    """Whatever waits for the first one to be here to its end."""
    (new,) = lives(1)
    question, birth = begins(new)
    first = [birth, began(new)]
    second = [new.birth(), rows(new, 10, upto=15)]
    third = [new.birth(), rows(new, 15, upto=20)]
    assert lost([question, *third, *second, *first]) == []


def test_frames_of_an_epoch_that_follows_are_no_life_before_though_its_birth_has_not_come() -> None:
    """What they have is of after the beginning."""
    (new,) = lives(1)
    question, birth = begins(new)
    first = [birth, began(new)]
    new.birth()
    assert lost([question, rows(new, 10, upto=15), *first]) == []


def test_what_waits_may_be_of_an_epoch_that_follows_until_the_birth_of_the_present_one_is_here() -> None:
    """A sensor may send readings of before the beginning; the births were lost on the way and come again."""
    (new,) = lives(1)
    first = [new.birth(), began(new)]
    second = [new.birth(), rows(new, 0, upto=15)]
    third = [new.birth(), rows(new, 15, upto=20)]
    speaks = Heartbeat(new.outbox.epoch, 1, ())
    assert lost([second[1], speaks, *first]) == []
    assert lost([second[1], speaks, *first, third[0], speaks]) == []
    assert lost([second[1], speaks, *first, *second, *third]) == []


def test_what_waits_with_no_time_before_the_record_is_no_life_before_until_births_can_be_overtaken_no_more() -> None:
    """Found by seed 64018 of the simulation: messages overtook each other soon after the start.

    A gateway promises its lateness less than its time, and the record of its beginning covers that already.
    """
    (new,) = lives(1)
    first = [new.birth(), began(new), rows(new, 8, upto=9)]
    question = Heartbeat(new.outbox.ask_epoch, -1, ())
    second = [new.birth(), rows(new, 8, upto=10), rows(new, 10, upto=70)]
    speaks = Heartbeat(new.outbox.epoch, 1, ())
    early: list[Frame | Heartbeat] = [second[1], speaks, question]
    for come in ([*early, *first[1:], first[0]], [*early, *first]):
        assert lost(come) == []
        assert lost([*come, *second, speaks]) == []
    old, again = lives(2)
    old.birth()
    before: list[Frame | Heartbeat]
    before = [rows(old, 8, upto=9), *begins(again), began(again), rows(again, 8, upto=69)]
    assert lost(before, 72 * S) == []
    more = [*before, rows(again, 69, upto=70)]
    assert [lost(more, us) for us in (72 * S - 1, 72 * S)] == [[], [UNTIL_NOW]]


def test_what_came_after_the_question_may_be_of_an_epoch_that_follows_whatever_its_times() -> None:
    """Found by seeds 75099, 78461 of the simulation: a broker had kept readings of QoS 1 from before the beginning."""
    (new,) = lives(1)
    first: list[Frame | Heartbeat] = [*begins(new), began(new)]
    second = [new.birth(), rows(new, 0, upto=15)]
    for come in ([*first[:2], second[1], first[2]], [first[0], second[1], first[0], *first[1:]]):
        assert lost(come) == []
        assert lost([*come, *second, Heartbeat(new.outbox.epoch, 1, ())]) == []
    old, again = lives(2)
    old.birth()
    late: list[Frame | Heartbeat] = [*begins(again), rows(old, 0, upto=5), began(again), rows(again, 10, upto=15)]
    assert lost(late) == []
    late.append(Heartbeat(again.outbox.epoch, 2, ()))
    assert [lost(late, us) for us in (72 * S - 1, 72 * S)] == [[], [UNTIL_NOW]]


def test_a_heartbeat_that_was_overtaken_does_not_show_that_the_node_still_sends_in_its_epoch() -> None:
    """Found by seed 102090 of the simulation: it came behind frames of the next epoch, whose birth had been lost."""
    (new,) = lives(1)
    first: list[Frame | Heartbeat] = [*begins(new), began(new), rows(new, 8, upto=10), rows(new, 10, upto=11)]
    late, last = (Heartbeat(new.outbox.epoch, seq, ()) for seq in (1, 3))
    second = [new.birth(), rows(new, 8, upto=15)]
    ahead: list[Frame | Heartbeat] = [first[0], second[1], *first[1:3]]
    for come in ([*ahead, *first[3:]], [*ahead, first[4]]):  # its frames are all here, or one is missing
        assert lost([*come, late]) == []
        assert lost([*come, late, *first[3:4], *second, Heartbeat(new.outbox.epoch, 1, ())]) == []
        assert lost([*come, late], 72 * S) == []
        assert lost([*come, last], 72 * S) == [UNTIL_NOW]  # as of a life before


def test_a_heartbeat_as_of_the_last_frame_shows_where_the_node_sends_once_it_can_be_overtaken_no_more() -> None:
    """Found by seed 912292: the epoch had no open rows, so no frame followed that was newer than the heartbeat."""
    (new,) = lives(1)
    first: list[Frame | Heartbeat] = [*begins(new), began(new)]
    late = Heartbeat(new.outbox.epoch, 1, ())
    second = [new.birth(), rows(new, 8, upto=15)]
    come: list[Frame | Heartbeat] = [first[0], second[1], *first[1:], late]
    assert lost(come, 72 * S - 1) == []
    assert lost([*come, *second, Heartbeat(new.outbox.epoch, 1, ())], 72 * S) == []
    assert lost(come, 72 * S) == [UNTIL_NOW]  # as of a life before


def test_each_group_of_a_record_is_judged_for_itself() -> None:
    """A second record of the same frame took the end of the first one for the time of what waits."""
    (new,) = lives(1)
    first: list[Frame | Heartbeat] = [*begins(new)]
    gap = Gap((QUERY.group,), 8 * S, 9 * S, -1, ("a",), BEGAN)
    (frame,) = new.outbox.put(Step(gaps=(gap, replace(gap, start_us=7 * S))))
    new.birth()
    assert lost([*first, rows(new, 0, upto=15), frame]) == []


@pytest.mark.parametrize("restarts", [0, 1])
def test_what_waits_of_a_life_before_is_declared_though_the_last_heartbeat_was_of_that(restarts: int) -> None:
    old, new = lives(2)
    old.birth()
    waiting: list[Frame | Heartbeat] = [rows(old, 0, upto=5), Heartbeat(old.outbox.epoch, 1, ())]
    frames = [*waiting, new.birth(), began(new)]
    assert lost(frames) == []
    frames += [new.birth()] if restarts else []
    assert lost([*frames, Heartbeat(new.outbox.epoch, 1 - restarts, ())], 72 * S) == [UNTIL_NOW]


def test_a_waiting_frame_without_a_time_counts_when_the_node_still_speaks_in_the_new_life() -> None:
    """Found by seed 8313 of the simulation: all that was left of the life before was the second frame of its birth."""
    old, new = lives(2)
    old.birth()
    waiting = members(old)
    frames: list[Frame | Heartbeat] = [waiting, *begins(new), began(new), rows(new, 10, upto=15)]
    assert lost(frames) == []
    assert lost([*frames, Heartbeat(new.outbox.epoch, 2, ())]) == [UNTIL_NOW]


def test_a_waiting_frame_without_a_time_counts_with_a_heartbeat_only_however_much_is_promised() -> None:
    """protocol 1.2: the birth of its epoch may still be under way."""
    old, new = lives(2)
    old.birth()
    frames: list[Frame | Heartbeat] = [members(old), *begins(new), began(new), rows(new, 10, upto=90)]
    assert lost(frames, 100 * S) == []
    assert lost([*frames, Heartbeat(new.outbox.epoch, 2, ())]) == [UNTIL_NOW]


def test_a_frame_without_a_time_of_an_epoch_that_follows_is_no_life_before() -> None:
    """It waits for the first frame of its birth; the node speaks in its epoch."""
    (new,) = lives(1)
    question, birth = begins(new)
    first = [birth, began(new)]
    second = new.birth()
    waiting, speaks = members(new), Heartbeat(new.outbox.epoch, 1, ())
    assert lost([question, waiting, *first, speaks]) == []
    assert lost([question, waiting, *first, speaks, second, speaks]) == []


@pytest.mark.parametrize(("asked", "more"), [(0, 0), (2, 0), (0, 2**31)], ids=["first", "third parent", "again"])
def test_a_question_for_the_journal_is_answered_when_the_birth_of_its_epoch_is_here(asked: int, more: int) -> None:
    """protocol 1.2, 3.7: a gateway that sends a frame a second sends no heartbeat, and its loss was not declared.

    again: the question of a later start, whose birth is still to come.
    """
    old, new = lives(2)
    old.birth()
    waiting = [rows(old, 0, upto=5)]
    birth = new.birth()
    new.outbox._asked = asked + more
    question = Heartbeat(new.outbox.ask_epoch, -1, ())
    new.outbox._asked = 0
    found = lost([*waiting, question, birth, began(new), rows(new, 10, upto=15)])
    assert found == ([] if more else [UNTIL_NOW])


def test_the_question_of_a_gateway_and_its_birth_have_the_same_id() -> None:
    """protocol 3.7: by this a parent knows the question that has been answered."""
    host = gateway_host()
    out = [*host.do(LinkUp(), T0), *host.do(Tick(), T0)]
    (question,) = [each.heartbeat for each in out if isinstance(each, Beat)]
    host.do(Receipted(Receipt(question.epoch, 7, 0)), T0)
    host.do(Tick(), T0 + S)
    (birth,) = [frame.birth for frame in host.frames if frame.birth is not None]
    assert question == Heartbeat(birth.epoch_id & 0xFFFFFFFF, -1, ())


@pytest.mark.parametrize("late", [False, True])
def test_a_record_that_comes_after_promises_of_the_new_life_is_not_narrowed_by_them_above(late: bool) -> None:
    """Found by seed 29089 of the simulation: the tier above took a promise of the new life for one of the old (3.7)."""
    old, new = lives(2)
    old.birth()
    waiting: list[Frame | Heartbeat] = [rows(old, 0, upto=5)]
    question, birth = begins(new)
    waiting += [question, *([Heartbeat(old.outbox.epoch, 1, ())] if late else [])]
    frames = [*waiting, birth, began(new), rows(new, 10, upto=15), Heartbeat(new.outbox.epoch, 2, ())]
    (record,) = records(frames)
    membership = GroupMembership(GRACE)
    member = membership.members["m"] = Member()
    member.change(Members(0, (Leaf("a", new.outbox.epoch),)))
    member.promise(15 * S, 15 * S)
    assert bool(narrowed({QUERY.group: membership}, "m", record)) == late


def test_what_waits_of_a_life_before_is_declared_also_if_its_parent_was_started_in_between() -> None:
    old, new = lives(2)
    old.birth()
    waiting: list[Frame | Heartbeat] = [rows(old, 0, upto=5), Heartbeat(old.outbox.epoch, 1, ())]
    root, again = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0), Decider(JOURNAL, GRACE)
    for frame in (*waiting, new.birth(), began(new)):
        root.take("a", frame, 12 * S)
    again.restore(root.decider.snapshot(lambda frame: frame), lambda frame: frame)
    for at_us in (12 * S, 72 * S):
        again.take("a", Heartbeat(new.outbox.epoch, 1, ()), at_us)
        again.decide(at_us)
    assert [(gap.start_us, gap.end_us) for _, gap in again.gaps if gap.detail == PAST_UNKNOWN] == [UNTIL_NOW]


def test_old_frames_of_a_gateway_that_does_not_speak_here_are_no_life_before_in_any_order() -> None:
    """Found by seed 55036: its clock had stepped back, it had moved on, and its parent was started."""
    (new,) = lives(1)
    first = [new.birth(), began(new), rows(new, 10, upto=80)]  # which is much more than the beginning
    second = [new.birth(), rows(new, 0, upto=85)]
    third = [new.birth(), rows(new, 85, upto=90), leaving(new)]
    frames = [second[1], *third[1:], *first, second[0], third[0]]
    assert [lost(frames[:count]) for count in range(len(frames) + 1)] == [[]] * (len(frames) + 1)
    assert lost([second[1], *first], 100 * S) == []


def test_a_birth_that_was_overtaken_is_of_no_life_before_though_its_gateway_promises_much_at_once() -> None:
    """protocol 1.2: it sends what it took in an outage, with a late reading, or its clock steps ahead and back."""
    (new,) = lives(1)
    question, birth = begins(new)
    first = [birth, began(new), rows(new, 10, upto=80)]
    second = [new.birth(), rows(new, 0, upto=85)]
    assert lost([question, second[1], *first]) == []
    assert lost([question, second[1], *first, second[0], rows(new, 85, upto=95)]) == []


def test_what_waits_of_a_life_before_is_declared_when_a_gateway_that_has_not_spoken_here_leaves() -> None:
    old, new = lives(2)
    old.birth()
    frames = [rows(old, 0, upto=5), new.birth(), began(new), rows(new, 10, upto=15)]
    assert lost(frames) == []
    assert lost([*frames, leaving(new)]) == [UNTIL_NOW]


@pytest.mark.parametrize("started", [False, True])
def test_what_waits_of_a_life_before_is_declared_in_the_end_though_the_gateway_sends_no_heartbeat(
    started: bool,
) -> None:
    """It sends frames all the time; its parent was started after it had asked for the journal, and perhaps again."""
    old, new = lives(2)
    old.birth()
    decider = Decider(JOURNAL, GRACE)
    for frame in (rows(old, 0, upto=5), new.birth(), began(new)):
        decider.take("a", frame, 12 * S)
    if started:
        before, decider = decider, Decider(JOURNAL, GRACE)
        decider.restore(before.snapshot(lambda frame: frame), lambda frame: frame)
    found = []
    for at_us in (13 * S, 13 * S + WAIT_US - 1, 13 * S + WAIT_US):
        decider.take("a", rows(new, upto=at_us // S), at_us)
        decider.decide(at_us)
        found.append([(gap.start_us, gap.end_us) for _, gap in decider.gaps if gap.detail == PAST_UNKNOWN])
    assert found == ([[], [], [(0, 13 * S + 1)]] if started else [[], [UNTIL_NOW], [UNTIL_NOW]])
