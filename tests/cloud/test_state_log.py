"""The state of the decision, whole now and then and else as what batches were told, is the state that there was.

The job keeps its rows in lists (no Spark): deciding, encoding and recalling are the product's.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_job.delta import maintain
from cloud_job.delta.expiring import over
from cloud_job.spark import decision_checkpoint, read_files, state_log
from cloud_job.spark.job import JobSettings
from cloud_job.spark.state_log import AGAIN_S, BatchInput, Rules, StateLog
from edge_agent.algebra.frame import MAX_HORIZON_US, Serving
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Session, Sliding
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.config.in_force import known_definitions
from edge_agent.errors import ConfigError, PortError
from edge_agent.machines.downlink.epochs.epoch_frames import SECOND_LINE
from edge_agent.machines.downlink.epochs.renumbering import TextNumbers
from edge_agent.root.completeness import GroupView
from edge_agent.root.decision import ops_rows, root_state
from edge_agent.root.decision.root_state import RootLimits
from edge_agent.root.decision.session_tracker import OpenSessions, SessionDecisionView
from edge_agent.root.decision.work import Islands, SessionKey, Work
from edge_agent.wire import landing, snapshot
from tests.support.cloud.child_frames import JOURNAL, SECOND, START, Child, query, record, tick
from tests.support.cloud.list_jobs import Kept, ListJob
from tests.support.simulation.altered_fleets import AlteringFleet
from tests.support.simulation.faults import everything
from tests.support.simulation.fleets import GRACE, Fleet
from tests.support.simulation.marker_fleets import MarkedFleet
from tests.support.simulation.ordered_fleets import CountedFleet
from tests.support.simulation.root_host import RootHost
from tests.support.simulation.world import Chaos

CHILDREN = 4
DAY_US = 86_400 * SECOND
RULES = state_log.Rules(RootLimits(), 20 * SECOND)


def rounds(many: int, seed: int, quiet: range = range(0)) -> list[tuple[str, bytes]]:
    """Frames of some children, a file each round: not all speak each time, and some say what is no frame.

    quiet: rounds in which nothing comes but heartbeats; then all frames are good.
    """
    rng = np.random.default_rng(seed)
    children = [Child(f"gw-{n}", (query(),), keys=tuple(f"site=s{k}" for k in range(8))) for n in range(CHILDREN)]
    files = [("000000", tick(START) + b"".join(record(child, START, child.birth()) for child in children))]
    for n in range(1, many):
        now_us = START + n * SECOND
        records = [tick(now_us)]
        for child in children:
            if n in quiet:  # the frontier goes on
                records.append(record(child, now_us, child.beat(now_us)))
            elif rng.random() < 0.7 or child is children[0]:
                start = np.array([now_us - SECOND, now_us - SECOND])
                frame = child.rows(now_us, start, rng.normal(size=2), np.sort(rng.choice(8, 2, replace=False)))
                records.append(record(child, now_us, frame if quiet or rng.random() < 0.95 else b"noise"))
        files.append((f"{n:06}", b"".join(records)))
    return files


def run(folder: Path, files: list[tuple[str, bytes]], stops: set[int], **limits: int) -> Kept:
    """A batch a file; a new run begins after the batches of `stops`, with the files that no row names."""
    kept = Kept()
    job = begun(folder, kept, **limits)
    for n, file in enumerate(files):
        job.process([file])
        if n in stops:
            job = begun(folder, kept, **limits)
            left = [file for file in files[: n + 1] if file[0] not in names(kept)]
            job.process(left)
    return kept


def names(kept: Kept) -> list[str]:
    """The landing files of all rows, in order."""
    return [name for row in kept.batches for name in row["files"]]


def begun(folder: Path, kept: Kept, **limits: int) -> ListJob:
    job = ListJob(None, None, JobSettings(str(folder), 20 * SECOND, RootLimits(**limits)))  # type: ignore[arg-type]
    job.kept = kept
    job.open()
    return job


def said(kept: Kept) -> list[object]:
    """What was decided, without who decided it."""
    return [(row["number"], row["work"], row["frontiers"], row["effects"]) for row in kept.batches]


def whole(kept: Kept) -> int:
    return sum(not row["state"].startswith(state_log.MARK) for row in kept.batches)


@pytest.mark.parametrize("stored", [False, True])
def test_the_numbers_of_an_ended_epoch_are_forgotten_over_starts_and_its_late_frames_are_refused(
    tmp_path: Path,
    stored: bool,
) -> None:
    """protocol 8.4. stored: at a URI, where its rows stay in the tables, as does what `headwater audit` needs."""
    kept, asked = Kept(), query(window=Session(SECOND))
    job = begun(tmp_path, kept, horizon_us=10 * SECOND)
    first, then = (Child("gw", (asked,), epoch=epoch) for epoch in (1, 2))

    def batch(second: int, *sent: tuple[Child, bytes]) -> None:
        now_us = START + second * SECOND
        records = b"".join(record(child, now_us, payload) for child, payload in sent)
        job.process([(f"{second:06}", tick(now_us) + records)])

    def rows(child: Child, second: int) -> bytes:
        return child.rows(START + second * SECOND, np.array([START + (second - 1) * SECOND]), np.array([1.0]))

    birth, sent_before = first.birth(), rows(first, 1)
    batch(1, (first, birth), (first, sent_before))
    batch(2, (then, then.birth((1, first.seq - 1))), (then, rows(then, 2)))
    assert over(job.decider, job.state, job.parts) == []
    for second in (100, 101, 102):
        batch(second, (then, rows(then, second)))
    lines = over(job.decider, job.state, job.parts)
    assert lines == [EpochKey("gw", 1)]
    job.forget_epochs(lines, stored=stored)
    batch(103, (then, rows(then, 103)))
    for _ in range(2):
        assert [*job.decider.parent.dictionaries] == [*job.state.extent] == [EpochKey("gw", 2)]
        assert (lines[0] in job.state.applied) == stored
        assert over(job.decider, job.state, job.parts) == []
        job = begun(tmp_path, kept, horizon_us=10 * SECOND)
    batch(104, (first, sent_before), (first, rows(first, 1)), (then, rows(then, 104)))
    (refused,) = kept.works[-1].refused
    assert (refused.epoch, refused.seq, refused.reason) == (1, first.seq - 1, SECOND_LINE)
    assert [row["part"] for row in kept.messages if row["batch"] == job.state.number] == [0, 1]
    assert [gap["reason"] for gap in kept.works[-1].gaps] == [SECOND_LINE]


@settings(max_examples=20)
@given(st.integers(0, 2**16), st.sets(st.integers(0, 29), max_size=6))
def test_runs_that_end_anywhere_decide_as_one_that_never_ends(
    tmp_path_factory: pytest.TempPathFactory, seed: int, stops: set[int]
) -> None:
    folder, files = tmp_path_factory.mktemp("landing"), rounds(30, seed)
    through, broken = run(folder, files, set()), run(folder, files, stops)
    assert said(broken) == said(through)
    assert whole(through) < 20, "most rows hold what they were told"
    after = [state_log.recall(kept_rows(kept), RULES) for kept in (through, broken)]
    states = [decision_checkpoint.dumps(*each) for each in after]
    assert len(states[0]) > 1_000
    assert abs(len(states[0]) - len(states[1])) < 200, "the same but for names of runs"


def kept_rows(kept: Kept) -> list[dict[str, Any]]:
    last = kept.batches[-1]
    return kept.batches[state_log.base_of(last["state"], last["number"]) - kept.batches[0]["number"] :]


def test_rows_are_small_while_the_state_is_large_and_whole_again_before_they_are_larger(tmp_path: Path) -> None:
    kept = run(tmp_path, rounds(200, 1), set())
    sizes = [len(row["state"]) for row in kept.batches]
    at = [n for n, row in enumerate(kept.batches) if not row["state"].startswith(state_log.MARK)]
    for low, high in itertools.pairwise(at):
        assert sum(sizes[low + 1 : high]) <= sizes[low]
    assert len(at) < 100


def test_the_rules_of_the_run_that_decided_count_when_it_is_decided_again(tmp_path: Path) -> None:
    files = rounds(30, 3)
    kept = run(tmp_path, files[:20], set(), revise_every_us=0)
    before = said(kept)
    job = begun(tmp_path, kept, revise_every_us=3600 * SECOND)
    assert said(kept) == before
    assert job.state.limits.revise_every_us == 3600 * SECOND
    for file in files[20:]:
        job.process([file])
    assert begun(tmp_path, kept, revise_every_us=0).state.number == job.state.number


def test_each_row_says_the_horizon_of_the_root_that_wrote_it(tmp_path: Path) -> None:
    kept = run(tmp_path, rounds(20, 5), set(), horizon_us=90 * DAY_US)
    states = [row["state"] for row in kept.batches]
    assert len({state.startswith(state_log.MARK) for state in states}) == 2, "whole states, and inputs"
    assert {state_log.horizon_us(state) for state in states} == {90 * DAY_US}
    plain = snapshot.loads(zlib.decompress(states[0]))
    del plain["ledger"]["horizon"]
    assert state_log.horizon_us(zlib.compress(snapshot.dumps(plain))) == MAX_HORIZON_US, "of an older version"


def test_maintain_has_the_horizon_of_the_root_that_wrote_the_tables(tmp_path: Path) -> None:
    """Protocol 8.4: it took the default, and deleted rows of former gateways that a root with a longer one keeps."""
    kept = run(tmp_path, rounds(3, 5), set(), horizon_us=90 * DAY_US)
    job = begun(tmp_path, kept)
    rows = mock.Mock()
    rows.where.return_value.select.return_value.collect.return_value = [{"state": kept.batches[-1]["state"]}]
    job.place = mock.Mock(read=lambda _spark, _table: rows)
    maintain._take_horizon(job)
    rows.where.assert_called_once_with("number = 2")
    assert job.state.limits == RootLimits(horizon_us=90 * DAY_US)


@pytest.mark.parametrize(("before", "after"), [(None, 5), (5, None)])
def test_a_run_that_bounds_windows_decides_again_what_one_without_the_bound_decided_and_the_other_way(
    tmp_path: Path, before: int | None, after: int | None
) -> None:
    """protocol 6.5, 8.2: a version that has the bound starts after one that has it not."""
    kept, child = Kept(), Child("gw", (query(window=Sliding(6 * SECOND, SECOND)),))
    job = begun(tmp_path, kept, **({} if before is None else {"overlap": before}))
    files = [("000000", tick(START) + record(child, START, child.birth()))]
    for n in range(1, 20):
        now_us = START + n * SECOND
        frame = child.rows(now_us, np.array([now_us - SECOND]), np.array([1.0]))
        files.append((f"{n:06}", tick(now_us) + record(child, now_us, frame)))
    for file in files[:10]:
        job.process([file])
    assert len(state_log.recall(kept_rows(kept), job.settings.rules)[1].closed) == (before is None)
    assert whole(kept) < len(kept.batches)
    job = begun(tmp_path, kept, **({} if after is None else {"overlap": after}))
    for file in files[10:]:
        job.process([file])
    assert any(work.closing for work in kept.works[:10]) == (before is None)
    assert any(work.closing for work in kept.works[10:]) == (after is None)


def test_rows_that_are_not_decided_again_as_they_were_stop_the_start(tmp_path: Path) -> None:
    kept = run(tmp_path, rounds(6, 1), set())
    kept.batches[-1]["work"] = kept.batches[-2]["work"]
    with pytest.raises(PortError, match="deciding it again gives another result"):
        begun(tmp_path, kept)
    kept = run(tmp_path, rounds(70, 1), set())
    rows = kept_rows(kept)
    assert len(rows) > 3
    with pytest.raises(PortError, match="are missing between"):
        state_log.recall([rows[0], *rows[2:]], RULES)
    with pytest.raises(PortError, match=f"before {rows[1]['number']} are missing"):
        state_log.recall(rows[1:], RULES)


def test_a_start_decides_again_for_a_bounded_time() -> None:
    log, whole_state = StateLog(Rules(RootLimits(), 0)), bytes(10_000)

    def is_whole(number: int, took_s: float) -> bool:
        return log.take(number, BatchInput(), took_s, lambda: whole_state) is whole_state

    assert [is_whole(n, 0.4 * AGAIN_S) for n in range(7)] == [True, False, False] * 2 + [True]
    assert is_whole(7, 1.1 * AGAIN_S)


def test_rows_of_earlier_versions_are_whole(tmp_path: Path) -> None:
    """They are read as they are, and the first batch of this version writes a whole one."""
    kept = run(tmp_path, rounds(6, 1), {2})
    assert [row["state"].startswith(state_log.MARK) for row in kept.batches][0::3] == [False, False]


def test_a_state_that_cannot_be_written_any_more_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch goes on, and a start decides again from the last whole state."""

    def fails(*_: object) -> bytes:
        raise ValueError("not plain")

    files, kept = rounds(12, 1), Kept()
    job = begun(tmp_path, kept)
    for file in files[:2]:
        job.process([file])
    with monkeypatch.context() as broken:
        broken.setattr(decision_checkpoint, "dumps", fails)
        for file in files[2:]:
            job.process([file])
        assert begun(tmp_path, kept).state.number == job.state.number
    assert said(kept) == said(run(tmp_path, files, set()))


def test_a_quiet_time_writes_next_to_nothing_and_is_decided_again_as_it_was(tmp_path: Path) -> None:
    """protocol 8.2: what changes no table waits for a batch that changes one."""
    files = rounds(200, 2, range(20, 180))
    kept = Kept()
    job = begun(tmp_path, kept)
    for file in files:
        job.process([file])
        if names(kept)[-1:] == [file[0]]:
            recalled = state_log.recall(kept_rows(kept), RULES)
            assert decision_checkpoint.dumps(*recalled) == decision_checkpoint.dumps(job.decider, job.state, job.parts)
    assert names(kept) == [name for name, _ in files]
    assert [row["number"] for row in kept.batches] == list(range(len(kept.batches)))
    assert len(kept.batches) <= 40 + 160 // 30 + 1, "ops.nodes is written twice a minute while frontiers move"
    frontiers = [json.loads(row["frontiers"])[0]["frontier"] for row in kept.batches]
    assert frontiers[-1] - frontiers[20] >= 150 * SECOND


@settings(max_examples=10)
@given(st.sets(st.integers(0, 79), max_size=5))
def test_a_run_that_ends_in_a_quiet_time_takes_its_files_again(
    tmp_path_factory: pytest.TempPathFactory, stops: set[int]
) -> None:
    files = rounds(80, 4, range(5, 75))
    through, broken = (run(tmp_path_factory.mktemp("landing"), files, each) for each in (set[int](), stops))
    assert names(broken) == names(through) == [name for name, _ in files]
    assert broken.batches[-1]["frontiers"] == through.batches[-1]["frontiers"]
    stored = [[(row["node"], row["seq"], row["part"]) for row in kept.messages] for kept in (broken, through)]
    assert stored[0] == stored[1]


@pytest.mark.parametrize(("bound", "at_most"), [("IDLE_FILES", 7), ("IDLE_BYTES", 1), ("IDLE_S", -1.0)])
def test_what_waits_in_a_quiet_time_has_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, at_most: float
) -> None:
    monkeypatch.setattr(read_files, bound, at_most)
    kept = run(tmp_path, rounds(60, 2, range(2, 60)), set())
    longest = max(len(row["files"]) for row in kept.batches)
    assert longest == {"IDLE_FILES": 8, "IDLE_BYTES": 2, "IDLE_S": 1}[bound]


def test_an_orderly_end_writes_what_waits(tmp_path: Path) -> None:
    kept, files = Kept(), rounds(12, 2, range(2, 12))
    job = begun(tmp_path, kept)
    for file in files:
        job.process([file])
    assert len(names(kept)) < len(files)
    assert all(job.took(name) for name, _ in files[len(names(kept)) :])
    job.finish()
    assert names(kept) == [name for name, _ in files]


def test_an_epoch_that_was_forgotten_is_forgotten_where_it_is_decided_again(tmp_path: Path) -> None:
    files, line = rounds(1, 1), EpochKey("gw-0", 1)
    kept = Kept()
    job = begun(tmp_path, kept)
    job.process(files[:1])
    then = Child("gw-0", (query(),), epoch=2)
    job.process([("000000-2", tick(START) + record(then, START, then.birth((1, 0))))])
    assert line in job.decider.parent.dictionaries
    job.forget_epochs([line])
    other = begun(tmp_path, kept)
    assert line in other.decider.parent.dictionaries, "no row says so"
    frame = then.rows(START + SECOND, np.array([START]), np.array([1.0]))
    job.process([("000001", tick(START + SECOND) + record(then, START, frame))])
    assert kept.batches[-1]["state"].startswith(state_log.MARK)
    again = begun(tmp_path, kept)
    assert again.decider.parent.dictionaries.keys() == job.decider.parent.dictionaries.keys()
    assert line not in again.decider.parent.dictionaries
    assert decision_checkpoint.dumps(*whole_of(again)) == decision_checkpoint.dumps(*whole_of(job))


def whole_of(job: ListJob) -> Any:
    return job.decider, job.state, job.parts


FLEETS: dict[str, Callable[[int, Chaos], Fleet]] = {
    "sessions": lambda seed, chaos: Fleet(seed, chaos, sessions=True),
    "counted": CountedFleet,
    "marked": MarkedFleet,
    "altering": lambda seed, chaos: AlteringFleet(seed, chaos, ahead=False, sessions=bool(seed % 2)),
}


@pytest.mark.parametrize(("kind", "seed"), [(kind, 1) for kind in FLEETS])
def test_every_kind_of_query_is_decided_again_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    """A start may follow any batch, and any row may be the last with a whole state: here every fifth is."""
    monkeypatch.setattr(state_log.StateLog, "take", rarely_whole)
    monkeypatch.setattr(state_log, "_same", lambda work, stored: work.dumps() == stored)
    fleet = FLEETS[kind](seed, everything(Random(seed)))
    fleet.run()
    host = fleet.world.hosts["root"]
    assert isinstance(host, RootHost)
    members = tuple(sorted(host.root.decider.parent.children.named))
    job = ListJob(None, None, JobSettings(str(tmp_path), GRACE, RootLimits(), members))  # type: ignore[arg-type]
    job.kept = Kept()
    job.open()
    for n, (_, content) in enumerate(host.landed):
        job.process([(f"{n:06}", content)])
    rows = job.kept.batches
    bases = [n for n, row in enumerate(rows) if not row["state"].startswith(state_log.MARK)]
    assert len(rows) > 12
    for low, high in itertools.pairwise([*bases, len(rows)]):
        state_log.recall(rows[low:high], job.settings.rules)


def rarely_whole(
    log: state_log.StateLog, number: int, given: BatchInput, took_s: float, whole: Callable[[], bytes], **_: bool
) -> bytes:
    if log.base >= 0 and number % 5:
        return log._encode(given)
    log.base = number
    return whole()


def test_a_revision_that_is_not_published_is_reported_once_wherever_it_is_decided_again(tmp_path: Path) -> None:
    """protocol 6.5: ten seconds after a child first served it, also in a root that was started in between."""
    good, other = Child("good", (query(),)), Child("other", (query(revision=2),))
    births = [record(child, START, child.birth()) for child in (good, other)]
    known = [("", "q", 1, canonical_query(query()))]
    head = landing.encode_tick(START, JOURNAL, births, published=known, connected=True)
    kept = Kept()
    job = begun(tmp_path, kept)
    job.process([("000000", head + b"".join(births))])
    for n in range(1, 20):
        now_us = START + n * SECOND
        rows = good.rows(now_us, np.array([now_us - SECOND]), np.array([1.0]))
        job.process(
            [(f"{n:06}", tick(now_us) + record(good, now_us, rows) + record(other, now_us, other.beat(now_us)))]
        )
        started = begun(tmp_path, kept)
        assert decision_checkpoint.dumps(*whole_of(started)) == decision_checkpoint.dumps(*whole_of(job))
        if n % 4 == 0:
            job.finish()
            job = begun(tmp_path, kept)
    reports = [gap for work in kept.works for gap in work.gaps if "not published" in str(gap["reason"])]
    assert len(reports) == 1


def test_a_definition_that_could_not_be_read_is_taken_by_a_root_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names a function of a package that was not installed, or is of a newer version. Its rows wait in bronze."""

    def cannot(text: str) -> Query:
        raise ConfigError("unknown function")

    child, kept = Child("a", (query(),)), Kept()

    def seconds(job: ListJob, which: range) -> None:
        for n in which:
            now_us = START + n * SECOND
            frame = child.rows(now_us, np.array([now_us - SECOND]), np.array([1.0]))
            job.process([(f"{n:06}", tick(now_us) + record(child, now_us, frame))])

    with monkeypatch.context() as old:
        for module in (ops_rows, root_state, known_definitions):
            old.setattr(module, "query_of", cannot)
        job = begun(tmp_path, kept)
        job.process([("000000", tick(START) + record(child, START, child.birth()))])
        seconds(job, range(1, 4))
        job.finish()
    assert not any(work.closing for work in kept.works)
    job = begun(tmp_path, kept)
    seconds(job, range(4, 8))
    closing = [span for work in kept.works for span in work.closing]
    assert {(span.query, span.revision) for span in closing} == {("q", 1)}
    assert min(span.low_us for span in closing) <= START
    rows = [row for work in kept.works for row in work.queries]
    assert [(row["query"], row["revision"]) for row in rows] == [("", -1), ("q", 1)]
    assert decision_checkpoint.dumps(*whole_of(begun(tmp_path, kept))) == decision_checkpoint.dumps(*whole_of(job))
    job.finish()
    seconds(begun(tmp_path, kept), range(8, 10))
    assert sum(len(work.queries) for work in kept.works) == 2, "once"


def test_sessions_with_bounds_of_their_own_stand_in_the_order_of_their_keys() -> None:
    """Keys get their numbers in the order in which they come: another one after a start."""
    sessions = Query("s", 1, "s", Session(SECOND), (Aggregate("sum", "sum"),))
    serving, leaves = Serving("s", 1), LeafTimes.of({"a": 100 * SECOND})
    hints = {"north": START, "east": START + 1}
    view = GroupView(START + 100 * SECOND, leaves, {sessions.key: serving}, {}, hints, bounds=leaves)
    now = SessionDecisionView(sessions.group, view, serving, {}, {}, (), 0, due=True)
    for order in itertools.permutations(("north", "east", "west")):
        names, track = TextNumbers(order), OpenSessions()
        starts = np.full(3, START)
        track.add([(names.of(order), starts, starts + 1)], names, sessions.group.cut, 0, 0)
        found = track.step(now, names)
        assert found is not None
        assert [*found.keyed] == ["east", "north"]


def test_the_order_in_which_a_row_lists_keys_of_sessions_does_not_count(tmp_path: Path) -> None:
    """Roots of earlier versions stored it as it came."""
    key = [SessionKey(text, START, START) for text in ("a", "b")]
    islands = Islands("q", 1, 0, 1, 1, (), 0, 0, None, True, None, None, None, None, 0, "", False, (*key,), ())
    other = replace(islands, keys=(*reversed(key),))
    assert state_log._same(Work(1, islands=(islands,)), Work(1, islands=(other,)).dumps())
    assert not state_log._same(Work(1, islands=(islands,)), Work(1, islands=(replace(other, bound_us=1),)).dumps())


ELSEWHERE = """
import sys
from pathlib import Path
from tests.cloud.test_state_log import rounds, run
print([row["work"].hex() for row in run(Path(sys.argv[1]), rounds(30, 5), set()).batches])
"""


def test_another_process_decides_the_same_bytes(tmp_path: Path) -> None:
    """Texts have other hashes there: no order may depend on them."""
    found = {
        subprocess.run(
            [sys.executable, "-c", ELSEWHERE, str(tmp_path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
    assert len(found.pop()) > 1_000
