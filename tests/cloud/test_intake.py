"""What a child's message may state without failing the batch that contains it."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest

from cloud_job.ingest.intake import Intake
from edge_agent.algebra.frame import Birth, Define, Flush, Frame, Gap, GroupPart, Leaf, Members, Serving
from edge_agent.machines.downlink.epochs.epoch_frames import AFTER_FLUSH
from edge_agent.root.completeness import Decider
from edge_agent.wire import frames, landing
from tests.hostile.fed_region import COUNTED, GROUP, NOW_US, S

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
