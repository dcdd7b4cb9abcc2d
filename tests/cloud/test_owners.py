"""Two roots over one place, and commits of others between ours: nothing newer is overwritten, nothing is given up."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cloud_job.delta import driver_rows, tables, upkeep
from cloud_job.delta.retention import Kept
from cloud_job.delta.tables import Place
from cloud_job.spark import upsert
from edge_agent.errors import PortError
from tests.support.cloud.child_frames import SECOND, Child, at, query, record, tick
from tests.support.cloud.jobs import FragileJob, Roots
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class PausedJob(FragileJob):
    """Stands still after a step of a batch, while something else happens."""

    after: tuple[str, int] | None = None
    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def _done(self, step: str, number: int) -> None:
        super()._done(step, number)
        if self.after == (step, number):
            self.after = None
            self.meanwhile()


def test_an_owner_that_was_paused_overwrites_nothing_that_the_next_one_wrote(roots: Callable[..., Roots]) -> None:
    """protocol 8.5"""
    root = roots()
    root.job.close()
    anywhere = Place(root.place.root, guarded=True)
    first = PausedJob(root.spark, anywhere, root.job.settings)
    first.open()
    child = Child("gw-1", (query(),))

    def late(value: float) -> bytes:
        return record(child, at(3), child.rows(at(2), np.array([at(0)]), np.array([value]), length_us=1, late=True))

    root.job = first
    birth, rows = child.birth(), child.rows(at(2), np.array([at(0)]), np.array([1.0]))
    root.take(tick(at(1)), record(child, at(1), birth), record(child, at(1), rows))
    one, two = root.land(tick(at(3)), late(2.0)), root.land(tick(at(4)), late(3.0))

    def next_owner() -> None:
        first._held().release()  # as on two machines, whose file system has no common locks
        root.start(anywhere)
        root.batch([two])

    first.after, first.meanwhile = ("positions", first.state.number + 1), next_owner
    first.process([(one.name, one.read_bytes())])
    (row,) = root.results().values()
    assert (row["readings"], row["values"]["avg"]) == (3, 2.0)
    assert {row["decided_us"] for row in root.rows(tables.NODES)} <= {at(1), at(4)}, "the last owner's"
    with pytest.raises(PortError, match="another root owns the tables"):
        first.process([("9", tick(at(5)) + late(4.0))])
    assert root.results().keys() == {("q", "site=a", at(0))}


def test_a_merge_that_meets_another_commit_is_made_again_upon_it(
    roots: Callable[..., Roots], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = roots()
    child = Child("gw-1", (query(),))
    birth, rows = child.birth(), child.rows(at(2), np.array([at(0)]), np.array([1.0]))
    root.take(tick(at(1)), record(child, at(1), birth), record(child, at(1), rows))
    (row,) = root.rows()
    assert (row["readings"], row["revision"]) == (1, 0)
    reading, over = tmp_path / "reading", tmp_path / "over"

    def slow(batches):  # type: ignore[no-untyped-def]
        reading.touch()
        while not over.exists():
            time.sleep(0.05)
        yield from batches

    of = driver_rows.rows(root.spark, tables.RESULTS, [{**row, "readings": 2, "batch": row["batch"] + 1}])
    failures: list[BaseException] = []

    def other() -> None:
        try:
            eventually(reading.exists, 120)
            root.spark.sql(f"UPDATE {root.place.sql(tables.RESULTS)} SET revision = 7, late = 3")
        except BaseException as err:
            failures.append(err)
        finally:
            over.touch()

    thread = threading.Thread(target=other)
    thread.start()
    with caplog.at_level(logging.WARNING, "headwater.root"):
        upsert.merge_sessions(root.spark, root.place, of.mapInArrow(slow, of.schema), None, at(0))
    thread.join(120)
    assert not failures
    assert [record.message for record in caplog.records] == ["root.conflict"]
    (row,) = root.rows()
    assert (row["readings"], row["revision"], row["late"]) == (2, 8, 0), "made after the other commit, not beside it"


def test_two_roots_with_tables_of_their_own_do_not_share_the_landing_files(
    roots: Callable[..., Roots], tmp_path: Path
) -> None:
    """protocol 8.5: each would delete files that the other has not read."""
    root = roots()
    other = FragileJob(root.spark, tables.place(str(tmp_path / "other")), root.job.settings)
    with pytest.raises(PortError, match="reads the landing files") as found:
        other.open()
    assert "stop it first" in str(found.value)
    assert f"process {os.getpid()}" in str(found.value)
    root.job.close()
    other.open()
    other.close()


def test_what_is_no_conflict_is_not_tried_again() -> None:
    tried = []

    def write() -> None:
        tried.append(1)
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="full"):
        tables.committed(write)
    assert len(tried) == 1


def test_a_conflict_that_goes_on_is_raised_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PAUSES_S", (0.0, 0.0))
    tried = []

    def write() -> None:
        tried.append(1)
        raise RuntimeError("[DELTA_CONCURRENT_APPEND] files were added")

    with pytest.raises(RuntimeError, match="DELTA_CONCURRENT"):
        tables.committed(write)
    assert len(tried) == 3


def test_the_ids_of_runs_leave_the_log_after_a_time_and_the_lease_stays(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 8.5: Delta keeps the id of each run that ever appended, in every checkpoint, unless told otherwise."""
    place, kept = Place(str(tmp_path), guarded=True), Kept(SECOND, SECOND)
    found = (tables.MESSAGES, tables.BATCHES)
    tables.create(spark, place, found)

    def ids(table: tables.Table) -> set[str]:
        """The transaction ids in a new checkpoint."""
        jvm: Any = spark
        delta = jvm._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(jvm._jsparkSession, place.path(table))
        delta.update(False, jvm._jvm.scala.Option.empty(), jvm._jvm.scala.Option.empty())
        delta.checkpoint()
        newest = max(Path(place.path(table), "_delta_log").glob("*.checkpoint*.parquet"))
        return {
            row[0] for row in spark.read.parquet(str(newest)).where("txn IS NOT NULL").select("txn.appId").collect()
        }

    def appended(step: str, number: int) -> int:
        place.append(tables.MESSAGES, driver_rows.rows(spark, tables.MESSAGES, [{"batch": number}]), step, number)
        return place.read(spark, tables.MESSAGES).count()

    for table in found:
        upkeep.tune(spark, place, table, kept)
    place.append(tables.BATCHES, driver_rows.rows(spark, tables.BATCHES, [{"number": 0}]), "decision", 0)
    assert [appended("one", 0), appended("two", 1), appended("two", 1), appended("one", 0)] == [1, 2, 2, 2]
    assert ids(tables.MESSAGES) == {"headwater/bronze.messages/one", "headwater/bronze.messages/two"}
    monkeypatch.setattr(upkeep, "RUN_IDS_KEPT", "interval 0 seconds")
    for table in found:
        upkeep.tune(spark, place, table, kept)
    assert appended("three", 2) == 3
    assert ids(tables.MESSAGES) == set()
    assert ids(tables.BATCHES) == {"headwater/ops.batches/decision"}
