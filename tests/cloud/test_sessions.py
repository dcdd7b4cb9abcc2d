"""Sessions through the Spark job: fleets with every fault in them, crashes of the job, a plain root beside each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from edge_agent.algebra.query.query import Query
from tests.support.cloud.both_roots import plain, same, sent, through_crashes
from tests.support.simulation.faults import everything, lossy
from tests.support.simulation.fleets import Fleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SEEDS = {6: everything, 3_016: lossy}  # rows that are joined, withdrawn, revised and incomplete
BATCHES = 3
CRASHES = {0: "results:0", 1: "revisions:1"}


class NamedFleet(Fleet):
    """A fleet whose queries and nodes have names of their own."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        super().__init__(seed, SEEDS[seed](Random(seed)), sessions=True, prefix=f"f{seed}-")

    def _queries(self, random: Random) -> tuple[Query, ...]:
        where = f"value > -{self.seed * 1000}"  # every reading, and a group of its own
        return tuple(replace(q, id=f"f{self.seed}-{q.id}", where=where) for q in super()._queries(random))


def test_sessions_equal_the_plain_root_through_crashes_of_the_job(
    spark: SparkSession, empty_tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 5.2, 5.4, 5.5, 8.2: complete by hints, cut, joined rows withdrawn, nothing twice after a crash."""
    every = list[Any]()
    for seed in SEEDS:  # one root each: at one, the queries of a fleet would wait for the other fleet (protocol 6.3)
        folder = tmp_path / str(seed)
        folder.mkdir()
        groups = sent((NamedFleet(seed),), BATCHES, Random(5))
        with monkeypatch.context() as patch:
            rows = through_crashes(spark, folder, empty_tables, patch, groups, crashes=CRASHES)
        got = {(row["query"], row["key"], row["start"]): row for row in rows}
        assert len(got) == len(rows)
        wanted = plain(groups, lambda row: (row.query, row.key, row.start))
        assert got.keys() == wanted.keys()
        for at, row in wanted.items():
            same(got[at], row)
        every += wanted.values()
    assert any(row.withdrawn for row in every)
    assert any(not row.complete or row.revision for row in every)
