"""Frames of a child for an inbox: births, flushes, and what takes effect of them."""

from __future__ import annotations

from dataclasses import replace

from edge_agent.algebra.frame import LOST, Birth, Flush, Frame
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.epochs.waiting_frames import size_bytes
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.events import BadFrame

JOURNAL = 77

GROUP = Group("boiler", "", (), 0)


def born(epoch: int, predecessor: tuple[int, int] | str | None = None, journal: int = JOURNAL) -> Frame:
    return Frame(epoch, 0, Birth(epoch << 32, journal, predecessor, "1"))


def count_waiting(inbox: Inbox) -> None:
    """What is counted of frames that wait is what waits: else a child has no room for ever, or any room."""
    for node in {key.node for key in inbox.epochs}:
        waiting = [each for key, of in inbox.epochs.items() if key.node == node for each in of.waiting.values()]
        counts = inbox.waiting._frames.get(node, 0), inbox.waiting._bytes.get(node, 0)
        assert counts == (len(waiting), sum(map(size_bytes, waiting)))


def seqs(inbox: Inbox, node: str, message: Frame | BadFrame) -> list[tuple[int, int]]:
    effects = inbox.take(node, message)
    inbox.check()
    count_waiting(inbox)
    return [(e.epoch, e.seq) for e in effects]


def restarted(inbox: Inbox) -> Inbox:
    fresh = Inbox(inbox.journal, silence_us=inbox.silence_us)
    flushes = [(node, found) for node in inbox.ended.of if (found := inbox.ended.snapshot_flushes(node)) is not None]
    fresh.ended.restore(inbox.ended.of.items(), flushes)
    for key, line in inbox.epochs.items():
        state = inbox.snapshot(key)
        assert state is not None
        fresh.restore(key, state, {s: replace(f) for s, f in line.waiting.items()})
    return fresh


def flush(epoch: int, seq: int, after: int) -> Frame:
    return Frame(epoch, seq, flush=Flush(after))


def applied(inbox: Inbox, message: Frame | BadFrame) -> list[tuple[int, int]]:
    """Those with content."""
    effects = inbox.take("a", message)
    inbox.check()
    return [(e.epoch, e.seq) for e in effects if e.frame is not None]


def lost_past(epoch: int, *held: int) -> Frame:
    """A birth that does not know its past. held: epochs of which its node still has frames."""
    return Frame(epoch, 0, Birth(epoch << 32, JOURNAL, LOST, "1", held=held))
