"""Windows between markers at the root: the job's decisions, carried out row by row, against the plain-Python root."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from cloud_job.decision import state
from cloud_job.decision.complete import Ledger, Limits
from cloud_job.decision.spans import Cover
from cloud_job.decision.work import Span, Work, identity
from cloud_job.intake import Intake, Parts
from edge_agent.algebra.partial import Partials
from edge_agent.algebra.windows import Punctuation
from edge_agent.machines.decider import Decider
from edge_agent.machines.instants import reaches, slices_of
from edge_agent.machines.results import Row
from edge_agent.wire import heads
from tests.cloud.recorded import File, RecordedFleet, content, grouped, plain_rows
from tests.simulation.fleet import GRACE
from tests.simulation.marked import MarkedFleet
from tests.simulation.test_fleets import everything, lossy
from tests.simulation.world import Chaos, RootHost

SEEDS = (4_000, 4_004)  # all but overlapping windows; those
BATCHES = 8
Place = tuple[str, str, str, int, int]  # query, node, key, start, end where it names a row
Told = tuple[int, int, int, str, bool]  # end, readings, late, coverage, complete


class RecordedMarkedFleet(MarkedFleet, RecordedFleet):
    """Definitions travel as they do in production."""


@dataclass
class Twin:
    """Batches in, rows as they stand, with their revision and whether they are withdrawn."""

    journal: int
    limits: Limits = field(default_factory=lambda: Limits(revise_every_us=0))
    decider: Decider = field(default_factory=lambda: Decider(0, GRACE))
    parts: Parts = field(default_factory=dict)
    rows: dict[Place, tuple[Told, int, bool]] = field(default_factory=dict)
    # identity of the plan -> start, end, key, readings, late
    came: dict[bytes, list[tuple[int, int, str, int, bool]]] = field(default_factory=dict)
    bodies: dict[tuple[str, int, int], list[tuple[bool, int, bytes]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.limits)

    def batch(self, group: Sequence[File], *, flush: bool = False) -> None:
        """One micro-batch; its work and its ledger go through bytes, as a restart would have them."""
        intake = Intake(self.decider, self.parts, self.ledger.number + 1, "me", self.ledger.decided_us)
        for file in group:
            intake.read(content(file, self.journal), "file")
        columns = ("node", "epoch", "seq", "part", "late", "plan", "payload")
        for node, epoch, seq, part, late, plan, body in zip(*(intake.rows[c] for c in columns), strict=True):
            if part:
                self.bodies.setdefault((node, epoch, seq), []).append((late, plan, body))
        decision = self.decider.decide(intake.now_us)
        applied = {}
        for effect in decision.effects:
            key = (effect.node, effect.epoch, effect.seq)
            if key in self.parts:
                applied[key] = self.parts.pop(key)
            self._take(key)
        work = self.ledger.step(decision, applied, self.decider.parent.books, self.decider.gaps, flush=flush)
        work = Work.loads(work.dumps())
        for span in (*work.closing, *work.revising):
            if span.picks:
                self._perform(span, work)
        for gone in work.gone:
            for place, (told, revision, _) in self.rows.items():
                if place[:2] == (gone.query, gone.node) and (place[3], told[0]) == (gone.start_us, gone.end_us):
                    self.rows[place] = (told, revision + 1, True)
        _, self.ledger, _ = state.loads(state.dumps(self.decider, self.ledger, self.parts), self.limits, GRACE)

    def _take(self, key: tuple[str, int, int]) -> None:
        book = self.decider.parent.books[key[:2]]
        for late, number, body in self.bodies.pop(key, []):
            group, plan = book.plans[number]
            rows = by_name(heads.rows(body), plan.basis)
            if plan.kind == "raw":
                rows = slices_of(rows, ("count",), plan.scale, book.keys, reaching=reaches(group))
            count = rows.states["count"].tolist()
            for start, end, code, n in zip(
                rows.start.tolist(), rows.end.tolist(), rows.key.tolist(), count, strict=True
            ):
                self.came.setdefault(identity(group, plan), []).append((start, end, book.keys[code], n, late))

    def _perform(self, span: Span, work: Work) -> None:
        found: dict[str, list[int]] = {}
        for number, low, high in span.picks:
            for start, end, key, n, late in self.came.get(work.orders[number].plan, ()):
                if (low <= start and end <= high) if span.within else (start, end) == (low, high):
                    counts = found.setdefault(key, [0, 0])
                    counts[0] += n
                    counts[1] += n if late else 0
        end_us = span.low_us + span.length_us
        for key, (readings, tardy) in found.items():
            place = (span.query, span.node, key, span.low_us, end_us if span.by_end else 0)
            told = (end_us, readings, tardy, span.coverage_id, span.complete)
            before = self.rows.get(place)
            if before is None:
                self.rows[place] = (told, 0, False)
            elif before[0] != told or before[2]:
                assert span in work.revising, "a first row where one stands"
                self.rows[place] = (told, before[1] + 1, False)


def by_name(rows: Partials, basis: tuple[str, ...]) -> Partials:
    """A decoded part has its columns by position only."""
    return Partials(rows.start, rows.end, rows.key, dict(zip(basis, rows.states.values(), strict=True)))


def final(rows: Sequence[Row], fleet: MarkedFleet) -> dict[Place, Any]:
    """What stands at the end at the plain root, of windows between markers."""
    out: dict[Place, Any] = {}
    for row in rows:
        window = next(query.window for query in fleet.queries if query.id == row.query)
        if isinstance(window, Punctuation):
            place = (row.query, row.node, row.key, row.start, row.end if window.by_end else 0)
            told = (row.end, row.readings, row.late, Cover.of(row.coverage).id, row.complete)
            out[place] = (told, row.revision, row.withdrawn)
    return out


@pytest.mark.parametrize("chaos", [lossy, everything])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_job_decides_on_markers_as_the_plain_root_does(chaos: Callable[[Random], Chaos], seed: int) -> None:
    """protocol 4.7, 5.4, 8.2, 8.3: the same rows, withdrawn ones too, every revision, with the same coverage."""
    fleet = RecordedMarkedFleet(seed, chaos(Random(seed)))
    assert fleet.run() == []
    root = fleet.world.hosts["root"]
    assert isinstance(root, RootHost)
    files: list[File] = [(at_us, tuple(objects)) for at_us, objects in root.files]
    groups = grouped(files, min(len(files) - 1, BATCHES), Random(seed))
    twin = Twin(root.journal)
    for group in groups:
        twin.batch(group)
    twin.batch([], flush=True)
    wanted = final(plain_rows(groups, root.journal), fleet)
    assert len(wanted) > 3
    assert twin.rows == wanted
