"""A parent with a new journal is a new parent (docs/protocol.md 3.7)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from edge_agent.algebra.frame import (
    DAMAGED,
    IN_DOUBT,
    JOURNAL_LOST,
    LATEST_US,
    Define,
    Frame,
    Gap,
    GroupPart,
    Leaf,
    Members,
    Plan,
    Receipt,
)
from edge_agent.algebra.partials.partial import Batch, Partials
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.cli.fleet.status import losses
from edge_agent.machines.checkpoint.slots import SOURCE
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.losses.loss_records import narrowed
from edge_agent.machines.events import (
    Arrived,
    ClockChanged,
    Command,
    Commit,
    Configured,
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
from edge_agent.machines.uplink import journal_change
from edge_agent.machines.uplink.epoch_encoder import EpochEncoder
from edge_agent.machines.uplink.journal_change import MOVED_AT_ONCE, Numbers, Spooled, in_doubt, moved, sort_out
from edge_agent.machines.uplink.outbox import OLD_RECEIPTS
from edge_agent.machines.uplink.step import GroupStep, Step, StepRows
from edge_agent.ports.spool import DamagedError
from edge_agent.runtime.status_and_commands import NodeStatus
from edge_agent.wire.frames import decode, encode
from tests.support.fakes import FakeClock
from tests.support.machines.scripted_child import SUM, Sender, journalled
from tests.support.machines.simulated_host import JOURNAL, QUERY, SENSOR, T0, Disk, S, SimulatedHost, gateway_host, read

NEW = 9


def at_work(*, published: bool) -> SimulatedHost[Gateway]:
    """A gateway with rows of four windows in its spool. published: whether its link was up meanwhile."""
    host = gateway_host()
    host.accepted(T0)
    if not published:
        host.machine.outbox.link(up=False)
    for i in range(6):
        read(host, T0 + i * S, 1, T0 + i * S)
        host.do(Tick(), T0 + i * S + S // 2)
    return host


def meet(host: SimulatedHost[Gateway] | SimulatedHost[Merger], journal: int, now_us: int) -> list[Frame]:
    """A receipt of that journal, and the frames that follow."""
    known = len(host.frames)
    if not host.machine.outbox.link_up:
        host.do(LinkUp(), now_us)
    host.do(Receipted(Receipt(host.machine.outbox.epoch, journal, 0)), now_us)
    host.do(Tick(), now_us + S)
    host.do(Tick(), now_us + 2 * S)
    return host.frames[known:]


def readings(frames: list[Frame]) -> int:
    return sum(frame.readings for frame in frames)


def gaps(frames: list[Frame]) -> list[Gap]:
    return [gap for frame in frames for gap in frame.gaps]


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


@pytest.mark.parametrize("kept", [False, True])
def test_losses_that_a_journal_was_told_are_told_the_next_one_too(kept: bool) -> None:
    """protocol 3.7: it may have lost them before it passed them on. kept: the record is in a birth that was waiting."""
    late_us = T0 - 20 * S
    host = at_work(published=True)
    read(host, late_us, 1, T0 + 6 * S)
    host.do(Tick(), T0 + 7 * S)  # published, and never receipted
    host.do(LinkDown(), T0 + 8 * S)
    now_us = T0 + 8 * S
    for restarted in range(1 + kept):
        if restarted:
            host = gateway_host(host.disk, now_us)
        for _ in range(20):  # minutes: what was late is no longer remembered for itself
            now_us += 60 * S
            host.do(Tick(), now_us)

    def told(journal: int) -> bool:
        before = {key: frame for key, (frame, _) in host.disk.frames.items()}
        meet(host, journal, now_us)
        new = [frame for key, (frame, _) in host.disk.frames.items() if before.get(key) is not frame]
        return any(gap.reason == IN_DOUBT and gap.start_us <= late_us < gap.end_us for gap in gaps(new))

    assert told(NEW)
    for epoch in {epoch for epoch, _ in host.disk.frames}:
        host.do(Receipted(Receipt(epoch, NEW, 1000)), now_us + 3 * S)
    now_us += 4 * S
    host.do(Tick(), now_us)
    assert not host.disk.frames
    assert told(NEW + 1)


def test_a_loss_below_the_promise_is_in_doubt_with_the_journal_that_had_its_record() -> None:
    """protocol 3.7: the tier above begins the record of the lost journal at the promise."""
    host = gateway_host(sensors=(replace(SENSOR, rereadable=False, own_clock=False),))
    host.accepted(T0)
    for i in range(6):
        read(host, T0 + i * S, 1, T0 + i * S)
        host.do(Tick(), T0 + i * S + S // 2)
    wrong = (T0 + 2 * S, T0 + 4 * S)
    host.do(ClockChanged(known=True, boot="", offset_us=0, by_us=0, wrong=wrong), T0 + 6 * S)
    host.do(Tick(), T0 + 7 * S)
    box = host.machine.outbox
    host.do(Receipted(Receipt(box.epoch, JOURNAL, box.seq)), T0 + 8 * S)
    host.do(Tick(), T0 + 9 * S)
    assert not gaps([frame for frame, _ in host.disk.frames.values()]), "the record has its receipt"
    in_doubt = [gap for gap in gaps(meet(host, NEW, T0 + 10 * S)) if gap.reason == IN_DOUBT]
    assert any(gap.start_us <= wrong[0] and gap.end_us >= wrong[1] for gap in in_doubt), in_doubt


def test_losses_of_groups_that_a_node_does_not_have_are_not_remembered() -> None:
    """Else a child's records would grow what its parent stores."""
    host = at_work(published=True)
    other = Query("r", 1, "t", Tumbling(S), SUM).group
    host.machine._note_losses([Gap((other, QUERY.group), T0, T0 + S, 1, (), "lost in a test")])
    assert [group for group, *_ in host.machine._late.recent()] == [QUERY.group]


def test_losses_of_a_journal_go_ahead_of_a_birth_that_waits_and_has_no_room_for_them() -> None:
    """protocol 3.7, 2.1: a merger was started again without a link; each record names its leaves once more."""
    most_bytes, disk = 2_000, Disk()

    def merger(now_us: int) -> SimulatedHost[Merger]:
        settings = NodeSettings("m", frame_bytes=most_bytes)
        machine = Merger(settings, Random(now_us), disk.restored(), disk.load, grace_us=600 * S)
        host = SimulatedHost(machine, disk)
        host.do(LowerLink(up=True), now_us)
        return host

    host = merger(T0)
    host.accepted(T0)
    for i in range(4):
        query = Query(f"q{i}", 1, f"s{i}", Tumbling(10 * S), SUM, lateness_us=0)
        child = Sender(f"child-{i}", query, leaves=[f"gateway-{number:03d}" for number in range(40)])
        frames = (journalled(child.birth(), host.machine), child.send((0, 10 * S, "", 1.0), frontier_us=10 * S))
        host.do(Arrived(tuple((child.node, frame, None) for frame in frames)), T0 + S)
    host.do(Tick(), T0 + 2 * S)
    for epoch, seq in sorted(disk.frames):
        host.do(Receipted(Receipt(epoch, JOURNAL, seq + 1)), T0 + 3 * S)
    host.do(Tick(), T0 + 4 * S)
    assert not disk.frames
    host = merger(T0 + 5 * S)
    host.do(Tick(), T0 + 6 * S)
    waiting = set(disk.frames)
    assert waiting
    ahead = [frame for frame in meet(host, NEW, T0 + 6 * S) if (frame.epoch, 0) not in waiting]
    assert {gap.reason for gap in gaps(ahead)} == {JOURNAL_LOST}
    assert sum(len(gap.nodes) for gap in gaps(ahead)) == 4 * 40
    assert all(len(encode(frame)) <= most_bytes for frame, _ in disk.frames.values())
    sent = [(action.epoch, action.seq) for action in host.done if isinstance(action, Publish)]
    assert sent[0] == (ahead[0].epoch, 0)
    first, _ = disk.frames[next(key for key in disk.frames if key in waiting)]
    assert first.birth is not None
    assert first.birth.predecessor == (ahead[-1].epoch, ahead[-1].seq)


@pytest.mark.parametrize("restarts", [1, 2])
def test_frames_never_published_of_epochs_before_a_restart_move_to_the_new_journal(restarts: int) -> None:
    """protocol 3.7: the region was away, its disk was replaced, and meanwhile the gateway was started again."""
    host = at_work(published=True)
    host.do(LinkDown(), T0 + 6 * S)
    sent = readings([frame for frame, marked in host.disk.frames.values() if marked])
    for at in range(6, 6 + 5 * restarts + 5):
        if at % 5 == 1 and at > 6:
            host = gateway_host(host.disk, T0 + at * S)
        read(host, T0 + at * S, 1, T0 + at * S)
        host.do(Tick(), T0 + at * S + S // 2)
    epochs = {epoch for epoch, _ in host.disk.frames}
    assert len(epochs) == restarts + 1
    host.do(Receipted(Receipt(host.machine.outbox.epoch, NEW, 0)), T0 + (at + 1) * S)
    host.do(LinkUp(), T0 + (at + 1) * S)
    host.do(Tick(), T0 + (at + 20) * S)
    spooled = [frame for frame, _ in host.disk.frames.values()]
    assert not epochs & {frame.epoch for frame in spooled}, "all in one new epoch"
    lost = [gap.readings for gap in gaps(spooled) if gap.reason == IN_DOUBT]
    assert sum(max(each, 0) for each in lost) == sent > 0
    assert lost.count(-1) == restarts, "the times of rows of a flush, as of late ones"
    assert readings(spooled) == at + 1 - sent
    assert not [gap for gap in gaps(spooled) if gap.reason == DAMAGED]
    promises_follow(spooled)
    host.machine.outbox.check()


def promises_follow(frames: list[Frame]) -> None:
    """No frontier comes before rows."""
    promised = [i for i, frame in enumerate(frames) if any(part.frontier_us is not None for part in frame.groups)]
    assert promised == [i for i in promised if i >= max(i for i, frame in enumerate(frames) if frame.readings)]


def many_unsent(*, restarted: bool = False) -> tuple[SimulatedHost[Gateway], set[int], int]:
    """A gateway whose frames have begun to move to a new journal. Returns it, their epochs, and how many readings.

    restarted: whether it was started again while the parent was away.
    """
    host = at_work(published=True)
    host.do(LinkDown(), T0 + 6 * S)
    seconds = 2 * MOVED_AT_ONCE + 20
    for i in range(6, seconds):
        if restarted and i == seconds // 4:
            host = gateway_host(host.disk, T0 + i * S)
        read(host, T0 + i * S, 1, T0 + i * S)
        host.do(Tick(), T0 + i * S + S // 2)
    old = {epoch for epoch, _ in host.disk.frames}
    host.do(Receipted(Receipt(host.machine.outbox.epoch, NEW, 0)), T0 + seconds * S)  # the link is down again
    assert sum(epoch in old for epoch, _ in host.disk.frames) > MOVED_AT_ONCE // 2, "one commit does not move all"
    assert len(old) == 1 + restarted
    return host, old, seconds


def started_again(host: SimulatedHost[Gateway], seconds: int) -> SimulatedHost[Gateway]:
    process = Gateway(NodeSettings("a"), Random(99), host.disk.restored(), host.disk.load)
    again = SimulatedHost(process, host.disk)
    again.do(Configured((SENSOR,), (QUERY,), (), ("q",)), T0 + (seconds + 1) * S)
    for i in range(2, 6):
        again.do(Tick(), T0 + (seconds + i) * S)
    return again


@pytest.mark.parametrize("restarted", [False, True])
def test_a_restart_goes_on_to_move_frames_and_none_is_lost(restarted: bool) -> None:
    """protocol 1.5, 3.7: the last of them define their numbers again. No promise comes before their rows."""
    host, old, seconds = many_unsent(restarted=restarted)
    again = started_again(host, seconds)
    assert not any(epoch in old for epoch, _ in host.disk.frames)
    spooled = [frame for frame, _ in host.disk.frames.values()]
    lost = sum(max(gap.readings, 0) for gap in gaps(spooled) if gap.reason == IN_DOUBT)
    assert 0 < lost < 10, "those that were published"
    assert readings(spooled) + lost == seconds
    assert not [gap for gap in gaps(again.frames) if gap.reason in (IN_DOUBT, JOURNAL_LOST)]
    promises_follow(spooled)


def test_frames_that_a_restart_finds_not_moved_yet_are_in_doubt_if_nothing_says_what_their_numbers_mean() -> None:
    """protocol 1.5, 3.7: as where those that define them again are damaged; they leave the spool."""
    host, old, seconds = many_unsent()
    last = max((epoch, seq) for epoch, seq in host.disk.frames if epoch in old)
    frame, marked = host.disk.frames[last]
    assert frame.define is not None
    host.disk.frames[last] = replace(frame, define=None), marked
    before = readings([frame for (epoch, _), (frame, _) in host.disk.frames.items() if epoch in old])
    again = started_again(host, seconds)
    assert not any(epoch in old for epoch, _ in host.disk.frames)
    lost = sum(max(gap.readings, 0) for gap in gaps(again.frames) if gap.reason == IN_DOUBT)
    assert lost == before > MOVED_AT_ONCE // 2


def test_a_frame_that_is_damaged_when_it_moves_to_the_new_journal_is_declared() -> None:
    """protocol 3.5, 3.7"""
    host = at_work(published=True)
    host.do(LinkDown(), T0 + 6 * S)
    for i in range(6, 12):
        read(host, T0 + i * S, 1, T0 + i * S)
        host.do(Tick(), T0 + i * S + S // 2)
    box = host.machine.outbox
    damaged = list(box.pending.unmarked())[2]

    def load(epoch: int, seq: int) -> Frame:
        if (epoch, seq) == damaged:
            raise DamagedError("fails its checksum")
        return host.disk.load(epoch, seq)

    host.machine._load = load
    known = len(host.frames)
    host.do(Receipted(Receipt(box.epoch, NEW, 0)), T0 + 12 * S)
    found = [gap for gap in gaps(host.frames[known:]) if gap.reason == DAMAGED]
    assert [(gap.groups, gap.readings) for gap in found] == [((QUERY.group,), -1)]
    assert damaged not in host.disk.frames


SPAN_US = (LATEST_US, 90 * S)
LATE_ROWS = 3 * S


def frames_of(*, registers: dict[int, int] | None = None) -> tuple[EpochEncoder, list[Frame]]:
    """Frames of an epoch: one with rows on time, late rows and a gap record, and two with a frontier."""
    encoder, one = EpochEncoder(), np.ones(1, np.int64)
    plan = Plan(b"12345678", "slice", ("count", "sum"), 0, S, (("q", 1),))
    rows = [
        StepRows(plan, late, Partials(at * one, (at + S) * one, 0 * one, {"count": one, "sum": one}), ["x"], ["a"])
        for at, late in ((20 * S, False), (LATE_ROWS, True))
    ]
    gap = Gap((QUERY.group,), 5 * S, 6 * S, 4, ("b",), "quota", 2)
    steps = [
        Step((GroupStep(QUERY.group, 30 * S, tuple(rows)),), gaps=(gap,)),
        *[Step((GroupStep(QUERY.group, 40 * S),))],
    ]
    frames: list[Frame] = []
    for step in steps:
        frames += encoder.encode_step(7, len(frames), step)
    found = [decode(encode(frame)) for frame in frames]
    return encoder, [frame for frame in found if isinstance(frame, Frame)]


def test_losses_that_frames_in_doubt_declared_are_declared_with_them() -> None:
    """protocol 3.7: the old journal may not have passed them on."""
    encoder, frames = frames_of()
    loads = {(frame.epoch, frame.seq): frame for frame in frames}
    nodes = {QUERY.group: ("a",)}
    found = in_doubt(list(loads), encoder, 7, nodes, lambda *key: loads[key], span_us=SPAN_US)
    carried = [gap for gap in found.gaps if gap.reason == "quota"]
    assert carried == [Gap((QUERY.group,), 5 * S, 6 * S, 4, ("b",), "quota", 0)]
    assert (found.readings, found.unread) == (2, 0)
    spans = [(gap.groups, gap.start_us, gap.end_us) for gap in found.gaps if gap.reason == IN_DOUBT]
    assert spans == [((QUERY.group,), LATE_ROWS, LATE_ROWS + S), ((QUERY.group,), 20 * S, 21 * S)]


def test_frames_that_move_take_their_late_rows_as_late_ones_and_their_losses_along() -> None:
    """protocol 3.7"""
    encoder, frames = frames_of()
    step = moved(frames[0], Numbers.of(encoder))
    assert [(rows.late, int(rows.partials.start[0])) for each in step.groups for rows in each.rows] == [
        (False, 20 * S),
        (True, LATE_ROWS),
    ]
    assert step.gaps == (Gap((QUERY.group,), 5 * S, 6 * S, 4, ("b",), "quota", 0),)


def test_numbers_that_nothing_defines_are_an_error_and_never_another_key() -> None:
    """protocol 2.4, 3.7: a frame before may be damaged."""
    encoder, frames = frames_of()
    numbers = Numbers.of(encoder)
    rows = frames[0].groups[0].sections[0].rows(("count", "sum"))
    numbers.check(rows, ("count", "sum"))
    with pytest.raises(KeyError):
        Numbers().check(rows, ("count", "sum"))
    with pytest.raises(ValueError, match="1 numbers are known, and 2 comes next"):
        numbers.learn(Define(keys=(2, ("z",))))
    numbers.learn(Define(keys=(0, ("x", "y"))))
    assert numbers.keys == ["x", "y"]


def test_of_very_many_ranges_in_doubt_one_record_covers_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.7: they must have room in the frames of a birth."""
    monkeypatch.setattr(journal_change, "MOST_RECORDS", 1)
    encoder, frames = frames_of()
    loads = {(frame.epoch, frame.seq): frame for frame in frames}
    found = in_doubt(list(loads), encoder, 7, {QUERY.group: ("a",)}, lambda *key: loads[key], span_us=SPAN_US)
    records = [gap for gap in found.gaps if gap.reason == IN_DOUBT]
    assert records == [Gap((QUERY.group,), LATE_ROWS, 21 * S, 2, ("a",), IN_DOUBT)]


def test_what_cannot_be_read_may_have_been_of_sessions_that_were_open_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.7, 5.2"""
    monkeypatch.setattr(journal_change, "MOST_LOOKED_AT", 1)
    known = Frame(7, 1, groups=(GroupPart(0, 30 * S, registers=((0, 2 * S), (1, None))),))
    found = in_doubt([(7, 1), (7, 2)], EpochEncoder(), 7, {QUERY.group: ("a",)}, lambda *_: known, span_us=SPAN_US)
    assert [(gap.start_us, gap.end_us, gap.readings) for gap in found.gaps] == [(2 * S, 90 * S, -1)]
