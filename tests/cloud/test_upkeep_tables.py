"""How a table is merged and cleaned, statement by statement (docs/protocol.md 8.4; no Spark: each is noted)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_job.delta import log_files, upkeep, vacuum
from cloud_job.delta.retention import Kept
from cloud_job.delta.tables import MESSAGES, RESULTS
from cloud_job.delta.upkeep import LATER, RETRY_S, RUN_IDS_KEPT, Upkeep, UpkeepStep

SECOND, HOUR_US = 1_000_000, 3_600_000_000


class Session:
    """Stands in for Spark. did: statements; files: numbers of files that it answers with, the last one again."""

    def __init__(self, *files: int, properties: dict[str, str] | None = None) -> None:
        self.did: list[str] = []
        self.files, self.properties = list(files), properties or {}
        self.merge: Callable[[], None] = lambda: None
        self.sparkContext = SimpleNamespace(cancelAllJobs=lambda: self.did.append("cancel"))

    def sql(self, statement: str) -> Any:
        if statement.startswith("DESCRIBE DETAIL"):
            many = self.files.pop(0) if len(self.files) > 1 else self.files[0]
            return SimpleNamespace(first=lambda: {"numFiles": many, "properties": self.properties})
        self.did.append(statement)
        if statement.startswith("OPTIMIZE"):
            self.merge()
        return None


def place(*, guarded: bool = False) -> Any:
    return SimpleNamespace(guarded=guarded, sql=lambda table: table.name, path=lambda table: f"/nowhere/{table.name}")


def compact(spark: Session, longest_s: float | None = None, *, guarded: bool = False) -> tuple[int, int, bool]:
    return upkeep.compact(spark, place(guarded=guarded), RESULTS, longest_s)  # type: ignore[arg-type]


OPTIMIZE = f"OPTIMIZE {RESULTS.name}"


def test_a_table_of_one_file_or_none_is_not_merged() -> None:
    for many in (0, 1):
        for longest_s in (None, 3.0):
            spark = Session(many)
            assert compact(spark, longest_s) == (many, many, True)
            assert spark.did == []


@pytest.mark.parametrize(("longest_s", "guarded"), [(None, False), (None, True), (3.0, True)])
def test_without_a_limit_or_a_folder_all_files_are_merged_at_once(
    monkeypatch: pytest.MonkeyPatch, longest_s: float | None, guarded: bool
) -> None:
    monkeypatch.setattr(upkeep, "_optimized", lambda *_: pytest.fail("it looks at the folder"))
    spark = Session(5, 1)
    assert compact(spark, longest_s, guarded=guarded) == (5, 1, True)
    assert spark.did == [OPTIMIZE]


class Looked:
    """The newest version in a folder, as often as it is asked for: each time the next number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *versions: int) -> None:
        self.versions, self.asked = list(versions), threading.Semaphore(0)
        monkeypatch.setattr(log_files, "newest", self.newest)
        monkeypatch.setattr(upkeep, "LOOK_S", 0.001)

    def newest(self, _folder: Any) -> int:
        self.asked.release()
        return self.versions.pop(0) if len(self.versions) > 1 else self.versions[0]

    def wait(self, many: int) -> None:
        for _ in range(many):
            assert self.asked.acquire(timeout=20)


def test_a_merge_that_takes_too_long_is_stopped_after_its_next_commit_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else no step would get anywhere."""
    looked, spark, early = Looked(monkeypatch, 7), Session(9, 4), [True]

    def merge() -> None:  # what it raises after it was stopped is not seen
        looked.wait(3)
        early[0] = "cancel" in spark.did
        looked.versions = [8]
        while "cancel" not in spark.did:
            looked.wait(1)
        raise RuntimeError("cancelled")

    spark.merge = merge
    assert compact(spark, 0.0) == (9, 4, False)
    assert not early[0]
    assert spark.did[0] == OPTIMIZE


def test_a_merge_that_ends_by_itself_is_whole_and_one_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, spark = Looked(monkeypatch, 7), Session(9, 1)
    spark.merge = lambda: looked.wait(3)
    assert compact(spark, 0.0) == (9, 1, True)
    assert spark.did == [OPTIMIZE]

    def fails() -> None:
        raise RuntimeError("a full disk")

    spark = Session(9)
    spark.merge = fails
    with pytest.raises(RuntimeError, match="a full disk"):
        compact(spark, 3.0)


@pytest.mark.parametrize("guarded", [False, True])
def test_files_are_gone_and_that_is_durable_before_commits_go(monkeypatch: pytest.MonkeyPatch, guarded: bool) -> None:
    """Where the tables are no folder, Delta itself deletes old commits."""
    did: list[Any] = []
    root: Any = SimpleNamespace(place=place(guarded=guarded), committed=did.append)

    def noted(answer: object, *args: object) -> object:
        did.append(args)
        return answer

    monkeypatch.setattr(vacuum, "vacuum", lambda _root, table, *more: noted("next", table.name, *more))
    monkeypatch.setattr(log_files, "cut", lambda folder, keep_us: noted(4, str(folder), keep_us))
    found = upkeep.clean(root, RESULTS, Kept(5 * HOUR_US, 1), "after", 9)
    cut = [] if guarded else [(f"/nowhere/{RESULTS.name}", 5 * HOUR_US)]
    assert did == [(RESULTS.name, 5.0, "after", 9), "vacuum", *cut]
    assert found == ((0 if guarded else 4), "next")


def test_delta_is_told_once_how_long_versions_stay_and_at_a_uri_for_how_long_runs_are_known() -> None:
    """protocol 8.5"""
    day, second = "interval 86400 seconds", "interval 1 seconds"
    kept = {"delta.deletedFileRetentionDuration": day, "delta.logRetentionDuration": day}
    for guarded, table, versions_us, there, told in (
        (False, MESSAGES, 24 * HOUR_US, {}, kept),
        (False, MESSAGES, 24 * HOUR_US, {**kept, "other": "x"}, {}),
        (False, MESSAGES, 0, kept, dict.fromkeys(kept, second)),
        (True, RESULTS, 24 * HOUR_US, kept, {}),
        (True, MESSAGES, 24 * HOUR_US, kept, {**kept, "delta.setTransactionRetentionDuration": RUN_IDS_KEPT}),
    ):
        spark: Any = Session(1, properties=there)
        upkeep.tune(spark, place(guarded=guarded), table, Kept(versions_us, 1))
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in told.items())
        wanted = [f"ALTER TABLE {table.name} SET TBLPROPERTIES ({properties})"] if told else []
        assert spark.did == wanted


def test_a_step_that_waits_for_a_batch_comes_first_after_it_and_a_success_ends_a_row_of_failures() -> None:
    """A root may not live for a whole round of steps."""
    now, ran, fails = [100.0], list[str](), list[bool]()

    def first(_root: Any) -> Any:
        ran.append("first")
        if fails and fails.pop():
            raise RuntimeError("away")
        return {LATER: True} if len(ran) == 1 else None

    steps = [UpkeepStep("first", 10.0, first), UpkeepStep("other", 10.0, lambda _root: ran.append("other"))]
    kept = Upkeep(Kept(1, 1), 10 * SECOND, lambda: now[0], steps)
    root: Any = SimpleNamespace(state=SimpleNamespace(number=3), committed=lambda _step: None, spark=None)
    steps[0].due_s, steps[1].due_s = 98.0, 99.0
    kept.between(root)
    root.state.number = 4
    kept.between(root)
    kept.between(root)
    assert ran == ["first", "first", "other"]
    steps[1].due_s = 10_000.0
    for failed, pause_s in ((True, RETRY_S), (True, 2 * RETRY_S), (False, 10.0), (True, RETRY_S)):
        now[0] = max(now[0], steps[0].due_s)
        fails[:] = [failed]
        kept.between(root)
        assert steps[0].due_s == now[0] + pause_s
