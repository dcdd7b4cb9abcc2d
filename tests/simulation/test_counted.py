"""Count and state windows in random fleets: no reading twice, none without a place or a trace, one order for all."""

from __future__ import annotations

from random import Random

import pytest

from edge_agent.root.completeness import GroupView
from edge_agent.root.decision import ordered_queries
from tests.support.effort import exploring, seeds
from tests.support.simulation.faults import calm, crashing, everything, lossy
from tests.support.simulation.fleets import START, GatewayHost, Reading
from tests.support.simulation.ordered_fleets import CountedFleet, counted
from tests.support.simulation.world import SECOND

SEEDS = 8  # a test; some 0.3 s each


@pytest.mark.seeded
@pytest.mark.parametrize(("chaos", "least"), [(calm, SEEDS), (lossy, 3), (crashing, SEEDS // 2), (everything, 3)])
def test_windows_of_positions_are_those_of_one_central_computer(chaos: object, least: int) -> None:
    """protocol 7.4, 6.2, 3, 1.3: crashes, restarts, losses and disorder change no position.

    least: fleets in which every reading found its place; in others a gateway was first heard of after that.
    """
    assert callable(chaos)
    wrong, whole = counted(seeds(3_000, SEEDS), chaos)
    assert wrong == []
    assert exploring() or whole >= least


@pytest.mark.seeded
@pytest.mark.parametrize(("chaos", "least"), [(calm, SEEDS), (everything, 2)])
def test_a_changed_query_counts_on_without_a_reading_in_two_revisions(chaos: object, least: int) -> None:
    """protocol 6.3, 7.4: also where its new revision is of another group."""
    assert callable(chaos)
    wrong, whole = counted(seeds(4_000, SEEDS), chaos, changes=True)
    assert wrong == []
    assert exploring() or whole >= least


def test_the_simulation_finds_a_root_that_does_not_wait_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: by the furthest frontier instead of the least (7.4) readings come after their places are given."""

    def furthest(_query: object, view: GroupView) -> int:
        return max(view.leaves.values(), default=-(2**62))

    monkeypatch.setattr(ordered_queries, "decided_us", furthest)
    found = (counted([seed], calm) for seed in range(3_000, 3_000 + SEEDS))
    assert any(wrong or not whole for wrong, whole in found)


def test_a_promise_that_no_commit_contains_makes_no_reading_late() -> None:
    """A check of the check: the process dies in a commit, so nobody heard its promise, and the next one goes behind."""
    fleet = CountedFleet(3_000, calm(Random(0)))
    world, host = fleet.world, fleet.world.hosts[fleet.gateways[0]]
    assert isinstance(host, GatewayHost)
    newest, before = (Reading(START + at * SECOND, START + of * SECOND, 0, 1) for at, of in ((10, 10), (11, 5)))
    host.readings = [newest, before]
    world.now_us = START + 10 * SECOND
    host.start(world.now_us)
    host.read(world.now_us)
    chances = world.faults.chances
    world.faults.chances = {**chances, "process.crash": 1.0}
    host.tick(world.now_us + SECOND // 2)
    assert host.machine is None
    world.faults.chances = chances
    world.now_us = START + 12 * SECOND
    host.start(world.now_us)
    host.read(world.now_us)
    assert host.on_time == {newest, before}
