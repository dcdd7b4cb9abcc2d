"""The job's decisions carried out in plain numpy, for sessions: what cloud_job/spark/islands.py does, row by row and
slowly.

It holds the pure half (cloud_job/decision: open_sessions, cells, complete) to the plain-Python root over many fleets,
in the time that Spark takes to start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cloud_job.delta.expiring import Expiring, expiring
from cloud_job.ingest.intake import Intake
from cloud_job.spark import decision_checkpoint
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.query.key import EpochKey, QueryPlace
from edge_agent.algebra.span import FAR_US
from edge_agent.root.completeness import Decider, Decision
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.transition import decided
from edge_agent.root.decision.work import Islands, Work, identity
from edge_agent.wire import heads
from edge_agent.wire.heads import Parts
from tests.support.cloud.recorded_fleets import File, content
from tests.support.simulation.fleets import GRACE


class Piece(NamedTuple):
    """A row of a frame, as bronze.messages has it. plan: its number in the epoch; digest: its `identity`."""

    start: int
    end: int
    readings: int
    late: bool
    line: EpochKey
    seq: int
    plan: int
    digest: bytes


@dataclass
class Shown:
    """A row of results, as far as a session's is told of here."""

    end: int
    readings: int
    late: int
    coverage_id: str
    complete: bool
    received: int
    revision: int = 0
    withdrawn: bool = False


class Twin:
    """Batches in, rows as they stand."""

    def __init__(self, journal: int, limits: RootLimits, *, expires: bool = False) -> None:
        """expires: pieces go as soon as they may, a batch after they were found to be of no use (protocol 8.4)."""
        self.journal, self.limits, self.expires = journal, limits, expires
        self.expiring: list[Expiring] = []
        self.expired = 0
        self.decider, self.state, self.parts = Decider(0, GRACE), RootState(limits), Parts()
        self.pieces: dict[tuple[str, int, str], list[Piece]] = {}  # query, revision, key
        self.bodies: dict[tuple[str, int, int], list[tuple[bool, int, bytes]]] = {}
        self.rows: dict[tuple[str, str, int], Shown] = {}
        self.merges = 0

    def batch(self, group: Sequence[File], *, flush: bool = False) -> Work:
        """One micro-batch; its state goes through bytes, as a restart would have it. Answers what it asked for."""
        intake = Intake(self.decider, self.parts, self.state.number + 1, "me", self.state.decided_us)
        for file in group:
            intake.read(content(file, self.journal), "file")
        columns = ("node", "epoch", "seq", "part", "late", "plan", "payload")
        for node, epoch, seq, part, late, plan, body in zip(*(intake.rows[c] for c in columns), strict=True):
            if part:
                self.bodies.setdefault((node, epoch, seq), []).append((late, plan, body))
        decision, work = decided(self.decider, self.state, intake.now_us, self._applied, flush=flush)
        for effect in decision.effects:
            if effect.frame is not None:
                self._take(EpochKey(effect.node, effect.epoch), effect.seq)
        work = Work.loads(work.dumps())
        for islands in work.islands:
            self._perform(islands)
        if self.expires:
            self._expire()
        _, self.state, _ = decision_checkpoint.loads(
            decision_checkpoint.dumps(self.decider, self.state, self.parts), self.limits, GRACE
        )
        return work

    def _applied(self, decision: Decision) -> Parts:
        keys = ((effect.node, effect.epoch, effect.seq) for effect in decision.effects)
        return {key: self.parts.pop(key) for key in keys if key in self.parts}

    def _take(self, line: EpochKey, seq: int) -> None:
        book = self.decider.parent.dictionaries[line]
        for late, number, body in self.bodies.pop((*line, seq), []):
            group, plan = book.plans[number]
            rows = heads.rows(body)
            count = list(rows.states.values())[plan.basis.index("count")]
            for query in plan.queries:
                for start, end, code, n in zip(rows.start, rows.end, rows.key, count, strict=True):
                    piece = Piece(int(start), int(end), int(n), late, line, seq, number, identity(group, plan))
                    self.pieces.setdefault((*query, book.keys[code]), []).append(piece)

    def _expire(self) -> None:
        """What was found after the batch before goes."""
        before = {(EpochKey(node, epoch), plan): us for node, epoch, plan, us in self.expiring}
        for place, pieces in self.pieces.items():
            kept = [each for each in pieces if each.end >= before.get((each.line, each.plan), NEVER_US)]
            self.expired += len(pieces) - len(kept)
            self.pieces[place] = kept
        self.expiring = expiring(self.decider, self.state, self.parts)

    def _counts(self, piece: Piece) -> bool:
        """Whether it did not come too late, as decoding bronze.messages finds out."""
        found = self.state.too_late.get(piece.line, {}).get((piece.seq, piece.digest, piece.late))
        return found is None or not found.concerns(np.array([piece.start]), np.array([piece.end]))[0]

    def _perform(self, islands: Islands) -> None:
        if islands.low_us is not None:
            self._rows(islands, islands.low_us, FAR_US, revising=False)
        if not islands.revises:
            return
        self.merges += 1
        touches = [(k.key, *k.touch) for k in islands.keys if k.touch is not None]
        low = min((touch[1] for touch in touches), default=FAR_US)
        high = max((touch[2] for touch in touches), default=-FAR_US)
        every = [] if islands.touch is None else [(None, *islands.touch)]
        lasted = 0
        for (query, key, start), row in self.rows.items():
            for name, first, last in (*every, *touches):
                mine = query == islands.query and name in (None, key) and not row.withdrawn
                if mine and start <= last and row.end >= first:
                    low, high, lasted = min(low, start), max(high, row.end), max(lasted, row.end - start)
        longest = max((last - first for _, first, last in touches), default=0) + 2 * lasted
        self.state.sessions.stretch(QueryPlace(islands.query, islands.revision, islands.node), longest)
        if low <= high:
            if islands.start_from_us is not None and low <= islands.crossing_us:
                low = min(low, islands.start_from_us - islands.gap_us)
            self._rows(islands, low, high + 1, revising=True)

    def _rows(self, islands: Islands, low: int, high: int, *, revising: bool) -> None:
        keyed = {k.key: k for k in islands.keys}
        cells = [cell for cell in islands.cells if cell.revising == revising]
        own = {cell.key for cell in cells}
        for (query, revision, key), pieces in self.pieces.items():
            if (query, revision) != (islands.query, islands.revision):
                continue
            special = keyed.get(key)
            bound, shut = (
                (islands.bound_us, islands.shut_us) if special is None else (special.bound_us, special.shut_us)
            )
            touch = None if special is None else special.touch
            for start, end, readings, late in self._joined(pieces, islands, low, high):
                until = end - 1 + islands.gap_us
                mine = touch is not None and start <= touch[1] and until >= touch[0]
                shared = islands.touch is not None and start <= islands.touch[1] and until >= islands.touch[0]
                whole = start >= high or until < high
                wanted = (mine or (shared and until < shut)) and whole if revising else until >= shut and not mine
                if until >= bound or not wanted or not _belongs(islands, start, until):
                    continue
                name = f"={key}" if f"={key}" in own else ""
                (cell,) = (
                    c
                    for c in cells
                    if c.key == name and c.first_low <= start < c.first_high and c.end_low <= until < c.end_high
                )
                row = Shown(until, readings, late, cell.coverage_id, cell.complete, cell.received)
                self._put(islands, key, start, row, revising=revising)

    def _put(self, islands: Islands, key: str, start: int, row: Shown, *, revising: bool) -> None:
        before = self.rows.get((islands.query, key, start))
        block = islands.max_us or FAR_US
        touching = [
            at
            for at, other in self.rows.items()
            if at[:2] == (islands.query, key) and not other.withdrawn and at[2] != start
            if at[2] <= row.end and other.end >= start and at[2] // block == start // block
        ]
        assert revising or (before is None and not touching), (islands, key, start, row, before, touching)
        for at in touching:
            self.rows[at].withdrawn = True
            self.rows[at].revision += 1
        if (
            before is None
            or before.withdrawn
            or (before.readings, before.coverage_id) != (row.readings, row.coverage_id)
        ):
            row.revision = 0 if before is None else before.revision + 1
            self.rows[islands.query, key, start] = row

    def _joined(self, pieces: list[Piece], islands: Islands, low: int, high: int) -> list[tuple[int, int, int, int]]:
        out: list[tuple[int, int, int, int]] = []
        near = (p for p in pieces if p.start < high and p.end > low and self._counts(p))
        for start, end, n, late, *_ in sorted(near):
            block = islands.max_us or FAR_US
            if out and start - (out[-1][1] - 1) <= islands.gap_us and out[-1][0] // block == start // block:
                first, last, readings, lates = out[-1]
                out[-1] = (first, max(last, end), readings + n, lates + n * late)
            else:
                out.append((start, end, n, n * late))
        return out


def _belongs(islands: Islands, start: int, until: int) -> bool:
    if islands.start_from_us is not None and start < islands.start_from_us:
        return False
    if islands.start_until_us is not None and start >= islands.start_until_us:
        return False
    return islands.end_until_us is None or until <= islands.end_until_us
