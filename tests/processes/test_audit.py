"""`headwater audit` of real processes: while they run, after kills, and when they have stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cloud_job.audit import root_book
from edge_agent.cli.audit import audited, balanced, lines
from edge_agent.demo.processes import Broker, ChildProcess
from edge_agent.ports.mqtt.link import Link
from tests.support.processes.tree import Top, book_of, gateway, region
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker
CONFIG = """
[sensor.boiler]
driver = "simulated"
rate = 200
resolution = 0.01
timeout = "30s"

[query.sums]
source = "boiler"
window = {type = "tumbling", length = "1s"}
aggregates = ["count", "sum"]
lateness = "300ms"
"""


def test_the_books_of_a_tree_balance_while_it_runs_after_kills_and_at_the_end(
    tmp_path: Path,
    ended: Callable[[ChildProcess], ChildProcess],
    brokers: Callable[[int], list[Broker]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """protocol 9.1"""
    low, high = brokers(2)
    nodes = [ended(gateway(f"gw-{n}", tmp_path / f"gw-{n}", low.url, "hall", CONFIG)) for n in (1, 2)]
    nodes.append(ended(region("hall", tmp_path / "hall", high.url, "root", low.url)))
    links = [Link(broker.url, f"audit-{at}", connect_timeout_s=5.0) for at, broker in enumerate((low, high))]
    with Top(high.url) as top:
        monkeypatch.setattr(root_book, "root_book", lambda _folder: book_of(top))
        eventually(lambda: len(top.results()) >= 2)
        for victim in (nodes[0], nodes[2]):
            victim.kill()
            victim.start()
        known = len(top.results())
        eventually(lambda: len(top.results()) >= known + 2, 40)
        running = audited("", links, 10.0)
        assert balanced(running), lines(running)
        assert running.produced > running.stored > 0
        for node in nodes:
            node.stop()
        stopped = audited("", links, 10.0)
        assert balanced(stopped), lines(stopped)
        assert lines(stopped)[-1] == "balanced", lines(stopped)
