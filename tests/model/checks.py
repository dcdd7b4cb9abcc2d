"""What must hold: nothing twice and no false coverage at any time, nothing lost once the tree is healed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.model.parent import LEFT_BEHIND
from tests.model.rows import GAP, SLIDE, WINDOWS, Ids, Piece, fuse

if TYPE_CHECKING:
    from tests.model.root import Coverage, SessionRow
    from tests.model.world import World

HORIZON = 190  # event times before it must have results at the end


class Checks:
    """Collects violations of one world as (what, when, details)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.found: list[tuple[str, int, object]] = []

    def bad(self, what: str, details: object) -> None:
        self.found.append((what, self.world.now, details))

    def window(self, place: tuple[int, int, str], row: tuple[Ids, Coverage]) -> None:
        """A row was written."""
        (size, start, key), (ids, coverage) = place, row
        if len(set(ids)) != len(ids):
            self.bad("twice in a window", place)
        self._covered(coverage, key, (start, start + size - 1), ids, place)

    def session(self, key: str, first: int, row: SessionRow) -> None:
        """A row was written."""
        if len(set(row.ids)) != len(row.ids):
            self.bad("twice in a session", (key, first))
        self._covered(row.coverage, key, (first - GAP, row.last + GAP), row.ids, (key, first))

    def _covered(self, coverage: Coverage, key: str, span: tuple[int, int], ids: Ids, place: object) -> None:
        forgotten = self.world.root.seen - coverage.expected
        if forgotten:
            self.bad("a leaf forgotten", (place, forgotten))
        for number, (ts, of, leaf, on_time) in self.world.committed.items():
            if on_time and leaf in coverage.whole and of == key and span[0] <= ts <= span[1] and number not in ids:
                self.bad("complete without a reading", (place, leaf, number, ts))

    def final(self) -> None:
        """After healing."""
        root, world = self.world.root, self.world
        if root.published < 200:
            members = {name: (c.frontier, c.out) for name, c in root.children.items()}
            self.bad("frontier stuck", (root.published, members))
        for node in (*world.gateways.values(), *world.mergers.values()):
            if len(node.spool) > 5:
                self.bad("spool stuck", (node.name, len(node.spool)))
        for parent in (root, *world.mergers.values()):
            waiting = sum(len(line.waiting) for line in parent.lines.values())
            out = [n for n, c in parent.members().items() if c.out or n == LEFT_BEHIND]
            if waiting > 5 or out:
                self.bad("child stuck", (parent.name, waiting, out))
        if root.coverage(180, 190).missing:
            self.bad("missing for ever", root.coverage(180, 190).missing)
        if root.lost_ids - world.dropped:
            self.bad("a loss without a quota", root.lost_ids - world.dropped)
        self._final_windows()
        self._final_sessions()
        if len(set(root.raw)) != len(root.raw):
            self.bad("raw twice", [n for n in root.raw if root.raw.count(n) > 1])
        if set(world.committed) - set(root.raw) - world.dropped:
            self.bad("raw lost", set(world.committed) - set(root.raw) - world.dropped)

    def _final_windows(self) -> None:
        wanted: dict[tuple[int, int, str], set[int]] = defaultdict(set)
        for number, (ts, key, _, _) in self.world.committed.items():
            for size in WINDOWS:
                for start in range(ts // SLIDE * SLIDE - size + SLIDE, ts + 1, SLIDE):
                    if (size == WINDOWS[1] or start % size == 0) and start + size <= HORIZON:
                        wanted[size, start, key].add(number)
        for place, ids in wanted.items():
            row = self.world.root.rows.get(place)
            if ids - set(row[0] if row else ()) - self.world.dropped:
                self.bad("lost from a window", (place, ids - set(row[0] if row else ())))
            if row and not self.world.dropped and row[1].missing:
                self.bad("missing in the last revision", (place, row[1].missing))

    def _final_sessions(self) -> None:
        by_key: dict[str, list[Piece]] = defaultdict(list)
        for number, (ts, key, _, _) in self.world.committed.items():
            by_key[key] = fuse(by_key[key], (key, ts, ts, (number,)))
        live = {place: row for place, row in self.world.root.sessions.items() if row.valid}
        counted = [(key, n) for (key, _), row in live.items() for n in row.ids]
        if len(counted) != len(set(counted)):
            self.bad("twice across sessions", len(counted))
        ended = [p for pieces in by_key.values() for p in pieces if p[2] + GAP < HORIZON]
        if self.world.dropped:
            lost = {n for p in ended for n in p[3]} - {n for _, n in counted} - self.world.dropped
            if lost:
                self.bad("lost from a session", lost)
            return
        wanted = {(key, first, last, tuple(sorted(ids))) for key, first, last, ids in ended}
        got = {(key, first, row.last, row.ids) for (key, first), row in live.items() if row.last + GAP < HORIZON}
        if wanted != got:
            self.bad("sessions differ", (sorted(wanted - got)[:3], sorted(got - wanted)[:3]))
