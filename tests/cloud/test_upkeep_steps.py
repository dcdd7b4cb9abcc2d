"""When the steps of upkeep are due, and what each does with what it finds (no Spark: tables and rows are stand-ins)."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_job.delta import log_files, retention, upkeep
from cloud_job.delta.retention import Kept
from cloud_job.delta.tables import MESSAGES, RESULTS, TABLES
from cloud_job.delta.upkeep import (
    LATER,
    MORE,
    SHARE,
    VERSIONS,
    Cleaning,
    Compaction,
    Expiry,
    Figures,
    Upkeep,
    UpkeepStep,
    WhenWritten,
    steps_of,
)
from edge_agent.algebra.query.key import EpochKey

SECOND, HOUR_US, DAY_US = 1_000_000, 3_600_000_000, 86_400_000_000


class Root:
    """A run of the job, as far as upkeep looks at it. did: what it was asked for."""

    spark = None

    def __init__(self, *, guarded: bool = False) -> None:
        self.did: list[Any] = []
        self.place: Any = SimpleNamespace(guarded=guarded, path=lambda table: f"/nowhere/{table.name}")
        self.state: Any = SimpleNamespace(number=1, owners=[(0, "a")])
        self.needed_from = 5
        self.decider = self.parts = None

    def committed(self, step: str) -> None:
        self.did.append(("committed", step))

    def forget_epochs(self, lines: Any, *, stored: bool = False) -> None:
        self.did.append(("epochs", list(lines), stored))

    def forget_runs(self, first: int) -> None:
        self.did.append(("runs", first))


class Clocked:
    """Upkeep with a clock of its own; each step takes took_s."""

    def __init__(self, *names: str, every_s: float = 10.0) -> None:
        self.now_s, self.took_s, self.ran = 100.0, 1.0, list[str]()
        self.answers: dict[str, Figures | None] = {}
        self.root: Any = Root()
        self.steps = [UpkeepStep(name, every_s, self.act(name)) for name in names]
        self.upkeep = Upkeep(Kept(1, 1), int(every_s * SECOND), lambda: self.now_s, self.steps)

    def act(self, name: str) -> Callable[[Any], Figures | None]:
        def act(_root: Any) -> Figures | None:
            self.ran.append(name)
            self.now_s += self.took_s
            return self.answers.get(name)

        return act

    def until(self, at_s: float) -> list[tuple[float, str]]:
        """When which step ran."""
        found = []
        while self.now_s < at_s:
            before, many = self.now_s, len(self.ran)
            self.upkeep.between(self.root)
            found += [(before - 100, name) for name in self.ran[many:]]
            self.now_s = max(self.now_s, before + 0.5)
        return found


def test_steps_are_spread_over_the_interval_and_leave_batches_four_fifths_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "sample", lambda steps, _many: list(steps))
    clocked = Clocked("a", "b")
    assert [step.due_s for step in clocked.steps] == [105.0, 110.0]
    assert clocked.until(130) == [(5.0, "a"), (10.0, "b"), (15.0, "a"), (20.0, "b"), (25.0, "a")]
    assert clocked.root.did == [("committed", "upkeep")] * 5
    assert (clocked.upkeep.done, clocked.upkeep.failed) == (5, 0)


def test_of_several_steps_that_wait_the_one_due_first_runs_and_then_there_is_a_pause() -> None:
    clocked = Clocked("a", "b", "c")
    for step, due_s in zip(clocked.steps, (103.0, 101.0, 102.0), strict=True):
        step.due_s = due_s
    clocked.now_s, clocked.took_s = 104.0, 2.0
    pause_s = 2.0 + SHARE * 2.0
    assert clocked.until(127) == [(4.0, "b"), (4.0 + pause_s, "c"), (4.0 + 2 * pause_s, "a")]


def test_a_step_that_is_not_finished_goes_on_after_the_pause_or_after_another_batch() -> None:
    clocked = Clocked("a", every_s=1000.0)
    (step,) = clocked.steps
    step.due_s = 100.0
    clocked.answers["a"] = {MORE: True}
    assert clocked.until(112) == [(0.0, "a"), (5.0, "a"), (10.0, "a")]
    clocked.answers["a"] = {LATER: True}
    assert [name for _, name in clocked.until(140)] == ["a"]
    assert step.after == clocked.root.state.number
    clocked.root.state.number += 1
    clocked.answers["a"] = {"rows": 7}
    assert [name for _, name in clocked.until(160)] == ["a"]
    assert step.after == -1
    assert step.due_s > 1_000, "an interval later"
    clocked.answers["a"] = None
    step.due_s = 0.0
    assert [name for _, name in clocked.until(180)] == ["a"]


@pytest.mark.parametrize(
    ("kept", "every_us", "hourly_s", "daily_s"),
    [
        (Kept(DAY_US, 365 * DAY_US), 60 * SECOND, 3600.0, 86_400.0),
        (Kept(HOUR_US, 32 * HOUR_US), 60 * SECOND, 900.0, 3600.0),
        (Kept(SECOND, SECOND), 60 * SECOND, 60.0, 60.0),
        (Kept(365 * DAY_US, 365 * DAY_US), 2 * DAY_US, 172_800.0, 172_800.0),
    ],
)
def test_steps_that_delete_run_as_seldom_as_what_they_delete_allows(
    kept: Kept, every_us: int, hourly_s: float, daily_s: float
) -> None:
    steps = {step.name: step.every_s for step in steps_of(kept, every_us)}
    hourly = {"expire", "states", "positions", *(f"clean {table.name}" for table in TABLES)}
    daily, often = {"batches", "messages", "results"}, {f"compact {table.name}" for table in TABLES}
    assert steps == {
        **dict.fromkeys(hourly, hourly_s),
        **dict.fromkeys(daily, daily_s),
        **dict.fromkeys(often, every_us / SECOND),
    }


def test_the_steps_call_what_they_are_named_for(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []
    for name in ("states", "batches", "ops", "results"):
        monkeypatch.setattr(retention, name, lambda _root, name=name, **_: did.append(name))
    for step in steps_of(Kept(1, 1), SECOND):
        if step.name in ("states", "batches", "messages", "results"):
            assert step.act(Root()) is None  # type: ignore[arg-type]
    assert did == ["states", "batches", "ops", "results"]


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The newest version of each table."""
    found = {table.name: 100 for table in TABLES}
    monkeypatch.setattr(upkeep, "version_of", lambda _spark, _place, table: found[table.name])
    return found


def test_an_action_is_repeated_when_its_table_has_been_written_to_by_others(versions: dict[str, int]) -> None:
    did: list[int] = []

    def act(_root: Any) -> None:
        did.append(versions[MESSAGES.name])
        versions[MESSAGES.name] += 1  # its own commit

    step, root = WhenWritten(MESSAGES, act), Root()
    for _ in range(2):
        assert step(root) is None  # type: ignore[arg-type]
    versions[MESSAGES.name] += 1
    for _ in range(2):
        step(root)  # type: ignore[arg-type]
    assert did == [100, 102]


def test_a_table_is_compacted_after_some_commits_and_again_until_it_is_whole(
    versions: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[tuple[int, int, bool]] = []
    did: list[Any] = []

    def compact(_spark: Any, _place: Any, _table: Any, longest_s: float) -> tuple[int, int, bool]:
        did.append(longest_s)
        return answers.pop(0)

    monkeypatch.setattr(upkeep, "tune", lambda *_: did.append("tuned"))
    monkeypatch.setattr(upkeep, "compact", compact)
    step, root = Compaction(RESULTS, Kept(1, 1), longest_s=3.0), Root()

    def ran(*found: tuple[int, int, bool]) -> Figures | None:
        answers[:] = found
        done: Figures | None = step(root)  # type: ignore[arg-type]
        assert not answers
        return done

    assert ran((9, 4, False)) == {"files": 9, "files_after": 4, MORE: True}
    assert ran((4, 4, False)) == {"files": 4, "files_after": 4, MORE: True}
    assert ran((4, 1, True)) == {"files": 4, "files_after": 1}
    assert did == ["tuned", 3.0, 3.0, 3.0]
    versions[RESULTS.name] += VERSIONS - 1
    assert ran() is None
    versions[RESULTS.name] += 1
    assert ran((7, 7, True)) is None
    assert ran() is None, "the version is noted though nothing changed"
    assert did == ["tuned", *[3.0] * 4]


@pytest.mark.parametrize("guarded", [False, True])
def test_a_table_is_cleaned_until_no_older_version_can_be_left(
    guarded: bool, versions: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, did, answers = [1000.0], list[Any](), list[tuple[int, str]]()
    monkeypatch.setattr(upkeep, "tune", lambda *_: did.append("tuned"))

    def clean(_root: Any, _table: Any, _kept: Kept, after: str, _most: int) -> tuple[int, str]:
        did.append(after)
        found = answers.pop(0)
        versions[RESULTS.name] += found[0] == 2  # as VACUUM on a cluster, which adds commits
        return found

    monkeypatch.setattr(upkeep, "clean", clean)
    step, root = Cleaning(RESULTS, Kept(10 * SECOND, 1), lambda: now[0]), Root(guarded=guarded)

    def ran(*found: tuple[int, str]) -> Figures | None:
        answers[:] = found
        done: Figures | None = step(root)  # type: ignore[arg-type]
        assert not answers, "it ran"
        return done

    assert ran((0, "m")) == {"commits": 0, MORE: True}
    now[0] += 10.1
    assert ran((3, "")) == {"commits": 3}
    assert ran((0, "")) is None, "files that the first part looked at may have become too old"
    assert ran() is None, "all is older than what is kept"
    versions[RESULTS.name] += 1
    assert ran((0, "")) is None
    now[0] += 10.0
    assert ran((0, "")) is None, "the version before is just not too old"
    now[0] += 0.1
    assert ran((log_files.MOST, "")) == {"commits": log_files.MOST}, "there may be more commits"
    assert ran((0, "p")) == {"commits": 0, MORE: True}, "files are left that nobody has looked at"
    assert ran((0, "")) is None
    assert ran((2, "")) == {"commits": 2}
    assert ran() is None, "its own commit is no new version"
    tuned = ["tuned"] if guarded else []
    assert did == [*tuned, "", "m", "", "", "", "", "", "p", ""]


class Expiring:
    """What is of no use any more, and what is deleted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.every: list[tuple[str, int, int, int]] = []
        self.over: list[EpochKey] = []
        self.deleted: list[tuple[list[Any], int]] = []
        self.rows, self.first = 5, 3
        monkeypatch.setattr(upkeep, "expiring", lambda *_: list(self.every))
        monkeypatch.setattr(upkeep, "over", lambda *_: list(self.over))
        monkeypatch.setattr(retention, "expire", self.expire)
        monkeypatch.setattr(retention, "without_rows", lambda _root, lines: [x for x in lines if x.epoch != 9])
        monkeypatch.setattr(retention, "first_batch", lambda _root: self.first)
        monkeypatch.setattr(upkeep, "MOST_EXPIRING", 2)

    def expire(self, _root: Any, found: list[Any], number: int) -> int:
        self.deleted.append((found, number))
        return self.rows


def test_readings_are_deleted_a_batch_after_they_were_found_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 8.4: a start carries out the last decision again, which may need them."""
    found, step, root = Expiring(monkeypatch), Expiry(), Root()
    act: Callable[[], Figures | None] = lambda: step(root)  # type: ignore[arg-type]  # noqa: E731
    found.every = [("gw", 1, 0, 50), ("gw", 1, 1, 60), ("gw", 2, 0, 70)]
    assert act() == {LATER: True}
    assert act() == {LATER: True}
    assert found.deleted == [], "no batch has been decided since"
    root.state.number = 2
    assert act() == {"rows": 5, MORE: True}
    assert act() == {"rows": 5, "epochs": 0}
    assert found.deleted == [(found.every[:2], 1), (found.every[2:], 1)]
    assert act() is None, "their rows are gone up to these times"
    found.every = [("gw", 1, 0, 50), ("gw", 2, 0, 71)]
    root.state.number = 3
    assert act() == {LATER: True}
    assert step.done == {("gw", 1, 0): 50, ("gw", 2, 0): 70}, "of a plan that is not known any more nothing stays"
    root.state.number, found.rows = 4, 0
    found.over = [EpochKey("gw", 7), EpochKey("gw", 9), EpochKey("gw", 8)]
    root.did.clear()
    assert act() == {"rows": 0, "epochs": 1}
    assert found.deleted[-1] == ([("gw", 2, 0, 71)], 3)
    assert root.did == [("epochs", [EpochKey("gw", 7)], False)], "those without rows, of the first few"


def test_runs_without_rows_are_forgotten_if_no_start_needs_their_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    found, step, root = Expiring(monkeypatch), Expiry(), Root()
    assert step(root) is None  # type: ignore[arg-type]
    assert ("runs", 3) not in root.did, "there is only one"
    root.state.owners.append((4, "b"))
    step(root)  # type: ignore[arg-type]
    found.first = 7
    step(root)  # type: ignore[arg-type]
    assert [each for each in root.did if each[0] == "runs"] == [("runs", 3), ("runs", 5)]


def test_where_another_machine_may_read_the_rows_only_the_numbers_of_epochs_go(monkeypatch: pytest.MonkeyPatch) -> None:
    found, step, root = Expiring(monkeypatch), Expiry(), Root(guarded=True)
    found.every, found.over = [("gw", 1, 0, 50)], [EpochKey("gw", n) for n in range(3)]
    for number in (1, 2, 3):
        root.state.number = number
        assert step(root) == {"epochs": 2}  # type: ignore[arg-type]
    found.over = []
    assert step(root) is None  # type: ignore[arg-type]
    assert found.deleted == []
    assert root.did == [*[("epochs", [EpochKey("gw", 0), EpochKey("gw", 1)], True)] * 3, ("epochs", [], True)]
