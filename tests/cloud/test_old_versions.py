"""Which files and commits of old versions of a table go (docs/protocol.md 8.4; no Spark: its statements are noted)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_job.delta import log_files, vacuum
from cloud_job.delta.log_files import LEAST_AFTER
from cloud_job.delta.tables import MESSAGES

SECOND = 1_000_000


class Log:
    """The log of a table in a folder; its files are 100 s old."""

    def __init__(self, folder: Path, versions: int, checkpoint: int) -> None:
        self.folder, self.files = folder, folder / "_delta_log"
        self.files.mkdir()
        for version in range(versions):
            self.commit(version)
        self.add(f"{checkpoint:020d}.checkpoint.parquet")

    def add(self, name: str, age_s: float = 100) -> None:
        (self.files / name).touch()
        then_s = time.time() - age_s
        os.utime(self.files / name, (then_s, then_s))

    def commit(self, version: int) -> None:
        for name in (f"{version:020d}.json", f".{version:020d}.json.crc", f"{version:020d}.crc"):
            self.add(name)

    def cut(self, keep_s: int = 10, most: int = log_files.MOST) -> int:
        return log_files.cut(self.folder, keep_s * SECOND, most)

    @property
    def oldest(self) -> int:
        """Of all files that name a version."""
        names = [path.name.lstrip(".")[:20] for path in self.files.iterdir()]
        return min(int(name) for name in names if len(name) == 20 and name.isdecimal())


def test_a_log_is_cut_before_a_checkpoint_only_and_not_what_may_be_torn(tmp_path: Path) -> None:
    log = Log(tmp_path, 50 + LEAST_AFTER, checkpoint=50)
    for name in (f"{5:020d}.checkpoint.parquet", "_last_checkpoint", "7"):
        log.add(name)
    assert log.cut() == 5, "those after the newest checkpoint may be torn"
    log.commit(50 + LEAST_AFTER)
    assert log.cut(keep_s=1000) == 0, "too young"
    assert log.cut(most=20) == 20
    assert log.cut() == 25
    assert log.oldest == 50
    assert all((log.files / name).exists() for name in ("_last_checkpoint", "7")), "what is no version"
    assert log_files.newest(tmp_path) == 50 + LEAST_AFTER


def test_the_commit_of_a_checkpoint_stays_and_so_do_all_before_one_of_several_files(tmp_path: Path) -> None:
    """Of a checkpoint of several files some may be missing."""
    log = Log(tmp_path, 100, checkpoint=20)
    log.add(f"{40:020d}.checkpoint.{1:010d}.{2:010d}.parquet")
    assert log.cut() == 20
    assert log.oldest == 20
    assert (log.files / f"{20:020d}.json").exists()


def test_a_version_that_is_too_young_keeps_all_after_it(tmp_path: Path) -> None:
    """A log without one of its commits is none, whatever the times of the others are."""
    log = Log(tmp_path, 100, checkpoint=50)
    log.add(f"{7:020d}.json", age_s=1)
    assert log.cut() == 7
    assert log.oldest == 7


def test_a_cut_that_ends_within_a_version_leaves_its_commit_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a commit is the age of its version: of files without one it is not known."""
    log, unlink, gone = Log(tmp_path, 100, checkpoint=50), Path.unlink, list[str]()

    def ends(path: Path, *, missing_ok: bool = False) -> None:
        if len(gone) == 4:
            raise KeyboardInterrupt
        gone.append(path.name)
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", ends)
        with pytest.raises(KeyboardInterrupt):
            log.cut()
    assert [name for name in gone if name.endswith(".json")] == [f"{0:020d}.json"]
    assert (log.files / f"{1:020d}.json").exists()
    (log.files / f"{1:020d}.json").unlink()  # by Delta, which leaves checksums
    assert log.cut() == 49
    assert log.oldest == 50


class Spark:
    """Notes each VACUUM, and the files that it may look at: None for all."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[list[str] | None] = []
        self.views: dict[str, list[str]] = {}
        self.place = SimpleNamespace(guarded=False, path=lambda _table: str(folder), sql=lambda table: table.name)
        self.spark, self.catalog = self, SimpleNamespace(dropTempView=self.views.pop)
        monkeypatch.setattr(vacuum, "small", self._small)

    def _small(self, _spark: Any, rows: list[tuple[Any, ...]], _schema: Any) -> Any:
        assert all(size == 1 and not is_dir for _, size, is_dir, _ in rows)
        names = [path.removeprefix("file:").rpartition("/")[2] for path, *_ in rows]
        return SimpleNamespace(createOrReplaceTempView=lambda view: self.views.update({view: names}))

    def sql(self, statement: str) -> None:
        assert statement.startswith(f"VACUUM {MESSAGES.name} ")
        assert statement.endswith("RETAIN 2.500000 HOURS")
        self.did.append(self.views[vacuum.VIEW] if "USING INVENTORY" in statement else None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("d", "a", "c", "e", "b"):
        (tmp_path / name).write_text(name)
    (tmp_path / "_delta_log").mkdir()
    return tmp_path


def test_each_step_looks_at_the_next_files_and_no_file_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = Spark(folder, monkeypatch)
    after, steps = "", list[str]()
    while not steps or after:
        after = vacuum.vacuum(spark, MESSAGES, 2.5, after, 2)
        steps.append(after)
    assert spark.did == [["a", "b"], ["c", "d"], ["e"]]
    assert steps == [f"{folder}/b", f"{folder}/d", ""]
    assert spark.views == {}
    (folder / "f").write_text("f")
    spark.did.clear()
    assert vacuum.vacuum(spark, MESSAGES, 2.5, f"{folder}/d", 2) == "", "the last two"
    assert spark.did == [["e", "f"]]


@pytest.mark.parametrize(("guarded", "most"), [(False, None), (False, 5), (True, 2)])
def test_all_files_are_looked_at_in_one_step_if_they_are_few_or_not_on_this_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, guarded: bool, most: int | None
) -> None:
    spark: Any = Spark(folder, monkeypatch)
    spark.place.guarded = guarded
    assert vacuum.vacuum(spark, MESSAGES, 2.5, "", most) == ""
    assert spark.did == [None]


def test_a_step_that_fails_leaves_no_list_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = Spark(folder, monkeypatch)
    spark.sql = lambda _statement: 1 / 0
    with pytest.raises(ZeroDivisionError):
        vacuum.vacuum(spark, MESSAGES, 2.5, "", 2)
    assert spark.views == {}
