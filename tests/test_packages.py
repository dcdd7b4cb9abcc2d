"""The loader of entry points, and the guard of packages' functions: a failure costs its own results, reported once."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from edge_agent import packages
from edge_agent.algebra import windows
from edge_agent.algebra.aggregates import Family
from edge_agent.algebra.plugin_calls import IN_A_ROW, PluginGuard, disagreement, error_text
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.packages import install, load, users


class Clock:
    """Seconds that pass only in functions of `taking`."""

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


def test_what_a_function_raises_is_counted_and_reported_once() -> None:
    guard = PluginGuard("plant 1.0")
    for n in range(1000):
        assert guard.call("load", "lift", raising(f"reading {n}")) is None
    assert guard.call("other", "lift", lambda: 7) == 7
    (failure,) = guard.news()
    assert failure.text == "lift of load (package plant 1.0): ValueError: reading 0"
    assert failure.hint == "its results are null where it fails; correct or remove the package"
    assert not guard.news()
    assert guard.why == {"load": "ValueError: reading 999"}
    assert guard.failed == {("load", "lift", "ValueError"): 1000}


def test_each_step_and_type_of_exception_is_reported() -> None:
    guard = PluginGuard("plant 1.0")
    guard.call("load", "lift", raising("no"))
    guard.call("load", "combine", raising("no"))
    guard.call("load", "lift", lambda: sys.exit(3))  # it cannot end the process
    assert [(each.step, each.why) for each in guard.news()] == [
        ("lift", "ValueError: no"),
        ("combine", "ValueError: no"),
        ("lift", "SystemExit: 3"),
    ]


def test_a_function_that_is_slow_several_times_in_a_row_is_switched_off_and_no_other() -> None:
    clock = Clock()
    guard = PluginGuard("plant 1.0", 0.25, clock)
    for _ in range(IN_A_ROW - 1):
        assert guard.call("load", "lift", clock.taking(0.3)) == 42
        assert guard.call("load", "combine", clock.taking(0.1)) == 42
    assert guard.call("load", "lift", clock.taking(0.3)) is None
    for step in ("lift", "lower"):
        assert guard.call("load", step, lambda: pytest.fail("called after it was switched off")) is None
    (failure,) = guard.news()
    assert failure.off
    assert failure.why == "took 0.3 s (limit 0.25 s), 3 calls in a row; switched off"
    assert failure.hint == "its results are null until restart; make it faster or remove it from the queries"
    assert guard.call("other", "lift", clock.taking(0.3)) == 42


def test_a_function_that_is_slow_now_and_then_goes_on_for_ever() -> None:
    clock = Clock()
    guard = PluginGuard("plant 1.0", 0.25, clock)
    for seconds in [0.3, 0.3, 0.1] * 20:
        assert guard.call("load", "lift", clock.taking(seconds)) == 42
    assert not guard.news()


def test_at_the_root_a_function_may_take_its_time() -> None:
    clock = Clock()
    guard = PluginGuard("plant 1.0", None, clock)
    for _ in range(20):
        assert guard.call("load", "lift", clock.taking(30.0)) == 42
    assert not guard.news()


def test_a_call_inside_a_call_belongs_to_the_outer_one() -> None:
    guard = PluginGuard("plant 1.0")
    assert guard.call("load", "lift", lambda: guard.call("other", "lift", raising("no"))) is None
    assert [failure.name for failure in guard.news()] == ["load"]
    assert guard.call("other", "lift", lambda: 2) == 2


def test_the_first_disagreement_is_shown_and_floats_may_differ_a_little() -> None:
    assert not disagreement({"one": [1, 2, 3], "two": [1, 2, 3]})
    assert disagreement({"one": [1, 2, 3], "two": [1, 2]}) == "one give [3], two give []"
    assert not disagreement({"one": [1.0], "two": [1.0 + 1e-9]}, 1e-6)
    assert disagreement({"one": [1], "two": [2]}, 10.0) == "one give [1], two give [2]"


class Odd(Tumbling):
    """A window type whose word is no text."""

    type = ["odd"]  # type: ignore[assignment]  # noqa: RUF012


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[EntryPoint]]:
    """Entry points by group, in place of those installed."""
    found: dict[str, list[EntryPoint]] = {}
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found.setdefault(group, []))
    monkeypatch.setattr(packages, "_may_bring", lambda _folder, _group: True)
    monkeypatch.setattr(packages, "_installed", [])
    monkeypatch.setattr(packages, "_guards", [])
    monkeypatch.setattr(windows, "REFUSED", {})
    return found


def test_a_folder_that_this_user_may_not_read_brings_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `sudo -u`, with a PYTHONPATH of another user: every command ended in a traceback."""

    def closed(path: object, *_args: object, **_options: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(sys, "path", [str(tmp_path / "closed")])
    monkeypatch.setattr(os, "stat", closed)
    assert packages.load("headwater.aggregates", object) == ([], {})


@pytest.mark.parametrize("closed", ["a", "b"])
def test_a_package_that_this_user_may_not_read_hides_no_other_in_its_folder(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}-1.dist-info").mkdir()
        (tmp_path / f"{name}-1.dist-info" / "entry_points.txt").write_text("[headwater.aggregates]\n")
    read = Path.read_text

    def opened(path: Path, *args: str) -> str:
        if path.parent.name.startswith(closed):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path, *args)

    monkeypatch.setattr(Path, "read_text", opened)
    assert packages._may_bring(str(tmp_path), "headwater.aggregates")


def test_objects_of_the_wanted_type_are_loaded_in_the_order_of_names(points: dict[str, list[EntryPoint]]) -> None:
    group, module = "headwater.aggregates", "edge_agent.algebra.aggregates"
    families = f"{module}.families"
    points[group] = [
        EntryPoint("b", f"{families}.moments:FAMILY", group),
        EntryPoint("a", f"{families}.extremes:FAMILY", group),
        EntryPoint("missing", "no_such_module:FAMILY", group),
        EntryPoint("typo", f"{families}.moments:FAMILIES", group),
        EntryPoint("wrong", f"{module}:FUNCTIONS", group),
    ]
    loaded, refused = load(group, Family)
    assert [(each.point, each.package) for each in loaded] == [("a", "a"), ("b", "b")]
    assert all(isinstance(each.found, Family) for each in loaded)
    assert refused == {
        "missing": "no_such_module:FAMILY: ModuleNotFoundError: No module named 'no_such_module'",
        "typo": f"{families}.moments:FAMILIES: AttributeError: module '{families}.moments' has no attribute 'FAMILIES'",
        "wrong": f"{module}:FUNCTIONS: wanted a Family ({module}.base), got dict",
    }
    points["headwater.windows"] = [EntryPoint("it", f"{module}:FUNCTIONS", "headwater.windows")]
    assert load("headwater.windows", type)[1] == {"it": f"{module}:FUNCTIONS: wanted a class, got dict"}


def test_packages_are_looked_up_once_a_process(points: dict[str, list[EntryPoint]]) -> None:
    install()
    assert list(points) == ["headwater.aggregates", "headwater.windows", "headwater.drivers"]
    points.clear()
    install(edge=True)
    assert not points


def test_types_that_cannot_be_used_are_refused_and_not_called(points: dict[str, list[EntryPoint]]) -> None:
    group, target = "headwater.windows", "edge_agent.algebra.windows:Tumbling"
    points[group] = [EntryPoint("odd", f"{__name__}:Odd", group), EntryPoint("twice", target, group)]
    install()
    refused = {
        "odd": f"{__name__}:Odd: TypeError: unhashable type: 'list'",
        "twice": f"{target}: window type 'tumbling' exists already; choose another word",
    }
    assert refused == windows.REFUSED
    assert not packages._guards


@pytest.mark.usefixtures("points")
def test_failures_of_all_packages_are_written_to_standard_error_once(capsys: pytest.CaptureFixture[str]) -> None:
    packages._guards.extend([PluginGuard("plant 1.0"), PluginGuard("mill 2.0")])
    for guard in packages._guards:
        guard.call("load", "lift", raising("no"))
    packages.complain()
    packages.complain()
    hint = "its results are null where it fails; correct or remove the package"
    assert capsys.readouterr().err.splitlines() == [
        f"headwater: lift of load (package {package}): ValueError: no; {hint}" for package in ("plant 1.0", "mill 2.0")
    ]


def test_the_queries_that_need_a_component_are_named() -> None:
    def query(name: str, fn: str) -> Query:
        return Query(name, 1, "boiler", Tumbling(1_000_000), (Aggregate(fn, fn),))

    asked = [query("a", "stddev"), query("b", "max"), query("c", "avg"), query("d", "kurtosis")]
    assert users("m2", asked) == ["a", "d"]
    assert users("avg", asked) == ["c"]
    assert users("tumbling", asked) == ["a", "b", "c", "d"]
    assert users("nothing", asked) == []


def test_an_exception_without_a_text_is_told_by_its_type() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert error_text(MuteError()) == "MuteError:"
