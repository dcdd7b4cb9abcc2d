"""The upward half of a node: steps of frames, registers of open sessions, publishing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.model.rows import NEVER, Beat, Frame, Leave, Loss, Piece, Rows, Statement

if TYPE_CHECKING:
    from tests.model.world import World


class Sender:
    """Spool and registers. A line is all frames to one parent; their index goes on through restarts (3.8)."""

    def __init__(self, world: World, name: str, parent: str, own: int = 0) -> None:
        self.world, self.name, self.parent, self.own = world, name, parent, own
        self.down_until = 0
        self.spool: dict[tuple[str, int], Frame] = {}
        self.received: set[tuple[str, int]] = set()
        self.tried: set[tuple[str, int]] = set()
        self.next_index: dict[str, int] = {}
        self.journals: dict[str, int | None] = {}
        self.epoch = 0
        self.registers: dict[str, int] = {}
        self.frontier = NEVER

    def open_starts(self) -> Mapping[str, int]:
        """Key -> earliest start of a session that was not sent."""
        raise NotImplementedError

    def statement(self) -> Statement:
        """Members and the cut; registers are added here."""
        raise NotImplementedError

    def change_registers(self, sent: Iterable[Piece]) -> dict[str, int | None]:
        """The registers to state with these pieces (5.2)."""
        for piece in sent:
            self.registers.pop(piece[0], None)
        starts = self.open_starts()
        changed: dict[str, int | None] = {
            k: s for k, s in starts.items() if s < self.frontier and self.registers.get(k) != s
        }
        for key in [k for k in self.registers if starts.get(k, self.frontier) >= self.frontier]:
            del self.registers[key]
            changed[key] = None
        self.registers |= {k: s for k, s in changed.items() if s is not None}
        return changed

    def send_step(
        self, rows: Rows, *, birth: bool = False, leave: Leave | None = None, losses: tuple[Loss, ...] = ()
    ) -> None:
        """One step, sometimes as several frames; only the last one says anything but rows (2.3)."""
        random = self.world.random
        said = replace(self.statement(), registers=self.change_registers(rows.pieces), birth=birth, losses=losses)
        if len(rows.slices) + len(rows.pieces) > 1 and random.random() < 0.4:
            a, b = (random.randint(0, len(each)) for each in (rows.slices, rows.pieces))
            self._add(Rows(rows.slices[:a], rows.pieces[:b]), None, None)
            rows = Rows(rows.slices[a:], rows.pieces[b:], rows.raw)
        self._add(rows, said, leave)

    def _add(self, rows: Rows, said: Statement | None, leave: Leave | None) -> None:
        index = self.next_index.get(self.parent, 0)
        self.next_index[self.parent] = index + 1
        journal = self.journals.get(self.parent)
        frame = Frame(self.name, self.own, self.parent, self.epoch, index, journal, rows, said, leave)
        self.spool[self.parent, index] = frame

    def new_epoch(self) -> None:
        """A birth states everything anew (1.2)."""
        self.epoch = self.world.random.getrandbits(60)
        self.registers = {}
        self.send_step(Rows(), birth=True)

    def publish(self) -> None:
        """Frames without a receipt, and heartbeats to every parent that has a line."""
        random, world = self.world.random, self.world
        waiting = [key for key in self.spool if key not in self.received][:30]
        for key in waiting:
            if self.journals.get(key[0]) is not None and random.random() < (0.35 if world.chaos else 0.9):
                self.tried.add(key)
                world.send(key[0], self.spool[key])
        for to in dict.fromkeys([self.parent, *(to for to, _ in self.spool)]):
            if random.random() < 0.3:
                last = self.next_index.get(to, 0) - 1
                held = min((index for of, index in self.spool if of == to), default=last + 1)
                frontier = self.frontier if to == self.parent else NEVER
                world.send(to, Beat(self.name, self.own, self.epoch, last, frontier, held))
