"""Which rows go from the tables while the root runs, and which stay (docs/protocol.md 8.4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_job.audit.root_book import root_book
from cloud_job.delta import driver_rows, log_files, retention, tables, upkeep
from cloud_job.delta.retention import Kept
from cloud_job.delta.upkeep import Expiry
from edge_agent.algebra.frame import Members
from edge_agent.algebra.windows import Session, Tumbling
from tests.support.cloud.child_frames import SECOND, Child, at, one, query, record, tick
from tests.support.cloud.jobs import Roots, born, stored

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
DAY_US = 86_400 * SECOND


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
