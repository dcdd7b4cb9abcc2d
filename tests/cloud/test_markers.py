"""Windows of one gateway and windows between markers through the Spark job: fleets with every fault, one plain root."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from cloud_job import tables
from cloud_job.complete import Limits
from cloud_job.job import FAILPOINT, Job, Settings
from edge_agent.algebra.query import Query
from edge_agent.algebra.windows import Punctuation
from edge_agent.cli.progress import Progress
from edge_agent.cli.replay import of_python, of_spark
from edge_agent.config.definitions import query_of
from edge_agent.machines.results import Row
from edge_agent.machines.root import Root
from edge_agent.recording.form import parse
from tests.cloud.recorded import File, RecordedFleet, content, grouped
from tests.cloud.test_sessions import CrashedError, same
from tests.recording.test_punctuation import by_place, made
from tests.simulation.fleet import GRACE
from tests.simulation.marked import MarkedFleet
from tests.simulation.test_fleets import everything, lossy
from tests.simulation.world import RootHost
from tests.tolerance import close

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SEEDS = {4_000: everything, 4_004: lossy}  # all but overlapping windows; those
BATCHES = 3
CRASHES = {0: "results:0", 1: "revisions:1"}
Sent = tuple[File, int]  # a landing file and the journal of its lander


class NamedFleet(MarkedFleet, RecordedFleet):
    """A fleet whose queries are its own, beside those of other fleets at one root."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        super().__init__(seed, SEEDS[seed](Random(seed)), prefix=f"f{seed}-")

    def _queries(self, random: Random) -> tuple[Query, ...]:
        where = f"value > -{self.seed * 1000}"  # every reading, and a group of its own
        return tuple(replace(q, id=f"f{self.seed}-{q.id}", where=where) for q in super()._queries(random))


def test_markers_and_local_windows_equal_the_plain_root_through_crashes_of_the_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 4.7, 5.4, 6.2, 8.1, 8.2: every revision, none twice after a crash."""
    fleets = [NamedFleet(seed) for seed in SEEDS]
    files: list[Any] = []
    for fleet in fleets:
        assert fleet.run() == []
        root = fleet.world.hosts["root"]
        assert isinstance(root, RootHost)
        files += [((at_us, tuple(objects)), root.journal) for at_us, objects in root.files]
    files.sort(key=lambda file: file[0][0])
    groups: list[list[Sent]] = grouped(files, BATCHES, Random(7))  # type: ignore[assignment]
    by_end = {
        query.id
        for fleet in fleets
        for query in fleet.queries
        if isinstance(query.window, Punctuation) and query.window.by_end
    }
    place = tables.place(str(tmp_path / "tables"))
    settings = Settings(str(tmp_path), str(tmp_path / "checkpoint"), GRACE, Limits(revise_every_us=0))

    def crash(_code: int) -> None:
        raise CrashedError

    monkeypatch.setattr(os, "_exit", crash)
    job = Job(spark, place, settings)
    job.open()
    for number, group in enumerate(groups):
        body = b"".join(content(file, journal) for file, journal in group)
        landed = spark.createDataFrame([(f"/landing/{number}", bytearray(body))], "path string, content binary")
        if number in CRASHES:
            monkeypatch.setenv(FAILPOINT, CRASHES[number])
            with pytest.raises(CrashedError):
                job.process(landed, number)
            monkeypatch.delenv(FAILPOINT)
            job.close()  # a process that is gone holds no lock
            job = Job(spark, place, settings)
            job.open()
        job.process(landed, number)
    job.finish()
    rows = place.read(spark, tables.RESULTS).collect()
    got = {_place(row, by_end): row for row in rows}
    assert len(got) == len(rows)
    wanted = _plain(groups, by_end)
    assert got.keys() == wanted.keys()
    for at, row in wanted.items():
        same(got[at], row)
    assert {row.node for row in wanted.values()} > {""}
    assert any(row.revision for row in wanted.values())


def _place(row: Any, by_end: set[str]) -> tuple[str, str, str, int, int]:
    query, node, key, start, end = (
        (row.query, row.node, row.key, row.start, row.end)
        if isinstance(row, Row)
        else (row[name] for name in ("query", "node", "key", "start", "end"))
    )
    return query, node, key, start, end if query in by_end else 0


def _plain(groups: list[list[Sent]], by_end: set[str]) -> dict[tuple[str, str, str, int, int], Row]:
    """The rows of the plain-Python root as they stand at the end."""
    root = Root(0, grace_us=GRACE, parse=query_of)
    rows: dict[tuple[str, str, str, int, int], Row] = {}
    for group in groups:
        for (_, objects), journal in group:
            root.decider.parent.inbox.journal = journal
            for node, message, received_us in objects:
                root.take(node, message, received_us)
        rows |= {_place(row, by_end): row for row in root.step(group[-1][0][0])}
    return rows


def test_recordings_with_markers_give_the_rows_of_the_plain_root(spark: SparkSession) -> None:
    """protocol 4.2, 6.1, 6.2: every interpretation, late readings, windows of each child alone, in one job."""
    texts = {f"markers-{seed}": json.dumps(made(seed)) for seed in range(6)}
    recordings = [parse(text, name, number) for number, (name, text) in enumerate(texts.items())]
    bar = Progress("replaying", len(recordings))
    plain, job = list(of_python(recordings, bar, revisions=False)), list(of_spark(recordings, bar, spark))
    for name in texts:
        got, want = (by_place([row for row in rows if row["recording"] == name]) for rows in (job, plain))
        assert got.keys() == want.keys(), name
        assert all(close(got[place], value) for place, value in want.items()), name
