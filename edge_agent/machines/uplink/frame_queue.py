"""Numbers frames and publishes them from the spool until they are receipted. The outbox handles receipts.

Rules (docs/protocol.md): an epoch has a random 64-bit id and frames numbered from 0 without a hole (1.1); frame 0 is
the birth, written when the parent's journal is known, nothing is published before (1.2, 3.7); an epoch ends by a flush
that names the last seq before it (1.3); a broker's PUBACK only allows the next publish (3); frames without a receipt
are sent again with jittered back-off, `sent` is committed before the first publish (3.3); heartbeats are neither
spooled nor receipted (2.5).

    SPOOLED --mark--> MARKED --publish--> SENT --receipt--> gone
                        ^------ link down / back-off ---'
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Final

from edge_agent.algebra.frame import LOST, MAX_FRAME_BYTES, MAX_KEYS, NEVER_US, Birth, Flush, Frame, Heartbeat, Leaf
from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.slots import BirthState
from edge_agent.machines.events import Publish, Relieve
from edge_agent.machines.uplink import promises
from edge_agent.machines.uplink.epoch_encoder import EpochEncoder
from edge_agent.machines.uplink.former_lines import FormerLines
from edge_agent.machines.uplink.late_extents import LateExtents
from edge_agent.machines.uplink.pending_frames import PendingFrames
from edge_agent.machines.uplink.step import Step

MARK_AHEAD: Final = 1_000  # frames marked `sent` and published without a receipt; bounds what a duplicate storm costs


class FrameQueue:
    """One node's frames to its parent, and to former parents."""

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
        self._drawn = 0  # the epoch that this process has drawn: one that it found is over with its first commit
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
        self._bad: tuple[int, frozenset[int]] = (0, frozenset())  # an epoch, and its frames that the parent called bad
        self._born: dict[int, BirthState] = {}  # of epochs of which frames are in the spool
        self.withheld: frozenset[Group] = frozenset()  # groups whose frontier would need more registers than there are
        self.link_up = False
        self.parent = ""  # whom the present epoch is for; '': as ever
        self.former_lines = FormerLines()
        self.late = LateExtents()
        self._asked = 0  # parents asked for their journal since the process started
        self.lost_lines: list[str] = []  # of these, to parents whose journal is lost: what waits is in doubt
        # the epoch before the last move, and the leaves that it had in each group
        self.moved_from: tuple[int, Mapping[Group, Mapping[str, Leaf]]] = (0, {})
        self._flushed: int | None = None  # the last seq before the flush of the present epoch
        self._flushed_before: int | None = None  # of its predecessor
        self._next_id = 0  # of the epoch after the present one, once a flush names it
        self._flying: set[tuple[int, int]] = set()
        self._uncommitted: list[tuple[int, int]] = []
        self.spoke_us = NEVER_US
        # the books (9.1): readings in all frames numbered, without those that a gap record replaced; frames replaced
        # whose readings are not known; False: the spool is older than its books
        self.sent_readings = self.lost_readings = self.lost_frames = 0
        self.whole_books = True

    @property
    def epoch(self) -> int:
        """The epoch as frames carry it: its first 32 bits (1.1)."""
        return self.epoch_id >> 32

    def draw(self, *, anew: bool = False) -> None:
        """Draw the id of a new epoch; call `open` next, with a birth that has it. anew: for a new journal (3.7)."""
        self._flushed_before, self._flushed = None if anew else self._flushed, None
        if anew:
            self.predecessor = None
        elif self.epoch_id:
            self.predecessor = (self.epoch, self.seq - 1)
        self.former = (self.epoch, self.encoder)
        self.epoch_id, self._next_id = self._draw_id(), 0
        self._drawn = self.epoch
        self.encoder, self.seq = self.new_encoder(None if anew else self.encoder), 0

    def _draw_id(self) -> int:
        """The id of the next epoch. The flush of the present one names it before that begins."""
        used = self.pending.epochs() | self.former_lines.epochs() | {self.epoch}
        while not self._next_id or self._next_id >> 32 in used:
            self._next_id = self.random.getrandbits(64) or 1
        return self._next_id

    def new_encoder(self, before: EpochEncoder | None = None) -> EpochEncoder:
        """An encoder with the limits of this node. before: that of the epoch which continues."""
        return EpochEncoder(frame_bytes=self.frame_bytes, max_keys=self.max_keys, before=before)

    def open(self, step: Step) -> list[Frame]:
        """Begin the epoch drawn: the birth and what does not fit into it. step: members, frontiers, definitions."""
        held = tuple(sorted(self.pending.epochs() | self.former_lines.epochs()))
        flush = self._flushed_before
        birth = Birth(self.epoch_id, self.journal or 0, self.predecessor, self.version, held=held, flush=flush)
        frames = self._add(self.encoder.encode_step(self.epoch, 0, step, birth))
        self._born = {epoch: each for epoch, each in self._born.items() if epoch in held}
        self._born[self.epoch] = BirthState(self.epoch_id, self.predecessor, len(frames))
        if self.journal is None:
            self.births[self.epoch] = frames[0]
        return frames

    def put(self, step: Step) -> list[Frame]:
        """Make the frames of a step in the present epoch, to be committed. Raises: KeysExhausted (nothing was
        numbered).
        """
        return self._add(self.encoder.encode_step(self.epoch, self.seq, step))

    def flush(self, step: Step, after: int | None = None) -> list[Frame]:
        """Make the last frames of the present epoch (1.3). after: the last seq before the first of them, if another."""
        after = self.seq - 1 if after is None else after
        frames = self.put(replace(step, flush=Flush(after, self._draw_id() >> 32)))
        self._flushed = after if frames else self._flushed
        return frames

    def restate(self) -> list[Frame]:
        """Make frames that repeat the meaning of this epoch's numbers (2.4)."""
        return self._add(self.encoder.restate(self.epoch, self.seq))

    def _add(self, frames: list[Frame]) -> list[Frame]:
        for frame in frames:
            self.sent_readings += frame.readings
            self.late.note(frame, self.encoder.groups)
            self.pending.add(frame.epoch, frame.seq)
            self._uncommitted.append((frame.epoch, frame.seq))
        self.seq += len(frames)
        return frames

    def marks(self) -> list[tuple[int, int]]:
        """Frames to mark as sent in the commit under way, because they are published for the first time after it."""
        ready = self.link_up and self.journal is not None
        fresh = [*self.former_lines.marks(), *(self.pending.mark(self._markable) if ready else ())]
        self._uncommitted += fresh
        return fresh

    @property
    def _markable(self) -> int:
        return max(MARK_AHEAD - len(self.pending.marked), 0)

    def relieve(self) -> Relieve | None:
        """Deletions and marks that let frames be published while a full disk refuses the commit under way."""
        fresh: list[tuple[int, int]] = []
        if self.link_up and self.journal is not None and not self.births:
            fresh = self.pending.mark(self._markable, frozenset(self._uncommitted))
            self._uncommitted += fresh
        forget = self.take_forgotten()
        return Relieve(tuple(forget), tuple(fresh)) if forget or fresh else None

    def relieved(self, marks: Iterable[tuple[int, int]]) -> None:
        """Note that these frames are durably marked and may be published."""
        gone = set(marks)
        self._uncommitted = [key for key in self._uncommitted if key not in gone]

    def committed(self) -> None:
        """Note that all frames put before are durable and may be published."""
        self._uncommitted.clear()

    def learnt_journal(self) -> list[Frame]:
        """Births that waited for the journal, now with it, as replacements in the spool; empty if none waited."""
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
        """Gap records that replace given-up frames since the last call, for the commit under way."""
        out, self.replaced = self.replaced, []
        self._uncommitted += [(frame.epoch, frame.seq) for frame in out]
        return out

    def take_forgotten(self) -> list[tuple[int, int]]:
        """Receipted frames since the last call, for the commit under way."""
        out, self.forget = self.forget, []
        if out and self.former[0] not in self.pending.epochs() | self.former_lines.epochs():
            self.former = (0, self.encoder)  # the keys of an epoch may be many (2.4)
        return out

    def publish(self, now_us: int) -> list[Publish]:
        """The frames to send now: marked frames in order while another may be in flight, and those whose receipt is
        overdue.
        """
        waiting = set(self._uncommitted)
        out = self.former_lines.publish(now_us, self.in_flight, waiting, self.random)
        if not self.link_up or self.journal is None or self.births or self.outdated:
            return out
        due = self.pending.due(now_us, self.in_flight, self._flying, waiting, self.random)
        if due:
            self.spoke_us = now_us
        return [*out, *(Publish(*key) for key in due)]

    def sent(self, epoch: int, seq: int) -> None:
        """Note that the broker has a frame: another may be in flight."""
        self._flying.discard((epoch, seq))
        self.former_lines.sent((epoch, seq))

    def link(self, *, up: bool, parent: str = "") -> None:
        """Note that the connection to a parent came or went: frames in flight may be lost and are sent again. '': to
        all.
        """
        self.former_lines.link(parent, up=up)
        if parent in ("", self.parent):
            self.link_up = up
            self._void()

    def resend(self) -> None:
        """Send all frames in flight again, to former parents too."""
        self.former_lines.void()
        self._void()

    def _void(self) -> None:
        self.spoke_us = NEVER_US
        self._flying.clear()
        self.pending.void()

    @property
    def ask_epoch(self) -> int:
        """The epoch in whose name this parent is asked for its journal: no other parent's answer names it."""
        return (self.epoch_id + self._asked) & 0xFFFFFFFF

    def beat_due(self, now_us: int, interval_us: int) -> bool:
        """Whether nothing was sent for one interval."""
        return self.link_up and now_us - self.spoke_us >= interval_us

    def beat(self, now_us: int, interval_us: int, frontiers: Mapping[Group, int]) -> Heartbeat | None:
        """A heartbeat if one is due. Before the journal is known it asks for a receipt."""
        if not self.beat_due(now_us, interval_us):
            return None
        self.spoke_us = now_us
        if self.journal is None or self.births or self.outdated or self.leaving:
            return Heartbeat(self.ask_epoch, -1, ())
        groups = self.encoder.groups.keys() - self.withheld
        known = [(self.encoder.groups[g], f) for g, f in frontiers.items() if g in groups and f > NEVER_US]
        return Heartbeat(self.epoch, self.seq - 1, promises.turn(known, self.frame_bytes, now_us, interval_us))

    def as_moved(self, group: Group, leaf: Leaf) -> Leaf:
        """A leaf as it is listed: with the epoch before this node's last move, unless the leaf has moved itself
        since.
        """
        epoch, leaves = self.moved_from
        known = leaves.get(group, {}).get(leaf.node)
        return leaf if known is None or known.before_move != leaf.before_move else replace(leaf, before_move=epoch)

    @property
    def owed(self) -> bool:
        """Whether the parent owes an answer: it has frames, or is asked for its journal."""
        return bool(self.pending.marked) or self.journal is None

    @property
    def spooled(self) -> int:
        """Frames without a receipt."""
        return len(self.pending) + sum(self.former_lines.waiting().values())

    def check(self) -> None:
        """Invariants, for tests: in flight is spooled and bounded; nothing flies before the journal is known."""
        assert self._flying <= self.pending.marked.keys()
        assert len(self._flying) <= self.in_flight
        assert self.journal is not None or not self._flying
        assert self.pending.highest(self.epoch) < self.seq
