"""A spool that has reached its quota: whole frames go, gap records stand for them (docs/protocol.md 3.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.coverage import window_coverage
from edge_agent.algebra.frame import DAMAGED, Frame, Gap, Receipt
from edge_agent.algebra.gap_scope import QUOTA
from edge_agent.machines.checkpoint.slots import LATE_SENT
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.epochs.received_seqs import ReceivedRanges, ReceivedSeqs
from edge_agent.machines.events import Committed, LinkDown, LinkUp, Publish, Receipted, Sent, Tick
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.ports.spool import DamagedError
from edge_agent.wire.frames import decode, encode
from tests.support.machines.simulated_host import JOURNAL, QUERY, T0, Disk, S, SimulatedHost, gateway_host, read

MINUTE = 60
FRAME_BYTES = 1_000  # of each in the simulated spool
QUOTA_BYTES = 20 * FRAME_BYTES


class Parent:
    """A parent that takes frames as bytes."""

    def __init__(self) -> None:
        self.frames = ChildFrames(JOURNAL, 600 * S)
        self.gaps: list[Gap] = []
        self.readings = 0
        self.bad: list[str] = []

    def take(self, payload: bytes, now_us: int) -> None:
        message = decode(payload)
        assert isinstance(message, Frame)
        for applied in self.frames.take("a", message, now_us):
            frame = applied.effect.frame
            if frame is None:
                self.bad.append(applied.effect.why)
                continue
            self.gaps += frame.gaps
            self.readings += frame.readings

    def receipt(self, epoch: int) -> Receipt:
        return self.frames.inbox.receipt("a", epoch)


def outage(seconds: int, quota_bytes: int | None = QUOTA_BYTES) -> SimulatedHost[Gateway]:
    """A gateway that had a parent, and has lost it; a reading a second since then."""
    host = gateway_host(settings=NodeSettings("a", quota_bytes=quota_bytes))
    host.accepted(T0)
    host.do(LinkDown(), T0)
    for second in range(seconds):
        read(host, T0 + second * S, second, T0 + second * S)
        host.do(Tick(), T0 + second * S + S // 2)
    return host


def drained(host: SimulatedHost[Gateway], parent: Parent, now_us: int) -> None:
    """The line is back: everything goes up until nothing is left."""
    for second in range(50):
        at_us = now_us + second * S
        out = host.do(Tick() if second else LinkUp(), at_us)
        while published := [action for action in out if isinstance(action, Publish)]:
            out = []
            for each in published:
                parent.take(encode(host.disk.load(each.epoch, each.seq)), at_us)
                out += host.do(Sent(each.epoch, each.seq), at_us)
        for epoch in host.machine.outbox.pending.epochs():
            host.do(Receipted(parent.receipt(epoch)), at_us)
        if not host.machine.outbox.spooled:
            return
    raise AssertionError(host.machine.outbox.spooled)


def complete(parent: Parent, seconds: Sequence[int]) -> list[bool]:
    """Of the windows of a second each."""
    group = QUERY.group
    leaves = {"a": parent.frames.children.memberships[group].leaf_frontiers()["a"][0]}
    spans = [(T0 + second * S, T0 + (second + 1) * S) for second in seconds]
    return [window_coverage(leaves, parent.gaps, group, *span).complete for span in spans]


def test_what_a_full_spool_drops_is_declared_again_if_the_parent_loses_its_journal() -> None:
    """protocol 3.5, 3.7: the record lies below the promise that follows it."""
    host = outage(10 * MINUTE)
    dropped = [gap for frame, _ in host.disk.frames.values() for gap in frame.gaps if gap.reason == "quota"]
    assert dropped
    sent = LATE_SENT.read(host.disk.restored().state) or {}
    for gap in dropped:
        assert any(start_us <= gap.start_us and gap.end_us <= end_us for _, start_us, end_us in sent[QUERY.group])


def test_what_was_dropped_is_declared_and_everything_else_counts_once() -> None:
    """protocol 3.5: the oldest that were never published go; the order holds."""
    host, parent = outage(2 * MINUTE), Parent()
    assert len(host.disk.frames) <= QUOTA_BYTES // FRAME_BYTES + 2
    drained(host, parent, T0 + 2 * MINUTE * S)
    lost = sum(gap.readings for gap in parent.gaps if gap.reason == QUOTA)
    book = host.machine.book()
    assert parent.bad == []
    assert (lost, book["lost"]) == (book["lost"], lost)
    assert lost > MINUTE
    assert parent.readings == book["sent"]
    assert parent.readings + lost >= 2 * MINUTE - 3  # the last seconds are open
    (gap,) = (gap for gap in parent.gaps if gap.reason == QUOTA and gap.readings)
    assert (gap.end_us - gap.start_us, gap.start_us, gap.groups) == (lost * S, T0, (QUERY.group,))
    seconds = range(2, 2 * MINUTE - 5)
    assert complete(parent, seconds) == [second >= lost for second in seconds]
    assert not any(gap.run for gap in parent.gaps)


def test_a_node_that_starts_anew_over_its_quota_drops_too() -> None:
    """protocol 3.5: of an epoch that has ended, its first frames, its flush and the next birth stay."""
    before = outage(MINUTE, quota_bytes=None)
    disk = Disk(before.disk.slots, before.disk.frames)
    host, parent = gateway_host(disk, T0 + MINUTE * S, settings=NodeSettings("a", quota_bytes=QUOTA_BYTES)), Parent()
    for second in range(5):
        host.do(Tick(), T0 + (MINUTE + 2 * second) * S)
    assert len(disk.frames) <= QUOTA_BYTES // FRAME_BYTES + 2
    drained(host, parent, T0 + 2 * MINUTE * S)
    assert parent.bad == []
    assert sum(gap.readings for gap in parent.gaps if gap.reason == QUOTA) == host.machine.book()["lost"] > MINUTE // 2


def test_published_frames_get_records_of_their_own_which_a_parent_that_has_them_drops() -> None:
    """protocol 3.5"""
    host, parent = outage(15, quota_bytes=None), Parent()
    now_us = T0 + 15 * S
    for each in [action for action in host.do(LinkUp(), now_us) if isinstance(action, Publish)]:
        parent.take(encode(host.disk.load(each.epoch, each.seq)), now_us)
        host.do(Sent(each.epoch, each.seq), now_us)
    host.do(LinkDown(), now_us)
    box, counted = host.machine.outbox, parent.readings
    assert not list(box.pending.unmarked())
    assert counted > 10
    box.drop(3, host.disk.load)
    host.do(Tick(), now_us + 2 * S)
    records = [frame for frame, _ in host.disk.frames.values() if any(gap.reason == QUOTA for gap in frame.gaps)]
    assert [frame.gaps[0].run for frame in records] == [1, 1, 1]
    for frame in records:
        parent.take(encode(frame), now_us)
    assert (parent.readings, parent.gaps) == (counted, [])


def test_of_published_frames_neither_those_in_flight_go_nor_records_that_took_the_place_of_some() -> None:
    """protocol 3.5: what is on its way may count at the parent, and replacing a record frees nothing."""
    host = outage(15, quota_bytes=None)  # no more than are published before the parent answers
    box, now_us = host.machine.outbox, T0 + 15 * S
    published = [action for action in host.do(LinkUp(), now_us) if isinstance(action, Publish)]
    confirmed = published[:10]
    for each in confirmed:
        published += [action for action in host.do(Sent(each.epoch, each.seq), now_us) if isinstance(action, Publish)]
    assert not list(box.pending.unmarked())
    may_go = [(each.epoch, each.seq) for each in confirmed if each.seq]  # the birth may not
    for second in range(1, 6):
        box.drop(3, host.disk.load)
        for frame in box.replaced:
            host.disk.frames[frame.epoch, frame.seq] = frame, True
        box.replaced.clear()
        records = [key for key, (frame, _) in host.disk.frames.items() if any(g.reason == QUOTA for g in frame.gaps)]
        assert records == may_go[: 3 * second]


def test_a_frame_whose_bytes_are_damaged_is_dropped_as_a_loss_of_every_group() -> None:
    """protocol 3.5, 3.6: nobody knows what was in it."""
    host, records = outage(15, quota_bytes=None), dict[tuple[int, int], Frame]()
    box = host.machine.outbox

    def load(epoch: int, seq: int) -> Frame:
        if seq == 3:
            raise DamagedError("fails its checksum")
        return records.get((epoch, seq)) or host.disk.load(epoch, seq)

    for _ in range(2):  # its record defines all numbers, so a record of others ends before it
        box.drop(5, load)
        records |= {(record.epoch, record.seq): record for record in box.take_replaced()}
    lost = [gap for record in records.values() for gap in record.gaps if gap.reason == DAMAGED]
    assert [(gap.groups, gap.readings, gap.run) for gap in lost] == [((QUERY.group,), -1, 0)]


def test_an_earlier_record_is_part_of_the_next_one() -> None:
    """protocol 3.5: records do not fill the spool in their turn."""
    host = outage(5 * MINUTE)
    records = [frame for frame, _ in host.disk.frames.values() if any(gap.run for gap in frame.gaps)]
    assert len(records) == 1
    assert records[0].gaps[0].run > 4 * MINUTE


def test_a_node_without_a_quota_drops_nothing() -> None:
    host = outage(MINUTE, quota_bytes=None)
    host.machine.handle(Committed(10**12), T0 + MINUTE * S)
    assert len(host.disk.frames) >= MINUTE - 3


@given(st.lists(st.integers(0, 30), max_size=40))
def test_ranges_hold_what_a_set_would(numbers: list[int]) -> None:
    """protocol 3.4: behind a gap record the lander holds all that follows as one range."""
    ranges, seqs = ReceivedRanges(), ReceivedSeqs()
    for number in numbers:
        assert (number in ranges) == (number in seqs)
        if number not in seqs:
            ranges.add(number)
            seqs.add(number)
        assert ranges.receipt() == seqs.receipt()
        assert ReceivedRanges.restore(ranges.next, ranges.above) == ranges
        assert ReceivedRanges.restore(seqs.next, sorted(seqs.above)) == replace(ranges)
