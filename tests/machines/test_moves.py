"""A node that gets another parent: what was sent stays with the old one, and all counts once (protocol 1.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.frame import LATEST_US, NEVER_US, ExcludedLeaf, Flush, Frame, Leaf, Members, Receipt, Serving
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import Session, Tumbling
from edge_agent.errors import PortError
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.epochs.epoch_frames import AFTER_FLUSH, EpochFrames
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.events import Arrived, LowerLink, Publish, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.machines.uplink.parent_choice import ParentChoice
from edge_agent.machines.uplink.step import GroupStep, Step
from tests.support.machines.scripted_child import GRACE, SUM, Sender, journalled, leaving, root_of
from tests.support.machines.simulated_host import T0, SimulatedHost

S = 1_000_000
GROUP = Group("s", "", (), 0)
OLD, NEW, ASKS = 7, 8, 0


class Spooled(dict[tuple[int, int], Frame]):
    """Frames by (epoch, seq)."""

    def add(self, frames: list[Frame]) -> list[Frame]:
        self.update({(frame.epoch, frame.seq): frame for frame in frames})
        return frames


def listing(number: int) -> Step:
    return Step((GroupStep(GROUP, number * S, leaves=(Leaf("g", number),)),))


def outbox(spool: Spooled, sent: int, unsent: int) -> Outbox:
    """One with a parent that has receipted its birth, and frames that were published, or not."""
    box = Outbox("g", Random(1), version="1")
    box.parent = "region-1"
    box.draw()
    spool.add(box.open(listing(1)))
    box.receipt(Receipt(0, OLD, 0), load(spool))
    box.learnt_journal()
    box.link(up=True)
    for number in range(sent):
        spool.add(box.put(listing(number + 2)))
    box.marks()
    box.committed()
    box.publish(0)
    box.receipt(Receipt(box.epoch, OLD, 1), load(spool))
    for number in range(unsent):
        spool.add(box.put(listing(number + 50)))
    return box


def load(spool: Spooled) -> Callable[[int, int], Frame]:
    return lambda epoch, seq: spool[epoch, seq]


def move(box: Outbox, spool: Spooled, parent: str) -> list[Frame]:
    line = box.end_line(parent, load(spool))
    assert line is not None
    box.draw(anew=True)
    left = spool.add(box.leave(line, {GROUP: (Leaf("g", 1),)}))
    spool.add(box.open(Step()))
    return left


def test_what_was_sent_stays_with_the_old_parent_and_ends_by_a_leave_that_names_the_successor() -> None:
    """protocol 1.5: what was never sent goes to the new one."""
    spool = Spooled()
    box = outbox(spool, sent=2, unsent=3)
    old = box.epoch
    (left,) = move(box, spool, "region-2")
    assert (left.epoch, left.seq, left.leave) == (old, 3, box.epoch)
    assert [leaf for change in left.members for leaf in change.leaves] == [Leaf("g", 1)]
    assert len(box.moved_steps(load(spool), 100)) == 3
    assert box.former_lines.waiting() == {"region-1": 3}
    box.marks()
    box.committed()
    out = box.publish(100 * S)
    assert out == [Publish(old, 1), Publish(old, 2), Publish(old, 3)]
    assert {publish.to for publish in out} == {"region-1"}
    assert box.journal is None  # nothing goes to the new parent before its journal is known
    box.receipt(Receipt(old, OLD, 4), load(spool))
    assert box.former_lines.waiting() == {}


def test_a_late_receipt_of_the_old_parent_is_not_taken_for_the_journal_of_the_new_one() -> None:
    """protocol 1.5, 3.7"""
    spool = Spooled()
    box = outbox(spool, sent=1, unsent=0)
    move(box, spool, "region-2")
    box.receipt(Receipt(0, OLD, 0), load(spool))
    box.receipt(Receipt(box.epoch, 99, 0), load(spool))  # of a third one that was asked once
    assert box.journal is None
    beat = box.beat(10 * S, S, {})
    assert beat is not None
    box.receipt(Receipt(beat.epoch, NEW, 0), load(spool))
    assert box.journal == NEW


def test_back_at_a_former_parent_the_birth_follows_the_leave_there() -> None:
    """protocol 1.2, 1.5"""
    spool = Spooled()
    box = outbox(spool, sent=1, unsent=0)
    (left,) = move(box, spool, "region-2")
    box.receipt(Receipt(box.ask_epoch, NEW, 0), load(spool))
    spool.add(box.learnt_journal())
    box.marks()
    box.committed()
    box.publish(0)
    (again,) = move(box, spool, "region-1")
    assert again.leave == box.epoch
    birth = spool[box.epoch, 0].birth
    assert birth is not None
    assert (birth.journal, birth.predecessor) == (OLD, (left.epoch, left.seq))


def test_a_merger_that_moves_on_lists_in_the_leave_whose_leave_at_the_parent_before_is_awaited() -> None:
    """protocol 1.5: else the report of that, where it comes last, has the leaf awaited for ever."""
    spool = Spooled()
    box = outbox(spool, sent=1, unsent=0)
    first = box.epoch
    move(box, spool, "region-2")
    box.receipt(Receipt(box.ask_epoch, NEW, 0), load(spool))
    spool.add(box.learnt_journal())
    box.marks()
    box.committed()
    box.publish(0)
    (left,) = move(box, spool, "region-3")
    assert [leaf for change in left.members for leaf in change.leaves] == [Leaf("g", 1, before_move=first)]


def test_frames_that_nobody_got_go_to_the_new_parent_as_they_are() -> None:
    """protocol 1.5: a parent that never answered is left without a word."""
    spool = Spooled()
    box = Outbox("g", Random(1), version="1")
    box.parent = "region-1"
    box.draw()
    spool.add(box.open(listing(1)))
    assert box.end_line("region-2", load(spool)) is None
    box.receipt(Receipt(box.ask_epoch, NEW, 0), load(spool))
    (birth,) = box.learnt_journal()
    assert birth.birth is not None
    assert (birth.birth.journal, birth.birth.predecessor) == (NEW, None)


def test_a_birth_that_nobody_got_and_that_is_damaged_goes_to_the_new_parent_as_a_record_of_it() -> None:
    """protocol 1.5, 3.6: the process goes on."""

    def damaged(epoch: int, seq: int) -> Frame:
        raise PortError(f"frame ({epoch}, {seq}) fails its checksum")

    box = Outbox("g", Random(1), version="1")
    box.parent = "region-1"
    box.learnt_journal()
    box.draw()
    box.open(listing(1))
    box.births.clear()  # as after a restart
    assert box.end_line("region-2", damaged) is None
    box.receipt(Receipt(box.ask_epoch, NEW, 0), damaged)
    frame = {(each.epoch, each.seq): each for each in (*box.take_replaced(), *box.learnt_journal())}[box.epoch, 0]
    assert frame.birth is not None
    assert (frame.birth.journal, [gap.reason for gap in frame.gaps]) == (NEW, ["damaged"])


def test_a_damaged_birth_for_the_parent_before_is_replaced_by_one_for_its_journal() -> None:
    """protocol 1.2, 3.6: that parent discards a birth for any other journal, and waits for this one for ever."""
    spool = Spooled()
    box = Outbox("g", Random(1), version="1")
    box.parent = "region-1"
    box.draw()
    (birth,) = spool.add(box.open(listing(1)))
    box.receipt(Receipt(0, OLD, 0), load(spool))
    spool.add(box.learnt_journal())
    box.link(up=True)
    box.marks()
    box.committed()
    box.publish(0)
    move(box, spool, "region-2")
    box.receipt(Receipt(box.ask_epoch, NEW, 0), load(spool))
    box.take_replaced()
    box.damaged(birth.epoch, birth.seq)
    (record,) = [frame for frame in box.take_replaced() if frame.epoch == birth.epoch]
    assert record.birth is not None
    assert (record.birth.journal, [gap.reason for gap in record.gaps]) == (OLD, ["damaged"])


def test_an_old_parent_with_another_journal_makes_what_was_sent_to_it_doubtful() -> None:
    """protocol 3.7"""
    spool = Spooled()
    box = outbox(spool, sent=2, unsent=0)
    old = box.epoch
    move(box, spool, "region-2")
    for _ in range(3):
        assert box.lost_lines == []
        box.receipt(Receipt(old, 99, 0), load(spool))
    assert box.lost_lines == ["region-1"]
    box.accept_loss("region-1", {}, {}, load(spool))
    assert box.former_lines.waiting() == {}
    assert box.moved_from == (0, {})


# --- a parent of both -------------------------------------------------------------------------------------------------


def family(**frontiers: int) -> GroupMembership:
    """Children that list g with the epoch of their own number, 1, 2, …"""
    out = GroupMembership(60 * S)
    for number, (name, frontier_us) in enumerate(frontiers.items(), 1):
        out.change(name, Members(0, (Leaf("g", number, number - 1 or None),)))
        out.member(name).promise(frontier_us, frontier_us)
    return out


def left(successor: int, epoch: int) -> Members:
    return Members(0, (Leaf("g", successor, epoch),), ("g",))


def test_a_leaf_has_come_as_far_as_its_old_parent_until_that_reports_the_leave() -> None:
    """protocol 1.5"""
    group = family(a=10 * S, b=30 * S)
    assert group.leaf_frontiers() == {"g": (10 * S, 10 * S)}
    assert group.leaves() == {"g": Leaf("g", 1)}  # the tier above learns of the move with the leave
    assert [each.frontier_us for each in group.exceptions_at(20 * S)] == [10 * S]
    group.change("a", left(2, 1))
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}
    assert group.leaves() == {"g": Leaf("g", 2, 1)}
    assert list(group.expected()) == ["b"]


def test_a_leaf_that_left_stays_expected_where_it_was_until_it_is_listed() -> None:
    """protocol 1.5"""
    group = family(a=10 * S)
    group.change("a", left(2, 1))
    assert group.leaf_frontiers() == {"g": (10 * S, 10 * S)}
    assert not group.gone
    group.change("b", Members(0, (Leaf("g", 2, 1),)))
    group.member("b").promise(30 * S, 30 * S)
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}


@pytest.mark.parametrize("at_once", [False, True])
def test_of_a_leaf_that_came_and_left_in_one_frame_nobody_knows_how_far_it_had_come(at_once: bool) -> None:
    """protocol 1.5: the merger's frontier is not its own, and exceptions of the frame are those behind the report."""
    children = Children(60 * S)
    came, went = (GROUP, Members(0, (Leaf("g", 1),))), (GROUP, left(2, 1))
    children.membership(GROUP).member("m").promise(30 * S, 30 * S)
    for changes in ([came, went],) if at_once else ([came], [went]):
        children.change("m", changes)
    reached_us = NEVER_US if at_once else 30 * S
    assert children.membership(GROUP).leaf_frontiers() == {"g": (reached_us, reached_us)}
    children.change("n", [(GROUP, Members(0, (Leaf("g", 2, 1),)))])
    children.membership(GROUP).member("n").promise(40 * S, 40 * S)
    assert children.membership(GROUP).leaf_frontiers() == {"g": (40 * S, 40 * S)}


def test_a_leaf_whose_old_parent_has_not_been_heard_is_missing_for_every_window() -> None:
    """protocol 1.5"""
    group = GroupMembership(60 * S)
    group.change("b", Members(0, (Leaf("g", 2, 1),)))
    group.member("b").promise(30 * S, 30 * S)
    assert group.leaf_frontiers() == {"g": (NEVER_US, NEVER_US)}
    restored = GroupMembership.restore(60 * S, group.snapshot())
    assert restored.leaf_frontiers() == {"g": (NEVER_US, NEVER_US)}
    restored.change("a", left(2, 1))
    assert restored.leaf_frontiers() == {"g": (30 * S, 30 * S)}


def test_leaves_that_come_together_all_count() -> None:
    """protocol 1.5: leaves that come out of order."""
    group = family(a=10 * S)
    group.change("c", Members(0, (Leaf("g", 3, 2),)))
    group.member("c").promise(30 * S, 30 * S)
    group.change("b", left(3, 2))
    group.change("a", left(2, 1))
    assert group.moves.left == {"g": [2, 1]}
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}


def test_a_leaf_that_moved_on_before_its_first_leave_came_is_still_missing_everywhere() -> None:
    """protocol 1.5: what stays with the first parent is missing below the third too, and on the way there."""
    group = GroupMembership(60 * S)
    group.change("b", Members(0, (Leaf("g", 2, 1),)))
    group.member("b").promise(30 * S, 30 * S)
    group.change("b", left(3, 2))
    assert group.moves.transit["g"][2][0] == 3
    assert group.leaf_frontiers() == {"g": (NEVER_US, NEVER_US)}
    group.change("b", left(2, 1))
    assert group.leaf_frontiers()["g"] == (30 * S, 30 * S)


def test_a_leaf_whose_next_line_was_here_and_has_left_in_a_later_epoch_is_not_on_its_way_there() -> None:
    """protocol 1.5: it went from a to b, began another epoch there, and went on to c, before a reported the first."""
    group = family(a=10 * S)
    group.change("b", Members(0, (Leaf("g", 3, 1),)))
    group.member("b").promise(20 * S, 20 * S)
    group.change("b", left(4, 3))
    group.change("c", Members(0, (Leaf("g", 4, 3),)))
    group.member("c").promise(30 * S, 30 * S)
    assert GroupMembership.restore(60 * S, group.snapshot()).leaf_frontiers() == {"g": (NEVER_US, NEVER_US)}
    group.change("a", left(2, 1))
    assert group.moves.transit == {}
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}


@pytest.mark.parametrize("order", ["mmgg", "mgmg", "mggm", "gmmg", "gmgm", "ggmm"])
def test_epochs_in_which_nothing_was_ever_sent_are_not_awaited(order: str) -> None:
    """protocol 1.5: g goes to and fro, and is started again before it has sent anything: its leaves state the epochs
    of that, and each names the last epoch that was sent to that parent.
    """
    group = family(g=10 * S)
    group.change("g", left(2, 1))
    group.change("m", Members(0, (Leaf("g", 2, 1),)))
    group.change("m", left(3, 2))
    group.change("g", Members(0, (Leaf("g", 3, 2),)))
    group.member("g").promise(20 * S, 20 * S)
    sent_g = iter([(Leaf("g", 3, 2), left(4, 3)), (Leaf("g", 5, 2), left(6, 3))])
    sent_m = iter([(Leaf("g", 4, 3), left(5, 2)), (Leaf("g", 6, 3), None)])
    for member in order:
        entry, report = next(sent_g if member == "g" else sent_m)
        group.change(member, Members(0, (entry,)))
        if report is not None:
            group.change(member, report)
    assert group.moves.transit == {}
    group.member("m").promise(40 * S, 40 * S)
    assert GroupMembership.restore(60 * S, group.snapshot()).leaf_frontiers() == {"g": (40 * S, 40 * S)}


def test_a_leaf_on_its_way_stays_expected_when_an_older_move_is_reported_late() -> None:
    """protocol 1.5: reports of two members come in any order; a group that still has a leaf does not end."""
    group = family(a=10 * S, b=30 * S)
    group.change("b", left(3, 2))
    group.change("a", left(2, 1))
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}
    group.change("a", Members(0, (Leaf("g", 1, 9),)))  # as it was, a line before: it went away twice
    group.change("a", left(2, 1))
    assert not group.gone
    assert GroupMembership.restore(60 * S, group.snapshot()).leaf_frontiers().keys() == {"g"}
    group.change("c", Members(0, (Leaf("g", 3, 2),)))
    assert group.moves.transit == {}


@pytest.mark.parametrize("listed_first", [False, True])
def test_below_a_merger_that_moves_on_a_leaf_is_on_its_way_also_where_an_older_line_of_it_is_listed(
    listed_first: bool,
) -> None:
    """protocol 1.5: it keeps its epoch. The merger went from a to b, which left its first report for last, and on."""
    as_it_was, first, second = Leaf("g", 5), Leaf("g", 5, 1), Leaf("g", 5, 2)
    group = GroupMembership(60 * S)
    if listed_first:
        group.change("a", Members(0, (as_it_was,)))
    group.change("m", Members(0, (first,)))
    group.member("m").promise(30 * S, 30 * S)
    group.leave("m", second)
    new = set[str]()  # the report is behind the entry that ended, in one frame
    group.change("a", Members(0, (as_it_was,)), new)
    group.change("a", Members(0, (first,), ("g",)), new)
    assert not group.gone
    assert GroupMembership.restore(60 * S, group.snapshot()).leaf_frontiers() == {"g": (30 * S, 30 * S)}
    group.change("a", Members(0, (second,)))
    group.member("a").promise(40 * S, 40 * S)
    assert group.moves.transit == {}
    assert group.leaf_frontiers() == {"g": (40 * S, 40 * S)}


def test_a_leaf_whose_merger_gave_up_its_former_lines_has_arrived_once_the_last_of_them_has_reported() -> None:
    """protocol 1.5: its next birth names no epoch before the moves, so that the entry may be of any line."""
    group = GroupMembership(60 * S)
    group.change("m", Members(0, (Leaf("g", 5, 1),)))
    group.leave("m", Leaf("g", 5, 2))
    group.change("n", Members(0, (Leaf("g", 5),)))
    group.member("n").promise(30 * S, 30 * S)
    assert group.leaf_frontiers() == {"g": (NEVER_US, NEVER_US)}
    group.leave("a", Leaf("g", 5, 1))
    assert group.moves.transit == {}
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}


def test_a_merger_that_lists_another_line_of_a_leaf_does_not_say_that_the_former_has_ended() -> None:
    """protocol 1.5: it goes on elsewhere below, and its leave is awaited; a leaf that starts again has gone on."""
    group = GroupMembership(60 * S)
    group.change("m", Members(0, (Leaf("g", 2, 1),)))
    group.change("m", Members(0, (Leaf("g", 3, 2),)))
    assert group.moves.left == {}
    group.change("m", Members(0, (Leaf("g", 4, 2),)))
    assert group.moves.left == {"g": [3]}
    group.change("g", Members(0, (Leaf("g", 6, 5),)))
    group.change("g", Members(0, (Leaf("g", 7, 6),)))
    assert group.moves.left == {"g": [3, 6]}


def test_a_leaf_has_arrived_also_where_a_merger_lists_another_line_of_it_before_its_former_parent_reports() -> None:
    """protocol 1.5: of the two lines below m the one that came from a is not the one that m lists now."""
    group = family(a=10 * S)
    group.change("m", Members(0, (Leaf("g", 1, 7),)))
    group.change("m", Members(0, (Leaf("g", 2, 8),)))
    group.member("m").promise(30 * S, 30 * S)
    group = GroupMembership.restore(60 * S, group.snapshot())
    group.change("a", left(1, 7))
    assert group.moves.transit == {}
    group.change("b", left(2, 8))
    assert group.leaf_frontiers() == {"g": (30 * S, 30 * S)}


def test_a_leaf_has_gone_on_also_if_its_leave_is_reported_for_an_entry_that_was_replaced_first() -> None:
    """protocol 1.5: both reports are of epoch 20, and the leaf had come on from there in 21, later 22, before them."""
    root, now = family(m=10 * S), Members(0, (Leaf("g", 50, 49),))
    for entry, report in [
        (Leaf("g", 22, 20), left(30, 22)),
        (Leaf("g", 20, 10), left(20, 20)),
        (Leaf("g", 20, 10), left(21, 20)),
        (Leaf("g", 30, 22), left(50, 49)),
    ]:
        for change in (now, Members(0, (entry,)), report, now):
            root.change("m", change)
    assert GroupMembership.restore(60 * S, root.snapshot()).moves.transit == {}


def test_the_tier_above_hears_of_a_line_that_a_merger_no_longer_listed_when_it_moved_on() -> None:
    """protocol 1.5: g began anew below m1, which had come from the root. m1 and m2 are below m, and list it."""
    m, root, other = GroupMembership(60 * S), family(m1=10 * S), Leaf("g", 5, 19)
    m.change("m2", Members(0, (other,)))
    m.change("m1", Members(0, (Leaf("g", 3, 20),)))
    m.change("m1", Members(0, (Leaf("g", 6, 21),)))
    assert m.leaves()["g"] == other
    root.change("m", Members(0, (other,)))
    root.member("m").promise(10 * S, 10 * S)
    root.change("m1", left(3, 20))
    assert root.moves.transit["g"].keys() == {20}
    m.leave("m1", Leaf("g", 6, 22))
    above: set[str] = set()
    for entry, report in m.moves.passed_on():
        assert entry is not None
        root.change("m", Members(0, (entry,)), above)
        root.change("m", Members(0, (report,), ("g",)), above)
    root.change("m", Members(0, (other,)), above)
    assert root.moves.transit == {"g": {22: (6, 10 * S, 10 * S)}}
    root.change("m1", Members(0, (Leaf("g", 6, 22),)))
    assert root.moves.transit == {}


def test_a_child_that_is_listed_by_the_merger_from_which_it_came_has_come_as_far_as_both() -> None:
    """protocol 1.5: what is passed on is the older line, and that not all of the newer one's past is here."""
    group = GroupMembership(60 * S)
    group.change("g", Members(0, (Leaf("g", 3, 2),)))
    group.member("g").promise(40 * S, 40 * S)
    group.change("m", Members(0, (Leaf("g", 2, 1),)))
    group.member("m").promise(10 * S, 10 * S)
    assert group.leaves() == {"g": Leaf("g", 2, 1)}
    assert [(each.node, each.frontier_us) for each in group.exceptions_at(20 * S)] == [("g", 10 * S)]
    assert group.leaf_frontiers() == {"g": (NEVER_US, NEVER_US)}
    group.change("m", Members(0, (Leaf("g", 8, 7),)))  # of no line that it says it came from
    assert group.leaves() == {"g": Leaf("g", 3, 2)}


def test_a_leaf_of_two_lines_that_both_came_from_elsewhere_is_missing_for_the_tier_above() -> None:
    """protocol 1.5: one line is passed on and judged above; of the other nobody there would hear."""
    group = GroupMembership(60 * S)
    for child, epochs in (("a", (3, 2)), ("b", (5, 4))):
        group.change(child, Members(0, (Leaf("g", *epochs),)))
        group.member(child).promise(30 * S, 30 * S)
    assert [(each.node, each.frontier_us) for each in group.exceptions_at(20 * S)] == [("g", NEVER_US)]
    group.change("a", left(4, 3))
    assert group.leaves() == {"g": Leaf("g", 5, 4)}


def test_an_exception_whose_sessions_alone_are_behind_is_passed_on() -> None:
    """protocol 4.6, 5.1: its frontier is that of the group, its bound is not."""
    group = family(m=20 * S)
    group.member("m").except_leaves([ExcludedLeaf("g", 20 * S, 15 * S)])
    assert group.exceptions_at(20 * S) == (ExcludedLeaf("g", 20 * S, 15 * S),)


# --- which parent -----------------------------------------------------------------------------------------------------


@pytest.fixture
def choice() -> ParentChoice:
    return ParentChoice(("region-1", "region-2"), 60 * S, 30 * S)


def test_another_parent_after_a_time_and_back_when_the_first_has_answered_for_a_while(choice: ParentChoice) -> None:
    """protocol 1.5"""

    def wanted(present: str, at_s: int, *, waits: bool, unfinished: tuple[str, ...] = ()) -> str:
        return choice.wanted(present, at_s * S, waits=waits, unfinished=unfinished)

    assert wanted("region-1", 0, waits=True) == "region-1"
    assert wanted("region-1", 60, waits=True) == "region-1"
    choice.well(60 * S)
    assert wanted("region-1", 119, waits=True) == "region-1"
    assert wanted("region-1", 121, waits=True) == "region-2"
    choice.well(122 * S)  # the second one has answered, so that only the first is asked
    for at_s in range(125, 175, 5):
        assert choice.asks("region-2", at_s * S) == ("region-1",)
        assert choice.asks("region-2", at_s * S) == ()
        choice.answered("region-1", at_s * S)
        assert wanted("region-2", at_s, waits=False, unfinished=("region-1",)) == "region-2"  # not all is there yet
        want = "region-2" if at_s < 155 else "region-1"
        if at_s < 155:
            assert wanted("region-2", at_s, waits=False) == want
    assert wanted("region-2", 171, waits=False) == "region-1"


def test_a_first_parent_that_comes_and_goes_is_not_gone_back_to(choice: ParentChoice) -> None:
    """protocol 1.5"""
    for at_s in range(0, 300, 5):
        if choice.asks("region-2", at_s * S) and at_s % 50 < 25:
            choice.answered("region-1", at_s * S)
        assert choice.wanted("region-2", at_s * S, waits=False, unfinished=()) == "region-2"


def test_a_parent_that_is_not_configured_any_more_is_left(choice: ParentChoice) -> None:
    assert choice.wanted("region-9", 0, waits=False, unfinished=()) == "region-1"
    assert ParentChoice((), 1, 1).wanted("region-9", 0, waits=True, unfinished=()) == "region-9"


# --- a child that leaves ----------------------------------------------------------------------------------------------


def hinted(frame: Frame, start_us: int) -> Frame:
    """With a register: its child holds a piece of a session from there on."""
    return replace(frame, groups=(replace(frame.groups[0], registers=((0, start_us),)),))


def test_a_leave_has_its_effect_behind_a_flush() -> None:
    """protocol 1.5, 1.3: a node that restarts with another parent flushes, and then it leaves."""
    line = EpochFrames()
    line.note(Frame(1, 4, flush=Flush(3)))
    assert line.refuses(Frame(1, 5)) == AFTER_FLUSH
    assert line.refuses(Frame(1, 5, leave=2)) == ""
    line.note(Frame(1, 5, leave=2))
    assert line.ordinary == -1


def test_sessions_that_a_child_had_open_go_on_elsewhere_once_it_has_left() -> None:
    """protocol 1.5, 5.2: no register of it holds a session of others back."""
    sender = Sender("a", Query("q", 1, "s", Session(5 * S), SUM, lateness_us=0))
    root = root_of(sender)
    root.take("a", hinted(sender.send((8 * S, 8 * S, "", 1.0), frontier_us=10 * S), 9 * S), 0)
    member = root.decider.parent.children.memberships[sender.queries[0].group].members["a"]
    root.step(0)
    assert member.hints
    root.take("a", leaving(sender), 0)
    root.step(0)
    assert (member.hints, member.held) == ({}, {})


def test_what_a_merger_holds_of_a_child_goes_up_with_the_report_that_it_left() -> None:
    """protocol 1.5: the report stands behind all of it."""
    query = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
    one, other = Sender("a", query), Sender("b", query)
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    for sender in (one, other):
        host.do(Arrived(((sender.node, journalled(sender.birth(), host.machine), None),)), T0)
    host.do(Arrived((("a", one.send((T0, T0 + 10 * S, "", 1.0), frontier_us=T0 + 10 * S), None),)), T0 + S)
    host.do(Tick(), T0 + 2 * S)
    assert sum(frame.readings for frame in host.frames) == 0, "it waits for b"
    host.do(Arrived((("a", leaving(one), None),)), T0 + 3 * S)
    host.do(Tick(), T0 + 5 * S)
    assert sum(frame.readings for frame in host.frames) == 1
    reports = [leaf for frame in host.frames for each in frame.members for leaf in each.leaves if leaf.epoch == 99]
    assert [(leaf.node, leaf.before_move) for leaf in reports] == [("a", one.outbox.epoch)]


def test_a_merger_that_has_moved_reports_a_leave_behind_the_entry_as_it_had_listed_it() -> None:
    """protocol 1.5: else the tier above would no longer wait for the leave of the merger's own former line."""
    one = Sender("a", Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0))
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0)
    host.machine.outbox.moved_from = (77, {one.queries[0].group: {"a": Leaf("a", 1)}})
    host.do(LowerLink(up=True), T0)
    host.do(Arrived((("a", journalled(one.birth(), host.machine), None),)), T0)
    host.do(Tick(), T0 + S)
    host.do(Arrived((("a", leaving(one), None),)), T0 + 2 * S)
    host.do(Tick(), T0 + 4 * S)
    listed = [leaf for frame in host.frames for each in frame.members for leaf in each.leaves]
    assert listed == [Leaf("a", 1, 77), Leaf("a", 1, 77), Leaf("a", 99, one.outbox.epoch)]


def test_what_is_on_its_way_to_former_parents_is_sent_again_when_the_clock_goes_back() -> None:
    """protocol 3.3, 4.1: else it would wait until the wrong time has come."""
    spool = Spooled()
    box = outbox(spool, sent=2, unsent=0)
    (left,) = move(box, spool, "region-2")
    box.link(up=True, parent="region-1")
    box.marks()
    box.committed()
    late_us = 3_600 * S
    first = [(each.epoch, each.seq) for each in box.publish(late_us) if each.to == "region-1"]
    assert first[-1] == (left.epoch, left.seq)
    for key in first:
        box.sent(*key)
    assert [each for each in box.publish(S) if each.to == "region-1"] == []
    box.resend()
    assert [(each.epoch, each.seq) for each in box.publish(S) if each.to == "region-1"] == first


def test_a_query_that_only_a_leaf_which_moved_away_served_is_not_believed_to_go_on_there() -> None:
    """protocol 6.3, 1.5: b, which stays, serves another query of the same group."""
    query = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
    other = replace(query, id="other")
    one, two = Sender("a", query, other), Sender("b", other)
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    for sender in (one, two):
        host.do(Arrived(((sender.node, journalled(sender.birth(), host.machine), None),)), T0)
    for tick_us in (T0 + S, T0 + GRACE + 2 * S):
        host.do(Tick(), tick_us)
    above = GroupMembership(GRACE)
    taken = apply(host, above, 0)
    assert above.members["m"].serving.keys() == {("q", 1), ("other", 1)}
    host.do(Arrived((("a", leaving(one), None),)), T0 + GRACE + 3 * S)
    host.do(Tick(), T0 + GRACE + 5 * S)
    apply(host, above, taken)
    assert above.members["m"].leaves.keys() == {"b"}
    assert above.members["m"].serving.keys() == {("other", 1)}
    assert above.members["m"].serving == Member.restore(above.members["m"].snapshot()).serving


def test_what_a_leaf_on_its_way_served_is_known_until_it_is_listed_again() -> None:
    """protocol 1.5, 6.3: else rows would claim it beyond the removal of their query, or before it served that."""
    group = family(a=10 * S)
    ended, late, whole = Serving("ended", 1, None, None, 30 * S), Serving("late", 1, 20 * S), Serving("whole", 1)
    group.change("b", Members(0, (Leaf("h", 9),), (), tuple(Serving(name, 1) for name in ("ended", "late", "whole"))))
    group.member("b").promise(50 * S, 50 * S)
    group.serving(0)
    group.serving(60 * S)  # told, without g
    group.change("a", Members(0, serving=(ended, late, whole)))
    before = group.begins(), group.ends()
    assert before == ({("late", 1): {"g": 20 * S}}, {("ended", 1): {"g": 30 * S}})
    group.change("a", left(2, 1))
    for each in (group, GroupMembership.restore(60 * S, group.snapshot())):
        assert (each.begins(), each.ends()) == before
    group.change("c", Members(0, (Leaf("g", 2, 1),), (), (ended, late, whole)))
    assert group.moves.served == {}


def test_a_leaf_on_its_way_serves_no_query_that_it_did_not_serve_when_it_left() -> None:
    """protocol 1.5, 6.3: else rows of a query that was added meanwhile would count it, as far as it had promised."""
    group = family(a=50 * S)
    group.change("b", Members(0, (Leaf("h", 9),), (), (Serving("old", 1), Serving("of-h", 1))))
    group.change("a", Members(0, serving=(Serving("old", 1),)))
    group.serving(0)
    assert set(group.serving(60 * S)) == {("old", 1), ("of-h", 1)}
    group.change("a", Members(0, serving=(Serving("of-g", 1),)))  # not announced yet, because h may serve it too
    group.serving(61 * S)
    group.change("a", left(2, 1))
    group.change("b", Members(0, serving=(Serving("added", 1), Serving("of-g", 1))))
    group.serving(61 * S)
    for each in (group, GroupMembership.restore(60 * S, group.snapshot())):
        assert each.begins() == {("of-h", 1): {"g": LATEST_US}, ("added", 1): {"g": LATEST_US}}
        assert each.ends() == {}
    group.change("b", Members(0, serving=(Serving("added", 1, LATEST_US), Serving("of-h", 1, LATEST_US))))
    assert not group.serves(QueryKey("added", 1))
    group.change("c", Members(0, (Leaf("g", 2, 1),), (), (Serving("old", 1),)))
    assert group.moves.served == {}


@pytest.mark.parametrize("alone", [False, True])
def test_a_merger_says_that_a_query_is_served_no_longer_after_it_has_reported_who_left(alone: bool) -> None:
    """protocol 1.5, 6.3: the tier above knows then until when the leaf on its way served it."""
    query = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
    other = replace(query, id="other")
    one, two = Sender("a", query, other), Sender("b", other)
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    births = [(one, one.birth(servings=(Serving("q", 1, None, None, 20 * S), Serving("other", 1))))]
    births += [] if alone else [(two, two.birth())]
    for sender, birth in births:
        host.do(Arrived(((sender.node, journalled(birth, host.machine), None),)), T0)
    for tick_us in (T0 + S, T0 + GRACE + 2 * S):
        host.do(Tick(), tick_us)
    above = GroupMembership(GRACE)
    above.change("n", Members(0, (Leaf("c", 5),), (), (Serving("q", 1),)))
    taken = apply(host, above, 0)
    above.serving(T0)
    assert above.ends() == {("q", 1): {"a": 20 * S} if alone else {"a": 20 * S, "b": 20 * S}}
    host.do(Arrived((("a", leaving(one), None),)), T0 + GRACE + 3 * S)
    for tick_us in (T0 + GRACE + 5 * S, T0 + GRACE + 7 * S):
        host.do(Tick(), tick_us)
        taken = apply(host, above, taken)
        assert above.ends()[QueryKey("q", 1)]["a"] == 20 * S
    assert "m" not in above.expected() if alone else ("q", 1) not in above.members["m"].serving
    assert len(host.machine.parent.children.memberships) == (0 if alone else 1)


def test_a_merger_states_no_ranges_with_its_last_leaves_and_all_of_them_with_the_next() -> None:
    """protocol 6.3: the tier above forgets the ranges of the last leaves when a leaf is listed again."""
    query = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
    one, two, three = (Sender(name, query) for name in "abc")
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE))
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)

    def ranges(at_us: int, *arrived: tuple[str, Frame]) -> list[Serving]:
        """The ranges that it states after these frames."""
        first = len(host.frames)
        host.do(Arrived(tuple((node, frame, None) for node, frame in arrived)), at_us)
        for tick_us in (at_us + S, at_us + 2 * S):
            host.do(Tick(), tick_us)
        return [each for frame in host.frames[first:] for change in frame.members for each in change.serving]

    until = {one: T0 + 20 * S, two: T0 + 30 * S}
    births = [(x.node, x.birth(servings=(Serving("q", 1, None, None, us),))) for x, us in until.items()]
    births = [(node, journalled(birth, host.machine)) for node, birth in births]
    longest, shorter = Serving("q", 1, None, None, T0 + 30 * S), Serving("q", 1, 0, None, T0 + 20 * S, "a")
    assert ranges(T0, *births) == [longest, shorter]
    assert ranges(T0 + GRACE + 3 * S, ("a", leaving(one)), ("b", leaving(two))) == []
    birth = journalled(three.birth(), host.machine)
    assert ranges(T0 + GRACE + 6 * S, ("c", birth)) == [Serving("q", 1)]


def apply(host: SimulatedHost[Merger], above: GroupMembership, first: int) -> int:
    """The definition sections of its frames from the first one on, at the tier above. Returns how many frames."""
    for frame in host.frames[first:]:
        for change in frame.members:
            above.change("m", change)
    return len(host.frames)
