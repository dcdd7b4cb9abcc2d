"""Decides about the frames of a `FrameQueue` after receipts, a new journal, a move to another parent, damage or quota.

Rules (docs/protocol.md): receipted frames are deleted (3.3). If the parent receipts later frames but not this one, a
gap record replaces the frame after 5 re-sendings (3.6). A new journal makes the parent a new parent (3.7,
journal_change.py). Frames published to a former parent stay with that parent, and a `leave` ends them (1.5,
former_lines.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final

from edge_agent.algebra.frame import DAMAGED, LOST, NEVER_US, Birth, Frame, Gap, Leaf, Receipt
from edge_agent.algebra.query.query import Group
from edge_agent.errors import PortError, WireError
from edge_agent.machines.events import Note
from edge_agent.machines.uplink import gap_records
from edge_agent.machines.uplink.former_lines import OTHER_JOURNALS, FormerLine, leave_frames
from edge_agent.machines.uplink.frame_queue import FrameQueue
from edge_agent.machines.uplink.journal_change import (
    Joined,
    Leaves,
    Load,
    Numbers,
    first_frontiers,
    in_doubt,
    listing,
    lost_with_journal,
    moved,
    sort_out,
    stated_again,
)
from edge_agent.machines.uplink.pending_frames import POISON_TRIES, FrameKey, Pending, PendingFrames
from edge_agent.machines.uplink.step import Step

KEPT_JOURNALS: Final = 8  # number of former journals remembered, because receipts of them may still arrive
OLD_RECEIPTS: Final = 5  # after so many receipts in a row of a former journal the parent counts as restored from a copy
LOOKED_AHEAD: Final = 50  # number of frames searched for the first frontier of each group


class Outbox(FrameQueue):
    """The frames of one node, with the effects of its parents' receipts on them."""

    def receipt(self, receipt: Receipt, load: Callable[[int, int], Frame]) -> list[Note]:
        """Delete the frames that a receipt names. load: reads a spooled frame, needed only to give it up (3.6)."""
        notes: list[Note] = []
        former = self.former_lines.line_of(receipt)
        if former is not None:
            return self._former_receipt(*former, receipt, load)
        others = self.several or bool(self.former_lines.lines)
        if receipt.journal != self.journal and others and not self._for_us(receipt):
            return []  # a late receipt of another parent
        if self.journal is None:
            self.journal = receipt.journal
            notes.append(Note("parent.journal", {"journal": receipt.journal}))
        elif receipt.journal != self.journal:
            return self._other_journal(receipt.journal)
        self._old_receipts, self.answered = 0, True
        notes += self._of_another_journal(receipt, load)
        gone, poison = self.pending.receipted(receipt, self._flying)
        self.forget += gone
        notes += [self._give_up(key, load(*key)) for key in poison]
        notes += self._pass_over(receipt)
        if receipt.quarantined:
            notes.append(Note("frame.quarantined", {"epoch": receipt.epoch, "seqs": list(receipt.quarantined)}))
        return notes

    def _pass_over(self, receipt: Receipt) -> list[Note]:
        """Skip numbers that the parent has and this node has not used: another device has a copy of its spool.

        A frame with such a number would be deleted by the receipt for the other device's frame (1.4).
        """
        if receipt.epoch != self._drawn or self._drawn != self.epoch:
            return []
        first, self.seq = self.seq, max(self.seq, receipt.upto)
        for low, high in receipt.above:
            if low <= self.seq <= high:
                self.seq = high + 1
        taken = [first, self.seq - 1]
        return [Note("frame.numbers_taken", {"epoch": self.epoch, "seqs": taken})] if self.seq > first else []

    def asked_anew(self, receipt: Receipt) -> bool:
        """Whether the parent quarantined frames of this epoch after their receipt, so that numbers may be undefined."""
        if receipt.epoch != self.epoch or receipt.journal != self.journal or not receipt.quarantined:
            return False
        epoch, known = self._bad
        known = known if epoch == self.epoch else frozenset()
        self._bad = self.epoch, known | set(receipt.quarantined)
        return any((self.epoch, seq) not in self.pending for seq in self._bad[1] - known)

    # --- another parent (1.5) ---------------------------------------------------------------------------------------

    def _former_receipt(self, parent: str, line: FormerLine, receipt: Receipt, load: Load) -> list[Note]:
        """Take a receipt of a former parent: delete its frames, or note after several that its journal is lost."""
        if line.journal is None:
            line.journal = receipt.journal
        if receipt.journal != line.journal:
            line.others += 1
            if line.others < OTHER_JOURNALS or parent in self.lost_lines:
                return []
            self.lost_lines.append(parent)
            return [Note("parent.journal_lost", {"parent": parent, "frames": len(line.pending)})]
        line.others = 0
        notes = self._of_another_journal(receipt, load, line)
        gone, poison = line.pending.receipted(receipt, line.flying)
        self.forget += gone
        notes += [self._give_up(key, load(*key)) for key in poison]
        if gone and not len(line.pending):
            notes.append(Note("parent.left", {"parent": parent}))
        return notes

    def _for_us(self, receipt: Receipt) -> bool:
        """Whether a receipt with an unknown journal comes from the present parent and not from a former one."""
        if self.former_lines.knows(receipt.journal, self.parent):
            return False
        present = self.journal is not None and (receipt.epoch == self.epoch or receipt.epoch in self.pending.epochs())
        return present or receipt.epoch == self.ask_epoch

    def end_line(self, parent: str, load: Load, now_us: int = 0) -> FormerLine | None:
        """Address all later frames to another parent. Returns the ended line; None if this process published nothing.

        Published frames, and all frames of earlier epochs, stay with the old parent. Frames of the present epoch that
        were never published move into the next epoch, which the caller must draw now, unless None is returned.
        """
        old, self.parent, self.answered = self.parent, parent, False
        self._asked += 1
        unsent = [key for key in self.pending.unmarked() if key[0] == self.epoch]
        first = next(iter(self.pending), None)
        born = None if first is None else self._born.get(first[0])
        never = first is not None and first[1] == 0 and not self.pending.marked and born is not None
        back = self.former_lines.lines.get(parent)
        if self.journal is None or (never and born is not None and not isinstance(born.predecessor, tuple)):
            staying = self._published_before(load)
            self.former_lines.leave(old, *staying, up=self.link_up, now_us=now_us)
            self._readdress_all(back, load)
            return None
        if (self.epoch, 0) not in self.pending or (self.epoch, 0) in self.pending.marked:
            end = (self.epoch, unsent[0][1] - 1 if unsent else self.seq - 1)
        else:
            assert isinstance(self.predecessor, tuple)
            end = self.predecessor
        moving = set(unsent)
        doubtful = [(key, key in self.pending.marked) for key in self.pending if key not in moving]
        line = self.former_lines.leave(old, self.journal, end, doubtful, up=self.link_up, now_us=now_us)
        for key in list(self.pending):
            del self.pending[key]
        self._flying.clear()
        self._move_frames(unsent)
        self.journal = None if back is None else back.journal
        self.births.clear()
        return line

    def _published_before(self, load: Load) -> tuple[int | None, None, list[tuple[FrameKey, bool]]]:
        """Remove epochs that were published before the slots were lost (1.2): the old parent may have counted them.

        Returns (journal for which they were published, if known, None: no end, (frame, whether sent) in order).
        """
        epochs = {of for of in self.pending.epochs() if (of, 0) not in self.pending or (of, 0) in self.pending.marked}
        staying = [(key, key in self.pending.marked) for key in self.pending if key[0] in epochs]
        journal = self.journal
        for key, _ in staying:
            del self.pending[key]
            if key[1] == 0:
                with suppress(PortError, WireError):
                    birth = load(*key).birth
                    journal = journal if birth is None else birth.journal or None
        return journal, None, staying

    def leave(
        self, line: FormerLine, leaves: Mapping[Group, Iterable[Leaf]], retired: Collection[str] = ()
    ) -> list[Frame]:
        """Make the frames that end a line, after the next epoch is drawn. leaves, retired: see `leave_frames`.

        Frames that define the numbers of those that move go before them.
        """
        line_end = line.end
        assert line_end is not None
        back = self.former_lines.lines.get(self.parent)
        self.predecessor = None if back is None else back.end
        listed = {group: [self.as_moved(group, leaf) for leaf in each] for group, each in leaves.items()}
        end = line_end[0], line_end[1] + 1
        frames = list(leave_frames(end, self.epoch, listed, self.frame_bytes, retired))
        for frame in frames:
            line.pending.add(frame.epoch, frame.seq)
            self._uncommitted.append((frame.epoch, frame.seq))
        line.end = (line_end[0], frames[-1].seq)
        self.moved_from = line_end[0], {group: {leaf.node: leaf for leaf in each} for group, each in leaves.items()}
        return [*self._take_restated(), *frames]

    def _readdress_all(self, back: FormerLine | None, load: Load) -> None:
        """Address all epochs to the new parent as they are, because nothing was ever published to the old one."""
        self.journal = None if back is None else back.journal
        for i, frame in enumerate(self._births(load)):
            assert frame.birth is not None
            epoch, predecessor = frame.epoch, frame.birth.predecessor
            if i == 0 and (back is not None or isinstance(predecessor, tuple)):
                predecessor = None if back is None else back.end
            frame = replace(frame, birth=replace(frame.birth, journal=self.journal or 0, predecessor=predecessor))
            if epoch in self._born:
                self._born[epoch] = replace(self._born[epoch], predecessor=predecessor)
            if epoch == self.epoch:
                self.predecessor = predecessor
            if self.journal is None:
                self.births[epoch] = frame
            self.replaced.append(frame)

    def _births(self, load: Load) -> list[Frame]:
        """The births of epochs that were never published, in order, to be addressed anew.

        If the bytes of one are damaged, a gap record takes its place, with its known fields. If these are lost with the
        slots, the epoch is given up; the next one says that its predecessor is lost, so that nobody waits for it (1.2).
        """
        out, lost = list[Frame](), False
        for epoch in dict.fromkeys(epoch for epoch, seq in self.pending if seq == 0):
            frame = self.births.pop(epoch, None)
            if frame is None:
                try:
                    frame = load(epoch, 0)
                except (PortError, WireError):
                    frame = self._in_place_of(epoch, 0)
                    self.lost_frames += frame.birth is not None
            if frame.birth is None:
                self._drop_epoch(epoch, self.pending, self._flying)
            elif lost and isinstance(frame.birth.predecessor, tuple):
                out.append(replace(frame, birth=replace(frame.birth, predecessor=LOST)))
            else:
                out.append(frame)
            lost = frame.birth is None
        return out

    def _drop_epoch(self, epoch: int, pending: PendingFrames, flying: set[FrameKey]) -> Note:
        """Give up an epoch from before the slots were lost.

        The parent declares the content lost, because the next birth names no predecessor (1.2, 3.7).
        """
        gone = [each for each in pending if each[0] == epoch]
        for each in gone:
            del pending[each]
            flying.discard(each)
        self.forget += gone
        self.lost_frames += len(gone)
        return Note("frame.given_up", {"epoch": epoch, "seq": 0, "frames": len(gone)})

    def accept_loss(self, parent: str, reached: Mapping[Group, int], nodes: Leaves, load: Load) -> tuple[Gap, ...]:
        """Give up the frames that a former parent has not receipted. Returns their gap records.

        reached, nodes: see `join_journal`.
        """
        line = self.former_lines.lines[parent]
        keys = list(line.pending)
        self.forget += keys
        # the parent stays known for the books (9.1), with nothing that a return would continue
        self.former_lines.lines[parent] = FormerLine(None, None)
        self.lost_lines = [each for each in self.lost_lines if each != parent]
        ends = [line.end for line in self.former_lines.lines.values() if line.end is not None]
        self.moved_from = (ends[-1][0], self.moved_from[1]) if ends else (0, {})  # now of the line before
        return self._in_doubt(keys, reached, nodes, load)

    # --- another journal of the parent (3.7) ------------------------------------------------------------------------

    def _other_journal(self, journal: int) -> list[Note]:
        """Take a receipt of another journal. One receipt of a former journal may be late; several in a row are not."""
        if journal in self.left:
            self._old_receipts += 1
            if self._old_receipts < OLD_RECEIPTS:
                return []
        known, self._old_receipts = self.journal, 0
        left = [*(each for each in self.left if each != known), *([] if known is None else [known])]
        self.left = left[-KEPT_JOURNALS:]
        self.journal, self.outdated, self.answered = journal, True, True
        return [Note("parent.journal_changed", {"known": known, "got": journal, "frames": self.spooled})]

    def join_journal(
        self, load: Load, reached: Mapping[Group, int], nodes: Leaves, *, all_move: bool = False
    ) -> Joined:
        """Decide about spooled frames. reached: group -> latest end of the rows sent. nodes: group -> its leaves.

        all_move: frames of earlier epochs that were never published move too, if it is known what their numbers mean.
        """
        if not self.outdated:
            return self._go_on(load, reached, nodes)
        self.outdated, self.changes = False, self.changes + 1
        known = set(self._epochs_known(load)) if all_move else set[int]()
        spooled = sort_out(((key, key in self.pending.marked) for key in self.pending), self.epoch, known)
        gaps = self._in_doubt([*spooled.doubtful, *self._to_move], reached, nodes, load)
        first = dict[Group, int]()
        for key in (*spooled.moving, *spooled.kept)[:LOOKED_AHEAD]:
            with suppress(PortError, WireError, ValueError, KeyError):
                frame, numbers = load(*key), self._numbers_of(key, load)
                numbers.learn(frame.define)
                first_frontiers(frame, numbers.groups, first)
        self._left.clear()
        gaps += lost_with_journal({**reached, **first}, nodes)
        self.forget += [*spooled.doubtful, *self._to_move]
        for key in (*spooled.doubtful, *spooled.moving):
            del self.pending[key]
        self._flying.clear()
        self._move_frames(spooled.moving)
        if not spooled.kept:
            self.births.clear()
            return Joined(begins=True, gaps=gaps, frames=self._take_restated())
        return Joined(frames=self._readdress(gaps, load))

    def _in_doubt(
        self, keys: list[tuple[int, int]], reached: Mapping[Group, int], nodes: Leaves, load: Load
    ) -> tuple[Gap, ...]:
        span_us = self.late.earliest_us(keys), max(reached.values(), default=NEVER_US)
        found = in_doubt(keys, self.encoder, self.epoch, nodes, load, span_us=span_us)
        self.sent_readings -= found.readings
        self.lost_readings += found.readings
        self.lost_frames += found.unread
        return found.gaps

    def _readdress(self, gaps: tuple[Gap, ...], load: Load) -> list[Frame]:
        """Address epochs that were never published to the new journal.

        Returns the frames of an epoch ahead of them that declares the losses `gaps`: their births may have no room.
        """
        births = self._births(load)
        ahead = self.open_ahead(gaps, listing(births[0], self.node, load) if births else ()) if gaps else []
        for i, frame in enumerate(births):
            assert frame.birth is not None
            birth = replace(frame.birth, journal=self.journal or 0, held=None)
            if i == 0:
                before = (ahead[-1].epoch, ahead[-1].seq) if ahead else None
                birth = replace(birth, predecessor=before, flush=None)
            if frame.epoch in self._born:
                self._born[frame.epoch] = replace(self._born[frame.epoch], predecessor=birth.predecessor)
            self.replaced.append(replace(frame, birth=birth))
        return ahead

    def _go_on(self, load: Load, reached: Mapping[Group, int], nodes: Leaves) -> Joined:
        """Go on to move frames after a restart. Those of which nothing says what their numbers mean are in doubt."""
        last = dict(self._to_move)
        lost = {epoch for epoch, seq in last.items() if stated_again(epoch, seq, load) is None}
        rest, left = [key for key in self._to_move if key[0] in lost], self.leaving
        self._to_move = deque(key for key in self._to_move if key[0] not in lost)
        self.leaving = left if self._to_move else 0
        if not rest:
            return Joined()
        self.forget += rest
        gaps = self._in_doubt(rest, reached, nodes, load)
        return Joined(gaps=gaps + (() if left == self.moved_from[0] else lost_with_journal(reached, nodes)))

    def _epochs_known(self, load: Load) -> Iterator[int]:
        """Yields the epochs with frames never published whose numbers have a known meaning."""
        for epoch in self.pending.unsent():
            whole = (epoch, 0) in self.pending and (epoch, 0) not in self.pending.marked
            if whole or epoch == self.former[0] or stated_again(epoch, self.pending.highest(epoch), load) is not None:
                yield epoch

    def _numbers_of(self, key: FrameKey, load: Load) -> Numbers:
        """The numbers of the epoch of a frame, as far as they are known. key: of the first frame to read of it."""
        epoch = key[0]
        if epoch not in self._left:
            known = {self.former[0]: self.former[1], self.epoch: self.encoder}.get(epoch)
            last = max((seq for of, seq in self._to_move if of == epoch), default=self.pending.highest(epoch))
            stated = Numbers.of(known) if known is not None else stated_again(epoch, max(last, key[1]), load)
            self._left[epoch] = Numbers() if stated is None else stated  # a whole epoch defines them as it goes
        return self._left[epoch]

    def moved_steps(self, load: Load, most: int) -> list[Step]:
        """Turn the next frames to move into steps for the present epoch. The same commit deletes these frames.

        most: how many frames at once.
        """
        out = list[Step]()
        while self._to_move and len(out) < most:
            key = self._to_move.popleft()
            try:
                frame = load(*key)
                out.append(moved(frame, self._numbers_of(key, load)))
                self.sent_readings -= frame.readings  # counted again in the new epoch
            except (PortError, WireError, ValueError, KeyError):
                gap = Gap(tuple(self.encoder.groups), 0, 0, -1, (), DAMAGED)
                out.append(Step(gaps=(gap, *self.late.gaps(*key))))
                self.lost_frames += 1
            self.forget.append(key)
        if not self._to_move:
            self.leaving = 0
            self._left.clear()
        return out

    # --- frames that are given up -----------------------------------------------------------------------------------

    def _give_up(self, key: tuple[int, int], frame: Frame) -> Note:
        """Replace a frame by a gap record that keeps everything but its rows (3.6)."""
        record = gap_records.in_place_of_refused(frame, self.encoder, present=frame.epoch == self.epoch)
        self.replaced.append(self._fitting(record))
        (self.former_lines.of(key) or self.pending).marked[key] = Pending()
        self.sent_readings -= frame.readings
        self.lost_readings += frame.readings
        return Note("frame.given_up", {"epoch": key[0], "seq": key[1], "readings": frame.readings})

    def _of_another_journal(self, receipt: Receipt, load: Load, line: FormerLine | None = None) -> list[Note]:
        """Give up an epoch from before the slots were lost, if the parent refuses it: its birth names a former journal.

        line: of the parent; None: the present one.
        """
        pending, flying, journal = self.pending, self._flying, self.journal
        if line is not None:
            pending, flying, journal = line.pending, line.flying, line.journal
        key = (receipt.epoch, 0)
        birth_sent = pending.marked.get(key)
        if receipt.upto or receipt.epoch == self.epoch or birth_sent is None or birth_sent.tries <= POISON_TRIES:
            return []
        try:
            birth = load(*key).birth
        except (PortError, WireError):
            return []
        if birth is None or birth.journal == journal:
            return []
        return [self._drop_epoch(receipt.epoch, pending, flying)]

    def damaged(self, epoch: int, seq: int) -> list[Note]:
        """Replace a damaged frame by a gap record of all groups of the epoch (3.5, 3.6).

        The record defines the numbers of the epoch again, because the frame may have defined some (2.4).
        """
        key = (epoch, seq)
        pending = self.former_lines.of(key) or self.pending
        if key not in pending.marked:
            return []
        self.replaced.append(self._in_place_of(epoch, seq))
        self.sent(*key)
        pending.marked[key] = Pending()
        self.lost_frames += 1
        return [Note("frame.damaged", {"epoch": epoch, "seq": seq})]

    def _in_place_of(self, epoch: int, seq: int, *, defines: bool = True) -> Frame:
        """The gap record that replaces a damaged frame. defines: it states the numbers of its epoch, if known."""
        known = {self.former[0]: self.former[1], self.epoch: self.encoder}.get(epoch) if defines else None
        birth, born = None, self._born.get(epoch)
        if seq == 0 and born is not None:
            journal = self.former_lines.journal_of((epoch, seq)) or self.journal or 0
            birth = Birth(born.epoch_id, journal, born.predecessor, self.version, born.frames)
        frame, late = Frame(epoch, seq, birth), self.late.gaps(epoch, seq)
        return self._fitting(gap_records.in_place_of_damaged(frame, self.encoder, known, late))

    def _fitting(self, record: Frame) -> Frame:
        return gap_records.fitting(record, self.frame_bytes * 15 // 16)  # the rest is room for an error of estimates

    def drop(self, count: int, load: Callable[[int, int], Frame]) -> list[Note]:
        """Replace about `count` frames by gap records, because the spool has reached its quota (3.5).

        Frames never published go first: the oldest run of them gets one record. If there is none, published frames get
        a record each. Some frames may not be dropped, see `gap_records.may_go`. load: see `receipt`.
        """
        unread = set[FrameKey]()
        run = gap_records.oldest_run(self.pending.unmarked(), lambda key: self._read(key, load, unread), count)
        if run:
            records = [self._record_of(run)]
            if any((frame.epoch, frame.seq) in unread for frame in run):  # they may have defined numbers (2.4)
                define = self._in_place_of(run[0].epoch, run[0].seq).define
                records = [gap_records.defining(records[0], define, self.frame_bytes * 3 // 4)]
            for seq in range(run[0].seq + 1, run[-1].seq + gap_records.covers(run[-1])):
                if (run[0].epoch, seq) in self.pending:  # frames that an earlier record replaced are gone already
                    del self.pending[run[0].epoch, seq]
                    self.forget.append((run[0].epoch, seq))
        else:
            on_the_way = (key for key in self.pending.marked if key not in self._flying)
            read = (self._read(key, load, unread) for key in on_the_way)
            run = list(islice((f for f in read if gap_records.may_go(f) and not any(g.run for g in f.gaps)), count))
            records = [self._record_of([frame]) for frame in run]
        self.replaced += map(self._fitting, records)
        readings = sum(frame.readings for frame in run)
        self.sent_readings -= readings
        self.lost_readings += readings
        self.lost_frames += sum((frame.epoch, frame.seq) in unread for frame in run)
        return [Note("spool.dropped", {"frames": len(run), "readings": readings})] if run else []

    def _read(self, key: FrameKey, load: Load, unread: set[FrameKey]) -> Frame:
        try:
            return load(*key)
        except (PortError, WireError):  # damaged on the disk: a birth stays, of any other all is declared lost
            unread.add(key)
            frame = self._in_place_of(*key, defines=False)
            return replace(frame, gaps=tuple(replace(gap, detail="") for gap in frame.gaps))

    def _record_of(self, frames: list[Frame]) -> Frame:
        known = {self.former[0]: self.former[1], self.epoch: self.encoder}.get(frames[0].epoch)
        groups = None if known is None else {number: group for group, number in known.groups.items()}
        return gap_records.record_of(frames, groups, self.encoder.groups)
