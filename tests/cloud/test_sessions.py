"""Sessions through the Spark job: several fleets with every fault in them, crashes of the job, one plain root."""

from __future__ import annotations

import math
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
from edge_agent.config.definitions import query_of
from edge_agent.machines.results import Row
from edge_agent.machines.root import Root
from tests.cloud.recorded import File, RecordedFleet, content, grouped
from tests.simulation.fleet import GRACE
from tests.simulation.test_fleets import everything, lossy
from tests.simulation.world import RootHost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SEEDS = {3_000: everything, 3_012: everything, 3_016: lossy}  # cuts, two gaps, mergers, left out, joined rows
BATCHES = 3
CRASHES = {0: "results:0", 1: "revisions:1"}
Sent = tuple[File, int]  # a landing file and the journal of its lander


class NamedFleet(RecordedFleet):
    """A fleet whose queries are its own, beside those of other fleets at one root."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        super().__init__(seed, SEEDS[seed](Random(seed)), sessions=True, prefix=f"f{seed}-")

    def _queries(self, random: Random) -> tuple[Query, ...]:
        where = f"value > -{self.seed * 1000}"  # every reading, and a group of its own
        return tuple(replace(q, id=f"f{self.seed}-{q.id}", where=where) for q in super()._queries(random))


class CrashedError(Exception):
    """The process is gone."""


def sent() -> list[list[Sent]]:
    """What the landers of all fleets wrote, in the order of time, as micro-batches."""
    files: list[Any] = []
    for seed in SEEDS:
        fleet = NamedFleet(seed)
        assert fleet.run() == []
        root = fleet.world.hosts["root"]
        assert isinstance(root, RootHost)
        files += [((at_us, tuple(objects)), root.journal) for at_us, objects in root.files]
    files.sort(key=lambda file: file[0][0])
    return grouped(files, BATCHES, Random(5))  # type: ignore[return-value]


def plain(groups: list[list[Sent]]) -> dict[tuple[str, str, int], Row]:
    """The rows of the plain-Python root as they stand at the end."""
    root = Root(0, grace_us=GRACE, parse=query_of)
    rows: dict[tuple[str, str, int], Row] = {}
    for group in groups:
        for (_, objects), journal in group:
            root.decider.parent.inbox.journal = journal
            for node, message, received_us in objects:
                root.take(node, message, received_us)
        rows |= {(row.query, row.key, row.start): row for row in root.step(group[-1][0][0])}
    return rows


def test_sessions_equal_the_plain_root_through_crashes_of_the_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 5.2, 5.4, 5.5, 8.2: complete by hints, cut, joined rows withdrawn, nothing twice after a crash."""
    groups = sent()
    place = tables.place(str(tmp_path / "tables"))
    settings = Settings(str(tmp_path), str(tmp_path / "checkpoint"), GRACE, Limits(revise_every_us=0))

    def crash(_code: int) -> None:
        raise CrashedError

    monkeypatch.setattr(os, "_exit", crash)
    job = Job(spark, place, settings)
    job.open()
    for number, group in enumerate(groups):
        body = b"".join(content(file, journal) for file, journal in group)
        files = spark.createDataFrame([(f"/landing/{number}", bytearray(body))], "path string, content binary")
        if number in CRASHES:
            monkeypatch.setenv(FAILPOINT, CRASHES[number])
            with pytest.raises(CrashedError):
                job.process(files, number)
            monkeypatch.delenv(FAILPOINT)
            job.close()  # a process that is gone holds no lock
            job = Job(spark, place, settings)
            job.open()
        job.process(files, number)
    job.finish()
    rows = place.read(spark, tables.RESULTS).collect()
    got = {(row["query"], row["key"], row["start"]): row for row in rows}
    assert len(got) == len(rows)
    wanted = plain(groups)
    assert got.keys() == wanted.keys()
    for at, row in wanted.items():
        same(got[at], row)
    assert any(row.withdrawn for row in wanted.values())
    assert any(not row.complete or row.revision for row in wanted.values())


def same(got: Any, row: Row) -> None:
    """A row of the table against the plain root's."""
    told = ("end", "readings", "revision", "withdrawn", "late", "complete", "expected", "received")
    assert {name: got[name] for name in told} == {name: getattr(row, name) for name in told}, row
    assert got["labels"] == row.labels
    for name, value in row.values.items():
        found = got["values"][name]
        assert (found is None) == (value is None), row
        assert value is None or math.isclose(found, value, rel_tol=1e-12, abs_tol=1e-9), (row, found)
