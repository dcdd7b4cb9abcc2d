"""Spark jobs for tests: over copies of empty tables, batch by batch, with a crash after any step."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from cloud_job.delta import tables
from cloud_job.delta.tables import Place
from cloud_job.spark.job import Job, JobSettings
from edge_agent.algebra.coverage import Coverage
from edge_agent.root.decision.root_state import RootLimits
from edge_agent.root.numpy.rows import Row
from tests.support.cloud.child_frames import SECOND, Child, at, record, tick

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GRACE_US = 20_000_000


class CrashError(Exception):
    """The process would have died here."""


class FragileJob(Job):
    """Dies after a step of a batch: crash = (step, batch)."""

    crash: tuple[str, int] | None = None

    def _done(self, step: str, number: int) -> None:
        super()._done(step, number)
        if self.crash == (step, number):
            raise CrashError(step)


class Roots:
    """One root after the other over the same tables and landing folder."""

    def __init__(self, spark: SparkSession, base: Path, empty: Path, **limits: int) -> None:
        """empty: tables without rows. limits: of Limits; revisions at once unless said."""
        shutil.copytree(empty, base / "tables")
        self.spark, self.base = spark, base
        self.landing = base / "landing"
        self.landing.mkdir()
        self.limits = RootLimits(**{"revise_every_us": 0, **limits})
        self.place = tables.place(str(base / "tables"))
        self.files = 0
        self.job = self.start()

    def start(
        self, place: Place | None = None, *, members: tuple[str, ...] = (), retired: tuple[str, ...] = ()
    ) -> FragileJob:
        """Another run of the job, as after a crash or a stop. place: to have it beside the one that runs."""
        if place is None and hasattr(self, "job"):
            self.job.close()
        settings = JobSettings(str(self.landing), GRACE_US, self.limits, members, retired)
        self.job = FragileJob(self.spark, place or self.place, settings)
        self.job.open()
        return self.job

    def land(self, *records: bytes) -> Path:
        """One landing file."""
        path = self.landing / f"{self.files:08d}.cborseq"
        self.files += 1
        path.write_bytes(b"".join(records))
        return path

    def batch(self, paths: Iterable[Path]) -> None:
        """A micro-batch of these files, whether the job has seen them or not."""
        self.job.process([(path.name, path.read_bytes()) for path in sorted(paths)])

    def take(self, *records: bytes) -> None:
        """A landing file, and a micro-batch of it."""
        self.batch([self.land(*records)])

    def rows(self, table: tables.Table = tables.RESULTS, where: str = "true") -> list[dict[str, Any]]:
        """What stands in a table, as `headwater query` reads it: 5 ms, not 300 as a warm Spark takes."""
        engine = QueryBuilder().register("rows", DeltaTable(self.place.path(table)))
        found = pa.RecordBatchReader.from_stream(engine.execute(f"select * from rows where {where}")).read_all()
        rows: list[dict[str, Any]] = found.to_pylist(maps_as_pydicts="strict")
        return rows

    def results(self, where: str = "true") -> dict[tuple[str, str, int], dict[str, Any]]:
        """gold.results by (query, key, start); no row stands there twice."""
        found = self.rows(tables.RESULTS, where)
        named = {(row["query"], row["key"], row["start"]): row for row in found}
        assert len(named) == len(found), "a row stands twice"
        return named

    def judged(self) -> dict[tuple[str, str, int], Row]:
        """gold.results as rows that the oracle's judges read. Leaves that are in a row have no names there."""
        missing: dict[str, list[tuple[str, str]]] = {}
        for one in self.rows(tables.COVERAGE):
            missing.setdefault(one["coverage_id"], []).append((one["leaf"], one["reason"]))
        return {place: _row(found, missing.get(found["coverage_id"], [])) for place, found in self.results().items()}


def born(roots: Callable[..., Roots], child: Child, **limits: int) -> Roots:
    """A root that has the birth of a child; its horizon is 10 s unless said."""
    root = roots(**{"horizon_us": 10 * SECOND, **limits})
    root.take(tick(at(0)), record(child, at(0), child.birth()))
    return root


def stored(root: Roots) -> set[int]:
    """The starts of the parts that are in the tables."""
    return {row["start"] for row in root.rows(tables.MESSAGES, "part > 0")}


def _row(found: dict[str, Any], missing: list[tuple[str, str]]) -> Row:
    names = ("query", "definition_revision", "node", "key", "labels", "start", "end", "values", "details", "readings")
    about = {name: found[name] for name in (*names, "revision", "withdrawn", "late")}
    leaves = tuple(str(number) for number in range(found["expected"]))
    return Row(**about, coverage=Coverage(leaves, tuple(sorted(missing))))


def meaning(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a row says, without the batch that wrote it."""
    about = ("end", "values", "details", "readings", "revision", "late", "expected", "received", "complete", "labels")
    return tuple(row[name] for name in about)


def same(found: dict[Any, dict[str, Any]], wanted: dict[Any, dict[str, Any]]) -> list[str]:
    """Differences between two sets of results; sums of floats may round otherwise."""
    other = [
        f"{key}: {meaning(found[key])} instead of {meaning(wanted[key])}"
        for key in wanted.keys() & found.keys()
        if meaning(found[key]) != meaning(wanted[key])
    ]
    missing = [f"missing {key}" for key in wanted.keys() - found.keys()]
    return [*missing, *(f"extra {key}" for key in found.keys() - wanted.keys()), *other]


__all__ = ["GRACE_US", "CrashError", "FragileJob", "Roots", "meaning", "same"]
