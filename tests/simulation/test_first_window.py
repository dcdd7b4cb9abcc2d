"""Live sensors are listened to from some moment on: rows that hold only what came after it say so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Session, Tumbling
from edge_agent.algebra.windows.count_tumbling import CountTumbling
from edge_agent.config.definitions.drivers import DRIVERS
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from tests.support.simulation.fleets import GRACE, START, Fleet, GatewayHost, Reading
from tests.support.simulation.world import MS, SECOND, Chaos, MergerHost, RootHost

TEN = Query("q", 1, "s", Tumbling(10 * SECOND), (Aggregate("count", "count"),), lateness_us=0)
TIMES = [START + at * SECOND for at in range(5, 60, 2)]


class LiveFleet(Fleet):
    """Two gateways below a merger: "a" begins 4 s after a window's start, "b" 24 s after it."""

    def __init__(self, query: Query, **sensor: object) -> None:
        super().__init__(1, Chaos())
        self.queries = (query,)
        facts = {"driver": "mqtt", "delay_us": 0, "own_clock": False, "rereadable": False, **sensor}
        self.sensor = replace(self.sensor, **facts)  # type: ignore[arg-type]
        hosts = self.world.hosts
        hosts.clear()
        root = hosts["root"] = RootHost(self.world, self._root)
        root.start(0)
        hosts["m"] = MergerHost(self.world, "m", "root", self._merger)
        self.begin("a", TIMES)

    def begin(self, name: str, times: list[int]) -> None:
        host = GatewayHost(self.world, name, "m", [Reading(time_us, time_us, 0, 1) for time_us in times], self)
        host.hears_after_us = 0
        self.world.hosts[name] = host

    def _root(self, journal: int) -> NumpyRoot:
        return NumpyRoot(journal, grace_us=GRACE)

    def rows(self) -> dict[int, Row]:
        """The last row of each start, in seconds after START."""
        world = self.world
        world.now_us = START + 4 * SECOND
        world.run(START + 24 * SECOND, lambda now: None)
        self.begin("b", [time_us + 500 * MS for time_us in TIMES if time_us > START + 24 * SECOND])
        world.run(START + 200 * SECOND, lambda now: None)
        root = world.hosts["root"]
        assert isinstance(root, RootHost)
        return {(row.start - START) // SECOND: row for row in root.rows if not row.withdrawn}


def test_the_window_within_which_listening_began_is_not_complete() -> None:
    """protocol 3.1, 4.7: of the first gateway, and of one that joins; the windows after it are whole."""
    rows = LiveFleet(TEN).rows()
    assert rows[0].readings == 3
    assert rows[0].coverage.missing == (("a", "began"),)
    assert rows[20].coverage.missing == (("b", "began"),)
    assert all(row.complete for start, row in rows.items() if start not in (0, 20))
    assert {0, 10, 20, 30, 40} <= set(rows)


def test_readings_under_way_when_listening_begins_belong_to_no_whole_window() -> None:
    """protocol 3.1: a sensor that reports with a delay has said a part of the window before."""
    rows = LiveFleet(TEN, delay_us=5 * SECOND).rows()
    assert rows[10].coverage.missing == (("b", "began"),) == rows[20].coverage.missing


def test_a_session_within_a_gap_of_where_listening_began_is_not_complete() -> None:
    """protocol 4.7: readings from before might be in it."""
    near, far = (LiveFleet(replace(TEN, window=Session(gap * SECOND))) for gap in (4, 1))
    (row,) = near.rows().values()
    assert ("a", "began") in row.coverage.missing
    assert far.rows()[7].complete


@pytest.mark.parametrize("driver", ["file", "simulated"])
def test_what_is_read_from_its_beginning_is_complete(driver: str) -> None:
    rows = LiveFleet(TEN, driver=driver, own_clock=DRIVERS[driver].own_clock).rows()
    assert rows[0].complete
    assert rows[0].readings == 3


def test_windows_of_readings_begin_with_them() -> None:
    """protocol 6.3: count windows hold what was heard, in its order."""
    rows = LiveFleet(replace(TEN, window=CountTumbling(3))).rows()
    assert rows
    assert all(row.complete for start, row in rows.items() if start < 20)
