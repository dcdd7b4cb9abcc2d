"""Definitions that change while a fleet runs: no window mixes two revisions, whoever learns of it when."""

from __future__ import annotations

import pytest

from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.slicing import slicer
from tests.support.effort import seeds
from tests.support.simulation.altered_fleets import AlteringFleet, altering
from tests.support.simulation.faults import calm, everything, lossy
from tests.support.simulation.fleets import GatewayHost, quickly
from tests.support.simulation.world import SECOND, Chaos, MergerHost, RootHost


@pytest.mark.seeded
@pytest.mark.parametrize("chaos", [calm, lossy])
def test_a_revision_said_ahead_holds_from_its_time_on_and_no_row_is_lost(chaos: object) -> None:
    """protocol 6.3: every window that starts before it is the old revision's, every later one the new one's."""
    assert callable(chaos)
    assert altering(seeds(0, 6), chaos, ahead=True) == []


@pytest.mark.seeded
@pytest.mark.parametrize("chaos", [calm, lossy])
def test_sessions_are_cut_where_a_revision_holds_also_one_of_another_gap(chaos: object) -> None:
    """protocol 6.3, 5.3: another gap is another group; the old one ends its sessions there, none is left open."""
    assert callable(chaos)
    assert altering(seeds(100, 6), chaos, ahead=True, sessions=True) == []


@pytest.mark.seeded
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("chaos", [calm, lossy, everything])
def test_a_complete_row_is_of_one_revision_whenever_a_gateway_hears_of_the_new_one(chaos: object, late: bool) -> None:
    """protocol 6.3, 4.5, 4.7: a gateway that comes later is not expected before, and missing where it begins within."""
    assert callable(chaos)
    assert altering(seeds(200, 6), chaos, ahead=False, late=late) == []


def test_what_a_fleet_keeps_of_a_group_goes_once_no_row_of_it_can_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 6.3: with a short horizon the group of the old gap leaves gateways, mergers and the root, and no row."""
    monkeypatch.setattr(slicer, "SETTLE_US", 5 * SECOND)
    ended = 0
    for seed in range(300, 330):
        fleet = AlteringFleet(seed, Chaos(), ahead=True, sessions=True)
        root = fleet.world.hosts["root"]
        assert isinstance(root, RootHost)
        root.horizon_us = 20 * SECOND  # more than any reading of these fleets is late
        root.start(0)
        old, new = fleet.queries[0].group, fleet.altered.group
        others = [query.group for query in fleet.queries[1:] if not fleet.removed]
        if old in (new, *others) or len(fleet.gateways) > 1 or not any(fleet.truth.values()):
            continue  # of several the last to go counts: with so short a horizon rows would still be revised before
        assert quickly(fleet) == []
        ended += 1
        assert old not in root.root.decider.parent.children.memberships
        assert not [group for group, _ in root.root.state.plans.values() if group == old]
        assert root.root.kept.indexes.keys() <= root.root.state.plans.keys()
        assert (fleet.altered.id, 1, "") not in root.root.state.closed
        for host in fleet.world.hosts.values():
            if isinstance(host, GatewayHost) and isinstance(host.machine, Gateway):
                assert old not in host.machine.groups
            if isinstance(host, MergerHost) and isinstance(host.machine, Merger):
                assert old not in host.machine.parent.children.memberships
    assert ended
