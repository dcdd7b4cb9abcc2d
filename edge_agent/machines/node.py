"""The base of gateways and mergers: one commit per interval, frames to the parent, heartbeats.

A subclass makes the step to send (`_step`) and adds its own state to the commit (`_state`). Rules (docs/protocol.md
3.1): each commit interval one transaction stores everything that changed; frames are published and messages
acknowledged only after it. If messages wait for their acknowledgement and none has arrived for 50 ms, the commit comes
early.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Final

from edge_agent.algebra.frame import (
    BEGAN,
    JOURNAL_LOST,
    MAX_HORIZON_US,
    Frame,
    Gap,
)
from edge_agent.algebra.query.query import Group
from edge_agent.errors import ProtocolError
from edge_agent.machines.checkpoint import slots
from edge_agent.machines.checkpoint.slot import ChangedSlots
from edge_agent.machines.events import (
    AcceptLoss,
    Ack,
    Action,
    Beat,
    ClockChanged,
    Command,
    Commit,
    Committed,
    Damaged,
    Event,
    Failed,
    Gathering,
    LinkDown,
    LinkUp,
    Note,
    Polled,
    Receipted,
    Refused,
    Relieved,
    Restored,
    Sent,
    Stop,
    Tick,
)
from edge_agent.machines.parents import NodeSettings, Parents
from edge_agent.machines.uplink.encoding import spooled_numbers
from edge_agent.machines.uplink.encoding.epoch_encoder import KeysExhausted, exceeds, exceeds_plans
from edge_agent.machines.uplink.encoding.spooled_numbers import SpooledNumbers
from edge_agent.machines.uplink.journal_change import MOVED_AT_ONCE
from edge_agent.machines.uplink.late_sendings import LateSendings
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.machines.uplink.parent_choice import ParentChoice
from edge_agent.machines.uplink.step import (
    Step,
    halves,
    halves_of_plans,
    only_leaves,
    only_rows,
    with_leaving,
    without_promise,
    without_rows_and_leaves,
)

FAILED: Final = "a function failed"  # reason of a gap record without a group: results are lost, but no reading
STEP_BACK_US: Final = 1_000_000  # a smaller step may be slewing, or jitter between two readings of the clock
BEFORE_ROWS: Final = (BEGAN, JOURNAL_LOST)  # by these records the tiers above judge which rows are repeats (1.2, 3.7)
TURN_US: Final = 2_000_000  # the loop gives a tick each second; a turn of it may take as long
QUIET_US: Final = 50_000  # commit early for waiting messages once none has arrived for this long (3.1)


class Node(Parents):
    """Sends frames to the parent, and decides when to commit."""

    def __init__(
        self, settings: NodeSettings, random: Random, restored: Restored, load: Callable[[int, int], Frame]
    ) -> None:
        """load: reads a spooled frame by (epoch, seq); needed only when frames are dropped, moved or declared lost."""
        self.settings = settings
        self.outbox = Outbox(
            settings.node,
            random,
            version=settings.version,
            in_flight=settings.in_flight,
            frame_bytes=settings.frame_bytes,
            max_keys=settings.max_keys,
            lost=restored.lost,
        )
        self._load = load
        self._committing = False
        self._spool_bytes = 0
        self._committed_us: int | None = None
        self._tokens: list[object] = []
        self._in_commit: list[object] = []  # tokens to acknowledge after the commit under way
        self._token_us = 0
        self._polled_us: int | None = None  # since boot; see Polled; None: readings never wait outside of the machine
        self._slots = ChangedSlots()
        self._spooled_numbers = SpooledNumbers(restored.state)
        self._dirty = False  # commit as soon as possible, without waiting for the interval
        self._declared: tuple[Gap, ...] = ()  # losses from a move or a lost journal of the parent, for the next step
        self._late = LateSendings(restored.state)
        self._moving = False  # this process has begun to move frames to a new journal or parent
        # the next commit begins a new epoch, which states everything again: an operator or the parent asked for it,
        # losses were accepted, or a frame is damaged
        self._renew = False
        self._reborn = True  # the next commit begins a new epoch: at start, and after the clock stepped back (1.1)
        self._live = False  # there was a commit since the start
        self._now_us: int | None = None
        self._longest_us = settings.commit_interval_us + TURN_US  # the longest time between two events
        self.clock = ClockChanged(known=True, boot="", offset_us=0)
        self.wanted = ""  # the parent to send to; see ParentChoice
        self._commit_notes: list[Action] = []  # notes to return with the next commit
        self._failed: list[Gap] = []  # records of failed functions, for the next step
        slots.check_version(restored.state)
        self.horizon_us = slots.HORIZON.read(restored.state) or MAX_HORIZON_US  # the longest before any receipt (3.2)
        outbox = slots.OUTBOX.read(restored.state)
        if outbox is not None:
            encoder = spooled_numbers.restored(
                restored.state, frame_bytes=settings.frame_bytes, max_keys=settings.max_keys
            )
            self.outbox.restore(outbox, self.outbox.new_encoder() if encoder is None else encoder, restored.frames)
        elif restored.lost:
            self.outbox.take_over(restored.frames)
        self.choice = ParentChoice(settings.parents, settings.away_us, settings.back_us)
        self.outbox.several = len(settings.parents) > 1
        if not self.outbox.parent and settings.parents:
            self.outbox.parent = settings.parents[0]
        self.wanted = self.outbox.parent

    def handle(self, event: Event, now_us: int) -> list[Action]:
        """Handle one event and return the actions. Raises: ProtocolError for an event that this node never gets."""
        out = self._time(event, now_us)
        match event:
            case Tick() | ClockChanged() | Polled():
                pass
            case Gathering():
                self._token_us = now_us
            case Committed(spool_bytes):
                self._committing, self._spool_bytes = False, spool_bytes
                self.outbox.committed()
                out += self._after_commit()
            case Refused() | Relieved() | LinkUp() | LinkDown() | Sent():
                out += self._uplink(event)
            case Receipted(receipt) if asked := self.choice.asked_in(receipt.epoch):
                self.choice.answered(asked, now_us)
            case Receipted(receipt):
                out += self._receipted(receipt, now_us)
            case Command(name):
                out.append(self._command(name))
            case AcceptLoss(parent):
                out += self._accept_loss(parent)
            case Damaged(epoch, seq):
                out += self.outbox.damaged(epoch, seq)
                self._dirty = True
                self._renew = self._renew or epoch == self.outbox.epoch
            case Failed(why):
                self._failed.append(Gap((), now_us, now_us + 1, 0, (self.settings.node,), FAILED, 0, why))
                self._dirty = True
            case Stop():
                self._dirty = True
            case _:
                out += self._handle(event, now_us)
        out += self._choose(now_us)
        if self._may_commit(now_us):
            out += self._commit(now_us)
        out += self.outbox.publish(now_us)
        heartbeat_us = self.settings.heartbeat_us
        if self.outbox.epoch_id and not self._committing and self.outbox.beat_due(now_us, heartbeat_us):
            beat = self.outbox.beat(now_us, heartbeat_us, self._frontiers())  # names committed frontiers only (2.5)
            out += [] if beat is None else [Beat(beat)]
        return out

    def _read_until_us(self, now_us: int) -> int:
        """Returns a time before which every reading that arrived is in the machine, whatever the error of the clock."""
        until_us = now_us if self._polled_us is None else min(self._polled_us + self.clock.offset_us, now_us)
        return until_us - self.clock.error_us

    def _uplink(self, event: Refused | Relieved | LinkUp | LinkDown | Sent) -> list[Action]:
        """Handle an event that concerns only the outbox."""
        match event:
            case Refused():
                relief = self.outbox.relieve()
                return [] if relief is None else [relief]
            case Relieved(marks):
                self.outbox.relieved(marks)
            case LinkUp(parent) | LinkDown(parent):
                self.outbox.link(up=isinstance(event, LinkUp), parent=parent)
            case Sent(epoch, seq):
                self.outbox.sent(epoch, seq)
        return []

    def _time(self, event: Event, now_us: int) -> list[Action]:
        """Update the time: time has passed, the clock stepped, became known, or is no longer known."""
        out: list[Action] = []
        found = self._now_us is None or not self.clock.known
        if isinstance(event, Polled):
            self._polled_us = event.upto_us - self.clock.offset_us
        if self._now_us is not None and (self.clock.known or not isinstance(event, ClockChanged)):
            self._elapsed(self._now_us, now_us)
        stepped_us = event.by_us if isinstance(event, ClockChanged) else 0
        if self._now_us is not None and (us := now_us - self._now_us - stepped_us - self._longest_us) > 0:
            self._stood(us)
        if isinstance(event, ClockChanged):
            self._dirty = True
            self.choice.shift(event.by_us)
            self._stepped(event.by_us)
        if self._now_us is not None and now_us < self._now_us - STEP_BACK_US:
            out.append(Note("clock.stepped_back", {"by_us": self._now_us - now_us}))
            self._reborn = self._dirty = True
            self._committed_us = None
            self.outbox.resend()
            self._stepped_back(now_us)
        self._now_us = now_us
        self._late.pass_time(now_us)
        if isinstance(event, ClockChanged):
            self.clock = event
            self._clock_changed(event)
        if found and self.clock.known:
            self._clock_found(now_us)
        return out

    @property
    def wake_us(self) -> int:
        """The latest time [us] at which the node needs its next Tick."""
        due = (self._committed_us or 0) + self.settings.commit_interval_us
        if self.outbox.link_up and self.outbox.epoch_id:
            due = min(due, self.outbox.spoke_us + self.settings.heartbeat_us)
        return min(due, self._token_us + QUIET_US) if self._tokens else due

    def _may_commit(self, now_us: int) -> bool:
        if self._committing or not self._ready():
            return False
        if self._dirty or self._committed_us is None:
            return True
        if now_us - self._committed_us >= self.settings.commit_interval_us or now_us < self._committed_us:
            return True
        return bool(self._tokens) and now_us - self._token_us >= QUIET_US

    def _commit(self, now_us: int) -> list[Action]:
        frames: list[Frame] = []
        self._keep_quota()
        for parent in tuple(self.outbox.lost_lines):
            self._doubt(parent)
        moved, flush = False, Step()
        if self.wanted != self.outbox.parent and not self.outbox.leaving and not self.outbox.outdated:
            flush = self._flush_step(now_us) if self._reborn else flush
            frames += self._move(now_us)
            moved = bool(frames)
        if self.outbox.outdated or (self.outbox.leaving and not self._moving):
            frames += self._join_journal(now_us)
        if self._reborn and moved:  # `_move` has just begun the epoch: open rows go to the new parent
            self._reborn = self._renew = False
            frames += self._put(without_promise(flush), now_us)
        elif self._reborn:  # open rows leave as the last frames of the epoch before (1.3)
            self._reborn = self._renew = False
            if self.outbox.epoch_id:
                if self._live and self._unstated():  # a birth lists leaves before their rows follow (1.5)
                    frames += self._open_on_the_way(now_us)
                frames += self._flush(flush if flush.groups or flush.gaps else self._flush_step(now_us), now_us)
            frames += self._open(now_us)
        elif self._renew:
            self._renew = False
            frames += self.outbox.restate() + self._open_on_the_way(now_us)
        elif self._wants_epoch():
            frames += self._open_on_the_way(now_us)
        if self.outbox.leaving:
            self._note_losses(self._declared)
            frames += self.outbox.put(Step(gaps=self._declared)) if self._declared else []
            self._declared = ()  # sent before the moved rows, so that the parent does not take those for repeats (3.7)
            for part in self.outbox.moved_steps(self._load, MOVED_AT_ONCE):
                frames += self._put(part, now_us)
            step = self._in_no_slot()  # closes no rows: all moved rows must be sent before the next promise
        else:
            step = self._step(now_us)
        step, self._declared = step.with_gaps(self._declared), ()
        first = tuple(gap for gap in step.gaps if gap.reason in BEFORE_ROWS)
        if first and any(group.rows for group in step.groups):
            frames += self.outbox.put(Step(gaps=first))
            step = replace(step, gaps=tuple(gap for gap in step.gaps if gap.reason not in BEFORE_ROWS))
        step, self._failed = step.with_gaps(self._failed), []
        frames += self._put(step, now_us)
        instead = (*self.outbox.learnt_journal(), *self.outbox.take_replaced())
        self._note_losses([gap for frame in instead for gap in frame.gaps])
        state = {
            **self._slots.changes(slots.LAYOUT, slots.VERSION),
            **self._state(now_us),
            **self._slots.changes(slots.OUTBOX, self.outbox.snapshot()),
            **self._late.changes(),
            **self._spooled_numbers.changes(self.outbox.encoder, self.outbox.epoch_id),
            **self._slots.changes(slots.HORIZON, self.horizon_us),
        }
        self._committing, self._committed_us, self._dirty = True, now_us, bool(self._declared)
        self._live = True
        self._in_commit, self._tokens = self._tokens, []
        forget = tuple(self.outbox.take_forgotten())
        notes, self._commit_notes = self._commit_notes, []
        return [*notes, Commit(state, tuple(frames), forget, tuple(self.outbox.marks()), instead)]

    def _keep_quota(self) -> None:
        """Drop frames if the spool exceeds its quota (3.5)."""
        most = self.settings.quota_bytes
        if most is None or self._spool_bytes <= most or not (spooled := self.outbox.spooled):
            return
        over = self._spool_bytes - most + most // 100  # 1 % more, so that not every commit has to drop frames
        self._commit_notes += self.outbox.drop(-(-over * spooled // self._spool_bytes), self._load)
        self._spool_bytes = 0  # until `Committed` reports the new size

    def _wants_epoch(self) -> bool:
        """Whether to begin a new epoch, with new numbers, although no rule requires it."""
        return False

    def _open(self, now_us: int) -> list[Frame]:
        """Begin a new epoch. Returns the frames of its birth (1.2)."""
        self.outbox.draw()
        step = self._birth_step(now_us)
        self._note_losses(step.gaps)
        withheld = self._declared or self.outbox.leaving or self._too_many_hints(step)
        return self.outbox.open(without_promise(step) if withheld else step)

    def _open_on_the_way(self, now_us: int, within: Step | None = None) -> list[Frame]:
        """Begin a new epoch while the process continues: open rows stay open, and the old promise stays in force.

        within: the step of which the next frames are.
        """
        self.outbox.draw()
        birth = without_promise(self._birth_step(now_us, goes_on=True))
        return self.outbox.open(birth if within is None else with_leaving(birth, within))

    def _flush(self, step: Step, now_us: int) -> list[Frame]:
        """Make the last frames of the epoch from all open rows (1.3); further epochs follow if its keys are used up."""
        frames: list[Frame] = []
        self._note_late(step, flush=True)
        after = self.outbox.seq - 1
        frames += self.outbox.define_again() if self._is_leaf else []
        for part in self._parts(without_promise(step) if self._too_many_hints(step) else step):
            try:
                frames += self.outbox.flush(part, after)
            except KeysExhausted:
                frames += self._open_on_the_way(now_us, step)
                after = self.outbox.seq - 1
                frames += self.outbox.flush(part, after)
        return frames

    def _put(self, step: Step, now_us: int) -> list[Frame]:
        """Make the frames of a step, in further epochs if the key numbers of one are used up (2.4).

        Open rows stay open, because the process continues and each new epoch names the last seq of the one before.
        """
        frames: list[Frame] = []
        self._note_late(step)
        before, self.outbox.withheld = self.outbox.withheld, self._too_many_hints(step)
        if self.outbox.withheld and not before:
            self._commit_notes.append(Note("sessions.too_many", {"keys": self.settings.max_keys}))
        for part in self._parts(self._withhold(step) if self.outbox.withheld else step):
            try:
                frames += self.outbox.put(part)
            except KeysExhausted:
                frames += self._open_on_the_way(now_us, step)
                frames += self.outbox.put(part)
        return frames

    def _in_no_slot(self) -> Step:
        """Rows and losses that no slot stores: this commit must send them, or a kill of the process would lose them."""
        return Step()

    def _withhold(self, step: Step) -> Step:
        """The step without promises that must wait because its registers exceed the key numbers of an epoch (5.2)."""
        return without_promise(step)

    def _note_late(self, step: Step, *, flush: bool = False) -> None:
        """Remember the times that the promise does not cover: of late rows and losses below it, of a flush above it.

        If the parent's journal is lost, they are declared in doubt (3.7). flush: the step is a flush.
        """
        self._note_losses(step.gaps)
        for each in step.groups:
            spans = [rows.partials for rows in each.rows if (rows.late or flush) and len(rows.partials)]
            if spans:
                start_us, end_us = min(int(p.start.min()) for p in spans), max(int(p.end.max()) for p in spans)
                self._late.note(each.group, start_us, end_us)

    def _parts(self, step: Step) -> Iterator[Step]:
        """Split a step into parts, each with at most as many keys and plans as an epoch numbers."""
        most = self.settings.max_keys
        if not exceeds(step, most) and not exceeds_plans(step):
            yield step
            return
        listing = only_leaves(step)
        if listing.groups:  # no row precedes the list of its leaf (2.4)
            yield listing
        waiting = [only_rows(step)]
        while waiting:
            part = waiting.pop()
            if exceeds_plans(part):
                waiting += reversed(halves_of_plans(part))
            elif exceeds(part, most):
                waiting += reversed(halves(part))
            else:
                yield part
        yield without_rows_and_leaves(step)

    def _too_many_hints(self, step: Step) -> frozenset[Group]:
        """Session groups whose frontier must not advance, because the step has more registers than an epoch numbers."""
        if not exceeds(step, self.settings.max_keys, hints_only=True):
            return frozenset()
        return frozenset(each.group for each in step.groups if each.hints is not None)

    def _after_commit(self) -> list[Action]:
        tokens, self._in_commit = self._in_commit, []
        return [Ack(tuple(tokens))] if tokens else []

    def _wait_for(self, token: object, now_us: int) -> None:
        """Acknowledge a message after the commit that contains it."""
        if token is not None:
            self._tokens.append(token)
            self._token_us = now_us

    def book(self) -> dict[str, Any]:
        """Counts of readings and frames (docs/protocol.md 9.1): see `FrameQueue.book`. Subclasses add theirs."""
        return self.outbox.book()

    def _command(self, name: str) -> Note:
        if name == "rebirth":
            self._renew = self._dirty = True
            return Note("command.rebirth", {"epoch": self.outbox.epoch})
        if name == "resend":
            self.outbox.resend()
            return Note("command.resend", {"frames": self.outbox.spooled})
        return Note("command.unknown", {"name": name})

    @property
    def alarms(self) -> Mapping[str, str]:
        """Child -> text of its alarm for the operator (1.4)."""
        return {}

    @abstractmethod
    def _ready(self) -> bool:
        """Whether the node may commit yet: it has been configured, and has a journal if it is a parent."""

    @abstractmethod
    def _handle(self, event: Event, now_us: int) -> list[Action]:
        """Handle an event that only this kind of node gets."""

    @abstractmethod
    def _flush_step(self, now_us: int) -> Step:
        """All open rows (1.3)."""

    @abstractmethod
    def _step(self, now_us: int) -> Step:
        """Rows closed since the last commit, with all changes of frontiers, leaves and serving ranges."""

    def _unstated(self) -> bool:
        """Whether rows may be open of leaves that no frame lists yet."""
        return False

    def _elapsed(self, before_us: int, now_us: int) -> None:
        """Note that the node's time went from before_us to now_us: time passed, or a known clock stepped."""
        del before_us, now_us

    def _stood(self, us: int) -> None:
        """The node handled nothing for us longer than it ever waits: it was stopped, or its disk or machine stood."""
        del us

    def _stepped(self, by_us: int) -> None:
        """The clock stepped by by_us, in either direction: shift remembered times with it, because no time passed."""
        del by_us

    def _clock_changed(self, event: ClockChanged) -> None:
        """The clock became known, or is no longer known."""
        del event

    def _clock_found(self, now_us: int) -> None:
        """The time has become known, for the first time in this process or again."""
        del now_us

    @abstractmethod
    def _stepped_back(self, now_us: int) -> None:
        """The clock stepped back to now_us: limit all remembered times to now_us."""

    @abstractmethod
    def _state(self, now_us: int) -> Mapping[str, object]:
        """The changed slots."""

    @abstractmethod
    def _frontiers(self) -> Mapping[Group, int]:
        """The committed frontier of every group."""


def refuse(event: Event, node: str) -> ProtocolError:
    """The error for an event that a kind of node never gets."""
    return ProtocolError(f"{node}: no {type(event).__name__} is meant for this node")
