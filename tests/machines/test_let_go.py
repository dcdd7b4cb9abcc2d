"""Frames that a child deleted because a merger had them, before that merger went back to an older copy of its spool."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.frame import (
    FRAMES_LOST,
    JOURNAL_LOST,
    ExcludedLeaf,
    Frame,
    Gap,
    Heartbeat,
    Leaf,
    Receipt,
    Serving,
)
from edge_agent.algebra.query.key import EpochKey, QueryKey
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.epochs.epoch_frames import earliest
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.downlink.losses.let_go import LET_GO, MOST_REFUSED, PAUSE_US, WAIT_US, Hole, LetGo
from edge_agent.machines.downlink.losses.loss_records import LATE_US, narrowed
from edge_agent.machines.events import Arrived, BadFrame, LowerLink, SendReceipt, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.uplink.step import GroupStep, Step
from edge_agent.runtime.region import pack, unpack
from edge_agent.wire import snapshot
from tests.support.machines.inbox_frames import born, lost_past
from tests.support.machines.scripted_child import GRACE, JOURNAL, SUM, S, Sender
from tests.support.machines.simulated_host import SimulatedHost

QUERY = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)


class Parent:
    """A merger's inbox, whose child speaks every second."""

    def __init__(self, sender: Sender) -> None:
        self.frames, self.sender, self.now_us = ChildFrames(JOURNAL, GRACE), sender, 100 * S
        self.took_effect: list[tuple[int, int]] = []
        self.losses: list[Gap] = []

    def take(self, *messages: Frame | Heartbeat) -> None:
        for message in messages:
            for applied in self.frames.take(self.sender.node, message, self.now_us):
                self.losses += applied.losses
                if applied.effect.frame is not None:
                    self.took_effect.append((applied.effect.epoch, applied.effect.seq))
        self.frames.inbox.check()

    def speaks(self, for_us: int, step_us: int = S) -> None:
        until_us = self.now_us + for_us
        while self.now_us < until_us:
            self.now_us += step_us
            self.take(Heartbeat(self.sender.outbox.epoch, self.sender.outbox.seq - 1, ()))

    @property
    def frontiers(self) -> Iterable[int]:
        return [each.members["g"].frontier_us for each in self.frames.children.memberships.values()]


def rows(sender: Sender, number: int) -> Frame:
    """A window that closes, and the promise that it is complete."""
    return sender.send((number * 10 * S, (number + 1) * 10 * S, "", 1.0), frontier_us=(number + 1) * 10 * S)


def test_frames_that_do_not_come_while_their_child_speaks_are_lost_and_the_line_goes_on() -> None:
    """protocol 1.3, 2.2, 4.2: from where the line stood on, windows are marked, and where late rows may be missing."""
    sender = Sender("g", QUERY)
    parent = Parent(sender)
    parent.now_us = 2_000 * S
    parent.take(sender.birth(), rows(sender, 100))
    gone = [rows(sender, 101), rows(sender, 102)]
    parent.take(rows(sender, 103))
    parent.speaks(WAIT_US - S)
    assert parent.losses == []
    parent.speaks(2 * S)
    epoch = sender.outbox.epoch
    assert parent.took_effect == [(epoch, 0), (epoch, 1), (epoch, 4)]
    (gap,) = parent.losses
    assert (gap.reason, gap.nodes, gap.start_us) == (LET_GO, ("g",), 1_010 * S - LATE_US)  # late rows may be among it
    assert parent.frontiers == [1_040 * S]
    parent.take(*gone)  # after all
    assert len(parent.took_effect) == 3
    assert len(parent.losses) == 1


def test_a_frame_that_lost_definitions_would_explain_does_not_hide_what_is_missing_behind_it() -> None:
    """protocol 2.4, 1.3: it waits until the whole epoch is here, and the next one could not begin."""
    sender = Sender("g", QUERY)
    parent = Parent(sender)
    parent.now_us = 2_000 * S
    parent.take(sender.birth())
    frames = [rows(sender, number) for number in range(100, 104)]  # the first one defines their plan
    parent.take(frames[1], frames[3])
    parent.take(*sender.outbox.restate(), sender.birth())
    parent.speaks(WAIT_US + 2 * S)
    assert parent.took_effect[-1] == (sender.outbox.epoch, 0)
    parent.take(rows(sender, 104))
    assert parent.frontiers == [1_050 * S]


@pytest.mark.parametrize("goes_on", ["in the epoch", "in another epoch", "not at all"])
def test_a_frame_that_waits_for_lost_definitions_does_not_hide_what_is_found_missing_later(goes_on: str) -> None:
    """protocol 2.4, 1.3; found by seed 29241 of the simulation: a whole line stood still for ever."""
    sender = Sender("g", QUERY)
    parent = Parent(sender)
    parent.now_us = 2_000 * S
    parent.take(sender.birth())
    frames = [rows(sender, number) for number in range(100, 102)]  # the first one defines their plan
    parent.take(frames[1])
    parent.speaks(WAIT_US + 2 * S)
    rows(sender, 102)
    if goes_on == "in the epoch":
        parent.take(rows(sender, 103))
    if goes_on != "in another epoch":
        parent.speaks(WAIT_US + 2 * S)
    parent.take(sender.birth())  # its parent's receipt asks for it
    parent.speaks(WAIT_US + 2 * S if goes_on == "in another epoch" else 2 * S)
    assert parent.took_effect[-1] == (sender.outbox.epoch, 0)
    assert not any(epoch.waiting for epoch in parent.frames.inbox.epochs.values())


def test_a_line_of_a_second_device_goes_on_behind_what_waited_here_when_its_epoch_ended() -> None:
    """protocol 1.4: it had been told that this had come; a merger took nothing behind it, and it sent that for ever."""
    first = Sender("g", QUERY)
    parent = Parent(first)
    parent.now_us = 2_000 * S
    parent.take(first.birth(), rows(first, 100))
    second = copy.deepcopy(first)
    frames = [rows(second, number) for number in range(101, 107)]
    parent.take(*frames[1:3])
    parent.take(first.birth(1_010 * S))  # the first device goes on, and speaks
    assert [gap.start_us for gap in parent.losses] == [1_010 * S] * 2
    first_epoch, epoch = first.outbox.epoch, second.outbox.epoch

    def receipted() -> int:
        return parent.frames.inbox.receipt("g", epoch).upto

    parent.take(frames[5], frames[4], frames[0])
    assert receipted() == frames[1].seq
    for _ in range(WAIT_US // (10 * S) - 1):
        parent.speaks(10 * S)
        parent.take(frames[5], frames[4], frames[3])
    assert receipted() == frames[1].seq
    found = len(parent.losses)
    parent.speaks(15 * S)
    assert receipted() == frames[3].seq
    assert len(parent.losses) == found + 1
    parent.take(*frames[3:])
    assert receipted() == second.outbox.seq
    assert [gap.start_us for gap in parent.losses[found + 1 :]] == [1_040 * S, 1_050 * S, 1_060 * S]
    assert parent.took_effect[-1] == (first_epoch, 0)
    parent.speaks(10 * S)
    assert not parent.frames.let_go._ahead_of_end


def bounded(sender: Sender, most_frames: int) -> Parent:
    """A merger with little room for frames that wait."""
    parent = Parent(sender)
    parent.now_us, parent.frames.inbox.waiting.most_frames = 2_000 * S, most_frames
    return parent


def test_frames_behind_lost_ones_may_be_more_than_have_room() -> None:
    """protocol 1.3, 2.2: those beyond the bound come again more often than every 2 minutes; the line stood for ever."""
    sender = Sender("g", QUERY)
    parent = bounded(sender, 5)
    parent.take(sender.birth(), rows(sender, 100))
    gone = rows(sender, 101)
    behind = [rows(sender, number) for number in range(102, 122)]
    epoch, last = sender.outbox.epoch, sender.outbox.seq - 1
    for _ in range(8):
        parent.take(*(frame for frame in behind if frame.seq not in parent.frames.inbox.epochs[EpochKey("g", epoch)]))
        parent.speaks(60 * S)
    assert parent.took_effect == [(epoch, seq) for seq in range(last + 1) if seq != gone.seq]
    assert [gap.reason for gap in parent.losses] == [LET_GO]


def test_an_epoch_of_which_nothing_is_in_any_spool_is_passed_over_while_later_frames_have_no_room() -> None:
    """protocol 1.3, 2.2: its child was started several times since the copy of the merger's spool was made."""
    sender = Sender("g", QUERY)
    parent = bounded(sender, 5)
    parent.take(sender.birth(), rows(sender, 0))
    rows(sender, 1)
    sender.birth()
    rows(sender, 2)
    behind = [sender.birth(), *(rows(sender, number) for number in range(3, 13))]
    for _ in range(8):
        parent.take(*behind)
        parent.speaks(60 * S)
    assert parent.took_effect[-len(behind) :] == [(frame.epoch, frame.seq) for frame in behind]
    assert {gap.reason for gap in parent.losses} == {LET_GO}


def test_another_child_that_sends_more_than_has_room_does_not_keep_a_line_waiting() -> None:
    """protocol 2.2: each refused frame of any child began the wait anew for all children."""
    sender, other = Sender("g", QUERY), Sender("h", QUERY)
    parent = bounded(sender, 5)
    parent.take(sender.birth(), rows(sender, 100))
    rows(sender, 101)
    parent.take(rows(sender, 102))
    frames = [other.birth(), *(rows(other, number) for number in range(100, 110))]
    for frame in (*frames[:2], *frames[3:8]):
        parent.frames.take("h", frame, parent.now_us)
    for _ in range(3):
        parent.frames.take("h", frames[-1], parent.now_us)
        parent.speaks(60 * S)
    assert parent.frames.inbox.refused == 3
    assert parent.took_effect[-1] == (sender.outbox.epoch, 3)


def test_a_frame_that_has_no_room_is_not_lost_nor_what_its_child_sends_behind_it() -> None:
    """protocol 2.2: only what is missing before it is; all others come as soon as there is room."""
    sender = Sender("g", QUERY)
    parent = bounded(sender, 5)
    parent.take(sender.birth(), rows(sender, 100))
    gone = [rows(sender, 101), rows(sender, 102)]
    behind = [rows(sender, number) for number in range(103, 113)]
    parent.take(*behind[5:])  # an earlier connection had brought them
    for _ in range(4):
        parent.take(*behind[:3])
        parent.speaks(60 * S)
    parent.take(*behind)
    seqs = [seq for _, seq in parent.took_effect]
    assert seqs == [seq for seq in range(sender.outbox.seq) if seq not in {frame.seq for frame in gone}]
    assert [gap.reason for gap in parent.losses] == [LET_GO]


def test_so_many_epochs_with_frames_without_room_are_noted_and_with_more_every_hole_waits_anew() -> None:
    """protocol 2.2: a hostile child decides how many."""
    sender = Sender("g", QUERY)
    parent = bounded(sender, 5)
    parent.take(sender.birth(), rows(sender, 100))
    rows(sender, 101)
    parent.take(rows(sender, 102))
    parent.speaks(60 * S)
    let_go, epoch = parent.frames.let_go, sender.outbox.epoch
    for number in range(2 * MOST_REFUSED):
        let_go.refused("g", number, 7)
    assert len(let_go._refused["g"]) == MOST_REFUSED
    parent.speaks(WAIT_US - S)
    assert (epoch, 3) not in parent.took_effect
    parent.speaks(3 * S)
    assert (epoch, 3) in parent.took_effect
    assert not any((let_go._refused, let_go._comes_again, let_go._waited_us))


def test_a_frame_that_had_no_room_once_is_not_lost_with_the_frames_before_it_however_long_it_takes_to_come() -> None:
    """protocol 1.3, 2.2: its child sends it again behind them."""
    inbox = Inbox(JOURNAL)
    let_go, lost = LetGo(inbox), list[BadFrame]()
    for frame in (born(1), Frame(1, 5)):
        inbox.take("g", frame)
    for second in range(WAIT_US // S + 5):
        if second == 1:
            let_go.refused("g", 1, 3)
        lost += let_go.heard("g", 1, None, second * S)
    assert {(each.seq, each.run) for each in lost} == {(1, 2)}


def test_a_frame_of_an_older_line_that_has_no_room_shows_that_its_child_has_still_to_send_the_present_one() -> None:
    """protocol 1.3, 2.2: a child sends its frames in order."""
    inbox = Inbox(JOURNAL)
    let_go, lost, late_s = LetGo(inbox), list[BadFrame](), 100
    for frame in (born(1), lost_past(2, 1), Frame(2, 3)):
        inbox.take("g", frame)
    for second in range(WAIT_US // S + late_s):
        if second == late_s:
            let_go.refused("g", 1, 7)
        lost += let_go.heard("g", 1, None, second * S)
    assert lost == []
    for second in range(WAIT_US // S + late_s, WAIT_US // S + late_s + 3):
        lost += let_go.heard("g", 1, None, second * S)
    assert {(each.epoch, each.seq, each.run) for each in lost} == {(2, 1, 2)}


def test_a_child_of_which_many_frames_are_missing_is_looked_at_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 2.2: a look costs as much as frames wait, which a hostile child decides; a clock may also go back."""
    sender, looks, real = Sender("g", QUERY), list[int](), LetGo._holes
    parent = Parent(sender)

    def holes(self: LetGo, node: str, last: int, beat: Heartbeat | None) -> Iterator[tuple[Hole, int]]:
        looks.append(parent.now_us)
        return real(self, node, last, beat)

    monkeypatch.setattr(LetGo, "_holes", holes)
    parent.take(sender.birth())
    for number in range(100):
        frame = rows(sender, number)
        parent.now_us += S // 20
        if number % 2:
            parent.take(frame)
    assert len(looks) in (5, 6)
    parent.now_us -= 1_000 * S
    parent.take(rows(sender, 100))
    assert looks[-1] == parent.now_us


def test_a_root_that_starts_again_and_again_settles_what_its_lander_forgot_with_its_journal() -> None:
    """protocol 3.2: no statement of the lander names these frames, and no later birth."""
    sender = Sender("g", QUERY)
    parent = Parent(sender)
    parent.frames, parent.now_us = ChildFrames(JOURNAL, GRACE, bounded=False), 2_000 * S
    parent.take(sender.birth(), rows(sender, 100))
    rows(sender, 101)
    parent.take(rows(sender, 102))
    for second in range(0, WAIT_US + 20 * S, 10 * S):
        parent.speaks(10 * S)
        assert not parent.losses or second + 10 * S >= WAIT_US
        again = ChildFrames(JOURNAL, GRACE, bounded=False)
        again.restore(snapshot.loads(snapshot.dumps(parent.frames.snapshot(pack))), unpack)
        parent.frames = again
    assert parent.took_effect == [(sender.outbox.epoch, seq) for seq in (0, 1, 3)]
    assert [(gap.reason, gap.nodes) for gap in parent.losses] == [(LET_GO, ("g",))]


def test_an_epoch_of_which_nothing_is_in_any_spool_is_passed_over() -> None:
    """protocol 1.3: its child began another one meanwhile, or several."""
    sender = Sender("g", QUERY)
    parent = Parent(sender)
    parent.take(sender.birth(), rows(sender, 0))
    rows(sender, 1)
    sender.birth()
    rows(sender, 2)
    parent.take(sender.birth(), rows(sender, 3))
    parent.speaks(WAIT_US + PAUSE_US + 2 * S)
    assert parent.took_effect[-2:] == [(sender.outbox.epoch, 0), (sender.outbox.epoch, 1)]
    assert {gap.reason for gap in parent.losses} == {LET_GO}
    assert parent.frontiers == [40 * S]


def test_a_child_that_is_silent_or_comes_back_has_time_to_send() -> None:
    """protocol 3.3: what is on its way is not lost."""
    sender = Sender("g", QUERY)
    parent = Parent(sender)
    parent.take(sender.birth())
    late = rows(sender, 0)
    parent.take(rows(sender, 1))
    parent.now_us += 10 * WAIT_US
    parent.speaks(WAIT_US // 2)
    parent.speaks(WAIT_US * 3, step_us=PAUSE_US * 10)
    assert parent.losses == []
    parent.take(late)
    parent.speaks(WAIT_US)
    assert parent.losses == []
    assert [seq for _, seq in parent.took_effect] == [0, 1, 2]


def test_a_child_whose_birth_is_in_no_spool_says_everything_anew_and_what_it_sent_is_marked() -> None:
    """protocol 1.3, 2.4: it learns from a receipt that its parent lacks what it had received."""
    sender = Sender("g", QUERY)
    parent = Parent(sender)
    sender.birth()
    sender.outbox.committed()
    sender.outbox.link(up=True)
    sender.outbox.marks()
    sender.outbox.publish(0)
    sender.outbox.receipt(Receipt(sender.outbox.epoch, JOURNAL, 1), lambda *_: Frame(0, 0))
    parent.take(rows(sender, 0))
    parent.speaks(WAIT_US + 2 * S)
    answer = parent.frames.inbox.receipt("g", sender.outbox.epoch)
    assert answer.quarantined == (0,)
    assert sender.outbox.asked_anew(answer)
    assert not sender.outbox.asked_anew(answer)
    for frame in sender.outbox.restate():
        parent.take(frame)
    parent.take(sender.birth(), rows(sender, 1))
    assert (sender.outbox.epoch, 1) in parent.took_effect
    (past,) = [gap for gap in parent.losses if gap.groups]
    assert (past.reason, past.start_us, past.nodes) == (LET_GO, 0, ("g",))
    above = ChildFrames(JOURNAL, GRACE)  # had the leaf's promise by the spool that is lost; late rows lie before it
    (group,) = past.groups
    above.children.membership(group).member("m").leaves["g"] = Leaf("g", 1)
    above.children.membership(group).member("m").promise(50 * S, 0)
    assert narrowed(above.children.memberships, "m", past) == [past]
    assert narrowed(above.children.memberships, "m", replace(past, reason=JOURNAL_LOST))[0].start_us == 50 * S


@pytest.mark.parametrize("known", [True, False])
def test_a_child_that_always_has_rows_to_send_and_so_no_heartbeat_says_everything_anew_too(known: bool) -> None:
    """protocol 1.3, 2.5: nothing of it took effect while its process ran. known: frames of an earlier one are here."""
    sender = Sender("g", QUERY)
    parent = Parent(sender)
    if known:
        parent.take(sender.birth(), rows(sender, 0))
    sender.birth()
    for second in range((WAIT_US + PAUSE_US) // S + 3):
        parent.now_us += S
        parent.take(rows(sender, second))
    assert parent.frames.inbox.receipt("g", sender.outbox.epoch).quarantined == (0,)
    assert LET_GO in {gap.reason for gap in parent.losses}


def test_an_epoch_whose_birth_is_for_another_journal_is_not_settled_while_its_child_sends_that_again() -> None:
    """protocol 1.2, 3.7: the child gives the epoch up itself once it knows the journal, and its frames move."""
    sender = Sender("g", QUERY)
    parent = Parent(sender)
    birth = sender.birth()
    assert birth.birth is not None
    foreign = replace(birth, birth=replace(birth.birth, journal=JOURNAL + 1))
    for second in range(3 * WAIT_US // S):
        parent.now_us += S
        parent.take(*[foreign] * (second % 60 == 0), rows(sender, second))
    assert parent.losses == []


@pytest.mark.parametrize("known", [True, False])
def test_a_child_that_has_nothing_more_to_send_names_what_is_lost_in_its_heartbeats(known: bool) -> None:
    """protocol 1.3, 2.5: its line stood still until its sensors had something new. known: of its birth at least."""
    sender = Sender("g", QUERY)
    parent = Parent(sender)
    parent.take(*[sender.birth()] * known)
    rows(sender, 0)
    rows(sender, 1)
    parent.speaks(WAIT_US - 2 * S)
    assert parent.losses == []
    parent.speaks(4 * S)
    (gap,) = parent.losses
    assert (gap.reason, gap.nodes) == (LET_GO, ("g",))
    assert parent.frames.inbox.reached("g", sender.outbox.epoch, sender.outbox.seq - 1)
    assert parent.frames.inbox.unborn("g", sender.outbox.epoch) != known
    parent.take(Heartbeat(sender.outbox.epoch, sender.outbox.seq - 1, ((0, 20 * S),)))
    assert parent.frontiers == [20 * S] * known


def test_a_heartbeat_of_an_epoch_that_is_over_names_no_loss() -> None:
    """protocol 1.3, 2.5: it was half a minute under way."""
    sender = Sender("g", QUERY)
    parent = Parent(sender)
    first = sender.birth()
    parent.take(first, sender.birth())
    for _ in range(2 * WAIT_US // S):
        parent.now_us += S
        parent.take(Heartbeat(first.epoch, 7, ()))
    assert parent.losses == []


def long_birth() -> tuple[Sender, list[Frame]]:
    """A child whose birth takes four frames."""
    queries = tuple(replace(QUERY, id=f"q{i}") for i in range(9))
    sender = Sender("g", *queries)
    sender.outbox.frame_bytes = 500
    return sender, birth_of_four(sender)


def birth_of_four(sender: Sender) -> list[Frame]:
    """The birth of the sender's next epoch. Its first frame neither lists the leaf nor says what it serves."""
    sender.outbox.draw()
    leaf = GroupStep(QUERY.group, None, leaves=(Leaf("g", 1),), serving=(Serving("q0", 1),))
    born = sender.outbox.open(Step((leaf,), tuple(map(canonical_query, sender.queries))))
    assert len(born) == 4
    assert not born[0].members
    return born


def test_frames_within_a_birth_that_do_not_come_are_lost_too() -> None:
    """protocol 1.3, 1.2: the birth takes effect with those that came, or its child was not expected at all."""
    sender, born = long_birth()
    parent = Parent(sender)
    parent.take(born[0], born[3], rows(sender, 0))
    parent.speaks(WAIT_US - S)
    assert parent.took_effect == []
    parent.speaks(2 * S)
    assert [seq for _, seq in parent.took_effect] == [0, 3, 4]
    assert {gap.reason for gap in parent.losses} == {LET_GO}
    assert parent.frontiers == [10 * S]


def test_one_record_may_stand_for_several_frames_of_a_birth() -> None:
    """protocol 3.2, 1.2: as the root makes one."""
    sender, born = long_birth()
    parent = Parent(sender)
    parent.take(born[0], born[3])
    parent.frames.settle("g", BadFrame(sender.outbox.epoch, 1, FRAMES_LOST, b"", 2), parent.now_us)
    parent.take(rows(sender, 0))
    assert parent.took_effect[-1:] == [(sender.outbox.epoch, 4)]
    assert parent.frontiers == [10 * S]


def test_what_a_child_had_stated_holds_on_if_a_frame_of_its_next_birth_is_lost() -> None:
    """protocol 1.2: else no window expected it, and rows without its readings counted as complete."""
    sender, born = long_birth()
    parent = Parent(sender)
    parent.take(*born)
    (membership,) = parent.frames.children.memberships.values()
    member = membership.members["g"]
    member.except_leaves((ExcludedLeaf("g", 5, 5),))
    assert set(member.serving) == {QueryKey("q0", 1)}
    again = birth_of_four(sender)
    parent.take(again[0])
    parent.speaks(WAIT_US + PAUSE_US + 2 * S)
    assert parent.took_effect[-1] == (sender.outbox.epoch, 0)
    assert set(member.serving) == {QueryKey("q0", 1)}
    assert member.exceptions == {"g": (5, 5)}


def test_a_lost_birth_of_an_epoch_that_has_a_successor_is_passed_over_too() -> None:
    """protocol 1.3, 1.2: what waits behind it takes effect as far as it can, and the child's line goes on."""
    sender = Sender("g", QUERY)
    parent = Parent(sender)
    sender.birth()
    first = sender.outbox.epoch
    parent.take(rows(sender, 0))
    parent.take(sender.birth(), rows(sender, 1))
    parent.speaks(WAIT_US + 2 * S)
    assert parent.took_effect[-2:] == [(sender.outbox.epoch, 0), (sender.outbox.epoch, 1)]
    assert parent.frames.inbox.receipt("g", first).upto == 2
    assert parent.frontiers == [20 * S]


def test_what_a_line_before_a_lost_spool_waits_for_is_not_settled_while_the_newer_line_speaks() -> None:
    """protocol 1.2, 1.4: its child read its sources again, and what took effect of the older line counted twice."""
    before, after = Sender("g", QUERY), Sender("g", QUERY)
    before.outbox.random, after.outbox.random = Random(1), Random(2)
    parent = Parent(after)
    before.birth()
    rows(before, 0)
    parent.take(after.birth(), rows(after, 0))
    parent.take(before.birth(), rows(before, 1))
    parent.speaks(WAIT_US + 2 * S)
    assert parent.losses == []
    assert parent.took_effect == [(after.outbox.epoch, 0), (after.outbox.epoch, 1)]
    assert parent.frames.let_go is not None
    assert not parent.frames.let_go.waiting


def test_a_merger_says_which_frames_it_settled_until_its_child_begins_anew() -> None:
    """protocol 1.3, 2.4: nothing of the child comes meanwhile but heartbeats, and a receipt may be lost."""
    sender, now_us = Sender("g", QUERY), 100 * S
    merger = SimulatedHost(Merger(NodeSettings("m"), Random(1), grace_us=GRACE))
    merger.accepted(now_us)
    merger.do(LowerLink(up=True), now_us)
    sender.birth()
    merger.do(Arrived((("g", rows(sender, 0), None),)), now_us)
    beat = Heartbeat(sender.outbox.epoch, sender.outbox.seq - 1, ())
    told = []
    for _ in range(WAIT_US // S + 4):
        now_us += S
        out = [*merger.do(Arrived((("g", beat, None),)), now_us), *merger.do(Tick(), now_us)]
        told.append(any(isinstance(each, SendReceipt) and each.receipt.quarantined[:1] == (0,) for each in out))
    assert told[-3:] == [True, True, True]
    assert sum(told) < 6
    merger.do(Arrived((("g", sender.birth(), None),)), now_us)
    beat = Heartbeat(sender.outbox.epoch, sender.outbox.seq - 1, ())
    merger.do(Tick(), now_us + S)
    out = [*merger.do(Arrived((("g", beat, None),)), now_us + 2 * S), *merger.do(Tick(), now_us + 2 * S)]
    assert not any(isinstance(each, SendReceipt) and each.receipt.quarantined for each in out)


def test_late_rows_count_for_where_a_refused_frame_begins() -> None:
    """protocol 1.3, 3.6"""
    sender = Sender("a", QUERY)
    sender.birth()
    assert earliest(sender.send((50 * S, 60 * S, "", 1.0))) == 50 * S
    assert earliest(sender.send((5 * S, 10 * S, "", 1.0), late=True)) == 5 * S
