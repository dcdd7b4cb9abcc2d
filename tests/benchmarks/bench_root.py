"""The Spark root: large micro-batches for the rate, small ones for the time until a row is there."""

from __future__ import annotations

import logging
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cloud_job import spark_session
from cloud_job.delta import tables
from cloud_job.ingest.landing_loop import LandingLoop
from cloud_job.spark.job import Job, JobSettings
from cloud_job.warmup import warm
from edge_agent.algebra.windows import Session
from edge_agent.root.decision.root_state import RootLimits
from tests.benchmarks.bench import bench, record
from tests.support.cloud import child_frames
from tests.support.cloud.child_frames import SECOND, START, Child

CHILDREN, KEYS = 10, 1_000
SECONDS_A_BATCH = 105  # of event time: 10 children x 1 000 keys x 105 = 1.05 M partials
BATCHES = 5
SMALL_BATCHES = 12


def made(keys: int) -> list[Child]:
    """Children with one query: averages a second and key."""
    texts = tuple(f"site={i:04d}" for i in range(keys))
    return [Child(f"gw-{i}", (child_frames.query(),), texts) for i in range(CHILDREN)]


def batch_file(fleet: list[Child], folder: Path, number: int, seconds: int, *, births: bool) -> int:
    """A landing file with a frame a child and second; answers its partials."""
    keys = len(fleet[0].keys)
    key = np.arange(keys)
    random = np.random.default_rng(number)

    def frame(child: Child, start_us: int) -> bytes:
        start = np.full(keys, start_us, np.int64)
        return child.rows(start_us + SECOND, start, random.normal(20, 5, keys), key)

    landed(fleet, folder, number, births=births, turns=seconds, frame=frame)
    return seconds * len(fleet) * keys


def landed(
    fleet: list[Child],
    folder: Path,
    number: int,
    *,
    births: bool,
    turns: int,
    frame: Callable[[Child, int], bytes],
    apart_us: int = SECOND,
) -> int:
    """A landing file with a frame a child and turn, which begins at the time that is given; its size in bytes."""
    at_us = START + (number + 1) * turns * apart_us
    records = [child_frames.tick(at_us)]
    records += [child_frames.record(child, at_us, child.birth()) for child in fleet] if births else []
    for turn in range(number * turns, (number + 1) * turns):
        start_us = START + turn * apart_us
        records += [child_frames.record(child, at_us, frame(child, start_us)) for child in fleet]
    part = folder / f".{number:08d}.tmp"
    part.write_bytes(b"".join(records))
    part.rename(folder / f"{number:08d}.cborseq")
    return sum(map(len, records))


@contextmanager
def root(driver_memory: str = "4g") -> Iterator[tuple[Job, Path]]:
    """A job on local[2] with empty tables, warm."""
    logging.getLogger("py4j").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        base = Path(folder)
        (base / "landing").mkdir()
        spark = spark_session.start("headwater-bench", "local[2]", driver_memory)
        job = Job(
            spark,
            tables.place(str(base / "tables")),
            JobSettings(str(base / "landing"), limits=RootLimits()),
        )
        job.open()
        warm(spark)
        try:
            yield job, base / "landing"
        finally:
            job.close()
            spark.stop()
            shutil.rmtree(base, ignore_errors=True)


def times(job: Job) -> list[float]:
    """Seconds of each batch of the files that are there, one a batch."""
    loop, out = LandingLoop(job, once=True, max_bytes=1), []
    while True:
        began_s = time.monotonic()
        if not loop.turn():
            break
        out.append(time.monotonic() - began_s)
    job.finish()
    return out


@bench("root_windows", budget_s=300)
def large() -> None:
    with root() as (job, landing):
        fleet = made(KEYS)
        counts = [batch_file(fleet, landing, i, SECONDS_A_BATCH, births=i == 0) for i in range(BATCHES)]
        took = times(job)
        rate = counts[0] / statistics.median(took[1:])
        print(f"triggers {[round(t, 2) for t in took]} s, {counts[0]} partials each: {rate:,.0f} windows/s")
        rows = job.place.read(job.spark, tables.RESULTS).count()
        assert rows == BATCHES * SECONDS_A_BATCH * KEYS, rows
    record(
        "root_windows",
        rate,
        "windows/s",
        f"{CHILDREN} children, {KEYS} rows a frame, micro-batches of {counts[0]} partials that close "
        f"{SECONDS_A_BATCH * KEYS} rows, local[2], into Delta, whole trigger, median of {BATCHES - 1} after the first",
    )


@bench("root_small_batch_s", budget_s=300)
def small() -> None:
    with root() as (job, landing):
        fleet = made(10)
        for i in range(SMALL_BATCHES):
            batch_file(fleet, landing, i, 2, births=i == 0)
        took = times(job)
        value = statistics.median(took[2:])
        print(f"triggers {[round(t, 2) for t in took]} s")
    record(
        "root_small_batch_s",
        value,
        "s",
        f"{CHILDREN} children, 20 frames of 10 rows that close 20 rows, local[2], into Delta, whole trigger, "
        f"median of {SMALL_BATCHES - 2} once warm",
    )


SESSIONS_A_KEY = 105  # a batch, 2 s apart, 1 s of gap: 10 children x 1 000 keys x 105 = 1.05 M partial sessions
SESSION_BATCHES, UNTIL_WARM = 7, 3  # Spark compiles what sessions need in their first batches, `warm` has none
APART = 2 * SECOND


def session_file(fleet: list[Child], folder: Path, number: int, *, births: bool) -> int:
    """A landing file with a frame a child and session of every key; answers its partial sessions."""
    keys = len(fleet[0].keys)
    key = np.arange(keys)
    random = np.random.default_rng(number)
    place = {child.node: i for i, child in enumerate(fleet)}

    def frame(child: Child, start_us: int) -> bytes:
        start = np.full(keys, start_us + place[child.node] * SECOND // 20, np.int64)
        return child.rows(start_us + APART, start, random.normal(20, 5, keys), key, length_us=SECOND // 2)

    landed(fleet, folder, number, births=births, turns=SESSIONS_A_KEY, frame=frame, apart_us=APART)
    return SESSIONS_A_KEY * len(fleet) * keys


@bench("sessions_root", budget_s=300)
def of_sessions() -> None:
    with root() as (job, landing):
        texts = tuple(f"site={i:04d}" for i in range(KEYS))
        asked = child_frames.query(window=Session(SECOND // 2))
        fleet = [Child(f"gw-{i}", (asked,), texts) for i in range(CHILDREN)]
        counts = [session_file(fleet, landing, i, births=i == 0) for i in range(SESSION_BATCHES)]
        took = times(job)
        rate = counts[0] / statistics.median(took[UNTIL_WARM:])
        print(f"triggers {[round(t, 2) for t in took]} s, last {job.steps}: {rate:,.0f} partial sessions/s")
        rows = job.place.read(job.spark, tables.RESULTS).count()
        assert rows == SESSION_BATCHES * SESSIONS_A_KEY * KEYS, rows
    record(
        "sessions_root",
        rate,
        "sessions/s",
        f"{CHILDREN} children, {KEYS} keys, micro-batches of {counts[0]} partial sessions that complete "
        f"{SESSIONS_A_KEY * KEYS}, local[2], into Delta, whole trigger, "
        f"median of {SESSION_BATCHES - UNTIL_WARM} once warm",
    )


if __name__ == "__main__":
    begin = time.monotonic()
    small()
    large()
    print(f"{time.monotonic() - begin:.0f} s")
