"""Which sessions get rows when: the job's decisions, carried out in plain numpy, against the plain-Python root."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from cloud_job.complete import Limits
from cloud_job.spans import Cover
from edge_agent.machines.results import Row
from tests.cloud.recorded import RecordedFleet, fleet, grouped, plain_rows
from tests.cloud.twin import Twin
from tests.simulation.test_fleets import calm, crashing, everything, lossy
from tests.simulation.world import Chaos, RootHost

SEEDS = (3_000, 3_005, 3_020)  # each found something once


def final(rows: list[Row], made: RecordedFleet) -> dict[tuple[str, str, int], tuple[object, ...]]:
    """What stands at the end, of sessions."""
    sessions = {query.id for query in made.queries if query.window.type == "session"}
    return {(r.query, r.key, r.start): told(r) for r in rows if r.query in sessions}


def told(row: Row) -> tuple[object, ...]:
    """A row without its values."""
    return row.end, row.readings, row.withdrawn, row.late, Cover.of(row.coverage).id, row.revision


@pytest.mark.parametrize("chaos", [calm, lossy, crashing, everything])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_job_decides_on_sessions_as_the_plain_root_does(chaos: Callable[[Random], Chaos], seed: int) -> None:
    """protocol 5.1, 5.4: the same rows, withdrawn ones too, every revision, with the same coverage."""
    made, files = fleet(seed, chaos(Random(seed)), sessions=True)
    groups = grouped(files, min(len(files) - 1, 12), Random(seed))
    root = made.world.hosts["root"]
    assert isinstance(root, RootHost)
    twin = Twin(root.journal, Limits(revise_every_us=0))
    for group in groups:
        twin.batch(group)
    twin.batch([], flush=True)
    got = {at: (r.end, r.readings, r.withdrawn, r.late, r.coverage_id, r.revision) for at, r in twin.rows.items()}
    assert got == final(plain_rows(groups, root.journal), made)
