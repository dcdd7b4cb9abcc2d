"""The lander and the root: batches with a decision before its effects (8.1 to 8.3), results with their coverage."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.model.parent import Effect, Parent
from tests.model.rows import (
    GAP,
    NEVER,
    SLIDE,
    WINDOWS,
    Ask,
    Beat,
    Frame,
    Ids,
    Leave,
    Piece,
    fuse,
)

if TYPE_CHECKING:
    from tests.model.world import World

JOURNAL = 7  # the lander's: also in the root's tables and landing files, so that it is never lost (3.8)


@dataclass(frozen=True)
class Coverage:
    """Leaves of a row: expected, missing, and those of which a gap record covers a part."""

    expected: frozenset[str]
    missing: frozenset[str]
    lost: frozenset[str]

    @property
    def whole(self) -> frozenset[str]:
        return self.expected - self.missing - self.lost


@dataclass
class SessionRow:
    last: int
    ids: Ids
    coverage: Coverage
    valid: bool = True


class Root(Parent):
    """The view of children is a function of the landed messages, in order."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "root", 55, JOURNAL)
        self.down_until = 0
        self.landing: list[tuple[Frame | Beat | Ask, int]] = []
        self.landed: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.decided = 0  # messages before it took effect
        self.batch_end: int | None = None
        self.slices: dict[int, list[tuple[str, Ids]]] = defaultdict(list)
        self.pieces: dict[str, list[Piece]] = defaultdict(list)
        self.raw: list[int] = []
        self.rows: dict[tuple[int, int, str], tuple[Ids, Coverage]] = {}
        self.sessions: dict[tuple[str, int], SessionRow] = {}
        self.lost: list[tuple[str, int, int]] = []
        self.lost_ids: set[int] = set()
        self.seen: set[str] = set()
        self.moving: dict[Leave, int] = {}  # left one parent, not listed by a later one -> when
        self.succeeded: set[int | None] = set()  # epochs that a listing or a leave names as the one before
        self.finished: dict[int, int | None] = {}  # epoch that was left -> the one before its move
        self.revised: dict[tuple[int, int, str], int] = {}
        self.stable: dict[object, object] = {}  # complete rows, while they show the same

    # --- the lander ---------------------------------------------------------------------------------------------

    def on_frame(self, frame: Frame, now: int) -> None:
        landed = self.landed[frame.node, frame.own]
        if frame.index not in landed or self.world.random.random() < 0.2:  # the root dedupes
            landed.add(frame.index)
            self.landing.append((frame, now))
        self._confirm(frame.node, frame.own)

    def on_beat(self, beat: Beat, now: int) -> None:
        self.landing.append((beat, now))
        self._confirm(beat.node, beat.own)

    def on_ask(self, ask: Ask, now: int) -> None:
        known = self.answers.get(ask.node)
        if known is not None and known.own == ask.own:
            self.world.send(ask.node, known)
        else:
            self.landing.append((ask, now))

    def _confirm(self, node: str, own: int) -> None:
        receipt = self.receipt(node, own, self.arrived)
        landed = self.landed[node, own]
        upto = next(i for i in range(len(landed) + 1) if i not in landed)
        received = (upto, frozenset(i for i in landed if i > upto))
        self.world.send(node, type(receipt)(self.name, JOURNAL, own, received, receipt.settled, receipt.refused))

    def lose_lander(self) -> None:
        """The lander's journal is made again from the landing files and the root's tables (3.8)."""
        self.landed.clear()
        for message, _ in self.landing:
            if isinstance(message, Frame):
                self.landed[message.node, message.own].add(message.index)

    # --- batches ------------------------------------------------------------------------------------------------

    def batch(self, now: int) -> None:
        """Decision, effects, results; a crash may come between any two, and the next batch repeats the decision."""
        random = self.world.random
        crash = random.random() < 0.15 and self.world.chaos
        if self.batch_end is None:
            left = len(self.landing) - self.decided
            self.batch_end = self.decided + (left if random.random() < 0.7 else random.randint(0, left))
        if crash:
            self.world.count("root crash")
            return
        for message, received in self.landing[self.decided : self.batch_end]:
            self._feed(message, received)
        self.decided, self.batch_end = self.batch_end, None
        for leave in [leave for leave in self.moving if leave.epoch in self.succeeded]:
            del self.moving[leave]
        before = self.published
        frontier = self.advance_frontier(now)
        held = [leave.frontier for leave, since in self.moving.items() if now - since < self.grace]
        self.published = max(before, min([frontier, *held]))
        self._results(self.published, now)

    def _feed(self, message: Frame | Beat | Ask, received: int) -> None:
        effects: list[Effect] = []
        if isinstance(message, Ask):
            self.answer(message)
        elif self.refuses(message.node, message.own):
            return
        elif isinstance(message, Beat):
            effects = self.beat(message, received)
        else:
            effects = self.take(message, received)
            if message.node in self.children:
                child = self.children[message.node]
                child.heard = max(child.heard, received)
        for effect in effects:
            for start, key, ids in effect.rows.slices:
                self.slices[start].append((key, ids))
            for piece in effect.rows.pieces:
                self.pieces[piece[0]].append(piece)
            self.raw += effect.rows.raw
            for loss in effect.losses:
                self.lost += loss.marks
                self.lost_ids |= loss.ids
            if effect.frame.said is not None:
                for leaf, (_, before) in effect.frame.said.leaves.items():
                    self.seen.add(leaf)
                    self.succeeded.add(before)
                for leave in effect.frame.said.left:
                    self.finished[leave.epoch] = leave.before
                    self.succeeded.add(leave.before)
                    if leave.epoch not in self.succeeded:
                        self.moving.setdefault(leave, received)

    # --- results ------------------------------------------------------------------------------------------------

    def _unfinished(self, epoch: int | None) -> bool:
        while epoch is not None:
            if epoch not in self.finished:
                return True
            epoch = self.finished[epoch]
        return False

    def coverage(self, start: int, end: int, key: str | None = None) -> Coverage:
        """Of a window [start, end); of a session of `key` whose last reading and the gap end before `end` (4.7)."""
        expected, missing = set(), set()
        for child in self.members().values():
            for leaf, (_, before) in child.leaves.items():
                expected.add(leaf)
                own, bound = child.exceptions.get(leaf, (child.frontier, child.frontier))
                own = min(own, child.frontier)
                bound = min(bound, own)
                reached = own if key is None else min(bound, child.registers.get(key, bound))
                if reached < end or self._unfinished(before):
                    missing.add(leaf)
        for leave in self.moving:
            expected.add(leave.leaf)
            if leave.frontier < end or self._unfinished(leave.before):
                missing.add(leave.leaf)
        low, high = (start, end - 1) if key is None else (start - GAP, end)
        lost = {leaf for leaf, a, b in self.lost if a <= high and b > low}
        return Coverage(frozenset(expected), frozenset(missing), frozenset(lost))

    def bound(self, key: str) -> int:
        """No session of the key starts before it any more, but for members left out (5.1)."""
        counted = [c for c in self.members().values() if not c.out]
        starts = [min(c.frontier, c.registers.get(key, c.frontier)) for c in counted]
        moving = [leave.frontier for leave, since in self.moving.items() if self.world.now - since < self.grace]
        return min([self.published, *starts, *moving])

    def _results(self, frontier: int, now: int) -> None:
        short, long = WINDOWS
        outside = (frozenset(self.seen), len(self.lost), len(self.moving))
        windows = {(short, s // short * short) for s in self.slices}
        windows |= {(long, e) for s in self.slices for e in range(s - long + SLIDE, s + SLIDE, SLIDE)}
        for size, start in sorted(windows):
            if start + size > frontier:
                continue
            shown = (sum(len(self.slices.get(s, ())) for s in range(start, start + size, SLIDE)), *outside)
            if self.stable.get((size, start)) == shown:
                continue
            values: dict[str, Ids] = {}
            for s in range(start, start + size, SLIDE):
                for key, ids in self.slices.get(s, ()):
                    values[key] = values.get(key, ()) + ids
            coverage = self.coverage(start, start + size)
            put_off_any = False
            for key, ids in values.items():
                place, row = (size, start, key), (tuple(sorted(ids)), coverage)
                before = self.rows.get(place)
                put_off = self.world.chaos and now - self.revised.get(place, NEVER) < 6
                if before == row:
                    continue
                if before is not None and put_off:
                    put_off_any = True
                    continue
                self.rows[place], self.revised[place] = row, now
                self.world.checks.window(place, row)
            self.stable[size, start] = None if coverage.missing or put_off_any else shown
        for key, pieces in self.pieces.items():
            self._sessions(key, pieces, outside)

    def _sessions(self, key: str, pieces: list[Piece], outside: tuple[object, ...]) -> None:
        islands: list[Piece] = []
        for piece in pieces:
            islands = fuse(islands, piece)
        bound = self.bound(key)
        for _, first, last, ids in islands:
            shown = (last, len(ids), *outside)
            if bound <= last + GAP or self.stable.get((key, first)) == shown:
                continue
            touched = [
                place
                for place, row in self.sessions.items()
                if place[0] == key and row.valid and place[1] <= last + GAP and row.last >= first - GAP
            ]
            new = SessionRow(last, tuple(sorted(ids)), self.coverage(first, last + GAP + 1, key))
            self.stable[key, first] = None if new.coverage.missing else shown
            if touched == [(key, first)] and self.sessions[key, first] == new:
                continue
            for place in touched:
                self.sessions[place].valid = False
            self.sessions[key, first] = new
            self.world.checks.session(key, first, new)
