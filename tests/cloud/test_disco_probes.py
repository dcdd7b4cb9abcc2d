"""What the published system gets wrong comes out right of the Spark job too; every message comes to it twice."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING

import pytest

from cloud_job import replay
from edge_agent.recording.parser import parse
from edge_agent.recording.row_rendering import RowRenderer
from edge_agent.recording.tree import JOURNAL, Tree
from tests.support.recording.probes import PROBES, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_the_job_gives_the_rows_of_every_probe_and_counts_nothing_twice(spark: SparkSession) -> None:
    """T4, protocol 1.1: identity is (node, epoch, seq). protocol 5.1, 5.3, 5.4, 6.1: as for the plain root."""
    trees = {
        name: Tree(parse(json.dumps(probe.given), name, number)) for number, (name, probe) in enumerate(PROBES.items())
    }
    for tree in trees.values():
        deque(tree.run(), maxlen=0)
    twice = [[(m.node, m.payload) for m in tree.messages for _ in range(2)] for tree in trees.values()]
    rows = replay.run(twice, max(tree.now_us for tree in trees.values()), JOURNAL, spark)
    for name, tree in trees.items():
        own = [row for row in rows if row.query.partition("-")[0] == tree.source]
        assert rows_of(RowRenderer(tree.recording).final(own)) == PROBES[name].rows, (name, PROBES[name].why)
