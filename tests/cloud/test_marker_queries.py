"""Windows between markers at the root: the job's decisions, carried out row by row, against the plain-Python root."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from cloud_job.delta.expiring import Expiring, expiring
from cloud_job.ingest.decode import READ, windows_of
from cloud_job.ingest.decode_lookup import DecodeLookups
from cloud_job.ingest.intake import Intake
from cloud_job.spark import decision_checkpoint
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.windows import Punctuation
from edge_agent.root.completeness import Decider, Decision
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.transition import decided
from edge_agent.root.decision.window_ranges import CoverageRef
from edge_agent.root.decision.work import WindowRange, Work
from edge_agent.root.numpy.rows import Row
from edge_agent.wire.heads import Parts
from tests.support.cloud.recorded_fleets import File, content, grouped, plain_rows
from tests.support.simulation.faults import everything, lossy
from tests.support.simulation.fleets import GRACE
from tests.support.simulation.marker_fleets import MarkedFleet
from tests.support.simulation.world import SECOND, Chaos, RootHost

SEEDS = (4_084, 4_004)  # all but overlapping windows, who is missing is skipped; those
BATCHES = 8
Place = tuple[str, str, str, int, int]  # query, node, key, start, end where it names a row
Told = tuple[int, int, int, str, bool]  # end, readings, late, coverage, complete


@dataclass
class Twin:
    """Batches in, rows as they stand, with their revision and whether they are withdrawn."""

    journal: int
    limits: RootLimits = field(default_factory=lambda: RootLimits(revise_every_us=0))
    decider: Decider = field(default_factory=lambda: Decider(0, GRACE))
    parts: Parts = field(default_factory=dict)
    rows: dict[Place, tuple[Told, int, bool]] = field(default_factory=dict)
    stored: list[pa.RecordBatch] = field(default_factory=list)
    expires: bool = False  # rows go as soon as they may, a batch after they were found to be of no use (8.4)
    expiring: list[Expiring] = field(default_factory=list)
    expired: int = 0

    def __post_init__(self) -> None:
        self.state = RootState(self.limits)

    def batch(self, group: Sequence[File], *, flush: bool = False) -> None:
        """One micro-batch; its work and its state go through bytes, as a restart would have them."""
        intake = Intake(self.decider, self.parts, self.state.number + 1, "me", self.state.decided_us)
        for file in group:
            intake.read(content(file, self.journal), "file")
        self.stored += intake.table().select(list(dict.fromkeys((*READ, "node", "epoch", "plan", "end")))).to_batches()
        self.state.owners = self.state.owners or [(0, "me")]
        _, work = decided(self.decider, self.state, intake.now_us, self._applied, flush=flush)
        work = Work.loads(work.dumps())
        spans = [span for span in (*work.closing, *work.revising) if span.picks]
        formed = self._formed(work, spans)
        for at, span in enumerate(spans):
            self._show(span, formed.get(at, {}), work)
        for gone in work.gone:
            for place, (told, revision, _) in self.rows.items():
                if place[:2] == (gone.query, gone.node) and (place[3], told[0]) == (gone.start_us, gone.end_us):
                    self.rows[place] = (told, revision + 1, True)
        if self.expires:
            self._expire()
        _, self.state, _ = decision_checkpoint.loads(
            decision_checkpoint.dumps(self.decider, self.state, self.parts), self.limits, GRACE
        )

    def _applied(self, decision: Decision) -> Parts:
        keys = [(effect.node, effect.epoch, effect.seq) for effect in decision.effects]
        return {key: self.parts.pop(key) for key in keys if key in self.parts}

    def _expire(self) -> None:
        """What was found after the batch before goes."""
        before = {(node, epoch, plan): us for node, epoch, plan, us in self.expiring}
        for at, batch in enumerate(self.stored):
            columns = (batch.column(name).to_pylist() for name in ("node", "epoch", "plan", "end"))
            kept = [
                end is None or end >= before.get((n, e, p), NEVER_US) for n, e, p, end in zip(*columns, strict=True)
            ]
            self.expired += kept.count(False)
            self.stored[at] = batch.filter(pa.array(kept, pa.bool_()))
        self.expiring = expiring(self.decider, self.state, self.parts)

    def _formed(self, work: Work, spans: Sequence[WindowRange]) -> dict[int, dict[str, list[int]]]:
        """Readings and late ones of each key of each span, from the stored parts by the code of the executors."""
        lookup = DecodeLookups(self.decider.parent.dictionaries, self.state).of_windows(work, spans)
        out: dict[int, dict[str, list[int]]] = {}
        for batch in windows_of(lookup)(iter(self.stored)):
            columns = (batch.column(name).to_pylist() for name in ("span", "key", "late", "count"))
            for at, key, late, count in zip(*columns, strict=True):
                counts = out.setdefault(at, {}).setdefault(key, [0, 0])
                counts[0] += count
                counts[1] += count if late else 0
        return out

    def _show(self, span: WindowRange, found: Mapping[str, Sequence[int]], work: Work) -> None:
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


def final(rows: Sequence[Row], fleet: MarkedFleet) -> dict[Place, Any]:
    """What stands at the end at the plain root, of windows between markers."""
    out: dict[Place, Any] = {}
    for row in rows:
        window = next(query.window for query in fleet.queries if query.id == row.query)
        if isinstance(window, Punctuation):
            place = (row.query, row.node, row.key, row.start, row.end if window.by_end else 0)
            told = (row.end, row.readings, row.late, CoverageRef.of(row.coverage).id, row.complete)
            out[place] = (told, row.revision, row.withdrawn)
    return out


@pytest.mark.parametrize("chaos", [lossy, everything])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_job_decides_on_markers_as_the_plain_root_does(chaos: Callable[[Random], Chaos], seed: int) -> None:
    """protocol 4.7, 5.4, 8.2, 8.3: the same rows, withdrawn ones too, every revision, with the same coverage."""
    fleet = MarkedFleet(seed, chaos(Random(seed)))
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


@pytest.mark.parametrize("horizon_us", [3 * SECOND, 8 * SECOND])
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_that_have_expired_are_in_no_window_that_is_made(seed: int, horizon_us: int) -> None:
    """protocol 8.4: the rows of the plain root, which keeps them, though readings go as soon as they may."""
    fleet = MarkedFleet(seed, everything(Random(seed)))
    assert fleet.run() == []
    root = fleet.world.hosts["root"]
    assert isinstance(root, RootHost)
    files: list[File] = [(at_us, tuple(objects)) for at_us, objects in root.files]
    groups = grouped(files, min(len(files) - 1, 3 * BATCHES), Random(seed))
    twin = Twin(root.journal, RootLimits(0, horizon_us), expires=True)
    for group in groups:
        twin.batch(group)
    twin.batch([], flush=True)
    wanted = final(plain_rows(groups, root.journal, horizon_us=horizon_us), fleet)
    assert len(wanted) > 3
    assert twin.rows == wanted
    assert twin.expired
