"""The tables stay small while the root runs, and nothing that is needed goes (docs/protocol.md 8.4)."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from cloud_job.audit.root_book import root_book
from cloud_job.delta import driver_rows, log_files, retention, tables, upkeep, vacuum
from cloud_job.delta.retention import Kept
from cloud_job.delta.upkeep import Cleaning, Compaction, Expiry, Upkeep, UpkeepStep, WhenWritten
from cloud_job.spark.job import Job
from cloud_job.spark_session import LOCAL_CONF
from tests.support.cloud.child_frames import SECOND, Child, at, one, query, tick
from tests.support.cloud.jobs import Roots, born, same, stored

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
DAY_US = 86_400 * SECOND
SOME_EXPIRED = 3  # runs after which a step that finds readings and one that deletes them have each met a start
SIZES = [f"spark.databricks.delta.optimize.{name}" for name in ("batchSize", "maxFileSize", "minFileSize")]


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
