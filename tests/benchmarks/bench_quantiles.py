"""The Spark root with exact quantiles: bags from ten children merge and are lowered."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from cloud_job import tables
from edge_agent.algebra.aggregates import Readings, lift
from edge_agent.algebra.frame import GroupPart, Section
from edge_agent.algebra.partial import Partials
from edge_agent.algebra.query import Aggregate, Query
from edge_agent.algebra.segments import Segments
from edge_agent.algebra.windows import Tumbling
from tests.benchmarks.bench import bench, record
from tests.benchmarks.bench_root import landed, root, times
from tests.cloud.children import SECOND, Child

CHILDREN, KEYS, VALUES = 10, 100, 100
SECONDS_A_BATCH = 80  # 8 M values, 50 MB: what a batch of the job may hold
BATCHES, UNTIL_WARM = 7, 3  # as for sessions: Spark compiles in the first batches what quantiles need, `warm` has none
ASKED: Final = (Aggregate("median", "median"), Aggregate("quantile", "p99", (("q", 0.99),)))


def frame(child: Child, start_us: int, random: np.random.Generator) -> bytes:
    """A frame with VALUES random readings a key, all different."""
    k = KEYS * VALUES
    readings = Readings(np.full(k, start_us), random.normal(20, 5, k), np.arange(k))
    states = lift(readings, Segments.runs(np.arange(0, k, VALUES), k), child.plan.basis, None)
    start = np.full(KEYS, start_us)
    rows = Partials(start, start + SECOND, np.arange(KEYS), states)
    return child._next(groups=(GroupPart(0, start_us + SECOND, (Section.of(0, child.plan, rows),)),))


def batch_file(fleet: list[Child], folder: Path, number: int) -> None:
    """A landing file with a frame a child and second."""
    made = partial(frame, random=np.random.default_rng(number))
    landed(fleet, folder, number, births=number == 0, turns=SECONDS_A_BATCH, frame=made)


@bench("quantiles_root", budget_s=300)
def quantiles() -> None:
    """Values a second of whole triggers."""
    query = Query("q", 1, "s", Tumbling(SECOND), ASKED, by=("site",), lateness_us=SECOND)
    keys = tuple(f"site={i:04d}" for i in range(KEYS))
    values = CHILDREN * KEYS * VALUES * SECONDS_A_BATCH
    with root() as (job, landing):
        fleet = [Child(f"gw-{i}", (query,), keys) for i in range(CHILDREN)]
        for number in range(BATCHES):
            batch_file(fleet, landing, number)
        took = times(job)
        rate = values / statistics.median(took[UNTIL_WARM:])
        print(f"triggers {[round(t, 2) for t in took]} s, {values} values each: {rate:,.0f} values/s")
        rows = job.place.read(job.spark, tables.RESULTS).count()
        assert rows == BATCHES * SECONDS_A_BATCH * KEYS, rows
    how = (
        f"median and p99 of {CHILDREN} children x {VALUES} different floats a window, micro-batches of {values} "
        f"values in {SECONDS_A_BATCH * KEYS} windows, local[2], into Delta, whole trigger, median of "
        f"{BATCHES - UNTIL_WARM} once warm"
    )
    record("quantiles_root", rate, "values/s", how)
