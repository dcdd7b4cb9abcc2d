"""Frames that never came, because a flush of a second device has taken their numbers (docs/protocol.md 1.4)."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from edge_agent.algebra.frame import Flush, Frame
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.losses.loss_records import LATE_US
from tests.support.machines.scripted_child import GRACE, JOURNAL, SUM, Sender
from tests.support.machines.simulated_host import S

QUERY = Query("q", 1, "s", Tumbling(5 * S), SUM, lateness_us=0)
FRONTIER = 10_000 * S


class Devices:
    """A parent, and a gateway with a second device of its name. Both had the same spool behind the birth."""

    def __init__(self) -> None:
        self.parent, self.first = ChildFrames(JOURNAL, GRACE), Sender("a", QUERY)
        self.next = Sender("a", QUERY)  # the next epoch of the second one
        self.next.outbox.random.seed(2)
        self.birth = self.next.birth()
        assert self.starts(self.first.birth(FRONTIER)) == []
        self.second = copy.deepcopy(self.first)

    def rows(self, *, late: bool = False) -> Frame:
        """The next frame of the first device."""
        start_us = FRONTIER - 100 * S if late else FRONTIER
        return self.first.send((start_us, start_us + 5 * S, "", 1.0), late=late)

    def flush(self) -> Frame:
        """The flush of the second device, behind the birth."""
        frame = self.second.flush((FRONTIER, FRONTIER + 5 * S, "", 1.0))
        return replace(frame, flush=Flush(0, self.birth.epoch))

    def begin(self, *, last: int, flush: int | None) -> None:
        """The second device begins its next epoch."""
        assert self.birth.birth is not None
        predecessor = self.first.outbox.epoch, last
        self.starts(replace(self.birth, birth=replace(self.birth.birth, predecessor=predecessor, flush=flush)))
        assert self.parent.inbox.current == {"a": self.birth.epoch}

    def starts(self, frame: Frame) -> list[int]:
        """Where the losses begin that are declared when a frame comes."""
        applied = self.parent.take("a", frame, FRONTIER + 60 * S)
        return [gap.start_us for each in applied for gap in each.losses]


def test_late_rows_of_a_frame_in_the_place_of_a_flush_are_lost_if_only_what_follows_it_comes() -> None:
    """Found by seed 89995 of the simulation: its device forgot it for the receipt of the flush. A row was complete."""
    devices = Devices()
    devices.rows(late=True)
    assert devices.starts(devices.flush()) == []
    assert devices.starts(devices.rows()) == [FRONTIER - LATE_US]


def test_late_rows_of_a_frame_in_the_place_of_a_refused_flush_are_lost_too() -> None:
    devices = Devices()
    assert devices.starts(devices.rows()) == []
    devices.rows(late=True)
    flush = devices.flush()
    devices.starts(flush)
    assert devices.starts(replace(flush, seq=flush.seq + 1)) == [FRONTIER - LATE_US]


@pytest.mark.parametrize("flushed", [False, True])
def test_they_are_lost_also_if_what_follows_comes_in_the_next_epoch_of_the_second_device(*, flushed: bool) -> None:
    """Without a flush no number of the first device is taken: all that it sends behind comes."""
    devices = Devices()
    if flushed:
        devices.rows(late=True)
        devices.starts(devices.flush())
    devices.begin(last=int(flushed), flush=0 if flushed else None)
    assert devices.starts(devices.rows()) == [FRONTIER - LATE_US * flushed]


def test_what_had_waited_behind_a_flush_when_its_epoch_ended_shows_it_too() -> None:
    devices = Devices()
    devices.rows(late=True)
    devices.starts(devices.flush())
    devices.rows()
    assert devices.starts(devices.rows()) == [], "it waits for the one before it"
    assert devices.parent.inbox.waits("a")
    assert devices.birth.birth is not None
    birth = replace(devices.birth.birth, predecessor=(devices.first.outbox.epoch, 1), flush=0)
    assert devices.starts(replace(devices.birth, birth=birth)) == [FRONTIER - LATE_US]


def test_a_frame_that_comes_in_the_place_of_a_flush_is_lost_from_where_it_begins() -> None:
    devices = Devices()
    own = devices.rows(late=True)
    devices.starts(devices.flush())
    assert devices.starts(own) == [FRONTIER - 100 * S]
