"""Finds frames that a child has deleted although its parent lacks them.

A merger's spool may be an older copy, and a lander may have lost a landing file and its journal. The frames had been
receipted, so no child sends them, and later frames would wait for ever. If a parent waits for frames while their child
sends messages, for longer than any back-off between two sendings, it settles them as lost: a gap record replaces them
(docs/protocol.md 1.3, 2.2, 3.2). A frame that comes later nevertheless is a duplicate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from edge_agent.algebra.frame import Heartbeat
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.epoch_frames import EpochFrames
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.events import BadFrame

LET_GO: Final = "frames that its parent had received are in no spool"  # reason of a gap record
WAIT_US: Final = 120_000_000  # frames are lost after so long a wait; a child sends an unreceipted frame 5 times by then
LOOK_US: Final = 1_000_000  # shortest time between two looks at a child: there may be thousands of missing frames
PAUSE_US: Final = 10_000_000  # most time between two messages of a child that counts as waiting
MOST_REFUSED: Final = 128  # epochs of a child with refused frames noted between two looks; it has 100 frames in flight

Hole = tuple[int, int]  # epoch, first missing seq


class LetGo:
    """Counts for how long each child has sent messages while frames of it are missing.

    A merger does not store this: after a start the wait begins again.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._waited_us: dict[str, dict[Hole, int]] = {}
        self._heard_us: dict[str, int] = {}
        # child -> epoch -> lowest seq of the frames refused since the last look
        self._refused: dict[str, dict[int, int]] = {}
        # child -> hole -> lowest seq in it that was refused while it waited: only the frames before that are lost
        self._comes_again: dict[str, dict[Hole, int]] = {}
        # child -> ended epoch -> lowest seq of its frames that came ahead of the number kept of it (1.4)
        self._ahead_of_end: dict[str, dict[int, int]] = {}

    def refused(self, node: str, epoch: int, seq: int) -> None:
        """Note that a frame was refused for lack of room (2.2). It is not lost, because its child sends it again."""
        noted = self._refused.setdefault(node, {})
        if epoch in noted or len(noted) < MOST_REFUSED:
            noted[epoch] = min(seq, noted.get(epoch, seq))

    def came(self, node: str, epoch: int, seq: int) -> None:
        """Note that a frame has been taken. An inbox takes those of an ended epoch in their order only (1.4).

        A birth that was not taken is for another journal, or for lack of room comes again: its epoch waits anew.
        """
        if not seq and node in self._waited_us and not self._inbox.received(node, epoch, 0):
            waited = self._waited_us[node]
            self._waited_us[node] = {hole: us for hole, us in waited.items() if hole[0] != epoch}
        upto = self._inbox.ended.of.get(node, {}).get(epoch)
        if upto is None or seq <= upto or not self._inbox.bounded:
            return
        noted = self._ahead_of_end.setdefault(node, {})
        if epoch in noted or len(noted) < MOST_REFUSED:
            noted[epoch] = min(seq, noted.get(epoch, seq))

    def heard(self, node: str, epoch: int, beat: Heartbeat | None, now_us: int) -> list[BadFrame]:
        """Note that a message of a child has been taken. Returns replacements for frames that count as lost now.

        epoch: of the message. beat: the child's newest heartbeat, if frames that it names are missing.
        """
        ended = dict(self._behind_end(node)) if node in self._ahead_of_end else {}
        if beat is None and not ended and not self._inbox.waits(node):
            for of in (self._waited_us, self._heard_us, self._refused, self._comes_again):
                of.pop(node, None)
            return []
        if node in self._waited_us and 0 <= now_us - self._heard_us.get(node, now_us) < LOOK_US:
            return []
        passed_us = min(max(now_us - self._heard_us.get(node, now_us), 0), PAUSE_US)
        self._heard_us[node] = now_us
        # while the epoch in force speaks, others are of a second line (1.4); else the child may continue in one of them
        speaks = now_us - self._inbox.spoke_us.get(node, now_us - PAUSE_US) < PAUSE_US
        current = self._inbox.current.get(node)
        found = self._holes(node, epoch, beat)
        holes = {hole: last for hole, last in found if not speaks or hole[0] == current} | ended
        before = self._refusals(node, holes)
        self._waited_us[node] = {hole: before[hole] + passed_us if hole in before else 0 for hole in holes}
        due = [hole for hole, waited_us in self._waited_us[node].items() if waited_us >= WAIT_US]
        ends = self._comes_again.get(node, {})
        return [self._lost(hole, min(holes[hole], ends.get(hole, holes[hole] + 1) - 1)) for hole in due]

    def _behind_end(self, node: str) -> Iterator[tuple[Hole, int]]:
        """Yields the holes in ended epochs, as `_holes` does, before frames of a second device that come again (1.4).

        That device has deleted what waited here when the epoch ended. Nothing of the epoch takes effect any more, so
        it does not matter whether the first device speaks.
        """
        upto = self._inbox.ended.of.get(node, {})
        noted = {epoch: seq for epoch, seq in self._ahead_of_end.pop(node, {}).items() if upto.get(epoch, seq) < seq}
        if noted:
            self._ahead_of_end[node] = noted
        yield from (((epoch, upto[epoch]), seq - 1) for epoch, seq in noted.items())

    def _refusals(self, node: str, holes: Mapping[Hole, int]) -> dict[Hole, int]:
        """Take the frames refused since the last look. Returns hole -> time waited, without holes that wait anew.

        A child sends its frames in order. So a refused frame says nothing about holes before it, and holes behind it
        wait anew: their frames may not have been sent yet. holes: hole -> its last seq.
        """
        waited, refused = self._waited_us.pop(node, {}), self._refused.pop(node, {})
        ends = {hole: seq for hole, seq in self._comes_again.pop(node, {}).items() if hole in holes}
        for of, seq in refused.items():
            before = self._before(node, of)
            waited = {hole: us for hole, us in waited.items() if hole[0] in before or (hole[0] == of and hole[1] < seq)}
            ends |= {
                hole: min(seq, ends.get(hole, seq)) for hole in waited if hole[0] == of and seq <= holes.get(hole, -1)
            }
        if len(refused) >= MOST_REFUSED:  # not all may have been noted
            return {}
        if ends:
            self._comes_again[node] = ends
        return waited

    def _before(self, node: str, epoch: int) -> set[int]:
        """The epochs that a child sends before `epoch`: those in its line of predecessors, and the one in force."""
        lines, before = self._inbox.lines_of(node), set[int]()
        frames = lines.get(epoch)
        if frames is None or not frames.lost:
            before.update(each for each in (self._inbox.current.get(node),) if each is not None)
        while frames is not None and isinstance(frames.predecessor, tuple) and frames.predecessor[0] not in before:
            before.add(frames.predecessor[0])
            frames = lines.get(frames.predecessor[0])
        return before - {epoch}

    @property
    def waiting(self) -> bool:
        """Whether frames of any child are missing."""
        return any(self._waited_us.values())

    def snapshot(self) -> list[object]:
        """The state as plain values, for the root's decision row, because the root may start often."""
        return [
            [node, heard_us, [[*hole, waited_us] for hole, waited_us in self._waited_us.get(node, {}).items()]]
            for node, heard_us in self._heard_us.items()
        ]

    def restore(self, state: Iterable[tuple[str, int, list[tuple[int, int, int]]]]) -> None:
        """Continue from the result of `snapshot`."""
        for node, heard_us, holes in state:
            self._heard_us[node] = heard_us
            self._waited_us[node] = {(epoch, seq): waited_us for epoch, seq, waited_us in holes}

    @staticmethod
    def _lost(hole: Hole, last: int) -> BadFrame:
        epoch, first = hole
        return BadFrame(epoch, first, LET_GO, b"", last - first + 1)

    def _holes(self, node: str, last: int, beat: Heartbeat | None) -> Iterator[tuple[Hole, int]]:
        """Yields ((epoch, first missing seq), last missing seq) for each range that epochs wait for.

        If a child has nothing more to send, only its heartbeats show that its last frames are missing. An epoch without
        a birth may be for another journal, whose birth was discarded (1.2), unless the child still speaks in it, or an
        epoch for this journal names it. The next frame of an epoch may be here and wait for numbers that missing ones
        define (2.4).

        last: the epoch of the child's last message. That may be a frame, as a child that always has rows to send sends
        no heartbeat.
        """
        inbox, speaks_in = self._inbox, {last} if beat is None else {last, beat.epoch}
        if beat is not None and EpochKey(node, beat.epoch) not in inbox.ended:
            frames = inbox.epochs.get(EpochKey(node, beat.epoch)) or EpochFrames()
            if frames.applied.next <= beat.last_seq and not (frames.lost or frames.waiting):
                yield (beat.epoch, frames.applied.next), beat.last_seq
        named: dict[int, int] = {}  # epoch that births name -> its last seq; looked at once, however many name it
        for epoch, frames in inbox.lines_of(node).items():
            if frames.lost or not frames.waiting:
                continue
            first, predecessor = frames.applied.next, frames.predecessor
            if first or (epoch in speaks_in and 0 not in frames.waiting):
                sent = max(*frames.waiting, beat.last_seq if beat is not None and epoch == beat.epoch else 0)
                yield from (((epoch, low), high) for low, high in frames.missing(sent))
            if first == 0 in frames.waiting:  # a birth waits for all its frames
                yield from (((epoch, low), high) for low, high in frames.missing(frames.birth_frames - 1))
            if first == 0 and isinstance(predecessor, tuple):
                named[predecessor[0]] = max(predecessor[1], named.get(predecessor[0], 0))
        for epoch, end in named.items():
            before = inbox.epochs.get(EpochKey(node, epoch))
            if EpochKey(node, epoch) in inbox.ended:
                continue
            if before is None:
                yield (epoch, 0), end
            elif not before.lost and (before.applied.next or 0 not in before.waiting):
                yield from (((epoch, low), high) for low, high in before.missing(end))
