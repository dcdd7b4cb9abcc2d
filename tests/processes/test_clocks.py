"""Gateways as whole processes whose clocks are wrong (libfaketime): every reading finds its time, nothing stops."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.demo.processes import Broker, ChildProcess
from tests.support.processes.broker_clients import retained
from tests.support.processes.tree import Top, gateway, region
from tests.support.processes.wrong_clock import LIBRARY, WrongClock
from tests.support.waiting import eventually

Begin = Callable[[ChildProcess], ChildProcess]
Brokers = Callable[[int], list[Broker]]

HOST = '[sensor.load]\ndriver = "host"\nmetrics = ["load"]\nevery = "100ms"\ntimeout = "2s"\n'
QUERY = (
    '[query.second]\nsource = "load"\nwindow = {type = "tumbling", length = "1s"}\n'
    'aggregates = ["count"]\nlateness = "200ms"\n'
)


@pytest.mark.broker
@pytest.mark.skipif(LIBRARY is None or sys.platform != "linux", reason="libfaketime is not installed")
def test_a_boot_in_1970_and_a_wrong_hour_cost_nothing(tmp_path: Path, ended: Begin, brokers: Brokers) -> None:
    """protocol 4.1, 4.3: the first gateway gets its time from its parent, the second does not follow its clock."""
    low, high = brokers(2)
    begin_us = time.time_ns() // 1000
    with Top(high.url) as top:
        ended(region("region-1", tmp_path / "region-1", high.url, "root", low.url))
        old = WrongClock(tmp_path / "gw-1970" / "faketime", "-20000d")
        hour = WrongClock(tmp_path / "gw-hour" / "faketime", "+0")
        for name, clock in (("gw-1970", old), ("gw-hour", hour)):
            ended(gateway(name, tmp_path / name, low.url, "region-1", HOST + QUERY, env=clock.env))

        def latest() -> int:
            whole = [row.start for row in top.results().values() if row.complete and row.received == 2]
            return max(whole, default=0)

        eventually(latest, 40)
        assert retained(low.url, "hw/1/up/gw-1970/status")["clock"]["source"] == "parent"
        hour.set("+3600")
        stepped_us = latest()
        eventually(lambda: latest() >= stepped_us + 3_000_000, 20)
        hour.set("+0")
        back_us = latest()
        eventually(lambda: latest() >= back_us + 3_000_000, 20)
        end_us = time.time_ns() // 1000 + 2_000_000
        assert all(begin_us - 2_000_000 <= row.start <= end_us for row in top.results().values())
