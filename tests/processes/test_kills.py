"""Real processes over real brokers, killed with -9 at random moments: nothing is lost, nothing counts twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.algebra.query.query import Sensor
from edge_agent.config.definitions.definitions import parse_sensor
from edge_agent.demo.processes import Broker, ChildProcess
from tests.support.processes.tree import Top, gateway, region, truth
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


def sensor_text(seed: int, begin_us: int) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begin_us // SECOND))
    return (
        f'driver = "simulated"\nwave = "walk"\nseed = {seed}\nrate = 200\nseries = 2\nresolution = 0.01\n'
        f'disorder = "200ms"\ngaps = 0.02\nbegin = "{stamp}"\ntimeout = "30s"\n'
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_kills_at_random_moments_lose_and_double_nothing(
    tmp_path: Path, ended: Callable[[ChildProcess], ChildProcess], brokers: Callable[[int], list[Broker]], seed: int
) -> None:
    """protocol 3.1, 3.2, 3.3, 2.2: agents, a merger and brokers die at any moment, sums stay those of the sensors."""
    chance = random.Random(seed)
    low, high = brokers(2)
    begin_us = (int(time.time()) - 1) * SECOND
    sensors: dict[str, Sensor] = {}
    agents = []
    for n in (1, 2):
        text = sensor_text(10 * seed + n, begin_us)
        sensors[f"gw-{n}"] = parse_sensor("boiler", text)
        config = f"[sensor.boiler]\n{text}{QUERY}"
        agents.append(ended(gateway(f"gw-{n}", tmp_path / f"gw-{n}", low.url, "region-1", config)))
    merger = ended(region("region-1", tmp_path / "region-1", high.url, "root", low.url))
    with Top(high.url) as top:
        eventually(lambda: len(top.results()) >= 2)
        victims = [*agents, merger, low, high]
        until = time.monotonic() + 12
        while time.monotonic() < until:
            time.sleep(chance.uniform(0.05, 0.8))
            victim = chance.choice(victims)
            victim.kill()
            time.sleep(chance.choice((0.0, 0.3)))
            victim.start()
        goal_us = int(time.time()) * SECOND + SECOND
        eventually(lambda: any(row.start >= goal_us for row in top.results().values()), 40)
        eventually(lambda: all(row.complete for row in top.results().values()), 20)
        rows = {row.start: row for row in top.results().values()}
    first = min(rows)
    expected = {s: v for s, v in truth(sensors, begin_us, SECOND, goal_us + SECOND).items() if s >= first}
    got = {s: (row.readings, round((row.values["sum"] or 0) * 100)) for s, row in rows.items() if s in expected}
    assert got == expected
    assert all(row.expected == 2 for row in rows.values())
    assert len(expected) >= 12
