"""A gateway whose queries use functions of another package that raise or are slow: real processes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_agent.algebra import aggregates
from edge_agent.algebra.frame import Gap
from edge_agent.algebra.plugin_calls import PluginGuard
from edge_agent.demo.processes import Broker, ChildProcess
from edge_agent.machines.node import FAILED
from edge_agent.packages import load
from edge_agent.root.completeness import Decider, Decision
from tests.support.processes.broker_clients import retained
from tests.support.processes.tree import Top, gateway
from tests.support.waiting import eventually

TROUBLE = """
import time
from edge_agent.algebra.aggregates.base import Column, Component, Family, Function, answered


def of(name, meanwhile):
    def lift(readings, groups, scale, lifted):
        meanwhile()
        return {name: groups.sum(readings.value * 1.0)}

    def combine(states, groups, combined, ranks):
        return {name: groups.sum(states[name])}

    def lower(states, scale, params):
        return answered(states[name])

    return Column(name, "real"), Component(name, (name,), lift, combine), Function(name, (name,), lower, name)


def raises():
    raise ValueError("no such valve")


made = [of("raises", raises), of("naps", lambda: time.sleep(0.3)), of("works", lambda: None)]
FAMILY = Family(*zip(*made))
"""
CONFIG = (
    '[sensor.boiler]\ndriver = "simulated"\nrate = 50\n'
    '[query.half]\nsource = "boiler"\nwindow = {type = "tumbling", length = "500ms"}\n'
    'aggregates = ["count", "raises", "naps", "works"]\nlateness = "100ms"\n'
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installed for processes of the test, and for the root, which runs in the test itself."""
    folder = tmp_path / "site"
    about = folder / "trouble-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "trouble.py").write_text(TROUBLE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: trouble\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[headwater.aggregates]\ntrouble = trouble:FAMILY\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).resolve().parents[2]}")
    importlib.invalidate_caches()
    columns, components = aggregates.COLUMNS._fixed, aggregates.COMPONENTS._fixed
    before = set(columns) | set(components) | set(aggregates.FUNCTIONS)
    loaded, _ = load("headwater.aggregates", aggregates.Family)
    aggregates.add([each for each in loaded if each.point == "trouble"], {}, PluginGuard)
    yield
    for name in (set(columns) | set(components) | set(aggregates.FUNCTIONS)) - before:
        columns.pop(name, None)
        components.pop(name, None)
        aggregates.FUNCTIONS.pop(name, None)
        aggregates.PLUGINS.pop(name, None)
    sys.modules.pop("trouble", None)


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> list[Gap]:
    """What took effect at the root of losses: those of no group touch no row, and it forgets them at once."""
    found: list[Gap] = []
    decide = Decider.decide

    def deciding(self: Decider, now_us: int) -> Decision:
        decision = decide(self, now_us)
        found.extend(gap for _, gap in decision.gaps)
        return decision

    monkeypatch.setattr(Decider, "decide", deciding)
    return found


@pytest.mark.broker
@pytest.mark.usefixtures("package")
def test_functions_that_raise_or_are_slow_cost_their_own_results_and_nothing_else(
    tmp_path: Path,
    ended: Callable[[ChildProcess], ChildProcess],
    brokers: Callable[[int], list[Broker]],
    declared: list[Gap],
) -> None:
    (broker,) = brokers(1)
    folder = tmp_path / "gw-1"
    agent = ended(gateway("gw-1", folder, broker.url, "root", CONFIG))
    with Top(broker.url) as top:
        status = "hw/1/up/gw-1/status"

        def failing() -> dict[str, str]:
            return {one["function"]: one["why"] for one in (retained(broker.url, status) or {}).get("failing", ())}

        eventually(lambda: len(failing()) == 2)
        assert failing() == {
            "raises": "ValueError: no such valve",
            "naps": "took 0.3 s (limit 0.25 s), 3 calls in a row; switched off",
        }
        start = max(row.start for row in eventually(top.results).values())
        row = eventually(lambda: [row for row in top.results().values() if row.start > start])[0]
        assert row.values["count"] == 25
        assert row.values["raises"] is None
        assert row.values["naps"] is None
        assert row.values["works"] is not None
        eventually(lambda: {gap.reason for gap in declared} == {FAILED} and len(declared) >= 2)
    gaps = {gap.detail.partition(" of ")[2].partition(" ")[0]: gap for gap in declared}
    assert gaps.keys() == {"raises", "naps"}
    assert gaps["raises"].detail == "lift of raises (package trouble 1.0): ValueError: no such valve; queries half"
    assert all(not gap.groups and gap.readings == 0 and gap.nodes == ("gw-1",) for gap in gaps.values())
    assert agent.log.read_text().count("no such valve") == 1, "once, not once a batch"
