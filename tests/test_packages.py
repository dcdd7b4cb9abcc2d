"""The keeper of other packages' functions: what raises, is slow or hangs costs its own answers and is told once."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from edge_agent import packages
from edge_agent.algebra.plugin_calls import TRIAL, Call, FailedError
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.packages import IN_A_ROW, LEFT_OUT, MOST, NEVER, NOTE, NOTE_BYTES, PluginGuard, users

TOP = Path(__file__).resolve().parents[1]
LIFT = Call("plant", "plant 1.0", "load", "lift", 1000)
OTHER = Call("plant", "plant 1.0", "other", "lift", 1000)


class Clock:
    """Seconds that pass only when a function says so."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def taking(self, seconds: float) -> Callable[[], int]:
        def work() -> int:
            self.now_s += seconds
            return 42

        return work


def raising(text: str) -> Callable[[], int]:
    def work() -> int:
        raise ValueError(text)

    return work


@pytest.fixture
def armed() -> Iterator[Callable[[PluginGuard], PluginGuard]]:
    """Lets the alarm of a keeper ring, until the test ends; whatever else uses that signal waits."""
    before, timer = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 0)

    def arm(keeper: PluginGuard) -> PluginGuard:
        keeper.arm()
        return keeper

    yield arm
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, *timer)


def test_what_a_function_raises_is_told_once_however_often_it_does() -> None:
    keeper = PluginGuard(5.0)
    for n in range(1000):
        with pytest.raises(FailedError, match=f"ValueError: reading {n}"):
            keeper.call(LIFT, raising(f"reading {n}"))
    (failure,) = keeper.news()
    assert failure.text == "lift of load (package plant 1.0): ValueError: reading 0"
    assert "all else goes on" in failure.hint
    assert not keeper.news()
    assert keeper.why("plant", "load") == "ValueError: reading 999"
    assert keeper.call(OTHER, lambda: 7) == 7


def test_what_fails_in_a_trial_is_told_only_when_somebody_asks_for_it() -> None:
    keeper = PluginGuard(5.0)
    with pytest.raises(FailedError):
        keeper.call(replace(LIFT, step=TRIAL), raising("no labels here"))
    assert not keeper.news()
    with pytest.raises(FailedError):
        keeper.call(LIFT, raising("no labels here"))
    assert len(keeper.news()) == 1


def test_on_a_node_nothing_is_tried_before_what_never_ends_would_be_ended(tmp_path: Path) -> None:
    node, command = PluginGuard(5.0, 0.25), PluginGuard(60.0)
    assert not node.ready
    assert command.ready
    node.keep(tmp_path, {})
    assert node.ready


def test_so_many_failures_are_remembered_and_no_more() -> None:
    keeper = PluginGuard(5.0)
    for n in range(2 * MOST):
        with pytest.raises(FailedError):
            keeper.call(Call("plant", "plant 1.0", f"f{n}", "lift", 1), raising("no"))
    assert len(keeper.news()) == len(keeper.failures()) == MOST


def test_a_function_that_is_slow_several_times_in_a_row_is_left_out_and_no_other() -> None:
    clock = Clock()
    keeper = PluginGuard(5.0, 0.25, clock)
    for _ in range(IN_A_ROW - 1):
        assert keeper.call(LIFT, clock.taking(0.3)) == 42
        assert keeper.call(replace(LIFT, step="combine"), clock.taking(0.1)) == 42
    with pytest.raises(FailedError, match=r"took 0.3 s on 1000 rows, 3 calls in a row above 0.25 s; left out"):
        keeper.call(LIFT, clock.taking(0.3))
    with pytest.raises(FailedError, match="left out"):
        keeper.call(LIFT, lambda: pytest.fail("it is not called any more"))
    with pytest.raises(FailedError, match="left out"):
        keeper.call(replace(LIFT, step="lower"), lambda: pytest.fail("nor in any other step"))
    (failure,) = keeper.news()
    assert failure.off
    assert "a restart asks it again" in failure.hint
    assert keeper.call(OTHER, clock.taking(0.3)) == 42


def test_a_function_that_is_slow_now_and_then_goes_on_for_ever() -> None:
    clock = Clock()
    keeper = PluginGuard(5.0, 0.25, clock)
    for seconds in [0.3, 0.3, 0.1] * 20:
        assert keeper.call(LIFT, clock.taking(seconds)) == 42
    assert not keeper.news()


def test_at_the_root_a_function_may_take_its_time() -> None:
    clock = Clock()
    keeper = PluginGuard(60.0, None, clock)
    for _ in range(20):
        assert keeper.call(LIFT, clock.taking(30.0)) == 42
    assert not keeper.news()


def stubborn() -> int:
    """A loop that holds on to what is raised in it, once."""
    try:
        while True:
            pass
    except BaseException:
        while True:
            pass


@pytest.mark.parametrize("work", [stubborn, lambda: time.sleep(60)], ids=["loops", "sleeps"])
def test_a_function_that_does_not_end_is_ended_by_the_alarm(
    armed: Callable[[PluginGuard], PluginGuard], work: Callable[[], Any]
) -> None:
    keeper = armed(PluginGuard(0.2))
    began_s = time.monotonic()
    with pytest.raises(FailedError, match=r"took more than 0.2 s on 1000 rows; left out"):
        keeper.call(LIFT, work)
    assert time.monotonic() - began_s < 10
    assert [failure.off for failure in keeper.news()] == [True]
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    with pytest.raises(FailedError, match="left out"):
        keeper.call(LIFT, lambda: 1)


def test_a_function_that_ends_the_process_does_not() -> None:
    with pytest.raises(FailedError, match="SystemExit: 3"):
        PluginGuard(5.0).call(LIFT, lambda: sys.exit(3))


HANGS = """
import itertools, pathlib, sys
from edge_agent import packages
from edge_agent.algebra.plugin_calls import Call, FailedError
packages.STUCK_S = 0.2
keeper = packages.PluginGuard(0.2)
keeper.arm()
keeper.keep(pathlib.Path(sys.argv[1]), {"plant": sys.argv[2]})
try:
    print(keeper.call(Call("plant", sys.argv[2], "load", "lift", 9), lambda: sum(itertools.repeat(1))))
except FailedError as err:
    print(err)
keeper.rest()
"""


def run(folder: Path, package: str) -> subprocess.CompletedProcess[str]:
    """A process that calls a function which loops in compiled code, where no alarm is heard."""
    command = [sys.executable, "-c", HANGS, str(folder), package]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=TOP)


def test_what_no_alarm_ends_ends_the_process_and_is_left_out_by_the_next_one(tmp_path: Path) -> None:
    first = run(tmp_path, "plant 1.0")
    assert first.returncode == 1
    assert not first.stdout
    for _ in range(2):  # the next one, and those after it
        after = run(tmp_path, "plant 1.0")
        assert after.returncode == 0, after.stderr
        assert after.stdout.strip() == NEVER
    kept = json.loads((tmp_path / LEFT_OUT).read_text())
    assert [(one["package"], one["name"], one["why"]) for one in kept] == [("plant 1.0", "load", NEVER)]


def test_another_version_of_the_package_is_asked_again(tmp_path: Path) -> None:
    assert run(tmp_path, "plant 1.0").returncode == 1
    keeper = PluginGuard(5.0)
    keeper.keep(tmp_path, {"plant": "plant 1.1"})
    assert not keeper.news()
    assert keeper.call(Call("plant", "plant 1.1", "load", "lift", 9), lambda: 3) == 3
    keeper.rest()
    assert not (tmp_path / LEFT_OUT).exists()


def test_a_process_that_is_killed_in_a_call_that_would_have_ended_blames_nobody(tmp_path: Path) -> None:
    """A power cut says nothing of the function that ran then."""
    PluginGuard(5.0).keep(tmp_path, {})
    note = json.dumps([{"point": "plant", "package": "plant 1.0", "name": "load", "step": "lift"}]).encode()
    (tmp_path / NOTE).write_bytes(note.ljust(NOTE_BYTES, b"\0"))
    keeper = PluginGuard(5.0)
    keeper.keep(tmp_path, {"plant": "plant 1.0"})
    assert not keeper.news()
    assert not (tmp_path / LEFT_OUT).exists()


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b'[{"name": 1, "what": 2}]', b"\xff" * 2000])
def test_a_damaged_file_of_what_is_left_out_stops_nothing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / LEFT_OUT).write_bytes(text)
    (tmp_path / NOTE).write_bytes(text * 2)
    keeper = PluginGuard(5.0)
    keeper.keep(tmp_path, {"plant": "plant 1.0"})
    assert keeper.call(LIFT, lambda: 5) == 5
    keeper.rest()
    assert not keeper.news()


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    keeper = PluginGuard(5.0)
    keeper.keep(tmp_path / "missing", {})
    assert keeper.call(LIFT, lambda: 5) == 5


def test_the_queries_that_ask_for_a_component_are_named() -> None:
    def query(name: str, fn: str) -> Query:
        return Query(name, 1, "boiler", Tumbling(1_000_000), (Aggregate(fn, fn),))

    asked = [query("a", "stddev"), query("b", "max"), query("c", "avg"), query("d", "kurtosis")]
    assert users("m2", asked) == ["a", "d"]
    assert users("avg", asked) == ["c"]
    assert users("tumbling", asked) == ["a", "b", "c", "d"]
    assert users("nothing", asked) == []


def test_what_is_installed_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def none(group: str) -> list[EntryPoint]:
        asked.append(group)
        return []

    monkeypatch.setattr(packages, "_keepers", [])
    monkeypatch.setattr(packages, "installed", none)
    assert packages.install() is packages.install(edge=True)
    assert asked == list(packages.GROUPS)


def test_a_call_within_a_call_belongs_to_the_outer_one(armed: Callable[[PluginGuard], PluginGuard]) -> None:
    keeper = armed(PluginGuard(0.3))

    def outer() -> int:
        keeper.call(OTHER, lambda: 1)
        return sum(1 for _ in itertools.repeat(1))

    with pytest.raises(FailedError, match=r"took more than 0\.3 s"):
        keeper.call(LIFT, outer)
    assert keeper.call(OTHER, lambda: 2) == 2
