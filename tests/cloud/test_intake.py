"""What a child's message may state without failing the batch that contains it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cbor2
import pytest

from cloud_job.ingest.intake import Intake, LeftOut
from edge_agent.algebra.frame import (
    Birth,
    Define,
    Flush,
    Frame,
    Gap,
    GroupPart,
    Heartbeat,
    Leaf,
    Members,
    Receipt,
    Serving,
)
from edge_agent.machines.downlink.epochs.epoch_frames import AFTER_FLUSH
from edge_agent.root.completeness import Decider
from edge_agent.wire import frames, landing
from tests.hostile.fed_region import COUNTED, GROUP, NOW_US, S
from tests.support.cloud.child_frames import JOURNAL, Child, at, query, record, starts, tick

EPOCH = 7
ROWS = [0, 64]  # of one section: 64 keys from the first
_JOURNAL = 99


def read(*payloads: bytes, epoch: int = EPOCH) -> Intake:
    """A batch with the birth of a child's epoch and these messages after it."""
    define = Define((0, tuple(f"k{n}" for n in range(5))), groups=((0, GROUP),), plans=((0, 0, COUNTED),))
    members = (Members(0, (Leaf("child", 1),), (), (Serving("q", 1),)),)
    parts = (GroupPart(0, NOW_US - 10 * S),)
    birth = Frame(epoch, 0, Birth(epoch << 32, _JOURNAL, None, "1"), define=define, members=members, groups=parts)
    records = [landing.encode("hw/1/up/child/f/root", NOW_US, payload) for payload in (frames.encode(birth), *payloads)]
    intake = Intake(Decider(_JOURNAL, 60 * S), {}, 0, "owner", NOW_US)
    tick = landing.encode_tick(NOW_US, _JOURNAL, records, connected=True)
    intake.read(tick + b"".join(records), "file")
    return intake


def counted(seq: int, *sections: Any) -> bytes:
    """A frame with sections that state (plan, count of each of 64 rows)."""
    items = [b for plan, each in sections for b in [[plan, 7, -5, ROWS, each, 1]]]
    return cbor2.dumps([1, EPOCH, seq, cbor2.dumps([0, NOW_US, *items])])


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param([(0, 2**60)], id="a known plan"),
        pytest.param([(9, 2**60)], id="a plan that is not defined yet"),
        pytest.param([(9, 2**56), (9, 2**56)], id="two sections together"),
    ],
)
def test_counts_that_no_bigint_holds_are_quarantined(sections: list[tuple[int, int]]) -> None:
    """Each row fits, their sum does not: the table of the batch could not be made, at each try."""
    intake = read(counted(1, *sections), counted(2, (0, 5)))
    reasons = intake.table().column("reason").to_pylist()
    assert [reason for reason in reasons if reason] == ["its counts add up to more than 2^63 - 1 readings"]
    assert intake.unread == 1
    assert 64 * 5 in intake.table().column("readings").to_pylist(), "the frame after it counts"


def test_an_empty_file_is_quarantined_like_a_damaged_one(caplog: pytest.LogCaptureFixture) -> None:
    """A lander writes at least its own record: the file has lost its content, and left no trace."""
    intake = Intake(Decider(_JOURNAL, 60 * S), {}, 0, "owner", NOW_US)
    intake.read(b"", "00000001.cborseq")
    assert intake.unread == 1
    (reason,) = intake.table().column("reason").to_pylist()
    assert reason.startswith("00000001.cborseq: landing file cut short: it is empty")
    assert [record.message for record in caplog.records] == ["landing.damaged", "message.quarantined"]


def test_counts_that_a_bigint_holds_are_stored() -> None:
    intake = read(counted(1, (0, 2**56)))
    assert intake.unread == 0
    assert 64 * 2**56 in intake.table().column("readings").to_pylist()


@pytest.mark.parametrize("refused", [False, True])
def test_a_frame_with_the_number_of_a_flush_of_another_device_is_declared_from_where_it_begins(refused: bool) -> None:
    """protocol 1.3, 1.4: it was taken for a repeat. refused: the flush was."""
    own = [Frame(EPOCH, 2)] if refused else []
    flush = Frame(EPOCH, 2 + refused, flush=Flush(1, 9))
    late = Frame(EPOCH, flush.seq, gaps=(Gap((GROUP,), 5 * S, 6 * S, 1, ("child",), "poison"),))
    intake = read(*(frames.encode(each) for each in (Frame(EPOCH, 1), *own, flush, flush, late, late)))
    gaps = [gap for _, gap in intake.decider.decide(NOW_US).gaps]
    assert [gap.start_us for gap in gaps if AFTER_FLUSH in gap.reason] == [5 * S]
    rows = intake.table().select(["epoch", "seq"]).to_pylist()
    assert [row for row in rows if row["seq"] == flush.seq] == [{"epoch": EPOCH, "seq": flush.seq}]
    assert intake.again == 3


# --- times, topics, records that are left out -------------------------------------------------------------------------

TOPIC = "hw/1/up/child/f/root"


def fresh(now_us: int = 0, **about: Any) -> Intake:
    return Intake(Decider(_JOURNAL, 60 * S), {}, 3, "owner", now_us, **about)


def told(intake: Intake) -> list[tuple[Any, ...]]:
    """What the rows say: node, epoch, seq, kind, receive time, reason."""
    rows = intake.table().select(["node", "epoch", "seq", "kind", "received_us", "reason"]).to_pylist()
    return [tuple(row.values()) for row in rows]


def sent(seq: int, received_us: int, topic: str = TOPIC) -> landing.Record:
    return topic, received_us, frames.encode(Frame(EPOCH, seq))


def file(*records: landing.Record) -> bytes:
    return b"".join(landing.encode(*record) for record in records)


def test_receive_times_never_exceed_the_landers_time_once_it_is_known() -> None:
    """Before its first record the newest receive time stands for it; then a clock that was set back counts."""
    intake = fresh()
    intake.read(file(sent(1, 50), sent(2, 30)), "before")
    assert (intake.now_us, intake.ticked) == (50, False)
    intake.read(landing.encode_tick(40, _JOURNAL, connected=True) + file(sent(3, 70), sent(4, 35)), "after")
    assert (intake.now_us, intake.ticked) == (40, True)
    assert [row[4] for row in told(intake)] == [50, 30, 40, 35]


def test_what_is_no_frame_is_quarantined_under_the_name_of_its_sender_if_it_has_one() -> None:
    intake = fresh(90)
    status = "hw/1/up/child/status"
    intake.read(file(("nonsense", 50, b"x"), (status, 60, b"x"), (TOPIC, 70, b"\xff")), "file")
    rows = told(intake)
    assert [row[:5] for row in rows] == [
        ("", -1, -1, "envelope", 50),
        ("", -1, -1, "envelope", 60),
        ("child", -1, -1, "envelope", 70),
    ]
    assert [row[5] for row in rows[:2]] == [f"not a topic of frames: {topic!r}" for topic in ("nonsense", status)]
    assert (intake.unread, intake.messages) == (3, 0)
    long = fresh()
    long.read(file(("t" * 500, 50, b"x")), "file")
    assert told(long)[0][5] == f"not a topic of frames: {'t' * 200!r}"


def test_a_frame_that_is_left_out_is_settled_as_unusable_once() -> None:
    """protocol 3.6: so that later frames of its epoch take effect at once, and what it held is declared."""
    record, again = sent(1, 50), sent(1, 60)
    beat = (TOPIC, 55, frames.encode_heartbeat(Heartbeat(EPOCH, 0, ())))
    status, damaged = ("hw/1/up/child/status", 56, b"x"), (TOPIC, 57, b"\xff")
    out = LeftOut("why")
    intake = fresh(left_out=dict.fromkeys((record, again, beat, status, damaged), out))
    intake.read(file(record, again, beat, status, damaged), "file")
    assert told(intake) == [
        ("child", EPOCH, 1, "body", 50, "why"),
        ("child", EPOCH, -1, "body", 55, "why"),
        ("child", -1, -1, "envelope", 56, "why"),
        ("child", -1, -1, "envelope", 57, "why"),
    ]
    assert intake.decider.parent.inbox.received("child", EPOCH, 1)
    assert (intake.unread, intake.messages) == (4, 1)


def test_a_frame_that_fails_also_when_it_is_settled_is_only_quarantined() -> None:
    intake = fresh(left_out={TOPIC: LeftOut("why", settled=False)})
    intake.read(file(sent(1, 50), ("hw/1/up/other/f/root", 60, frames.encode(Frame(EPOCH, 1)))), "file")
    assert told(intake)[0] == ("child", -1, -1, "envelope", 50, "why")
    assert not intake.decider.parent.inbox.received("child", EPOCH, 1)
    assert intake.decider.parent.inbox.received("other", EPOCH, 1), "of another topic"


def test_records_that_are_left_out_have_no_later_time_than_the_lander_either() -> None:
    late, early = sent(1, 70), sent(2, 30)
    intake = fresh(left_out=dict.fromkeys((late, early), LeftOut("why")))
    intake.read(landing.encode_tick(40, _JOURNAL, connected=True) + file(late, early), "file")
    assert [row[4] for row in told(intake)] == [40, 30]


def test_a_file_that_is_left_out_is_one_row() -> None:
    intake = fresh(44, left_out={"bad": LeftOut("why")})
    intake.read(file(sent(1, 50)), "bad")
    intake.read(file(sent(2, 60)), "good")
    assert told(intake)[0] == ("", -1, -1, "envelope", 44, "why")
    received = intake.decider.parent.inbox.received
    assert (received("child", EPOCH, 1), received("child", EPOCH, 2)) == (False, True)


def test_as_many_records_are_read_as_are_asked_for() -> None:
    records = [sent(seq, 50) for seq in (1, 2, 3)]
    for most in range(4):
        intake = fresh(most=most)
        intake.read(file(*records[:1]), "one")
        intake.read(file(*records[1:]), "more")
        assert (intake.messages, intake.count) == (most, most)
        assert intake.last == (records[most - 1] if most else None)


def test_what_the_lander_says_it_received_counts_for_the_file_that_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.5: it is taken in after the frames of this file."""
    stated: list[tuple[Any, bool]] = []
    monkeypatch.setattr(
        Decider, "stated", lambda of, found, _us: stated.append((found, of.parent.inbox.received("child", EPOCH, 1)))
    )
    intake = fresh()
    record = landing.encode(*sent(1, 50))
    intake.read(
        landing.encode_tick(60, _JOURNAL, [record], [("child", Receipt(EPOCH, _JOURNAL, 2))], connected=True) + record,
        "one",
    )
    intake.read(file(sent(2, 55)), "two")
    assert [(bool(found), there) for found, there in stated] == [(True, True), (False, True)]


# --- what is stored of a frame ----------------------------------------------------------------------------------------


def of_child(*payloads: bytes, child: Child) -> Intake:
    """A batch with these messages of a child."""
    intake = Intake(Decider(JOURNAL, 60 * S), {}, 0, "owner", at(0))
    intake.read(tick(at(1)) + b"".join(record(child, at(1), payload) for payload in payloads), "file")
    return intake


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"define": Define((1, ("site=b",)))},
        {"members": (Members(0, (), (), (Serving("q", 1),)),)},
        {"gaps": (Gap((query().group,), 5, 6, 1, ("gw",), "quota"),)},
        {"flush": Flush(0, 9)},
        {"leave": 7},
    ],
    ids=lambda more: next(iter(more), "rows"),
)
def test_a_frame_of_rows_is_stored_by_its_parts_and_what_it_says_besides_in_a_row_of_its_own(more: Any) -> None:
    """protocol 8.6"""
    child = Child("gw", (query(),))
    birth, rows = child.birth(), frames.decode(child.rows(at(1), starts(0, 0.5), late=True))
    assert isinstance(rows, Frame)
    intake = of_child(birth, frames.encode(replace(rows, **more)), child=child)
    stored = [row for row in intake.table().to_pylist() if row["seq"] == 1]
    assert [row["part"] for row in stored] == [0, 1] if more else [1]
    head, part = stored[0] if more else None, stored[-1]
    if head is not None:
        assert frames.decode(head["payload"]) == replace(rows, groups=(replace(rows.groups[0], late=()),), **more)
        assert (head["group"], head["plan"], head["late"], head["rows"], head["start"]) == (-1, -1, None, 0, None)
    assert (part["group"], part["plan"], part["late"], part["rows"], part["readings"]) == (0, 0, True, 2, 2)
    assert (part["start"], part["end"], part["received_us"]) == (at(0), at(1.5), at(1))
    assert len(part["payload"]) > 10
    assert [each.body for each in intake.parts["gw", 1, 1]] == [b""], "its rows are in the table"


def test_a_frame_without_rows_is_stored_as_it_came() -> None:
    child = Child("gw", (query(),))
    birth, frontier = child.birth(), child.rows(at(1))
    intake = of_child(birth, frontier, child=child)
    assert intake.table().column("payload").to_pylist() == [birth, frontier]
    assert intake.parts == {}


def test_a_heartbeat_moves_the_frontier_and_is_not_stored() -> None:
    """protocol 2.5"""
    child = Child("gw", (query(),))
    intake = of_child(child.birth(), child.beat(at(9)), child=child)
    assert (intake.messages, len(intake.table())) == (1, 1)
    assert intake.decider.decide(at(1)).groups[query().group].frontier_us == at(9)


def test_nothing_is_kept_of_a_frame_that_is_refused() -> None:
    """protocol 1.1: a birth for another journal; the sender makes another one."""
    child = Child("gw", (query(),))
    birth, rows = frames.decode(child.birth(journal=JOURNAL + 1)), frames.decode(child.rows(at(1), starts(0)))
    assert isinstance(birth, Frame)
    assert isinstance(rows, Frame)
    intake = of_child(frames.encode(replace(birth, groups=rows.groups)), child=child)
    assert (intake.parts, intake.messages, intake.unread, len(intake.table())) == ({}, 0, 0, 0)
    assert not intake.decider.parent.inbox.received("gw", 1, 0)


def test_rows_that_do_not_fit_their_plan_are_quarantined_before_a_decision_needs_them() -> None:
    """protocol 3.6: the plan was defined by an earlier frame."""
    child, other = Child("gw", (query(),)), Child("gw", (query(fns=("min", "max")),), seq=1)
    intake = of_child(child.birth(), other.rows(at(1), starts(0)), child=child)
    assert (intake.messages, intake.unread, intake.parts) == (2, 1, {})
    assert [row["kind"] for row in intake.table().to_pylist()] == ["frame", "body"]


def test_the_lander_tells_its_time_and_whether_it_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.7, 4.4: time in which it was not is no silence of a child."""
    told: list[tuple[int, int | None, bool]] = []
    monkeypatch.setattr(
        Decider, "tick", lambda _of, now_us, before_us, *, connected: told.append((now_us, before_us, connected))
    )
    intake = fresh()
    intake.read(b"".join(tick(us, connected=us != 70) for us in (50, 70, 60)), "file")
    assert told == [(50, None, True), (70, 50, False), (60, 70, True)]
    assert intake.now_us == 60
