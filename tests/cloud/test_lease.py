"""One root at a time has a landing folder, wherever the tables are (no Spark)."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cloud_job import spark_session, warmup
from cloud_job.delta.integrity import torn_commits
from cloud_job.delta.lease import LOCK, Lease
from cloud_job.delta.tables import Place, place
from cloud_job.delta.upkeep import Upkeep
from cloud_job.spark.job import Job
from edge_agent.cli.main import main
from edge_agent.cli.support import serving
from edge_agent.errors import PortError
from edge_agent.runtime.start_record import StartRecord
from tests.support.ports.small_disk import small_disk


@pytest.fixture
def landing(tmp_path: Path) -> str:
    folder = tmp_path / "landing"
    folder.mkdir()
    return str(folder)


def catalog(name: str) -> Place:
    return Place(f"{name}.", named=True, guarded=True)


def test_roots_with_other_tables_do_not_share_a_landing_folder_whatever_the_tables_are(
    tmp_path: Path, landing: str
) -> None:
    """protocol 8.5: with a catalog or a URI each lost the files that the other had taken."""
    first = Lease(catalog("main"), "first", landing)
    for other in (catalog("test"), place("s3://bucket/tables"), place(f"{tmp_path}/tables")):
        with pytest.raises(PortError, match=rf"another root \(process {os.getpid()}\) reads the landing files"):
            Lease(other, "other", landing)
    first.release()
    Lease(catalog("test"), "other", landing).release()


def test_tables_at_a_file_uri_have_the_lock_of_their_folder(tmp_path: Path) -> None:
    """Two JVMs lose commits in one folder: with the URI, `headwater maintain` did not see the root that ran."""
    folder = tmp_path / "tables"
    first = Lease(place(str(folder)), "first")
    for uri in (f"file:{folder}", f"file://{folder}", f"file://localhost{folder}/", f"file:///{folder}"):
        assert place(uri) == place(str(folder))
        with pytest.raises(PortError, match=r"another root .* writes the tables .* stop it first"):
            Lease(place(uri), "other")
    first.release()
    Lease(place(f"file://{folder}"), "other").release()
    assert place("file:///Volumes/main/x").guarded
    assert place("dbfs:/tables").guarded


def test_a_landing_folder_on_a_volume_without_locks_or_appends_is_read_all_the_same(
    landing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(_file: object, _how: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", no_locks)
        Lease(catalog("main"), "first", landing).release()
    (Path(landing) / LOCK).unlink()
    (Path(landing) / LOCK).symlink_to("/dev/full")  # can be opened, and not be written
    Lease(catalog("main"), "first", landing).release()
    assert [record.message for record in caplog.records] == ["root.landing_not_locked"] * 2


def test_a_landing_folder_on_a_full_disk_is_locked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """protocol 8.5: two roots read the same files."""
    with small_disk(tmp_path / "disk", 64 * 1024) as disk:
        (disk.folder / LOCK).touch()
        disk.fill()
        first = Lease(catalog("main"), "first", str(disk.folder))
        with pytest.raises(PortError, match=r"another root \(process unknown\) reads the landing files in"):
            Lease(catalog("other"), "other", str(disk.folder))
        first.release()
        Lease(catalog("other"), "other", str(disk.folder)).release()
    assert caplog.records == []


def test_a_landing_folder_that_is_none_or_no_folder_is_not_locked(tmp_path: Path) -> None:
    for landing in ("", str(tmp_path / "none")):
        Lease(catalog("main"), "first", landing).release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("owners", "said"),
    [
        ([], "do not take batch 7, because their log had a batch 7 before, as after RESTORE TABLE"),
        (["other"], "another root owns the tables main. since batch 7"),
        (["other", "me"], "another root owns the tables main. since batch 7"),
        (["me"], ""),
    ],
)
def test_a_batch_that_the_tables_do_not_take_is_no_other_root(
    monkeypatch: pytest.MonkeyPatch, owners: list[str], said: str
) -> None:
    """RESTORE TABLE does not take back the transaction of a batch, and Delta ignores a second one of its number."""
    rows: Any = Mock()
    rows.where.return_value.select.return_value.collect.return_value = [{"owner": owner} for owner in owners]
    monkeypatch.setattr(Place, "read", lambda *_: rows)
    lease, spark = Lease(catalog("main"), "me"), Mock()
    with pytest.raises(PortError, match=said) if said else nullcontext():
        lease.check(spark, 7)


def test_a_lock_names_the_root_that_has_it_and_no_earlier_one(tmp_path: Path, landing: str) -> None:
    for folder in (tmp_path, Path(landing)):
        (folder / LOCK).write_text("99999\n")
    first = Lease(place(str(tmp_path)), "first", landing)
    with pytest.raises(PortError, match=rf"another root \(process {os.getpid()}\) writes the tables"):
        Lease(place(str(tmp_path)), "other")
    first.release()
    for folder in (tmp_path, Path(landing)):
        assert (folder / LOCK).read_text() == f"{os.getpid()}\n"


def test_tables_may_be_in_the_landing_folder_by_whatever_name(tmp_path: Path, landing: str) -> None:
    (tmp_path / "link").symlink_to(landing)
    Lease(place(str(tmp_path / "link")), "first", landing).release()


def test_a_root_that_has_locked_its_folder_need_not_ask_who_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 8.5"""
    monkeypatch.setattr(Place, "read", lambda *_: pytest.fail("it asks"))
    lease = Lease(place(str(tmp_path)), "first")
    lease.check(Mock(), 7)
    lease.release()


CONFIG = """\
[node]
id = "root"
role = "root"
[lower]
broker = "mqtt://127.0.0.1:1"
[lander]
folder = "landing"
[root]
tables = "tables"
"""


@pytest.mark.parametrize("starting", [False, True])
def test_a_root_that_is_refused_leaves_no_trace_in_the_record_of_starts(
    tmp_path: Path, landing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], starting: bool
) -> None:
    """The record is of the root that runs: after its end, the next start took it for one that was killed.

    starting: the other root takes the lock while Spark starts; else before, and Spark is not started for nothing.
    """
    held: list[Lease] = []

    def other() -> None:
        held.append(Lease(place(str(tmp_path / "tables")), "first", landing))

    def start(*_: object) -> Mock:
        other()
        return Mock()

    (tmp_path / "root.toml").write_text(CONFIG)
    monkeypatch.setattr(spark_session, "start", start if starting else lambda *_: pytest.fail("it starts nothing"))
    monkeypatch.setattr(serving, "setup", lambda _level: None)  # the log of this process stays as it is
    monkeypatch.setattr(os, "umask", lambda _mask: 0)
    if not starting:
        other()
    path = Path(landing) / "root.starts.json"
    StartRecord(path).settled()
    before = path.read_bytes()
    assert main(["root", "--once", str(tmp_path / "root.toml")]) == 3
    assert "another root" in capsys.readouterr().err
    assert path.read_bytes() == before
    held[0].release()
    monkeypatch.setattr(spark_session, "start", lambda *_: Mock())

    def broken(_place: Place) -> None:
        raise PortError("the disk is damaged")

    monkeypatch.setattr(torn_commits, "repair", broken)
    assert main(["root", "--once", str(tmp_path / "root.toml")]) == 3
    assert json.loads(path.read_bytes())["open"], "with the lock it is a start, which has failed"


def test_on_databricks_no_folder_of_the_driver_has_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark takes such a path for one in DBFS: the lock and all checks were of another folder, which stayed empty."""
    (tmp_path / "root.toml").write_text(CONFIG)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    monkeypatch.setattr(spark_session, "start", lambda *_: pytest.fail("it starts nothing"))
    monkeypatch.setattr(serving, "setup", lambda _level: None)  # the log of this process stays as it is
    monkeypatch.setattr(os, "umask", lambda _mask: 0)
    assert main(["root", "--once", str(tmp_path / "root.toml")]) == 2
    assert "on Databricks the folder " in capsys.readouterr().err


def test_no_folder_of_the_driver_warms_up_spark_for_tables_elsewhere(
    tmp_path: Path, landing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster each start left tables at this path in its own store, or failed where nothing may be written."""
    (tmp_path / "root.toml").write_text(CONFIG + 'catalog = "main"\n')
    started(monkeypatch)
    monkeypatch.setattr(Upkeep, "between", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(warmup, "warm", lambda _spark: pytest.fail("it writes to a folder"))
    assert main(["root", str(tmp_path / "root.toml")]) == 0


def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root starts, without Spark and tables."""
    monkeypatch.setattr(spark_session, "start", lambda *_: Mock())
    monkeypatch.setattr(serving, "setup", lambda _level: None)  # the log of this process stays as it is
    monkeypatch.setattr(os, "umask", lambda _mask: 0)
    monkeypatch.setattr(Job, "open", lambda *_: None)
    monkeypatch.setattr(Job, "finish", lambda *_: None)


@pytest.mark.parametrize("order", [["batch"], ["idle batch", "warm"], ["warm"]])
def test_spark_is_warmed_up_after_the_files_that_wait_and_only_if_they_change_no_table(
    tmp_path: Path, landing: str, monkeypatch: pytest.MonkeyPatch, order: list[str]
) -> None:
    """After a restart the rows that waited came ten seconds later, and the empty batch had warmed nothing for them."""
    (tmp_path / "root.toml").write_text(CONFIG)
    done = list[str]()
    if order != ["warm"]:
        Path(landing, "0.cborseq").touch()

    def process(job: Job, *_: object) -> None:
        done.append(order[0])
        job.state.number += order[0] == "batch"

    def between(*_: object) -> None:
        done.append("upkeep")
        if done.count("upkeep") == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    started(monkeypatch)
    monkeypatch.setattr(Job, "process", process)
    monkeypatch.setattr(Job, "took", lambda *_: bool(done))
    monkeypatch.setattr(warmup, "warm", lambda _spark: done.append("warm"))
    monkeypatch.setattr(Upkeep, "between", between)
    assert main(["root", str(tmp_path / "root.toml")]) == 0
    assert done == [*order, "upkeep", "upkeep"]
