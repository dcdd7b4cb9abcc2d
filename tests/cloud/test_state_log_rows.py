"""What a row of ops.batches tells a start: the whole state or an input, and each thing once (no Spark)."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cloud_job.ingest.intake import LeftOut
from cloud_job.spark import decision_checkpoint, state_log
from cloud_job.spark.job import JobSettings
from cloud_job.spark.state_log import MARK, BatchInput, Rules, StateLog, base_of
from edge_agent.algebra.query.key import EpochKey, QueryPlace
from edge_agent.algebra.windows import Session
from edge_agent.errors import WireError
from edge_agent.root.decision.root_state import RootLimits
from edge_agent.wire import landing, snapshot
from tests.support.cloud.child_frames import SECOND, Child, at, query, record, starts, tick
from tests.support.cloud.list_jobs import Kept, ListJob

WHOLE, NOTHING = bytes(1_000), BatchInput()
PLACE, LINE, OTHER = QueryPlace("q", 1, ""), EpochKey("gw", 1), EpochKey("gw", 2)


def input_of(size: int, *idle: int) -> BatchInput:
    """Files of so many bytes that hardly any compression makes smaller."""
    noise = np.random.default_rng(1)
    return BatchInput((("a", noise.bytes(size)),), tuple((("b", noise.bytes(each)),) for each in idle))


class Rows:
    """The rows of one run."""

    def __init__(self) -> None:
        self.log, self.number = StateLog(Rules(RootLimits(5, 100), 20, ("gw",))), 6
        self.fails = False

    def take(self, given: BatchInput = NOTHING, *, last: bool = False) -> bytes:
        self.number += 1
        return self.log.take(self.number, given, 0.0, self.whole, last=last)

    def whole(self) -> bytes:
        if self.fails:
            raise ValueError("not plain")
        return WHOLE

    def told(self, given: BatchInput = NOTHING) -> dict[str, Any]:
        return state_log._decode(self.take(given))


def test_the_first_row_of_a_run_and_the_last_are_whole_and_a_start_is_behind_in_between() -> None:
    rows = Rows()
    assert not rows.log.behind
    assert rows.take() == WHOLE
    assert not rows.log.behind
    for _ in range(2):
        row = rows.take()
        assert row.startswith(MARK)
        assert base_of(row, rows.number) == rows.log.base == 7
        assert rows.log.behind
    assert rows.take(last=True) == WHOLE
    assert (rows.log.base, rows.log.behind) == (10, False)


def test_inputs_are_never_larger_together_than_the_state_that_they_follow() -> None:
    """protocol 8.2"""
    rows, sizes = Rows(), list[int]()
    rows.take()
    for size in range(200, 260):
        sizes = [0] if (row := rows.take(input_of(size))) == WHOLE else [*sizes, len(row)]
        assert sum(sizes) <= len(WHOLE)
    assert rows.log.base > 7
    rows.take(last=True)
    row = rows.take(input_of(300))
    rows.log.since_bytes, rows.log.whole_bytes = 0, len(row)
    assert rows.take(input_of(300)) == row, "as large as the state"
    rows.log.since_bytes, rows.log.whole_bytes = 0, len(row) - 1
    assert rows.take(input_of(300)) == WHOLE


def test_files_much_larger_than_the_state_are_not_told_however_small_they_become() -> None:
    """A start would read them all again, also those of the time in which nothing changed."""
    rows = Rows()
    rows.take()
    zeros = [(("a", bytes(2_000)),), (("a", bytes(1_000)),), (("b", bytes(1_000)),)]
    assert rows.take(BatchInput(zeros[0], tuple(zeros[1:]))).startswith(MARK)
    assert rows.take(BatchInput(zeros[0], (*zeros[1:], (("c", b"0"),)))) == WHOLE


def test_what_was_read_from_the_tables_is_told_once() -> None:
    """protocol 8.4: told again later it would remove what has come since."""
    rows = Rows()
    rows.take()
    for whole in (False, True):
        rows.log.longest(PLACE, 30)
        rows.log.forgotten([LINE])
        rows.log.forgotten([OTHER], stored=True)
        rows.log.without_rows(4)
        if whole:
            rows.take(last=True)
        else:
            told = rows.told()
            assert (told["longest"], told["gone"], told["unnumbered"]) == ([[*PLACE, 30]], [[*LINE]], [[*OTHER]])
            assert told["rows_from"] == 4
        told = rows.told()
        assert (told["longest"], told["gone"], told["unnumbered"], told["rows_from"]) == ([], [], [], 0)


def test_a_state_that_cannot_be_written_ends_a_run_that_has_written_none() -> None:
    rows = Rows()
    rows.fails = True
    with pytest.raises(ValueError, match="not plain"):
        rows.take()
    rows.fails = False
    rows.take()
    rows.fails = True
    assert rows.take(input_of(5_000)).startswith(MARK)
    assert (rows.log.base, rows.log.whole_bytes) == (8, len(WHOLE))
    assert rows.log.behind, "an orderly end has to try again"
    rows.fails = False
    assert rows.take() == WHOLE, "as soon as it can be written"


def test_a_row_of_another_version_is_not_read() -> None:
    plain = {"version": state_log.VERSION + 1, "base": 7}
    row = MARK + zlib.compress(snapshot.dumps(plain))
    with pytest.raises(WireError, match="row of version 2; this root reads only version 1"):
        base_of(row, 8)


@pytest.mark.parametrize("stored", [False, True])
def test_an_epoch_leaves_all_of_the_state_and_others_stay(stored: bool) -> None:
    """protocol 8.4. stored: what took effect stays, because the tables have its rows."""
    lines, forgot = (LINE, OTHER), list[EpochKey]()
    state: Any = SimpleNamespace(sessions=SimpleNamespace(forget=forgot.append))
    for name in ("extent", "repeats", "too_late", "applied"):
        setattr(state, name, dict.fromkeys(lines, 1))
    decider: Any = SimpleNamespace(parent=SimpleNamespace(dictionaries=dict.fromkeys(lines, 1)))
    state_log.forget(decider, state, [LINE, EpochKey("never known", 1)], stored=stored)
    for known in (decider.parent.dictionaries, state.extent, state.repeats, state.too_late):
        assert known == {OTHER: 1}
    assert state.applied == dict.fromkeys(lines if stored else (OTHER,), 1)
    assert forgot[0] == LINE


# --- starts that decide again -----------------------------------------------------------------------------------------


class Runs:
    """Runs of a job over one child; each row but the first is an input, unless `whole`."""

    def __init__(self, folder: Path, window: Session | None = None) -> None:
        self.folder, self.kept = folder, Kept()
        self.child = Child("gw", (query(window=window),))
        self.begin()
        self.batch(0, record(self.child, at(0), self.child.birth()))

    def begin(self) -> ListJob:
        self.job = ListJob(None, None, JobSettings(str(self.folder), 20 * SECOND))  # type: ignore[arg-type]
        self.job.kept = self.kept
        self.job.open()
        return self.job

    def batch(self, second: int, *records: bytes, left_out: Any = None) -> None:
        content = tick(at(second)) + b"".join(records)
        self.job.process([(f"{second:06}", content)], left_out or {})
        self.job._log.whole_bytes = 1_000_000

    def rows(self, second: int) -> bytes:
        return record(self.child, at(second), self.child.rows(at(second), starts(second - 1)))

    def state(self) -> bytes:
        return decision_checkpoint.dumps(self.job.decider, self.job.state, self.job.parts)

    def check(self) -> None:
        """A run that begins now has the same state, from an input."""
        assert self.kept.batches[-1]["state"].startswith(MARK)
        before = self.state()
        self.begin()
        assert self.state() == before


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_a_start_knows_the_longest_sessions_that_were_read_from_the_tables(tmp_path: Path) -> None:
    """protocol 8.4: else it would delete readings that such a session needs."""
    runs = Runs(tmp_path, Session(SECOND))
    runs.batch(1, runs.rows(1))
    runs.job.state.sessions.stretch(PLACE, 40 * SECOND)
    runs.job._log.longest(PLACE, 40 * SECOND)
    runs.batch(2, runs.rows(2))
    runs.check()


@pytest.mark.parametrize("stored", [False, True])
def test_a_start_has_forgotten_the_epochs_that_were_forgotten(runs: Runs, stored: bool) -> None:
    runs.batch(1, runs.rows(1))
    then = Child("gw", runs.child.queries, epoch=2)
    runs.batch(2, record(then, at(2), then.birth((1, runs.child.seq - 1))))
    runs.job.forget_epochs([LINE], stored=stored)
    runs.child = then
    runs.batch(3, runs.rows(3))
    assert (LINE in runs.job.state.applied, LINE in runs.job.state.extent) == (stored, False)
    runs.check()


def test_a_start_has_forgotten_the_runs_without_rows(runs: Runs) -> None:
    for second in (1, 2, 3):
        runs.begin()
        runs.batch(second, runs.rows(second))
    assert [first for first, _ in runs.job.state.owners] == [0, 1, 2, 3]
    runs.job.forget_runs(2)
    runs.batch(4, runs.rows(4))
    assert [first for first, _ in runs.job.state.owners] == [2, 3]
    runs.check()


def test_a_start_leaves_out_what_was_left_out(runs: Runs) -> None:
    """protocol 8.1: a record that is settled, one that fails even then, a topic and a whole file."""
    runs.batch(1, runs.rows(1))
    bad, worse, other = runs.rows(2), runs.rows(2), record("other", at(2), b"noise")
    named = {content: next(iter(landing.iterate(content))) for content in (bad, worse, other)}
    out = {named[bad]: LeftOut("bad"), named[worse]: LeftOut("worse", settled=False), named[other][0]: LeftOut("all")}
    runs.batch(2, bad, worse, other, left_out=out)
    runs.check()
    runs.batch(3, runs.rows(3), left_out={"000003": LeftOut("a file")})
    runs.batch(4, runs.rows(4))
    runs.check()


def test_a_start_writes_what_an_orderly_end_wrote_though_its_state_was_not_written(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 8.3: deferred revisions are due then."""
    runs.batch(1, runs.rows(1))
    for second in (3, 4):
        late = runs.child.rows(at(second), starts(0.5), length_us=1, late=True)
        runs.batch(second, record(runs.child, at(second), late))
    put_off = [runs.job.state.put_off]

    def fails(*_: object) -> bytes:
        raise ValueError("not plain")

    with monkeypatch.context() as patched:
        patched.setattr(decision_checkpoint, "dumps", fails)
        runs.job.finish()
    assert runs.kept.works[-1].revising
    assert [*put_off, runs.job.state.put_off] == [True, False]
    runs.check()


def test_a_start_takes_decisions_that_waited_again_with_all_of_their_files_and_without_a_number(runs: Runs) -> None:
    """protocol 8.2. One is of two files, one of a file in which the lander does not say its time."""
    first, second, third = (Child(name, runs.child.queries) for name in ("gw-1", "gw-2", "gw-3"))
    others = (first, second, third)
    runs.batch(1, *(record(other, at(1), other.birth()) for other in others), runs.rows(1))
    runs.batch(3, *(record(other, at(3), other.beat(at(3))) for other in others), runs.rows(3))
    number = runs.job.state.number
    beats = [(f"beat-{n}", record(other, at(0), other.beat(at(4)))) for n, other in enumerate(others)]
    for files in (beats[:1], [(beats[1][0], tick(at(4)) + beats[1][1]), beats[2]]):
        runs.job.process(files)
    assert (runs.job.state.number, len(runs.job.idle)) == (number, 3)
    runs.batch(5, runs.rows(5))
    told = state_log._decode(runs.kept.batches[-1]["state"])
    assert [[name for name, _ in files] for files in told["idle"]] == [["beat-0"], ["beat-1", "beat-2"]]
    assert runs.job.decider.decide(at(5)).groups[query().group].frontier_us == at(4)
    runs.check()
    assert runs.job.decider.decide(at(5)).groups[query().group].frontier_us == at(4)
    runs.batch(6, runs.rows(6))
    assert [row["number"] for row in runs.kept.batches] == list(range(len(runs.kept.batches)))
