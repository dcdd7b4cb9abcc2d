"""Aggregates that a package brings: the example of docs/extend.md, installed beside Headwater, through both roots."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from edge_agent.algebra.aggregates import BUILT_IN, Readings, package_families
from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, answered
from edge_agent.algebra.aggregates.non_commutative import in_order
from edge_agent.algebra.partials import series
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.plugin_calls import PluginGuard, error_text
from edge_agent.algebra.span import Run
from edge_agent.algebra.windows import Sliding, Tumbling
from edge_agent.algebra.windows import package_types as window_plugins
from edge_agent.algebra.windows.ordered import OrderedReadings, RowWindows
from tests.support.tolerance import close

TOP = Path(__file__).resolve().parents[2]
READINGS = {
    "one": [[10, "a", 3.5], [40, "a", -1.5], [130, "a", 8.0], [21_700_000, "z", -1.0]],
    "two": [[20, "a", 0.5], [50, "b", -2.0]],
}
QUERIES = [
    {"id": "m", "window": {"type": "tumbling", "length": 100}, "aggregate": "plant_midrange"},
    {"id": "s", "window": {"type": "sliding", "length": 100, "slide": 50}, "aggregate": "plant_abs_sum"},
    {"id": "t", "window": {"type": "session", "gap": 60}, "aggregate": "plant_travel"},
    {"id": "l", "window": {"type": "tumbling", "length": 100}, "aggregate": "plant_latest"},
    {"id": "w", "window": {"type": "tumbling", "length": 100}, "aggregate": "broken"},
    {"id": "q", "window": {"type": "tumbling", "length": 100}, "aggregate": "mute"},
    {"id": "shift", "window": {"type": "plant_shift", "first": 6 * 3_600_000}, "aggregate": "count"},
    {"id": "sign", "window": {"type": "plant_sign"}, "aggregate": "sum"},
]
WANTED = {
    ("m", "a", 0): 1.0, ("m", "b", 0): -2.0, ("m", "a", 100): 8.0,
    ("s", "a", 0): 5.5, ("s", "b", 0): 2.0, ("s", "b", 50): 2.0, ("s", "a", 50): 8.0, ("s", "a", 100): 8.0,
    ("l", "a", 0): -1.5, ("l", "b", 0): -2.0, ("l", "a", 100): 8.0, ("l", "z", 21_700_000): -1.0,
    ("t", "a", 10): 5.0, ("t", "a", 130): 0.0, ("t", "b", 50): 0.0,
    ("w", "a", 0): None, ("w", "b", 0): None, ("w", "a", 100): None,
    ("q", "a", 0): None, ("q", "b", 0): None, ("q", "a", 100): None, ("q", "z", 21_700_000): None,
    ("m", "z", 21_700_000): -1.0, ("s", "z", 21_699_950): 1.0, ("s", "z", 21_700_000): 1.0, ("t", "z", 21_700_000): 0.0,
    ("w", "z", 21_700_000): None, ("shift", "z", 21_600_000): 1.0, ("sign", "a", 10): 4.0, ("sign", "a", 40): -1.5,
}  # fmt: skip
BROKEN = """
from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, answered

def lift(readings, groups, scale, lifted):
    raise RuntimeError("not today")

def combine(states, groups, combined, ranks):
    return {"broken": groups.sum(states["broken"])}

def lift_last(readings, groups, scale, lifted):
    return {"forgetful": readings.value[groups.last()] * 1.0}

def combine_last(states, groups, combined, ranks):
    return {"forgetful": states["forgetful"][groups.last()]}

FAMILY = Family(
    columns=(Column("broken", "real"), Column("forgetful", "real")),
    components=(
        Component("broken", ("broken",), lift, combine),
        Component("forgetful", ("forgetful",), lift_last, combine_last),
    ),
    functions=(
        Function("forgetful", ("forgetful",), lambda s, scale, params: answered(s["forgetful"]), "not commutative"),
        Function("broken", ("broken",), lambda s, scale, params: answered(s["broken"]), "raises"),
        Function("mute", ("count",), lambda s, scale, params: s["nothing"], "raises where it should answer"),
    ),
)
"""
TORN = """
from edge_agent.algebra.windows import Sliding, Tumbling

class Torn(Tumbling):
    type, KEYS = "torn", ()

    def __init__(self):
        super().__init__(100_000)

    def runs(self, after_us, upto_us):
        if upto_us > 3_600_000_000:
            raise OSError("no calendar")
        return super().runs(after_us, upto_us)

class Never(Torn):
    type = "never"

    def edges(self, low_us, high_us):
        raise LookupError("no such zone")
"""
LIFT = "lift of broken (package plant 1.0): RuntimeError: not today"
LOWER = "lower of mute (package plant 1.0): KeyError: 'nothing'"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder on the path with the package of the docs, one that raises, and one that cannot be imported."""
    for code in re.findall(r"```python\n(.*?)```", (TOP / "docs/extend.md").read_text(), re.DOTALL):
        (tmp_path / code.splitlines()[0].removeprefix("# ")).write_text(code)
    (tmp_path / "broken_aggregates.py").write_text(BROKEN)
    (tmp_path / "torn_windows.py").write_text(TORN)
    about = tmp_path / "plant-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plant\nVersion: 1.0\n")
    points = "plant = plant_aggregates:FAMILY\nbroken = broken_aggregates:FAMILY\nmissing = no_such_module:FAMILY\n"
    windows = "shift = plant_windows:Shift\nsign = plant_windows:Sign\ntwice = edge_agent.algebra.windows:Tumbling\n"
    windows += "torn = torn_windows:Torn\nnever = torn_windows:Never\n"
    (about / "entry_points.txt").write_text(f"[headwater.aggregates]\n{points}[headwater.windows]\n{windows}")
    return tmp_path


def replayed(package: Path, queries: list[dict[str, Any]], *options: str) -> subprocess.CompletedProcess[str]:
    """`headwater replay` in a process of its own, as a user with the package has it."""
    recording = {"id": "own", "queries": queries, "streams": READINGS, "watermarks": {"mode": "end_of_stream"}}
    (package / "own.json").write_text(json.dumps(recording))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), str(TOP), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "edge_agent", "replay", *options, str(package / "own.json")]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)


@pytest.mark.parametrize("root", ["python", pytest.param("spark", marks=pytest.mark.spark)])
def test_aggregates_of_a_package_travel_merge_and_answer(package: Path, root: str) -> None:
    done = replayed(package, QUERIES, "--root", root)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    got = {(row["query"], row["key"], row["start"]): row["value"] for row in rows}
    assert got.keys() == WANTED.keys()
    assert all(
        value is None if want is None else close(got[at], want, 8) for at, want in WANTED.items() for value in [got[at]]
    )
    assert done.stderr.count(LIFT) == 1, "once, not once a batch"
    assert 1 <= done.stderr.count(LOWER) <= 8, "once in each process that meets it"


def test_windows_of_a_package_that_raise_are_refused_or_give_no_rows_and_others_go_on(package: Path) -> None:
    torn, never = ({"id": word, "window": {"type": word}, "aggregate": "sum"} for word in ("torn", "never"))
    done = replayed(package, [torn, never, QUERIES[0]])
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["query"] for line in done.stdout.splitlines()} == {"m"}
    assert "its package (plant 1.0): LookupError: no such zone" in done.stderr
    assert done.stderr.count("runs of torn (package plant 1.0): OSError: no calendar") == 1


def test_a_function_that_does_not_commute_and_does_not_say_so_is_refused_and_others_go_on(package: Path) -> None:
    done = replayed(package, [{**QUERIES[0], "id": "f", "aggregate": "forgetful"}, QUERIES[0]])
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["query"] for line in done.stdout.splitlines()} == {"m"}
    assert "forgetful depends on the order in which parts are combined" in done.stderr
    assert "commutative=False" in done.stderr


def test_a_package_that_cannot_be_loaded_is_named_to_whoever_asks(package: Path) -> None:
    done = replayed(package, [{**QUERIES[0], "aggregate": "nothing"}], "--strict")
    assert done.returncode == 3
    assert "missing cannot be used (no_such_module:FAMILY: ModuleNotFoundError" in done.stderr, done.stderr
    done = replayed(package, [{**QUERIES[0], "window": {"type": "moon"}}], "--strict")
    assert done.returncode == 3
    assert (
        "twice cannot be used (edge_agent.algebra.windows:Tumbling: window type 'tumbling' exists already"
        in done.stderr
    )


def family(**changes: Any) -> Family:
    """A family of a package, sound but for the changes."""
    parts: dict[str, Any] = {
        "columns": (Column("own", "real"),),
        "components": (Component("own", ("own",), lift, lambda s, g, _c, _r: {"own": g.sum(s["own"])}),),
        "functions": (Function("own", ("own",), lambda s, _scale, _p: answered(s["own"]), "its own"),),
    }
    return Family(**{**parts, **changes})


def lift(readings: Readings, groups: Segments, _scale: int | None, _lifted: Any) -> Any:
    return {"own": groups.sum(readings.value.astype(np.float64))}


def guarded(found: Family) -> Family:
    """The family as the registry gets it."""
    return package_families.guarded(in_order(found, BUILT_IN), PluginGuard("plant 1.0"))


def last(readings: Readings, groups: Segments, _scale: int | None, _lifted: Any) -> Any:
    return {"own": readings.value.astype(np.float64)[groups.last()]}


def latest(states: Any, groups: Segments, _combined: Any, _ranks: Any) -> Any:
    return {"own": states["own"][groups.last()]}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (
            family(functions=(Function("avg", ("own",), lambda s, _c, _p: answered(s["own"]), ""),)),
            "function 'avg' exists already",
        ),
        (family(columns=(Column("sum", "real"),)), "column 'sum' exists already"),
        (family(columns=(Column("own", "bag"),)), "column kind 'bag'"),
        (family(columns=(Column("own", "real"), Column("more", "real"))), "exactly one component"),
        (
            family(functions=(Function("own", ("nowhere",), lambda s, _c, _p: answered(s["own"]), ""),)),
            "'nowhere' is needed and does not exist",
        ),
        (
            family(functions=(Function("own", ("own", "bag"), lambda s, _c, _p: answered(s["own"]), ""),)),
            "must need no other",
        ),
    ],
)
def test_a_family_that_cannot_work_is_refused_with_the_reason(wrong: Family, why: str) -> None:
    assert why in package_families.refusal(wrong, BUILT_IN)
    assert not package_families.refusal(family(), BUILT_IN)


@pytest.mark.parametrize(
    ("component", "why"),
    [
        (Component("own", ("own",), lift, lambda s, g, _c, _r: {"own": g.sum(s["own"])}), ""),
        (Component("own", ("own",), last, latest), "own depends on the order in which parts are combined"),
        (Component("own", ("own",), last, latest, commutative=False), ""),
        (
            Component("own", ("own",), lift, lambda s, g, _c, _r: {"own": g.min(s["own"])}),
            "all readings lifted at once give",
        ),
        (Component("own", ("own",), lift, lambda s, _g, _c, _r: {"own": s["nothing"]}), ""),  # reported when it is used
    ],
)
def test_a_component_for_which_the_order_matters_and_that_does_not_say_so_is_found(
    component: Component, why: str
) -> None:
    """protocol 6.1: partials meet in any order and grouping."""
    found = family(components=(component,))
    broken = package_families.broken_law(found.functions[0], found, {"own": component})
    assert why in broken
    assert bool(broken) == bool(why)


def test_an_ordered_window_of_a_package_that_raises_gives_no_rows_and_goes_on() -> None:
    class Fussy:
        type, form, positions, labels, KEYS = "fussy", "raw", False, frozenset[str](), ()

        def wrong(self) -> None:
            return None

        def cut(self, line: OrderedReadings) -> RowWindows:
            if not len(line.time_us):
                raise ValueError("nothing to cut")
            wild = np.array([7])
            return RowWindows(wild * 0, wild, wild + 1, wild, wild, line.until)

    assert not window_plugins.refusal(Fussy, {"tumbling"})
    window_plugins.guard_methods(Fussy, PluginGuard("plant 1.0"))
    for n in (0, 3):  # one raises, one answers with rows that are not there
        one = np.array([n])
        line = OrderedReadings(one * 0, one, one * 0, one * 0, np.arange(n), np.ones(n))
        cut = Fussy().cut(line)
        assert len(cut.key) == 0
        assert cut.keep.tolist() == [n]


@pytest.mark.parametrize(
    ("found", "why"),
    [(dict, "lacks type, KEYS, wrong"), (Tumbling, "'tumbling' exists already")],
)
def test_a_class_that_is_no_window_type_is_refused_with_the_reason(found: Any, why: str) -> None:
    assert why in window_plugins.refusal(found, {"tumbling"})


def test_the_text_of_any_exception_can_be_published() -> None:
    """Of a file name that is not UTF-8, Python makes half surrogate pairs; a status with one ended the gateway."""
    text = error_text(OSError("cannot read /dev/\udcff\n!"))
    assert text.encode() == b"OSError: cannot read /dev/? !"


def test_readings_a_package_failed_on_are_counted_and_leave_no_answer() -> None:
    def fussy(readings: Readings, groups: Segments, scale: int | None, lifted: Any) -> Any:
        if (readings.value < 0).any():
            raise ValueError("no negative values here")
        return lift(readings, groups, scale, lifted)

    sound = family().components[0]
    found = guarded(family(components=(Component("own", ("own",), fussy, sound.combine),)))
    (component,), (function,) = found.components, found.functions
    parts = []
    for values in ([1.0, 2.0], [-1.0, 5.0, 6.0], [4.0]):
        readings = Readings(np.arange(len(values)), np.array(values), np.zeros(0, np.int64))
        parts.append(component.lift(readings, Segments.runs(np.zeros(1, np.int64), len(values)), None, {}))
    assert [part["own_failed"].tolist() for part in parts] == [[0], [3], [0]]
    states = {name: np.concatenate([part[name] for part in parts]) for name in component.columns}
    states["count"] = np.array([2, 3, 1])
    groups = Segments.coded(np.array([0, 0, 1]), 2)
    combined = component.combine(states, groups, {}, None)
    lowered = function.lower({**combined, "count": groups.sum(states["count"])}, None, {})
    assert lowered.null.tolist() == [True, False]
    assert lowered.value[1] == 4.0
    assert lowered.details is not None
    assert "on 3 readings" in str(lowered.details[0])


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (None, "TypeError"),
        ({}, "KeyError: 'own'"),
        ({"own": [1.0]}, "wanted a column of float64 and shape (2,), got float64 and (1,)"),
        ({"own": [1, 2]}, "wanted a column of float64 and shape (2,), got int64 and (2,)"),
        ({"own": [1.0, np.inf]}, "values that are not finite"),
    ],
)
def test_columns_of_another_shape_or_dtype_count_as_a_failure(columns: Any, why: str) -> None:
    sound, guard = family().components[0], PluginGuard("plant 1.0")
    changed = family(components=(Component("own", ("own",), lambda _r, _g, _s, _l: columns, sound.combine),))
    (component,) = package_families.guarded(changed, guard).components
    readings = Readings(np.arange(3), np.ones(3), np.arange(3))
    states = component.lift(readings, Segments.runs(np.array([0, 1]), 3), None, {})
    assert states["own"].tolist() == [0.0, 0.0]
    assert states["own_failed"].tolist() == [1, 2]
    assert why in guard.why["own"]


def test_a_component_that_does_not_commute_is_lifted_from_all_readings_in_their_order() -> None:
    doubled = Function("twice", ("own", "count"), lambda s, _c, _p: answered(2 * s["own"] + s["count"]), "")
    first = family(components=(Component("own", ("own",), last, latest, commutative=False),))
    found = guarded(family(components=first.components, functions=(*first.functions, doubled)))
    assert [component.name for component in found.components] == []
    assert {function.needs for function in found.functions} == {("series",)}
    parts = []
    for node, (times, values) in enumerate([((3, 9), (1.0, 2.0)), ((5, 7), (8.0, 4.0))]):
        cell = series.lift(
            np.array(times), np.array(values), node, np.arange(2), Segments.runs(np.zeros(1, np.int64), 2)
        )
        parts.append(cell)
    for order in (parts, parts[::-1]):
        met = series.combine(np.concatenate(order), Segments.runs(np.zeros(1, np.int64), 2), None)
        assert [f.lower({"series": met}, None, {}).value.tolist() for f in found.functions] == [[2.0], [8.0]]


@dataclass(frozen=True)
class Every:
    """A window type of a package with all that Window asks for and no base of ours."""

    length_us: int = 70
    slide_us: int = 20
    type: ClassVar[str] = "every"
    KEYS: ClassVar[tuple[Any, ...]] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(Sliding(self.length_us, self.slide_us), name)


class Swapped(Every):
    def runs(self, after_us: int, upto_us: int) -> Any:
        yield Run(20, 70, 0, after_us, upto_us)


class Longer(Every):
    def ends(self, start: Any) -> Any:
        return start + 71


class Blind(Every):
    def assign(self, start: Any, _end: Any) -> Any:
        return np.arange(len(start)), start - start % 20


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (Every(), ""),
        (Swapped(), "runs give"),
        (Longer(), "longest_us is 70"),
        (Blind(), "assign give"),
    ],
)
def test_a_window_type_that_contradicts_itself_is_found(spec: Any, why: str) -> None:
    found = window_plugins.contradiction(spec)
    assert why in found
    assert bool(found) == bool(why)
