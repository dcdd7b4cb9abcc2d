"""A gateway: readings to slices and pieces of sessions; keeps every frame until the root has decided on it (3.8)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.model.rows import (
    GAP,
    LATENESS,
    NEVER,
    SLIDE,
    Ids,
    Leave,
    Loss,
    Piece,
    Receipt,
    Rows,
    SliceRow,
    Statement,
    fuse,
    in_cut,
    piece_end,
)
from tests.model.sender import Sender

if TYPE_CHECKING:
    from tests.model.world import World

Reading = tuple[int, int, str, int]  # arrival, event time, key, number


@dataclass(frozen=True)
class Source:
    """readings: in order of arrival. delay: after which the time of a silent source moves. begin: of the node."""

    readings: list[Reading]
    delay: int
    begin: int


class Gateway(Sender):
    """A node with one source that can be read again."""

    def __init__(self, world: World, name: str, parent: str, source: Source) -> None:
        super().__init__(world, name, parent)
        self.readings, self.delay, self.begin = source.readings, source.delay, source.begin
        self.position = 0
        self.started = False
        self.newest, self.heard = NEVER, 0
        self.slices: dict[tuple[int, str], Ids] = {}
        self.pieces: dict[str, list[Piece]] = {}
        self.raw: Ids = ()
        self.before_move: int | None = None

    def open_starts(self) -> dict[str, int]:
        return {key: min(p[1] for p in pieces) for key, pieces in self.pieces.items() if pieces}

    def statement(self) -> Statement:
        return Statement(self.frontier, {}, {self.name: (self.epoch, self.before_move)}, {})

    def step(self, now: int) -> None:
        """Read, advance the frontier, send what it passed."""
        late: dict[tuple[int, str], Ids] = defaultdict(tuple)
        late_pieces: list[Piece] = []
        for _ in range(self.world.random.randint(1, 8)):
            if self.position == len(self.readings) or self.readings[self.position][0] > now:
                break
            _, ts, key, number = self.readings[self.position]
            self.position += 1
            self.newest, self.heard = max(self.newest, ts), now
            on_time = ts >= self.frontier
            self.world.committed[number] = (ts, key, self.name, on_time)
            place, piece = (ts // SLIDE * SLIDE, key), (key, ts, ts, (number,))
            self.raw += (number,)
            if on_time:
                self.slices[place] = (*self.slices.get(place, ()), number)
                self.pieces[key] = fuse(self.pieces.get(key, ()), piece)
            else:
                late[place] += (number,)
                late_pieces.append(piece)
        passed = min(self.newest, now) - LATENESS
        idle = self.position == len(self.readings) or self.readings[self.position][0] > now
        if now - self.heard > 8 and idle:
            passed = max(passed, now - self.delay - LATENESS)
        self.frontier = max(self.frontier, passed)
        slices: list[SliceRow] = [
            (s, k, self.slices.pop((s, k))) for s, k in list(self.slices) if s + SLIDE <= self.frontier
        ]
        slices += [(s, k, ids) for (s, k), ids in late.items()]
        ended = [p for pieces in self.pieces.values() for p in pieces if piece_end(p) <= self.frontier]
        self.pieces = {k: [p for p in pieces if piece_end(p) > self.frontier] for k, pieces in self.pieces.items()}
        raw, self.raw = self.raw, ()
        rows = Rows(tuple(slices), (*ended, *late_pieces), raw)
        moved = any(s < self.frontier and self.registers.get(k) != s for k, s in self.open_starts().items())
        if rows or moved:
            self.send_step(rows)

    def _flush(self, leave: Leave | None = None) -> None:
        slices = tuple((s, k, ids) for (s, k), ids in self.slices.items())
        pieces = tuple(p for pieces in self.pieces.values() for p in pieces)
        self.slices, self.pieces = {}, {}
        self.send_step(Rows(slices, pieces), leave=leave)

    def restart(self) -> None:
        """What is open leaves, then comes a birth (1.3)."""
        if self.epoch:
            self._flush()
        self.new_epoch()

    def move(self, parent: str) -> None:
        """`leave` stays in the line of the old parent; that line waits for it, alive, dead or reborn (1.5, 3.8)."""
        old, successor = self.epoch, self.world.random.getrandbits(60)
        self._flush(Leave(self.name, successor, self.frontier, old, self.before_move))
        self.before_move, self.parent = old, parent
        self.epoch, self.registers = successor, {}
        self.send_step(Rows(), birth=True)

    def drop_by_quota(self) -> None:
        """Some frames that were never published become gap records at their place (3.5)."""
        fit = [
            k
            for k, f in self.spool.items()
            if k not in self.tried and f.said is not None and not f.said.birth and not f.leave and f.rows
        ]
        for key in fit[: self.world.random.randint(1, 6)]:
            frame = self.spool[key]
            ranges = [(s, s + SLIDE) for s, _, _ in frame.rows.slices]
            ranges += [(first, last + GAP + 1) for _, first, last, _ in frame.rows.pieces]
            loss = Loss(frozenset(frame.rows.ids), tuple((self.name, a, b) for a, b in ranges))
            assert frame.said is not None
            cleared: dict[str, int | None] = {p[0]: None for p in frame.rows.pieces}
            said = replace(frame.said, registers={**cleared, **frame.said.registers}, losses=(loss,))
            self.spool[key] = replace(frame, rows=Rows(), said=said)
            self.world.dropped |= loss.ids

    def on_receipt(self, receipt: Receipt, now: int) -> None:
        """Let go what the root has decided on; send all else again to a new journal of the parent."""
        del now
        source, known = receipt.source, self.journals.get(receipt.source)
        if known is None:
            self.journals[source] = receipt.journal
            for key in [key for key in self.spool if key[0] == source and self.spool[key].journal is None]:
                self.spool[key] = replace(self.spool[key], journal=receipt.journal)
        elif receipt.journal != known:  # an old receipt that came late costs a birth more
            self.journals[source] = receipt.journal
            self.received = {key for key in self.received if key[0] != source}
            if source == self.parent:
                self.new_epoch()
        upto, above = receipt.received
        self.received |= {k for k in self.spool if k[0] == source and (k[1] < upto or k[1] in above)}
        cut = receipt.settled.get((self.name, source), ())
        if not self.world.rules.settled:
            cut = ((receipt.received[0] - 1, 10**6),)
        for key in [key for key in self.spool if key[0] == source]:
            rows = self.spool[key].rows
            if not in_cut(cut, key[1], rows.end):
                break
            del self.spool[key]
