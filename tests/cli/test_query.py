"""`headwater query` on tables that delta-rs wrote: every value prints, wrong names are explained, tables are narrow."""

from __future__ import annotations

import errno
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloud_job.sql.answer import QueryAnswer, time_text, write
from cloud_job.sql.views import DEEPEST, check, mistake, tables_in, view
from edge_agent.cli.main import main
from edge_agent.errors import PortError

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")

START = 1_800_000_000_000_000
QUERY = {"query": "host-1m", "revision": 1, "by": ["metric"], "aggregates": ["avg"], "batch": 0}
ROW: dict[str, Any] = {
    "query": "host-1m",
    "key": "metric=cpu",
    "labels": {"metric": "cpu"},
    "start": START,
    "end": START + 60_000_000,
    "values": {"avg": 0.1 + 0.2},
    "details": None,
    "readings": 60,
    "revision": 0,
    "withdrawn": False,
    "late": 0,
    "complete": True,
    "expected": 1,
    "received": 1,
    "coverage_id": "c",
    "batch": 3,
}
NODE = {"node": "gw-1", "source": "host", "frontier": None, "group_frontier": START, "batch": 3}
OLD_NODE = {**NODE, "node": "gw-2", "frontier": -(2**62)}  # of a table that an earlier version wrote


@pytest.fixture
def folder(tmp_path: Path) -> str:
    text, numbers = pa.map_(pa.string(), pa.string()), pa.map_(pa.string(), pa.float64())
    results = pa.Table.from_pylist([{**ROW, "labels": None, "values": None}])
    for name, kind in (("labels", text), ("values", numbers)):
        at = results.schema.get_field_index(name)
        results = results.set_column(at, name, pa.array([list(ROW[name].items())], kind))
    results = results.set_column(results.schema.get_field_index("details"), "details", pa.array([None], pa.string()))
    for name, us in (("window_start", START), ("window_end", START + 60_000_000)):
        results = results.append_column(name, pa.array([us], pa.timestamp("us", tz="UTC")))
    nodes = pa.Table.from_pylist([NODE, OLD_NODE])
    for name, table in {"results": results, "queries": pa.Table.from_pylist([QUERY]), "nodes": nodes}.items():
        schema = "gold" if name == "results" else "ops"
        deltalake.write_deltalake(str(tmp_path / schema / name), table)
    return str(tmp_path)


def answered(folder: str, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one query."""
    code = main(["query", "--tables", folder, *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("form", [(), ("--csv",), ("--json",)])
@pytest.mark.parametrize(
    "value",
    [
        "to_timestamp_micros(frontier)",
        "to_timestamp_nanos(1)",
        "to_timestamp_micros(4611686018427387904)",
        "cast(1.5 as decimal(5, 2))",
        "interval '1 day'",
        "current_date",
        "make_array(current_date)",
        "arrow_cast('x', 'Binary')",
    ],
)
def test_every_value_is_printed(folder: str, capsys: pytest.CaptureFixture[str], value: str, form: tuple[str]) -> None:
    code, out, err = answered(folder, capsys, *form, f"select node, {value} as v from ops.nodes order by node")
    assert (code, err) == (0, "")
    assert "gw-2" in out


def test_wait_ends_with_the_first_row_or_with_the_reason(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            table = pa.Table.from_pylist([{"node": "gw-3", "batch": 4}])
            deltalake.write_deltalake(f"{folder}/ops/sensors", table)

    monkeypatch.setattr(time, "sleep", sleep)
    code, out, err = answered(folder, capsys, "--wait", "60", "--csv", "select node from ops.sensors")
    assert (code, out, err, len(slept)) == (0, "node\ngw-3\n", "", 2)
    assert answered(folder, capsys, "--wait", "60", "select * from host-1m")[0] == 2, "no row will ever come"
    assert answered(folder, capsys, "--wait", "0.01", "select * from ops.gaps")[0] == 2


def test_a_damaged_file_of_the_tables_is_no_mistake_of_the_statement(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was `SQL: External error: ...`, with the exit code of a wrong statement."""
    for path in Path(folder, "gold").rglob("*.parquet"):
        path.unlink()
    code, out, err = answered(folder, capsys, "select count(*) as n, sum(readings) as r from gold.results")
    assert (code, out) == (3, "")
    assert err.startswith(f"headwater: cannot read the tables in {folder}: ")
    log = max(Path(folder, "ops", "queries", "_delta_log").glob("0*.json"))
    log.write_bytes(b"\xff{}")
    code, _, err = answered(folder, capsys, "select 1")
    assert (code, err.count("\n"), "<unknown>" in err) == (3, 1, False), err


def test_times_out_of_the_calendar_are_numbers() -> None:
    assert time_text(START) == "2027-01-15T08:00:00.000000Z"
    assert time_text(-(2**62)) == f"{-(2**62)} us"


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        (
            "select * from host-1m",
            'host-1m is not quoted; type "host-1m": put the name in double quotes and the statement in single quotes',
        ),
        ("select avg from host-1m where avg > 1", 'host-1m is not quoted; type "host-1m": '),
        ('select * from "hots-1m"', 'no table or view hots-1m; did you mean "host-1m"?'),
        ("select * from hots-1m", 'no table or view hots-1m; did you mean "host-1m"?'),
        ("select * from host_1m", 'no table or view host_1m; did you mean "host-1m"?'),
        ("select * from gold.result", "no table or view gold.result; did you mean gold.results?"),
        ("select * from ops.nodes n join node b on true", "no table or view node; did you mean ops.nodes?"),
        ("select * from zzz", 'no table or view zzz; there are gold.results, ops.nodes, ops.queries, "host-1m"'),
        ("select avrage from \"host-1m\" where key <> 'from nowhere'", "Schema error: No field named avrage."),
        ('select * from "host-1m" where', "SQL error: ParserError("),
    ],
)
def test_a_wrong_name_is_explained_as_it_has_to_be_typed(
    folder: str, capsys: pytest.CaptureFixture[str], sql: str, why: str
) -> None:
    code, out, err = answered(folder, capsys, sql)
    assert (code, out) == (2, "")
    assert err.startswith(f"headwater: SQL: {why}")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("message", "sql", "why"),
    [
        ("[INVALID_IDENTIFIER] The unquoted identifier host-1m is invalid", "select * from host-1m", "is not quoted;"),
        ("[TABLE_OR_VIEW_NOT_FOUND] The table or view `hots-1m` cannot", 'select * from "hots-1m"', "did you mean"),
        ("[TABLE_OR_VIEW_NOT_FOUND] The table or view `gold`.`result`", "select 1 from gold.result", "gold.results?"),
        ("[UNRESOLVED_COLUMN] x", 'select x from "host-1m"', "SQL: [UNRESOLVED_COLUMN] x"),
    ],
)
def test_what_spark_says_is_explained_alike(message: str, sql: str, why: str) -> None:
    assert why in str(mistake(message, sql, ["gold.results"], ["host-1m"]))


def test_a_table_of_everything_is_narrow_and_its_times_are_readable(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = answered(folder, capsys, 'select * from "host-1m"')
    heading, _, row, note = out.splitlines()
    assert heading.split() == ["key", "window_start", "metric", "avg", "readings", "complete"]
    assert row.split() == ["metric=cpu", "2027-01-15", "08:00:00Z", "cpu", "0.3", "60", "true"]
    assert note.startswith("(1 row; --wide also shows window_end, revision, ")
    assert max(map(len, (heading, row))) < 80
    _, out, _ = answered(folder, capsys, "--wide", 'select * from "host-1m"')
    assert {"window_end", "coverage_id", "start", "details"} <= set(out.splitlines()[0].split())
    assert str(START) not in out
    _, out, _ = answered(folder, capsys, 'select start, coverage_id from "host-1m"')
    assert out.splitlines()[0].split() == ["start", "coverage_id"], "columns that a statement names are shown"
    _, out, _ = answered(folder, capsys, "select * from ops.nodes order by node")
    assert out.splitlines()[0].split() == ["node", "source", "frontier", "group_frontier"]
    assert out.splitlines()[2].split() == ["gw-1", "host", "2027-01-15", "08:00:00Z"]
    _, out, _ = answered(folder, capsys, "--json", 'select * from "host-1m"')
    found = json.loads(out)
    assert (found["avg"], found["start"], found["window_start"]) == (0.1 + 0.2, START, "2027-01-15T08:00:00.000000Z")


def test_a_row_in_json_is_one_line_whatever_ends_lines_in_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    write(QueryAnswer(("key",), (("a\u2028b\u2029c\x85d",),)), "json", sys.stdout)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"key": "a\u2028b\u2029c\x85d"}


def test_labels_of_devices_control_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    write(QueryAnswer(("key",), (("m=a\x1b[31mRED\nnext\u202e",),)), "table", sys.stdout)
    out = capsys.readouterr().out
    assert out.splitlines()[2] == "m=a [31mRED next"
    assert "\u202e" not in out


def test_labels_that_differ_only_in_case_are_two_columns_in_both_engines() -> None:
    """Spark does not distinguish names by case."""
    select = view("q", ["Key", "Site", "site"], ["avg"])
    names = re.findall(r'as "([^"]+)"', select)
    assert names == ["Key_", "Site", "site_", "avg"]


@pytest.mark.parametrize("value", ["nan", "-5", "1e12", "soon"])
def test_a_time_to_wait_that_is_none_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["query", f"--wait={value}", "select 1"])
    assert left.value.code == 2
    assert "is not a number of seconds, 0 to 1e9" in capsys.readouterr().err


def test_a_table_without_a_first_commit_is_not_there_yet(tmp_path: Path) -> None:
    """The root is about to create it: `headwater query --wait` goes on waiting."""
    for name in ("gold/results", "ops/queries"):
        (tmp_path / name / "_delta_log").mkdir(parents=True)
    with pytest.raises(PortError, match="no tables in"):
        tables_in(str(tmp_path))


@pytest.mark.parametrize("closed", ["", "gold/results/_delta_log"])
def test_tables_of_another_user_are_not_called_missing(
    folder: str, closed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at, iterdir = str(Path(folder, closed)), Path.iterdir

    def refused(path: Path) -> Iterator[Path]:
        if str(path).startswith(at):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    code, out, err = answered(folder, capsys, "select 1")
    assert (code, out) == (3, "")
    assert err == f"headwater: {folder}/gold/results/_delta_log: permission denied; run as the user of the root\n"


def test_a_statement_that_would_write_writes_nothing(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "written.csv"
    code, out, err = answered(folder, capsys, f"explain analyze copy (select 1 as a) to '{file}'")
    assert (code, out) == (2, "")
    assert err == "headwater: `headwater query` only reads, and `copy` writes; ask with select\n"
    assert not file.exists()


@pytest.mark.parametrize("words", [["audit"], ["maintain"], ["query", "SELECT 1"]])
def test_an_empty_folder_of_tables_is_refused_also_beside_a_root_toml(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script with a variable that is not set read, or cleaned, the tables of this folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "root.toml").write_text('[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "mqtt://127.0.0.1:9"\n')
    assert main([*words, "--tables", ""]) == 2
    assert "--tables is empty" in capsys.readouterr().err


def test_json_has_every_column_of_a_join_and_no_number_that_json_lacks(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second table's `batch` stood there as that of the row; NaN is no JSON."""
    deltalake.write_deltalake(f"{folder}/ops/coverage", pa.Table.from_pylist([{"coverage_id": "c", "batch": 77}]))
    join = "select r.batch, c.* from gold.results r join ops.coverage c on c.coverage_id = r.coverage_id"
    code, out, err = answered(folder, capsys, "--json", join)
    assert (code, err) == (0, "")
    assert json.loads(out) == {"batch": 3, "coverage_id": "c", "batch_": 77}
    odd = "select 'nan'::double as a, make_array('inf'::double, 1.5) as b, 2.5 as c"
    for form in ("--json", "--csv"):
        code, out, err = answered(folder, capsys, form, odd)
        assert (code, err) == (0, "")
        assert "[null, 1.5]" in out
    assert json.loads(answered(folder, capsys, "--json", odd)[1]) == {"a": None, "b": [None, 1.5], "c": 2.5}


@pytest.mark.parametrize("words", [["audit"], ["maintain"], ["query", "select 1"]])
def test_tables_of_a_catalog_are_not_looked_for_in_a_folder(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that a folder `tables`, which no key names, has no tables, and that the root creates them."""
    monkeypatch.chdir(tmp_path)
    lines = ('[node]\nid = "root"\nrole = "root"', '[lower]\nbroker = "mqtt://127.0.0.1:9"', '[root]\ncatalog = "main"')
    (tmp_path / "root.toml").write_text("\n".join(lines))
    assert main(words) == 2
    assert "root.toml are in catalog main, which this command does not read" in capsys.readouterr().err


def test_a_label_named_like_a_column_of_bookkeeping_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ("key", "window_start", "window_end", "batch", "state", "avg", "late", "details")
    write(
        QueryAnswer(columns, (("batch=7,state=on", "t", "t", "7", "on", 1.5, 0, None),)),
        "table",
        sys.stdout,
        wide=False,
    )
    assert capsys.readouterr().out.splitlines()[0].split() == ["key", "window_start", "batch", "state", "avg"]
    write(QueryAnswer(("query", *columns), ()), "table", sys.stdout, wide=False)
    assert capsys.readouterr().out.splitlines()[0].split() == ["query", "key", "window_start", "avg"]


def test_brackets_within_brackets_have_a_bound(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The check passes over the statement once a level, so that deep statements took long before they were refused."""
    check(f"select {'(' * DEEPEST}1{')' * DEEPEST}")
    deep = DEEPEST + 1
    code, out, err = answered(folder, capsys, f"select {'(' * deep}1{')' * deep}")
    assert (code, out) == (2, "")
    assert err == f"headwater: `headwater query` reads at most {DEEPEST} brackets within each other; flatten it\n"
