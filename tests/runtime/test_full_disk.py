"""A spool that cannot commit: what was asked for after the commit waits, in its order (docs/protocol.md 3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from edge_agent.algebra.frame import Birth, Define, Frame, Gap, Receipt
from edge_agent.config import topics
from edge_agent.errors import PortError
from edge_agent.machines.events import (
    Ack,
    Commit,
    Committed,
    Event,
    Note,
    Publish,
    Quarantine,
    Refused,
    Relieve,
    Relieved,
    SendReceipt,
    Sent,
)
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.ports.mqtt.link import Taken
from edge_agent.runtime.action_executor import RETRY_US, ActionExecutor
from edge_agent.runtime.region import RegionLoop
from edge_agent.wire import frames, receipts
from tests.support.ports.small_disk import small_disk
from tests.support.runtime.scripted import ScriptedClock, ScriptedConnection, parts

S = 1_000_000
EPOCH = 5


class Region:
    """A merger's process on two brokers, one of children, with one child "a"."""

    def __init__(self, folder: Path) -> None:
        merger = Merger(NodeSettings("m", commit_interval_us=S), Random(1), grace_us=60 * S)
        made, self.spool = parts(merger, folder, "root", "region")
        assert isinstance(made.clock, ScriptedClock)
        self.clock, self.journal = made.clock, merger.journal
        self.lower = ScriptedConnection("m")
        self.loop = RegionLoop(made, restored={}, lower=self.lower)

    def hears(self, frame: Frame, token: int) -> None:
        self.lower.message(topics.frames("a", "m"), frames.encode(frame), token)
        self.turn()

    def turn(self, seconds: float = 0.0) -> None:
        self.clock.pass_s(seconds)
        self.loop.turn(0.0)

    def stuck(self) -> bool:
        return self.loop.executor.stuck

    def birth(self) -> Frame:
        return Frame(EPOCH, 0, Birth(EPOCH << 32, self.journal, None, "1"))

    def receipts(self) -> list[int]:
        """`upto` of every receipt for the child's epoch."""
        decoded = [receipts.decode(payload) for payload in self.lower.sent(topics.ack("a"))]
        return [receipt.upto for receipt in decoded if receipt.epoch == EPOCH]


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    made = Region(tmp_path)
    made.turn()
    yield made
    made.loop.close()
    made.spool.close()


def test_a_merger_acknowledges_and_receipts_a_frame_after_the_commit_that_holds_it(region: Region) -> None:
    """protocol 3.1, 3.2: neither on arrival, nor while the commit waits for its disk."""
    region.spool.full = True
    region.hears(region.birth(), token=7)
    region.turn(2.0)
    assert region.loop.executor.stuck
    for _ in range(3):
        region.turn(2.0)
        assert (region.lower.acked, region.receipts()) == ([], [])
    region.spool.full = False
    region.turn(2.0)
    assert region.lower.acked == [7]
    assert region.receipts() == [1]


def test_what_a_merger_acknowledged_is_in_its_spool(region: Region) -> None:
    """protocol 3.1: the marks against duplicates are in the transaction that the acknowledgement waits for."""
    region.hears(region.birth(), token=7)
    assert region.lower.acked == []
    region.turn(2.0)
    assert region.lower.acked == [7]
    found = region.spool._file.db.execute("SELECT name FROM slots").fetchall()
    assert any(f"a/{EPOCH}" in name for (name,) in found)


class Executed:
    """An executor alone, with its spool and its connection upward."""

    def __init__(self, folder: Path) -> None:
        merger = Merger(NodeSettings("m"), Random(1), grace_us=60 * S)
        made, self.spool = parts(merger, folder, "root")
        assert isinstance(made.up, ScriptedConnection)
        self.up, self.acknowledged = made.up, list[object]()
        self.executor = ActionExecutor(made, dict, self.acknowledged.extend)

    def perform(self, *actions: Commit | Relieve | Publish | Ack | SendReceipt | Note | Quarantine) -> list[Event]:
        return [event for action in actions for event in self.executor.perform(action, S)]


@pytest.fixture
def executed(tmp_path: Path) -> Iterator[Executed]:
    made = Executed(tmp_path)
    yield made
    made.spool.close()


def test_a_commit_that_failed_is_not_reported_and_what_came_after_it_is_done_in_order(executed: Executed) -> None:
    """protocol 3.1, 3.3: nothing that was asked for is forgotten, and nothing of it is done before the commit."""
    receipt = Merger(NodeSettings("m"), Random(1), grace_us=S).parent.inbox.receipt("a", EPOCH)
    executed.perform(Commit(frames=(Frame(1, 0),)))
    executed.spool.full = True
    after = (Publish(1, 1), Ack(("t",)), SendReceipt("a", receipt), Quarantine("a", "bad", b"x"))
    assert executed.perform(Commit({"n": 1}, frames=(Frame(1, 1),)), *after) == [Refused()]
    assert executed.executor.retry(S + RETRY_US) == [Refused()]  # still full
    assert (executed.up.published, executed.acknowledged) == ([], [])
    executed.spool.full = False
    assert executed.executor.retry(S + RETRY_US + 1) == []  # not so soon again
    assert executed.executor.retry(S + 2 * RETRY_US) == [Committed()]
    assert not executed.executor.stuck
    assert [topic for topic, _ in executed.up.published] == [topics.frames("m", "root"), topics.ack("a")]
    assert executed.acknowledged == ["t"]
    assert executed.spool.frames == 2


def test_a_clock_that_is_set_back_does_not_put_off_the_next_try(executed: Executed) -> None:
    """protocol 3.1, 4.1: a commit failed while the clock was an hour ahead."""
    executed.spool.full = True
    executed.executor.perform(Commit({"n": 1}), 3_600 * S)
    executed.spool.full = False
    assert executed.executor.retry(S) == [Committed()]


def test_frames_of_earlier_commits_are_published_while_one_is_stuck(executed: Executed) -> None:
    """protocol 3.1: they are durable, and their receipts are what makes room."""
    executed.perform(Commit(frames=(Frame(1, 0),)))
    executed.spool.full = True
    executed.perform(Commit(frames=(Frame(1, 1),)), Publish(1, 0), Publish(1, 1))
    assert [frames.decode(payload) for _, payload in executed.up.published] == [Frame(1, 0)]


def test_what_makes_room_goes_ahead_and_while_it_cannot_the_commit_waits(executed: Executed) -> None:
    """protocol 3.3: what it marks as sent is marked before the machine hears of it."""
    executed.perform(Commit(frames=(Frame(1, 0), Frame(1, 1))))
    executed.spool.full = True
    executed.perform(Commit({"n": 1}))
    assert executed.perform(Relieve(((1, 0),), ((1, 1),))) == []
    assert executed.executor.retry(S + RETRY_US) == []
    assert executed.spool.frames == 2
    executed.spool.full = False
    assert executed.executor.retry(S + 2 * RETRY_US) == [Relieved(((1, 1),)), Committed()]
    assert (executed.spool.frames, list(executed.spool.unsent())) == (1, [])


def test_actions_behind_a_second_failed_commit_wait_on(executed: Executed) -> None:
    """protocol 3.1: of what was held back, all that stands behind another commit stays behind it."""
    executed.spool.full = True
    executed.perform(Commit({"n": 1}, frames=(Frame(1, 0),)), Publish(1, 0))
    executed.spool.full = False
    executed.executor.retry(S + RETRY_US)
    assert len(executed.up.published) == 1
    executed.spool.full = True
    executed.perform(Commit({"n": 2}), Ack(("t",)))
    executed.executor.retry(2 * S + 2 * RETRY_US)
    assert executed.acknowledged == []


def test_a_merger_drains_on_a_full_disk_and_then_takes_what_its_children_send(tmp_path: Path) -> None:
    """protocol 3.1 to 3.3: no process ends, no room is needed, and nothing is acknowledged before it is durable."""
    with small_disk(tmp_path / "disk", 8 * 1024 * 1024) as disk:
        region = Region(disk.folder)
        parent = region.loop.machine.outbox
        up = region.loop.up
        assert isinstance(up, ScriptedConnection)
        receipt = Receipt(parent.epoch, 99, 0)
        region.turn()
        up.message(topics.ack("m"), receipts.encode(receipt))
        region.turn(2.0)
        seq = 0
        while not region.stuck():  # each child's birth fills some more
            seq += 1
            assert seq < 500
            if seq == 40:
                disk.fill()
            texts = tuple(f'{{"id":"q{seq}-{n}","pad":"{"x" * 900}"}}' for n in range(20))
            birth = Birth((EPOCH + seq) << 32, region.journal, None, "1")
            child = f"a-{seq}"
            define = Define(queries=texts)
            region.lower.message(topics.frames(child, "m"), frames.encode(Frame(EPOCH + seq, 0, birth, define)), seq)
            region.turn(2.0)
        acked = list(region.lower.acked)
        assert seq not in acked
        for _ in range(50):
            region.turn(2.0)
            sent = [frames.envelope(payload).seq for payload in up.sent(topics.frames("m", "root"))]
            upto = max(number for number in sent if number is not None) + 1
            up.message(topics.ack("m"), receipts.encode(Receipt(parent.epoch, 99, upto)))
        assert not region.stuck()
        assert region.lower.acked[-1] == seq
        assert disk.free_bytes < 1024 * 1024  # by which the log was longer than its reserve when the disk filled
        region.loop.close()
        region.spool.close()


def test_a_frame_that_a_stuck_commit_replaces_by_its_gap_record_is_not_published_before(executed: Executed) -> None:
    """protocol 3.1, 3.5: its readings would count although they are declared lost."""
    executed.perform(Commit(frames=(Frame(1, 0), Frame(1, 1))))
    executed.spool.full = True
    lost = Gap((), 0, 1, 0, (), "quota", 1, "")
    assert executed.perform(Commit(replace=(Frame(1, 1, gaps=(lost,)),)), Publish(1, 0), Publish(1, 1)) == [Refused()]
    assert len(executed.up.published) == 1
    executed.spool.full = False
    assert executed.executor.retry(S + RETRY_US) == [Committed()]
    ((_, first), (_, second)) = executed.up.published
    assert (first, second) == (frames.encode(Frame(1, 0)), frames.encode(Frame(1, 1, gaps=(lost,))))


def test_a_frame_that_cannot_be_published_takes_no_place_among_those_in_flight(
    executed: Executed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 3.3: it is sent again later, and those behind it go on."""
    executed.perform(Commit(frames=(Frame(1, 0),)))

    def refuses(*_: object, **__: object) -> int:
        raise PortError("too large for the broker")

    monkeypatch.setattr(executed.up, "publish", refuses)
    assert executed.perform(Publish(1, 0)) == [Sent(1, 0)]


def test_an_answer_on_a_new_connection_is_not_for_what_was_on_its_way_on_the_lost_one(executed: Executed) -> None:
    """protocol 3.3: numbers of publishes begin again with the connection."""
    executed.perform(Commit(frames=(Frame(1, 0),)), Publish(1, 0))
    executed.executor.void()
    assert executed.executor.taken(Taken(1, 0, "")) == []
    executed.perform(Publish(1, 0))
    assert executed.executor.taken(Taken(2, 0, "")) == [Sent(1, 0)]
