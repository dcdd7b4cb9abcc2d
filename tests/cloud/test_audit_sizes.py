"""`headwater audit` reads counts from the tables, not their rows (no Spark: delta-rs writes the table)."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cbor2
import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cloud_job.audit import root_book
from cloud_job.delta import driver_rows, tables
from cloud_job.delta.tables import Place
from cloud_job.spark.job import JobSettings
from edge_agent.algebra.query.key import EpochKey
from edge_agent.errors import PortError
from edge_agent.root.books import Line, audit
from edge_agent.root.decision.root_state import RootLimits
from tests.support.cloud.child_frames import SECOND, START, Child, query, record, tick
from tests.support.cloud.list_jobs import Kept, ListJob

FRAMES = 400
STATE: Any = SimpleNamespace(
    applied={EpochKey("gw-1", 1): [(0, 99), (200, 399)], EpochKey("it's", 7): [(0, 9)]}, owners=[(0, "a"), (5, "b")]
)


def part(node: str, seq: int, **other: object) -> dict[str, object]:
    """A row of bronze.messages that took effect."""
    row = {"batch": 3, "owner": "a", "node": node, "epoch": 1 if node == "gw-1" else 7, "seq": seq, "part": 1}
    return {**row, "kind": "frame", "readings": 2, "rows": 1, **other}


def written(base: Path, rows: list[dict[str, object]]) -> str:
    folder = Path(Place(str(base)).path(tables.MESSAGES))
    write_deltalake(folder, pa.Table.from_pylist(rows, schema=driver_rows.arrow_schema(tables.MESSAGES)))
    return str(base)


@pytest.mark.parametrize("most", [root_book.MOST_PARTS, 50])
def test_the_rows_of_a_large_table_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    rows = [part("gw-1", seq) for seq in range(FRAMES)]
    rows += [part("gw-1", 7), part("gw-1", 399), part("gw-1", 5), part("gw-1", 7, owner="b"), part("gw-1", 150, part=2)]
    rows += [part("gw-1", 8, part=0), part("gw-1", 8, kind="body"), part("gw-1", 9, batch=5), part("gw-2", 9)]
    rows += [part("gw-1", 8, epoch=2)]  # of another epoch; the next are of the first batch of a run
    rows += [part("it's", seq, batch=5, owner="b", readings=None if seq == 3 else 1) for seq in range(11)]
    rows += [part("gw-1", -2, part=-1, epoch=-1, kind="expired", readings=1000, rows=1)]
    folder, read, asked = written(tmp_path, rows), list[int](), root_book._asked

    def noted(engine: object, sql: str) -> pa.Table:
        found = asked(engine, sql)
        read.append(len(found))
        return found

    monkeypatch.setattr(root_book, "_asked", noted)
    monkeypatch.setattr(root_book, "MOST_PARTS", most)
    stored, doubled, uncounted = root_book._stored(folder, STATE)
    assert stored == {"gw-1": 1000 + 2 * 303, "it's": 9}
    assert doubled == tuple(f"gw-1 00000001/{seq} part 1" for seq in (5, 7, 399)), "in order, in one pass or in several"
    assert uncounted == 1 + 1
    assert max(read) <= root_book.SHOWN


def test_rows_without_a_count_of_any_child_are_uncounted(tmp_path: Path) -> None:
    rows = [part("gw-1", seq, readings=None) for seq in range(3)] + [part("it's", 1, readings=None, batch=6, owner="b")]
    assert root_book._stored(written(tmp_path, rows), STATE) == ({"gw-1": 0, "it's": 0}, (), 4)


def test_the_book_of_a_root_has_what_its_decisions_took_and_what_gaps_do_not_count(tmp_path: Path) -> None:
    """protocol 9.1. What no gateway has accepted is not missed; a loss without a number is named with its reason."""
    kept, child = Kept(), Child("gw-1", (query(),))
    settings = JobSettings(str(tmp_path), limits=RootLimits(0), retired=("gw-9",))
    job = ListJob(None, Place(str(tmp_path)), settings)  # type: ignore[arg-type]
    job.kept = kept
    job.open()
    job.decider.retire(settings.retired, 0)
    records = [tick(START), record(child, START, child.birth())]
    for number in range(3):
        at = START + number * SECOND
        job.process([(f"{number}.cborseq", b"".join(records))])
        records = [tick(at), record(child, at, child.rows(at + SECOND, np.array([at]), np.array([1.0])))]
    bad = cbor2.dumps([1, child.epoch, 3, b"noise"])  # in the place of the last one
    job.process([("3.cborseq", tick(START + 3 * SECOND) + record(child, START, bad))])
    gaps = [
        *(("lost", -1), ("lost", -1), ("journal lost", -1), ("journal lost", 7), ("poison", 5), ("poison", 0)),
        *((reason, -1) for reason in root_book.NEVER_TAKEN),
    ]
    late = [{"node": "gw-1", "readings": readings} for readings in (3, 4)]
    for table, rows in (
        (tables.BATCHES, kept.batches),
        (tables.MESSAGES, kept.messages),
        (tables.GAPS, [{"node": "gw-1", "reason": reason, "readings": count} for reason, count in gaps]),
        (tables.LATE, late),
    ):
        content = pa.Table.from_pylist(rows, schema=driver_rows.arrow_schema(table))
        write_deltalake(Path(Place(str(tmp_path)).path(table)), content)
    book = root_book.root_book(str(tmp_path), "top")
    assert (book.name, book.applied, book.stored, book.late) == ("top", {"gw-1": 2}, {"gw-1": 2}, 7)
    assert book.lines == {"gw-1": Line(child.epoch, 4, 2, 1)}
    assert (book.doubled, book.uncounted, book.retired) == ((), 0, frozenset({"gw-9"}))
    assert book.unknown == {"lost": 2, "journal lost": 1}


def test_readings_that_a_child_makes_up_are_counted_as_they_are(tmp_path: Path) -> None:
    """Their sum began again at -2^63: the books of the whole tree did not balance by a number without a meaning."""
    rows = [part("gw-1", seq, readings=2**62) for seq in range(3)]
    late = [{"node": "gw-1", "source": "s", "key": "", "start": 0, "end": 1, "readings": 2**62, "reason": ""}] * 3
    folder = written(tmp_path, rows)
    assert root_book._stored(folder, STATE)[0] == {"gw-1": 3 * 2**62}
    content = pa.Table.from_pylist([{**row, "batch": 1} for row in late], schema=driver_rows.arrow_schema(tables.LATE))
    write_deltalake(Place(folder).path(tables.LATE), content)
    assert root_book._late(folder) == 3 * 2**62
    write_deltalake(Place(folder).path(tables.LATE), content.slice(0, 0), mode="overwrite")
    assert root_book._late(folder) == 0


def test_tables_without_a_frame_that_took_effect_have_no_readings(tmp_path: Path) -> None:
    folder = written(tmp_path, [part("gw-1", 1)])
    for state in (SimpleNamespace(applied={}, owners=[]), SimpleNamespace(applied={}, owners=[(0, "a")])):
        assert root_book._stored(folder, state) == ({}, (), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "applied", "unknown"),
    [([], {}, []), ([part("gw-1", 1)], None, ["ops.batches: no decision counts the readings in bronze.messages"])],
)
def test_a_root_that_has_decided_nothing_has_all_readings_still_before_it(
    tmp_path: Path, rows: list[dict[str, object]], applied: object, unknown: list[str]
) -> None:
    """Its empty tables were `0 rows of an older version`, for which nothing could be proved."""
    folder = written(tmp_path, rows)
    empty = pa.Table.from_pylist([], schema=driver_rows.arrow_schema(tables.BATCHES))
    write_deltalake(Path(Place(folder).path(tables.BATCHES)), empty)
    book = root_book.root_book(folder)
    assert book.applied == applied
    assert audit(book, []).unknown == unknown


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [Path.unlink, cut])
def test_a_file_of_the_tables_that_is_gone_or_cut_off_is_one_line(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """`headwater audit` ended with a traceback."""
    folder = written(tmp_path, [part("gw-1", 1)])
    for path in tmp_path.rglob("*.parquet"):
        damage(path)
    with pytest.raises(PortError, match=r"^cannot read the tables: .*parquet"):
        root_book._stored(folder, STATE)


@pytest.mark.parametrize("state", [b"told\xff", b"\xff", zlib.compress(b"\xff"), b"told" + zlib.compress(b"\xff")])
def test_a_state_of_the_root_that_is_damaged_is_one_line(tmp_path: Path, state: bytes) -> None:
    row = {"number": 1, "owner": "a", "work": b"", "state": state}
    write_deltalake(Place(str(tmp_path)).path(tables.BATCHES), pa.Table.from_pylist([row]))
    with pytest.raises(PortError, match=r"^cannot read the tables: "):
        root_book.root_book(str(tmp_path))


def test_tables_of_another_program_are_one_line(tmp_path: Path) -> None:
    write_deltalake(Place(str(tmp_path)).path(tables.BATCHES), pa.table({"a": [1]}))
    with pytest.raises(PortError, match=r"^cannot read the tables: .*number"):
        root_book.root_book(str(tmp_path))
