"""Real gateways and regions that get another parent: sums are the sensors', or what is missing is declared."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cloud_job.audit import root_book
from edge_agent.cli.audit import audited, balanced, lines
from edge_agent.config.definitions.definitions import parse_sensor
from edge_agent.demo.processes import Broker, ChildProcess
from edge_agent.ports.mqtt.link import Link
from tests.support.processes.broker_clients import publish, retained
from tests.support.processes.tree import Node, Top, book_of, region, truth
from tests.support.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]
SECOND = 1_000_000
GRACE_US = 2 * SECOND  # of the root: what is missing is seen soon
QUERY = """
[query.sums]
source = "boiler"
window = {type = "tumbling", length = "1s"}
aggregates = ["count", "sum"]
lateness = "300ms"
"""
MORE = {"source": "boiler", "window": {"type": "tumbling", "length": "1s"}, "aggregates": ["count"]}
Ended = Callable[[ChildProcess], ChildProcess]


class Halls:
    """Two regions with a broker each, a root above them, and one gateway."""

    def __init__(self, folder: Path, ended: Ended, brokers: list[Broker]) -> None:
        self.folder, self._ended = folder, ended
        self.one, self.two, self.top_broker = brokers
        self.begin_us = (int(time.time()) - 1) * SECOND
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.begin_us // SECOND))
        self._text = (
            'driver = "simulated"\nwave = "walk"\nseed = 7\nrate = 200\nseries = 2\nresolution = 0.01\n'
            f'disorder = "200ms"\nbegin = "{stamp}"\ntimeout = "30s"\n'
        )
        self._sensor = parse_sensor("boiler", self._text)
        self.regions = [
            ended(region(f"region-{n}", folder / f"region-{n}", self.top_broker.url, "root", broker.url))
            for n, broker in enumerate((self.one, self.two), 1)
        ]

    def gateway(self, uplink: str) -> ChildProcess:
        """It starts; where it has run before, with another configuration."""
        config = (
            f'[node]\nid = "gw-1"\n[uplink]\nheartbeat = "200ms"\nkeepalive = "3s"\n{uplink}\n'
            f'[spool]\ncommit_interval = "200ms"\n[sensor.boiler]\n{self._text}{QUERY}'
        )
        return self._ended(Node("run", "gw-1", self.folder / "gw-1", config))

    def region(self, name: str, uplink: str) -> ChildProcess:
        """A further region, below one of the two."""
        config = (
            f'[node]\nid = "{name}"\nrole = "region"\n[spool]\ncommit_interval = "200ms"\n'
            f'[uplink]\nheartbeat = "200ms"\n{uplink}\n'
        )
        return self._ended(Node("merge", name, self.folder / name, config))

    def truth(self, until_us: int, first_us: int) -> dict[int, tuple[int, int]]:
        found = truth({"gw-1": self._sensor}, self.begin_us, SECOND, until_us)
        return {start: value for start, value in found.items() if start >= first_us}

    def exact(self, top: Top) -> None:
        """Waits for all windows up to now, and compares them with the sensor."""
        goal_us = int(time.time()) * SECOND
        eventually(lambda: any(row.start >= goal_us for row in top.results("sums").values()), 30)
        eventually(lambda: all(row.complete for row in top.results("sums").values()), 30)
        got = sums(top)
        assert all(row.expected == 1 for row in top.results("sums").values())
        expected = self.truth(goal_us + SECOND, min(got))
        assert {start: value for start, value in got.items() if start in expected} == expected

    def balanced(self, top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was produced is stored, as the nodes say at the three brokers (9.1)."""
        links = [Link(broker.url, "audit", connect_timeout_s=5.0) for broker in (self.one, self.two, self.top_broker)]
        monkeypatch.setattr(root_book, "root_book", lambda _folder: book_of(top))
        found = audited("", links, 10.0)
        assert balanced(found), lines(found)

    def said(self, broker: Broker, what: str, node: str = "gw-1") -> object:
        """A field of the retained status of a node."""
        return (retained(broker.url, f"hw/1/up/{node}/status") or {}).get(what)


@pytest.fixture
def halls(tmp_path: Path, ended: Ended, brokers: Callable[[int], list[Broker]]) -> Halls:
    return Halls(tmp_path, ended, brokers(3))


def sums(top: Top) -> dict[int, tuple[int, int]]:
    return {row.start: (row.readings, round((row.values["sum"] or 0) * 100)) for row in top.results("sums").values()}


def instant_us(text: str) -> int:
    return round(datetime.datetime.fromisoformat(text).timestamp() * SECOND)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edge_agent", *words], capture_output=True, text=True, timeout=30, check=False
    )


def test_a_gateway_gets_another_parent_at_another_broker_in_the_middle_of_its_stream(halls: Halls) -> None:
    """protocol 1.5: what the first one had not receipted waits for it, at its own broker."""
    agent = halls.gateway(f'broker = "{halls.one.url}"\nparent = "region-1"')
    with Top(halls.top_broker.url, grace_us=GRACE_US) as top:
        eventually(lambda: len(top.results("sums")) >= 2, 20)
        halls.regions[0].kill()
        time.sleep(1.0)  # so long it sends, and nobody receipts
        agent.stop()
        halls.gateway(
            f'broker = "{halls.two.url}"\nparent = "region-2"\n[uplink.brokers]\nregion-1 = "{halls.one.url}"'
        )
        eventually(lambda: halls.said(halls.two, "parent") == "region-2", 20)
        moved_us = int(time.time()) * SECOND
        time.sleep(2.0)
        assert not any(row.complete for row in top.results("sums").values() if row.start >= moved_us)
        halls.regions[0].start()
        halls.exact(top)


def test_a_region_gets_another_parent_and_its_children_stay_on_the_broker_of_the_old_one(halls: Halls) -> None:
    """protocol 1.5: one connection to that broker serves its children, and what waits for the old parent."""
    hall = halls.region("hall", f'broker = "{halls.one.url}"\nparent = "region-1"')
    halls.gateway(f'broker = "{halls.one.url}"\nparent = "hall"')
    with Top(halls.top_broker.url, grace_us=GRACE_US) as top:
        eventually(lambda: len(top.results("sums")) >= 2, 20)
        halls.regions[0].kill()
        time.sleep(1.0)  # so long it sends, and nobody receipts
        hall.stop()
        moved = f'[uplink.brokers]\nregion-1 = "{halls.one.url}"\n[lower]\nbroker = "{halls.one.url}"'
        halls.region("hall", f'broker = "{halls.two.url}"\nparent = "region-2"\n{moved}')
        eventually(lambda: halls.said(halls.two, "parent", "hall") == "region-2", 20)
        halls.regions[0].start()
        halls.exact(top)


def test_a_gateway_whose_broker_is_gone_goes_to_the_next_parent_and_back(
    halls: Halls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 1.5; definitions come by the broker where it is, and the books balance (9.1)."""
    halls.gateway(
        f'broker = "{halls.one.url}"\nparents = ["region-1", "region-2"]\naway = "2s"\nback = "1s"\n'
        f'[uplink.brokers]\nregion-2 = "{halls.two.url}"'
    )
    with Top(halls.top_broker.url, grace_us=GRACE_US) as top:
        eventually(lambda: len(top.results("sums")) >= 2, 20)
        halls.one.kill()
        eventually(lambda: halls.said(halls.two, "parent") == "region-2", 20)
        publish(halls.top_broker.url, "hw/1/all/cfg/query/more", json.dumps(MORE))
        eventually(lambda: "query/more" in retained(halls.two.url, "hw/1/up/gw-1/state")["items"], 20)
        halls.one.start()
        eventually(lambda: halls.said(halls.one, "parent") == "region-1", 40)
        assert halls.said(halls.two, "parent") == "region-1"
        halls.exact(top)
        halls.balanced(top, monkeypatch)


def test_a_region_whose_parent_is_away_goes_to_the_next_and_back(halls: Halls, monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 1.5, 6.5: its children stay on the broker that was its parent's too, and get what is published above."""
    halls.region(
        "hall",
        f'broker = "{halls.one.url}"\nparents = ["region-1", "region-2"]\naway = "2s"\nback = "1s"\n'
        f'[uplink.brokers]\nregion-2 = "{halls.two.url}"',
    )
    halls.gateway(f'broker = "{halls.one.url}"\nparent = "hall"')
    with Top(halls.top_broker.url, grace_us=GRACE_US) as top:
        eventually(lambda: len(top.results("sums")) >= 2, 20)
        halls.regions[0].kill()
        eventually(lambda: halls.said(halls.two, "parent", "hall") == "region-2", 20)
        publish(halls.top_broker.url, "hw/1/all/cfg/query/more", json.dumps(MORE))
        eventually(lambda: "query/more" in retained(halls.one.url, "hw/1/up/gw-1/state")["items"], 20)
        halls.regions[0].start()
        eventually(lambda: halls.said(halls.one, "parent", "hall") == "region-1", 40)
        halls.exact(top)
        eventually(lambda: len(top.results("more")) >= 2, 20)
        halls.balanced(top, monkeypatch)


def test_a_region_whose_broker_is_gone_goes_to_a_parent_on_that_of_its_children_and_back(
    halls: Halls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 1.5: one connection serves that parent and the children."""
    halls.region(
        "hall",
        f'broker = "{halls.one.url}"\nparents = ["region-1", "region-2"]\naway = "2s"\nback = "1s"\n'
        f'[uplink.brokers]\nregion-2 = "{halls.two.url}"\n[lower]\nbroker = "{halls.two.url}"',
    )
    halls.gateway(f'broker = "{halls.two.url}"\nparent = "hall"')
    with Top(halls.top_broker.url, grace_us=GRACE_US) as top:
        eventually(lambda: len(top.results("sums")) >= 2, 20)
        halls.one.kill()
        eventually(lambda: halls.said(halls.two, "parent", "hall") == "region-2", 20)
        moved_us = int(time.time()) * SECOND
        time.sleep(1.0)
        halls.one.start()
        eventually(lambda: halls.said(halls.one, "parent", "hall") == "region-1", 40)
        assert halls.said(halls.two, "parent", "hall") == "region-1"
        halls.exact(top)
        assert any(row.start >= moved_us for row in top.results("sums").values())
        halls.balanced(top, monkeypatch)


def test_what_waits_for_a_parent_that_never_comes_back_is_shown_and_can_be_given_up(halls: Halls) -> None:
    """protocol 1.5: it is declared; no window that lacks it is called complete."""
    halls.gateway(
        f'broker = "{halls.one.url}"\nparents = ["region-1", "region-2"]\naway = "2s"\n'
        f'[uplink.brokers]\nregion-2 = "{halls.two.url}"'
    )
    with Top(halls.top_broker.url, grace_us=GRACE_US) as top:
        eventually(lambda: len(top.results("sums")) >= 2, 20)
        halls.regions[0].kill()
        time.sleep(1.5)  # so long it sends: a window at least
        halls.one.kill()
        eventually(lambda: halls.said(halls.two, "in_doubt") is not None, 30)
        shown = command("status", "--broker", halls.two.url)
        assert shown.returncode == 1
        assert re.search(r"IN DOUBT: \d+ frames wait for region-1 since", shown.stdout)
        assert "headwater accept-loss gw-1" in shown.stdout
        given_up = command("accept-loss", "gw-1", "--broker", halls.two.url)
        assert given_up.returncode == 0, given_up.stderr
        assert "gave up" in given_up.stdout
        again = command("accept-loss", "gw-1", "--broker", halls.two.url)
        assert (again.returncode, again.stdout) == (1, "gw-1: no frame waits for a former parent: nothing to give up\n")
        assert halls.said(halls.two, "in_doubt") is None
        goal_us = int(time.time()) * SECOND
        eventually(lambda: any(row.start >= goal_us for row in top.results("sums").values()), 30)
        rows = {row.start: row for row in top.results("sums").values()}
        got, expected = sums(top), halls.truth(goal_us, min(rows))
        wrong = {start for start, value in expected.items() if got.get(start) != value}
        assert wrong, "something was given up"
        assert not any(rows[start].complete for start in wrong & rows.keys())
        told = re.search(r"frames for region-1 with (\d+) readings from (\S+Z) to (\S+Z);", given_up.stdout)
        assert told is not None, given_up.stdout
        count, from_us, upto_us = int(told[1]), instant_us(told[2]), instant_us(told[3])
        assert min(wrong) < upto_us
        assert max(wrong) + SECOND > from_us
        assert count == sum(expected[start][0] - got.get(start, (0, 0))[0] for start in wrong)
