"""The Spark root with exact quantiles: bags from ten children merge and are lowered."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Final

import numpy as np

from cloud_job.delta import tables
from edge_agent.algebra.aggregates import Readings, lift
from edge_agent.algebra.frame import GroupPart, Section
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from tests.benchmarks.bench import bench, record
from tests.benchmarks.bench_root import landed, root, times
from tests.support.cloud.child_frames import SECOND, Child

CHILDREN, KEYS, VALUES = 10, 100, 100
UNITS_SECONDS, FLOATS_SECONDS = 240, 80  # of a batch: 24 M values in 10 MB, 8 M in 50 MB, what a batch may hold
BATCHES, UNTIL_WARM = 7, 3  # as for sessions: Spark compiles in the first batches what quantiles need, `warm` has none
ASKED: Final = (Aggregate("median", "median"), Aggregate("quantile", "p99", (("q", 0.99),)))


def frame(child: Child, start_us: int, random: np.random.Generator) -> bytes:
    """A frame with VALUES random readings a key: of the child's resolution, or all different."""
    k = KEYS * VALUES
    values = random.normal(20, 3, k)
    if child.scale is not None:
        values = np.rint(values / 10.0**child.scale).astype(np.int64)
    readings = Readings(np.full(k, start_us), values, np.arange(k))
    states = lift(readings, Segments.runs(np.arange(0, k, VALUES), k), child.plan.basis, child.scale)
    start = np.full(KEYS, start_us)
    rows = Partials(start, start + SECOND, np.arange(KEYS), states)
    return child._next(groups=(GroupPart(0, start_us + SECOND, (Section.of(0, child.plan, rows),)),))


def measure(name: str, scale: int | None, seconds: int, what: str) -> None:
    """Values a second of whole triggers."""
    query = Query("q", 1, "s", Tumbling(SECOND), ASKED, by=("site",), lateness_us=SECOND)
    keys = tuple(f"site={i:04d}" for i in range(KEYS))
    values = CHILDREN * KEYS * VALUES * seconds
    with root() as (job, landing):
        fleet = [Child(f"gw-{i}", (query,), keys, scale=scale) for i in range(CHILDREN)]
        for number in range(BATCHES):
            made = partial(frame, random=np.random.default_rng(number))
            size = landed(fleet, landing, number, births=number == 0, turns=seconds, frame=made)
        took = times(job)
        rate = values / statistics.median(took[UNTIL_WARM:])
        print(f"triggers {[round(t, 2) for t in took]} s, {values} values, {size} B each: {rate:,.0f} values/s")
        rows = job.place.read(job.spark, tables.RESULTS).count()
        assert rows == BATCHES * seconds * KEYS, rows
    how = (
        f"median and p99 of {CHILDREN} children x {VALUES} readings a window, {what}; micro-batches of {values} "
        f"values in {seconds * KEYS} windows, {size / 1e6:.0f} MB, local[2], into Delta, whole trigger, median of "
        f"{BATCHES - UNTIL_WARM} once warm"
    )
    record(name, rate, "values/s", how)


@bench("quantiles_root", budget_s=300)
def quantiles() -> None:
    """Of a sensor of resolution 0.1, as `median_batches`."""
    measure("quantiles_root", -1, UNITS_SECONDS, "a sensor of resolution 0.1, normal with sigma 3")


@bench("quantiles_root_floats", budget_s=300)
def quantiles_of_floats() -> None:
    """Of values that are all different, which nothing packs."""
    measure("quantiles_root_floats", None, FLOATS_SECONDS, "float64 that are all different")
