"""Which sessions get rows when: the job's decisions, carried out in plain numpy, against the plain-Python root."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from cloud_job.complete import Limits
from cloud_job.spans import Cover
from cloud_job.work import Work
from edge_agent.algebra.partial import Ints
from edge_agent.algebra.windows import Session
from edge_agent.machines.results import Row
from edge_agent.wire import frames
from tests.cloud.children import JOURNAL, SECOND, START, Child, query
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


# --- by hand ----------------------------------------------------------------------------------------------------------

GAP = Session(2 * SECOND)


def at(seconds: float) -> int:
    """Event time, in seconds after the first."""
    return START + round(seconds * SECOND)


def batch(twin: Twin, received_us: int, *sent: tuple[Child, bytes]) -> Work:
    """A micro-batch of these messages."""
    objects = tuple((child.node, frames.decode(payload), received_us) for child, payload in sent)
    return twin.batch([(received_us, objects)])


def starts(*seconds: float) -> Ints:
    return np.array([at(s) for s in seconds], np.int64)


def test_a_session_that_lasted_longer_than_the_horizon_is_not_beyond_it() -> None:
    """protocol 4.2: its last reading says how old it is; one whose last reading is too old is set aside."""
    twin, child = Twin(JOURNAL, Limits(revise_every_us=0, horizon_us=10 * SECOND)), Child("gw", (query(window=GAP),))
    batch(twin, at(1), (child, child.birth()), (child, child.rows(at(100))))
    long = child.rows(at(110), starts(20), length_us=80 * SECOND + 1)
    assert batch(twin, at(2), (child, long)).beyond == ()
    old = child.rows(at(110), starts(50), length_us=1, late=True)
    assert [(part.lasting, part.source) for part in batch(twin, at(3), (child, old)).beyond] == [(True, "s")]
    assert [(row.end, row.readings) for row in twin.rows.values()] == [(at(102), 1)]
