"""The tables stay small while the root runs, and nothing that is needed goes (docs/protocol.md 8.4)."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from py4j.protocol import Py4JNetworkError

from cloud_job.audit.root_book import root_book
from cloud_job.delta import driver_rows, log_files, retention, tables, upkeep, vacuum
from cloud_job.delta.retention import Kept
from cloud_job.delta.upkeep import Cleaning, Compaction, Expiry, Upkeep, UpkeepStep, WhenWritten
from cloud_job.spark.job import Job
from cloud_job.spark_session import LOCAL_CONF
from edge_agent.algebra.frame import Members
from edge_agent.algebra.windows import Session, Tumbling
from tests.support.cloud.child_frames import SECOND, START, Child, query, record, tick
from tests.support.cloud.jobs import Roots, same

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
DAY_US = 86_400 * SECOND
SOME_EXPIRED = 3  # runs after which a step that finds readings and one that deletes them have each met a start
SIZES = [f"spark.databricks.delta.optimize.{name}" for name in ("batchSize", "maxFileSize", "minFileSize")]


def at(second: float) -> int:
    return START + int(second * SECOND)


def one(child: Child, second: float, frontier: float, value: float = 1.0, *, late: bool = False) -> bytes:
    rows = child.rows(
        at(frontier), np.array([at(second)]), np.array([value]), length_us=1 if late else SECOND, late=late
    )
    return record(child, at(frontier), rows)


def born(roots: Callable[..., Roots], child: Child) -> Roots:
    root = roots(horizon_us=10 * SECOND)
    root.take(tick(at(0)), record(child, at(0), child.birth()))
    return root


def stored(root: Roots) -> set[int]:
    return {row["start"] for row in root.rows(tables.MESSAGES, "part > 0")}


def test_readings_go_a_batch_after_they_were_found_useless_and_the_books_balance(roots: Callable[..., Roots]) -> None:
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    for second in (1, 2, 100):
        root.take(tick(at(second)), one(child, second - 1, second), one(child, second - 1, second, 3.0))
    before, book, expiry = root.results(), root_book(root.place.root), Expiry()
    assert expiry(root.job) == expiry(root.job) == {upkeep.LATER: True}
    assert stored(root) == {at(0), at(1), at(99)}, "a start would carry out the last decision again"
    root.start()
    assert root.results() == before
    root.take(tick(at(101)), one(child, 100, 101))
    assert expiry(root.job) == {"rows": 4, "epochs": 0}
    assert stored(root) == {at(99), at(100)}
    root.take(tick(at(200)), one(child, 199, 200))
    assert expiry(root.job) == {upkeep.LATER: True}
    root.take(tick(at(201)), one(child, 200, 201))
    assert expiry(root.job) == {"rows": 3, "epochs": 0}, "of the seconds 99 and 100"
    (expired,) = root.rows(tables.MESSAGES, "kind = 'expired'")
    assert (expired["node"], expired["epoch"], expired["readings"], expired["rows"]) == ("gw-1", -1, 7, 0)
    after = root_book(root.place.root)
    assert after.stored == after.applied == {"gw-1": 9}
    assert book.stored == book.applied == {"gw-1": 6}
    assert before.items() <= root.results().items()


def test_readings_of_sessions_go_and_what_comes_late_makes_a_row_of_all_that_are_left(
    roots: Callable[..., Roots],
) -> None:
    """protocol 8.4: two horizons and the longest row before the frontier no row is made of them."""
    child = Child("gw-1", (query(window=Session(2 * SECOND), fns=("count", "sum")),))
    root, expiry = born(roots, child), Expiry()
    for second, frontier in ((1, 5), (2, 6), (70, 75), (97, 100)):
        root.take(tick(at(frontier)), one(child, second, frontier, second))
    expiry(root.job)
    root.start()
    root.take(tick(at(101)), one(child, 100, 101))
    assert expiry(root.job) == {"rows": 3, "epochs": 0}
    assert stored(root) == {at(97), at(100)}
    before = root.results()
    root.take(tick(at(102)), one(child, 98.5, 104, 5.0, late=True))
    row = root.results()["q", "site=a", at(97)]
    assert (row["readings"], row["values"]["sum"], row["end"], row["complete"]) == (3, 103.0, at(103) - 1, True)
    assert {place: row for place, row in before.items() if place[2] < at(90)}.items() <= root.results().items()
    book = root_book(root.place.root)
    assert book.stored == book.applied == {"gw-1": 6}


def test_an_epoch_that_has_ended_is_forgotten_with_its_last_row(roots: Callable[..., Roots]) -> None:
    first = Child("gw-1", (query(),))
    root, expiry = born(roots, first), Expiry()
    root.take(tick(at(1)), one(first, 0, 1))
    then = Child("gw-1", (query(),), epoch=2)
    root.take(tick(at(2)), record(then, at(2), then.birth((1, first.seq - 1))), one(then, 1, 2))
    root.take(tick(at(100)), one(then, 99, 100))
    expiry(root.job)
    lines = root.job.decider.parent.dictionaries
    assert [line.epoch for line in lines] == [1, 2], "its rows are there"
    root.take(tick(at(101)), one(then, 100, 101))
    assert expiry(root.job) == {"rows": 2, "epochs": 1}
    assert [line.epoch for line in lines] == [2]
    root.start()
    assert [line.epoch for line in root.job.decider.parent.dictionaries] == [1, 2], "no decision says so yet"
    expiry(root.job)
    for second in (102, 103):
        root.take(tick(at(second)), one(then, second - 1, second))
        expiry(root.job)
        found = root_book(root.place.root)
        assert (found.stored, found.applied) == ({"gw-1": second - 97}, {"gw-1": second - 97})
    assert root.job.needed_from < root.job.state.number, "a start decides again"
    root.start()
    assert [line.epoch for line in root.job.decider.parent.dictionaries] == [2]
    root.take(tick(at(104)), record(first, at(104), first.rows(at(1))), one(then, 103, 104))
    assert {row["readings"] for row in root.results().values()} == {1}


def test_a_run_is_forgotten_with_its_last_row(roots: Callable[..., Roots]) -> None:
    child = Child("gw-1", (query(),))
    root, expiry, kept = born(roots, child), Expiry(), Kept(DAY_US, 20 * SECOND)
    for second in (1, 2, 100, 101):
        root.start()
        root.take(tick(at(second)), one(child, second - 1, second))
    owners = list(root.job.state.owners)
    assert [first for first, _ in owners] == [0, 1, 2, 3, 4]
    expiry(root.job)
    assert root.job.state.owners == owners, "their rows are there"
    for second in (102, 103, 104):
        root.take(tick(at(second)), one(child, second - 1, second))
        expiry(root.job)
        retention.ops(root.job, kept)
    assert root.job.state.owners == owners[3:]
    root.take(tick(at(105)), one(child, 104, 105))
    assert root.job.needed_from < root.job.state.number, "a start decides again"
    before = root.results()
    root.start()
    assert root.job.state.owners == owners[3:]
    root.take(tick(at(106)), one(child, 99.5, 106, late=True))
    assert root.results()["q", "site=a", at(99)]["readings"] == 2
    assert len(before) == len(root.results())
    book = root_book(root.place.root)
    assert (book.stored, book.doubled, book.uncounted) == (book.applied, (), 0)


@pytest.mark.parametrize("window", [Tumbling(SECOND), Session(SECOND)])
def test_readings_of_a_group_that_nobody_serves_any_more_go(
    roots: Callable[..., Roots], window: Tumbling | Session
) -> None:
    first, other = Child("gw-1", (query(window=window),)), Child("gw-2", (query("r", source="t"),))
    root, expiry = born(roots, first), Expiry()
    root.take(tick(at(1)), one(first, 0, 1), record(other, at(1), other.birth()))
    root.take(tick(at(40)), record(first, at(40), first.rows(at(40))), one(other, 39, 40))
    left = first._next(members=(Members(0, dropped=("gw-1",)),))
    root.take(tick(at(41)), record(first, at(41), left), one(other, 40, 41))
    assert list(root.job.decider.parent.children.memberships) == [other.queries[0].group]
    before = root.results()
    for second in (42, 50):
        root.take(tick(at(second)), one(other, second - 1, second))
        expiry(root.job)
    assert at(0) not in stored(root), "two horizons ago"
    root.start()
    assert root.results().items() >= before.items()
    book = root_book(root.place.root)
    assert (book.stored, book.doubled, book.uncounted) == (book.applied, (), 0)


def test_rows_that_do_not_count_are_not_counted_when_they_go(roots: Callable[..., Roots]) -> None:
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    root.take(tick(at(1)), one(child, 0, 1))
    stands = root.place.read(root.spark, tables.MESSAGES)
    again = stands.where("part = 1").collect()
    died = [{**row.asDict(), "owner": "a run that died"} for row in again]
    root.place.append(tables.MESSAGES, root.spark.createDataFrame(died, stands.schema), "test", 0)
    root.take(tick(at(100)), one(child, 99, 100))
    expiry = Expiry()
    expiry(root.job)
    root.take(tick(at(101)), one(child, 100, 101))
    assert expiry(root.job) == {"rows": 2, "epochs": 0}
    root.job.committed("upkeep")
    assert "upkeep" not in root.job.steps, "no step of a batch"
    found = root_book(root.place.root)
    assert (found.stored, found.doubled, found.uncounted) == ({"gw-1": 3}, (), 0)


def test_a_batch_decided_while_the_landers_clock_was_wrong_makes_no_batch_before_it_old(
    roots: Callable[..., Roots],
) -> None:
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    root.take(tick(at(50)), one(child, 49, 50))
    root.take(tick(SECOND), record(child, SECOND, child.beat(at(50))))
    root.take(tick(at(100)), one(child, 99, 100))
    assert [row["decided_us"] for row in sorted(root.rows(tables.BATCHES), key=lambda row: row["number"])][-2] == SECOND
    assert retention.old_batch(root.job, DAY_US) == -1
    assert retention.old_batch(root.job, 10 * SECOND) == root.job.state.number - 1


def test_an_old_batch_is_before_all_recent_ones_whatever_their_own_times_are(roots: Callable[..., Roots]) -> None:
    """Rows of an earlier version have the time of their decision only, by a clock that may have been wrong."""
    root = roots()
    empty = dict.fromkeys(tables.BATCHES.columns)
    rows = [{**empty, "number": n, "decided_us": at(second)} for n, second in enumerate((0, 50, 95, 1, 99))]
    root.place.append(tables.BATCHES, driver_rows.rows(root.spark, tables.BATCHES, rows), "test", 0)
    job: Any = SimpleNamespace(spark=root.spark, place=root.place, decider=SimpleNamespace(elapsed_us=at(100)))
    kept = (10, 50, 99, 100, 0.5)
    assert [retention.old_batch(job, int(seconds * SECOND)) for seconds in kept] == [1, 0, 0, -1, -1]


@pytest.mark.parametrize("returns", [False, True])
def test_a_landers_clock_a_year_ahead_makes_no_batch_old(roots: Callable[..., Roots], returns: bool) -> None:
    """Before and after a start, and after the clock has come back."""
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    root.take(tick(at(50)), one(child, 49, 50))
    root.take(tick(at(50) + 365 * DAY_US), one(child, 50, 51))
    if returns:
        root.take(tick(at(60)), one(child, 59, 60))
    for _ in range(2):
        assert retention.old_batch(root.job, 2 * DAY_US) == -1
        assert retention.old_batch(root.job, 3600 * SECOND) == 1, "a day of it counts"
        before = root.results(), len(root.rows(tables.BATCHES))
        retention.batches(root.job, Kept(DAY_US, 30 * DAY_US, 60 * DAY_US))
        retention.results(root.job, Kept(DAY_US, 30 * DAY_US, 60 * DAY_US))
        assert (root.results(), len(root.rows(tables.BATCHES))) == before
        root.start()


def test_old_rows_about_batches_go_and_what_is_counted_is_added_up(roots: Callable[..., Roots]) -> None:
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    root.take(tick(at(50)), one(child, 49, 50))
    for second in (51, 52, 53):
        root.take(tick(at(second)), one(child, second - 50, second, late=True))
    assert len(root.rows(tables.LATE)) == 3
    root.take(tick(at(100)), one(child, 99, 100))
    root.take(tick(at(200)), one(child, 199, 200))
    kept, before = Kept(DAY_US, 120 * SECOND, 120 * SECOND), root.results()
    assert retention.old_batch(root.job, kept.ops_us) == 4
    for act in (retention.batches, retention.ops, retention.results):
        act(root.job, kept)
    assert {row["number"] for row in root.rows(tables.BATCHES)} == {4, 5, 6}
    (late,) = root.rows(tables.LATE)
    assert (late["readings"], late["start"], late["end"], late["batch"]) == (3, at(1), at(3) + 1, 4)
    assert root_book(root.place.root).late == 3
    assert {row["batch"] for row in root.rows(tables.MESSAGES)} >= {1, 5, 6}
    assert root.rows(tables.MESSAGES, "part = 0 and batch <= 4") == []
    assert root.results() == {key: row for key, row in before.items() if row["batch"] > 4}
    versions = log_files.newest(Path(root.place.path(tables.LATE)))
    retention.ops(root.job, kept)
    assert log_files.newest(Path(root.place.path(tables.LATE))) == versions, "nothing to add up"
    root.start()
    root.take(tick(at(201)), one(child, 200, 201))


def test_totals_do_not_grow_with_the_texts_that_children_choose(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reason may contain what a child has sent, so that each epoch may have another one; so may a source."""
    root = roots()
    monkeypatch.setattr(retention, "MOST_TOTALS", 3)
    monkeypatch.setattr(retention, "old_batch", lambda *_: 9)
    blank = {"start": 5, "end": 9, "key": "", "sources": [], "nodes": [], "detail": ""}
    for batch in range(8):
        bad = {"reason": f"quarantined: epoch {batch}", "readings": -1}
        gaps = [{**blank, **bad, "node": node, "batch": batch, "sources": [f"s{batch}"]} for node in ("a", "b")]
        gaps.append({**blank, "node": "a", "reason": "quota", "readings": 2, "batch": batch % 2})
        late = {**blank, "node": "a", "source": f"s{batch}", "readings": 1, "reason": "beyond", "batch": batch}
        for table, rows in ((tables.GAPS, gaps), (tables.LATE, [late])):
            content = [{name: row[name] for name in table.columns} for row in rows]
            root.place.append(table, driver_rows.rows(root.spark, table, content), "test", batch)
    for _ in range(2):
        retention.ops(root.job, Kept(DAY_US, SECOND))
        totals = {(row["node"], row["reason"]): row for row in root.rows(tables.GAPS)}
        assert {place: row["readings"] for place, row in totals.items()} == {
            ("a", "quota"): 16,
            **{("a", f"quarantined: epoch {batch}"): -1 for batch in (6, 7)},
            ("a", "other"): -6,
            **{("b", f"quarantined: epoch {batch}"): -1 for batch in (5, 6, 7)},
            ("b", "other"): -5,
        }
        assert totals["a", "other"]["sources"] == ["s0", "s1", "s2"]
        assert totals["a", "quarantined: epoch 7"]["sources"] == ["s7"]
        found = {row["source"]: row["readings"] for row in root.rows(tables.LATE)}
        assert found == {"s5": 1, "s6": 1, "s7": 1, "other": 5}


def test_records_whose_readings_add_up_to_more_than_a_number_holds_are_added_up_too(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child may declare 2^62 lost readings: Spark refuses such a sum, and old rows of ops.gaps stayed for ever.

    So may the late rows of a child: then no old row of both tables was added up, of any child.
    """
    root = roots()
    monkeypatch.setattr(retention, "old_batch", lambda *_: 9)
    gap = {"start": 5, "end": 9, "sources": [], "nodes": [], "detail": "", "node": "a", "reason": "quota"}
    gaps = [{**gap, "readings": 2**62, "batch": batch} for batch in range(3)]
    gaps += [{**gap, "node": "b", "readings": 2, "batch": batch} for batch in range(3)]
    content = [{name: row[name] for name in tables.GAPS.columns} for row in gaps]
    root.place.append(tables.GAPS, driver_rows.rows(root.spark, tables.GAPS, content), "test", 0)
    late = {"node": "a", "source": "s", "key": "", "start": 5, "end": 9, "readings": 2**62, "reason": "beyond"}
    content = [{**late, "batch": batch} for batch in range(3)]
    root.place.append(tables.LATE, driver_rows.rows(root.spark, tables.LATE, content), "test", 0)
    retention.ops(root.job, Kept(DAY_US, SECOND))
    assert [row["readings"] for row in root.rows(tables.LATE)] == [2**63 - 1]
    assert {row["node"]: row["readings"] for row in root.rows(tables.GAPS)} == {"a": -1, "b": 6}


def test_rows_of_batches_that_a_start_decides_again_stay(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEPT_STATES", 0)
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    root.start()
    for second in (100, 200, 201, 202):
        root.take(tick(at(second)), one(child, second - 1, second))
    base, last = root.job.needed_from, root.job.state.number
    assert 0 < base < last
    before, kept = root.results(), Kept(DAY_US, SECOND)
    retention.states(root.job)
    found = {row["number"]: row["state"] is not None for row in root.rows(tables.BATCHES)}
    assert found == {number: number >= base for number in range(last + 1)}
    retention.batches(root.job, kept)
    assert {row["number"] for row in root.rows(tables.BATCHES)} == set(range(base, last + 1))
    root.start()
    assert (root.job.state.number, root.results()) == (last, before)
    root.take(tick(at(203)), one(child, 202, 203))
    assert root.results().keys() - before.keys() == {("q", "site=a", at(202))}


def test_a_step_about_a_table_waits_until_it_has_been_written_to(roots: Callable[..., Roots]) -> None:
    child, done = Child("gw-1", (query(),)), []
    root = born(roots, child)
    step = WhenWritten(tables.MESSAGES, lambda job: done.append(job.state.number))
    for second in (1, 1, 2):
        if second > len(done):
            root.take(tick(at(second)), one(child, second - 1, second))
        step(root.job)
    assert done == [1, 2]


def test_a_root_that_dies_after_any_step_goes_on(roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "KEPT_STATES", 0)
    monkeypatch.setattr(upkeep, "VERSIONS", 1)
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    kept = Kept(SECOND, 3 * SECOND)
    steps = [
        s for s in upkeep.steps_of(kept, SECOND) if not s.name.startswith(("clean", "compact")) or "bronze" in s.name
    ]
    second = 100
    for n, step in enumerate(itertools.chain(*zip(itertools.repeat(steps[0]), steps[1:]))):
        late = [one(child, 1, second, late=True)] if n % 3 == 0 else []
        root.take(tick(at(second)), one(child, second - 1, second), *late)
        second += 1 if n % 2 else 20
        before = root.results()
        step.act(root.job)
        if step is not steps[0] or n < SOME_EXPIRED:
            root.start()
        assert root.results() == before, step.name
    found = root_book(root.place.root)
    assert (found.stored, found.doubled, found.uncounted) == (found.applied, (), 0)
    assert min(stored(root) - {at(1)}) > at(150), "every other run of the step deletes readings"
    assert len(root.rows(tables.BATCHES)) < n


def test_a_step_that_fails_is_tried_again_later_and_the_line_goes_on(roots: Callable[..., Roots]) -> None:
    root = born(roots, Child("gw-1", (query(),)))
    tries: list[float] = []
    clock = [0.0]

    def fails(_root: object) -> None:
        tries.append(clock[0])
        if len(tries) < 3:
            raise RuntimeError("DELTA_CONCURRENT_APPEND\nand more")

    noted: list[tuple[str, str]] = []
    kept = upkeep.Upkeep(
        Kept(1, 1), 10 * SECOND, lambda: clock[0], [UpkeepStep("bad", 10.0, fails)], lambda *found: noted.append(found)
    )
    for second in range(300):
        clock[0] = float(second)
        kept.between(root.job)
    assert tries[:3] == [10.0, 70.0, 190.0]
    assert (kept.failed, tries[3]) == (2, 200.0)
    assert noted == [("RuntimeError: DELTA_CONCURRENT_APPEND", f"bad, {n} in a row") for n in (1, 2)]
    (row,) = root.rows(tables.GAPS)
    assert (row["reason"], row["readings"]) == ("upkeep failed", 0), "once a day, for who has the tables only"
    assert row["detail"] == "bad, 1 in a row: RuntimeError: DELTA_CONCURRENT_APPEND"


def test_very_many_files_are_merged_in_several_steps(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stops at a commit; the line waits for no more than a step."""
    monkeypatch.setattr(upkeep, "LOOK_S", 0.01)
    root = born(roots, Child("gw-1", (query(),)))
    content = [{"node": "gw-1", "batch": number} for number in range(24)]
    for row in content:
        root.place.append(tables.LATE, driver_rows.rows(root.spark, tables.LATE, [row]), "test", 0)
    compaction, found = Compaction(tables.LATE, Kept(DAY_US, DAY_US), longest_s=0), list[object]()
    for name in SIZES:  # some three files make one
        root.spark.conf.set(name, "10000")
    try:
        while compaction.version is None:
            found.append(compaction(root.job))
    finally:
        for name in SIZES:
            root.spark.conf.set(name, LOCAL_CONF[name])
    assert len(found) > 1
    assert all(isinstance(each, dict) and each["more"] for each in found[:-1])
    assert upkeep.files_of(root.spark, root.place, tables.LATE) < 12
    assert sorted(row["batch"] for row in root.rows(tables.LATE)) == [row["batch"] for row in content]


@pytest.mark.parametrize("error", [ConnectionRefusedError(), Py4JNetworkError("Answer from Java side is empty")])
def test_a_step_without_a_jvm_ends_the_root(roots: Callable[..., Roots], error: Exception) -> None:
    """An idle root does nothing else with it: each step would fail for ever."""
    root = born(roots, Child("gw-1", (query(),)))
    clock = [0.0]

    def fails(_root: object) -> None:
        raise error

    kept = upkeep.Upkeep(Kept(1, 1), 10 * SECOND, lambda: clock[0], [UpkeepStep("bad", 10.0, fails)])
    clock[0] = 10.0
    with pytest.raises(type(error)):
        kept.between(root.job)


def test_a_step_that_is_done_in_part_goes_on_after_the_pause_and_holds_up_no_other(
    roots: Callable[..., Roots],
) -> None:
    root, clock, done = born(roots, Child("gw-1", (query(),))), [0.0], list[tuple[str, float]]()

    def part(_root: object) -> dict[str, bool]:
        done.append(("part", clock[0]))
        clock[0] += 1
        return {"more": True} if len(done) < 5 else {}

    def other(_root: object) -> None:
        done.append(("other", clock[0]))

    keep = Upkeep(
        Kept(1, 1), SECOND, lambda: clock[0], [UpkeepStep("part", 100.0, part), UpkeepStep("other", 8.0, other)]
    )
    for second in range(30):
        clock[0] = max(clock[0], float(second))
        keep.between(root.job)
    parts = [at_s for name, at_s in done if name == "part"]
    assert all(5.0 <= b - a <= 6.0 for a, b in itertools.pairwise(parts))
    assert len(parts) in (3, 4)
    assert len(done) - len(parts) >= 2


def test_a_step_whose_rest_is_due_after_another_batch_waits_for_it(roots: Callable[..., Roots]) -> None:
    """Whatever its interval: a root that ends after a minute deletes readings too."""
    child = Child("gw-1", (query(),))
    root, clock = born(roots, child), [0.0]
    root.take(tick(at(100)), one(child, 0, 1), one(child, 99, 100))
    expiry = Expiry()
    other = UpkeepStep("other", 3600.0, lambda _root: None)
    keep = Upkeep(Kept(DAY_US, DAY_US), SECOND, lambda: clock[0], [UpkeepStep("expire", 3600.0, expiry), other])
    other.due_s = 9.5
    for second in range(2, 10):
        clock[0] = float(second)
        keep.between(root.job)
    assert keep.done == 1, "a step that waits is no step"
    assert stored(root) == {at(0), at(99)}
    root.take(tick(at(101)), one(child, 100, 101))
    clock[0] = 10.0
    keep.between(root.job)
    assert (keep.done, stored(root)) == (2, {at(99), at(100)}), "before the other step, which was due first"


def test_a_table_that_is_clean_is_left_alone_until_it_is_written_to(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned, real, clock = [], upkeep.clean, [0.0]

    def clean(root: Job, table: tables.Table, kept: Kept, after: str, most: int) -> tuple[int, str]:
        cleaned.append(clock[0])
        return real(root, table, kept, after, most)

    monkeypatch.setattr(upkeep, "clean", clean)
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    cleaning = Cleaning(tables.RESULTS, Kept(30 * SECOND, DAY_US), lambda: clock[0])
    for second in range(0, 200, 10):
        if second == 100:
            root.take(tick(at(1)), one(child, 0, 1))
        clock[0] = float(second)
        cleaning(root.job)
    assert cleaned == [0, 10, 20, 30, 40, 100, 110, 120, 130, 140], "and no commits of its own count"


def test_a_table_of_a_catalog_is_tuned_before_its_old_files_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else VACUUM refuses to delete what is younger than a week, which Delta keeps by default."""
    seen: list[str] = []
    monkeypatch.setattr(upkeep, "tune", lambda *_: seen.append("tune"))
    monkeypatch.setattr(upkeep, "version_of", lambda *_: 1)

    def clean(*_: object) -> tuple[int, str]:
        seen.append("clean")
        return 0, ""

    monkeypatch.setattr(upkeep, "clean", clean)
    root: Any = SimpleNamespace(spark=None, place=SimpleNamespace(guarded=True))
    cleaning = Cleaning(tables.RESULTS, Kept(1, DAY_US), lambda: 0.0)
    cleaning(root)
    cleaning(root)
    assert seen == ["tune", "clean", "clean"]


def test_files_and_versions_are_cut_and_the_rows_stay(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root that starts goes on over what they left."""
    monkeypatch.setattr(log_files, "LEAST_AFTER", 3)
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    clock = [0.0]
    keep = Upkeep(Kept(SECOND, DAY_US), SECOND, lambda: clock[0])
    sooner = "SET TBLPROPERTIES ('delta.checkpointInterval' = '10')"  # not after fifty batches: each takes a second
    root.spark.sql(f"ALTER TABLE {root.place.sql(tables.MESSAGES)} {sooner}")
    for second in range(1, 13):
        root.take(tick(at(second)), one(child, second - 1, second))
    keep.steps = [step for step in keep.steps if tables.MESSAGES.name in step.name]
    before = root.results()
    folder = Path(root.place.path(tables.MESSAGES))
    for path in (folder / "_delta_log").iterdir():
        os.utime(path, (time.time() - 100,) * 2)
    keep.steps[0].act(root.job)
    keep.steps[1].act(root.job)
    assert upkeep.files_of(root.spark, root.place, tables.MESSAGES) == 1
    commits = sorted(path.stem for path in (folder / "_delta_log").glob("*.json"))
    assert (commits[0], len(commits) < 10) == (f"{10:020d}", True)
    root.start()
    root.take(tick(at(21)), one(child, 20, 21))
    assert same({k: v for k, v in root.results().items() if k[2] <= at(11)}, before) == []


def test_old_files_of_a_large_backlog_are_deleted_in_several_steps(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none that a row is in, whatever its place among the names."""
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    for second in range(1, 9):
        root.take(tick(at(second)), one(child, second - 1, second))
    folder, before = Path(root.place.path(tables.MESSAGES)), root.results()
    upkeep.compact(root.spark, root.place, tables.MESSAGES)
    root.take(tick(at(9)), one(child, 8, 9))
    rows = stored(root)
    names = [entry.name for entry in vacuum.data_files(folder)]
    assert len(names) > 8
    for path in folder.glob("*.parquet"):
        os.utime(path, (time.time() - 100,) * 2)
    monkeypatch.setattr(vacuum, "MOST_FILES", 4)
    cleaning, left = Cleaning(tables.MESSAGES, Kept(1, DAY_US)), [len(names)]
    while (found := cleaning(root.job)) is not None and upkeep.MORE in found:
        left.append(len(vacuum.data_files(folder)))
        assert left[-2] - left[-1] <= 8, "files and their checksums"
    assert len(left) > 2
    assert len(list(folder.glob("*.parquet"))) == 2
    assert stored(root) == rows
    assert before.items() <= root.results().items()


def test_a_log_is_cut_before_a_checkpoint_only_and_not_what_may_be_torn(tmp_path: Path) -> None:
    log, old = tmp_path / "_delta_log", time.time() - 100

    def commit(version: int, *, checkpoint: bool = False) -> None:
        names = [f"{version:020d}.json", f".{version:020d}.json.crc", f"{version:020d}.crc"]
        names += [f"{version:020d}.checkpoint.parquet"] if checkpoint else []
        for name in names:
            (log / name).touch()
            os.utime(log / name, (old, old))

    log.mkdir()
    for version in range(90):
        commit(version, checkpoint=version == 50)
    assert log_files.cut(tmp_path, 10 * SECOND) == 0, "those after the checkpoint may be torn"
    commit(90)
    assert log_files.cut(tmp_path, 1000 * SECOND) == 0, "too young"
    assert log_files.cut(tmp_path, 10 * SECOND, most=20) == 20
    assert log_files.cut(tmp_path, 10 * SECOND) == 30
    assert min(path.name.lstrip(".")[:20] for path in log.iterdir()) == f"{50:020d}"
    assert log_files.newest(tmp_path) == 90
