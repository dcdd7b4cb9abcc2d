"""Links that are slow, break in the middle of a packet, or go silent: nothing is lost, nothing counts twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from edge_agent.config.definitions.definitions import parse_sensor
from edge_agent.demo.processes import Broker
from tests.support.processes.proxy import Proxy
from tests.support.processes.tree import Node, Top, region, truth
from tests.support.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]
SECOND = 1_000_000
QUERY = """
[query.sums]
source = "boiler"
window = {type = "tumbling", length = "1s"}
aggregates = ["count", "sum"]
lateness = "300ms"
"""


class Line:
    """A gateway and a merger, each behind a proxy, and a root."""

    def __init__(self, folder: Path, low: Broker, high: Broker, stack: ExitStack) -> None:
        self.begin_us = (int(time.time()) - 1) * SECOND
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.begin_us // SECOND))
        text = (
            'driver = "simulated"\nwave = "walk"\nseed = 7\nrate = 200\nseries = 2\nresolution = 0.01\n'
            f'disorder = "200ms"\nbegin = "{stamp}"\ntimeout = "30s"\n'
        )
        self.sensor = parse_sensor("boiler", text)
        self.below, self.above = (stack.enter_context(Proxy(broker.port)) for broker in (low, high))
        config = (
            f'[node]\nid = "gw-1"\n[uplink]\nbroker = "{self.below.url}"\nparent = "region-1"\nheartbeat = "200ms"\n'
            f'keepalive = "3s"\n[spool]\ncommit_interval = "200ms"\n[sensor.boiler]\n{text}{QUERY}'
        )
        nodes = [
            region("region-1", folder / "region-1", self.above.url, "root", low.url),
            Node("run", "gw-1", folder / "gw-1", config),
        ]
        for node in nodes:
            node.start()
            stack.callback(node.kill)
        self.top = stack.enter_context(Top(high.url))
        eventually(lambda: len(self.top.results()) >= 2, 40)

    def exact(self) -> None:
        """Waits for all windows up to now, and compares them with the sensor."""
        goal_us = int(time.time()) * SECOND + SECOND
        eventually(lambda: any(row.start >= goal_us for row in self.top.results().values()), 60)
        eventually(lambda: all(row.complete for row in self.top.results().values()), 40)
        rows = {row.start: row for row in self.top.results().values()}
        expected = truth({"gw-1": self.sensor}, self.begin_us, SECOND, goal_us + SECOND)
        expected = {start: value for start, value in expected.items() if start >= min(rows)}
        got = {s: (row.readings, round((row.values["sum"] or 0) * 100)) for s, row in rows.items() if s in expected}
        assert got == expected


@pytest.fixture
def line(tmp_path: Path, brokers: Callable[[int], list[Broker]]) -> Iterator[Line]:
    low, high = brokers(2)
    with ExitStack() as stack:
        yield Line(tmp_path, low, high, stack)


def test_a_slow_link_delays_and_changes_nothing(line: Line) -> None:
    """protocol 3.3: more than a round trip of half a second is under way at any time."""
    line.below.delay_s = line.above.delay_s = 0.3
    line.exact()


def test_a_link_that_breaks_in_the_middle_of_packets_loses_and_doubles_nothing(line: Line) -> None:
    """protocol 3.3: what was in flight is sent again, and counts once."""
    for n in range(6):
        proxy = line.below if n % 2 else line.above
        proxy.delay_s = 0.05 * (n % 3)
        before = proxy.connections
        proxy.cut()
        eventually(lambda proxy=proxy, before=before: proxy.connections > before)  # type: ignore[misc]
        time.sleep(0.1 * n)  # so long it may speak
    line.exact()


def test_a_link_that_goes_silent_is_noticed_and_another_one_takes_over(line: Line) -> None:
    """protocol 3.3: half-open, as when a modem hangs: nobody says that the connection is over."""
    before = line.below.connections
    line.below.silence()
    eventually(lambda: line.below.connections > before, 40)
    line.exact()
