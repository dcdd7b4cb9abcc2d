"""Names of tables in a catalog, as Spark is given them (no Spark but a stand-in)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_job.delta import tables
from cloud_job.delta.tables import Place
from edge_agent.errors import PortError

MINE = Place("my-cat.", named=True, guarded=True)
SPARK = SimpleNamespace(catalog=SimpleNamespace(tableExists=lambda _name: True))
NONE = SimpleNamespace(catalog=SimpleNamespace(tableExists=lambda _name: False))


@pytest.mark.parametrize(
    ("root", "wanted"),
    [
        ("my-cat.", "`my-cat`.`ops`.`late`"),
        ("main.", "`main`.`ops`.`late`"),
        ("`my-cat`.", "`my-cat`.`ops`.`late`"),
        ("hw_", "`hw_ops`.`late`"),
    ],
)
def test_each_part_of_a_name_is_quoted(root: str, wanted: str) -> None:
    """`headwater check` passes my-cat, and the root ended with an error of the parser."""
    assert tables.place(root).sql(tables.LATE) == wanted


def test_every_statement_and_call_has_the_quoted_name() -> None:
    said: list[str] = []

    def read(name: str) -> Any:
        said.append(name)
        return SimpleNamespace(columns=list(tables.BATCHES.columns))

    catalog = SimpleNamespace(tableExists=lambda name: bool(read(name)))
    spark: Any = SimpleNamespace(sql=said.append, read=SimpleNamespace(table=read), catalog=catalog)
    tables.create(spark, MINE, (tables.BATCHES,))
    assert tables.exists(spark, MINE, tables.BATCHES)
    schema, table, *names = said
    assert schema == "CREATE SCHEMA IF NOT EXISTS `my-cat`.`ops`"
    assert table.startswith("CREATE TABLE IF NOT EXISTS `my-cat`.`ops`.`batches` (")
    assert names == ["`my-cat`.`ops`.`batches`"] * 2


def test_rows_are_written_to_the_quoted_name() -> None:
    said: list[str] = []
    writer: Any = SimpleNamespace(saveAsTable=said.append)
    for name in ("format", "mode", "option"):
        setattr(writer, name, lambda *_args: writer)
    rows: Any = SimpleNamespace(write=writer, sparkSession=SPARK)
    MINE.append(tables.LATE, rows, "rows", 1)
    MINE.overwrite(tables.LATE, rows, 1)
    MINE.replace(tables.LATE, rows, "number = 1")
    assert said == ["`my-cat`.`ops`.`late`"] * 3


def test_spark_is_told_that_a_folder_is_of_this_machine(tmp_path: Path) -> None:
    """With another default file system, as on a cluster, the tables were there, and the lock and all checks here."""
    said: list[str] = []
    writer: Any = SimpleNamespace(save=said.append)
    for name in ("format", "mode", "option"):
        setattr(writer, name, lambda *_args: writer)
    rows: Any = SimpleNamespace(write=writer, sparkSession=SPARK)
    (tmp_path / "ops/late/_delta_log").mkdir(parents=True)
    place = tables.place(str(tmp_path))
    place.append(tables.LATE, rows, "rows", 1)
    place.replace(tables.LATE, rows, "number = 1")
    assert said == [f"file:{tmp_path}/ops/late"] * 2
    assert place.sql(tables.LATE) == f"delta.`file:{tmp_path}/ops/late`"
    for root in ("s3://bucket/x", "dbfs:/x", "/Volumes/main/a/b"):
        assert tables.place(root).sql(tables.LATE) == f"delta.`{root}/ops/late`"


@pytest.mark.parametrize("place", [MINE, Place("/nowhere")])
def test_a_table_that_is_gone_is_not_begun_anew_by_a_write(place: Place) -> None:
    """Spark creates it: rows of before were missing, later ones had revision 0, and all were complete."""
    rows: Any = SimpleNamespace(write=None, sparkSession=NONE)
    writes: tuple[Callable[[], None], ...] = (
        lambda: place.append(tables.RESULTS, rows, "results", 1),
        lambda: place.overwrite(tables.NODES, rows, 1),
        lambda: place.replace(tables.LATE, rows, "batch <= 1"),
    )
    for write in writes:
        with pytest.raises(PortError, match=r"is gone, and was there when this root began; put it back"):
            write()
