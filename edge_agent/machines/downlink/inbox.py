"""Receives the frames of all children: duplicates, order and receipts.

Rules (docs/protocol.md): a duplicate is recognised only by (node, epoch, seq) (1.1). Frames of an epoch take effect in
the order of seq; frames ahead of their turn wait and count as received (2.2). A birth takes effect when all its frames
have arrived, after the predecessor that it names (1.2). Frames of an epoch declared lost apply once, only their data
(1.2). A flush takes effect completely or not at all (1.3). Of two lines of one node the newer waits (1.4). A frame
with undefined numbers waits (2.4). A bad body is settled in its turn (3.6). To recognise duplicates the inbox keeps the
contiguous prefix and the frames above it; of an ended epoch one number, until the child cannot send it any more (3.4).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Final

from edge_agent.algebra.frame import LOST, Frame
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.checkpoint.slots import EpochFramesState
from edge_agent.machines.downlink.epochs.child_epochs import ChildEpochs
from edge_agent.machines.downlink.epochs.definitions_ahead import DefinitionsAhead
from edge_agent.machines.downlink.epochs.epoch_frames import (
    AFTER_FLUSH,
    ANOTHER_FLUSH,
    OTHERS_HERE,
    SECOND_LINE,
    Effect,
    EpochFrames,
    earliest,
    run_of,
)
from edge_agent.machines.downlink.epochs.waiting_frames import WaitingFrames
from edge_agent.machines.events import BadFrame

UNEXPLAINED: Final = 100  # a frame with unknown numbers is settled as bad once so many wait; its node could define them
MOST_LOST: Final = 1_000  # most epochs of older lines of one child; beyond this the oldest end
MOST_LINES: Final = 1_000  # most epochs of one child with waiting frames; a crash loop makes two frames per epoch
MOST_EPOCHS: Final = MOST_LOST + 2 * MOST_LINES  # beyond so many of one child only a birth opens one that ends another

Explains = Callable[[EpochKey, Frame, DefinitionsAhead], bool]


def _always(_key: EpochKey, _frame: Frame, _ahead: DefinitionsAhead) -> bool:
    return True


def _since(frame: Frame, why: str) -> int | None:
    """The earliest time of a refused frame's loss. None: a flush of a copy, whose rows the original device sent too."""
    return earliest(frame) if why in (AFTER_FLUSH, ANOTHER_FLUSH) else None


class Inbox(ChildEpochs):
    """Takes frames of children in any order, and returns them in the order in which they take effect."""

    def __init__(
        self, journal: int, *, silence_us: int = 0, bounded: bool = True, explains: Explains = _always
    ) -> None:
        """journal: id of this parent's durable state (docs/protocol.md 3.7).

        silence_us: how long the first of two lines of a node must be silent before the newer one takes its place.
        bounded: refuse frames beyond the bounds of `WaitingFrames`, so that they are sent again; False at the root,
        where the lander has receipted them. explains: whether the numbers of a frame are known, also from definitions
        in waiting frames.
        """
        super().__init__(journal)
        self.silence_us, self.bounded = silence_us, bounded
        self.rivals: dict[str, tuple[int, int]] = {}  # node -> epochs of its (waiting, first) line; the owner clears it
        self.restored: set[str] = set()  # nodes that continued from an older copy of their spool; the owner clears it
        self.refused = 0  # number of frames refused because of the bounds, since the process started
        self.most_lost: Callable[[str], int] = lambda _node: MOST_LOST  # of a child, if fewer than MOST_LOST
        self._forgotten = 0  # number of epochs of older lines beyond the bound, since the process started
        self.waiting = WaitingFrames()
        self._explains = explains
        self._unborn: set[str] = set()  # nodes with waiting frames of an epoch that is not in force yet

    def take(self, node: str, message: Frame | BadFrame, received_us: int = 0) -> list[Effect]:
        """Take one frame. Returns the frames that take effect now, in order; none for a duplicate."""
        key = EpochKey(node, message.epoch)
        if isinstance(message, Frame) and self._is_next(key, message):
            effect = self._pass(key, message, received_us)
            return [effect, *self._advance(node, received_us)] if self._awaited(key, effect.seq) else [effect]
        return list(self._take(node, message, received_us))

    def _take(self, node: str, message: Frame | BadFrame, received_us: int) -> Iterator[Effect]:
        frame = message if isinstance(message, Frame) else None
        if frame is not None and frame.birth is not None and frame.birth.journal != self.journal:
            return  # for a former journal of this parent; its node will send a birth for the present journal
        key, seq = EpochKey(node, message.epoch), message.seq
        if key in self.ended:
            yield from self._after_end(key, message)
            return
        known = self.epochs.get(key)
        if known is None and not self.bounded and self._crowded(node, message):
            self.ended.add(key, 0)  # it has been receipted, so nobody sends it again: its content is declared lost
            self._early.changed(key)
            self._forgotten += 1
            yield from self._after_end(key, message)
            return
        frames = known if known is not None else EpochFrames()
        if self.current.get(node) == message.epoch:
            self.spoke_us[node] = max(received_us, self.spoke_us.get(node, received_us))
        if seq in frames:
            if frame is not None and frames.contested(frame):
                yield from self._contest(key, frames, frame)
            yield from self._look(node, received_us)
            return
        if not self._room(key, frames, message):
            self.refused += 1
            if frames.blocked and not frames.lost:  # missing definitions cannot arrive: no later frame has room
                yield from self._run(key, frames, force=True)
            return
        self._open(key, frames)
        self._put(key, frames, message)
        if frames.lost or (self.current.get(node) != message.epoch and frames.completed_by(seq)):
            yield from self._advance(node, received_us)
        elif self.current.get(node) != message.epoch:
            self._unborn.add(node)
        elif frames.applied.next in frames.waiting:  # this one, or one that has unknown numbers (2.4)
            since = frames.applied.next
            yield from self._run(key, frames)
            if self._awaited(key, since) or (frames.blocked and node in self._unborn):
                yield from self._advance(node, received_us)

    def _is_next(self, key: EpochKey, frame: Frame) -> bool:
        """Whether a frame is the usual case, which `_pass` handles: in order, of the epoch in force, no frame waits."""
        if frame.birth is not None or self.current.get(key.node) != frame.epoch:
            return False
        frames = self.epochs.get(key)
        return (
            frames is not None
            and 0 < frame.seq == frames.applied.next
            and not (frames.waiting or frames.lost or frames.refuses(frame))
            and self._explains(key, frame, frames.ahead)
        )

    def _pass(self, key: EpochKey, frame: Frame, received_us: int) -> Effect:
        """Let a frame take effect without storing it, if `_is_next`."""
        node = key.node
        frames = self.epochs[key]
        self.spoke_us[node] = max(received_us, self.spoke_us.get(node, received_us))
        self._change(key)
        frames.blocked = False
        frames.note(frame)
        frames.applied.next += 1
        for gap in frame.gaps:  # a gap record may replace several frames that were never published (3.5)
            frames.applied.next += max(gap.run - 1, 0)
        return Effect(*key, frame.seq, frame)

    @property
    def forgotten(self) -> int:
        """Number of epochs forgotten because of the bounds, since the process started."""
        return self._forgotten + self.ended.forgotten

    @property
    def unborn_of(self) -> list[str]:
        """The children of which frames of an epoch that is not in force may wait."""
        return sorted(self._unborn)

    def look(self, node: str, now_us: int) -> list[Effect]:
        """Let the waiting newer line of a node replace the first line once that has been silent for silence_us."""
        return list(self._look(node, now_us))

    def _look(self, node: str, now_us: int) -> Iterator[Effect]:
        if node in self._unborn:
            yield from self._advance(node, now_us)

    def spoke(self, node: str, epoch: int, now_us: int) -> None:
        """Note that a heartbeat of an epoch has arrived."""
        if self.current.get(node) == epoch:
            self.spoke_us[node] = max(now_us, self.spoke_us.get(node, now_us))

    def change_journal(self, journal: int) -> None:
        """Continue with another journal of this parent. Births that wait for the former one are discarded (1.2)."""
        for key, frames in self.epochs.items():
            if not frames.lost and frames.birth_is_for_another(journal):
                self._drop(key, frames, 0)
                frames.unborn()
        self.journal = journal

    # --- storing --------------------------------------------------------------------------------------------------

    def _put(self, key: EpochKey, frames: EpochFrames, message: Frame | BadFrame) -> None:
        frame, seq = message if isinstance(message, Frame) else None, message.seq
        if frame is not None:
            why = frames.refuses(frame)
            if why:
                frames.refuse(frame)
                message = BadFrame(message.epoch, seq, why, b"", since_us=_since(frame, why))
        frames.store(seq, message)
        self.waiting.add(key, message)
        self._change(key)
        if seq == 0:
            frames.born = True
            birth = None if frame is None else frame.birth
            if birth is not None:
                frames.predecessor, frames.birth_frames, frames.held = birth.predecessor, birth.frames, birth.held

    def _contest(self, key: EpochKey, frames: EpochFrames, frame: Frame) -> Iterator[Effect]:
        """Take a frame whose seq was used by a flush of another line (1.3).

        The frame is dropped, unless it is ordinary and nothing of the flush has taken effect: then the flush is
        dropped. Of two flushes the first stays. Because the seq has been receipted, nobody sends the dropped frame
        again, so its content is declared lost, also if the flush was refused.
        """
        self._change(key)
        refused = frames.refused_flushes.pop(frame.seq, None) is not None
        ordinary = frame.flush is None and not frames.flushed(frame.seq)
        if frame.seq in frames.waiting and (ordinary or refused):
            self._drop(key, frames, frame.seq)
            frames.ordinary = max(frames.ordinary, frame.seq) if ordinary else frames.ordinary
            self._put(key, frames, BadFrame(key.epoch, frame.seq, OTHERS_HERE, b"", since_us=earliest(frame)))
            return
        frames.quarantine(frame.seq)
        yield self._refused(key, frame)

    @staticmethod
    def _refused(key: EpochKey, frame: Frame) -> Effect:
        why = AFTER_FLUSH if frame.flush is None else ANOTHER_FLUSH
        return Effect(*key, frame.seq, None, stale=True, why=why, since_us=earliest(frame))

    def _drop(self, key: EpochKey, frames: EpochFrames, seq: int) -> Frame | BadFrame:
        message = frames.take_out(seq)
        self.waiting.remove(key, message)
        self._change(key)
        return message

    def _room(self, key: EpochKey, frames: EpochFrames, message: Frame | BadFrame) -> bool:
        """Whether a frame may be stored: it takes effect at once, completes the next birth, or is within the bounds."""
        seq, current = message.seq, self.current.get(key.node) == key.epoch
        if not self.bounded or (current and seq == frames.applied.next):
            return True
        if isinstance(message, BadFrame) and message.run:  # lost: one before each frame that waits, so that it goes on
            return key in self.epochs or not self._crowded(key.node, message)
        birth = message.birth if isinstance(message, Frame) else None
        predecessor = frames.predecessor if birth is None else birth.predecessor
        upto = frames.birth_frames if birth is None else birth.frames
        if not current and (seq == 0 or frames.born) and seq < upto and self._settled(key.node, predecessor):
            crowded = key not in self.epochs and self._crowded(key.node, message)
            return not crowded and self.waiting.room_of_birth(key.node)
        if key not in self.epochs and len(self._lines.get(key.node, ())) >= MOST_LINES:
            return False
        return self.waiting.room(key.node)

    def _crowded(self, node: str, message: Frame | BadFrame) -> bool:
        """Whether a child has too many epochs for one more, unless a birth takes effect at once and ends another."""
        if len(self._lines.get(node, ())) < MOST_EPOCHS:
            return False
        birth = message.birth if isinstance(message, Frame) else None
        if birth is None or birth.frames > 1:
            return True
        if not isinstance(birth.predecessor, tuple):
            return birth.predecessor != LOST  # which ends those beyond MOST_LOST
        before = self.epochs.get(EpochKey(node, birth.predecessor[0]))
        return before is None or not before.leads_to(message, birth.predecessor[1])

    def _after_end(self, key: EpochKey, message: Frame | BadFrame) -> Iterator[Effect]:
        """Take a frame of an epoch with a successor: a duplicate, or of another line that began with that epoch.

        One number is kept, so a merger takes such frames in their order: one ahead is not receipted, and comes again.
        """
        seq = message.seq
        if seq < self.ended.of[key.node][key.epoch]:
            if isinstance(message, Frame) and self.ended.contest(key, message):
                yield self._refused(key, message)
            return
        if self.ended.pass_over(key, seq, run_of(message)) or not self.bounded:
            self.rivals[key.node] = (key.epoch, self.current.get(key.node, 0))
            yield Effect(*key, seq, None, stale=True, why=SECOND_LINE)

    def _awaited(self, key: EpochKey, since: int) -> bool:
        """Whether a birth may wait for the frames of an epoch from seq `since` on that took effect.

        Others wait for silence of the line in force, which just spoke.
        """
        if key.node not in self._unborn:
            return False
        named = (frames.predecessor for frames in self._lines[key.node].values())
        upto = self.epochs[key].applied.next
        return any(isinstance(of, tuple) and of[0] == key.epoch and since <= of[1] < upto for of in named)

    # --- order ----------------------------------------------------------------------------------------------------

    def _advance(self, node: str, now_us: int) -> Iterator[Effect]:
        again = True
        while again:
            again, early = False, self._early.of(node)
            for epoch in [*self._lines.get(node, ())]:
                if epoch in early:
                    continue
                key = EpochKey(node, epoch)
                frames = self.epochs.get(key)
                if frames is None or not frames.waiting:
                    continue
                if frames.lost:
                    yield from self._apply_lost(key, frames)
                    continue
                if frames.applied.next not in frames.waiting or (frames.blocked and not self._is_whole(key, frames)):
                    continue
                if frames.applied.next == 0:
                    if not frames.birth_is_here or not (yield from self._may_be_born(key, frames, now_us)):
                        continue
                elif key.epoch != self.current.get(node):
                    continue
                yield from self._run(key, frames, force=frames.blocked)
                again = True
        current = self.current.get(node)
        ahead = any(epoch != current and frames.waiting for epoch, frames in self._lines.get(node, {}).items())
        (self._unborn.add if ahead else self._unborn.discard)(node)

    def _may_be_born(self, key: EpochKey, frames: EpochFrames, now_us: int) -> Generator[Effect, None, bool]:
        """Whether a complete birth takes effect now. If so, ends its predecessor or declares the older line lost."""
        node, predecessor, line = key.node, frames.predecessor, self.current.get(key.node)
        first = frames.waiting[0]
        if isinstance(first, BadFrame) and first.run:  # the birth is lost and its predecessor unknown: begin without it
            self._born(key, frames, now_us)
            return True
        if isinstance(predecessor, tuple):
            named = EpochKey(node, predecessor[0])
            before = self.epochs.get(named)
            if before is not None and before.leads_to(first, predecessor[1]):
                frames.readings, frames.refused = before.readings, before.refused
                yield from self._end(named, before)
                self._born(key, frames, now_us)
                return True
            if before.applied.next <= predecessor[1] if before is not None else named not in self.ended:
                self._early.wait(key, named)
                return False
        if predecessor == LOST:
            if line is not None:
                self.restored.add(node)
            yield from self._lose(key)
        if line is None or predecessor == LOST:
            self._born(key, frames, now_us)
            return True
        # the birth is of a copy or of another device: it is a second successor, names a last seq below the frames
        # here, or has no predecessor. `min`, because a time from before a restart may be ahead of the clock
        since_us = frames.since_us = now_us if frames.since_us is None else min(frames.since_us, now_us)
        spoke_us = self.spoke_us.setdefault(node, now_us)  # unknown after a restart: silence counts from now on
        if now_us - max(spoke_us, since_us) < self.silence_us:
            self.rivals[node] = (key.epoch, line)
            return False
        frames.copied, frames.readings = True, None if isinstance(predecessor, tuple) else 0
        self.restored.add(node)
        yield from self._lose(key)
        self._born(key, frames, now_us)
        return True

    def _born(self, key: EpochKey, frames: EpochFrames, now_us: int) -> None:
        self._change(EpochKey(key.node, self.current.get(key.node, key.epoch)))  # this one is in force no longer
        self.current[key.node], self.spoke_us[key.node] = key.epoch, now_us
        if frames.held is not None:
            self.ended.born(key.node, set(frames.held))

    def _end(self, key: EpochKey, frames: EpochFrames) -> Iterator[Effect]:
        """End an epoch whose successor takes effect: the epoch has taken effect, and later frames are duplicates.

        Frames that wait are of another device, which has receipts for them: their content is declared lost.
        """
        for seq in sorted(frames.waiting):
            message = self._drop(key, frames, seq)
            self.rivals[key.node] = (key.epoch, self.current.get(key.node, 0))
            since_us = earliest(message) if isinstance(message, Frame) else message.since_us
            yield Effect(*key, seq, None, stale=True, why=SECOND_LINE, since_us=since_us)
        self._close(key)

    def retire(self, node: str) -> bool:
        """End all epochs of a node that will not come back. Returns False, without a change, if frames of it wait."""
        lines = self._lines.get(node, {})
        if any(frames.waiting for frames in lines.values()):
            return False
        for key in [EpochKey(node, epoch) for epoch in lines]:
            self._close(key)
        self.current.pop(node, None)
        self.spoke_us.pop(node, None)
        return True

    def _lose(self, successor: EpochKey) -> Iterator[Effect]:
        """Declare older epochs lost, so that only their data counts, even of epochs of which no frame has arrived yet.

        Births that wait continue to wait.
        """
        older = set(self.epochs[successor].held or ()) - self.ended.of.get(successor.node, {}).keys()
        lines, most = self._lines[successor.node], min(self.most_lost(successor.node), MOST_LOST)
        room = max(most - sum(frames.lost for frames in lines.values()), 0)
        for epoch in sorted(older - lines.keys())[:room]:  # a late birth of these must not count as a newer line
            self._open(EpochKey(successor.node, epoch), EpochFrames())
        for epoch, frames in list(self._lines[successor.node].items()):
            key, begun = EpochKey(successor.node, epoch), frames.applied.next > 0
            if epoch == successor.epoch or frames.lost or not (begun or epoch in older):
                continue  # the epoch may follow the successor, or be for another journal
            frames.lost, frames.unheard = True, not begun
            self._change(key)
            if begun:  # frames of the others take effect after the birth
                yield from self._apply_lost(key, frames)
        for epoch in self._strays(successor.node):
            self._lines[successor.node][epoch].copied = True
        lost = [epoch for epoch, frames in self._lines[successor.node].items() if frames.lost]
        for epoch in lost[:-most]:  # later frames of these are declared lost
            yield from self._end(EpochKey(successor.node, epoch), self.epochs[EpochKey(successor.node, epoch)])
            self._forgotten += 1

    def _run(self, key: EpochKey, frames: EpochFrames, *, force: bool = False) -> Iterator[Effect]:
        """Yield the waiting frames whose turn has come. force: do not let a frame with unknown numbers wait."""
        ahead: list[int] | None = None
        while frames.applied.next in frames.waiting:
            message = frames.waiting[frames.applied.next]
            if isinstance(message, Frame) and not force and not self._explains(key, message, frames.ahead):
                frames.blocked = True
                if len(frames.waiting) <= UNEXPLAINED and not frames.ended:
                    return
            frames.blocked = False
            effect = self._effect(key, frames, frames.applied.next, stale=False)
            frames.applied.next += 1
            if frames.applied.next > effect.seq + 1:  # sorted once: thousands of such records may wait
                ahead = sorted(frames.waiting, reverse=True) if ahead is None else ahead
                self._pass_over(key, frames, ahead)
            yield effect

    def _apply_lost(self, key: EpochKey, frames: EpochFrames) -> Iterator[Effect]:
        if frames.looked:
            return
        frames.looked = True
        for seq in sorted(frames.waiting) if frames.born else ():  # without a birth it may be for another journal
            message = frames.waiting[seq]
            if isinstance(message, Frame) and not self._explains(key, message, frames.ahead):
                continue  # it waits for earlier frames, which define its numbers
            effect = self._effect(key, frames, seq, stale=True)
            frames.applied.add(seq)
            yield effect

    def _effect(self, key: EpochKey, frames: EpochFrames, seq: int, *, stale: bool) -> Effect:
        message = self._drop(key, frames, seq)
        since_us: int | None = None
        if isinstance(message, Frame):
            why = frames.refuses(message)  # frames of another line may have arrived since it was stored
            if not why:
                frames.note(message)
                if not stale:  # a gap record may replace several frames that were never published (3.5)
                    frames.applied.next += run_of(message) - 1
                return Effect(*key, seq, message, stale, copied=frames.copied, unheard=frames.unheard)
            frames.refuse(message)
            since_us = _since(message, why)
        else:
            why, since_us = message.reason, message.since_us
            if not stale:
                frames.applied.next += run_of(message) - 1
        frames.quarantine(seq)
        return Effect(*key, seq, None, stale, why, since_us=since_us)

    def _pass_over(self, key: EpochKey, frames: EpochFrames, ahead: list[int]) -> None:
        """Drop the waiting frames that the one which took effect replaced. ahead: what may wait, the first seq last."""
        while ahead and ahead[-1] < frames.applied.next:
            if (covered := ahead.pop()) in frames.waiting:
                self._drop(key, frames, covered)

    # --- time -----------------------------------------------------------------------------------------------------

    def shift(self, by_us: int) -> None:
        """Shift times by a step of the clock, or by a time without a lander, which is not silence of a line (1.4)."""
        self._set_times(lambda us: us + by_us)

    def stepped_back(self, now_us: int) -> None:
        """The clock stepped back: limit remembered times to now_us."""
        self._set_times(lambda us: min(us, now_us))

    def _set_times(self, of: Callable[[int], int]) -> None:
        self.spoke_us = {node: of(us) for node, us in self.spoke_us.items()}
        for key, frames in self.epochs.items():
            if frames.since_us is not None:
                frames.since_us = of(frames.since_us)
                self._change(key)

    def waits(self, node: str) -> bool:
        """Whether frames of a child wait for other frames."""
        if node in self._unborn:
            return True
        current = self.in_force(node)
        return current is not None and bool(current.waiting)

    # --- the spool ------------------------------------------------------------------------------------------------

    def snapshot(self, key: EpochKey) -> EpochFramesState | None:
        """The state of one epoch without its waiting frames; None if it has ended."""
        frames = self.epochs.get(key)
        return None if frames is None else frames.snapshot(current=self.current.get(key.node) == key.epoch)

    def restore(self, key: EpochKey, state: EpochFramesState, waiting: Mapping[int, Frame | BadFrame]) -> None:
        """Continue from the result of `snapshot` and the waiting frames."""
        if state.closed and not state.lost:  # an older version wrote this state of an ended epoch
            self.ended.add(key, state.next)
            self._change(key)
            return
        frames = EpochFrames.restore(state, waiting)
        self._open(key, frames)
        for message in waiting.values():
            self.waiting.add(key, message)
        if state.current:
            self.current[key.node] = key.epoch
        if waiting:
            self._unborn.add(key.node)
