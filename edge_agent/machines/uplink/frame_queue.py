"""Numbers frames and publishes them from the spool until they are receipted. The outbox handles receipts.

Rules (docs/protocol.md): an epoch has a random 64-bit id, and its frames are numbered from 0 without a hole (1.1).
Frame 0 is the birth; it is completed when the parent's journal is known, and nothing is published before (1.2, 3.7). An
epoch ends with a flush that names the last seq before it (1.3). A broker's PUBACK only allows the next publish (3).
Frames without a receipt are sent again with jittered back-off; `sent` is committed before the first publish (3.3), of
few frames until the parent has answered.
Heartbeats are neither spooled nor receipted (2.5).

    SPOOLED --mark--> MARKED --publish--> SENT --receipt--> deleted
                        ^------ link down / back-off ---'
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, Final

from edge_agent.algebra.frame import (
    LOST,
    MAX_FRAME_BYTES,
    MAX_KEYS,
    NEVER_US,
    Birth,
    Flush,
    Frame,
    Gap,
    Heartbeat,
    Leaf,
)
from edge_agent.algebra.query.query import Group
from edge_agent.errors import PortError, WireError
from edge_agent.machines.checkpoint.slots import BirthState, LateExtentState, OutboxState
from edge_agent.machines.events import Publish, Relieve, SpooledFrame
from edge_agent.machines.uplink.encoding import promises
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder
from edge_agent.machines.uplink.former_lines import FormerLines
from edge_agent.machines.uplink.journal_change import MOVED_AT_ONCE, Load, Numbers, reports_in
from edge_agent.machines.uplink.late_extents import LateExtents
from edge_agent.machines.uplink.pending_frames import FrameKey, Pending, PendingFrames
from edge_agent.machines.uplink.step import GroupStep, Report, Step

MARK_AHEAD: Final = 1_000  # most frames marked `sent` without a receipt; limits how many may be sent again at once
MARK_UNANSWERED: Final = 20  # the same until the parent answers: with another journal all of them are in doubt (3.7)


class FrameQueue:
    """The frames of one node for its parent and for former parents."""

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
        """random: draws epoch ids and jitter. in_flight: most publishes that the broker has not confirmed.

        frame_bytes, max_keys: see EpochEncoder. lost: the node's earlier epochs are unknown (1.2).
        """
        self.node, self.version, self.in_flight = node, version, in_flight
        self.frame_bytes, self.max_keys = frame_bytes, max_keys
        self.random = random
        self.journal: int | None = None
        self.epoch_id = 0
        self.seq = 0
        self._drawn = 0  # the epoch drawn by this process; 0: none yet, the epoch in use is from the spool
        self.predecessor: tuple[int, int] | str | None = LOST if lost else None
        self.encoder = self.new_encoder()
        self.pending = PendingFrames()
        self.forget: list[tuple[int, int]] = []
        self.replaced: list[Frame] = []
        self.births: dict[int, Frame] = {}  # epoch -> its birth, if it was opened before the journal was known
        self.former: tuple[int, EpochEncoder] = (0, self.encoder)  # the epoch before, and its numbers
        self.outdated = False  # the parent has a new journal: nothing is sent until the node has joined it (3.7)
        self.left: list[int] = []  # former journals of the parent, newest last
        self.changes = 0  # number of changes of the parent's journal
        # the newest epoch whose frames still have to move into the present one, and those of all before it; 0: none
        self.leaving = 0
        self._to_move: deque[tuple[int, int]] = deque()  # these frames, in order
        self._last_report = -1  # seq of the last frame of the epoch that reports a leaf which moved, or may do so
        self._moving: set[int] = set()  # their epochs, and those whose frames have moved since
        self._left: dict[int, Numbers] = {}  # of their epochs, as far as known
        self._restated: list[Frame] = []  # the last of these frames, to be committed: they define the numbers again
        self._old_receipts = 0  # receipts of a former journal in a row
        self._bad: tuple[int, frozenset[int]] = (0, frozenset())  # (epoch, its seqs that the parent quarantined)
        self._born: dict[int, BirthState] = {}  # of each epoch with frames in the spool
        self.withheld: frozenset[Group] = frozenset()  # groups that may not promise: they have too many registers
        self.link_up = False
        self.answered = False  # the parent has sent a receipt since the link came up, and none has been overdue since
        self.parent = ""  # the receiver of the present epoch; '': the only parent
        self.several = False  # whether other parents are asked, too, so that their answers may be late
        self.former_lines = FormerLines()
        self.late = LateExtents()
        self._asked = 0  # number of parents asked for their journal since the process started
        self.lost_lines: list[str] = []  # former parents whose journal is lost: frames for them are in doubt
        # (the epoch before the last move; 0: none, group -> leaf name -> leaf as listed in it)
        self.moved_from: tuple[int, Mapping[Group, Mapping[str, Leaf]]] = (0, {})
        self._flushed: int | None = None  # the last seq before the flush of the present epoch
        self._flushed_before: int | None = None  # the same of its predecessor
        self._next_id = 0  # id of the next epoch, once a flush names it; 0: not drawn
        self._flying: set[tuple[int, int]] = set()  # published, but not confirmed by the broker
        self._uncommitted: list[tuple[int, int]] = []  # changed by the commit under way, so not to be published yet
        self.spoke_us = NEVER_US  # time of the last message to the parent
        # the books (9.1): readings in all numbered frames, except frames replaced by gap records; readings in those;
        # number of replaced frames with unknown readings
        self.sent_readings = self.lost_readings = self.lost_frames = 0
        self.whole_books = True  # False: the spool is older than its books

    @property
    def epoch(self) -> int:
        """The epoch as written in frames: the first 32 bits of its id (1.1)."""
        return self.epoch_id >> 32

    def draw(self, *, anew: bool = False) -> None:
        """Draw the id of a new epoch; `open` must follow. anew: for a new journal or parent, without a predecessor."""
        self._flushed_before, self._flushed = None if anew else self._flushed, None
        if anew:
            self.predecessor = None
        elif self.epoch_id:
            self.predecessor = (self.epoch, self.seq - 1)
        self.former = (self.epoch, self.encoder)
        self.epoch_id, self._next_id = self._draw_id(), 0
        self._drawn = self.epoch
        self.encoder, self.seq = self.new_encoder(None if anew else self.encoder), 0
        self._last_report = -1

    def _draw_id(self) -> int:
        """The id of the next epoch. It stays the same until that epoch begins, because the flush before names it."""
        used = self.pending.epochs() | self.former_lines.epochs() | {self.epoch}
        while not self._next_id or self._next_id >> 32 in used:
            self._next_id = self.random.getrandbits(64) or 1
        return self._next_id

    def new_encoder(self, before: EpochEncoder | None = None) -> EpochEncoder:
        """Create an encoder with the limits of this node. before: see EpochEncoder."""
        return EpochEncoder(frame_bytes=self.frame_bytes, max_keys=self.max_keys, before=before)

    def open(self, step: Step) -> list[Frame]:
        """Begin the drawn epoch. Returns the frames of its birth. step: its members, frontiers and definitions."""
        held = tuple(sorted(self.pending.epochs() | self.former_lines.epochs()))
        flush = self._flushed_before
        birth = Birth(self.epoch_id, self.journal or 0, self.predecessor, self.version, held=held, flush=flush)
        frames = self._add(self.encoder.encode_step(self.epoch, 0, step, birth))
        self._born = {epoch: each for epoch, each in self._born.items() if epoch in held}
        self._born[self.epoch] = BirthState(self.epoch_id, self.predecessor, len(frames))
        if self.journal is None:
            self.births[self.epoch] = frames[0]
        return frames

    def open_ahead(self, gaps: tuple[Gap, ...], listing: Sequence[GroupStep] = ()) -> list[Frame]:
        """Make an epoch for the parent's journal that only declares losses, to be sent before all pending frames.

        No pending frame may be marked. listing: of this node as a leaf, for the birth: the parent takes what the
        records say of a gateway's past only if it is listed (1.2).
        """
        used = self.pending.epochs() | self.former_lines.epochs() | {self.epoch, self._next_id >> 32, 0}
        epoch_id = 0
        while epoch_id >> 32 in used:
            epoch_id = self.random.getrandbits(64)
        epoch, encoder = epoch_id >> 32, self.new_encoder()
        own = [replace(each, leaves=tuple(replace(leaf, epoch=epoch) for leaf in each.leaves)) for each in listing]
        birth = Birth(epoch_id, self.journal or 0, None, self.version)
        frames = encoder.encode_step(epoch, 0, Step(tuple(own), gaps=() if own else gaps), birth)
        self._born[epoch] = BirthState(epoch_id, None, len(frames))
        frames += encoder.encode_step(epoch, len(frames), Step(gaps=gaps)) if own else []
        waiting, self.pending = list(self.pending), PendingFrames()
        for frame in frames:
            self.pending.add(frame.epoch, frame.seq)
            self._uncommitted.append((frame.epoch, frame.seq))
        for key in waiting:
            self.pending.add(*key)
        return frames

    def put(self, step: Step) -> list[Frame]:
        """Make the frames of a step in the present epoch, to be committed. Raises: KeysExhausted, before any change."""
        return self._add(self.encoder.encode_step(self.epoch, self.seq, step))

    def flush(self, step: Step, after: int | None = None) -> list[Frame]:
        """Make the last frames of the present epoch (1.3). after: the last seq before the flush; None: the newest."""
        after = self.seq - 1 if after is None else after
        frames = self.put(replace(step, flush=Flush(after, self._draw_id() >> 32)))
        self._flushed = after if frames else self._flushed
        return frames

    def define_again(self) -> list[Frame]:
        """Frames of a flush that define the numbers of the epoch again, if frames of it were never published.

        So a later process, which knows the numbers of its own epochs only, can still move those frames (3.7).
        """
        if self.epoch not in self.pending.unsent():
            return []
        self._flushed = self.seq - 1
        flush = Flush(self._flushed, self._draw_id() >> 32)
        frames = self.encoder.definitions(self.epoch, self.seq)
        return self._add([replace(frame, flush=flush) for frame in frames])

    def _move_frames(self, keys: Sequence[FrameKey]) -> None:
        """Let frames never published move into the epoch that is drawn next."""
        self._to_move, self.leaving = deque(keys), self.epoch if keys else 0
        self._moving = {epoch for epoch, _ in keys}
        self._left = {self.former[0]: Numbers.of(self.former[1]), self.epoch: Numbers.of(self.encoder)} if keys else {}
        if len(keys) > MOVED_AT_ONCE:  # a restart in between must know what their numbers mean
            flush = Flush(self.seq - 1)
            frames = [replace(f, flush=flush) for f in self.encoder.definitions(self.epoch, self.seq)]
            self._restated = frames
            self._to_move += ((frame.epoch, frame.seq) for frame in frames)

    def moving_reports(self, load: Load) -> dict[Group, list[Report]]:
        """The reports of leaves that moved in the frames that move, before the next epoch is drawn (1.5).

        A frame that cannot be read is declared as a loss by `moved_steps`.
        """
        out, groups = dict[Group, list[Report]](), Numbers.of(self.encoder).groups
        for key in self._to_move:
            if key[0] == self.epoch and key[1] <= self._last_report:
                with suppress(PortError, WireError, ValueError, KeyError):
                    for number, listed, report in reports_in(load(*key)):
                        out.setdefault(groups[number], []).append((listed, report))
        return out

    def _take_restated(self) -> list[Frame]:
        frames, self._restated = self._restated, []
        return frames

    def restate(self) -> list[Frame]:
        """Make frames that define the numbers of this epoch again (2.4)."""
        return self._add(self.encoder.restate(self.epoch, self.seq))

    def _add(self, frames: list[Frame]) -> list[Frame]:
        for frame in frames:
            self.sent_readings += frame.readings
            self.late.note(frame, self.encoder.groups)
            self._last_report = frame.seq if any(reports_in(frame)) else self._last_report
            self.pending.add(frame.epoch, frame.seq)
            self._uncommitted.append((frame.epoch, frame.seq))
        self.seq += len(frames)
        return frames

    def marks(self) -> list[tuple[int, int]]:
        """Frames to mark as sent in the commit under way; they are published for the first time after it."""
        ready = self.link_up and self.journal is not None
        fresh = [*self.former_lines.marks(), *(self.pending.mark(self._markable) if ready else ())]
        self._uncommitted += fresh
        return fresh

    @property
    def _markable(self) -> int:
        return max((MARK_AHEAD if self.answered else MARK_UNANSWERED) - len(self.pending.marked), 0)

    def relieve(self) -> Relieve | None:
        """Deletions and marks that allow more frames to be published while the disk is full; None if there are none."""
        fresh: list[tuple[int, int]] = []
        if self.link_up and self.journal is not None and not self.births:
            fresh = self.pending.mark(self._markable, frozenset(self._uncommitted))
            self._uncommitted += fresh
        forget = self.take_forgotten()
        return Relieve(tuple(forget), tuple(fresh)) if forget or fresh else None

    def relieved(self, marks: Iterable[tuple[int, int]]) -> None:
        """Note that these frames are durably marked as sent and may be published."""
        gone = set(marks)
        self._uncommitted = [key for key in self._uncommitted if key not in gone]

    def committed(self) -> None:
        """Note that the commit under way is durable, so its frames may be published."""
        self._uncommitted.clear()

    def learnt_journal(self) -> list[Frame]:
        """Births that waited for the parent's journal, completed with its id, to replace those in the spool."""
        if self.journal is None or not self.births:
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
            self.former = (0, self.encoder)  # free the former encoder: an epoch may have many keys (2.4)
        return out

    def publish(self, now_us: int) -> list[Publish]:
        """The frames to send now, while more may be in flight: marked frames in order, also if a receipt is overdue."""
        if not self.pending.marked and not self.former_lines.lines:
            return []  # as at most events: all that was marked is receipted
        # what is replaced is not sent again before the commit: a damaged frame would be found damaged again, at once
        waiting = {*self._uncommitted, *((frame.epoch, frame.seq) for frame in self.replaced)}
        out = self.former_lines.publish(now_us, self.in_flight, waiting, self.random)
        if not self.link_up or self.journal is None or self.births or self.outdated:
            return out
        due = self.pending.due(now_us, self.in_flight, self._flying, waiting, self.random)
        if due:
            self.spoke_us = now_us
            self.answered &= all(self.pending.marked[key].tries == 1 for key in due)
        return [*out, *(Publish(*key) for key in due)]

    def sent(self, epoch: int, seq: int) -> None:
        """Note that the broker has confirmed a frame, so another may be in flight."""
        self._flying.discard((epoch, seq))
        self.former_lines.sent((epoch, seq))

    def link(self, *, up: bool, parent: str = "") -> None:
        """Note that the connection to a parent ('': to all) went up or down. Frames in flight are sent again."""
        self.former_lines.link(parent, up=up)
        if parent in ("", self.parent):
            self.link_up, self.answered = up, False
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
        """The epoch id in heartbeats that ask this parent for its journal; other parents are asked with other ids."""
        return (self.epoch_id + self._asked) & 0xFFFFFFFF

    def beat_due(self, now_us: int, interval_us: int) -> bool:
        """Whether the connection is up and nothing was sent for one interval."""
        return self.link_up and now_us - self.spoke_us >= interval_us

    def beat(self, now_us: int, interval_us: int, frontiers: Mapping[Group, int]) -> Heartbeat | None:
        """A heartbeat if one is due, else None. Before the parent's journal is known, the heartbeat asks for it.

        frontiers: the committed frontier of each group.
        """
        if not self.beat_due(now_us, interval_us):
            return None
        self.spoke_us = now_us
        if self.journal is None or self.births or self.outdated or self.leaving:
            return Heartbeat(self.ask_epoch, -1, ())
        groups = self.encoder.groups.keys() - self.withheld
        known = [(self.encoder.groups[g], f) for g, f in frontiers.items() if g in groups and f > NEVER_US]
        return Heartbeat(self.epoch, self.seq - 1, promises.turn(known, self.frame_bytes, now_us, interval_us))

    def as_moved(self, group: Group, leaf: Leaf) -> Leaf:
        """The leaf as this node lists it: with the epoch before the node's move, unless the leaf itself moved since."""
        epoch, leaves = self.moved_from
        known = leaves.get(group, {}).get(leaf.node)
        return leaf if known is None or known.before_move != leaf.before_move else replace(leaf, before_move=epoch)

    @property
    def owed(self) -> bool:
        """Whether the parent owes an answer: to published frames, or to the question for its journal."""
        return bool(self.pending.marked) or self.journal is None

    @property
    def spooled(self) -> int:
        """Number of frames without a receipt, also those for former parents."""
        return len(self.pending) + sum(self.former_lines.waiting().values())

    def book(self) -> dict[str, Any]:
        """Counts of readings and frames (docs/protocol.md 9.1), as plain values.

        sent: readings in all frames up to (epoch, seq) except lost ones. lost: readings in frames that gap records
        replaced. lost_frames: replaced frames whose number of readings is not known. spooled: frames without a receipt.
        former: frames among these that wait for a former parent. parents: former parent -> whether its line is known,
        so that a return continues it. journals: how often a parent lost its journal, with what it had counted of this
        node. whole: the books count since the spool was created.
        """
        lines, waiting = self.former_lines.lines, self.former_lines.waiting()
        return {
            "epoch": self.epoch,
            "seq": self.seq - 1,
            "sent": self.sent_readings,
            "lost": self.lost_readings,
            "lost_frames": self.lost_frames,
            "spooled": self.spooled,
            **({"former": sum(waiting.values())} if waiting else {}),
            "parents": {name: line.end is not None for name, line in lines.items()},
            **({"journals": self.changes} if self.changes else {}),
            "whole": self.whole_books,
        }

    def snapshot(self) -> OutboxState:
        """The state without the epoch's numbers, whose slots are larger and change less often."""
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
            parent=self.parent,
            former=self.former_lines.snapshot(),
            moved_from=self.moved_from[0],
            moved=[(group, list(leaves.values())) for group, leaves in self.moved_from[1].items()],
            late=self._needed_extents(),
        )

    def _needed_extents(self) -> list[LateExtentState]:
        moving, former = self._moving if self._to_move else (), self.former_lines
        return self.late.needed(lambda key: key in self.pending or key[0] in moving or former.of(key) is not None)

    def restore(self, state: OutboxState, encoder: EpochEncoder, frames: tuple[SpooledFrame, ...]) -> None:
        """Continue from the result of `snapshot` and the frames of the spool. Births without a journal are decoded."""
        self.epoch_id, self.seq, self.journal = state.epoch_id, state.seq, state.journal
        self._last_report = self.seq - 1
        self.predecessor, self.encoder, self._born = state.predecessor, encoder, dict(state.births)
        self.sent_readings, self.lost_readings, self.lost_frames = state.sent, state.lost, state.lost_frames
        self.whole_books = state.whole
        self.left, self.leaving, self.changes = list(state.left), state.leaving, state.changes
        moved = {group: {leaf.node: leaf for leaf in leaves} for group, leaves in state.moved}
        self.parent, self.moved_from = state.parent, (state.moved_from, moved)
        self.former_lines.restore(state.former)
        self.late = LateExtents(state.late)
        self.take_over(frames)

    def take_over(self, frames: tuple[SpooledFrame, ...]) -> None:
        """Queue the frames of a spool for sending. If its slots are lost (1.2), this is called without `restore`."""
        epochs = list(dict.fromkeys(spooled.epoch for spooled in frames))
        moving = epochs[: epochs.index(self.leaving) + 1] if self.leaving in epochs else []
        self._moving = set(moving)
        for spooled in frames:
            pending = self.former_lines.home(spooled.epoch, spooled.seq)
            if pending is None and spooled.epoch in moving:
                self._to_move.extend((spooled.epoch, spooled.seq + i) for i in range(spooled.run))
                continue
            pending = self.pending if pending is None else pending
            if spooled.sent:
                pending.marked[spooled.epoch, spooled.seq] = Pending()
            else:
                pending.add(spooled.epoch, spooled.seq, spooled.run)
            frame = spooled.frame
            if frame is not None and frame.birth is not None and frame.birth.journal == 0:
                self.births[frame.epoch] = frame

    def check(self) -> None:
        """Check invariants, for tests: frames in flight are spooled and bounded, and none precedes the journal id."""
        assert self._flying <= self.pending.marked.keys()
        assert len(self._flying) <= self.in_flight
        assert self.journal is not None or not self._flying
        assert self.pending.highest(self.epoch) < self.seq
