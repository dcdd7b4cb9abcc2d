"""Readings days late, of queries that were altered or removed meanwhile, under correction horizons of any length."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Session, Tumbling
from edge_agent.machines.events import Configured
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.simulation.fleets import GRACE, START, Fleet, GatewayHost, Reading
from tests.support.simulation.world import SECOND, Chaos, MergerHost, RootHost

DAY = 86_400 * SECOND
ALTERED_US = START + 12 * SECOND
LATER_US = START + 9 * DAY
TEN = Query("q", 1, "s", Tumbling(10 * SECOND), (Aggregate("count", "count"),), lateness_us=0)
SILENT = replace(TEN, window=Session(2 * SECOND))
READINGS = [START + at * SECOND for at in (1, 2, 3, 11, 15, 25, 31)]


class OldFleet(Fleet):
    """One gateway below one merger; the query changes 12 s after the start, the late reading comes after nine days."""

    def __init__(self, horizon_us: int, before: Query, after: tuple[Query, ...], late_s: int = 20) -> None:
        """late_s: when the late reading comes after the nine days; for a minute they doubt how long it was (4.4)."""
        self.horizon_us, self.before, self.after = horizon_us, before, after
        super().__init__(1, Chaos(drop=0.05, repeat=0.05))
        self.queries = (before,)
        hosts = self.world.hosts
        hosts.clear()
        root = hosts["root"] = RootHost(self.world, self._root, horizon_us=horizon_us)
        hosts["m"] = MergerHost(self.world, "m", "root", self._merger)
        times = [*READINGS, LATER_US, LATER_US + SECOND]
        readings = [Reading(time_us, time_us, 0, 1) for time_us in times]
        readings += [Reading(LATER_US + late_s * SECOND, START + 4 * SECOND, 0, 1)]
        readings += [Reading(LATER_US + at * SECOND, LATER_US + at * SECOND, 0, 1) for at in (40, 60, 80)]
        self.gateway = GatewayHost(self.world, "g", "m", readings, self)
        hosts["g"] = self.gateway
        root.start(0)

    def version_at(self, now_us: int) -> int:
        return int(now_us >= ALTERED_US)

    def configuration(self, version: int) -> Configured:
        return self.configured(self.after if version else (self.before,))

    def _root(self, journal: int) -> NumpyRoot:
        return NumpyRoot(journal, grace_us=GRACE, horizon_us=self.horizon_us)

    def late_reading(self) -> tuple[bool, int]:
        """After the run: whether its row holds it, and how many readings the root keeps as too late."""
        world = self.world
        world.now_us = START
        world.run(START + 60 * SECOND, lambda now: None)
        self.gateway.machine = None  # a restart: what the parent has told must be in the spool
        world.now_us = LATER_US - SECOND
        world.run(LATER_US + 200 * SECOND, lambda now: None)
        root = world.hosts["root"]
        assert isinstance(root, RootHost)
        rows = {row.start: row for row in root.rows if row.definition_revision == 1}
        first = next(row for start, row in rows.items() if START <= start < START + 5 * SECOND)
        return first.readings == 4, sum(kept.readings for kept in root.root.beyond)


CHANGES = {
    "another revision of the group": (TEN, (replace(TEN, revision=2, aggregates=(Aggregate("sum", "sum"),)),)),
    "another group": (TEN, (replace(TEN, revision=2, where="value > 0"),)),
    "removed": (TEN, ()),
    "sessions of another gap": (SILENT, (replace(SILENT, revision=2, window=Session(3 * SECOND)),)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("days", [30, 366])
def test_a_late_reading_reaches_the_row_of_its_revision_within_any_horizon(days: int, change: str) -> None:
    """protocol 4.2, 6.3: the edge keeps what it feeds as long as the root revises, told in the receipts."""
    assert OldFleet(days * DAY, *CHANGES[change]).late_reading() == (True, 0)


@pytest.mark.parametrize("change", ["another revision of the group", "another group", "sessions of another gap"])
@pytest.mark.parametrize("late_s", [20, 90])
def test_a_reading_beyond_the_horizon_is_kept_apart(late_s: int, change: str) -> None:
    """protocol 4.2, 6.3: in no row, and the root counts it, also while it doubts that nine days have gone by."""
    assert OldFleet(7 * DAY, *CHANGES[change], late_s).late_reading() == (False, 1)


def test_a_gateway_forgets_what_no_late_reading_can_reach() -> None:
    """protocol 6.3: with the horizon of seven days the group of a removed query is gone after nine."""
    fleet = OldFleet(7 * DAY, *CHANGES["removed"])
    fleet.late_reading()
    assert isinstance(fleet.gateway.machine, Gateway)
    assert not fleet.gateway.machine.groups
