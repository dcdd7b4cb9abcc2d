"""Finds frames that a child has deleted and its parent does not have: the parent returned to an older copy of its
spool.

It had receipted them, so the child deleted them, and the child's line would wait for ever. If a merger waits for frames
while their child speaks, for longer than any back-off between two sendings, it settles them as lost: a gap record
replaces them, as the root does for lost landing files (docs/protocol.md 1.3, 2.2). If one comes after all, it is a
duplicate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from edge_agent.algebra.frame import Heartbeat
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.epoch_frames import EpochFrames
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.events import BadFrame

LET_GO: Final = "frames that its parent had received are in no spool"  # reason of a gap record
WAIT_US: Final = 120_000_000  # of a child that speaks: a frame without a receipt has been sent five times by then
PAUSE_US: Final = 10_000_000  # a child that is silent for longer did not speak in between

Hole = tuple[int, int]  # epoch, first seq that lacks


class LetGo:
    """The frames for which each child's line waits, and how long the child has spoken meanwhile.

    A merger does not commit it: after a start it waits anew.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._waited_us: dict[str, dict[Hole, int]] = {}
        self._heard_us: dict[str, int] = {}
        self._refused = 0

    def heard(self, node: str, beat: Heartbeat | None, now_us: int) -> list[BadFrame]:
        """Note that a message of a child has been taken. Returns what replaces the frames that do not come any more.

        beat: its newest heartbeat, if frames that the heartbeat names are missing.
        """
        if beat is None and not self._inbox.waits(node):
            self._waited_us.pop(node, None)
            self._heard_us.pop(node, None)
            return []
        passed_us = min(max(now_us - self._heard_us.get(node, now_us), 0), PAUSE_US)
        self._heard_us[node] = now_us
        holes = dict(self._holes(node, beat))
        if (
            now_us - self._inbox.spoke_us.get(node, now_us - PAUSE_US) < PAUSE_US
        ):  # else what waits is what it goes on in
            current = self._inbox.current.get(node)
            holes = {
                hole: last for hole, last in holes.items() if hole[0] == current
            }  # others are of a second line (1.4)
        if self._inbox.refused != self._refused:  # frames are turned away here, and sent again later
            self._refused = self._inbox.refused
            self._waited_us.clear()
        before = self._waited_us.pop(node, {})
        self._waited_us[node] = {hole: before[hole] + passed_us if hole in before else 0 for hole in holes}
        due = [hole for hole, waited_us in self._waited_us[node].items() if waited_us >= WAIT_US]
        return [self._lost(hole, holes[hole]) for hole in due]

    @property
    def waiting(self) -> bool:
        """Whether some child's line waits for missing frames."""
        return any(self._waited_us.values())

    def snapshot(self) -> list[object]:
        """Plain values, for an owner that starts often (the root's decision row)."""
        return [
            [node, heard_us, [[*hole, waited_us] for hole, waited_us in self._waited_us[node].items()]]
            for node, heard_us in self._heard_us.items()
        ]

    def restore(self, state: Iterable[tuple[str, int, list[tuple[int, int, int]]]]) -> None:
        """From what `snapshot` returns."""
        for node, heard_us, holes in state:
            self._heard_us[node] = heard_us
            self._waited_us[node] = {(epoch, seq): waited_us for epoch, seq, waited_us in holes}

    @staticmethod
    def _lost(hole: Hole, last: int) -> BadFrame:
        epoch, first = hole
        return BadFrame(epoch, first, LET_GO, b"", last - first + 1)

    def _holes(self, node: str, beat: Heartbeat | None) -> Iterator[tuple[Hole, int]]:
        """The frames for which a child's lines wait: the first and the last one of each range that is missing.

        Where a child has nothing more to send, only its heartbeats name its last frames. An epoch without a birth may
        be one for another journal, whose birth was discarded (1.2), unless an epoch for this journal names it.
        """
        inbox, speaks_in = self._inbox, None if beat is None else beat.epoch
        if beat is not None and EpochKey(node, beat.epoch) not in inbox.ended:
            frames = inbox.epochs.get(EpochKey(node, beat.epoch)) or EpochFrames()
            if frames.applied.next <= beat.last_seq and not (frames.lost or frames.waiting):
                yield (beat.epoch, frames.applied.next), beat.last_seq
        for epoch, frames in inbox.lines_of(node).items():
            if frames.lost or not frames.waiting:
                continue
            first, predecessor = frames.applied.next, frames.predecessor
            if (first or epoch == speaks_in) and (first not in frames.waiting or frames.blocked):
                yield from _gaps(epoch, frames, max(frames.waiting))
            if first == 0 in frames.waiting:  # a birth takes effect whole
                yield from (((epoch, seq), seq) for seq in range(frames.birth_frames) if seq not in frames.waiting)
            if first or not isinstance(predecessor, tuple) or EpochKey(node, predecessor[0]) in inbox.ended:
                continue
            before, last = inbox.epochs.get(EpochKey(node, predecessor[0])), predecessor[1]
            if before is None:
                yield (predecessor[0], 0), last
            elif not before.lost and (before.applied.next not in before.waiting or before.blocked):
                yield from _gaps(predecessor[0], before, last)


def _gaps(epoch: int, frames: EpochFrames, last: int) -> Iterator[tuple[Hole, int]]:
    """The missing frames of an epoch up to the last. Those behind a frame that waits for an explanation count too."""
    first = frames.applied.next
    for seq in sorted(seq for seq in frames.waiting if seq <= last):
        if first < seq:
            yield (epoch, first), seq - 1
        first = seq + 1
    if first <= last:
        yield (epoch, first), last
