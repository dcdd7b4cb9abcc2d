"""A parent with a new journal is a new parent (docs/protocol.md 3.7)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from edge_agent.algebra.frame import (
    DAMAGED,
    IN_DOUBT,
    JOURNAL_LOST,
    LATEST_US,
    LONG_AGO_US,
    NEVER_US,
    Frame,
    Gap,
    Leaf,
    Members,
    Receipt,
)
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.cli.fleet.status import losses
from edge_agent.machines.checkpoint.slots import SOURCE
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.losses.loss_records import narrowed
from edge_agent.machines.events import (
    Arrived,
    Command,
    Commit,
    LinkDown,
    LinkUp,
    LowerLink,
    Publish,
    Read,
    Receipted,
    Sent,
    Tick,
)
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.uplink.journal_change import Spooled, first_frontiers, in_doubt, lost_with_journal, sort_out
from edge_agent.machines.uplink.outbox import OLD_RECEIPTS
from edge_agent.machines.uplink.step import GroupStep, Step
from edge_agent.ports.spool import DamagedError
from edge_agent.runtime.status_and_commands import NodeStatus
from tests.support.fakes import FakeClock
from tests.support.machines.journal_changes import NEW, at_work, gaps, meet, readings
from tests.support.machines.scripted_child import SUM, Sender, journalled
from tests.support.machines.simulated_host import JOURNAL, QUERY, T0, Disk, S, SimulatedHost, gateway_host, read


def test_a_gateway_is_born_anew_for_a_new_journal_and_declares_what_is_in_doubt() -> None:
    """protocol 3.7: the birth names no predecessor; its first frontier comes after the losses."""
    host = at_work(published=True)
    sent = readings(host.frames)
    assert sent > 0
    frames = meet(host, NEW, T0 + 6 * S)
    birth = frames[0].birth
    assert birth is not None
    assert (birth.journal, birth.predecessor) == (NEW, None)
    stated = next(i for i, frame in enumerate(frames) if any(part.frontier_us is not None for part in frame.groups))
    told = next(i for i, frame in enumerate(frames) if frame.gaps)
    assert told <= stated
    assert {gap.reason for gap in gaps(frames)} == {IN_DOUBT, JOURNAL_LOST}
    assert sum(gap.readings for gap in gaps(frames) if gap.reason == IN_DOUBT) == sent
    assert all(frame.epoch == frames[0].epoch for frame, _ in host.disk.frames.values()), "nothing of it is sent again"
    host.machine.outbox.check()


def test_what_the_old_journal_had_is_declared_before_any_row_goes_to_the_new_one() -> None:
    """protocol 3.7: tiers above take rows before it for repeats of a gateway that lost its spool too (1.2)."""
    host = at_work(published=True)
    host.do(LinkDown(), T0 + 6 * S)
    for i in range(6, 9):
        read(host, T0 + i * S, 1, T0 + i * S)
        host.do(Tick(), T0 + i * S + S // 2)
    frames = meet(host, NEW, T0 + 9 * S)
    said = next(i for i, frame in enumerate(frames) if any(gap.reason == JOURNAL_LOST for gap in frame.gaps))
    assert [bool(frame.readings) for frame in frames[: said + 1]] == [False] * (said + 1)
    assert readings(frames) > 0
    merger = SimulatedHost(Merger(NodeSettings("m", frame_bytes=300), Random(1), grace_us=60 * S))
    merger.accepted(T0 + 12 * S)
    merger.do(LowerLink(up=True), T0 + 12 * S)
    merger.do(Receipted(Receipt(merger.machine.outbox.epoch, NEW, 0)), T0 + 12 * S)
    birth = frames[0].birth
    assert birth is not None
    merger.machine.parent.inbox.journal = birth.journal
    merger.do(Arrived(tuple(("gw-1", frame, None) for frame in frames)), T0 + 12 * S)
    merger.do(Tick(), T0 + 14 * S)
    first = next(i for i, frame in enumerate(merger.frames) if frame.readings)
    assert any(gap.reason == JOURNAL_LOST for frame in merger.frames[:first] for gap in frame.gaps)
    passed_on = [gap for frame in merger.frames for gap in frame.gaps]
    assert len(passed_on) == len(set(passed_on)), "ahead of the rows, and not with them again"


@pytest.mark.parametrize("again", [False, True])
def test_late_rows_that_the_old_journal_had_are_in_doubt(again: bool) -> None:
    """protocol 3.7: no frontier above says where they lie. again: whether the gateway is started again meanwhile."""
    host = at_work(published=True)
    read(host, T0 - 20 * S, 1, T0 + 6 * S)
    host.do(Tick(), T0 + 7 * S)
    assert any(section for frame in host.frames for part in frame.groups for section in part.late)
    box = host.machine.outbox
    host.do(Receipted(Receipt(box.epoch, JOURNAL, box.seq)), T0 + 8 * S)
    host.do(Tick(), T0 + 9 * S)
    assert not any(part.late for frame, _ in host.disk.frames.values() for part in frame.groups), "it has its receipt"
    if again:
        host = gateway_host(host.disk, T0 + 10 * S)
        host.do(Tick(), T0 + 11 * S)
    frames = meet(host, NEW, T0 + 12 * S)
    in_doubt = [gap for gap in gaps(frames) if gap.reason == IN_DOUBT]
    assert any(gap.start_us <= T0 - 20 * S < gap.end_us <= T0 for gap in in_doubt), in_doubt


def test_rows_of_a_flush_that_the_old_journal_had_are_in_doubt() -> None:
    """protocol 3.7, 1.3: they lie above the promise with which what goes to the new journal begins."""
    query = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
    child, disk = Sender("a", query), Disk()

    def merger(now_us: int) -> SimulatedHost[Merger]:
        host = SimulatedHost(
            Merger(NodeSettings("m"), Random(now_us), disk.restored(), disk.load, grace_us=600 * S), disk
        )
        host.do(LowerLink(up=True), now_us)
        return host

    host = merger(T0)
    host.accepted(T0)
    open_row = (T0, T0 + 30 * S, "", 1.0)
    frames = (journalled(child.birth(), host.machine), child.send(frontier_us=T0), child.send(open_row))
    host.do(Arrived(tuple(("a", frame, None) for frame in frames)), T0 + S)
    host.do(Tick(), T0 + 2 * S)
    host = merger(T0 + 3 * S)
    host.accepted(T0 + 3 * S)
    host.do(Tick(), T0 + 4 * S)
    assert any(frame.flush and frame.readings for frame in host.frames)
    for epoch, seq in sorted(disk.frames):
        host.do(Receipted(Receipt(epoch, JOURNAL, seq + 1)), T0 + 5 * S)
    host.do(Tick(), T0 + 6 * S)
    assert not disk.frames
    host = merger(T0 + 7 * S)
    host.do(Tick(), T0 + 8 * S)
    lost = [gap for gap in gaps(meet(host, NEW, T0 + 9 * S)) if gap.reason in (IN_DOUBT, JOURNAL_LOST)]
    assert any(gap.start_us <= T0 and gap.end_us >= T0 + 30 * S for gap in lost), lost


def test_what_was_never_published_goes_to_the_new_journal_as_it_is() -> None:
    """protocol 3.7: no reading of it is lost, and none is declared so."""
    host = at_work(published=False)
    sent = readings(host.frames)
    host.do(Receipted(Receipt(host.machine.outbox.epoch, NEW, 0)), T0 + 6 * S)
    host.do(LinkUp(), T0 + 6 * S)
    host.do(Tick(), T0 + 8 * S)
    kept = [frame for frame, _ in host.disk.frames.values()]
    moved = readings(kept)
    assert moved >= sent - sum(gap.readings for gap in gaps(kept) if gap.reason == IN_DOUBT) > 0
    assert [frame.birth.journal for frame in kept if frame.birth is not None] == [NEW]


def test_a_damaged_birth_that_goes_to_the_new_journal_as_it_is_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.7, 3.6: a record takes its place. Of a merger, whose frames of earlier epochs do not move."""
    monkeypatch.setattr(Gateway, "_is_leaf", False)
    host = at_work(published=False)
    host.do(Command("rebirth"), T0 + 6 * S)
    host.do(Tick(), T0 + 7 * S)
    epoch, load = host.machine.outbox.epoch, host.machine._load

    def damaged(of: int, seq: int) -> Frame:
        if (of, seq) == (epoch, 0):
            raise DamagedError("fails its checksum")
        return load(of, seq)

    host.machine._load = damaged
    host.do(Receipted(Receipt(epoch, NEW, 0)), T0 + 8 * S)
    host.do(LinkUp(), T0 + 8 * S)
    host.do(Tick(), T0 + 10 * S)
    first, _ = host.disk.frames[epoch, 0]
    assert first.birth is not None
    ahead, _ = next(frame for frame in host.disk.frames.values() if frame[0].birth and not frame[0].birth.predecessor)
    assert (first.birth.journal, first.birth.predecessor) == (NEW, (ahead.epoch, 0))
    assert {gap.reason for gap in first.gaps} == {DAMAGED}
    assert {gap.reason for gap in ahead.gaps} >= {JOURNAL_LOST}


def test_a_late_receipt_of_the_journal_that_was_left_changes_nothing_but_several_do() -> None:
    """protocol 3.7: a parent whose disk was restored from a copy is not met by silence either."""
    host = at_work(published=True)
    meet(host, NEW, T0 + 6 * S)
    epoch = host.machine.outbox.epoch
    for _ in range(OLD_RECEIPTS - 1):
        host.do(Receipted(Receipt(epoch, JOURNAL, 0)), T0 + 9 * S)
    assert host.machine.outbox.journal == NEW
    host.do(Receipted(Receipt(epoch, JOURNAL, 0)), T0 + 9 * S)
    host.do(Tick(), T0 + 10 * S)
    assert host.machine.outbox.journal == JOURNAL
    assert host.machine.outbox.epoch != epoch


def test_nothing_is_published_between_the_receipt_and_the_new_birth() -> None:
    """protocol 3.7"""
    host = at_work(published=True)
    done = host.do(Receipted(Receipt(host.machine.outbox.epoch, NEW, 0)), T0 + 6 * S)
    epoch = host.machine.outbox.epoch
    assert all(action.epoch == epoch for action in done if isinstance(action, Publish))
    for action in done:
        if isinstance(action, Publish):
            host.do(Sent(action.epoch, action.seq), T0 + 6 * S)


def test_what_is_in_doubt_of_another_epoch_is_declared_for_all_groups_and_for_leaves_that_have_left() -> None:
    """protocol 3.7: a record of no group, or of no leaf, concerned no window."""
    query = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
    sender, now = Sender("m", query, leaves=("gone",)), Sender("m", query).outbox
    frames = {(f.epoch, f.seq): f for f in (sender.birth(), sender.send((0, 10 * S, "", 1.0), frontier_us=10 * S))}
    leaves, span_us = {query.group: ("a",)}, (LATEST_US, 10 * S)
    found = in_doubt(list(frames), now.encoder, now.epoch, leaves, lambda *key: frames[key], span_us=span_us)
    (gap,) = found.gaps
    assert (gap.groups, gap.nodes, gap.start_us, found.readings) == ((query.group,), ("a", "gone"), 0, 1)


def test_frames_are_sorted_by_what_the_old_journal_can_have_seen() -> None:
    """protocol 3.7: published or of an epoch whose numbers are forgotten; of the present one; of whole epochs."""
    old, tail = [((1, 0), True), ((1, 1), False)], [((2, 0), True), ((2, 1), False), ((2, 2), False)]
    assert sort_out([*old, *tail], 2) == Spooled([(1, 0), (1, 1), (2, 0)], [(2, 1), (2, 2)], [])
    fresh = [((2, 0), False), ((2, 1), False)]
    assert sort_out([*old, *fresh], 2) == Spooled([(1, 0), (1, 1)], [], [(2, 0), (2, 1)])
    # the old journal had the birth and the new one would never get it
    assert sort_out([((1, 3), False), *fresh], 2) == Spooled([(1, 3)], [], [(2, 0), (2, 1)])
    assert sort_out([((2, 3), False)], 2) == Spooled([], [(2, 3)], [])
    # the numbers of the earlier epochs are known
    assert sort_out([*old, *fresh], 2, {1, 2}) == Spooled([(1, 0)], [(1, 1), (2, 0), (2, 1)], [])
    assert sort_out([((1, 0), True), *fresh], 2, {1, 2}) == Spooled([(1, 0)], [], [(2, 0), (2, 1)])
    three = [*old, *fresh, ((3, 0), False)]
    assert sort_out(three, 3, {1, 3}) == Spooled([(1, 0), (1, 1)], [], [(2, 0), (2, 1), (3, 0)])


def test_the_tier_above_a_lost_journal_begins_its_record_where_the_leaf_had_come_to() -> None:
    """protocol 3.7: and keeps each leaf an exception until it is listed again."""
    above = ChildFrames(JOURNAL, 60 * S)
    member = above.children.membership(QUERY.group).member("m")
    member.change(Members(0, (Leaf("a", 1), Leaf("b", 1))))
    member.promise(T0 + 5 * S, T0 + 5 * S)
    member.lose("m", 0)
    member.begin(anew=True)
    member.change(Members(0, (Leaf("a", 2),)))
    member.promise(T0 + 9 * S, T0 + 9 * S)
    assert member.leaf_frontiers()["a"] == (T0 + 9 * S, T0 + 9 * S)
    assert member.leaf_frontiers()["b"] == (T0 + 5 * S, T0 + 5 * S)
    assert [each.node for each in member.exceptions_at(T0 + 9 * S)] == ["b"]
    record = Gap((QUERY.group,), 0, T0 + 8 * S, -1, ("a", "b"), JOURNAL_LOST)
    assert [(gap.start_us, gap.nodes) for gap in narrowed(above.children.memberships, "m", record)] == [
        (T0 + 5 * S, ("a", "b")),
    ]


def test_the_status_says_that_a_parent_lost_its_spool() -> None:
    """protocol 3.7: for the operator."""
    host = at_work(published=True)
    assert "parent_journals_lost" not in NodeStatus("a", "gateway", "hall", "1").card(host.machine, FakeClock())
    meet(host, NEW, T0 + 6 * S)
    card = NodeStatus("a", "gateway", "hall", "1").card(host.machine, FakeClock())
    assert losses({"status": card}) == ["LOSS: hall lost its spool once: ops.gaps shows what may be missing"]


def test_what_comes_while_frames_move_is_in_the_commit_that_names_it() -> None:
    """protocol 3.1, 3.7: a position is committed with its readings, and a kill right after it loses none."""
    host = at_work(published=False)
    now_us, one = T0 + 5 * S + 600_000, np.ones(1, np.int64)
    host.do(LinkUp(), now_us)
    loss = Gap((QUERY.group,), T0, T0 + 1, -1, ("a",), "lost in a test")
    host.machine._gaps.append(loss)
    host.do(Read("s", Batch(one * now_us, one, one * 0, [()]), position=6), now_us)
    met = host.machine.handle(Receipted(Receipt(host.machine.outbox.epoch, NEW, 0)), now_us)
    (commit,) = [action for action in met if isinstance(action, Commit)]
    host.disk.commit(commit)  # and no other: the process is killed
    ((_, stored),) = SOURCE.each(host.disk.restored().state)
    assert stored.position == 6
    assert loss.reason in [gap.reason for frame in commit.frames for gap in frame.gaps]
    again = gateway_host(host.disk, now_us + 2 * S)
    again.do(Tick(), now_us + 20 * S)
    assert again.machine.book()["sent"] == 7


def test_the_range_of_frames_in_doubt_ends_with_the_longest_row() -> None:
    """protocol 3.7: another one that begins later may end before."""
    sender = Sender("a", Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0))
    sender.birth()
    frames = [sender.send((0, 100 * S, "", 1.0)), sender.send((10 * S, 20 * S, "", 1.0))]
    spool, box, group = {(f.epoch, f.seq): f for f in frames}, sender.outbox, sender.queries[0].group
    found = in_doubt(
        [*spool], box.encoder, box.epoch, {group: ("a",)}, lambda *key: spool[key[0], key[1]], span_us=(LATEST_US, 0)
    )
    assert [(gap.start_us, gap.end_us, gap.readings) for gap in found.gaps] == [(0, 100 * S, 2)]


def test_frames_that_cannot_be_read_lie_above_what_the_first_one_promises() -> None:
    """protocol 3.7"""
    sender = Sender("a", Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0))
    sender.birth()
    first, box, group = sender.send(frontier_us=5 * S), sender.outbox, sender.queries[0].group

    def load(epoch: int, seq: int) -> Frame:
        if (epoch, seq) == (first.epoch, first.seq):
            return first
        raise DamagedError("no such frame")

    keys = [(first.epoch, first.seq), (first.epoch, first.seq + 1)]
    found = in_doubt(keys, box.encoder, box.epoch, {group: ("a",)}, load, span_us=(LATEST_US, 30 * S))
    assert [(gap.start_us, gap.end_us) for gap in found.gaps] == [(5 * S, 30 * S)]


def test_the_first_frontier_of_a_group_says_where_the_rows_of_the_frames_begin() -> None:
    """protocol 3.7: later ones lie behind rows that are to move."""
    sender, known = Sender("a", Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)), dict[Group, int]()
    sender.birth()
    group = sender.queries[0].group
    for second in (10, 20):
        first_frontiers(sender.send(frontier_us=second * S), {sender.outbox.encoder.groups[group]: group}, known)
    assert known == {group: 10 * S}


def test_of_a_group_of_which_nothing_was_received_nothing_is_lost_with_the_journal() -> None:
    """protocol 3.7: a range that ends before it begins is none."""
    one, other = (Group(name, "", (), 0) for name in ("s", "t"))
    (gap,) = lost_with_journal({one: NEVER_US, other: 5 * S}, {one: ("a",), other: ("a",)})
    assert (gap.groups, gap.start_us, gap.end_us, gap.reason) == ((other,), LONG_AGO_US, 5 * S, JOURNAL_LOST)


def test_rows_in_doubt_of_the_present_epoch_are_declared_for_their_group_only() -> None:
    """protocol 3.7: rows of other groups stay complete; of another epoch the numbers of groups are not known."""
    sender, other = Sender("g", Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)), Group("t", "", (), 0)
    box = sender.outbox
    sender.birth()
    box.put(Step((GroupStep(other, leaves=(Leaf("g", 1),)),)))
    frame = sender.send((20 * S, 30 * S, "", 1.0))
    both = box.encoder.groups.keys()
    assert len(both) == 2
    for epoch, groups in ((box.epoch, {sender.queries[0].group}), (box.epoch + 1, set(both))):
        key, span_us = (epoch, frame.seq), (LATEST_US, 30 * S)
        found = in_doubt([key], box.encoder, box.epoch, {}, lambda _epoch, _seq: frame, span_us=span_us)
        assert [({*gap.groups}, gap.start_us, gap.end_us) for gap in found.gaps] == [(groups, 20 * S, 30 * S)]
