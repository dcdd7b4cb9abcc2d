"""Frames in doubt of which only the oldest are decoded (protocol 3.7)."""

from __future__ import annotations

import pytest

from edge_agent.algebra.frame import IN_DOUBT, Receipt
from edge_agent.errors import PortError
from edge_agent.machines.events import AcceptLoss, LinkUp, Receipted, Tick
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.uplink import journal_change
from tests.support.machines.simulated_host import JOURNAL, T0, S, SimulatedHost, gateway_host, read

LOST = 20  # frames that only the parent before may have


def moved(late_at: int | None = None) -> SimulatedHost[Gateway]:
    """A gateway whose second parent has all but the frames that the first has not receipted.

    late_at: the number of the frame with a late row, if there is one.
    """
    host = gateway_host(settings=NodeSettings("a", parents=("A", "B"), away_us=120 * S, back_us=3000 * S))
    box = host.machine.outbox
    host.do(LinkUp(), T0)
    host.do(Receipted(Receipt(box.ask_epoch, JOURNAL, 0)), T0)
    for i in range(3):
        read(host, T0 + i * S, 1, T0 + i * S)
        host.do(Tick(), T0 + i * S)
        host.do(Receipted(Receipt(box.epoch, JOURNAL, box.seq)), T0 + i * S)
    for i in range(3, 3 + LOST):
        read(host, T0 + i * S - (100 * S if i == late_at else 0), 1, T0 + i * S)
        host.do(Tick(), T0 + i * S)
    for i in range(3 + LOST, 200):
        host.do(Tick(), T0 + i * S)
    assert box.parent == "B"
    host.do(LinkUp("B"), T0 + 200 * S)
    host.do(Receipted(Receipt(box.ask_epoch, JOURNAL + 1, 0)), T0 + 200 * S)
    for i in range(201, 210):
        read(host, T0 + i * S, 1, T0 + i * S)
        host.do(Tick(), T0 + i * S)
        host.do(Receipted(Receipt(box.epoch, JOURNAL + 1, box.seq)), T0 + i * S)
    return host


@pytest.mark.parametrize("late_at", [None, LOST])
def test_frames_that_are_not_decoded_are_declared_where_their_rows_may_lie(
    monkeypatch: pytest.MonkeyPatch, late_at: int | None
) -> None:
    """protocol 3.7: and not where the node stands when it gives them up, which is far above."""
    monkeypatch.setattr(journal_change, "MOST_LOOKED_AT", 5)
    host = moved(late_at)
    known, before = len(host.frames), host.machine.book()
    waited = host.machine.outbox.former_lines.waiting()["A"]
    assert waited > LOST
    host.do(AcceptLoss("A"), T0 + 210 * S)
    host.do(Tick(), T0 + 211 * S)
    gaps = [gap for frame in host.frames[known:] for gap in frame.gaps]
    assert {gap.reason for gap in gaps} == {IN_DOUBT}
    assert all(gap.end_us > gap.start_us for gap in gaps), "the parent does not have to date one"
    for i in range(3, 3 + LOST):
        at_us = T0 + i * S - (100 * S if i == late_at else 0)
        assert any(gap.start_us <= at_us < gap.end_us for gap in gaps), i
    assert all(gap.start_us >= T0 + 2 * S - (0 if late_at is None else 98 * S) for gap in gaps)
    (given_up,) = host.machine.given_up
    assert (given_up.frames, given_up.readings) == (waited, None)
    assert given_up.upto_us is not None
    assert given_up.upto_us >= T0 + (3 + LOST) * S
    book = host.machine.book()
    assert book["lost_frames"] - before["lost_frames"] == waited - 5
    assert 0 < book["lost"] - before["lost"] <= 5


def test_if_the_oldest_frame_cannot_be_read_everything_sent_is_declared() -> None:
    """protocol 3.7: nothing says where its rows begin."""
    host = moved()
    load, old = host.machine._load, next(iter(host.machine.outbox.former_lines.lines["A"].pending))

    def damaged(epoch: int, seq: int) -> object:
        if (epoch, seq) == old:
            raise PortError("fails its checksum")
        return load(epoch, seq)

    host.machine._load = damaged  # type: ignore[assignment]
    known = len(host.frames)
    host.do(AcceptLoss("A"), T0 + 210 * S)
    host.do(Tick(), T0 + 211 * S)
    wide = [gap for frame in host.frames[known:] for gap in frame.gaps if gap.readings < 0]
    assert [(gap.start_us, gap.reason) for gap in wide] == [(0, IN_DOUBT)]
    assert wide[0].end_us >= T0 + (3 + LOST) * S
    assert host.machine.book()["lost_frames"] == 1
