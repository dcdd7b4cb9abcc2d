"""A merger: a cache of what is above and below it. Its journal may be lost at any time (3.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.parent import Effect, Parent
from tests.model.rows import (
    EVER,
    Answer,
    Ask,
    Beat,
    Cut,
    Frame,
    Ids,
    Leave,
    LineKey,
    Loss,
    Piece,
    Receipt,
    Rows,
    SliceRow,
    Statement,
    fused,
    in_cut,
    limited,
    piece_end,
    slice_end,
    united,
)
from tests.model.sender import Sender

if TYPE_CHECKING:
    from tests.model.world import World

CUT_EVERY = 15  # a cut that grew without rows is stated after this time, so that gateways may let go


class Merger(Sender, Parent):
    """Sends of the frames that took effect all rows that end at or before its frontier, and nothing else."""

    def __init__(self, world: World, name: str, parent: str, grace: int) -> None:
        Sender.__init__(self, world, name, parent)
        Parent.__init__(self, world, name, grace, 0)
        self.begin_anew()

    def begin_anew(self) -> None:
        """A new journal: nothing is known but the parent's name. It asks, and is deaf until it has the answer."""
        journal = self.world.random.getrandbits(40) | 1
        down_until = self.down_until
        Sender.__init__(self, self.world, self.name, self.parent, journal)
        Parent.__init__(self, self.world, self.name, self.grace, journal)
        self.down_until = down_until
        self.journals[self.parent] = 0  # a line to a parent needs no journal: it begins with the answer
        self.awake = False
        self.slices: list[SliceRow] = []
        self.pieces: list[Piece] = []  # as they came: a piece that was joined could not be told from its parts
        self.raw: Ids = ()
        self.losses: list[Loss] = []
        self.cut: dict[LineKey, Cut] = {}
        self.settled: dict[LineKey, Cut] = {}
        self.told: set[Leave] = set()
        self.last_said: tuple[object, ...] = ()
        self.cut_at = 0

    def on_answer(self, answer: Answer, now: int) -> None:
        if self.awake or answer.own != self.journal:
            return
        self.awake = True
        self.start_from(answer, now)
        self.frontier, self.cut = answer.frontier, dict(answer.cut)
        self.new_epoch()

    # --- the upward half ----------------------------------------------------------------------------------------

    def open_starts(self) -> dict[str, int]:
        out = self.held_registers()
        for key, first, _, _ in self.pieces:
            out[key] = min(out.get(key, first), first)
        return out

    def _left(self) -> frozenset[Leave]:
        return frozenset(leave for child in self.children.values() for leave in child.left)

    def statement(self) -> Statement:
        leaves = {leaf: epochs for child in self.members().values() for leaf, epochs in child.leaves.items()}
        exceptions = self.exceptions_at(self.frontier)
        self.last_said = (leaves, exceptions, self._left())
        self.cut_at = self.world.now
        return Statement(self.frontier, {}, leaves, exceptions, self._left(), dict(self.cut))

    def _count_sent(self, end: int) -> None:
        for line, cut in self.arrived.items():
            self.cut[line] = united(self.cut.get(line, ()), limited(cut, end))

    def _everything(self) -> Rows:
        rows = Rows(tuple(self.slices), tuple(fused(self.pieces)), self.raw)
        self.slices, self.pieces, self.raw = [], [], ()
        self._count_sent(EVER)
        return rows

    def step(self, now: int) -> None:
        """Send what the frontier passed; everything when a child left."""
        if not self.awake:
            return
        self.frontier = max(self.frontier, self.advance_frontier(now))
        if self._left() - self.told:
            self.told |= self._left()
            rows = self._everything()
        else:
            slices = tuple(s for s in self.slices if slice_end(s) <= self.frontier)
            pieces = tuple(p for p in self.pieces if piece_end(p) <= self.frontier)
            rows = Rows(slices, tuple(fused(pieces)), self.raw)
            self.slices = [s for s in self.slices if slice_end(s) > self.frontier]
            self.pieces = [p for p in self.pieces if piece_end(p) > self.frontier]
            self.raw = ()
            self._count_sent(self.frontier)
        losses, self.losses = tuple(self.losses), []
        leaves = {leaf: epochs for child in self.members().values() for leaf, epochs in child.leaves.items()}
        said = (leaves, self.exceptions_at(self.frontier), self._left())
        starts = {k: s for k, s in self.open_starts().items() if s < self.frontier}
        if rows or losses or said != self.last_said or starts != self.registers or now - self.cut_at > CUT_EVERY:
            self.send_step(rows, losses=losses)

    def restart(self) -> None:
        """The journal is whole: what is open leaves, then comes a birth (1.3)."""
        if not self.awake:
            return
        for child in self.children.values():
            child.heard, child.history = self.world.now, []
        losses, self.losses = tuple(self.losses), []
        self.send_step(self._everything(), losses=losses)
        self.new_epoch()

    def publish(self) -> None:
        if self.awake:
            super().publish()
        elif self.world.random.random() < 0.5:
            self.world.send(self.parent, Ask(self.name, self.journal))

    def on_receipt(self, receipt: Receipt, now: int) -> None:
        """A refused journal is as good as lost: what it holds, the gateways still have."""
        del now
        if not self.awake or receipt.own != self.journal:
            return
        if receipt.refused:
            self.begin_anew()
            return
        self.settled |= receipt.settled
        for (gateway, own), line in self.lines.items():  # what the root has, a gateway need not send again
            cut = self.settled.get((gateway, self.name), ()) if not own else ()
            line.waiting = {i: f for i, f in line.waiting.items() if not in_cut(cut, i, f.rows.end)}
        upto, above = receipt.received
        for key in [key for key in self.spool if key[1] < upto or key[1] in above]:
            del self.spool[key]

    # --- the downward half --------------------------------------------------------------------------------------

    def on_frame(self, frame: Frame, now: int) -> None:
        if not self.awake:
            return
        if not self.refuses(frame.node, frame.own):
            self._count(self.take(frame, now))
            if frame.node in self.children:
                self.children[frame.node].heard = now
        self.world.send(frame.node, self.receipt(frame.node, frame.own, self.settled))

    def on_beat(self, beat: Beat, now: int) -> None:
        if not self.awake:
            return
        if not self.refuses(beat.node, beat.own):
            self._count(self.beat(beat, now))
        self.world.send(beat.node, self.receipt(beat.node, beat.own, self.settled))

    def on_ask(self, ask: Ask, now: int) -> None:
        del now
        if self.awake:
            self.world.send(ask.node, self.answer(ask))

    def _count(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.slices += effect.rows.slices
            self.pieces += effect.rows.pieces
            self.raw += effect.rows.raw
            self.losses += effect.losses
