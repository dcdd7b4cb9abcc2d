"""Windows of one gateway and windows between markers through the Spark job: fleets with every fault, one plain root."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Punctuation
from edge_agent.cli.replay import of_python, of_spark
from edge_agent.cli.support.progress import Progress
from edge_agent.recording.parser import parse
from edge_agent.root.numpy.rows import Row
from tests.support.cloud.both_roots import plain, same, sent, through_crashes
from tests.support.recording.seeded_markers import by_place, made
from tests.support.simulation.faults import everything, lossy
from tests.support.simulation.marker_fleets import MarkedFleet
from tests.support.tolerance import close

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SEEDS = {2: everything, 4_004: lossy}  # all but overlapping windows, who is missing is skipped; those
BATCHES = 3
CRASHES = {0: "results:0", 1: "revisions:1"}


class NamedFleet(MarkedFleet):
    """A fleet whose queries are its own, beside those of other fleets at one root."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        super().__init__(seed, SEEDS[seed](Random(seed)), prefix=f"f{seed}-")

    def _queries(self, random: Random) -> tuple[Query, ...]:
        where = f"value > -{self.seed * 1000}"  # every reading, and a group of its own
        return tuple(replace(q, id=f"f{self.seed}-{q.id}", where=where) for q in super()._queries(random))


def test_markers_and_local_windows_equal_the_plain_root_through_crashes_of_the_job(
    spark: SparkSession, empty_tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 4.7, 5.4, 6.2, 8.1, 8.2: every revision, none twice after a crash."""
    fleets = [NamedFleet(seed) for seed in SEEDS]
    groups = sent(fleets, BATCHES, Random(3))  # batches cut so that rows are revised and withdrawn
    by_end = {
        query.id
        for fleet in fleets
        for query in fleet.queries
        if isinstance(query.window, Punctuation) and query.window.by_end
    }
    rows = through_crashes(spark, tmp_path, empty_tables, monkeypatch, groups, crashes=CRASHES)
    got = {_place(row, by_end): row for row in rows}
    assert len(got) == len(rows)
    wanted = plain(groups, lambda row: _place(row, by_end))
    assert got.keys() == wanted.keys()
    for at, row in wanted.items():
        same(got[at], row)
    assert {row.node for row in wanted.values()} > {""}
    assert any(row.revision and not row.withdrawn for row in wanted.values())
    assert any(row.withdrawn for row in wanted.values())


def _place(row: Any, by_end: set[str]) -> tuple[str, str, str, int, int]:
    query, node, key, start, end = (
        (row.query, row.node, row.key, row.start, row.end)
        if isinstance(row, Row)
        else (row[name] for name in ("query", "node", "key", "start", "end"))
    )
    return query, node, key, start, end if query in by_end else 0


def test_recordings_with_markers_give_the_rows_of_the_plain_root(spark: SparkSession) -> None:
    """protocol 4.2, 6.1, 6.2: every interpretation, late readings, windows of each child alone, in one job."""
    texts = {f"markers-{seed}": json.dumps(made(seed)) for seed in (0, 1, 2, 3, 5, 8)}
    recordings = [parse(text, name, number) for number, (name, text) in enumerate(texts.items())]
    bar = Progress("replaying", len(recordings))
    plain, job = (
        list(of_python(recordings, bar, [], revisions=False)),
        list(of_spark(recordings, bar, [], spark, revisions=False)),
    )
    for name in texts:
        got, want = (by_place([row for row in rows if row["recording"] == name]) for rows in (job, plain))
        assert got.keys() == want.keys(), name
        assert all(close(got[place], value) for place, value in want.items()), name
