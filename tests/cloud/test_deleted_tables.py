"""A table that was deleted beside the others is not made anew (no Spark but a stand-in)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from cloud_job.delta import tables
from cloud_job.delta.integrity import durable_versions
from cloud_job.delta.integrity.deleted_tables import check_whole
from cloud_job.delta.tables import FIRST, TABLES, Place, Table, exists, quoted_parts
from edge_agent.errors import PortError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_with(*rows: str, without: str = "") -> Any:
    """A session whose catalog has all tables except `without`. rows: names of the tables that have rows."""

    def read(name: str) -> Any:
        return SimpleNamespace(isEmpty=lambda: not any(name.replace("`", "").endswith(each) for each in rows))

    reader = SimpleNamespace(table=read, format=lambda _format: SimpleNamespace(load=read))
    catalog = SimpleNamespace(tableExists=lambda name: not without or not name.replace("`", "").endswith(without))
    return SimpleNamespace(read=reader, catalog=catalog)


def folders(base: Path) -> Place:
    """All tables as folders, with their note."""
    place = Place(str(base))
    for table in TABLES:
        log = Path(place.path(table), "_delta_log")
        log.mkdir(parents=True)
        (log / f"{0:020d}.json").write_text('{"commitInfo":{}}\n')
    durable_versions.write(place, {table.name: 0 for table in TABLES})
    return place


@pytest.mark.parametrize("gone", TABLES, ids=lambda table: table.name)
def test_every_table_that_the_note_names_must_be_there(tmp_path: Path, gone: Table) -> None:
    """A new silver.positions gave each position of a count window twice, in rows marked complete."""
    place = folders(tmp_path)
    check_whole(spark_with(), place)
    shutil.rmtree(place.path(gone))
    with pytest.raises(PortError, match=rf"{gone.name.split('.')[1]}` is gone.*\.root\.durable.*put it back"):
        check_whole(spark_with(), place)


def test_a_table_that_the_note_does_not_name_is_of_a_later_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folders(tmp_path)
    durable_versions.write(place, {table.name: 0 for table in TABLES if table is not tables.SENSORS})
    shutil.rmtree(place.path(tables.SENSORS))
    monkeypatch.setattr("cloud_job.delta.integrity.deleted_tables.FIRST", FIRST - {tables.SENSORS.name})
    check_whole(spark_with("ops/batches"), place)


def test_tables_moved_away_together_begin_anew_and_so_do_those_whose_creation_was_cut_short(tmp_path: Path) -> None:
    place = folders(tmp_path)
    for schema in ("bronze", "silver", "gold", "ops"):
        shutil.rmtree(tmp_path / schema)
    check_whole(spark_with(), place)
    shutil.rmtree(tmp_path)
    place = folders(tmp_path)
    durable_versions.path_of(place).unlink()
    shutil.rmtree(place.path(tables.NODES))
    check_whole(spark_with(), place)


def test_a_note_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    place = folders(tmp_path)
    shutil.rmtree(place.path(tables.LATE))
    durable_versions.path_of(place).unlink()
    durable_versions.path_of(place).mkdir()
    with pytest.raises(PortError, match=r"cannot read .*\.root\.durable"):
        check_whole(spark_with(), place)


def killed(log: Path) -> None:
    (log / f".{0:020d}.json.0c1f.tmp").write_bytes(b"{}\n")


def cut(log: Path) -> None:
    """As `torn_commits.repair` leaves a log without a whole commit."""
    (log / f"{0:020d}.json.torn-1").touch()
    (log / f"{9:020d}.checkpoint.parquet.torn-1").touch()
    log.rename(log.with_name("_delta_log.torn-1"))


@pytest.mark.parametrize("begun", [killed, cut])
def test_a_log_without_a_commit_is_no_table(tmp_path: Path, begun: Callable[[Path], None]) -> None:
    place = folders(tmp_path)
    folder = Path(place.path(tables.NODES))
    shutil.rmtree(folder)
    (folder / "_delta_log").mkdir(parents=True)
    begun(folder / "_delta_log")
    assert not exists(spark_with(), place, tables.NODES)
    assert exists(spark_with(), place, tables.LATE)
    (folder / "_delta_log").mkdir(exist_ok=True)
    (folder / "_delta_log" / f"{9:020d}.checkpoint.parquet").touch()  # the commits before it were deleted
    assert exists(spark_with(), place, tables.NODES)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_table_whose_creation_was_cut_short_is_created(spark: SparkSession, tmp_path: Path) -> None:
    """The root ended at each start, because a table was looked for in the folder."""
    for begun, at in ((killed, "folder"), (cut, "folder"), (killed, "uri")):
        base = tmp_path / begun.__name__ / at
        place = Place(str(base)) if at == "folder" else Place(f"file://{base}", guarded=True)
        log = Path(base, "ops", "nodes", "_delta_log")
        log.mkdir(parents=True)
        begun(log)
        assert not exists(spark, place, tables.NODES)
        tables.create(spark, place, (tables.NODES,))
        assert exists(spark, place, tables.NODES)
        assert place.read(spark, tables.NODES).columns == list(tables.NODES.columns)
        assert sorted(path.name for path in log.parent.parent.iterdir()) == ["nodes", "nodes.torn-1"]
        tables.create(spark, place, (tables.NODES,))
        assert sorted(path.name for path in log.parent.parent.iterdir()) == ["nodes", "nodes.torn-1"]


@pytest.mark.parametrize("gone", TABLES, ids=lambda table: table.name)
def test_in_a_catalog_every_table_of_the_first_version_must_be_there(gone: Table) -> None:
    place = Place("main.", named=True, guarded=True)
    spark = spark_with("ops.batches", "gold.results", without=gone.name)
    with pytest.raises(PortError, match=f"{quoted_parts(f'main.{gone.name}')} is gone.*has rows"):
        check_whole(spark, place)
    check_whole(spark_with(without=gone.name), place)  # none has rows: creation was cut short


def test_every_table_of_this_version_is_of_the_first_one() -> None:
    """A table that is added later does not belong into FIRST: an upgrade creates it."""
    assert {
        "bronze.messages",
        "gold.results",
        "ops.batches",
        "silver.positions",
        "ops.coverage",
        "ops.gaps",
        "ops.quarantine",
        "ops.late",
        "ops.queries",
        "ops.sensors",
        "ops.nodes",
    } == FIRST
