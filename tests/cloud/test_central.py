"""Count and state windows through the Spark job: crashes at every step, on the driver and in Spark, one order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from cloud_job.delta import driver_rows, retention, tables
from cloud_job.ordered import position_rows, position_store
from cloud_job.ordered.position_store import OrderedQueries, PositionStore
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows.count_sliding import CountSliding
from edge_agent.algebra.windows.count_tumbling import CountTumbling
from edge_agent.algebra.windows.state import State
from tests.support.cloud.child_frames import SECOND, START, Child, query, record, tick, ticks
from tests.support.cloud.jobs import CrashError, Roots
from tests.support.cloud.raw_frames import Reading, naive, raw_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
STEPS = ("decision", "results", "positions", None, None)  # where the process dies, batch by batch
KEYS = ("site=a", "site=b%2C")
COUNTED = query("counted", CountSliding(3, 2), ("sum", "first", "last"))
EVERY = query("every", CountTumbling(4), ("sum", "first", "last"), by=(), source="u")


def readings_of(random: Random, child: Child, step: int) -> list[Reading]:
    """Some of a second, out of order; equal times across nodes."""
    low = START + step * SECOND
    orders = range(step * 100, step * 100 + random.randrange(2, 9))
    times = [low + random.randrange(10) * SECOND // 10 for _ in orders]
    keys = [random.choice(child.keys) for _ in orders]
    values = [float(random.randrange(99)) for _ in orders]
    rows = zip(times, keys, values, orders, strict=True)
    return [Reading(time_us, key, value, child.node, order) for time_us, key, value, order in rows]


def files_of(seed: int) -> tuple[list[list[bytes]], list[Reading], list[Reading]]:
    """(records of each batch, readings by key, readings of all keys together) of two gateways with two queries.

    Each set of gateways has its own source: with one, the queries of a set would wait for the others (protocol 6.3).
    """
    random = Random(seed)
    fleet = [Child(node, (COUNTED,), KEYS) for node in ("gw-b", "gw-a")]
    others = [Child(f"{child.node}-2", (EVERY,), ("",)) for child in fleet]
    beside = Child("gw-c", (query("beside", source="t"),))
    batches: list[list[bytes]] = []
    keyed: list[Reading] = []
    together: list[Reading] = []
    for step in range(len(STEPS)):
        at_us = START + (step + 1) * SECOND
        records = [tick(at_us)]
        if not step:
            records += [record(child, at_us, child.birth()) for child in (*fleet, *others, beside)]
        for child, other in zip(fleet, others, strict=True):
            mine = readings_of(random, child, step)
            theirs = [Reading(r.time_us, "", r.value, other.node, r.order) for r in mine]
            keyed, together = keyed + mine, together + theirs
            records.append(record(child, at_us, raw_rows(child, at_us, mine)))
            records.append(record(other, at_us, raw_rows(other, at_us, theirs)))
        records.append(record(beside, at_us, beside.rows(at_us, np.array([at_us - SECOND]))))
        batches.append(records)
    return batches, keyed, together


def test_every_crash_leaves_the_windows_of_one_order(roots: Callable[..., Roots]) -> None:
    """protocol 7.4, 8.1, 8.2: after the steps that matter here the process dies; the last batches are made in Spark."""
    batches, keyed, together = files_of(3)
    root = roots()
    for number, (records, step) in enumerate(zip(batches, STEPS, strict=True)):
        path = root.land(*records)
        root.job.crash = None if step is None else (step, number)
        if step is None:
            root.job._rows.central = OrderedQueries(root.spark, root.place, most_rows=0)
            root.job._rows.central.open(number - 1)
            root.batch([path])
            continue
        with pytest.raises(CrashError):
            root.batch([path])
        root.start()
        root.batch([path])
    beside = root.results("query = 'beside'")
    assert [row["values"] for row in beside.values()] == [{"avg": 1.0, "count": 1.0}] * len(STEPS)
    counted = root.results("query <> 'beside'")
    found = {name: (row["end"], row["values"]) for name, row in counted.items()}
    assert found == {**naive(COUNTED, keyed, 3, 2), **naive(EVERY, together, 4, 4)}
    assert all(r["complete"] and not r["revision"] and r["node"] == "" for r in counted.values())
    row = counted["counted", KEYS[1], 0]
    line = sorted(r.time_us for r in keyed if r.key == KEYS[1])
    assert row["labels"] == {"site": "b,"}
    assert (row["window_start"].timestamp(), row["readings"]) == (line[0] / SECOND, 3)
    check_positions(root, keyed, together)


def check_positions(root: Roots, keyed: Sequence[Reading], together: Sequence[Reading]) -> None:
    """The states say how many readings have their positions; maintenance leaves what the latest of each key needs."""
    counts = {("counted", key): sum(r.key == key for r in keyed) for key in KEYS} | {("every", ""): len(together)}
    before = root.rows(tables.POSITIONS)
    retention.positions(root.job)
    left = sorted(root.rows(tables.POSITIONS), key=lambda row: int(row["batch"]))
    latest = {(row["query"], row["key"]): row for row in left}
    assert {name: row["position"] for name, row in latest.items()} == counts
    assert len(counts) <= len(left) < len(before)
    assert all(row["batch"] >= latest[row["query"], row["key"]]["since"] for row in left)


def test_a_gateway_that_is_missing_holds_what_is_counted(roots: Callable[..., Roots]) -> None:
    """protocol 7.4: time windows of others go on without it; count windows wait, unless the query says otherwise."""
    root = roots()
    grace = 21 * SECOND
    here, gone = (Child(node, (COUNTED,), KEYS) for node in ("gw-a", "gw-b"))
    mine = [Reading(START + i, KEYS[0], float(i), "gw-a", i) for i in range(5)]
    root.take(
        tick(START),
        *(record(child, START, child.birth()) for child in (here, gone)),
        record(here, START, raw_rows(here, START + SECOND, mine)),
    )
    late = START + grace
    root.take(ticks(START, late), record(here, late, here.beat(late)))
    root.take(ticks(late, late + grace), record(here, late + grace, here.beat(late + grace)))
    assert root.results() == {}
    theirs = [Reading(START + 1, KEYS[0], 50.0, "gw-b", 0)]
    at_us = late + grace
    root.take(tick(at_us), record(gone, at_us, raw_rows(gone, at_us, theirs)))
    assert [row["values"]["sum"] for _, row in sorted(root.results().items())] == [51.0, 55.0]


def test_state_windows_begin_and_end_with_readings(roots: Callable[..., Roots]) -> None:
    """protocol 7.4: per key, across micro-batches; bounds are times."""
    root = roots()
    asked: Query = query("hot", State("value > 80", "value < 60"), ("count", "max"))
    child = Child("gw-1", (asked,))
    values = (50.0, 81.0, 70.0, 90.0, 59.0, 85.0)
    mine = [Reading(START + i * SECOND, "site=a", value, "gw-1", i) for i, value in enumerate(values)]
    root.take(tick(START), record(child, START, child.birth()))
    for first, last in ((0, 2), (2, 5), (5, 6)):
        at_us = mine[last - 1].time_us + 1
        root.take(tick(at_us), record(child, at_us, raw_rows(child, at_us, mine[first:last])))
    ((key, row),) = root.results().items()
    assert key == ("hot", "site=a", START + SECOND)
    assert (row["end"], row["values"]) == (START + 4 * SECOND, {"count": 3.0, "max": 90.0})
    assert (row["window_end"] - row["window_start"]).total_seconds() == 3


def test_rows_behind_a_chunk_without_rows_reach_spark(spark: SparkSession) -> None:
    """Spark reads an Arrow table up to its first empty chunk: a query without a full window made others lose theirs."""
    some = pa.table({"place": pa.array([1, 2], pa.int64())})
    made = driver_rows.frame(
        spark, pa.concat_tables([some, some.slice(0, 0), some]), driver_rows.struct({"place": "bigint"})
    )
    assert [row["place"] for row in made.collect()] == [1, 2, 1, 2]


def test_readings_that_windows_hold_are_not_read_beyond_their_bound(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row may hold a million readings: a start asked for all of them before it looked at their bytes."""
    named = {"query": "q", "node": "", "definition_revision": 1, "base": 0, "position": 9, "held_from": 0, "since": 1}
    rows = [{**named, "key": f"site={n}", "scale": None, "held": bytes(100), "batch": 1} for n in range(3)]
    kinds = {name: kind for name, (kind, _) in tables.POSITIONS.columns.items()}
    positions = spark.createDataFrame([tuple(row[name] for name in kinds) for row in rows], driver_rows.struct(kinds))

    def read(most_rows: int, most_bytes: int, *, whole: bool) -> bool:
        with monkeypatch.context() as bounds:
            bounds.setattr(position_store, "MOST_BYTES", most_bytes)
            if not whole:
                bounds.delattr(position_rows, "STATES")
            store = PositionStore(most_rows)
            store.read(positions)
        return store.before([]) is not None

    assert read(3, 10_000, whole=True)
    assert not read(2, 10_000, whole=False)
    assert not read(3, 299, whole=False)
