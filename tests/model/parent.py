"""The downward half of a parent: order of frames, members, frontiers, and what of every line came (3.8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.model.rows import (
    EVER,
    NEVER,
    Answer,
    Ask,
    Beat,
    Cut,
    Frame,
    Leave,
    LineKey,
    Loss,
    Receipt,
    Rows,
    in_cut,
    piece_end,
    slice_end,
    united,
)

if TYPE_CHECKING:
    from tests.model.world import World

LEFT_BEHIND = "?"  # the member that stands for leaves of a lost journal until they are listed again


class BrokenRuleError(AssertionError):
    """A machine saw what the rules exclude."""


@dataclass(frozen=True)
class Effect:
    """A frame that takes effect, with those of its rows and gap records that were not sent before."""

    frame: Frame
    rows: Rows
    losses: tuple[Loss, ...]


@dataclass
class Line:
    """Frames of one child, or of one journal of a merger. next: the first that has not taken effect."""

    next: int | None
    waiting: dict[int, Frame] = field(default_factory=dict)


@dataclass
class Child:
    """A member. registers: key -> earliest start of a session that it did not send. history: (now, others' minimum)."""

    heard: int
    frontier: int = NEVER
    epoch: int = 0
    registers: dict[str, int] = field(default_factory=dict)
    leaves: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    exceptions: dict[str, tuple[int, int]] = field(default_factory=dict)
    left: set[Leave] = field(default_factory=set)
    out: bool = False
    gone: bool = False
    fresh: bool = True
    history: list[tuple[int, int]] = field(default_factory=list)


class Parent:
    """Children, lines and cuts. arrived: of every gateway's line below, what came here."""

    def __init__(self, world: World, name: str, grace: int, journal: int) -> None:
        self.world, self.name, self.grace, self.journal = world, name, grace, journal
        self.children: dict[str, Child] = {}
        self.lines: dict[tuple[str, int], Line] = {}
        self.owns: dict[str, int] = {}  # merger -> its journal that counts here
        self.answers: dict[str, Answer] = {}
        self.arrived: dict[LineKey, Cut] = {}
        self.base: dict[LineKey, Cut] = {}  # what was sent before this journal began
        self.published = NEVER

    # --- frames -------------------------------------------------------------------------------------------------

    def refuses(self, node: str, own: int) -> bool:
        """Whether the sender is a merger whose journal does not count here, or counts no more."""
        return own != 0 and self.owns.get(node) != own and (self.world.rules.fence or node not in self.owns)

    def take(self, frame: Frame, now: int) -> list[Effect]:
        """Store a frame. Returns those that take effect."""
        line = self.lines.setdefault((frame.node, frame.own), Line(0 if frame.own else None))
        if (line.next is None or frame.index >= line.next) and frame.index not in line.waiting:
            line.waiting[frame.index] = frame
        return self.advance(line, now)

    def advance(self, line: Line, now: int) -> list[Effect]:
        out: list[Effect] = []
        while line.next is not None:
            index, step = line.next, []
            while index in line.waiting:
                step.append(line.waiting[index])
                index += 1
                if step[-1].said is not None or not self.world.rules.whole_steps:
                    break
            if not step or (step[-1].said is None and self.world.rules.whole_steps):
                break
            for frame in step:
                del line.waiting[frame.index]
                line.next += 1
                out.append(self._apply(frame, now))
        return out

    def _apply(self, frame: Frame, now: int) -> Effect:
        rows, said = frame.rows, frame.said
        effect = Effect(frame, rows, said.losses if said is not None else ())
        key = (frame.node, self.name)
        if not frame.own:
            base = self.base.get(key, ()) if self.world.rules.cut else ()
            self.arrived[key] = united(self.arrived.get(key, ()), ((frame.index, EVER),))
            sent_before = in_cut(base, frame.index, NEVER)
            rows = Rows(
                tuple(s for s in rows.slices if not in_cut(base, frame.index, slice_end(s))),
                tuple(p for p in rows.pieces if not in_cut(base, frame.index, piece_end(p))),
                () if sent_before else rows.raw,
            )
            if frame.leave is not None:
                self.children.setdefault(frame.node, Child(now, gone=True)).left.add(frame.leave)
                self._heard_of(frame.node, frame.leave.before)
            effect = Effect(frame, rows, () if sent_before else effect.losses)
            if frame.journal != self.journal:  # of the line before this journal: its data only
                return effect
        if frame.node not in self.children and said is None:
            return effect
        child = self.children.setdefault(frame.node, Child(now))
        for piece in frame.rows.pieces:
            child.registers.pop(piece[0], None)
        if said is None:
            return effect
        if said.birth:
            child.epoch, child.registers, child.gone = frame.epoch, {}, False
        elif said.frontier < child.frontier:
            raise BrokenRuleError("the frontier of a child fell")
        for register, start in said.registers.items():
            if start is None:
                child.registers.pop(register, None)
            else:
                child.registers[register] = start
        child.frontier = max(child.frontier, said.frontier)
        child.leaves, child.exceptions = dict(said.leaves), dict(said.exceptions)
        child.left |= said.left
        for line, cut in said.cut.items():
            self.arrived[line] = united(self.arrived.get(line, ()), cut)
        for leaf, (_, before) in said.leaves.items():
            self._heard_of(leaf, before)
        for leave in said.left:
            self._heard_of(leave.leaf, leave.before)
        if frame.leave is not None:
            child.gone, child.registers = True, {}
        return effect

    def _heard_of(self, leaf: str, before: int | None) -> None:
        """A waiting leaf is listed again, or left, in the line that is waited for: of that move, and of no other one.

        An older line of it may be told late; a newer one begins with the leave of this one.
        """
        waiting = self.children.get(LEFT_BEHIND)
        if waiting is not None and waiting.leaves.get(leaf, (0, 0))[1] == before:
            del waiting.leaves[leaf]
            waiting.exceptions.pop(leaf, None)

    def beat(self, beat: Beat, now: int) -> list[Effect]:
        """A heartbeat raises the frontier when everything before it took effect; it says where the line begins."""
        child = self.children.get(beat.node)
        if child is not None:
            child.heard = max(child.heard, now)
        line = self.lines.get((beat.node, beat.own))
        if line is None:
            if beat.own:
                return []
            line = self.lines[beat.node, 0] = Line(None)
        if not beat.own:
            line.next = max(beat.held, beat.held if line.next is None else line.next)
            line.waiting = {i: f for i, f in line.waiting.items() if i >= line.next}
        out = self.advance(line, now)
        child = self.children.get(beat.node)
        if child is not None and child.epoch == beat.epoch and line.next is not None and not child.gone:
            child.heard = max(child.heard, now)
            if line.next > beat.last:
                child.frontier = max(child.frontier, beat.frontier)
        return out

    def receipt(self, node: str, own: int, settled: dict[LineKey, Cut]) -> Receipt:
        line = self.lines.get((node, own)) or Line(None)
        received = (line.next or 0, frozenset(line.waiting))
        return Receipt(self.name, self.journal, own, received, settled, self.refuses(node, own))

    # --- journals (3.8) -----------------------------------------------------------------------------------------

    def answer(self, ask: Ask) -> Answer:
        """Fence the old journal of a merger, and say what came of it. The same answer to the same question."""
        known = self.answers.get(ask.node)
        if known is not None and known.own == ask.own:
            return known
        for key in [key for key in self.lines if key[0] == ask.node]:
            if self.world.rules.fence:
                del self.lines[key]
        self.owns[ask.node] = ask.own
        child = self.children.get(ask.node)
        if child is not None:
            child.epoch = 0
            state = (child.frontier, dict(child.registers), dict(child.leaves), dict(child.exceptions))
        else:  # of the leaves that this parent waits for it cannot say which are below whom: it waits itself
            state = (self.published, {}, {}, {})
        self.answers[ask.node] = Answer(ask.own, *state, dict(self.arrived))
        return self.answers[ask.node]

    def start_from(self, answer: Answer, now: int) -> None:
        """What the parent knows of the journal before: leaves to be listed again, and what was sent."""
        self.base = dict(answer.cut)
        self.arrived = dict(answer.cut)
        self.published = answer.frontier
        if answer.leaves:
            waiting = Child(now, answer.frontier, fresh=False)
            waiting.registers, waiting.leaves = dict(answer.registers), dict(answer.leaves)
            waiting.exceptions = dict(answer.exceptions)
            self.children[LEFT_BEHIND] = waiting

    # --- members and frontiers (4.4 to 4.7, 5.1) ------------------------------------------------------------------

    def members(self) -> dict[str, Child]:
        return {name: child for name, child in self.children.items() if not child.gone and child.leaves}

    def advance_frontier(self, now: int) -> int:
        """The minimum over members that are not left out; never falls."""
        members = self.members()
        for name, child in members.items():
            others = [c.frontier for n, c in members.items() if n != name and not c.out]
            child.history.append((now, min(others, default=NEVER)))
            while len(child.history) > 1 and child.history[1][0] <= now - self.grace:
                child.history.pop(0)
            since, lowest = child.history[0]
            silent = now - child.heard > self.grace
            behind = now - since >= self.grace and lowest > child.frontier
            if child.fresh:
                child.out, child.fresh = child.frontier < self.published, False
            elif child.out and not silent and (child.frontier >= self.published or not behind):
                child.out = False
            elif silent or behind:
                child.out = True
        counted = [child.frontier for child in members.values() if not child.out]
        self.published = max(self.published, min(counted, default=NEVER))
        return self.published

    def held_registers(self) -> dict[str, int]:
        """Key -> the least register of members that count."""
        out: dict[str, int] = {}
        for child in self.members().values():
            if not child.out:
                for key, start in child.registers.items():
                    out[key] = min(out.get(key, start), start)
        return out

    def exceptions_at(self, frontier: int) -> dict[str, tuple[int, int]]:
        """Leaf -> (frontier, bound) of those behind a published frontier (4.6)."""
        out = {}
        for child in self.members().values():
            lowest = min([child.frontier, *child.registers.values()])
            for leaf in child.leaves:
                own, bound = child.exceptions.get(leaf, (child.frontier, child.frontier))
                own = min(own, child.frontier)
                if child.out or child.frontier < frontier:
                    out[leaf] = (own, min(bound, lowest))
                elif leaf in child.exceptions:
                    out[leaf] = (own, min(bound, own))
        return out
