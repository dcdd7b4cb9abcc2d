"""When the lander writes a file, states what it has received, answers, and what it forgets (docs/protocol.md 3.2)."""

from __future__ import annotations

import pytest

from edge_agent.algebra.frame import Birth, Receipt
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines import lander as rules
from edge_agent.machines.events import Ack, ChildStatus, SendReceipt, Tick
from edge_agent.machines.lander import (
    STATEMENTS,
    Land,
    Landed,
    Lander,
    LanderAction,
    LanderEvent,
    LanderMessage,
    LanderSettings,
    MessagesArrived,
)

S = 1_000_000
SETTINGS = LanderSettings()
T0 = 1_000 * S


class Folder:
    """A lander whose files are written at once."""

    def __init__(self, received: dict[str, object] | None = None) -> None:
        self.lander = Lander(1, SETTINGS, received)
        self.files: list[Land] = []
        self.receipts: list[SendReceipt] = []
        self.received = dict(received or {})

    def do(self, event: LanderEvent, now_us: int) -> None:
        waiting: list[LanderAction] = self.lander.handle(event, now_us)
        known = len(self.files)
        while waiting:
            action = waiting.pop(0)
            if isinstance(action, Land):
                self.files.append(action)
                assert len(self.files) <= known + 2, "a file without anything new"
                self.received |= action.received
                waiting += self.lander.handle(Landed(), now_us)
            elif isinstance(action, SendReceipt):
                self.receipts.append(action)

    def take(self, epoch: int, *seqs: int, now_us: int, size_bytes: int = 100) -> None:
        messages = (LanderMessage("gw", epoch, seq, (epoch, seq), size_bytes) for seq in seqs)
        self.do(MessagesArrived(tuple(messages)), now_us)

    def born(self, epoch: int, predecessor: tuple[int, int] | None, held: tuple[int, ...], now_us: int) -> None:
        birth = Birth(epoch << 32, 1, predecessor, "test", held=held)
        self.do(MessagesArrived((LanderMessage("gw", epoch, 0, (epoch, 0), 100, birth=birth),)), now_us)

    @property
    def landed(self) -> list[object]:
        return [each for land in self.files for each in land.objects]

    @property
    def stated(self) -> list[tuple[int, int]]:
        """(epoch, first missing seq) of all statements."""
        return [(receipt.epoch, receipt.upto) for land in self.files for _, receipt in land.statement]


def test_files_and_statements_go_on_when_the_clock_steps_back() -> None:
    """protocol 3.2, 8.1: not only once it has caught up again."""
    folder = Folder()
    folder.take(7, 0, now_us=T0)
    known, stated = len(folder.files), len(folder.stated)
    folder.take(7, 1, now_us=T0 - 500 * S)
    assert (len(folder.files), folder.files[-1].objects) == (known + 1, ((7, 1),))
    assert folder.stated[stated:] == [(7, 2)]


def test_a_file_is_written_early_when_much_has_come() -> None:
    """What waits for the next file is in memory."""
    for seqs, size_bytes in ((range(2), SETTINGS.flush_bytes // 2), (range(SETTINGS.flush_frames), 1)):
        folder = Folder()
        folder.do(Tick(), T0)
        known = len(folder.files)
        folder.take(7, *seqs, now_us=T0 + 1, size_bytes=size_bytes)
        assert len(folder.files) == known + 1
        folder.take(7, len(seqs), now_us=T0 + 2)
        assert len(folder.files) == known + 1, "what is in a file counts no longer"


def test_a_heartbeat_is_in_one_file_and_its_epoch_in_no_statement_without_a_frame() -> None:
    """protocol 3.2: a statement about an epoch of which nothing came would say that nothing of it was lost."""
    folder = Folder()
    folder.do(MessagesArrived((LanderMessage("gw", 99, None, "beat", 10),)), T0)
    for i in range(1, 4):
        folder.do(Tick(), T0 + i * SETTINGS.statement_us)
    assert folder.landed == ["beat"]
    assert folder.stated == []


def test_a_duplicate_is_acknowledged_as_soon_as_a_new_frame() -> None:
    """protocol 3.1: the broker holds back what is not acknowledged."""
    folder = Folder()
    folder.take(7, 0, now_us=T0)
    folder.do(Tick(), T0 + S)
    known = len(folder.files)
    folder.do(MessagesArrived((LanderMessage("gw", 7, 0, (7, 0), 100, token=5),)), T0 + S + 1)
    folder.do(Tick(), T0 + S + SETTINGS.flush_us)
    assert len(folder.files) == known + 1


def test_each_epoch_that_was_heard_is_in_two_statements_also_after_a_restart() -> None:
    """protocol 3.2: the file with one of them may be lost."""
    folder = Folder()
    folder.take(7, 0, 1, now_us=T0)
    for _ in range(2):
        for i in range(1, 6):
            folder.do(Tick(), T0 + i * SETTINGS.statement_us)
        assert folder.stated == [(7, 2)] * STATEMENTS
        folder = Folder(folder.received)


def test_a_child_that_comes_online_or_asks_is_answered() -> None:
    """protocol 3.2, 3.7: its receipt may have been lost while it was away."""
    folder = Folder()
    folder.take(7, 0, 1, now_us=T0)
    folder.do(Tick(), T0 + S)
    folder.receipts.clear()
    folder.do(ChildStatus("gw", online=False), T0 + 2 * S)
    assert folder.receipts == []
    folder.do(ChildStatus("gw", online=True), T0 + 2 * S)
    folder.do(Tick(), T0 + 3 * S)
    assert [(each.node, each.receipt.epoch, each.receipt.upto) for each in folder.receipts] == [("gw", 7, 2)]
    folder.receipts.clear()
    for epoch in (7, 99):  # only the latter is a question
        folder.do(MessagesArrived((LanderMessage("gw", epoch, None, "beat", 10),)), T0 + 4 * S)
    folder.do(Tick(), T0 + 6 * S)
    asked = Receipt(99, 1, 0, horizon_us=SETTINGS.horizon_us)
    assert folder.receipts == [SendReceipt("gw", asked)]


def test_a_frame_lands_once_while_its_child_or_the_broker_may_still_send_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.4: epochs in the list of the newest birth, and the newest ones, are not forgotten."""
    monkeypatch.setattr(rules, "UNDER_WAY", 3)
    folder, now_us = Folder(), T0
    folder.born(1, None, (), now_us)
    for epoch in range(2, 30):
        now_us += 4 * SETTINGS.statement_us
        folder.born(epoch, (epoch - 1, 0), (2, epoch - 1), now_us)
        for i in range(1, 5):
            folder.do(Tick(), now_us + i * SETTINGS.statement_us)
    kept = {slot for slot, ranges in folder.received.items() if ranges is not None}
    assert {"gw/2", "gw/26", "gw/27", "gw/28", "gw/29"} <= kept
    assert len(kept) <= 8
    known = len(folder.landed)
    for epoch in (2, 27, 28, 29):
        folder.take(epoch, 0, now_us=now_us + 6 * SETTINGS.statement_us)
    folder.do(Tick(), now_us + 7 * SETTINGS.statement_us)
    assert len(folder.landed) == known
    folder.take(5, 0, now_us=now_us + 8 * SETTINGS.statement_us)  # forgotten; some broker had kept it
    for i in range(1, 3):
        folder.do(Tick(), now_us + 8 * SETTINGS.statement_us + i * S)
    assert folder.received["gw/5"] == [1, []], "it is known again"


class Disk:
    """A lander whose files are on disk once `written` says so."""

    def __init__(self) -> None:
        self.lander, self.now_us = Lander(1, SETTINGS), T0
        assert [type(each) for each in self.lander.handle(Tick(), T0)] == [Land]
        assert self.written() == []

    def hears(self, *messages: LanderMessage, at_us: int) -> list[LanderAction]:
        return self.at(at_us, MessagesArrived(messages))

    def written(self) -> list[LanderAction]:
        return self.lander.handle(Landed(), self.now_us)

    def online(self, at_us: int) -> list[LanderAction]:
        return self.at(at_us, ChildStatus("gw", online=True))

    def at(self, at_us: int, event: LanderEvent) -> list[LanderAction]:
        self.now_us = T0 + at_us
        return self.lander.handle(event, self.now_us)


def message(seq: int | None, *, epoch: int | None = 7, token: object = None) -> LanderMessage:
    return LanderMessage("gw", epoch, seq, (epoch, seq), 100, token=token)


def receipt(upto: int) -> SendReceipt:
    return SendReceipt("gw", Receipt(7, 1, upto, horizon_us=SETTINGS.horizon_us))


def test_no_receipt_names_a_frame_before_its_file_is_on_disk_whoever_asks() -> None:
    """protocol 3.2: a power cut would take the file, and the child would have deleted the frame."""
    disk = Disk()
    assert disk.hears(message(0), at_us=1) == []
    assert disk.online(2) == [], "the frame waits for the next file, and is receipted with it"
    (land,) = disk.hears(message(1), at_us=SETTINGS.flush_us)
    assert isinstance(land, Land)
    assert land.objects == ((7, 0), (7, 1))
    assert disk.online(SETTINGS.flush_us + 1) == [], "the file is being written"
    assert disk.hears(message(2), at_us=SETTINGS.flush_us + 2) == []
    assert disk.written() == [receipt(2)], "without the frame for the next file"
    assert [type(each) for each in disk.at(2 * SETTINGS.flush_us, Tick())] == [Land]
    assert disk.written() == [receipt(3)]
    assert disk.online(2 * SETTINGS.flush_us + 1) == [receipt(3)]
    assert disk.at(2 * SETTINGS.flush_us + 2, Tick()) == [], "once"


def test_a_file_is_written_half_a_second_after_the_last_one_and_an_idle_one_after_a_second() -> None:
    """protocol 8.1"""
    for sent in (message(0), message(None)):
        disk = Disk()
        disk.hears(sent, at_us=1)
        assert disk.at(SETTINGS.flush_us - 1, Tick()) == []
        assert [type(each) for each in disk.at(SETTINGS.flush_us, Tick())] == [Land]
    disk = Disk()
    assert disk.at(SETTINGS.tick_us - 1, Tick()) == []
    assert disk.at(SETTINGS.tick_us, Tick()) == [Land((), {}, T0 + SETTINGS.tick_us)]


def test_statements_are_half_a_minute_apart_and_in_order() -> None:
    """protocol 3.2"""
    folder, nodes = Folder(), ("d", "b", "a", "c")
    for i in (0, 1, 2, SETTINGS.statement_us // S - 1, SETTINGS.statement_us // S):
        each = (LanderMessage(node, 7, i, (node, i), 100) for node in nodes)
        folder.do(MessagesArrived(tuple(each)), T0 + i * S)
        folder.do(Tick(), T0 + i * S + SETTINGS.flush_us)
    assert [[node for node, _ in land.statement] for land in folder.files if land.statement] == [
        ["a", "b", "c", "d"]
    ] * 2
    assert [each.node for each in folder.receipts][-4:] == ["a", "b", "c", "d"]


def test_what_cannot_be_read_lands_without_a_receipt_and_only_what_has_a_token_is_acknowledged() -> None:
    """protocol 2.4, 3.1: the root quarantines it."""
    disk = Disk()
    assert disk.hears(message(None, epoch=None, token=5), message(None), message(0), at_us=1) == []
    (land,) = disk.at(SETTINGS.flush_us, Tick())
    assert isinstance(land, Land)
    assert land.objects == ((None, None), (7, 0), (7, None)), "the heartbeat is last"
    assert disk.written() == [Ack((5,)), receipt(1)]
    disk.hears(message(1), at_us=SETTINGS.flush_us + 1)
    assert [type(each) for each in disk.at(2 * SETTINGS.flush_us, Tick())] == [Land]
    assert disk.written() == [receipt(2)]


def test_a_frame_that_comes_twice_before_the_file_is_written_is_in_it_once() -> None:
    """protocol 3.4"""
    disk = Disk()
    disk.hears(message(0), message(0), at_us=1)
    disk.hears(message(0), at_us=2)
    (land,) = disk.at(SETTINGS.flush_us, Tick())
    assert isinstance(land, Land)
    assert land.objects == ((7, 0),)


def test_late_starts_of_both_days_count() -> None:
    """protocol 3.2: a start of today may be earlier than that of the day before."""
    starts, key = rules.LateStarts(), EpochKey("gw", 7)
    starts.note(key, 500)
    for _ in range(rules.A_DAY):
        starts.stated()
    starts.note(key, 300)
    assert starts.of(key) == 300


def test_an_epoch_is_not_forgotten_before_it_is_in_all_its_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.2, 3.4: else the root would not know which of its frames were in a lost file."""
    monkeypatch.setattr(rules, "UNDER_WAY", 1)
    folder = Folder()
    for epoch in range(1, 9):
        folder.born(epoch, None, (), T0 + epoch * S)
    assert all(folder.received[f"gw/{epoch}"] for epoch in range(1, 9))
    for i in range(1, 4):
        folder.do(Tick(), T0 + i * SETTINGS.statement_us)
    for epoch in (9, 10):
        folder.born(epoch, None, (), T0 + (epoch - 5) * SETTINGS.statement_us)
    folder.do(Tick(), T0 + 6 * SETTINGS.statement_us)
    assert {slot for slot, ranges in folder.received.items() if ranges} == {"gw/9", "gw/10"}


def test_the_epoch_before_the_one_that_is_born_is_not_forgotten_however_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 1.4, 3.4: frames of the new one wait for its last frame, and it may come again."""
    monkeypatch.setattr(rules, "UNDER_WAY", 1)
    slots: dict[str, object] = {f"gw/{epoch}": [1, []] for epoch in (10, 9, 8, 11, 12)}  # in the order of their texts
    folder = Folder(slots)
    for i in range(4):
        folder.do(Tick(), T0 + i * SETTINGS.statement_us)
    folder.born(13, (9, 0), (), T0 + 5 * SETTINGS.statement_us)
    folder.do(Tick(), T0 + 6 * SETTINGS.statement_us)
    assert {slot for slot, ranges in folder.received.items() if ranges} == {"gw/9", "gw/12", "gw/13"}
