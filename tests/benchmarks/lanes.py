"""Jobs of the Spark root side by side, each with a window and tables of its own. They take turns: a busy machine is
fair to all.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from cloud_job import spark_session
from cloud_job.delta import tables
from cloud_job.spark.job import Job, JobSettings
from cloud_job.warmup import warm
from edge_agent.algebra.windows import Sliding, Tumbling, Window
from tests.support.cloud import child_frames
from tests.support.cloud.child_frames import SECOND, START, Child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONE, TEN_MIN, HOUR = "tumbling 1 s", "10 min by 1 s", "1 h by 1 s"
WINDOWS: Final[Mapping[str, Window]] = {
    ONE: Tumbling(SECOND),
    TEN_MIN: Sliding(600 * SECOND, SECOND),
    HOUR: Sliding(3_600 * SECOND, SECOND),
}


def fleet(window: Window, nodes: int, keys: int) -> list[Child]:
    """Children with avg and max over one kind of window."""
    asked = child_frames.query(window=window, fns=("avg", "max"))
    return [Child(f"gw-{i}", (asked,), tuple(f"site={key:04d}" for key in range(keys))) for i in range(nodes)]


def messages(nodes: Sequence[Child], first: int, until: int) -> Iterator[tuple[Child, bytes]]:
    """A frame a child and second of event time, a row a key; before the first second, births."""
    key, random = np.arange(len(nodes[0].keys)), np.random.default_rng(first)
    if not first:
        yield from ((child, child.birth()) for child in nodes)
    for second in range(first, until):
        start_us = START + second * SECOND
        for child in nodes:
            values = random.normal(20, 5, len(key))
            yield child, child.rows(start_us + SECOND, np.full(len(key), start_us), values, key)


def landed(nodes: Sequence[Child], first: int, until: int) -> bytes:
    """A landing file with the `messages` of that time, and the records of a lander that ran meanwhile."""
    at_us = START + until * SECOND
    records = [child_frames.record(child, at_us, payload) for child, payload in messages(nodes, first, until)]
    return b"".join([child_frames.ticks(START + first * SECOND, at_us), *records])


class Lane:
    """A job that is handed a batch at a time. second: up to where event time has come. took: seconds of each batch."""

    def __init__(self, spark: SparkSession, base: Path, nodes: Sequence[Child]) -> None:
        """base: a folder with empty tables."""
        self._spark, self._base, self._nodes = spark, base, nodes
        self._landing = base / "landing"
        self._landing.mkdir(parents=True)
        self.second, self.took = 0, list[float]()
        self.job = self._open()

    def _open(self) -> Job:
        settings = JobSettings(str(self._landing))
        job = Job(self._spark, tables.place(str(self._base / "tables")), settings)
        job.open()
        return job

    def restart(self) -> None:
        """Another run over the same tables: what is only in memory is gone."""
        self.job.close()
        self.job = self._open()

    def batch(self, seconds: int) -> None:
        """A micro-batch of so many of event time, from the landing file to Delta."""
        first, self.second = self.second, self.second + seconds
        number = len(self.took)
        file = self._landing / f"{number:08d}.cborseq"
        file.write_bytes(landed(self._nodes, first, self.second))
        began_s = time.monotonic()
        self.job.process([(file.name, file.read_bytes())])
        self.took.append(time.monotonic() - began_s)
        print(f"  {number} {self.took[-1]:.2f} s {self.job.steps}", flush=True)


@contextmanager
def lanes(names: Sequence[str], nodes: int, keys: int) -> Iterator[dict[str, Lane]]:
    """One for each of these WINDOWS, on local[2], warm."""
    spark = spark_session.start("headwater-bench", "local[2]", "4g")
    try:
        with tempfile.TemporaryDirectory(prefix="headwater-bench-") as name:
            folder = Path(name)
            tables.create(spark, tables.place(str(folder / "empty")))
            made = {}
            for about in names:
                shutil.copytree(folder / "empty", folder / about / "tables")
                made[about] = Lane(spark, folder / about, fleet(WINDOWS[about], nodes, keys))
            warm(spark)
            yield made
            for lane in made.values():
                lane.job.close()
    finally:
        spark.stop()
