"""A node with several parents: which of them it uses, and whose answers count (protocol 1.5)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.frame import IN_DOUBT, JOURNAL_LOST, LOST, Birth, Frame, Gap, Receipt
from edge_agent.machines.events import (
    AcceptLoss,
    Beat,
    ClockChanged,
    Command,
    Configured,
    LinkDown,
    LinkUp,
    Publish,
    Receipted,
    Restored,
    SpooledFrame,
    Tick,
)
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.uplink.outbox import OLD_RECEIPTS, Outbox
from edge_agent.machines.uplink.parent_choice import ParentChoice
from edge_agent.machines.uplink.pending_frames import POISON_TRIES
from edge_agent.ports.spool import DamagedError
from tests.support.machines.simulated_host import QUERY, SENSOR, T0, Disk, S, SimulatedHost, gateway_host, read

OF_A, OF_B = 7, 8  # their journals
SETTINGS = NodeSettings("a", parents=("A", "B"), away_us=120 * S, back_us=300 * S)


class Site:
    """A gateway with two parents, which answer each second while they are in `answering`."""

    def __init__(self, disk: Disk | None = None, now_us: int = T0) -> None:
        self.take(gateway_host(disk, now_us, settings=SETTINGS))
        self.journals = {"A": OF_A, "B": OF_B}
        self.answering: set[str] = {"A", "B"}
        self.now_us = now_us
        self.host.do(LinkUp(), now_us)

    def take(self, host: SimulatedHost[Gateway]) -> None:
        self.host, self.box = host, host.machine.outbox

    def lose_slots(self, *, damaged: bool = False) -> None:
        """The process starts again on a spool of which only the frames are left. damaged: births are not."""
        disk = self.host.disk
        disk.slots.clear()
        frames = tuple(SpooledFrame(*key, sent) for key, (_, sent) in disk.frames.items())
        births = {key for key in disk.frames if key[1] == 0} if damaged else set()

        def load(epoch: int, seq: int) -> Frame:
            if (epoch, seq) in births:
                raise DamagedError("fails its checksum")
            return disk.load(epoch, seq)

        self.take(SimulatedHost(Gateway(SETTINGS, Random(99), Restored({}, frames, True), load), disk))
        self.host.do(Configured((SENSOR,), (QUERY,), (), ("q",)), self.now_us)

    def run(self, seconds: int, *, readings: bool = True) -> None:
        for _ in range(seconds):
            self.now_us += S
            known = len(self.host.done)
            if readings:
                read(self.host, self.now_us, 1, self.now_us)
            self.host.do(Tick(), self.now_us)
            for action in self.host.done[known:]:  # questions of either kind
                if isinstance(action, Beat) and (to := action.to or self.box.parent) in self.answering:
                    self.host.do(Receipted(Receipt(action.heartbeat.epoch, self.journals[to], 0)), self.now_us)
            for parent, line in tuple(self.box.former_lines.lines.items()):
                if parent in self.answering:
                    self._receipts(parent, line.pending.epochs())
            if self.box.parent in self.answering and self.box.journal is not None:
                self._receipts(self.box.parent, {self.box.epoch} | self.box.pending.epochs())
            if self.box.parent != self.host.machine.wanted or not self.box.link_up:
                self.host.do(LinkUp(), self.now_us)

    def _receipts(self, parent: str, epochs: set[int]) -> None:
        for epoch in sorted(epochs):
            sent = [seq for of, seq in self.host.disk.frames if of == epoch and self.host.disk.frames[of, seq][1]]
            self.host.do(Receipted(Receipt(epoch, self.journals[parent], max(sent, default=-1) + 1)), self.now_us)

    def declared(self, known: int) -> list[Gap]:
        """The gap records in frames since the frame number `known`."""
        return [gap for frame in self.host.frames[known:] for gap in frame.gaps]


def test_a_late_answer_to_a_question_is_not_taken_for_a_new_journal_of_the_present_parent() -> None:
    """protocol 1.5, 3.7: whatever epoch has begun since the node asked."""
    site = Site()
    site.run(5)
    site.answering = {"B"}
    site.run(200)
    assert (site.box.parent, site.box.journal) == ("B", OF_B)
    old = next(iter(site.box.former_lines.lines["A"].pending.epochs()))
    asked = [action.heartbeat.epoch for action in site.host.done if isinstance(action, Beat) and action.to == "A"][-1]
    for _ in range(3):  # A has an empty disk: what was sent to it is in doubt
        site.host.do(Receipted(Receipt(old, 70, 0)), site.now_us)
    site.run(5)
    assert (site.box.former_lines.waiting(), site.box.book()["parents"]) == ({}, {"A": False})
    known = len(site.host.frames)
    site.host.do(Receipted(Receipt(asked, 70, 0)), site.now_us)
    site.run(5)
    assert site.box.journal == OF_B
    assert [gap for gap in site.declared(known) if gap.reason == JOURNAL_LOST] == []


def test_an_answer_that_names_no_frame_of_this_node_says_nothing_about_the_present_parent() -> None:
    """protocol 1.5: it may answer a process before this one; the node has left no parent yet."""
    site = Site()
    site.run(5)
    site.host.do(Receipted(Receipt(12345, 70, 0)), site.now_us)
    site.run(1)
    assert site.box.journal == OF_A
    site.host.do(Receipted(Receipt(site.box.epoch, 70, 0)), site.now_us)
    assert site.box.journal == 70


def test_a_restored_copy_of_a_parent_is_recognised_by_a_node_that_had_left_it_and_came_back() -> None:
    """protocol 3.7: its journal is that of a former line, and several receipts of it are not late."""
    site = Site()
    site.run(5)
    site.answering = {"B"}
    site.run(130)
    assert site.box.parent == "B"
    site.answering = {"A", "B"}
    site.run(400)
    assert (site.box.parent, site.box.journal) == ("A", OF_A)
    site.journals["A"] = 9  # its disk is lost
    site.run(10)
    assert site.box.journal == 9
    for _ in range(OLD_RECEIPTS):  # and is restored from a copy
        assert site.box.journal == 9
        site.host.do(Receipted(Receipt(site.box.epoch, OF_A, 0)), site.now_us)
    assert site.box.journal == OF_A


@pytest.mark.parametrize("damaged", [False, True])
def test_frames_published_before_the_slots_were_lost_go_to_no_other_parent(damaged: bool) -> None:
    """protocol 1.5, 1.2: the parent may have counted them. damaged: their birth, which says for whom they are."""
    site = Site()
    site.run(3)
    site.answering = set()
    site.run(5)
    published = {key for key, (_, sent) in site.host.disk.frames.items() if sent}
    assert len(published) > 3
    site.lose_slots(damaged=damaged)
    site.answering = {"B"}
    site.run(130)
    assert (site.box.parent, site.box.journal) == ("B", OF_B)
    gone = {(a.epoch, a.seq) for a in site.host.done if isinstance(a, Publish) and not a.to}
    assert gone
    assert not gone & published
    site.answering = {"A", "B"}
    site.run(20)
    assert {(a.epoch, a.seq) for a in site.host.done if isinstance(a, Publish) and a.to == "A"} == published
    assert site.box.former_lines.waiting() == {}


def test_frames_of_lost_slots_are_in_doubt_if_the_parent_has_another_journal_since() -> None:
    """protocol 1.5, 3.7: their birth names the journal that may have counted them."""
    site = Site()
    site.host.do(Receipted(Receipt(site.box.ask_epoch, OF_A, 0)), T0)
    site.answering = set()
    site.run(5)
    site.lose_slots()
    site.answering = {"B"}
    site.run(130)
    site.answering, site.journals["A"] = {"A", "B"}, 70
    known = len(site.host.frames)
    site.run(10)
    assert site.box.former_lines.waiting() == {}
    assert IN_DOUBT in {gap.reason for gap in site.declared(known)}


def test_an_epoch_of_lost_slots_that_was_for_an_earlier_parent_is_given_up_by_the_one_that_was_left() -> None:
    """protocol 3.7: it refuses the birth, which is for another journal."""
    spool = {(5, 0): birth(5, OF_A), (6, 0): birth(6, OF_B)}
    box = Outbox("a", Random(1), version="1", lost=True)
    box.parent = "A"
    box.take_over((SpooledFrame(6, 0, True), SpooledFrame(5, 0, True), SpooledFrame(5, 1, True)))
    box.link(up=True)
    assert box.end_line("B", lambda *key: spool[key]) is None
    for tries in range(POISON_TRIES + 2):
        for publish in box.publish((tries + 1) * 200 * S):
            box.sent(publish.epoch, publish.seq)
        box.receipt(Receipt(6, OF_A, 0), lambda *key: spool[key])
    assert box.former_lines.waiting() == {"A": 2}
    assert box.take_forgotten() == [(6, 0)]


def birth(epoch: int, journal: int) -> Frame:
    return Frame(epoch, 0, Birth(epoch << 32, journal, None, "1"))


def test_an_epoch_that_goes_to_another_parent_names_none_that_stays_with_the_former_one() -> None:
    """protocol 1.2, 1.5: the new parent would wait for it for ever."""
    spool = {(5, 0): birth(5, OF_A), (6, 0): birth(6, 0)}
    spool[6, 0] = replace(spool[6, 0], birth=Birth(6 << 32, 0, (5, 1), "1"))
    box = Outbox("a", Random(1), version="1", lost=True)
    box.parent = "A"
    box.take_over((SpooledFrame(5, 0, True), SpooledFrame(5, 1, True), SpooledFrame(6, 0, False)))
    assert box.end_line("B", lambda *key: spool[key[0], key[1]]) is None
    assert [*box.former_lines.lines["A"].pending] == [(5, 0), (5, 1)]
    (again,) = box.take_replaced()
    assert again.birth is not None
    assert (again.epoch, again.birth.predecessor) == (6, None)


def test_an_epoch_whose_birth_is_damaged_and_forgotten_is_given_up_and_the_next_says_that_it_is_lost() -> None:
    """protocol 3.6, 1.2: nobody waits for it, and no process ends."""
    spool = {(6, 0): birth(6, 0)}
    spool[6, 0] = replace(spool[6, 0], birth=Birth(6 << 32, 0, (5, 1), "1"))

    def load(epoch: int, seq: int) -> Frame:
        if epoch == 5:
            raise DamagedError("fails its checksum")
        return spool[epoch, seq]

    box = Outbox("a", Random(1), version="1", lost=True)
    box.parent = "A"
    box.take_over((SpooledFrame(5, 0, False), SpooledFrame(5, 1, False), SpooledFrame(6, 0, False)))
    assert box.end_line("B", load) is None
    assert box.take_forgotten() == [(5, 0), (5, 1)]
    (again,) = box.take_replaced()
    assert again.birth is not None
    assert again.birth.predecessor == LOST
    assert list(box.pending) == [(6, 0)]
    assert box.lost_frames == 2


@pytest.mark.parametrize("accepted", [False, True])
def test_frames_given_up_for_a_former_parent_are_declared_to_the_next_journal_too(accepted: bool) -> None:
    """protocol 3.7, 1.5: the present parent may lose the record. accepted: by the operator, not by another journal."""
    site = Site()
    site.run(3)
    site.answering = set()
    site.run(10)
    lost_us = site.now_us
    site.answering = {"B"}
    site.run(200)
    assert site.box.parent == "B"
    if accepted:
        site.host.do(AcceptLoss("A"), site.now_us)
    else:
        site.answering, site.journals["A"] = {"A", "B"}, 70
    site.run(5)
    assert site.box.former_lines.waiting() == {}
    site.journals["B"] = 9
    known = len(site.host.frames)
    site.run(5)
    assert site.box.journal == 9
    assert any(g.start_us <= lost_us - S < g.end_us for g in site.declared(known) if g.reason == IN_DOUBT)


def test_losses_of_two_former_parents_that_are_accepted_at_once_are_both_declared() -> None:
    """protocol 1.5, 3.7: with a new epoch, whose birth names none of those before the moves."""
    site = Site()
    site.take(gateway_host(settings=replace(SETTINGS, parents=("A", "B", "C"))))
    site.journals["C"], site.answering = 9, {"A", "B", "C"}
    site.host.do(LinkUp(), site.now_us)
    for silent in ("A", "B"):
        site.run(5)
        site.answering -= {silent}
        site.run(150)
    assert (site.box.parent, {*site.box.former_lines.waiting()}) == ("C", {"A", "B"})
    known, epoch = len(site.host.frames), site.box.epoch
    site.host.do(AcceptLoss(""), site.now_us)
    site.run(3)
    declared = {(gap.start_us, gap.end_us) for gap in site.declared(known) if gap.reason == IN_DOUBT}
    given_up = site.host.machine.given_up
    assert [each.parent for each in given_up] == ["A", "B"]
    assert declared >= {(each.from_us, each.upto_us) for each in given_up}
    assert site.box.epoch != epoch


def test_while_all_parents_are_away_a_node_moves_once_and_then_to_the_one_that_answers_first() -> None:
    """protocol 1.5: each move rewrites all that waits. A third parent is asked too."""
    choice = ParentChoice(("A", "B", "C"), 60 * S, 300 * S)
    present, asked = "A", set[str]()
    for at_s in range(0, 7_200, 5):
        asked = set(choice.asks(present, at_s * S)) or asked
        present = choice.wanted(present, at_s * S, waits=True, unfinished=())
        assert present == ("A" if at_s <= 60 else "B")
    assert asked == {"A", "C"}
    choice.answered("C", 7_200 * S)
    assert choice.wanted(present, 7_200 * S, waits=True, unfinished=()) == "C"


@pytest.mark.parametrize("by_us", [3_600 * S, 2_592_000 * S, -3_600 * S])
def test_a_step_of_the_clock_is_no_time_in_which_a_parent_was_silent(by_us: int) -> None:
    """protocol 1.5: while receipts are owed, as at each moment, a step alone does not make the node move."""
    site = Site()
    site.run(5)
    site.answering = {"B"}
    site.run(60)
    site.now_us += by_us
    site.host.do(ClockChanged(known=True, boot="", offset_us=0, by_us=by_us), site.now_us)
    site.run(55, readings=False)
    assert (site.box.parent, site.host.machine.wanted) == ("A", "A")
    site.run(10, readings=False)
    assert site.box.parent == "B"  # the time before the step counts


def test_an_epoch_that_comes_back_with_the_node_follows_what_its_first_parent_had() -> None:
    """protocol 1.2, 1.5: nobody had a frame of it; another move must end the line behind the last one that counted."""
    site = Site()
    site.run(5)
    site.answering = set()
    site.run(130)
    assert (site.box.parent, site.box.journal) == ("B", None)
    end = site.box.former_lines.lines["A"].end
    assert end is not None
    site.answering = {"A"}
    while site.box.parent != "A":
        site.run(1)
    epoch = site.box.epoch
    stored = site.host.disk.frames[epoch, 0][0].birth
    assert stored is not None
    assert stored.predecessor == site.box.predecessor == site.box.snapshot().births[epoch].predecessor == end


def test_a_step_of_the_clock_is_no_time_in_which_the_first_parent_answered() -> None:
    """protocol 1.5: a node returns to it when it has answered for some time."""
    site = Site()
    site.run(5)
    site.answering = {"B"}
    site.run(200)
    site.answering = {"A", "B"}
    site.run(60)
    site.now_us += 3_600 * S
    site.host.do(ClockChanged(known=True, boot="", offset_us=0, by_us=3_600 * S), site.now_us)
    site.run(200, readings=False)
    assert site.box.parent == "B"
    site.run(100, readings=False)
    assert site.box.parent == "A"


def test_a_backlog_is_rewritten_once_while_both_parents_are_away() -> None:
    """protocol 1.5: and the node goes on where it is answered first."""
    site = Site()
    site.run(5)
    site.answering = {"B"}
    site.run(200)
    site.answering = {"A", "B"}
    site.run(400)
    assert site.box.parent == "A"  # it has used both
    site.answering = set()
    known = len(site.host.frames)
    site.run(1_000)
    assert site.box.parent == "B"
    assert len(site.host.frames) - known < 1_500
    site.answering = {"A"}
    site.run(20)
    assert (site.box.parent, site.box.journal) == ("A", OF_A)


def asked_and_answered(choice: ParentChoice, seconds: range, *, first: bool, unfinished: tuple[str, ...] = ()) -> str:
    """The parent in use after these seconds at B, which answers. first: A answers too."""
    present = "B"
    for second in seconds:
        for each in choice.asks(present, second * S):
            if first:
                choice.answered(each, second * S)
        present = choice.wanted(present, second * S, waits=False, unfinished=unfinished)
    return present


def test_what_was_open_goes_to_the_new_parent_if_a_node_starts_with_another_one() -> None:
    """protocol 1.3, 1.5: the flush of a start is in the epoch of the move, and it says it only once."""
    site = Site()
    site.run(5)
    open_us = site.now_us + S // 2
    read(site.host, open_us, 70, site.now_us)
    site.host.do(Tick(), site.now_us + S)
    old = site.box.epoch
    again = gateway_host(site.host.disk, site.now_us + 2 * S, settings=replace(SETTINGS, parents=("B",)))
    for second in range(3, 9):
        again.do(Tick(), site.now_us + second * S)
    assert again.machine.outbox.parent == "B"
    (leave,) = (frame for frame in again.frames if frame.leave is not None)
    assert (leave.epoch, leave.leave) == (old, again.machine.outbox.epoch)
    sums = [
        (frame.epoch, int(row))
        for frame in again.frames
        for part in frame.groups
        for section in part.sections
        for row in section.partials.states["sum"].tolist()
    ]
    assert sums == [(again.machine.outbox.epoch, 71)]


def test_a_line_ends_behind_the_last_epoch_of_which_the_parent_may_have_a_frame() -> None:
    """protocol 1.5: an epoch that was never published moves with its frames, and the leave follows the one before."""
    site = Site()
    site.run(5)
    host, published = site.host, site.box.epoch
    host.do(LinkDown(), site.now_us)
    host.do(Command("rebirth"), site.now_us)
    host.do(Tick(), site.now_us + S)
    unsent = site.box.epoch
    last = max(seq for epoch, seq in host.disk.frames if epoch == published)
    assert unsent != published
    for second in range(2, 130):
        for action in host.do(Tick(), site.now_us + second * S):
            if isinstance(action, Beat) and action.to == "B":
                host.do(Receipted(Receipt(action.heartbeat.epoch, OF_B, 0)), site.now_us + second * S)
    assert site.box.parent == "B"
    (leave,) = (frame for frame in host.frames if frame.leave is not None)
    assert (leave.epoch, leave.seq, leave.leave) == (published, last + 1, site.box.epoch)
    assert not any(epoch == unsent for epoch, _ in host.disk.frames)


def test_a_node_goes_back_to_a_parent_that_has_answered_for_long_without_a_break() -> None:
    """protocol 1.5: one that comes and goes is left alone."""
    choice = ParentChoice(("A", "B"), 60 * S, 300 * S)
    assert asked_and_answered(choice, range(200), first=True) == "B"
    assert asked_and_answered(choice, range(200, 300), first=False) == "B"
    assert asked_and_answered(choice, range(300, 599), first=True) == "B"
    assert asked_and_answered(choice, range(599, 606), first=True) == "A"


def test_a_node_does_not_go_back_to_a_parent_that_it_still_owes_frames() -> None:
    """protocol 1.5, 1.2: its line there would begin anew before the former one has ended."""
    choice = ParentChoice(("A", "B"), 60 * S, 300 * S)
    assert asked_and_answered(choice, range(400), first=True, unfinished=("A",)) == "B"
    assert asked_and_answered(choice, range(400, 401), first=True) == "A"


def test_what_parents_answered_before_a_move_is_no_reason_to_move_again() -> None:
    """protocol 1.5: they are asked anew."""
    choice = ParentChoice(("A", "B"), 10 * S, 300 * S)
    assert asked_and_answered(choice, range(301), first=True) == "A"
    choice.well(301 * S)
    assert choice.wanted("A", 301 * S, waits=True, unfinished=()) == "A"
    assert choice.wanted("A", 312 * S, waits=True, unfinished=()) == "B"
    assert choice.wanted("B", 313 * S, waits=False, unfinished=()) == "B"


def test_a_clock_that_goes_back_unnoticed_puts_off_neither_a_question_nor_a_move() -> None:
    """protocol 1.5: by no more than the time for which a parent may be away."""
    choice = ParentChoice(("A", "B"), 60 * S, 300 * S)
    choice.well(5_000 * S)
    assert choice.asks("B", 5_000 * S) == ("A",)
    assert choice.asks("B", 4_000 * S) == ("A",)
    assert choice.wanted("A", 1_000 * S, waits=True, unfinished=()) == "A"
    assert choice.wanted("A", 1_061 * S, waits=True, unfinished=()) == "B"
