"""The Spark root with count windows: raw readings from ten children get their positions, and windows are formed."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from cloud_job.delta import tables
from edge_agent.algebra.aggregates import Readings, lift
from edge_agent.algebra.frame import GroupPart, Section
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import CountTumbling
from tests.benchmarks.bench import bench, record
from tests.benchmarks.bench_root import landed, root, times
from tests.support.cloud.child_frames import SECOND, Child

CHILDREN, KEYS, READINGS, LENGTH = 10, 100, 25, 100  # readings: of a key, a child and a second
SECONDS_A_BATCH, BATCHES = 40, 4
ASKED: Final = (Aggregate("avg", "avg"), Aggregate("max", "max"))


def frame(child: Child, start_us: int, random: np.random.Generator) -> bytes:
    """A frame with READINGS raw readings a key, 0.01 apart and near each other as a sensor's are."""
    k = KEYS * READINGS
    time_us = start_us + np.sort(random.integers(0, SECOND, (KEYS, READINGS)), axis=1).ravel()
    value = random.integers(2_000, 2_400, k)
    readings = Readings(time_us, value, np.arange(k))
    first = np.arange(0, k, READINGS)
    states = lift(readings, Segments.runs(first, k), child.plan.basis, child.scale)
    rows = Partials(time_us[first], time_us[first + READINGS - 1] + 1, np.arange(KEYS), states)
    return child._next(groups=(GroupPart(0, start_us + SECOND, (Section.of(0, child.plan, rows),)),))


def batch_file(fleet: list[Child], folder: Path, number: int) -> int:
    """A landing file with a frame a child and second; its size."""
    made = partial(frame, random=np.random.default_rng(number))
    return landed(fleet, folder, number, births=number == 0, turns=SECONDS_A_BATCH, frame=made)


@bench("central_root", budget_s=300)
def central() -> None:
    """Raw readings a second of whole triggers."""
    query = Query("q", 1, "s", CountTumbling(LENGTH), ASKED, by=("site",), lateness_us=SECOND)
    keys = tuple(f"site={i:04d}" for i in range(KEYS))
    readings = CHILDREN * KEYS * READINGS * SECONDS_A_BATCH
    with root() as (job, landing):
        fleet = [Child(f"gw-{i}", (query,), keys, -2) for i in range(CHILDREN)]
        size = [batch_file(fleet, landing, number) for number in range(BATCHES)][-1]
        took = times(job)
        rate = readings / statistics.median(took[1:])
        print(f"triggers {[round(t, 2) for t in took]} s, {readings} readings of {size / readings:.2f} bytes each")
        print(f"{rate:,.0f} readings/s; steps {job.steps}")
        rows = job.place.read(job.spark, tables.RESULTS).count()
        assert rows == BATCHES * readings // LENGTH, rows
    how = (
        f"count windows of {LENGTH}, avg and max, of {KEYS} keys on {CHILDREN} children, micro-batches of {readings} "
        f"raw readings, local[2], into Delta, whole trigger, median of {BATCHES - 1}"
    )
    record("central_root", rate, "readings/s", how)
