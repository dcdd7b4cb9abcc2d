"""A small micro-batch of the Spark root whose windows hold an hour: what it costs beside one of tumbling windows."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from cloud_job import session, tables
from cloud_job.job import Job, Settings
from cloud_job.warmup import warm
from edge_agent.algebra.windows import Sliding, Tumbling, Window
from tests.benchmarks.bench import bench, record
from tests.cloud import children
from tests.cloud.children import SECOND, START, Child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHILDREN, KEYS = 10, 10
HOUR_S, STRIDE_S = 3_600, 300  # of event time that lie behind, in batches of so many
SMALL_S, BATCHES, UNTIL_WARM = 2, 12, 2  # of event time in a small batch; batches measured
WINDOWS: Final[dict[str, Window]] = {
    "tumbling 1 s": Tumbling(SECOND),
    "1 h by 1 s": Sliding(HOUR_S * SECOND, SECOND),
}


class Lane:
    """A job with empty tables that is handed a batch at a time."""

    def __init__(self, spark: SparkSession, base: Path, window: Window) -> None:
        """base: a folder with empty tables."""
        asked, keys = children.query(window=window, fns=("avg", "max")), tuple(f"site={i:04d}" for i in range(KEYS))
        self._nodes = [Child(f"gw-{i}", (asked,), keys) for i in range(CHILDREN)]
        self._spark, self._base = spark, base
        (base / "landing").mkdir(parents=True)
        self._second = self._number = 0
        self.job = self._open()

    def _open(self) -> Job:
        settings = Settings(str(self._base / "landing"), str(self._base / "checkpoint"))
        job = Job(self._spark, tables.place(str(self._base / "tables")), settings)
        job.open()
        return job

    def restart(self) -> None:
        """Another run over the same tables: what is only in memory is gone."""
        self.job.close()
        self.job = self._open()

    def batch(self, seconds: int) -> float:
        """Seconds of a micro-batch of so many of event time, from the landing file to Delta."""
        key, random, at_us = np.arange(KEYS), np.random.default_rng(self._number), START + self._second * SECOND
        until_us = at_us + seconds * SECOND
        births = [] if self._number else [children.record(child, at_us, child.birth()) for child in self._nodes]
        records = [children.tick(until_us), *births]
        for start_us in range(at_us, until_us, SECOND):
            for child in self._nodes:
                values = random.normal(20, 5, KEYS)
                payload = child.rows(start_us + SECOND, np.full(KEYS, start_us), values, key)
                records.append(children.record(child, until_us, payload))
        file = self._base / "landing" / f"{self._number:08d}.cborseq"
        file.write_bytes(b"".join(records))
        self._second, self._number = self._second + seconds, self._number + 1
        began_s = time.monotonic()
        self.job.process(self._spark.read.format("binaryFile").load(str(file)), self._number)
        return time.monotonic() - began_s


@bench("sliding_small_batch_s", "sliding_small_batch_ratio", "sliding_restart_s", budget_s=400)
def small() -> None:
    """The lanes take turns, so that a busy machine is fair to both."""
    spark = session.start("headwater-bench", "local[2]", "4g")
    try:
        with tempfile.TemporaryDirectory(prefix="headwater-bench-") as name:
            folder = Path(name)
            tables.create(spark, tables.place(str(folder / "empty")))
            lanes = {}
            for about, window in WINDOWS.items():
                shutil.copytree(folder / "empty", folder / about / "tables")
                lanes[about] = Lane(spark, folder / about, window)
            warm(spark)
            for _ in range(HOUR_S // STRIDE_S):
                for lane in lanes.values():
                    lane.batch(STRIDE_S)
            took: dict[str, list[float]] = {about: [] for about in lanes}
            for _ in range(BATCHES):
                for about, lane in lanes.items():
                    took[about].append(lane.batch(SMALL_S))
            print({about: [round(s, 2) for s in each] for about, each in took.items()}, flush=True)
            last = lanes["1 h by 1 s"]
            last.restart()
            first_s = last.batch(SMALL_S)
            last.job.close()
    finally:
        spark.stop()
    one, hour = (statistics.median(took[about][UNTIL_WARM:]) for about in WINDOWS)
    how = (
        f"avg and max of {KEYS} keys, {CHILDREN} children, an hour of slices of 1 s behind, batches of "
        f"{CHILDREN * SMALL_S} frames that close {SMALL_S * KEYS} windows of 1 h by 1 s, local[2], into Delta, median "
        f"of {BATCHES - UNTIL_WARM} once warm"
    )
    record("sliding_small_batch_s", hour, "s", how)
    record("sliding_small_batch_ratio", hour / one, "1", f"{how}; over that of tumbling 1 s, {one:.2f} s")
    record("sliding_restart_s", first_s, "s", f"{how}; instead: the first batch after a restart")
