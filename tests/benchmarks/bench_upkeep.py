"""A root left alone for a month: whether its tables, their logs, its state and the time of a query grow with history.

The time of the root is the lander's, and a month of it passes in minutes. Everything but `keep_versions` is measured on
it; that one is the machine's own time, because VACUUM and the cut of a log look at the times of files, so it is given
as the real seconds that a simulated day takes.
"""

from __future__ import annotations

import logging
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from cloud_job import spark_session
from cloud_job.delta import tables
from cloud_job.delta.retention import Kept
from cloud_job.delta.table_folders import LOG
from cloud_job.delta.upkeep import Upkeep
from cloud_job.ingest.landing_loop import LandingLoop
from cloud_job.spark import decision_checkpoint
from cloud_job.spark.job import Job, JobSettings
from cloud_job.sql import delta_rs
from cloud_job.warmup import warm
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.epochs.ended_epochs import UNDER_WAY
from edge_agent.root.decision.root_state import RootLimits
from tests.benchmarks.bench import bench, record
from tests.support.cloud.child_frames import SECOND, START, Child, query, ticks
from tests.support.cloud.child_frames import record as landed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS, BATCHES_A_DAY = 30, 12  # a batch holds whole windows
DAY_US: Final = 86_400 * SECOND
WINDOW_US: Final = 600 * SECOND
KEPT_DAYS, HORIZON_DAYS = 7, 2
KEPT_VERSIONS_S = 20  # about as long as a simulated day takes
BELIEVED_US: Final = 90 * SECOND  # so long the lander runs before each batch: a step of its clock is believed by then
KEYS, CHILDREN = 5, 3
RESTARTS_DAYS, EPOCH_DAYS = 5, 1  # between two starts of the root; between two epochs of a gateway
PEAK_DAYS = 5  # small files come and are merged: the most in so many days counts
TURNS = 15  # of a query


@dataclass(frozen=True, slots=True)
class Size:
    """Of a folder."""

    files: int
    size_bytes: int


@dataclass(slots=True)
class Month:
    """A root with small batches and the steps of upkeep between them.

    day: of each, the folders, and the bytes of the whole state.
    """

    spark: SparkSession
    base: Path
    n: int = 0  # batches so far
    batches_s: float = 0.0
    steps_s: float = 0.0
    failed: int = 0
    done: int = 0
    days: list[dict[str, Size]] = field(default_factory=list)
    fleet: list[Child] = field(default_factory=list)
    job: Job = field(init=False)
    upkeep: Upkeep = field(init=False)

    def __post_init__(self) -> None:
        (self.base / "landing").mkdir()
        asked = (query(window=Tumbling(WINDOW_US)),)
        keys = tuple(f"site=s{key}" for key in range(KEYS))
        self.fleet = [Child(f"gw-{i}", asked, keys) for i in range(CHILDREN)]
        self.start()
        self.land([landed(each, START, each.birth()) for each in self.fleet] + self._past())
        self.n = (KEPT_DAYS + 1) * BATCHES_A_DAY  # when the rows of those epochs may go

    @property
    def now_us(self) -> int:
        return START + self.n * DAY_US // BATCHES_A_DAY

    def start(self) -> None:
        """A run of the root, as of a process of its own."""
        place = tables.place(str(self.base / "tables"))
        limits = RootLimits(horizon_us=HORIZON_DAYS * DAY_US)
        self.job = Job(self.spark, place, JobSettings(str(self.base / "landing"), limits=limits))
        self.job.open()
        kept = Kept(KEPT_VERSIONS_S * SECOND, KEPT_DAYS * DAY_US, KEPT_DAYS * DAY_US)
        self.upkeep = Upkeep(kept, DAY_US, lambda: self.now_us / 1e6)

    def restart(self) -> None:
        """As after a kill: no orderly end."""
        self.failed, self.done = self.failed + self.upkeep.failed, self.done + self.upkeep.done
        self.job.close()
        self.start()

    def land(self, records: list[bytes]) -> None:
        """A landing file, a batch, and the steps that are due."""
        path = self.base / "landing" / f"{self.n:08d}.cborseq"
        path.write_bytes(b"".join([ticks(self.now_us - BELIEVED_US, self.now_us), *records]))
        began_s = time.perf_counter()
        LandingLoop(self.job).turn()
        ended_s = time.perf_counter()
        self.batches_s += ended_s - began_s
        while self._step():
            pass
        self.steps_s += time.perf_counter() - ended_s

    def _step(self) -> bool:
        before = self.upkeep.done, self.upkeep.failed
        self.upkeep.between(self.job)
        return before != (self.upkeep.done, self.upkeep.failed)

    def pass_day(self) -> None:
        """Its batches: windows of the time since the last one, late readings, and a message that cannot be read."""
        day = len(self.days)
        if day and day % RESTARTS_DAYS == 0:
            self.restart()
        for turn in range(BATCHES_A_DAY):
            before_us = self.now_us
            self.n += 1
            records = []
            if turn == 0 and day % EPOCH_DAYS == 0:
                records.append(self._new_epoch(day % CHILDREN))
            start = np.arange(before_us, self.now_us - WINDOW_US + 1, WINDOW_US)
            rows = np.repeat(start, KEYS), np.tile(np.arange(KEYS), len(start))
            for each in self.fleet:
                value = np.random.default_rng(self.n).normal(20, 5, len(rows[0]))
                frame = each.rows(self.now_us, rows[0], value, rows[1], length_us=WINDOW_US)
                records.append(landed(each, self.now_us, frame))
            for after_us in (DAY_US // 2, (HORIZON_DAYS + 1) * DAY_US):  # one for a row, one too late for any
                if turn % 2 == 0 and day > HORIZON_DAYS + 1:
                    late = np.array([self.now_us - after_us])
                    frame = self.fleet[0].rows(self.now_us, late, length_us=1, late=True)
                    records.append(landed(self.fleet[0], self.now_us, frame))
            if turn % 2 == 0:
                records.append(landed(self.fleet[1], self.now_us, b"noise"))
            self.land(records)
        self.days.append(self.sizes())

    def _past(self) -> list[bytes]:
        """As many epochs of each gateway as a root remembers: a new one takes the place of the oldest."""
        return [self._new_epoch(i) for i in range(CHILDREN) for _ in range(UNDER_WAY)]

    def _new_epoch(self, i: int) -> bytes:
        old = self.fleet[i]
        new = self.fleet[i] = Child(old.node, old.queries, old.keys, epoch=old.epoch + 1)
        return landed(new, self.now_us, new.birth((old.epoch, old.seq - 1)))

    def sizes(self) -> dict[str, Size]:
        """Every folder, and the state."""
        found = {}
        for table in tables.TABLES:
            folder = Path(self.job.place.path(table))
            log = _size(folder / LOG)
            whole = _size(folder)
            found[table.name] = Size(whole.files - log.files, whole.size_bytes - log.size_bytes)
            found[f"{table.name} log"] = log
        found["landing"] = _size(self.base / "landing")
        state = decision_checkpoint.dumps(self.job.decider, self.job.state, self.job.parts)
        found["state"] = Size(0, len(state))
        return found

    def peak(self, day: int, of: Callable[[dict[str, Size]], float]) -> float:
        """The most in the days up to that one, from 1."""
        return max(of(found) for found in self.days[day - PEAK_DAYS : day])


def _size(folder: Path) -> Size:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return Size(len(sizes), sum(sizes))


def all_files(found: dict[str, Size]) -> float:
    return sum(size.files for size in found.values())


def all_bytes(found: dict[str, Size]) -> float:
    return sum(size.size_bytes for name, size in found.items() if name != "state")


def state_bytes(found: dict[str, Size]) -> float:
    return found["state"].size_bytes


def asked_s(folders: list[Path], after_us: list[int]) -> list[float]:
    """Median seconds of a query of the view in each of these folders, in turns. after_us: of its windows."""
    took_s: list[list[float]] = [[] for _ in folders]
    for _ in range(TURNS):
        for i, folder in enumerate(folders):
            began_s = time.perf_counter()
            found = delta_rs.ask(f"select * from q where start >= {after_us[i]}", str(folder))
            took_s[i].append(time.perf_counter() - began_s)
            assert found.rows
    return [statistics.median(each) for each in took_s]


@bench("month_files", "month_bytes", "month_state", "month_query", budget_s=3600, alone=True)
def month() -> None:
    logging.getLogger("py4j").setLevel(logging.ERROR)
    spark = spark_session.start("headwater-bench")
    warm(spark)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as name:
        base = Path(name)
        found = Month(spark, base)
        for day in range(1, DAYS + 1):
            found.pass_day()
            if day == 1:
                shutil.copytree(base / "tables", base / "empty")
                empty_us = found.now_us
            size = found.days[-1]
            print(
                f"day {day}: {all_files(size)} files, {all_bytes(size) / 1e6:.2f} MB, state {state_bytes(size)} B, "
                f"batches {found.batches_s:.0f} s, steps {found.steps_s:.0f} s",
                flush=True,
            )
            if day % 10 == 0:
                for folder, one in size.items():
                    print(f"  {folder:24} {one.files:6} files {one.size_bytes:10} B")
        found.restart()
        now_s, empty_s = asked_s(
            [base / "tables", base / "empty"],
            [us - DAY_US // BATCHES_A_DAY for us in (found.now_us, empty_us)],
        )
        found.job.close()
    spark.stop()
    how = (
        f"{DAYS} days of {BATCHES_A_DAY} batches of {CHILDREN} gateways with {UNDER_WAY} epochs each before, an epoch "
        f"a day, horizon {HORIZON_DAYS} days, "
        f"rows kept {KEPT_DAYS} days, versions {KEPT_VERSIONS_S} s of the machine's time, steps once a day: "
        f"{found.done} steps in {found.steps_s:.0f} s, {found.failed} failed, batches {found.batches_s:.0f} s"
    )
    for figure, of in (("month_files", all_files), ("month_bytes", all_bytes), ("month_state", state_bytes)):
        first, middle, last = (found.peak(day, of) for day in (10, 20, DAYS))
        text = f"{how}; days 10, 20, {DAYS}: {first:.0f}, {middle:.0f}, {last:.0f}"
        record(figure, last / first, "1", text)
    record("month_query", now_s / empty_s, "1", f"{how}; the last windows {now_s:.3f} s, after a day {empty_s:.3f} s")
