"""Frames that the lander receipted and whose landing file is gone: settled as a declared loss, not waited for."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from edge_agent.algebra.coverage import Coverage, window_coverage
from edge_agent.algebra.frame import IN_DOUBT, Birth, Frame, Gap, Heartbeat, Receipt
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.events import BadFrame
from edge_agent.root.completeness import Decider, Decision
from edge_agent.root.lost_frames import LostFrames
from edge_agent.wire import frames
from tests.support.cloud.child_frames import JOURNAL, SECOND, START, Child, query

GRACE_US = 20 * SECOND
GROUP = query().group


@dataclass
class Root:
    """Landing files to decisions; its state goes through its plain form after each, as in ops.batches."""

    decider: Decider = field(default_factory=lambda: Decider(JOURNAL, GRACE_US))
    took_effect: list[tuple[int, int]] = field(default_factory=list)

    def file(self, second: float, child: Child, *payloads: bytes, stated: tuple[Receipt, ...] = ()) -> Decision:
        now_us = START + int(second * SECOND)
        self.decider.parent.children.link(now_us, up=True)
        for payload in payloads:
            message = frames.decode(payload)
            assert isinstance(message, Frame | Heartbeat)
            self.decider.take(child.node, message, now_us)
        self.decider.stated([(child.node, receipt) for receipt in stated], now_us)
        decision = self.decider.decide(now_us)
        self.took_effect += [(e.epoch, e.seq) for e in decision.effects if e.frame is not None]
        state = pickle.loads(pickle.dumps(self.decider.snapshot(lambda frame: frame)))
        self.decider = Decider(self.decider.parent.inbox.journal, GRACE_US)
        self.decider.restore(state, lambda frame: frame)
        return decision

    def coverage(self, decision: Decision, second: float) -> Coverage:
        at_us = START + int(second * SECOND)
        leaves = decision.groups[GROUP].leaves
        return window_coverage(leaves, [gap for _, gap in self.decider.gaps], GROUP, at_us, at_us + SECOND)


def rows(child: Child, second: int) -> bytes:
    """The window that begins at that second, and the promise that it is complete."""
    return child.rows(START + (second + 1) * SECOND, np.array([START + second * SECOND]), np.array([1.0]))


def received(upto: int, *above: tuple[int, int], epoch: int = 1) -> Receipt:
    return Receipt(epoch, JOURNAL, upto, above)


def test_a_received_frame_in_no_file_is_settled_as_lost_after_the_grace_time() -> None:
    """protocol 3.2, 2.2: the line goes on, and the windows that may lack its readings say `lost`."""
    child, root = Child("gw-1", (query(),)), Root()
    birth, *sent = child.birth(), *(rows(child, second) for second in range(6))
    root.file(1, child, birth, sent[0], sent[1])
    root.file(5, child, sent[4], sent[5], stated=(received(7),))  # frames 3 and 4 were in a file that is gone
    decision = root.file(24, child)
    assert root.took_effect[-1] == (1, 2)
    assert decision.gaps == ()
    decision = root.file(26, child)
    assert root.took_effect[-2:] == [(1, 5), (1, 6)]
    ((node, gap),) = decision.gaps
    assert (node, gap.reason, gap.nodes) == ("gw-1", "received frames are in no landing file", ("gw-1",))
    assert gap.detail == "received frames are in no landing file: epoch 00000001, 3 to 4"
    assert gap.readings == -1
    assert [root.coverage(decision, second).complete for second in range(6)] == [True, True, False, False, False, False]
    assert root.coverage(decision, 2).missing == (("gw-1", "lost"),)


def test_a_file_that_comes_late_is_no_loss() -> None:
    """protocol 3.2: files need not be listed in their order; the grace time is for that."""
    child, root = Child("gw-1", (query(),)), Root()
    birth, *sent = child.birth(), *(rows(child, second) for second in range(3))
    root.file(1, child, birth, sent[0])
    root.file(2, child, sent[2], stated=(received(4),))
    root.file(15, child, sent[1])
    decision = root.file(60, child, stated=(received(4),))
    assert root.took_effect == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert (decision.gaps, root.decider.gaps) == ((), [])


def test_what_comes_after_it_was_settled_counts_as_known() -> None:
    """protocol 1.1: what was declared lost is not counted as well."""
    child, root = Child("gw-1", (query(),)), Root()
    birth, *sent = child.birth(), *(rows(child, second) for second in range(2))
    root.file(1, child, birth, stated=(received(3),))
    root.file(30, child, sent[1])
    assert root.took_effect == [(1, 0), (1, 2)]
    root.file(31, child, sent[0])
    assert root.took_effect == [(1, 0), (1, 2)]


def test_the_last_frames_of_an_epoch_that_are_gone_do_not_hold_up_the_next_epoch() -> None:
    """protocol 1.2: a birth waits for the frames that it names, and the lander says that they were received."""
    child, root = Child("gw-1", (query(),)), Root()
    birth, *sent = child.birth(), *(rows(child, second) for second in range(4))
    root.file(1, child, birth, sent[0], sent[1])
    again = Child("gw-1", (query(),), epoch=2)
    born, *more = again.birth((1, 4)), *(rows(again, second) for second in range(4, 6))
    root.file(6, again, born, *more, stated=(received(5), received(3, epoch=2)))
    assert root.took_effect[-1] == (1, 2)
    decision = root.file(27, again)
    assert root.took_effect[-3:] == [(2, 0), (2, 1), (2, 2)]
    assert len(decision.gaps) == 1
    assert not root.coverage(decision, 2).complete
    assert root.coverage(decision, 2).missing == (("gw-1", "lost"),)


def test_an_epoch_of_which_nothing_came_does_not_hold_up_the_next_one() -> None:
    """protocol 1.2"""
    child, root = Child("gw-1", (query(),)), Root()
    root.file(1, child, child.birth(), rows(child, 0))
    again = Child("gw-1", (query(),), epoch=3)
    root.file(2, again, again.birth((2, 8)), rows(again, 1), stated=(received(9, epoch=2), received(2, epoch=3)))
    root.file(23, again)
    assert root.took_effect[-2:] == [(3, 0), (3, 1)]


@pytest.mark.parametrize("speaks", [True, False])
def test_a_birth_that_is_gone_is_settled_where_its_epoch_goes_on(speaks: bool) -> None:
    """protocol 1.2: a birth for another journal is discarded with its epoch, and must not come to life again."""
    child, root = Child("gw-1", (query(),)), Root()
    root.file(1, child, child.birth(), rows(child, 0))
    other = Child("gw-1", (query(),), epoch=2)
    birth, frame = other.birth((1, 1), journal=JOURNAL + 1), rows(other, 1)
    root.file(2, other, birth, frame, *[other.beat(START + 2 * SECOND)] * speaks, stated=(received(2, epoch=2),))
    decision = root.file(23, other)
    assert bool(decision.gaps) == speaks


def test_births_that_wait_for_a_former_journal_do_not_replace_the_line_for_the_new_one() -> None:
    """protocol 1.2, 3.7: a birth for another journal is discarded, also if it arrived before the journal was lost."""
    root = Root()
    lines = [Child("gw-1", (query(),), epoch=epoch) for epoch in (2, 3, 4)]
    root.file(1, lines[1], lines[1].birth((2, 0)), rows(lines[1], 0))  # epoch 2, which it follows, has not come
    root.decider.change_journal(JOURNAL + 1)
    root.file(2, lines[2], lines[2].birth(journal=JOURNAL + 1), rows(lines[2], 1))
    root.file(3, lines[0], lines[0].birth(), stated=(received(1, epoch=2),))  # discarded, and the lander receipted it
    root.file(30, lines[2], rows(lines[2], 2))
    assert root.took_effect == [(4, 0), (4, 1), (4, 2)]


@pytest.mark.parametrize("past", [None, "lost"])
@pytest.mark.parametrize("noted_first", [False, True])
def test_a_lost_birth_of_a_life_before_does_not_replace_the_line_in_force(noted_first: bool, past: str | None) -> None:
    """Found by seed 64039 of the simulation: what the child sent then waited for ever, without a record.

    noted_first: the root had noticed the loss before the child lost its spool.
    """
    root, before = Root(), Child("gw-1", (query(),), epoch=3)
    stated = (received(1, epoch=2),)
    born = before.birth((2, 0), held=(2,))
    root.file(1, before, born, stated=stated * noted_first)  # the birth of epoch 2 was in a file that is gone
    child = Child("gw-1", (query(),), epoch=4)
    root.file(2, child, child.birth(past, held=()), rows(child, 1))
    root.file(3, child, rows(child, 2), stated=stated)
    root.file(30, child, rows(child, 3), stated=stated)
    root.file(60, child, rows(child, 4), stated=stated)
    assert root.decider.parent.inbox.current == {"gw-1": 4}
    assert [seq for epoch, seq in root.took_effect if epoch == 4] == [0, 1, 2, 3, 4]
    declared = ["journal lost"] if past else []  # all until now; without a past the child says when it began
    assert [gap.reason for _, gap in root.decider.gaps] == declared


@pytest.mark.parametrize("past", [None, "lost"])
def test_a_lost_birth_is_not_settled_for_a_heartbeat_from_before_the_line_in_force_spoke(past: str | None) -> None:
    """protocol 3.2: the heartbeat was of a life before; those of this one were in a file that is gone too."""
    root, before, child = Root(), Child("gw-1", (query(),), epoch=2), Child("gw-1", (query(),), epoch=4)
    before.birth()
    root.file(1, before, rows(before, 0), before.beat(START + SECOND))
    root.file(2, child, child.birth(past, held=()), rows(child, 1))
    root.file(3, child, rows(child, 2), stated=(received(2, epoch=2),))
    root.file(30, child, rows(child, 3))
    root.file(60, child, rows(child, 4))
    assert root.took_effect == [(4, seq) for seq in range(5)]


@pytest.mark.parametrize("held", [(2, 1), None])
def test_a_lost_birth_is_settled_where_an_epoch_waits_that_came_before_the_one_in_force(
    held: tuple[int, ...] | None,
) -> None:
    """protocol 3.2: the node had begun it later, because it still had frames of that one; or it does not say so."""
    root, first, third = Root(), Child("gw-1", (query(),)), Child("gw-1", (query(),), epoch=3)
    root.file(1, third, third.birth((2, 0), held=held))
    root.file(2, first, first.birth(held=()), rows(first, 0))
    root.file(3, third, rows(third, 1), stated=(received(1, epoch=2),))
    root.file(30, third, rows(third, 2))
    assert root.decider.parent.inbox.current == {"gw-1": 3}
    assert root.took_effect[-3:] == [(3, 0), (3, 1), (3, 2)]


@pytest.mark.parametrize("births", [True, False], ids=["behind an epoch", "without a birth"])
def test_what_waits_for_a_former_journal_is_declared_when_the_root_learns_of_another(births: bool) -> None:
    """protocol 3.7 (seed 62748): the gateway has a receipt for it, and sends elsewhere by now.

    The record ends where the rows end, and is made once.
    """
    child, root = Child("gw-1", (query(),)), Root()
    root.file(1, child, child.birth(), rows(child, 0))
    waits = Child("gw-1", (query(),), epoch=3)
    birth, *sent = waits.birth((2, 0)), *(rows(waits, second) for second in (2, 3))
    root.file(4, waits, *[birth] * births, *sent)  # epoch 2 has not come
    for _ in range(2):
        root.decider.change_journal(JOURNAL)
        assert root.file(5, waits).gaps == ()
    root.decider.change_journal(JOURNAL + 1)
    decision = root.file(6, child)
    ((node, gap),) = decision.gaps
    assert (node, gap.reason, gap.nodes, gap.groups) == ("gw-1", IN_DOUBT, ("gw-1",), (GROUP,))
    assert (gap.start_us, gap.end_us) == (START + 2 * SECOND, START + 4 * SECOND)
    root.decider.change_journal(JOURNAL + 1)
    assert root.file(7, child).gaps == ()


def test_a_record_of_a_lost_journal_that_waits_for_a_former_one_begins_where_its_line_stands() -> None:
    """protocol 3.7: it has no start of its own."""
    child, root = Child("gw-1", (query(),)), Root()
    root.file(1, child, child.birth(), rows(child, 0))
    waits = Child("gw-1", (query(),), epoch=3)
    frame = frames.decode(rows(waits, 2))
    assert isinstance(frame, Frame)
    gap = Gap((GROUP,), -(2**60), START + 3 * SECOND, -1, ("gw-1",), "journal lost")
    root.file(4, waits, frames.encode(replace(frame, gaps=(gap,))))
    root.decider.change_journal(JOURNAL + 1)
    ((_, found),) = root.file(6, child).gaps
    assert (found.start_us, found.end_us) == (START + SECOND, START + 3 * SECOND)


def test_a_statement_about_an_epoch_that_is_over_is_no_loss() -> None:
    """protocol 3.4: of an ended epoch the root may have forgotten what it had."""
    child, root = Child("gw-1", (query(),)), Root()
    root.file(1, child, child.birth(), rows(child, 0))
    again = Child("gw-1", (query(),), epoch=2)
    root.file(2, again, again.birth((1, 1)), stated=(received(50), received(90, epoch=77)))
    decision = root.file(60, again)
    assert decision.gaps == ()


def test_a_bad_frame_marks_the_windows_from_where_its_line_stood_though_later_frames_waited() -> None:
    """protocol 3.6: what it held closed after the frontier before it, not after that of the frames behind it."""
    child, root = Child("gw-1", (query(),)), Root()
    birth, *sent = child.birth(), *(rows(child, second) for second in range(4))
    root.file(1, child, birth, sent[0], sent[2], sent[3])
    root.decider.take("gw-1", BadFrame(1, 2, "not CBOR", b"x"), START + 5 * SECOND)
    decision = root.file(5, child)
    assert root.took_effect[-2:] == [(1, 3), (1, 4)]
    assert [root.coverage(decision, second).complete for second in range(3)] == [True, False, False]


def test_a_frame_that_was_damaged_in_the_spool_marks_the_windows_where_its_line_stood() -> None:
    """protocol 3.6: its sender cannot say which; with a record of no time every row would be complete."""
    child, root = Child("gw-1", (query(),)), Root()
    birth, *sent = child.birth(), *(rows(child, second) for second in range(2))
    root.file(1, child, birth, sent[0])
    damaged = child.gap(Gap((GROUP,), 0, 0, -1, (), "damaged", 1, "sha256 00"))
    decision = root.file(4, child, sent[1], damaged, rows(child, 2), rows(child, 3))
    ((_, gap),) = decision.gaps
    assert (gap.start_us, gap.end_us, gap.nodes) == (START + 2 * SECOND, START + 4 * SECOND + 1, ("gw-1",))
    assert [root.coverage(decision, second).complete for second in range(3)] == [True, True, False]


def test_a_loss_begins_where_late_rows_of_its_epoch_do() -> None:
    """protocol 3.2: the lander says how far back they reach; 0: a record of a lost journal may be among them."""
    for earliest_us, lost in ((START + SECOND, 1), (None, 4), (0, 4)):
        child, root = Child("gw-1", (query(),)), Root()
        birth, *sent = child.birth(), *(rows(child, second) for second in range(6))
        root.file(1, child, birth, *sent[:4])
        root.file(5, child, sent[5], stated=(replace(received(7), earliest_us=earliest_us),))
        decision = root.file(26, child)
        assert [root.coverage(decision, second).complete for second in range(5)] == [s < lost for s in range(5)]


@pytest.mark.parametrize("past", [None, "lost"])
def test_a_gateway_without_its_spool_that_had_promised_nothing_yet_may_have_lost_all_until_now(
    past: str | None,
) -> None:
    """protocol 1.2: what it had read was in its spool, and a parent that knows it must say so."""
    first, second, root = Child("gw-1", (query(),)), Child("gw-1", (query(),), epoch=2), Root()
    assert root.file(1, first, first.birth()).gaps == ()
    root.file(9, second, second.birth(past), rows(second, 40))
    decision = root.file(31, second, rows(second, 41))  # without a past it might be a second device until then
    ((node, gap),) = root.decider.gaps
    assert (node, gap.groups, gap.nodes) == ("gw-1", (GROUP,), ("gw-1",))
    assert [root.coverage(decision, at).complete for at in (0, 8, 40)] == [False, False, True]


def test_a_lander_that_says_it_again_and_again_does_not_begin_the_wait_anew() -> None:
    """protocol 3.2: it states what it has received from time to time."""
    child, root = Child("gw-1", (query(),)), Root()
    birth, *sent = child.birth(), *(rows(child, second) for second in range(6))
    root.file(1, child, birth, sent[0], sent[1])
    root.file(5, child, sent[4], sent[5], stated=(received(7),))
    for second in (10, 15, 20, 24):
        assert root.file(second, child, stated=(received(7),)).gaps == ()
    assert len(root.file(26, child, stated=(received(7),)).gaps) == 1
    assert root.took_effect[-2:] == [(1, 5), (1, 6)]


def test_of_the_frames_that_the_lander_received_those_that_have_come_in_the_meantime_are_not_lost() -> None:
    """protocol 3.2, 2.2: also between others that wait, and at the ends of a range; of an ended epoch none."""
    inbox = Inbox(JOURNAL)
    for frame in (Frame(1, 0, Birth(1 << 32, JOURNAL, None, "1")), *(Frame(1, seq) for seq in (1, 2, 5, 8, 9, 13))):
        inbox.take("a", frame)
    lost = LostFrames(inbox)
    lost.stated([("a", received(4, (6, 7), (8, 10), (12, 14)))], {}, 0)

    def settled() -> list[tuple[int, int]]:
        return [(bad.seq, bad.run) for _, bad in lost.due(GRACE_US, GRACE_US, {})]

    inbox.take("a", Frame(1, 6))
    assert settled() == [(3, 1), (7, 1), (10, 1), (12, 1), (14, 1)]
    assert settled() == []
    lost.stated([("a", received(4, (6, 7), (8, 10)))], {}, 0)
    assert list(lost.due(GRACE_US - 1, GRACE_US, {})) == []
    for seq in (3, 4, 7, 10):
        inbox.take("a", Frame(1, seq))
    assert settled() == []
