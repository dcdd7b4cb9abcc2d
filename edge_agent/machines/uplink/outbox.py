"""Sends frames to the parent: numbers them, publishes them from the spool until the receipt, then deletes them.

Rules (docs/protocol.md): an epoch has a random 64-bit id and frames numbered from 0 without a hole (1.1); frame 0 is
the birth, written when the parent's journal is known, nothing is published before (1.2, 3.7); an epoch ends by a flush
that names the last seq before it (1.3); a broker's PUBACK only makes room in flight (3);
receipted frames are deleted, the rest sent again with jittered back-off, `sent` is committed before the first publish
(3.3); a frame that the parent refuses to receipt while it receipts later ones becomes a gap record after 5 re-sendings
(3.6); heartbeats are neither spooled nor receipted (2.5); a new journal of the parent is a new parent (3.7,
journal_change.py).

    SPOOLED --mark--> MARKED --publish--> SENT --receipt--> gone
                        ^------ link down / back-off ---'
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Final

from edge_agent.algebra.frame import (
    LOST,
    MAX_FRAME_BYTES,
    MAX_KEYS,
    NEVER_US,
    Birth,
    Frame,
    Gap,
    Heartbeat,
    Receipt,
)
from edge_agent.algebra.query.query import Group
from edge_agent.errors import PortError, WireError
from edge_agent.machines.checkpoint.slots import BirthState, OutboxState
from edge_agent.machines.events import Note, Publish, Relieve, SpooledFrame
from edge_agent.machines.uplink import promises, quota
from edge_agent.machines.uplink.epoch_encoder import EpochEncoder
from edge_agent.machines.uplink.gap_records import gap_of, promises_of
from edge_agent.machines.uplink.journal_change import (
    Load,
    first_frontiers,
    in_doubt,
    lost_with_journal,
    moved,
    sort_out,
)
from edge_agent.machines.uplink.pending_frames import Pending, PendingFrames
from edge_agent.machines.uplink.step import Step

RESEND_US: Final = 5_000_000  # several commit intervals of the parent: a receipt that is only slow costs no re-sending
RESEND_MOST_US: Final = 60_000_000
POISON_TRIES: Final = 5  # re-sendings before a frame that later frames overtake is replaced (3.6)
KEPT_JOURNALS: Final = 8  # journals that were left: their receipts may still be under way
OLD_RECEIPTS: Final = 5  # of a journal that was left, with none of the new one between: its parent was restored
LOOKED_AHEAD: Final = 50  # frames that are searched for the first frontier of each group
MARK_AHEAD: Final = 1_000  # frames marked `sent` and published without a receipt; bounds what a duplicate storm costs


class Outbox:
    """One node's frames to its parent."""

    def __init__(
        self,
        node: str,
        random: Random,
        *,
        version: str,
        in_flight: int = 20,
        frame_bytes: int = MAX_FRAME_BYTES,
        max_keys: int = MAX_KEYS,
        lost: bool = False,
    ) -> None:
        """random: draws epoch ids and jitter. in_flight: publishes that the broker has not confirmed. frame_bytes,
        max_keys: see EpochEncoder. lost: nothing is known of epochs before (1.2).
        """
        self.node, self.version, self.in_flight = node, version, in_flight
        self.frame_bytes, self.max_keys = frame_bytes, max_keys
        self.random = random
        self.journal: int | None = None
        self.epoch_id = 0
        self.seq = 0
        self.predecessor: tuple[int, int] | str | None = LOST if lost else None
        self.encoder = self.new_encoder()
        self.pending = PendingFrames()
        self.forget: list[tuple[int, int]] = []
        self.replaced: list[Frame] = []
        self.births: dict[int, Frame] = {}  # of epochs opened before the journal was known, written when it is
        self.former: tuple[int, EpochEncoder] = (0, self.encoder)  # the epoch before, and its numbers
        self.outdated = False  # the parent has another journal: nothing leaves until the node has joined it (3.7)
        self.left: list[int] = []  # journals of the parent that are no more, newest last
        self.changes = 0  # of the parent's journal
        self.leaving = 0  # the epoch of which frames are still to be moved into the present one
        self._to_move: deque[tuple[int, int]] = deque()
        self._left_encoder = self.encoder  # of that epoch
        self._old_receipts = 0
        self._born: dict[int, BirthState] = {}  # of epochs of which frames are in the spool
        self.withheld: frozenset[Group] = frozenset()  # groups whose frontier would need more registers than there are
        self.link_up = False
        self._flying: set[tuple[int, int]] = set()
        self._uncommitted: list[tuple[int, int]] = []
        self.spoke_us = NEVER_US
        # the books (9.1): readings in all frames numbered, without those that a gap record replaced; frames replaced
        # whose readings are not known; False: the spool is older than its books
        self.sent_readings = self.lost_readings = self.lost_frames = 0
        self.whole_books = True

    @property
    def epoch(self) -> int:
        """What frames of the present epoch carry: its first 32 bits (1.1)."""
        return self.epoch_id >> 32

    def draw(self, *, anew: bool = False) -> None:
        """Draw the id of a new epoch; `open` comes next, with a birth that knows it. anew: for a new journal (3.7)."""
        if anew:
            self.predecessor = None
        elif self.epoch_id:
            self.predecessor = (self.epoch, self.seq - 1)
        used = self.pending.epochs() | {self.epoch}
        self.former = (self.epoch, self.encoder)
        while self.epoch in used:
            self.epoch_id = self.random.getrandbits(64) or 1
        self.encoder, self.seq = self.new_encoder(None if anew else self.encoder), 0

    def new_encoder(self, before: EpochEncoder | None = None) -> EpochEncoder:
        """An encoder with the limits of this node. before: that of the epoch which goes on."""
        return EpochEncoder(frame_bytes=self.frame_bytes, max_keys=self.max_keys, before=before)

    def open(self, step: Step) -> list[Frame]:
        """Begin the epoch drawn: the birth and what does not fit into it. step: members, frontiers, definitions."""
        held = tuple(sorted(self.pending.epochs()))
        birth = Birth(self.epoch_id, self.journal or 0, self.predecessor, self.version, held=held)
        frames = self._add(self.encoder.encode_step(self.epoch, 0, step, birth))
        self._born = {epoch: each for epoch, each in self._born.items() if epoch in held}
        self._born[self.epoch] = BirthState(self.epoch_id, self.predecessor, len(frames))
        if self.journal is None:
            self.births[self.epoch] = frames[0]
        return frames

    def put(self, step: Step) -> list[Frame]:
        """The frames of a step in the present epoch, to be committed. Raises: KeysExhausted (nothing was numbered)."""
        return self._add(self.encoder.encode_step(self.epoch, self.seq, step))

    def flush(self, step: Step, after: int | None = None) -> list[Frame]:
        """The last frames of the present epoch (1.3). after: the last seq before the first of them, if not the last."""
        return self.put(replace(step, flush=self.seq - 1 if after is None else after))

    def restate(self) -> list[Frame]:
        """Frames that repeat what the numbers of this epoch mean (2.4)."""
        return self._add(self.encoder.restate(self.epoch, self.seq))

    def _add(self, frames: list[Frame]) -> list[Frame]:
        for frame in frames:
            self.sent_readings += frame.readings
            self.pending.add(frame.epoch, frame.seq)
            self._uncommitted.append((frame.epoch, frame.seq))
        self.seq += len(frames)
        return frames

    def marks(self) -> list[tuple[int, int]]:
        """Frames to mark as sent in the commit that is being made: those about to be published for the first time."""
        if not self.link_up or self.journal is None:
            return []
        fresh = self.pending.mark(self._markable)
        self._uncommitted += fresh
        return fresh

    @property
    def _markable(self) -> int:
        return max(MARK_AHEAD - len(self.pending.marked), 0)

    def relieve(self) -> Relieve | None:
        """What lets frames go, and further ones be published, while a full disk refuses the commit under way."""
        fresh: list[tuple[int, int]] = []
        if self.link_up and self.journal is not None and not self.births:
            fresh = self.pending.mark(self._markable, frozenset(self._uncommitted))
            self._uncommitted += fresh
        forget = self.take_forgotten()
        return Relieve(tuple(forget), tuple(fresh)) if forget or fresh else None

    def relieved(self, marks: Iterable[tuple[int, int]]) -> None:
        """These are marked durably and may be published."""
        gone = set(marks)
        self._uncommitted = [key for key in self._uncommitted if key not in gone]

    def committed(self) -> None:
        """What was put before is durable now and may be published."""
        self._uncommitted.clear()

    def learnt_journal(self) -> list[Frame]:
        """Births that wait for the journal, now with it, as replacements in the spool; none when none waits."""
        if self.journal is None:
            return []
        births = [
            replace(frame, birth=replace(frame.birth, journal=self.journal))
            for frame in self.births.values()
            if frame.birth is not None
        ]
        self._uncommitted += [(frame.epoch, frame.seq) for frame in births]
        self.births.clear()
        return births

    def take_replaced(self) -> list[Frame]:
        """Gap records that stand in for given-up frames since the last call, for the commit that is being made."""
        out, self.replaced = self.replaced, []
        self._uncommitted += [(frame.epoch, frame.seq) for frame in out]
        return out

    def take_forgotten(self) -> list[tuple[int, int]]:
        """Receipted frames since the last call, for the commit that is being made."""
        out, self.forget = self.forget, []
        return out

    def publish(self, now_us: int) -> list[Publish]:
        """What to send now: marked frames in order while there is room, and those whose receipt is overdue."""
        if not self.link_up or self.journal is None or self.births or self.outdated:
            return []
        out, room = list[Publish](), self.in_flight - len(self._flying)
        if room <= 0:
            return out
        waiting, soon_us = set(self._uncommitted), now_us - RESEND_US * 3 // 4  # no back-off is shorter
        for key, pending in self.pending.marked.items():
            sent_us = pending.sent_us
            if (sent_us is not None and sent_us > soon_us) or key in self._flying or key in waiting:
                continue
            if room <= len(out):
                break
            if sent_us is not None:
                backoff_us, waited_us = min(RESEND_US << min(pending.tries - 1, 8), RESEND_MOST_US), now_us - sent_us
                if waited_us < backoff_us * 0.75 or waited_us < backoff_us * (0.75 + 0.5 * self.random.random()):
                    continue
            pending.sent_us = now_us
            pending.tries += 1
            out.append(Publish(*key))
        self._flying.update((p.epoch, p.seq) for p in out)
        if out:
            self.spoke_us = now_us
        return out

    def sent(self, epoch: int, seq: int) -> None:
        """The broker took it: room for another."""
        self._flying.discard((epoch, seq))

    def link(self, *, up: bool) -> None:
        """The connection came or went; what was in flight may be lost and is sent again."""
        self.link_up = up
        self.spoke_us = NEVER_US
        self._flying.clear()
        for pending in self.pending.marked.values():
            pending.sent_us, pending.tries = None, 0

    def receipt(self, receipt: Receipt, load: Callable[[int, int], Frame]) -> list[Note]:
        """Let go what the parent has. load: a spooled frame's content, asked for only when it is given up (3.6)."""
        notes: list[Note] = []
        if self.journal is None:
            self.journal = receipt.journal
            notes.append(Note("parent.journal", {"journal": receipt.journal}))
        elif receipt.journal != self.journal:
            return self._other_journal(receipt.journal)
        self._old_receipts = 0
        top = receipt.above[-1][1] if receipt.above else receipt.upto - 1
        for key in [k for k in self.pending.marked if k[0] == receipt.epoch]:  # no other was sent
            seq, pending = key[1], self.pending.marked[key]
            if seq < receipt.upto or any(low <= seq <= high for low, high in receipt.above):
                del self.pending[key]
                self._flying.discard(key)
                self.forget.append(key)
            elif seq < top and pending.tries > pending.refused + 1:
                pending.refused = pending.tries - 1
                if pending.refused >= POISON_TRIES:
                    notes.append(self._give_up(key, load(*key)))
        if receipt.quarantined:
            notes.append(Note("frame.quarantined", {"epoch": receipt.epoch, "seqs": list(receipt.quarantined)}))
        return notes

    # --- another journal of the parent (3.7) ------------------------------------------------------------------------

    def _other_journal(self, journal: int) -> list[Note]:
        """A receipt of another journal. One that was left before may be late; several in a row are not."""
        if journal in self.left:
            self._old_receipts += 1
            if self._old_receipts < OLD_RECEIPTS:
                return []
        known, self._old_receipts = self.journal, 0
        left = [*(each for each in self.left if each != known), *([] if known is None else [known])]
        self.left = left[-KEPT_JOURNALS:]
        self.journal, self.outdated = journal, True
        return [Note("parent.journal_changed", {"known": known, "got": journal, "frames": self.spooled})]

    def join_journal(
        self, load: Load, reached: Mapping[Group, int], nodes: Mapping[Group, tuple[str, ...]]
    ) -> tuple[bool, tuple[Gap, ...]]:
        """Sort out what is spooled. Returns whether a new epoch must begin, and the losses to declare in it.

        reached: of each group the end of all that was sent. nodes: of each group the leaves concerned.
        """
        everyone = tuple(sorted({name for names in nodes.values() for name in names}))
        if not self.outdated:  # the process ended while frames moved: nobody knows any more what their numbers mean
            rest, self.leaving = list(self._to_move), 0
            self._to_move.clear()
            self.forget += rest
            return False, (*self._in_doubt(rest, everyone, load), *lost_with_journal(reached, nodes))
        self.outdated, self.changes = False, self.changes + 1
        spooled = sort_out(((key, key in self.pending.marked) for key in self.pending), self.epoch)
        gaps = self._in_doubt([*spooled.doubtful, *self._to_move], everyone, load)
        groups, first = {number: group for group, number in self.encoder.groups.items()}, dict[Group, int]()
        for key in (*spooled.moving, *spooled.kept)[:LOOKED_AHEAD]:
            with suppress(PortError, WireError, ValueError, KeyError):
                first_frontiers(load(*key), groups, first)
        gaps += lost_with_journal({**reached, **first}, nodes)
        self.forget += [*spooled.doubtful, *self._to_move]
        for key in (*spooled.doubtful, *spooled.moving):
            del self.pending[key]
        self._flying.clear()
        self._to_move, self.leaving = deque(spooled.moving), self.epoch if spooled.moving else 0
        self._left_encoder = self.encoder
        if not spooled.kept:
            self.births.clear()
            return True, gaps
        self._readdress([key for key in spooled.kept if key[1] == 0], gaps, load)
        return False, ()

    def _in_doubt(self, keys: list[tuple[int, int]], everyone: tuple[str, ...], load: Load) -> tuple[Gap, ...]:
        gaps, lost = in_doubt(keys, self.encoder, self.epoch, everyone, load)
        self.sent_readings -= lost
        self.lost_readings += lost
        return gaps

    def _readdress(self, births: list[tuple[int, int]], gaps: tuple[Gap, ...], load: Load) -> None:
        """Epochs that were never published go to the new journal as they are; the first begins with the losses."""
        for i, key in enumerate(births):
            frame = self.births.pop(key[0], None) or load(*key)
            assert frame.birth is not None
            before = self._born.get(key[0])
            predecessor = None if i == 0 else frame.birth.predecessor
            birth = replace(frame.birth, journal=self.journal or 0, predecessor=predecessor, held=None)
            if before is not None:
                self._born[key[0]] = replace(before, predecessor=predecessor)
            self.replaced.append(replace(frame, birth=birth, gaps=(*frame.gaps, *gaps) if i == 0 else frame.gaps))

    def moved_steps(self, load: Load, most: int) -> list[Step]:
        """The next frames of the epoch that is left, as steps to put; they are forgotten with the same commit."""
        encoder, out = self._left_encoder, list[Step]()
        keys, nodes = list(encoder.keys), list(encoder.nodes)
        while self._to_move and len(out) < most:
            key = self._to_move.popleft()
            try:
                frame = load(*key)
                out.append(moved(frame, encoder, keys, nodes))
                self.sent_readings -= frame.readings  # counted again in the new epoch
            except (PortError, WireError, ValueError, KeyError):
                out.append(Step(gaps=(Gap(tuple(encoder.groups), 0, 0, -1, (), "damaged"),)))
            self.forget.append(key)
        if not self._to_move:
            self.leaving = 0
        return out

    def _give_up(self, key: tuple[int, int], frame: Frame) -> Note:
        """3.6: a gap record takes the frame's place, with what an honest reader needs of it."""
        gap = gap_of(frame, self.encoder, "poison")
        if frame.epoch != self.epoch:  # its numbers meant something else: rather too wide than too narrow
            gap = replace(gap, groups=tuple(self.encoder.groups))
        self.replaced.append(
            Frame(
                frame.epoch,
                frame.seq,
                frame.birth,
                frame.define,
                frame.members,
                promises_of(frame),
                (*frame.gaps, gap),
                frame.flush,
            )
        )
        self.pending.marked[key] = Pending()
        self.sent_readings -= frame.readings
        self.lost_readings += frame.readings
        return Note("frame.given_up", {"epoch": key[0], "seq": key[1], "readings": gap.readings})

    def damaged(self, epoch: int, seq: int) -> list[Note]:
        """A frame whose bytes are gone: a gap record takes its place, of whatever this epoch had (3.5, 3.6).

        It says what the numbers of the epoch mean, for the frame may have said so first (2.4).
        """
        key = (epoch, seq)
        if key not in self.pending.marked:
            return []
        gap = Gap(tuple(self.encoder.groups), 0, 0, -1, (), "damaged", 1, "sha256")
        known = self.encoder if epoch == self.epoch else self.former[1] if epoch == self.former[0] else None
        stated = [] if known is None else known.definitions(epoch, seq)
        define = stated[0].define if len(stated) == 1 else None
        birth, born = None, self._born.get(epoch)
        if seq == 0 and born is not None:
            birth = Birth(born.epoch_id, self.journal or 0, born.predecessor, self.version, born.frames)
        self.replaced.append(Frame(epoch, seq, birth, define, gaps=(gap,)))
        self._flying.discard(key)
        self.pending.marked[key] = Pending()
        self.lost_frames += 1
        return [Note("frame.damaged", {"epoch": epoch, "seq": seq})]

    def drop(self, count: int, load: Callable[[int, int], Frame]) -> list[Note]:
        """Let a gap record stand for frames, because the spool has reached its quota (3.5).

        count: about so many. Those never published go first, the oldest first, in one run; of published ones each gets
        a record of its own. load: see `receipt`. None where no frame may go.
        """
        run = quota.oldest_run(self.pending.unmarked(), lambda key: self._read(key, load), count)
        if run:
            records = [self._record_of(run)]
            for seq in range(run[0].seq + 1, run[-1].seq + quota.covers(run[-1])):
                if (run[0].epoch, seq) in self.pending:  # what an earlier record stands for is not there
                    del self.pending[run[0].epoch, seq]
                    self.forget.append((run[0].epoch, seq))
        else:
            on_the_way = (key for key in self.pending.marked if key not in self._flying)
            read = (self._read(key, load) for key in on_the_way)
            run = list(islice((f for f in read if quota.may_go(f) and not any(g.run for g in f.gaps)), count))
            records = [self._record_of([frame]) for frame in run]
        self.replaced += records
        readings = sum(frame.readings for frame in run)
        self.sent_readings -= readings
        self.lost_readings += readings
        return [Note("spool.dropped", {"frames": len(run), "readings": readings})] if run else []

    def _read(self, key: tuple[int, int], load: Callable[[int, int], Frame]) -> Frame:
        try:
            return load(*key)
        except (PortError, WireError):  # damaged on the disk: a record of whatever was in it
            return Frame(*key, gaps=(Gap(tuple(self.encoder.groups), 0, 0, -1, (), "damaged", 1),))

    def _record_of(self, frames: list[Frame]) -> Frame:
        known = {self.former[0]: self.former[1], self.epoch: self.encoder}.get(frames[0].epoch)
        groups = None if known is None else {number: group for group, number in known.groups.items()}
        return quota.record_of(frames, groups, self.encoder.groups)

    def beat(self, now_us: int, interval_us: int, frontiers: Mapping[Group, int]) -> Heartbeat | None:
        """A heartbeat if nothing was sent for an interval. Before the journal is known it asks for a receipt."""
        if not self.link_up or now_us - self.spoke_us < interval_us:
            return None
        self.spoke_us = now_us
        if self.journal is None or self.births or self.outdated or self.leaving:
            return Heartbeat(self.epoch, -1, ())
        groups = self.encoder.groups.keys() - self.withheld
        known = [(self.encoder.groups[g], f) for g, f in frontiers.items() if g in groups and f > NEVER_US]
        return Heartbeat(self.epoch, self.seq - 1, promises.turn(known, self.frame_bytes, now_us, interval_us))

    @property
    def spooled(self) -> int:
        """Frames without a receipt."""
        return len(self.pending)

    def snapshot(self) -> OutboxState:
        """The epoch in use; its numbers are in slots of their own, for they are larger and change less."""
        return OutboxState(
            epoch_id=self.epoch_id,
            seq=self.seq,
            journal=self.journal,
            predecessor=self.predecessor,
            sent=self.sent_readings,
            lost=self.lost_readings,
            lost_frames=self.lost_frames,
            whole=self.whole_books,
            births=dict(self._born),
            left=list(self.left),
            leaving=self.leaving,
            changes=self.changes,
        )

    def restore(self, state: OutboxState, encoder: EpochEncoder, frames: tuple[SpooledFrame, ...]) -> None:
        """From what `snapshot` returns, with the frames of the spool. Births without a journal come decoded."""
        self.epoch_id, self.seq, self.journal = state.epoch_id, state.seq, state.journal
        self.predecessor, self.encoder, self._born = state.predecessor, encoder, dict(state.births)
        self.sent_readings, self.lost_readings, self.lost_frames = state.sent, state.lost, state.lost_frames
        self.whole_books = state.whole
        self.left, self.leaving, self.changes = list(state.left), state.leaving, state.changes
        self.take_over(frames)

    def take_over(self, frames: tuple[SpooledFrame, ...]) -> None:
        """The frames of a spool, to be sent; without `restore` where its slots are lost (1.2)."""
        for spooled in frames:
            if spooled.epoch == self.leaving != 0:
                self._to_move.extend((spooled.epoch, spooled.seq + i) for i in range(spooled.run))
                continue
            if spooled.sent:
                self.pending.marked[spooled.epoch, spooled.seq] = Pending()
            else:
                self.pending.add(spooled.epoch, spooled.seq, spooled.run)
            frame = spooled.frame
            if frame is not None and frame.birth is not None and frame.birth.journal == 0:
                self.births[frame.epoch] = frame

    def check(self) -> None:
        """Invariants, for tests: in flight is spooled and bounded; nothing flies before the journal is known."""
        assert self._flying <= self.pending.marked.keys()
        assert len(self._flying) <= self.in_flight
        assert self.journal is not None or not self._flying
        assert self.pending.highest(self.epoch) < self.seq
