"""Frames that were never published move to a new journal of the parent, also from before a restart."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from edge_agent.algebra.frame import (
    DAMAGED,
    IN_DOUBT,
    JOURNAL_LOST,
    Frame,
    Receipt,
)
from edge_agent.machines.events import (
    Command,
    Configured,
    LinkDown,
    LinkUp,
    Receipted,
    Tick,
)
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.uplink.journal_change import MOVED_AT_ONCE
from tests.support.machines.journal_changes import NEW, at_work, gaps, readings
from tests.support.machines.simulated_host import QUERY, SENSOR, T0, Disk, S, SimulatedHost, gateway_host, read


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
        if restarted and i == 3 * seconds // 4:  # the first commit does not move all of the first epoch
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


def test_frames_that_define_numbers_again_leave_the_spool_with_those_that_they_explain() -> None:
    """protocol 1.5, 3.7: the next process would send them to the new parent, as frames of an epoch without a birth."""
    host, old, seconds = many_unsent()
    for i in range(1, 6):
        host.do(Tick(), T0 + (seconds + i) * S)
    assert not any(epoch in old for epoch, _ in host.disk.frames)
    assert host.machine.outbox.leaving == 0


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
    undefine(host.disk, old)
    before = readings([frame for (epoch, _), (frame, _) in host.disk.frames.items() if epoch in old])
    again = started_again(host, seconds)
    assert not any(epoch in old for epoch, _ in host.disk.frames)
    lost = sum(max(gap.readings, 0) for gap in gaps(again.frames) if gap.reason == IN_DOUBT)
    assert lost == before > MOVED_AT_ONCE // 2
    assert JOURNAL_LOST in {gap.reason for gap in gaps(again.frames)}, "a parent may have had more of the epoch before"


def undefine(disk: Disk, epochs: set[int]) -> None:
    """The last frame of these epochs says no longer what their numbers mean."""
    last = max(key for key in disk.frames if key[0] in epochs)
    frame, marked = disk.frames[last]
    assert frame.define is not None
    disk.frames[last] = replace(frame, define=None), marked


def test_what_a_restart_finds_in_doubt_in_a_move_to_another_parent_is_no_loss_of_a_journal() -> None:
    """protocol 1.5, 3.7: the former parent has what it counted; a record of more would mark windows since the start."""
    host, seconds = gateway_host(settings=NodeSettings("a", parents=("A",))), MOVED_AT_ONCE + 30
    host.accepted(T0)
    for i in range(seconds):
        read(host, T0 + i * S, 1, T0 + i * S)
        host.do(Tick(), T0 + i * S + S // 2)
        if i == 5:
            host.do(LinkDown(), T0 + i * S + S // 2)
    old, settings = {epoch for epoch, _ in host.disk.frames}, NodeSettings("a", parents=("B",))
    host = gateway_host(host.disk, T0 + seconds * S, settings=settings)
    assert host.machine.outbox.leaving in old, "one commit does not move all"
    undefine(host.disk, {host.machine.outbox.leaving})
    again = gateway_host(host.disk, T0 + (seconds + 1) * S, settings=settings)
    again.do(Tick(), T0 + (seconds + 3) * S)
    reasons = {gap.reason for gap in gaps(again.frames)}
    assert IN_DOUBT in reasons
    assert JOURNAL_LOST not in reasons


def test_frames_of_the_epoch_before_a_rebirth_move_too() -> None:
    """protocol 3.7, 2.4: this process knows what their numbers mean."""
    host = at_work(published=True)
    host.do(LinkDown(), T0 + 6 * S)
    sent = readings([frame for frame, marked in host.disk.frames.values() if marked])
    for at in range(6, 16):
        read(host, T0 + at * S, 1, T0 + at * S)
        host.do(Tick(), T0 + at * S + S // 2)
        if at == 10:
            host.do(Command("rebirth"), T0 + at * S + S // 2)
    assert len({epoch for epoch, _ in host.disk.frames}) == 2
    host.do(Receipted(Receipt(host.machine.outbox.epoch, NEW, 0)), T0 + 16 * S)
    host.do(Tick(), T0 + 30 * S)
    spooled = [frame for frame, _ in host.disk.frames.values()]
    assert sum(gap.readings for gap in gaps(spooled) if gap.reason == IN_DOUBT and gap.readings > 0) == sent
    assert readings(spooled) == 16 - sent
    book = host.machine.book()
    assert (book["sent"], book["lost"]) == (16 - sent, sent), "protocol 9.1: what moved counts once"


def test_frames_of_an_epoch_whose_birth_was_published_are_in_doubt_if_nothing_defines_its_numbers() -> None:
    """protocol 3.7: not taken for frames that were damaged, whose readings nobody knows."""
    host = at_work(published=True)
    host.do(LinkDown(), T0 + 6 * S)
    for at in range(6, 10):
        read(host, T0 + at * S, 1, T0 + at * S)
        host.do(Tick(), T0 + at * S + S // 2)
    (old,) = {epoch for epoch, _ in host.disk.frames}
    for at in (10, 11):  # the first of these processes knows its numbers from its slots
        host = gateway_host(host.disk, T0 + at * S)
        host.do(Tick(), T0 + at * S + S // 2)
    for key, (frame, marked) in host.disk.frames.items():
        if key[0] == old and frame.flush is not None:
            host.disk.frames[key] = replace(frame, define=None), marked
    before = readings([frame for (epoch, _), (frame, _) in host.disk.frames.items() if epoch == old])
    host.do(Receipted(Receipt(host.machine.outbox.epoch, NEW, 0)), T0 + 12 * S)
    host.do(Tick(), T0 + 30 * S)
    spooled = [frame for frame, _ in host.disk.frames.values()]
    assert sum(max(gap.readings, 0) for gap in gaps(spooled) if gap.reason == IN_DOUBT) == before > 0
    book = host.machine.book()
    assert (book["sent"], book["lost"]) == (readings(spooled), before), "protocol 9.1: each once"
    assert not [gap for gap in gaps(spooled) if gap.reason == DAMAGED]
