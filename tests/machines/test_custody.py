"""Custody at its edges: stops, gap records passed on, what waits for a commit, what a restart must remember."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from edge_agent.algebra.frame import LOST, Birth, Frame, Gap, Receipt
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Session, Tumbling
from edge_agent.machines.checkpoint.append_only import AppendOnlyTable
from edge_agent.machines.checkpoint.membership_slots import MembershipSlots
from edge_agent.machines.checkpoint.slots import EPOCH, REGISTERS, SOURCE, WAITING
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.epochs.epoch_frames import AFTER_FLUSH
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.events import (
    Ack,
    Action,
    Arrived,
    BadEnvelope,
    BadFrame,
    Beat,
    ChildStatus,
    ClockChanged,
    Commit,
    Committed,
    Configured,
    LowerLink,
    Publish,
    Quarantine,
    Read,
    Receipted,
    Restored,
    Retire,
    SendReceipt,
    Tick,
)
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from tests.support.machines.scripted_child import SUM, Sender, root_of
from tests.support.machines.simulated_host import JOURNAL, QUERY, SENSOR, T0, S, SimulatedHost, gateway_host, read

LIVE = replace(SENSOR, rereadable=False, own_clock=False)
ENDED_US = T0 + S  # no window of QUERY that ends later is served, once it is removed after a reading at T0 + S
AGAIN, NOTHING = Configured((LIVE,), (QUERY,), (), (QUERY.id,)), Configured((), (), (), ())
SUMS = Query("sums", 1, "door", Tumbling(S), SUM)
VISITS = Query("visits", 1, "door", Session(5 * S), SUM)


def region_of(*senders: Sender, restored: Restored | None = None) -> SimulatedHost[Merger]:
    """A merger that its parent has accepted, and whose children know its journal."""
    host = SimulatedHost(Merger(NodeSettings("m"), Random(3), restored, grace_us=600 * S))
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    for sender in senders:
        sender.outbox.journal = host.machine.journal
    return host


def came(*frames: tuple[str, Frame | BadFrame], token: object = None) -> Arrived:
    return Arrived(tuple((child, frame, token) for child, frame in frames))


# --- a stop -----------------------------------------------------------------------------------------------------------


def test_the_stop_of_a_source_that_cannot_be_read_again_is_a_gap_record_in_the_flush() -> None:
    """protocol 3.1: from the last commit to the start, before any frontier of the new epoch."""
    host = gateway_host(sensors=(LIVE,))
    read(host, T0 + S, 1, T0 + S)
    host.do(Tick(), T0 + 2 * S)
    again = gateway_host(host.disk, T0 + 60 * S, sensors=(LIVE,))
    (gap,) = (gap for frame in again.frames if frame.flush is not None for gap in frame.gaps)
    assert (gap.groups, gap.start_us) == ((QUERY.group,), T0 + 2 * S)
    assert 0 <= gap.end_us - (T0 + 60 * S) <= 1
    assert (gap.nodes, gap.readings) == (("a",), -1)


def test_a_source_that_is_read_again_leaves_no_gap_record_of_a_stop() -> None:
    """protocol 3.1."""
    host = gateway_host()
    read(host, T0 + S, 1, T0 + S)
    host.do(Tick(), T0 + 2 * S)
    assert not [gap for frame in gateway_host(host.disk, T0 + 60 * S).frames for gap in frame.gaps]


def test_a_source_first_heard_now_leaves_one_gap_record_of_what_was_under_way() -> None:
    """protocol 3.1, 3.5: `began`, from the delay and the lateness before the first moment on, and once."""
    host = gateway_host(sensors=(LIVE,))
    read(host, T0 + S, 1, T0 + S)
    for seconds in (2, 4, 6):
        host.do(Tick(), T0 + seconds * S)
    (gap,) = (gap for frame in host.frames for gap in frame.gaps)
    assert (gap.reason, gap.end_us, gap.nodes) == ("began", T0, ("a",))
    assert gap.start_us < T0


def test_a_source_that_is_removed_and_added_again_was_not_heard_in_between() -> None:
    """protocol 3.1: its group is kept, and windows of the query may begin from its last reading on."""
    host = gateway_host(sensors=(LIVE,))
    read(host, T0 + S, 1, T0 + S)
    host.do(Tick(), T0 + 2 * S)
    host.do(NOTHING, T0 + 3 * S)
    host.do(Tick(), T0 + 4 * S)
    host.do(AGAIN, T0 + 9 * S)
    host.do(Tick(), T0 + 10 * S)
    host.do(AGAIN, T0 + 11 * S)
    host.do(Tick(), T0 + 12 * S)
    _, left, again = (gap for frame in host.frames for gap in frame.gaps)
    assert (left.reason, left.start_us, left.end_us) == ("stopped", T0 + 3 * S - 1, T0 + 3 * S + 1)
    assert (again.reason, again.start_us, again.end_us) == ("began", ENDED_US + 1, T0 + 9 * S)


def test_a_source_that_was_removed_and_is_added_at_a_start_is_a_new_one() -> None:
    """protocol 3.1: what is stored of it is deleted, and the record begins where the group stands."""
    host = gateway_host(sensors=(LIVE,))
    read(host, T0 + S, 1, T0 + S)
    host.do(Tick(), T0 + 2 * S)
    host.do(NOTHING, T0 + 3 * S)
    host.do(Tick(), T0 + 4 * S)
    assert not [name for name in host.disk.slots if name.startswith(f"{SOURCE.name}/")]
    again = gateway_host(host.disk, T0 + 60 * S, sensors=(LIVE,))
    again.do(Tick(), T0 + 61 * S)
    (gap,) = (gap for frame in again.frames for gap in frame.gaps if gap.reason == "began")
    assert (gap.start_us, gap.end_us) == (ENDED_US + 1, T0 + 60 * S)


# --- a merger ---------------------------------------------------------------------------------------------------------


def test_a_message_that_is_no_frame_voids_no_window() -> None:
    """protocol 3.6: its sender sends it again, or a gap record in its place. Its bytes travel up all the same."""
    child = Sender("a", SUMS)
    region = region_of(child)
    region.do(came(("a", child.birth(T0)), ("a", child.send(frontier_us=T0 + 2 * S))), T0 + S)
    region.do(Arrived((("a", BadEnvelope("not CBOR", b"noise"), None),)), T0 + 2 * S)
    region.do(came(("a", child.send(frontier_us=T0 + 9 * S))), T0 + 3 * S)
    for second in (4, 7):
        region.do(Tick(), T0 + second * S)
    (gap,) = (gap for frame in region.frames for gap in frame.gaps)
    assert (gap.groups, gap.readings, gap.nodes, gap.reason) == ((), 0, ("a",), "quarantined: not CBOR")
    assert gap.detail.startswith("5 bytes, sha256 ")


def test_a_retired_child_declares_nothing_with_messages_that_are_no_frames() -> None:
    """protocol 1.5, 3.6: nobody expects it, and its noise must not fill the frames of the others."""
    child = Sender("a", SUMS)
    region = region_of(child)
    region.do(came(("a", child.birth(T0)), ("a", child.send(frontier_us=T0 + 2 * S))), T0 + S)
    region.do(Retire("a"), T0 + 2 * S)
    region.do(Tick(), T0 + 3 * S)
    known = len(region.frames)
    out = region.do(Arrived((("a", BadEnvelope("not CBOR", b"noise"), None),)), T0 + 4 * S)
    region.do(Tick(), T0 + 5 * S)
    assert [action.payload for action in out if isinstance(action, Quarantine)] == [b"noise"]
    assert [gap for frame in region.frames[known:] for gap in frame.gaps] == []


def test_a_merger_passes_gap_records_on_unchanged_and_once() -> None:
    """protocol 3.5: with the frame that carries the frontier, or earlier."""
    child = Sender("a", SUMS)
    region = region_of(child)
    birth = child.birth(T0)
    lost = child.lose(T0 + S, T0 + 2 * S)
    region.do(came(("a", birth), ("a", lost), ("a", lost), ("a", child.send(frontier_us=T0 + 9 * S))), T0 + S)
    region.do(Tick(), T0 + 3 * S)
    region.do(Tick(), T0 + 6 * S)
    assert [gap for frame in region.frames for gap in frame.gaps] == list(lost.gaps)
    promised = [f.seq for f in region.frames if any((p.frontier_us or 0) > T0 + 2 * S for p in f.groups)]
    (passed,) = (frame.seq for frame in region.frames if frame.gaps)
    assert passed <= min(promised)


def test_a_merger_sends_a_gap_record_for_a_frame_that_it_could_not_read() -> None:
    """protocol 3.6, 3.5: from the frontier that its sender had promised on."""
    child = Sender("a", SUMS)
    region = region_of(child)
    bad = BadFrame(0, 0, "not CBOR", b"x")
    region.do(came(("a", child.birth(T0)), ("a", replace(bad, epoch=child.outbox.epoch, seq=1))), T0 + S)
    region.do(Tick(), T0 + 3 * S)
    (gap,) = (gap for frame in region.frames for gap in frame.gaps)
    assert (gap.start_us, gap.end_us, gap.nodes) == (T0, T0 + S + 1, ("a",))
    assert "not CBOR" in gap.reason


def test_a_merger_owes_a_receipt_for_every_duplicate_until_the_next_commit() -> None:
    """protocol 3.2: the child may have missed the first."""
    child = Sender("a", SUMS)
    region = region_of(child)
    birth = child.birth(T0)
    for second in (1, 3, 5):
        region.do(came(("a", birth)), T0 + second * S)
        region.do(Tick(), T0 + (second + 2) * S)
    upto = [a.receipt.upto for a in region.done if isinstance(a, SendReceipt) and a.receipt.epoch]
    assert upto.count(1) >= 3


def test_a_child_that_comes_online_gets_a_receipt_of_its_epoch() -> None:
    """protocol 3.2: it may have missed the last one, and sends again what it does not know to be here."""
    child = Sender("a", SUMS)
    region = region_of(child)
    region.do(came(("a", child.birth(T0))), T0 + S)
    region.do(Tick(), T0 + 3 * S)
    before = len([a for a in region.done if isinstance(a, SendReceipt)])
    region.do(ChildStatus("a", online=True), T0 + 4 * S)
    region.do(Tick(), T0 + 6 * S)
    (receipt,) = [a.receipt for a in region.done if isinstance(a, SendReceipt)][before:]
    assert (receipt.epoch, receipt.upto) == (child.outbox.epoch, 1)


def test_rows_of_a_merger_and_marks_against_duplicates_come_back_together() -> None:
    """protocol 3.1, 3.4: what was receipted is neither lost nor counted again by another process."""
    child = Sender("a", SUMS)
    region = region_of(child)
    frames = [child.birth(T0), child.send((T0, T0 + S, "", 3.0)), child.send((T0 + S, T0 + 2 * S, "", 4.0))]
    region.do(came(*(("a", frame) for frame in frames[:2])), T0 + S)
    region.do(Tick(), T0 + 3 * S)
    again = region_of(restored=region.disk.restored())
    again.do(came(*(("a", frame) for frame in frames)), T0 + 5 * S)
    again.do(came(("a", child.send(frontier_us=T0 + 60 * S))), T0 + 6 * S)
    again.do(Tick(), T0 + 9 * S)
    sections = [s for f in (*region.frames, *again.frames) for p in f.groups for s in (*p.sections, *p.late)]
    assert sorted(value for s in sections for value in s.partials.states["sum"].tolist()) == [3.0, 4.0]


def test_a_frame_that_waits_for_its_turn_survives_a_restart_of_the_merger() -> None:
    """protocol 2.2, 3.2: it is receipted, so the child has let it go."""
    child = Sender("a", SUMS)
    region = region_of(child)
    birth, first, second = child.birth(T0), child.send((T0, T0 + S, "", 3.0)), child.send((T0, T0 + S, "", 4.0))
    region.do(came(("a", birth), ("a", second)), T0 + S)
    region.do(Tick(), T0 + 3 * S)
    receipts = [a.receipt for a in region.done if isinstance(a, SendReceipt) and a.receipt.epoch]
    assert receipts[-1].above == ((2, 2),)
    again = region_of(restored=region.disk.restored())
    again.do(came(("a", first), ("a", child.send(frontier_us=T0 + 60 * S))), T0 + 5 * S)
    again.do(Tick(), T0 + 9 * S)
    sections = [s for f in (*region.frames, *again.frames) for p in f.groups for s in (*p.sections, *p.late)]
    assert sum(value for s in sections for value in s.partials.states["sum"].tolist()) == 7.0


def test_a_child_hears_of_a_refused_frame_that_had_waited_for_one_of_another_epoch() -> None:
    """protocol 2.4, 3.6: it may have to state its numbers again."""
    child = Sender("a", SUMS)
    region = region_of(child)
    first, second, third = child.birth(T0), child.send((T0, T0 + S, "", 3.0)), child.birth(T0)
    region.do(came(("a", first), ("a", third), ("a", BadFrame(third.epoch, 1, "not CBOR", b"x"))), T0 + S)
    region.do(Tick(), T0 + 3 * S)
    region.done.clear()
    region.do(came(("a", second)), T0 + 5 * S)
    region.do(Tick(), T0 + 9 * S)
    receipts = {a.receipt.epoch: a.receipt.quarantined for a in region.done if isinstance(a, SendReceipt)}
    assert receipts[third.epoch] == (1,)


def test_the_flush_that_ended_an_epoch_is_known_after_a_restart_of_the_merger() -> None:
    """protocol 1.3: a second device was told that its frame in the place of the flush had been received."""
    child = Sender("a", SUMS)
    region = region_of(child)
    frames = [child.birth(T0), child.send((T0, T0 + S, "", 3.0))]
    twin = copy.deepcopy(child).send((T0 + S, T0 + 2 * S, "", 9.0))
    frames += [child.flush((T0 + S, T0 + 2 * S, "", 4.0)), child.birth(T0)]
    assert (twin.epoch, twin.seq) == (frames[2].epoch, frames[2].seq)
    region.do(came(*(("a", frame) for frame in frames)), T0 + S)
    region.do(Tick(), T0 + 3 * S)
    again = region_of(restored=region.disk.restored())
    again.do(came(("a", frames[2]), ("a", twin)), T0 + 5 * S)
    again.do(Tick(), T0 + 9 * S)
    assert [gap.reason for frame in again.frames for gap in frame.gaps] == [f"quarantined: {AFTER_FLUSH}"]


def test_of_an_epoch_that_has_ended_a_merger_keeps_no_numbers() -> None:
    """protocol 3.4: a child may begin thousands of epochs, each with thousands of keys."""
    child = Sender("a", SUMS)
    region = region_of(child)
    first = [child.birth(T0), child.send((T0, T0 + S, "", 3.0))]
    region.do(came(*(("a", frame) for frame in first)), T0 + S)
    region.do(Tick(), T0 + 3 * S)
    assert [name for name in region.disk.slots if str(first[0].epoch) in name]
    region.do(came(("a", child.birth(T0))), T0 + 5 * S)
    region.do(Tick(), T0 + 9 * S)
    assert not [name for name in region.disk.slots if str(first[0].epoch) in name]
    assert [key.epoch for key in region.machine.parent.dictionaries] == [child.outbox.epoch]


def test_a_row_that_closed_without_a_further_reading_is_sent_once() -> None:
    """protocol 3.1, 4.1: the clock moved the frontier, and the next process must not find the row open."""
    host = gateway_host(sensors=(LIVE,))
    read(host, T0 + S // 2, 1, T0 + S // 2)
    host.do(Tick(), T0 + S)
    assert sum(frame.readings for frame in host.frames) == 0
    for second in range(2, 20):
        host.do(Tick(), T0 + second * S)
    assert sum(frame.readings for frame in host.frames) == 1
    again = gateway_host(host.disk, T0 + 60 * S, sensors=(LIVE,))
    assert sum(frame.readings for frame in again.frames) == 0


def test_rows_that_a_flush_has_sent_while_the_process_goes_on_are_sent_once() -> None:
    """protocol 1.1, 1.3, 3.1: the clock stepped back, and then the process stopped before another reading."""
    host = gateway_host()
    read(host, T0, 1, T0)
    host.do(Tick(), T0 + S)
    host.do(Tick(), T0 - 100 * S)
    assert sum(frame.readings for frame in host.frames) == 1
    again = gateway_host(host.disk, T0 - 90 * S)
    assert sum(frame.readings for frame in again.frames) == 0


# --- a commit under way -----------------------------------------------------------------------------------------------


def test_a_frame_that_waits_in_a_spool_of_an_earlier_version_survives_two_restarts() -> None:
    """protocol 2.2, 3.2: that version kept it with its epoch, whose slot the first commit writes anew."""
    child = Sender("a", SUMS)
    region = region_of(child)
    birth, first, second = child.birth(T0), child.send((T0, T0 + S, "", 3.0)), child.send((T0, T0 + S, "", 4.0))
    region.do(came(("a", birth), ("a", second)), T0 + S)
    region.do(Tick(), T0 + 3 * S)
    state, slots = region.disk.restored().state, region.disk.slots
    found = EPOCH.read(state, "a", birth.epoch)
    assert found is not None
    packed = [(second.seq, WAITING.read(state, "a", birth.epoch, second.seq))]
    for name, value in EPOCH.write(replace(found, waiting=packed), "a", birth.epoch).items():
        slots[name] = pickle.dumps(value)
    for name in WAITING.write(None, "a", birth.epoch, second.seq):
        del slots[name]
    for at_s in (5, 10):
        again = SimulatedHost(
            Merger(NodeSettings("m"), Random(4), region.disk.restored(), grace_us=600 * S), region.disk
        )
        again.do(Tick(), T0 + at_s * S)
    again.do(came(("a", first), ("a", child.send(frontier_us=T0 + 60 * S))), T0 + 15 * S)
    again.do(Tick(), T0 + 19 * S)
    sections = [s for f in again.frames for p in f.groups for s in (*p.sections, *p.late)]
    assert sum(value for s in sections for value in s.partials.states["sum"].tolist()) == 7.0


@pytest.mark.parametrize("before", [False, True])
def test_what_lagged_before_a_stop_of_the_merger_is_not_left_out_after_it(before: bool) -> None:
    """protocol 4.4: nobody could send in the meantime. before: the spool is of a version that wrote such a past."""
    a, b = Sender("a", SUMS), Sender("b", SUMS)
    region = region_of(a, b)
    births = ("a", a.birth(T0)), ("b", b.birth(T0))
    region.do(
        came(*births, ("a", a.send(frontier_us=T0 + 90 * S)), ("b", b.send(frontier_us=T0 + 50 * S))), T0 + 90 * S
    )
    region.do(Tick(), T0 + 92 * S)
    families = region.machine.parent.snapshot_memberships()
    assert all(family.history for family in families.values())
    if before:
        rows = MembershipSlots({}).changes(families)
        region.disk.slots |= {name: pickle.dumps(value) for name, value in rows.items()}
    stored = MembershipSlots.read(region.disk.restored().state)
    assert all(bool(family.history) == before for family in stored.values())
    stopped_us = T0 + 9_000 * S
    again = SimulatedHost(Merger(NodeSettings("m"), Random(4), region.disk.restored(), grace_us=600 * S), region.disk)
    again.do(LowerLink(up=True), stopped_us)
    again.do(Tick(), stopped_us + S)
    assert set(again.machine._frontiers().values()) == {T0 + 50 * S}


def test_while_a_commit_is_under_way_nothing_of_it_leaves_and_no_other_begins() -> None:
    """protocol 3.1, 2.5: a heartbeat names what is committed, and that is not known yet."""
    host = gateway_host()
    host.accepted(T0)
    read(host, T0, 1, T0, token="m1")
    machine, out = host.machine, list[Action]()
    for second in range(9, 20):
        out += machine.handle(Tick(), T0 + second * S)
    (commit,) = (action for action in out if isinstance(action, Commit))
    frames = {(frame.epoch, frame.seq) for frame in commit.frames}
    assert frames
    assert not [a for a in out if isinstance(a, (Beat, Ack))]
    assert not [a for a in out if isinstance(a, Publish) and (a.epoch, a.seq) in frames]
    host.disk.commit(commit)
    after = machine.handle(Committed(), T0 + 20 * S)
    assert Ack(("m1",)) in after
    assert {(a.epoch, a.seq) for a in after if isinstance(a, Publish)} >= frames


def test_a_merger_sends_no_receipt_while_the_commit_is_under_way() -> None:
    """protocol 3.2: a merger receipts what its committed transaction holds."""
    child = Sender("a", SUMS)
    machine = region_of(child).machine
    out = machine.handle(came(("a", child.birth(T0)), token="t"), T0 + S)
    out += machine.handle(Tick(), T0 + 3 * S)
    assert [a for a in out if isinstance(a, Commit)]
    for second in range(4, 9):
        out += machine.handle(came(("a", child.birth(T0))), T0 + second * S)
    assert not [a for a in out if isinstance(a, (SendReceipt, Ack))]
    after = machine.handle(Committed(), T0 + 9 * S)
    assert Ack(("t",)) in after
    assert [a for a in after if isinstance(a, SendReceipt)]


# --- a restart --------------------------------------------------------------------------------------------------------


def test_what_a_gateway_promised_holds_after_a_restart_also_where_no_row_changed() -> None:
    """protocol 4.1, 4.2: an older reading is late, whoever promised."""
    host = gateway_host(sensors=(LIVE,))
    read(host, T0, 1, T0)
    for second in range(1, 30):
        host.do(Tick(), T0 + second * S)
    promised_us = max(host.machine._frontiers().values())
    assert promised_us > T0 + 20 * S
    again = gateway_host(host.disk, T0 + 30 * S, sensors=(LIVE,))
    assert max(again.machine._frontiers().values()) == promised_us
    read(again, T0 + 5 * S, 2, T0 + 30 * S)
    again.do(Tick(), T0 + 31 * S)
    late = [s for f in again.frames for p in f.groups for s in p.late]
    assert [s.partials.start.tolist() for s in late] == [[T0 + 5 * S]]


def test_the_position_of_a_source_stays_over_restarts_without_a_reading() -> None:
    """protocol 3.1: else the second restart would read from the start again, and count twice."""
    host = gateway_host()
    read(host, T0, 1, T0)
    host.do(Tick(), T0 + S)
    for second in (10, 20):
        host = gateway_host(host.disk, T0 + second * S)
        host.do(Tick(), T0 + (second + 2) * S)
        found = SOURCE.read(host.disk.restored().state, "s")
        assert found is not None
        assert found.position == 1


def test_a_gateway_keeps_ended_plans_for_the_horizon_that_its_parent_named() -> None:
    """protocol 3.2, 6.3"""
    host = gateway_host()
    host.accepted(T0)
    host.do(Receipted(Receipt(host.machine.outbox.epoch, JOURNAL, 1, horizon_us=77 * S)), T0)
    host.do(Tick(), T0 + 3 * S)
    assert [state.slicer.horizon_us for state in host.machine.groups.values()] == [77 * S]


def test_the_registers_that_a_frame_changed_are_in_the_spool_with_it() -> None:
    """protocol 3.1, 5.2: the flush of the next process states only what the parent does not have."""
    host = gateway_host(queries=(replace(VISITS, source="s"),))
    host.do(Tick(), T0 + S)
    for second in (2, 9):
        read(host, T0 + second * S, 1, T0 + second * S)
        host.do(Tick(), T0 + second * S + S // 2)
        state, hints = host.disk.restored().state, host.machine.outbox.encoder.hints.snapshot()
        assert hints
        assert {number: AppendOnlyTable.read(f"{REGISTERS}/{number}", state) for number in hints} == hints


def test_what_a_lost_journal_may_have_had_of_a_gateway_ends_behind_its_newest_reading() -> None:
    """protocol 3.7: a flush may have sent it, above the promise."""
    host = gateway_host(sensors=(replace(SENSOR, own_clock=False),))
    read(host, T0 + 5 * S, 1, T0 + 5 * S)
    host.do(Tick(), T0 + 5 * S)
    assert host.machine._frontiers()[QUERY.group] == T0 + 5 * S
    assert host.machine._reached() == {QUERY.group: T0 + 5 * S + 1}


def test_readings_that_came_before_a_sensor_got_another_scale_keep_their_own() -> None:
    """protocol 6.3, 7.1: they wait for the next commit when the definition changes."""
    host = gateway_host()
    read(host, T0, 5, T0)
    host.do(Configured((replace(SENSOR, scale=1),), (QUERY,), (), ("q",)), T0)
    host.do(Tick(), T0 + 9 * S)
    host.do(
        Read("s", Batch(np.ones(0, np.int64), np.ones(0, np.int64), np.ones(0, np.int64), []), clock_us=T0 + 9 * S), T0
    )
    host.do(Tick(), T0 + 19 * S)
    plans = {number: plan for frame in host.frames if frame.define for number, _, plan in frame.define.plans}
    sections = [section for frame in host.frames for part in frame.groups for section in part.sections]
    assert [(plans[each.plan].scale, each.partials.states["sum"].tolist()) for each in sections] == [(0, [5])]


def test_readings_that_wait_for_the_time_are_not_read_again_by_the_next_process() -> None:
    """protocol 3.1, 4.3: they are in the spool, and so is where their source goes on."""
    host = gateway_host()
    host.do(ClockChanged(known=False, boot="b", offset_us=0), T0)
    one = np.ones(1, np.int64)
    host.do(Read("s", Batch(one * S, one, one * 0, [()]), position=7, since_boot=True), T0 + S)
    host.do(Tick(), T0 + 3 * S)
    found = SOURCE.read(host.disk.restored().state, "s")
    assert found is not None
    assert found.position == 7


def test_the_flush_after_a_restart_goes_on_with_the_numbers_of_its_epoch() -> None:
    """protocol 1.3, 2.4: its rows are of the keys that they were, at a parent that knows the epoch."""
    query = replace(QUERY, by=("k",))
    labels = [(("k", "x"),), (("k", "y"),)]
    host, parent = gateway_host(queries=(query,)), ChildFrames(JOURNAL, 60 * S)
    host.accepted(T0)
    for second, series in ((1, 0), (20, 1)):
        one = np.ones(1, np.int64)
        host.do(Read("s", Batch(one * (T0 + second * S), one, one * series, labels), position=1), T0 + second * S)
        host.do(Tick(), T0 + (second + 9) * S if not series else T0 + 21 * S)
    again = gateway_host(host.disk, T0 + 22 * S, queries=(query,))
    again.accepted(T0 + 22 * S)
    sums: dict[str, int] = {}
    for frame, _ in again.disk.frames.values():
        for applied in parent.take("a", frame, T0):
            assert applied.effect.frame is not None, applied.effect.why
            for section in (s for part in applied.effect.frame.groups for s in part.sections):
                for key, total in zip(section.partials.key, section.partials.states["sum"], strict=True):
                    text = applied.dictionary.keys[key]
                    sums[text] = sums.get(text, 0) + int(total)
    assert sums == {"k=x": 1, "k=y": 1}


def test_what_a_merger_promised_holds_after_a_restart() -> None:
    """protocol 4.4: what comes below it leaves as late rows, and is never promised again."""
    child = Sender("a", SUMS)
    region = region_of(child)
    region.do(came(("a", child.birth(T0)), ("a", child.send(frontier_us=T0 + 50 * S))), T0 + S)
    region.do(Tick(), T0 + 3 * S)
    assert max(region.machine._frontiers().values()) == T0 + 50 * S
    again = region_of(restored=region.disk.restored())
    again.do(Tick(), T0 + 5 * S)
    (birth,) = (frame for frame in again.frames if frame.birth is not None)
    assert [part.frontier_us for part in birth.groups] == [T0 + 50 * S]
    again.do(came(("a", child.send((T0 + 7 * S, T0 + 8 * S, "", 3.0)))), T0 + 6 * S)
    again.do(Tick(), T0 + 9 * S)
    parts = [part for frame in again.frames for part in frame.groups]
    assert [len(part.late) for part in parts if part.sections or part.late] == [1]


def test_frames_of_a_lost_epoch_count_once_also_after_a_restart() -> None:
    """protocol 1.2, 3.4."""
    inbox = Inbox(7)
    inbox.take("a", Frame(1, 0, Birth(1 << 32, 7, None, "1")))
    inbox.take("a", Frame(2, 0, Birth(2 << 32, 7, LOST, "1")))
    for seq in (2, 4, 1):
        assert [e.seq for e in inbox.take("a", Frame(1, seq))] == [seq]
    fresh = Inbox(7)
    for key in inbox.epochs:
        state = inbox.snapshot(key)
        assert state is not None
        fresh.restore(key, state, {})
    for box in (inbox, fresh):
        for seq in (1, 2, 4):
            assert box.take("a", Frame(1, seq, gaps=(Gap((), 0, 1, 1, (), "poison"),))) == []
        assert [e.seq for e in box.take("a", Frame(1, 3))] == [3]
        assert box.receipt("a", 1).upto == 5


# --- registers of the epoch before ------------------------------------------------------------------------------------


def test_a_session_open_in_the_epoch_before_holds_until_the_new_one_promises() -> None:
    """protocol 1.2: when a birth has no registers, its predecessor's hold until the first frontier."""
    a, b = Sender("a", VISITS), Sender("b", VISITS)
    root = root_of(a, b)
    opened = a.send((T0, T0 + 1, "", 1.0), frontier_us=T0 + 60 * S)
    (part,) = opened.groups
    root.take("a", replace(opened, groups=(replace(part, registers=((0, T0 + 3 * S),)),)), T0)
    root.take("b", b.send(frontier_us=T0 + 60 * S), T0)
    assert root.step(T0) == []
    root.take("a", a.birth(), T0)  # the next epoch of a; it names the one before
    assert root.step(T0) == []
    root.take("a", a.send((T0 + 3 * S, T0 + 3 * S + 1, "", 2.0), frontier_us=T0 + 61 * S), T0)
    assert [row.values["sum"] for row in root.step(T0)] == [3.0]


def test_a_receipt_reaches_the_spool_with_the_next_commit() -> None:
    """protocol 3.3: what is receipted is deleted, the rest stays."""
    host = gateway_host()
    host.accepted(T0)
    read(host, T0, 1, T0)
    host.do(Tick(), T0 + 9 * S)
    epoch = host.machine.outbox.epoch
    held = [seq for of, seq in host.disk.frames if of == epoch]
    assert len(held) > 1
    journal = host.machine.outbox.journal
    assert journal is not None
    host.do(Receipted(Receipt(epoch, journal, 1)), T0 + 10 * S)
    host.do(Tick(), T0 + 12 * S)
    assert [seq for of, seq in host.disk.frames if of == epoch][: len(held) - 1] == held[1:]


def test_rows_that_a_merger_has_sent_are_not_in_its_spool_any_more() -> None:
    """protocol 3.1, 6.1: another process of it would send them once more, as a delta of its own."""
    child = Sender("a", SUMS)
    host = region_of(child)
    host.do(came(("a", child.birth(T0)), ("a", child.send((T0, T0 + S, "", 5.0)))), T0)
    host.do(Tick(), T0 + 2 * S)
    assert host.machine.book()["open"] == 1
    host.do(came(("a", child.send(frontier_us=T0 + 2 * S))), T0 + 3 * S)
    host.do(Tick(), T0 + 5 * S)
    assert sum(frame.readings for frame in host.frames) == 1
    again = SimulatedHost(
        Merger(NodeSettings("m"), Random(4), host.disk.restored(), host.disk.load, grace_us=600 * S), host.disk
    )
    again.accepted(T0 + 6 * S)
    again.do(Tick(), T0 + 8 * S)
    assert sum(frame.readings for frame in again.frames) == 0
    assert again.machine.book()["open"] == 0


def test_a_merger_without_its_journal_tells_its_parent_that_its_past_is_lost() -> None:
    """protocol 1.2, 3.7: the parent may have leaves of an earlier one."""
    host = region_of()
    birth = host.frames[0].birth
    assert birth is not None
    assert birth.predecessor == LOST


def test_receipts_of_a_merger_name_the_horizon_that_its_parent_named() -> None:
    """protocol 3.2, 6.3: gateways keep ended plans for it."""
    child = Sender("a", SUMS)
    host = region_of(child)
    host.do(Receipted(Receipt(host.machine.outbox.epoch, JOURNAL, 1, horizon_us=77 * S)), T0)
    host.done.clear()
    host.do(came(("a", child.send((T0, T0 + S, "", 5.0)))), T0 + S)
    host.do(Tick(), T0 + 3 * S)
    receipts = [action.receipt for action in host.done if isinstance(action, SendReceipt)]
    assert [receipt.horizon_us for receipt in receipts] == [77 * S]
