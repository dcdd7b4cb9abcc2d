"""Definitions that change while fleets run, through the Spark job: no window of two revisions, none given twice."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from edge_agent.algebra.query.query import Query
from tests.support.cloud.both_roots import Sent, plain, same, sent, through_crashes
from tests.support.simulation.altered_fleets import FILTER, AlteringFleet
from tests.support.simulation.fleets import START, GatewayHost
from tests.support.simulation.world import SECOND, Chaos

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
CRASHES = {3: "revisions:3"}
CUTS_US = tuple(START + at_s * SECOND for at_s in (6, 35, 60, 100))  # of the micro-batches, the last one is open
# a seed each: the first gateway is left out as it learns of the change, the others before they tell that they have
MUTED = {418: False, 449: True}  # sessions or not


class NamedFleet(AlteringFleet):
    """A fleet whose queries are its own, beside those of other fleets at one root; definitions travel as texts."""

    def __init__(self, seed: int, *, sessions: bool) -> None:
        self.seed = seed
        super().__init__(seed, Chaos(), ahead=False, sessions=sessions, prefix=f"f{seed}-")
        self.altered = replace(self.altered, where=self._where(self.altered.where))

    def _where(self, where: str) -> str:
        own = f"value > -{1_000 + self.seed}"  # every reading, and a group of its own
        return f"{own} and {FILTER}" if where.endswith(FILTER) else own

    def _queries(self, random: Random) -> tuple[Query, ...]:
        found = super()._queries(random)
        return tuple(replace(query, id=f"f{self.seed}-{query.id}", where=self._where("")) for query in found)


class MutedFleet(NamedFleet):
    """The first gateway changes while nobody hears it, the others give rows of the old revision meanwhile.

    When it is heard again they are not: the new revision holds from its change on, over what they gave.
    """

    def __init__(self, seed: int, *, sessions: bool) -> None:
        super().__init__(seed, sessions=sessions)
        first, *others = (self.world.hosts[name] for name in self.gateways)
        assert isinstance(first, GatewayHost)
        first.mute = (START + 8 * SECOND, START + 50 * SECOND)
        for host in others:
            assert isinstance(host, GatewayHost)
            host.mute, host.hears_after_us = (START + 37 * SECOND, START + 130 * SECOND), 26 * SECOND

    def wrong(self) -> list[str]:
        """Not asked: no gateway feeds all windows of a revision. The roots are compared, and whose each window is."""
        return []


def test_altered_queries_give_the_plain_root_s_rows_and_no_window_has_two_revisions(
    spark: SparkSession, empty_tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 6.2, 6.3: another window, another gap; removed, there again; late to hear; rows of the wrong revision
    withdrawn; a row a window, whatever became of it, through a crash of the job."""
    fleets = [MutedFleet(seed, sessions=sessions) for seed, sessions in MUTED.items()]
    files = sorted((file for group in sent(fleets, 2, Random(9)) for file in group), key=lambda file: file[0][0])
    groups = [list(files[a:b]) for a, b in pairwise([0, *(bisect_left(files, us, key=_time) for us in CUTS_US), None])]
    wanted = plain(groups, lambda row: (row.query, row.key, row.start))
    rows = through_crashes(spark, tmp_path, empty_tables, monkeypatch, groups, crashes=CRASHES)
    got = {(row["query"], row["key"], row["start"]): row for row in rows}
    assert len(got) == len(rows)
    assert got.keys() == wanted.keys()
    for at, row in wanted.items():
        same(got[at], row)
        assert got[at]["definition_revision"] == row.definition_revision
    shown = [row for row in wanted.values() if not row.withdrawn]
    for query in sorted({row.query for row in shown}):
        starts = {r: [row.start for row in shown if (row.query, row.definition_revision) == (query, r)] for r in (1, 2)}
        assert not (starts[1] and starts[2]) or max(starts[1]) < min(starts[2])
    assert {row.definition_revision for row in shown} == {1, 2, 3}
    assert any(row.withdrawn and row.definition_revision == 1 for row in wanted.values())
    assert any(row.definition_revision == 2 and row.revision == 2 for row in shown)  # where one was withdrawn


def _time(file: Sent) -> int:
    return file[0][0]
