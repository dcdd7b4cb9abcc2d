"""The order in which a batch is committed, and what a start does again: a job over tables that are lists (no Spark)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud_job.delta import driver_rows, tables
from cloud_job.delta.integrity import torn_commits
from cloud_job.ordered.position_store import OrderedRows
from cloud_job.spark import islands as sessions
from cloud_job.spark import job as jobs
from cloud_job.spark.job import Job, JobSettings
from cloud_job.spark.possible_work import REASON
from cloud_job.spark.prepared_batch import Decided
from cloud_job.spark.state_log import base_of
from edge_agent.algebra.query.key import EpochKey, QueryPlace
from edge_agent.errors import PortError, ProtocolError
from edge_agent.root.decision.root_state import RootLimits
from edge_agent.root.decision.withdrawals import SupersededRows, WithdrawnWindow
from edge_agent.root.decision.work import Islands, Ordering, RefusedFrame, TooLate, WindowRange, Work
from tests.support.cloud.child_frames import START, Child, at, query, record, starts, tick
from tests.support.cloud.list_frames import Frame, Functions
from tests.support.cloud.list_jobs import Kept, ListJob

NUMBER = 7


class Tables:
    """Stands in for a Place. events: what has been written and made durable, in order."""

    guarded = False

    def __init__(self, events: list[Any]) -> None:
        self.events = events
        self.rows: dict[str, Frame] = {}
        self.asked: set[str] = set()

    def read(self, _spark: Any, table: tables.Table) -> Frame:
        self.asked.add(table.name)
        return self.rows.setdefault(table.name, Frame())

    def append(self, table: tables.Table, rows: Frame, step: str, number: int) -> None:
        self.events.append((table.name, step, number, len(rows)))
        self.rows[table.name] = Frame([*self.rows.get(table.name, ()), *rows])

    def replace(self, table: tables.Table, rows: Frame, where: str) -> None:
        self.events.append((table.name, where))
        self.rows[table.name] = rows

    def overwrite(self, table: tables.Table, rows: Frame, number: int) -> None:
        self.events.append((table.name, "all", number, len(rows)))


class Sources:
    """Stands in for RowSources, and for its recent parts and positions: each kind of row is one row."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events
        self.recent = self.central = self
        self.bad: set[str] = set()

    def _made(self, kind: str) -> Frame:
        if kind in self.bad:
            raise ValueError(kind)
        return Frame([{"kind": kind, "batch": NUMBER}])

    def windows(self, _work: Work, spans: tuple[WindowRange, ...], _lookups: Any) -> Frame:
        return self._made(f"windows of {len(spans)}")

    def sessions(self, _work: Work, ranges: dict[int, Any], _lookups: Any, *, revising: bool) -> Frame:
        return self._made(f"sessions {sorted(ranges)} {revising}")

    def ordered(self, work: Work, _lookups: Any) -> OrderedRows:
        return OrderedRows(self._made("ordered") if work.ordering else None)  # type: ignore[arg-type]

    def make(self, work: Work, _lookups: Any) -> None:
        for spans in (work.closing, work.revising):
            if spans:
                self._made(f"windows of {len(spans)}")

    def add(self, _stored: Any) -> None:
        self.events.append("recent")

    def take(self, *_: Any) -> None:
        self.events.append("take")

    def keep(self, _ordered: Any, number: int) -> None:
        self.events.append(("positions", number))

    def forget_epochs(self, lines: Any) -> None:
        self.events.append(("epochs", lines))

    def resume(self, *_: Any) -> None:
        self.events.append("resume")

    def forget(self, _needed_us: int) -> None:
        self.events.append("forget")


class Others:
    """Stands in for what a batch asks besides: the disk, the lease, the reports of failures."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events

    def sync(self) -> None:
        self.events.append("durable")

    def check(self, _spark: Any, number: int) -> None:
        self.events.append(("lease", number))

    def release(self) -> None:
        self.events.append("released")

    def report(self, _queries: Any, number: int) -> None:
        self.events.append(("failures", number))


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the modules of Spark would write goes here."""
    events: list[Any] = []
    monkeypatch.setattr(jobs, "F", Functions)
    monkeypatch.setattr(jobs, "DataFrame", Frame)
    for name in ("rows", "one_file", "of_columns"):
        monkeypatch.setattr(driver_rows, name, lambda _spark, _table, content: Frame(content))
    monkeypatch.setattr(jobs, "merge", lambda _s, _p, rows, spans: events.append(("merge", rows[0]["kind"], spans)))
    monkeypatch.setattr(
        jobs, "merge_sessions", lambda _s, _p, rows, gone, low: events.append(("join", rows, gone, low))
    )
    monkeypatch.setattr(jobs, "withdraw", lambda _s, _p, gone, number: events.append(("withdraw", gone, number)))
    monkeypatch.setattr(jobs, "withdraw_over", lambda _s, _p, over, number: events.append(("over", over, number)))
    monkeypatch.setattr(jobs, "quarantined", lambda _rows, _work, owner: Frame([{"batch": NUMBER, "owner": owner}]))
    monkeypatch.setattr(jobs, "parts_of", lambda _rows, beyond, _number: beyond)
    monkeypatch.setattr(jobs, "late", late)
    return events


def late(parts: Any, _work: Work, pages: dict[Any, Any], _bases: Any) -> list[dict[str, Any]]:
    assert None not in pages.values(), "an epoch of which nothing has taken effect has no page"
    return [{"batch": NUMBER}] * len(parts)


@pytest.fixture
def job(events: list[Any], tmp_path: Path) -> Job:
    made = Job(None, Tables(events), JobSettings(str(tmp_path), limits=RootLimits(0)))  # type: ignore[arg-type]
    made._rows = Sources(events)  # type: ignore[assignment]
    made.state.own(NUMBER, made.owner)
    made._durable = made._lease = made._failures = Others(events)  # type: ignore[assignment]
    return made


def stand_in_of(job: Job) -> Tables:
    place: object = job.place
    assert isinstance(place, Tables)
    return place


def span(low_us: int) -> WindowRange:
    return WindowRange("q", 1, 0, low_us, low_us + 1, 1, 1, 0, low_us, low_us, (), "c", 1, 1, complete=True)


def islands(low_us: int | None, *, meets: bool = False, touch: tuple[int, int] | None = None) -> Islands:
    none = (None, None, None)
    return Islands("s", 1, 0, 5, 0, (), 60, 20, low_us, True, touch, *none, 0, "", meets=meets, keys=(), cells=())


def row(**about: Any) -> dict[str, object]:
    return {"batch": NUMBER, **about}


CLOSING, REVISING = (span(1),), (span(2), span(3))
GONE, OVER = (WithdrawnWindow("m", 1, "", 1, 2),), (SupersededRows("q", 1, "", 1, 2),)
WORK = Work(
    NUMBER,
    closing=CLOSING,
    revising=REVISING,
    beyond=(TooLate("gw", 1, 2, 1, "s", 9), TooLate("gw", 1, 3, 1, "s", 9)),
    refused=(RefusedFrame("gw", 1, 4, "bad"),),
    coverage=(row(coverage_id="c", leaf="gw"),),
    gaps=(row(reason="lost"), row(reason="began")),
    queries=(row(query="q"),),
    sensors=(row(sensor="s"),),
    islands=(islands(30), islands(40, meets=True), islands(None)),
    ordering=(Ordering("o", 1, "", None, (), 5, 9, ()),),
    gone=GONE,
    over=OVER,
)
RESULTS = ("gold.results", "results", NUMBER, 3)
REVISIONS = [
    ("over", OVER, NUMBER),
    ("merge", "windows of 2", REVISING),
    ("withdraw", GONE, NUMBER),
    ("join", [{"kind": "sessions [1] False", "batch": NUMBER}], None, 40),
]
OTHERS = [
    ("ops.coverage", "rows", NUMBER, 1),
    ("ops.gaps", "rows", NUMBER, 2),
    ("ops.queries", "rows", NUMBER, 1),
    ("ops.sensors", "rows", NUMBER, 1),
    ("ops.quarantine", "rows", NUMBER, 1),
    ("ops.late", "rows", NUMBER, 2),
]
PERFORMED = [RESULTS, "durable", ("positions", NUMBER), "durable", *REVISIONS, "durable", *OTHERS, "durable"]


class Stored(list[dict[str, Any]]):
    """The rows of a batch for bronze.messages."""

    nbytes = 10


def decided(work: Work) -> Decided:
    return Decided(Stored([row(), row()]), None, {}, work)  # type: ignore[arg-type]


def test_a_batch_commits_frames_then_its_decision_then_what_follows_and_each_is_durable_before_the_next(
    job: Job, events: list[Any]
) -> None:
    """protocol 8.1, 8.5"""
    made = decided(WORK)._replace(decision=type("Decision", (), {})())
    job._write(made, row(), {"node": ["gw"]})
    assert events == [
        ("bronze.messages", job.owner, NUMBER, 2),
        "recent",
        "durable",
        ("ops.batches", "decision", NUMBER, 1),
        ("lease", NUMBER),
        "durable",
        "take",
        *PERFORMED,
        ("ops.nodes", "all", NUMBER, 1),
        "durable",
        ("failures", NUMBER),
        "forget",
    ]
    kinds = [each["kind"] for each in job.place.rows["gold.results"]]  # type: ignore[attr-defined]
    assert job.place.asked == {"bronze.messages"}, "only a start asks what has been done"  # type: ignore[attr-defined]
    assert kinds == ["windows of 1", "sessions [0] False", "ordered"], "sessions that meet other rows are merged"


def test_a_batch_without_frames_and_without_changes_writes_only_its_decision(job: Job, events: list[Any]) -> None:
    job._write(decided(Work(NUMBER))._replace(stored=None), row(), None)
    assert [each for each in events if each not in ("durable", "take", "forget")] == [
        ("ops.batches", "decision", NUMBER, 1),
        ("lease", NUMBER),
        ("positions", NUMBER),
        ("failures", NUMBER),
    ]


@pytest.mark.parametrize("name", ["closing", "islands", "ordering", "refused", "beyond", "unread"])
def test_each_kind_of_rows_is_written_where_it_is_the_only_one(job: Job, events: list[Any], name: str) -> None:
    found = {"unread": 2, "islands": WORK.islands[:1]}.get(name, getattr(WORK, name))
    work = Work(NUMBER, **{name: found})  # type: ignore[arg-type]
    job._perform(work)
    table = {"beyond": "ops.late", "refused": "ops.quarantine", "unread": "ops.quarantine"}.get(name, "gold.results")
    step = "results" if table == "gold.results" else "rows"
    appended = [each for each in events if each not in ("durable", ("positions", NUMBER))]
    assert appended == [(table, step, NUMBER, 2 if name == "beyond" else 1)]


@pytest.mark.parametrize("done", range(len(OTHERS) + 2))
def test_a_start_appends_what_the_last_decision_lacks_and_nothing_twice(job: Job, events: list[Any], done: int) -> None:
    """protocol 8.1: an append is complete or has no effect; revisions can be repeated. done: appends before the end."""
    stand_in = stand_in_of(job)
    for name, *_, rows in [RESULTS, *OTHERS][:done]:
        stand_in.rows[name] = Frame([row(reason="lost")] * rows)
    for table in tables.TABLES:  # of other batches, and of what was left out of this one
        stand_in.read(None, table).extend([row(batch=NUMBER - 1, reason="lost"), row(batch=NUMBER + 1, reason="")])
    stand_in.read(None, tables.GAPS).append(row(reason=REASON))
    job._carry_out(WORK)
    missing = [RESULTS, *OTHERS][done:]
    kept = [each for each in PERFORMED if each not in (RESULTS, *OTHERS) or each in missing]
    assert events == kept
    assert job.impossible == []


def test_what_cannot_be_made_is_declared_before_the_rest_is_carried_out(job: Job, events: list[Any]) -> None:
    job._rows.bad = {"windows of 1"}  # type: ignore[attr-defined]
    job._make = lambda work: job._rows.make(work, None)  # type: ignore[method-assign, arg-type]
    job._carry_out(WORK)
    assert [found.piece for found in job.impossible] == list(CLOSING)
    declared = ("ops.gaps", "left out 0", NUMBER, 1)
    left = (*RESULTS[:3], 2)
    assert events == ["resume", declared, "durable", "resume", left, *PERFORMED[1:]]
    (gap,) = [each for each in job.place.rows["ops.gaps"] if each["reason"] == REASON]  # type: ignore[attr-defined]
    assert (gap["start"], gap["end"]) == (1, 2)
    assert "declared" not in job.steps


def test_what_was_appended_before_a_part_raised_is_not_appended_again(job: Job, events: list[Any]) -> None:
    job.place.rows["gold.results"] = Frame([row()])  # type: ignore[attr-defined]
    job._rows.bad = {"windows of 2", "windows of 1"}  # type: ignore[attr-defined]
    job._carry_out(WORK)
    assert [found.piece for found in job.impossible] == [*CLOSING, *REVISING]
    assert [each for each in events if each[0] == "gold.results"] == []
    assert [each[0] for each in events if isinstance(each, tuple)].count("ops.quarantine") == 1


def test_rows_are_made_without_being_written(job: Job, events: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those about messages and readings: of such an exception a start would not get rid."""
    job._make(WORK)
    monkeypatch.setattr(jobs, "quarantined", lambda *_: Frame([{"bad": True}]))
    with pytest.raises(ValueError, match="bad"):
        job._make(WORK)
    job._make(Work(NUMBER, closing=CLOSING))
    job._rows.bad = {"windows of 1"}  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="windows of 1"):
        job._make(Work(NUMBER, closing=CLOSING))
    assert events == []


def test_what_leaves_the_state_is_told_to_a_start_that_decides_again(job: Job, events: list[Any]) -> None:
    """protocol 8.4"""
    gone, old = [EpochKey("gw", 1)], [EpochKey("gw", 2)]
    for line in (*gone, *old):
        job.state.extent[line] = (1, 2)
        job.state.applied[line] = [(0, 3)]
    job.forget_epochs(gone)
    job.forget_epochs(old, stored=True)
    assert (job._log._gone, job._log._unnumbered) == (gone, old)
    assert (dict(job.state.extent), list(job.state.applied)) == ({}, old)
    assert events == [("epochs", gone), ("epochs", old)]
    job.forget_runs(NUMBER + 5)
    assert (job._log._rows_from, len(job.state.owners)) == (0, 1), "there is only one"
    job.state.owners.append((NUMBER + 5, "b"))
    job.forget_runs(NUMBER + 5)
    assert (job._log._rows_from, job.state.owners) == (NUMBER + 5, [(NUMBER + 5, "b")])


def test_work_that_is_cleared_leaves_its_row_with_the_whole_state(job: Job, events: list[Any]) -> None:
    job.state.number = NUMBER
    job.place.rows["ops.batches"] = Frame([{"number": 3, "owner": "a"}, {"number": NUMBER, "owner": "b"}])  # type: ignore[attr-defined]
    job._last = lambda: list(job.place.rows["ops.batches"])  # type: ignore[method-assign, attr-defined]
    job.forget_work()
    assert events == [("ops.batches", f"number = {NUMBER}")]
    ((left),) = job.place.rows["ops.batches"]  # type: ignore[attr-defined]
    assert (left["number"], left["owner"], Work.loads(left["work"])) == (NUMBER, "b", Work(NUMBER))
    assert base_of(left["state"], NUMBER) == job.needed_from == NUMBER


@pytest.mark.parametrize("rows", [[], [{"number": NUMBER}]])
def test_a_run_looks_at_the_disk_and_takes_the_lease_before_it_changes_anything(
    job: Job, events: list[Any], monkeypatch: pytest.MonkeyPatch, rows: list[Any]
) -> None:
    """protocol 8.5: torn commits are renamed before the tables are looked at, and those before new ones are made."""

    def told(name: str) -> Others:
        events.append(name)
        return Others(events)

    def gone(*_: Any) -> None:
        raise KeyError("gone")

    monkeypatch.setattr(jobs, "Lease", lambda *_: told("lease"))
    monkeypatch.setattr(torn_commits, "repair", lambda _place: events.append("repair"))
    monkeypatch.setattr(jobs, "check_whole", lambda *_: events.append("whole"))
    monkeypatch.setattr(jobs, "DurableTables", lambda _place: told("noted"))
    monkeypatch.setattr(tables, "create", lambda *_: events.append("create"))
    monkeypatch.setattr(type(job.decider), "retire", lambda _, nodes, _us: events.append(("retire", nodes)))
    job._last = lambda: rows  # type: ignore[method-assign]
    job._resume = lambda rows: events.append(("resume", rows))  # type: ignore[method-assign]
    job.open(lambda: events.append("owns"))
    again = [("resume", rows)] if rows else []
    assert events == ["lease", "owns", "repair", "whole", "noted", "create", "durable", *again, ("retire", ())]
    events.clear()
    job.close()
    job.close()
    assert events == ["released"]
    events.clear()
    monkeypatch.setattr(jobs, "check_whole", gone)
    with pytest.raises(KeyError):
        job.open()
    assert events == ["lease", "repair", "released"], "another run can begin"


def test_what_an_earlier_start_declared_is_not_declared_again(job: Job, events: list[Any]) -> None:
    def left_out(name: str, why: str, **about: Any) -> dict[str, Any]:
        return {**row(start=1, end=2, nodes=[], reason=REASON, detail=f"{name}: {why}"), **about}

    known = [
        left_out("query a", "first text"),
        left_out("query b", "", batch=NUMBER - 1),
        left_out("query c", "", reason="lost"),
    ]
    job.place.rows["ops.gaps"] = Frame(known)  # type: ignore[attr-defined]
    job._declare([left_out("query a", "another text")], NUMBER)
    assert events == []
    job._declare([left_out(f"query {name}", "text") for name in "abc"], NUMBER)
    assert events == [("ops.gaps", "left out 1", NUMBER, 2), "durable"]


def test_a_cause_outside_the_data_is_no_part_that_cannot_be_made(
    job: Job, events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Frame:
        raise PortError("no space")

    monkeypatch.setattr(job._rows, "windows", full)
    with pytest.raises(PortError):
        job._carry_out(WORK)
    assert events == []


def test_rows_of_sessions_are_computed_again_where_late_pieces_touch_them(
    job: Job, events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 5.4: and the longest row found is noted for decisions to come, also those decided again."""
    found = (islands(None), islands(None, touch=(50, 60)))
    asked = []

    def ranges(_known: Any, of: Any) -> Any:
        asked.append(of)
        return {1: [(30, 61)]}, {1: 500}

    monkeypatch.setattr(sessions, "revising_ranges", ranges)
    monkeypatch.setattr(sessions, "withdrawn", lambda _known, made, of, number: (made, of, number))
    noted: list[Any] = []
    monkeypatch.setattr(type(job.state.sessions), "stretch", lambda _, place, us: noted.append((place, us)))
    job._revise(Work(NUMBER, islands=found), None)  # type: ignore[arg-type]
    made = [{"kind": "sessions [1] True", "batch": NUMBER}]
    assert events == [("join", made, (made, [found[1]], NUMBER), 30)]
    assert noted == [(QueryPlace("s", 1, ""), 500)] == job._log._longest
    assert asked == [found]
    job._revise(Work(NUMBER, islands=found[:1]), None)  # type: ignore[arg-type]
    assert (len(events), len(asked)) == (1, 1), "nothing is read where no row changes"


def test_a_coverage_that_the_state_has_forgotten_is_looked_up_in_the_table(
    job: Job, events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 4.7"""
    work = Work(NUMBER, coverage=tuple(row(coverage_id=name) for name in "abc"))
    job.place.rows["ops.coverage"] = Frame([{"coverage_id": "b", "batch": 1}, {"coverage_id": "z", "batch": 1}])  # type: ignore[attr-defined]
    monkeypatch.setattr(type(job.state), "covers_full", property(lambda _: False))
    job._append_others(work, None, again=False)  # type: ignore[arg-type]
    monkeypatch.setattr(type(job.state), "covers_full", property(lambda _: True))
    job.place.rows["ops.coverage"] = Frame([{"coverage_id": "b", "batch": 1}])  # type: ignore[attr-defined]
    job._append_others(work, None, again=False)  # type: ignore[arg-type]
    assert events == [("ops.coverage", "rows", NUMBER, 3), ("ops.coverage", "rows", NUMBER, 2)]
    assert [each["coverage_id"] for each in job.place.rows["ops.coverage"]] == ["b", "a", "c"]  # type: ignore[attr-defined]


def test_a_batch_without_a_lease_is_refused(job: Job) -> None:
    job._lease = None
    with pytest.raises(ProtocolError, match="open"):
        job._decide(row(), NUMBER)


def test_files_of_a_decision_go_just_before_the_next_one_is_written(tmp_path: Path) -> None:
    """protocol 8.1: until then a start may need them. Those without changes go with the decision that names them."""
    kept, seen = Kept(), list[tuple[list[str], set[str]]]()
    kept.store = lambda names, _rows: seen.append((list(names), {each.name for each in tmp_path.iterdir()}))
    job = ListJob(None, tables.Place(str(tmp_path)), JobSettings(str(tmp_path), limits=RootLimits(0)))  # type: ignore[arg-type]
    job.kept = kept
    job.open()
    child = Child("gw", (query(),))
    sent = [
        [tick(START), record(child, START, child.birth())],
        [tick(at(0.1))],
        [tick(at(2)), record(child, at(2), child.rows(at(2), starts(0), np.array([1.0])))],
        [tick(at(3)), record(child, at(3), child.rows(at(3), starts(2), np.array([1.0])))],
    ]
    for number, records in enumerate(sent):
        path = tmp_path / f"{number}.cborseq"
        path.write_bytes(b"".join(records))
        job.process([(path.name, path.read_bytes())])
    names = [f"{number}.cborseq" for number in range(4)]
    assert seen == [(part, set(part)) for part in (names[:1], names[1:3], names[3:])]
    assert [path.name for path in tmp_path.iterdir()] == names[3:]
    job.process([(names[3], (tmp_path / names[3]).read_bytes())])
    assert len(seen) == 3, "what has been read is not read again"
    numbers = [each["number"] for each in kept.batches]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert sorted({each["batch"] for each in kept.messages}) == numbers
    job.finish()
    assert list(tmp_path.iterdir()) == []
    assert kept.batches[-1]["files"] == []


def test_an_orderly_end_without_anything_to_write_deletes_the_files_and_gives_the_lease_back(
    tmp_path: Path, events: list[Any]
) -> None:
    kept, path = Kept(), tmp_path / "1.cborseq"
    job = ListJob(None, tables.Place(str(tmp_path)), JobSettings(str(tmp_path), limits=RootLimits(0)))  # type: ignore[arg-type]
    job.kept = kept
    job._lease = Others(events)  # type: ignore[assignment]
    child = Child("gw", (query(),))
    path.write_bytes(b"".join([tick(START), record(child, START, child.birth())]))
    job.process([(path.name, path.read_bytes())])
    assert path.exists()
    job.finish()
    assert (len(kept.batches), path.exists(), events) == (1, False, ["released"])
