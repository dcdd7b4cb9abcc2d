"""The part of a node that deals with its parents: choosing one, moving to another, a new journal of the parent.

Rules (docs/protocol.md): a move ends the line to the old parent by a `leave`, and frames sent to it stay with it (1.5);
a parent with a new journal is a new parent, and what the old journal may have contained is declared (3.7).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from edge_agent.algebra.frame import (
    BEGAN,
    IN_DOUBT,
    JOURNAL_LOST,
    MAX_FRAME_BYTES,
    MAX_KEYS,
    Frame,
    Gap,
    Heartbeat,
    Leaf,
    Receipt,
)
from edge_agent.algebra.gap_scope import has_times
from edge_agent.algebra.query.query import Group
from edge_agent.machines.events import Action, Beat, Note
from edge_agent.machines.uplink.late_sendings import LateSendings
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.machines.uplink.parent_choice import ParentChoice
from edge_agent.machines.uplink.step import Report, Step, without_promise


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The identity of a node and its limits. Durations in us.

    quota_bytes: spool size above which frames are dropped (None: no limit). frontier_step_us: frontiers are rounded
    down to multiples of this if all window edges are such multiples, which keeps frames short (schemas/frame.cddl).
    frame_bytes: size limit of a frame. max_keys: most keys numbered in one epoch. parents: names in order of
    preference; (): there is only one parent, known to the runtime. away_us, back_us: see ParentChoice.
    """

    node: str
    version: str = "0"
    commit_interval_us: int = 1_000_000
    heartbeat_us: int = 1_000_000
    in_flight: int = 20
    frontier_step_us: int = 1_000
    frame_bytes: int = MAX_FRAME_BYTES
    max_keys: int = MAX_KEYS
    quota_bytes: int | None = None
    parents: tuple[str, ...] = ()
    away_us: int = 120_000_000
    back_us: int = 300_000_000


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Frames for a former parent that an operator declared lost, with their readings and range of event times.

    readings: None if not known for all frames. from_us, upto_us: None if the frames had no readings or the range is not
    known.
    """

    parent: str
    frames: int
    readings: int | None
    from_us: int | None = None
    upto_us: int | None = None


class Parents(ABC):
    """The part of a node that chooses its parent.

    _declared: losses for the next step. _late: times of the late rows and losses that were sent. _moving: this process
    has begun to move frames to another parent or journal. given_up: frames declared lost by the last `AcceptLoss`.
    """

    settings: NodeSettings
    outbox: Outbox
    choice: ParentChoice
    wanted: str
    _load: Callable[[int, int], Frame]
    _dirty: bool
    _renew: bool
    _moving: bool
    _declared: tuple[Gap, ...]
    _late: LateSendings
    given_up: tuple[GivenUp, ...] = ()

    def _receipted(self, receipt: Receipt, now_us: int) -> list[Note]:
        if self.outbox.asked_anew(receipt):  # a new epoch states everything again (1.3, 2.4)
            self._renew = self._dirty = True
        notes = self.outbox.receipt(receipt, self._load)
        if receipt.journal == self.outbox.journal:
            self.choice.well(now_us)
            self.horizon_us = receipt.horizon_us
        self._dirty = self._dirty or bool(self.outbox.births or self.outbox.lost_lines) or self.outbox.outdated
        return notes

    def _choose(self, now_us: int) -> list[Action]:
        """Move to another parent if the present one is away, or is no longer configured (1.5)."""
        outbox = self.outbox
        if len(self.choice.parents) < 2 and self.choice.parents == (outbox.parent,) == (self.wanted,):
            return []  # the usual case, checked at each event: one parent, and it is in use
        asked = self.choice.asks(outbox.parent, now_us)
        out: list[Action] = [Beat(Heartbeat(self.choice.epoch_to_ask(each), -1, ()), each) for each in asked]
        waits = not outbox.link_up or outbox.owed
        wanted = self.choice.wanted(outbox.parent, now_us, waits=waits, unfinished=outbox.former_lines.waiting())
        if wanted != self.wanted:
            out.append(Note("parent.changes", {"from": outbox.parent, "to": wanted, "frames": len(outbox.pending)}))
            self.wanted, self._dirty = wanted, True
        return out

    def _move(self, now_us: int) -> list[Frame]:
        """End the line to the present parent with a leave, and begin a line to the wanted parent (1.5)."""
        line = self.outbox.end_line(self.wanted, self._load, now_us)
        self._moving = True
        if line is None:
            return []
        self._report_again(self.outbox.moving_reports(self._load))
        leaves = {group: tuple(listed) for group, listed in self._listed().items() if listed}
        self.outbox.draw(anew=True)
        frames = self.outbox.leave(line, leaves, self._retired)
        return frames + self.outbox.open(without_promise(self._birth_step(now_us)))

    def _accept_loss(self, only: str) -> list[Action]:
        """Declare frames lost that wait for former parents. only: name of one former parent; '': all."""
        given_up, notes = list[GivenUp](), list[Action]()
        waiting = self.outbox.former_lines.waiting()
        for parent, frames in [each for each in waiting.items() if only in ("", each[0])]:
            gaps = self._doubt(parent)
            found = [gap for gap in gaps if gap.end_us > gap.start_us]
            known = all(gap.readings >= 0 for gap in gaps)
            of = GivenUp(
                parent,
                frames,
                sum(gap.readings for gap in gaps) if known else None,
                min((gap.start_us for gap in found), default=None),
                max((gap.end_us for gap in found), default=None),
            )
            given_up.append(of)
            notes.append(Note("parent.loss_accepted", asdict(of)))
        self.given_up = tuple(given_up)
        self._dirty = True
        return notes

    def _doubt(self, parent: str) -> tuple[Gap, ...]:
        """Give up the frames that wait for a former parent, and declare them. Returns their gap records."""
        gaps = self.outbox.accept_loss(parent, self._reached(), self._leaf_names(), self._load)
        self._declared += gaps
        self._renew = True  # the next birth names no epoch before the move (1.5)
        return gaps

    def _join_journal(self, now_us: int) -> list[Frame]:
        """Begin an epoch for the parent's new journal: a birth, frames never published, then the losses (3.7)."""
        self._moving = True
        nodes, changed = self._leaf_names(), self.outbox.outdated
        joined = self.outbox.join_journal(self._load, self._reached(), nodes, all_move=self._is_leaf)
        late = tuple(
            Gap((group,), start_us, end_us, -1, nodes.get(group, ()), IN_DOUBT)
            for group, start_us, end_us in self._late.recent()
            if changed or joined.gaps
        )
        self._note_losses([gap for frame in joined.frames for gap in frame.gaps])
        self._declared = (*joined.gaps, *late)
        if not joined.begins:
            return list(joined.frames)
        self._report_again(self.outbox.moving_reports(self._load))
        self.outbox.draw(anew=True)
        return [*joined.frames, *self.outbox.open(without_promise(self._birth_step(now_us)))]

    def _report_again(self, reports: Mapping[Group, Sequence[Report]]) -> None:
        """Take back reports of leaves that moved: they were in frames that move, and follow all rows of these (1.5)."""
        del reports

    @property
    def _retired(self) -> Collection[str]:
        """The nodes that configuration retires below this one."""
        return ()

    @property
    def _is_leaf(self) -> bool:
        """Whether all rows of this node are its own: it is a gateway."""
        names = {name for each in self._leaf_names().values() for name in each}
        return names == {self.settings.node}

    def _note_losses(self, gaps: Collection[Gap]) -> None:
        """Remember declared losses, to declare them again if the parent loses its journal before it passes them on.

        Except those that the record of the lost journal covers anyway (3.7), and those of groups not known here.
        """
        known = self._reached() if gaps else {}
        for gap in gaps:
            if has_times(gap) and gap.reason not in (BEGAN, JOURNAL_LOST):
                for group in gap.groups or known:
                    if group in known:
                        self._late.note(group, gap.start_us, gap.end_us)

    @abstractmethod
    def _birth_step(self, now_us: int, *, goes_on: bool = False) -> Step:
        """The step of a birth: members, frontiers, definitions in force (1.2).

        goes_on: the process continues, so open rows stay open and follow later.
        """

    @abstractmethod
    def _reached(self) -> Mapping[Group, int]:
        """The latest end [us] of all rows that may have been sent, for every group."""

    @abstractmethod
    def _listed(self) -> Mapping[Group, Sequence[Leaf]]:
        """The leaves that the present epoch lists for every group: those below this node, or the node itself."""

    @abstractmethod
    def _leaf_names(self) -> Mapping[Group, tuple[str, ...]]:
        """The names of the leaves whose readings are sent, for every group."""
