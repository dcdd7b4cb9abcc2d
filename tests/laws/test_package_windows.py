"""Window types of packages with edge sets of their own: whatever in them fails, results of all queries stay right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from edge_agent.algebra import windows
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import in_windows
from edge_agent.algebra.plugin_calls import Loaded, PluginGuard
from edge_agent.algebra.span import EdgeSet, Lattice, Run
from edge_agent.algebra.windows import Sliding, Tumbling, Window, broken_law
from edge_agent.algebra.windows.declaration import Setting
from edge_agent.algebra.windows.edges import Edges
from edge_agent.algebra.windows.package_types import GuardedEdges
from tests.support.machines.slicer_runs import batch, query, started

LENGTH_US = 30


class Fails:
    """Fails in one call from the n-th on; wrong: the call returns that instead."""

    step: ClassVar[str] = ""
    after: ClassVar[int] = 0
    wrong: ClassVar[Any] = None
    calls: ClassVar[Counter[str]] = Counter()

    @classmethod
    def at(cls, step: str, answer: Any) -> Any:
        cls.calls[step] += 1
        if step != cls.step or cls.calls[step] <= cls.after:
            return answer
        if cls.wrong is not None:
            return cls.wrong
        raise LookupError("no such zone")


class Thirds:
    """Multiples of 30: an edge set of a package's own."""

    _lattice = Lattice(LENGTH_US, 0)

    @property
    def step_us(self) -> int:
        return int(Fails.at("step_us", LENGTH_US))

    @property
    def first_us(self) -> int:
        return int(Fails.at("first_us", 0))

    @property
    def last_us(self) -> int:
        return int(Fails.at("last_us", self._lattice.last_us))

    def points(self, low_us: int, high_us: int) -> Any:
        return Fails.at("points", self._lattice.points(low_us, high_us))

    def around(self, time_us: Ints) -> Any:
        return Fails.at("around", self._lattice.around(time_us))

    def __hash__(self) -> int:
        return int(Fails.at("hash", 7))

    def __eq__(self, other: object) -> bool:
        return bool(Fails.at("eq", isinstance(other, Thirds)))

    def __repr__(self) -> str:
        return str(Fails.at("repr", "Thirds"))


def thirds() -> type[Any]:
    @dataclass(frozen=True)
    class Plant:
        type: ClassVar[str] = "plant_thirds"
        KEYS: ClassVar[tuple[Any, ...]] = ()

        def wrong(self) -> None:
            return None

        @property
        def longest_us(self) -> int:
            return int(Fails.at("longest_us", LENGTH_US))

        @property
        def one_length(self) -> bool:
            return bool(Fails.at("one_length", True))

        @property
        def unit_us(self) -> int:
            return int(Fails.at("unit_us", LENGTH_US // 3))

        @property
        def edge_sets(self) -> Any:
            return Fails.at("edge_sets", (Thirds(),))

        @property
        def spacing(self) -> Any:
            return Fails.at("spacing", (Lattice(LENGTH_US, 0),))

        def edges(self, low_us: int, high_us: int) -> Ints:
            return Lattice(LENGTH_US, 0).points(low_us, high_us)

        def assign(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
            return Tumbling(LENGTH_US).assign(start, end)

        def ends(self, start: Ints) -> Ints:
            return np.asarray(start) + LENGTH_US

        def runs(self, after_us: int, upto_us: int) -> Iterator[Run]:
            return Tumbling(LENGTH_US).runs(after_us, upto_us)

    return Plant


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> PluginGuard:
    made = PluginGuard("plant 1.0")
    tables: list[dict[str, Any]] = [windows.ALL, windows.TYPES, windows.GUARDS]
    for table in tables:
        for name in ("plant_thirds", "plant_shift"):  # removed again after the test
            monkeypatch.setitem(table, name, None)
            del table[name]
    monkeypatch.setattr(Fails, "step", "")
    monkeypatch.setattr(Fails, "after", 0)
    monkeypatch.setattr(Fails, "wrong", None)
    Fails.calls.clear()
    windows.add([Loaded("thirds", "plant:Plant", thirds(), "plant 1.0")], {}, lambda package: made)
    assert not windows.REFUSED
    return made


def sums(window: Window, rows: list[Any]) -> dict[int, float]:
    """Start of a window -> sum of its readings."""
    found: dict[int, float] = {}
    for released in rows:
        placed = in_windows(released.partials, [window])
        for start, value in zip(placed.start.tolist(), placed.states["sum"].tolist(), strict=True):
            found[start] = found.get(start, 0.0) + value
    return found


STEPS = ("points", "around", "hash", "eq", "repr", "edge_sets", "longest_us", "one_length", "spacing", "unit_us")


@pytest.mark.parametrize("step", [*STEPS, "step_us", "first_us", "last_us"])
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_whatever_fails_the_results_of_the_query_and_of_others_in_its_plan_stay_right(
    guard: PluginGuard, step: str, after: int
) -> None:
    own, other = windows.TYPES["plant_thirds"](), Sliding(40, 20)
    assert broken_law(own) == ""
    Fails.step, Fails.after = step, after
    Fails.calls.clear()
    slicer, rows = started(query("own", own), query("other", other)), []  # type: ignore[arg-type]
    times = [7, 11, 29, 31, 33, 59, 61, 90, 119, 121, 170, 60_000, 60_001]
    for at in range(0, len(times), 3):
        slicer.push(batch(times[at : at + 3]))
        slicer.check()
        rows += slicer.advance(times[at])
    rows += slicer.flush()
    for window, length, slide in ((Tumbling(LENGTH_US), LENGTH_US, LENGTH_US), (other, 40, 20)):
        starts = {t // slide * slide - back for t in times for back in range(0, length, slide)}
        wanted = {s: float(sum(t for t in times if s <= t < s + length)) for s in starts if s >= 0}
        assert sums(window, rows) == {s: v for s, v in wanted.items() if v}
    if Fails.calls[step] > after:
        failures = guard.news()
        assert {(failure.name, failure.package) for failure in failures} == {("plant_thirds", "plant 1.0")}
        assert all("LookupError: no such zone" in failure.text for failure in failures)


@pytest.mark.parametrize(
    ("step", "wrong"),
    [
        ("points", np.array([2.5])),
        ("points", np.array([30, 0])),
        ("points", None),
        ("around", (np.array([0]), np.array([0]))),
        ("around", (np.array([90, 90, 90]), np.array([120, 120, 120]))),
        ("edge_sets", ()),
        ("edge_sets", 5),
    ],
)
def test_edges_that_are_none_are_a_failure_and_every_reading_is_in_a_slice(
    guard: PluginGuard, step: str, wrong: Any
) -> None:
    own = windows.TYPES["plant_thirds"]()
    Fails.step, Fails.wrong = step, "x" if wrong is None else wrong
    rows, start, end = Edges([own]).cut(np.array([7, 31, 59]))
    assert rows.tolist() == [0, 1, 2]
    assert (start <= [7, 31, 59]).all()
    assert (end > [7, 31, 59]).all()
    assert set((end - start).tolist()) == {LENGTH_US // 3}
    assert guard.news()


def test_a_failed_edge_set_stays_with_the_finer_edges(guard: PluginGuard) -> None:
    """Slices of both kinds would overlap."""
    (edges,) = windows.TYPES["plant_thirds"]().edge_sets
    assert isinstance(edges, GuardedEdges)
    Fails.step = "around"
    assert edges.around(np.array([35]))[0].tolist() == [30]
    Fails.step = ""
    assert edges.points(0, 30).tolist() == [0, 10, 20, 30]
    assert len(guard.news()) == 1


def test_a_spec_that_cannot_be_hashed_is_refused(guard: PluginGuard) -> None:
    plant: Any = windows.TYPES["plant_thirds"]
    plant.__hash__ = None
    assert "unhashable" in broken_law(plant())


def test_edge_sets_of_ours_stay_what_they_are(guard: PluginGuard) -> None:
    """They are compared and joined by type."""

    class Shift(Tumbling):
        type: ClassVar[str] = "plant_shift"
        KEYS: ClassVar[tuple[Setting, ...]] = ()

    windows.add([Loaded("shift", "plant:Shift", Shift, "plant 1.0")], {}, lambda package: guard)
    sets: tuple[EdgeSet, ...] = Shift(8, 0).edge_sets
    assert sets == (Lattice(8, 0),)
    assert windows.evenly(Shift(8, 0)) == Sliding(8, 8)
