"""Overlapping windows from 1 s slices: the cost of a result against one of tumbling 1 s windows, at both roots."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from cloud_job import session, tables
from cloud_job.job import Job, Settings
from cloud_job.warmup import warm
from edge_agent.algebra.windows import Sliding, Tumbling, Window
from edge_agent.config.definitions import query_of
from edge_agent.machines.root import Root
from edge_agent.wire import frames
from tests.benchmarks.bench import bench, record
from tests.cloud import children
from tests.cloud.children import JOURNAL, SECOND, START, Child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOWS: Final[dict[str, Window]] = {
    "tumbling 1 s": Tumbling(SECOND),
    "10 min by 1 s": Sliding(600 * SECOND, SECOND),
    "1 h by 1 s": Sliding(3_600 * SECOND, SECOND),
}
CHILDREN, KEYS = 2, 100
BEFORE, SECONDS, BATCHES = 3_600, 900, 3  # of event time: an hour that lies behind, then a batch; batches measured
STEPS = 40  # of a second each, at the plain root


def fleet(window: Window) -> list[Child]:
    """Children with avg and max over one kind of window."""
    asked = children.query(window=window, fns=("avg", "max"))
    return [Child(f"gw-{i}", (asked,), tuple(f"site={key:04d}" for key in range(KEYS))) for i in range(CHILDREN)]


def span(batch: int, seconds: int = SECONDS) -> tuple[int, int]:
    """From and until which second of event time a batch is; the first is what lies behind the others."""
    return (BEFORE + (batch - 1) * seconds, BEFORE + batch * seconds) if batch else (0, BEFORE)


def messages(nodes: list[Child], batch: int, seconds: int = SECONDS) -> Iterator[tuple[Child, bytes]]:
    """A frame a child and second, a row a key."""
    random, key = np.random.default_rng(batch), np.arange(KEYS)
    if not batch:
        yield from ((child, child.birth()) for child in nodes)
    for second in range(*span(batch, seconds)):
        start_us = START + second * SECOND
        for child in nodes:
            yield child, child.rows(start_us + SECOND, np.full(KEYS, start_us), random.normal(20, 5, KEYS), key)


def at_the_plain_root(window: Window, seconds: int, batches: int) -> float:
    """Seconds of the core a result, from decoded frames to rows, with an hour of slices behind."""
    nodes, root, took = fleet(window), Root(JOURNAL, grace_us=60 * SECOND, parse=query_of), []
    for batch in range(batches + 1):
        decoded = [(child.node, frames.decode(payload)) for child, payload in messages(nodes, batch, seconds)]
        first, until = span(batch, seconds)
        began_s = time.process_time()
        for node, frame in decoded:
            root.take(node, frame, START + until * SECOND)
        rows = root.step(START + until * SECOND)
        took.append((time.process_time() - began_s) / len(rows))
        assert len(rows) == (until - first) * KEYS, len(rows)
    return statistics.median(took[1:])


class Lane:
    """A job with empty tables that is handed a batch at a time."""

    def __init__(self, spark: SparkSession, base: Path, window: Window) -> None:
        """base: a folder with empty tables."""
        self._nodes, self._landing, self.took = fleet(window), base / "landing", list[float]()
        self._landing.mkdir(parents=True)
        settings = Settings(str(self._landing), str(base / "checkpoint"))
        self.job = Job(spark, tables.place(str(base / "tables")), settings)
        self.job.open()

    def batch(self, number: int) -> None:
        """One micro-batch, from the landing file to Delta."""
        at_us = START + span(number)[1] * SECOND
        records = [children.record(child, at_us, payload) for child, payload in messages(self._nodes, number)]
        file = self._landing / f"{number:08d}.cborseq"
        file.write_bytes(b"".join([children.tick(at_us), *records]))
        began_s = time.monotonic()
        self.job.process(self.job.spark.read.format("binaryFile").load(str(file)), number)
        self.took.append(time.monotonic() - began_s)
        print(f"  {number} {self.took[-1]:.2f} s {self.job.steps}", flush=True)

    def cost(self) -> float:
        """Seconds a result, the median of the batches with an hour of slices behind."""
        rows = self.job.place.read(self.job.spark, tables.RESULTS).count()
        assert rows == span(BATCHES)[1] * KEYS, rows
        self.job.close()
        return statistics.median(self.took[1:]) / (SECONDS * KEYS)


def spark_costs() -> dict[str, float]:
    """Of each kind of window. They take turns, so that a busy machine is fair to all."""
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
            for number in range(BATCHES + 1):
                for lane in lanes.values():
                    lane.batch(number)
            return {name: lane.cost() for name, lane in lanes.items()}
    finally:
        spark.stop()


@bench("sliding_cost_ratio", "sliding_cost_ratio_python", "sliding_cost_ratio_spark", budget_s=400)
def sliding() -> None:
    """Of both roots; the worst counts."""
    how = (
        f"avg and max of {KEYS} keys from 1 s slices of {CHILDREN} children, batches of {SECONDS} s that close "
        f"{SECONDS * KEYS} windows with an hour of slices behind, cost a result over that of tumbling 1 s; "
    )
    costs = {
        "python": {name: at_the_plain_root(window, SECONDS, BATCHES) for name, window in WINDOWS.items()},
        "python in steps of 1 s": {name: at_the_plain_root(window, 1, STEPS) for name, window in WINDOWS.items()},
        "spark": spark_costs(),
    }
    ratios: dict[str, list[float]] = {}
    told = []
    for root, found in costs.items():
        one, *others = found.values()
        ratios.setdefault(root.split()[0], []).append(max(others) / one)
        told.append(f"{root}: " + ", ".join(f"{name} {cost * 1e6:.3g} us" for name, cost in found.items()))
    for root, each in ratios.items():
        record(f"sliding_cost_ratio_{root}", max(each), "1", how + "; ".join(t for t in told if t.startswith(root)))
    record("sliding_cost_ratio", max(map(max, ratios.values())), "1", how + "the worst of " + "; ".join(told))
