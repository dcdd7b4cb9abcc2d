"""The rhythm of a node: epochs, commits, heartbeats (docs/protocol.md 1.1, 1.3, 2.5, 3.1)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_agent.algebra.frame import Flush, Receipt
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.checkpoint.slots import SOURCE
from edge_agent.machines.events import (
    Ack,
    Beat,
    Command,
    Commit,
    Configured,
    Damaged,
    Failed,
    LinkUp,
    Note,
    Publish,
    Read,
    Receipted,
    Sent,
    Tick,
)
from edge_agent.machines.gateway.source import same_position
from edge_agent.machines.node import FAILED, QUIET_US
from tests.support.machines.simulated_host import JOURNAL, QUERY, SENSOR, T0, S, gateway_host, read


def test_a_new_process_begins_an_epoch_and_ends_the_one_in_the_spool_by_a_flush() -> None:
    """protocol 1.1, 1.3: what was open leaves once, as the last frames of the old epoch."""
    host = gateway_host()
    read(host, T0, 5, T0)
    host.do(Tick(), T0 + S)
    assert [f.seq for f in host.frames] == [0]
    again = gateway_host(host.disk, T0 + 5 * S)
    numbers, flush, birth = again.frames[:3]
    assert (numbers.epoch, numbers.seq, numbers.flush) == (host.frames[0].epoch, 1, Flush(0, birth.epoch))
    assert (numbers.define is not None, numbers.groups) == (True, ()), "for frames that were never published (3.7)"
    assert (flush.epoch, flush.seq, flush.flush) == (host.frames[0].epoch, 2, Flush(0, birth.epoch))
    assert int(flush.groups[0].sections[0].partials.states["sum"][0]) == 5
    assert birth.birth is not None
    assert (birth.birth.predecessor, birth.birth.flush) == ((flush.epoch, 2), 0)
    assert [leaf.epoch for members in birth.members for leaf in members.leaves] == [birth.epoch]
    again.do(Tick(), T0 + 20 * S)
    rows = [s for f in again.frames[3:] for p in f.groups for s in p.sections]
    assert rows == []


def test_a_clock_that_steps_back_keeps_no_frame_waiting() -> None:
    """protocol 3.3, 4.1: by the clock, a frame that was published lies in the future, and its receipt may be lost."""
    host = gateway_host()
    host.accepted(T0)
    read(host, T0, 5, T0)
    for second in (9, 10, 11):
        host.do(Tick(), T0 + second * S)
    published = [(a.epoch, a.seq) for a in host.done if isinstance(a, Publish)]
    assert len(published) > 1
    for key in published:
        host.do(Sent(*key), T0 + 11 * S)
    host.done.clear()
    host.do(Tick(), T0 - 1_000 * S)
    assert {(a.epoch, a.seq) for a in host.done if isinstance(a, Publish)} >= {*published}


def test_the_command_rebirth_begins_an_epoch_that_says_everything_anew() -> None:
    """protocol 2.4, 3.2: its birth may be what is lost, and what is open stays open."""
    host = gateway_host()
    read(host, T0, 5, T0)
    host.do(Tick(), T0 + S)
    first = host.machine.outbox.epoch
    host.do(Command("rebirth"), T0 + 2 * S)
    host.do(Tick(), T0 + 3 * S)
    births = [frame for frame in host.frames if frame.birth is not None]
    assert [frame.epoch for frame in births] == [first, host.machine.outbox.epoch]
    assert births[1].birth is not None
    assert births[1].birth.predecessor == (first, host.frames[host.frames.index(births[1]) - 1].seq)
    assert [leaf.node for members in births[1].members for leaf in members.leaves] == ["a"]
    before = host.frames[host.frames.index(births[1]) - 1]
    assert before is not births[0], "frames of the first epoch may wait for its numbers"
    assert before.define is not None
    assert [group for _, group in before.define.groups] == [QUERY.group]


def test_a_parent_that_quarantined_a_receipted_frame_is_told_everything_anew() -> None:
    """protocol 2.4, 3.2: the frame may have been the one that defined numbers."""
    host = gateway_host()
    host.accepted(T0)
    read(host, T0, 5, T0)
    host.do(Tick(), T0 + 9 * S)
    box, first = host.machine.outbox, host.machine.outbox.epoch
    receipt = Receipt(first, JOURNAL, box.seq)
    host.do(Receipted(receipt), T0 + 9 * S)
    assert box.epoch == first
    host.do(Receipted(replace(receipt, quarantined=(1,))), T0 + 9 * S)
    assert box.epoch != first
    birth = next(frame for frame in host.frames if frame.epoch == box.epoch)
    assert [leaf.node for members in birth.members for leaf in members.leaves] == ["a"]


def test_a_damaged_frame_of_the_epoch_in_use_begins_another_one_and_that_of_an_earlier_one_does_not() -> None:
    """protocol 2.4, 3.6: numbers of the epoch in use may be undefined for what follows."""
    host = gateway_host()
    host.accepted(T0)
    read(host, T0, 5, T0)
    host.do(Tick(), T0 + S)
    first = host.machine.outbox.epoch
    host = gateway_host(host.disk, T0 + 2 * S)
    host.accepted(T0 + 2 * S)
    host.do(Tick(), T0 + 3 * S)
    second = host.machine.outbox.epoch
    host.do(Damaged(first, 0), T0 + 4 * S)
    host.do(Tick(), T0 + 5 * S)
    assert host.machine.outbox.epoch == second != first
    host.do(Damaged(second, 0), T0 + 6 * S)
    host.do(Tick(), T0 + 7 * S)
    assert host.machine.outbox.epoch != second


def test_a_clock_that_is_a_little_behind_the_last_commit_puts_off_none() -> None:
    """protocol 3.1: a second of slewing is no step, and nothing is kept in memory until it is over."""
    host = gateway_host()
    host.do(Tick(), T0 + 10 * S)
    assert any(isinstance(each, Commit) for each in host.do(Tick(), T0 + 10 * S - S // 2))


def test_a_backward_step_of_the_clock_begins_an_epoch() -> None:
    """protocol 1.1."""
    host = gateway_host()
    first = host.machine.outbox.epoch
    host.do(Tick(), T0 + S)
    assert host.machine.outbox.epoch == first
    out = host.do(Tick(), T0 - 3_600 * S)
    assert any(isinstance(a, Note) and a.name == "clock.stepped_back" for a in out)
    assert host.machine.outbox.epoch != first
    assert host.frames[-1].birth is not None


def test_readings_that_a_clock_ahead_made_late_go_before_the_promise_that_is_made_anew() -> None:
    """protocol 4.1: else a parent that hears the birth first says that a row without them is complete."""
    host = gateway_host()
    read(host, T0 + 3_600 * S, 1, T0 + 3_600 * S)  # an hour ahead
    host.do(Tick(), T0 + 3_601 * S)
    read(host, T0 + S, 5, T0 + 3_601 * S + 1)  # of a source whose times are right
    host.do(Tick(), T0 + 60 * S)  # the clock is set
    (born,) = (at for at, frame in enumerate(host.frames) if frame.birth is not None and at)
    ((promise_us,),) = ({part.frontier_us for part in frame.groups} for frame in host.frames[born : born + 1])
    assert promise_us is not None
    assert promise_us > T0 + S
    late = [at for at, frame in enumerate(host.frames) if any(part.late for part in frame.groups)]
    assert late
    assert max(late) < born


def test_messages_are_acknowledged_after_the_commit_and_an_early_one_comes_when_they_wait() -> None:
    """protocol 3.1."""
    host = gateway_host()
    assert not any(isinstance(a, Ack) for a in read(host, T0, 1, T0 + 1, token="m1"))
    assert host.machine.wake_us <= T0 + 1 + QUIET_US
    out = host.do(Tick(), T0 + 1 + QUIET_US)
    kinds = [type(a) for a in out]
    assert Ack((("m1"),)) in out
    assert kinds.index(Commit) < kinds.index(Ack)


def test_what_a_broker_may_repeat_is_committed_also_where_no_reading_is_newer() -> None:
    """protocol 3.1: the position of a sensor at a broker holds arrays, and readings of one time come one by one."""
    host = gateway_host()
    host.accepted(T0)
    one = np.ones(1, np.int64)
    for number in range(1, 5):
        position = {"id": np.arange(number, dtype=np.uint16), "crc": np.arange(number, dtype=np.uint32)}
        host.do(Read("s", Batch(one * T0, one, one * 0, [()]), position=position), T0 + number * S)
        host.do(Tick(), T0 + number * S)
        host.do(Tick(), T0 + number * S + S // 2)
        ((_, stored),) = SOURCE.each(host.disk.restored().state)
        assert len(stored.position["id"]) == number
    assert host.machine.sources["s"].changed() is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (None, None, True),
        ([1, 2], [1, 2], True),
        ([1, 2], [1, 3], False),
        ([1, 2], (1, 2, 3), False),
        ({"id": np.arange(3)}, {"id": np.arange(3)}, True),
        ({"id": np.arange(3)}, {"id": np.arange(4)}, False),
        ({"id": np.arange(3)}, {"id": np.array([0, 1, 5])}, False),
        ({"id": np.arange(3)}, {"crc": np.arange(3)}, False),
        ([np.arange(2), 7], [np.arange(2), 7], True),
        (np.arange(2), None, False),
        (1, "1", False),
    ],
)
def test_positions_are_compared_with_their_arrays(one: object, other: object, same: bool) -> None:
    assert same_position(one, other) == same
    assert same_position(other, one) == same


def test_a_function_that_failed_is_told_upward_once_and_no_reading_counts_as_lost() -> None:
    """protocol 3.5: a gap record of no group touches no window."""
    host = gateway_host()
    why = "lift of load (package plant 1.0): ValueError: no"
    host.do(Failed(why), T0 + 1)
    read(host, T0, 1, T0 + 2)
    host.do(Tick(), T0 + 5 * S)
    (gap,) = (gap for frame in host.frames for gap in frame.gaps)
    assert (gap.groups, gap.readings, gap.nodes, gap.reason, gap.detail) == ((), 0, ("a",), FAILED, why)
    assert gap.end_us > gap.start_us


def test_a_heartbeat_names_the_last_seq_and_the_committed_frontier() -> None:
    """protocol 2.5: it changes nothing but the frontier and is sent only when no frame was."""
    host = gateway_host()
    host.do(LinkUp(), T0)
    host.do(Receipted(Receipt(0, 9, 0)), T0)
    read(host, T0, 1, T0)
    for i in range(1, 9):
        host.do(Tick(), T0 + i * S)
    beats = [a.heartbeat for a in host.done if isinstance(a, Beat)]
    assert beats
    assert beats[-1].last_seq == host.frames[-1].seq
    assert dict(beats[-1].frontiers)[0] == T0 + 8 * S


def test_an_idle_sensor_moves_time_forward_after_its_timeout() -> None:
    """protocol 4.1."""
    host = gateway_host()
    read(host, T0 + S // 2, 1, T0 + S // 2)
    host.do(Tick(), T0 + 2 * S)
    assert not [s for f in host.frames for p in f.groups for s in p.sections]
    host.do(Tick(), T0 + 4 * S)
    (rows,) = [s for f in host.frames for p in f.groups for s in p.sections]
    assert rows.partials.end.tolist() == [T0 + S]


def test_a_query_of_a_new_group_is_served_after_the_readings_that_went_by_without_it() -> None:
    """protocol 6.3: no window may be said to hold what was read before anybody asked for it."""
    host = gateway_host()
    read(host, T0 + 5, 1, T0)
    other = Query("later", 1, "s", Tumbling(10 * S), (Aggregate("sum", "sum"),), where="value > 0", lateness_us=0)
    host.do(Configured((SENSOR,), (QUERY, other)), T0 + S // 2)
    host.do(Tick(), T0 + S)
    said = [serving for f in host.frames for m in f.members for serving in m.serving]
    assert {serving.query: serving.start_from_us for serving in said} == {"q": None, "later": T0 + 6}
