"""Runs the same landing files through the Spark job, with crashes, and through the plain-Python root."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from cloud_job.delta import tables
from cloud_job.spark.job import FAILPOINT, Job, JobSettings
from edge_agent.root.decision.root_state import RootLimits
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from tests.support.cloud.recorded_fleets import File, content, grouped
from tests.support.simulation.fleets import GRACE, Fleet
from tests.support.simulation.world import RootHost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Place = TypeVar("Place")
JOURNAL = 4_711
Sent = tuple[File, int]  # a landing file and the journal of its lander


class CrashedError(Exception):
    """The process is gone."""


def sent(fleets: Iterable[Fleet], batches: int, random: Random) -> list[list[Sent]]:
    """What the landers of all fleets wrote, in the order of time, as micro-batches.

    They have one journal, as one root reads the files of all: it takes another journal for that of a lost folder.
    """
    files: list[Any] = []
    for fleet in fleets:
        root = fleet.world.hosts["root"]
        assert isinstance(root, RootHost)
        root.take_journal(JOURNAL)
        assert fleet.run() == []
        files += [((at_us, tuple(objects)), root.journal) for at_us, objects in root.files]
    files.sort(key=lambda file: file[0][0])
    return grouped(files, batches, random)  # type: ignore[return-value]


def plain(groups: list[list[Sent]], place_of: Callable[[Row], Place]) -> dict[Place, Row]:
    """The rows of the plain-Python root as they stand at the end."""
    root = NumpyRoot(0, grace_us=GRACE)
    rows: dict[Place, Row] = {}
    for group in groups:
        for (_, objects), journal in group:
            root.decider.change_journal(journal)
            for node, message, received_us in objects:
                root.take(node, message, received_us)
        rows |= {place_of(row): row for row in root.step(group[-1][0][0])}
    return rows


def through_crashes(
    spark: SparkSession,
    folder: Path,
    empty: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: list[list[Sent]],
    *,
    crashes: Mapping[int, str],
) -> list[Any]:
    """Rows of gold.results after all micro-batches.

    empty: tables without rows. crashes: batch -> failpoint at which the job dies in it.
    """
    shutil.copytree(empty, folder / "tables")
    place = tables.place(str(folder / "tables"))
    settings = JobSettings(str(folder), GRACE, RootLimits(revise_every_us=0))

    def crash(_code: int) -> None:
        raise CrashedError

    monkeypatch.setattr(os, "_exit", crash)
    job = Job(spark, place, settings)
    job.open()
    for number, group in enumerate(groups):
        body = b"".join(content(file, journal) for file, journal in group)
        files = [(str(number), body)]
        if number in crashes:
            monkeypatch.setenv(FAILPOINT, crashes[number])
            with pytest.raises(CrashedError):
                job.process(files)
            monkeypatch.delenv(FAILPOINT)
            job.close()  # a process that is gone holds no lock
            job = Job(spark, place, settings)
            job.open()
        job.process(files)
    job.finish()
    return place.read(spark, tables.RESULTS).collect()


def same(got: Any, row: Row) -> None:
    """A row of the table against the plain root's."""
    told = ("end", "readings", "revision", "withdrawn", "late", "complete", "expected", "received")
    assert {name: got[name] for name in told} == {name: getattr(row, name) for name in told}, row
    assert got["labels"] == row.labels
    for name, value in row.values.items():
        found = got["values"][name]
        assert (found is None) == (value is None), row
        assert value is None or math.isclose(found, value, rel_tol=1e-12, abs_tol=1e-9), (row, found)
