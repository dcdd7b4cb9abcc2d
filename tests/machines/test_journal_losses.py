"""What was lost, or is in doubt, of the journal that a parent had before is declared to the new one."""

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
    Plan,
    Receipt,
)
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.events import (
    Arrived,
    ClockChanged,
    LinkDown,
    LowerLink,
    Publish,
    Receipted,
    Tick,
)
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.uplink import journal_change
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder
from edge_agent.machines.uplink.journal_change import Numbers, in_doubt, moved
from edge_agent.machines.uplink.step import GroupStep, Step, StepRows
from edge_agent.ports.spool import DamagedError
from edge_agent.wire.frames import decode, encode
from tests.support.machines.journal_changes import NEW, at_work, gaps, meet
from tests.support.machines.journal_changes import readings as readings_of
from tests.support.machines.scripted_child import SUM, Sender, journalled
from tests.support.machines.simulated_host import JOURNAL, QUERY, SENSOR, T0, Disk, S, SimulatedHost, gateway_host, read


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


@pytest.mark.parametrize("later", ["at once", "frames wait", "after 30 minutes"])
def test_rows_that_left_while_the_clock_was_ahead_may_be_lost_with_the_journal(later: str) -> None:
    """protocol 3.7, 4.1: found by seed 120390. The promise is lowered, and they lie above it.

    later: when the new journal answers, and whether frames wait for it, whose promises tell where rows still to come
    begin.
    """
    ahead_us = 3_600 * S
    host = gateway_host(sensors=(replace(SENSOR, own_clock=False),))
    host.accepted(T0)
    for i in range(6):
        read(host, T0 + ahead_us + i * S, 1, T0 + ahead_us + i * S)
        host.do(Tick(), T0 + ahead_us + i * S + S // 2)
    box = host.machine.outbox
    host.do(Receipted(Receipt(box.epoch, JOURNAL, box.seq)), T0 + ahead_us + 6 * S)
    if later == "frames wait":
        host.do(LinkDown(), T0 + ahead_us + 6 * S)
    now_us = T0 + 7 * S
    host.do(Tick(), now_us)
    assert host.machine._frontiers()[QUERY.group] < T0 + 8 * S
    for _ in range(30):  # more frames than are published before an answer
        now_us += 60 * S if later == "after 30 minutes" else S
        read(host, now_us, 1, now_us)
        host.do(Tick(), now_us)
    found = [gap for gap in gaps(meet(host, NEW, now_us + 2 * S)) if gap.reason in (IN_DOUBT, JOURNAL_LOST)]
    for i in range(6):
        at_us = T0 + ahead_us + i * S
        assert any(gap.start_us <= at_us < gap.end_us for gap in found), (i, found)


def test_the_promise_of_a_merger_that_its_clock_lowers_leaves_rows_above_it() -> None:
    """protocol 3.7, 4.1"""
    ahead_us = 3_600 * S
    child = Sender("a", QUERY)
    host = SimulatedHost(Merger(NodeSettings("m"), Random(1), Disk().restored(), grace_us=600 * S))
    host.do(LowerLink(up=True), T0 + ahead_us)
    host.accepted(T0 + ahead_us)
    row = (T0 + ahead_us, T0 + ahead_us + S, "", 1.0)
    frames = (journalled(child.birth(), host.machine), child.send(row, frontier_us=T0 + ahead_us + 2 * S))
    host.do(Arrived(tuple(("a", frame, None) for frame in frames)), T0 + ahead_us + 3 * S)
    host.do(Tick(), T0 + ahead_us + 5 * S)
    assert readings_of(host.frames) == 1
    box = host.machine.outbox
    host.do(Receipted(Receipt(box.epoch, JOURNAL, box.seq)), T0 + ahead_us + 6 * S)
    host.do(Tick(), T0)
    host.do(Tick(), T0 + S)
    assert host.machine._frontiers()[QUERY.group] < row[0]
    found = [gap for gap in gaps(meet(host, NEW, T0 + 2 * S)) if gap.reason in (IN_DOUBT, JOURNAL_LOST)]
    assert any(gap.start_us <= row[0] < gap.end_us for gap in found), found
