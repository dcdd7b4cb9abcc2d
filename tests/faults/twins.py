"""Two devices with one identity: `python -m tests.faults.twins --seconds 60`.

A gateway, and after some seconds a second one with the same certificate, node id and sensor id but other readings and a
spool of its own; a region and a root above them; the broker has the files of `headwater broker-config`. The second ends
after --seconds. Exit code 1 if the region raises no alarm within 10 s, if either device connects more than 10 times a
minute, or if a row is not what the first device has read.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_agent.config import topics
from edge_agent.config.definitions.definitions import parse_sensor
from edge_agent.demo.keys import LOOPBACK, Keys, link_with, settings_lines
from edge_agent.demo.processes import Broker, free_ports
from edge_agent.identity.broker_files import Access
from tests.support.processes.broker_clients import heard
from tests.support.processes.tree import Node, Top, truth

SECOND: Final = 1_000_000
ALONE_S: Final = 3.0  # the first device has results before the second one comes
ALARM_S: Final = 10.0
MOST_A_MINUTE: Final = 10
SETTLE_S: Final = 150.0  # the first device pauses for up to a minute before it is back
QUERY: Final = (
    '[query.sums]\nsource = "boiler"\nwindow = {type = "tumbling", length = "1s"}\naggregates = ["sum"]\n'
    'lateness = "100ms"\n'
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """alarm_s: from the start of the second device to the alarm; None without one. connects: of both, in `minutes`.

    wrong: windows of the first device that differ, are missing, or hold what nobody should have sent.
    """

    alarm_s: float | None
    connects: int
    minutes: float
    windows: int
    wrong: tuple[str, ...]

    @property
    def good(self) -> bool:
        few = self.connects <= 2 * (1 + MOST_A_MINUTE * self.minutes)
        return self.alarm_s is not None and self.alarm_s <= ALARM_S and few and not self.wrong and self.windows > 0

    def summary(self) -> str:
        alarm = "no alarm" if self.alarm_s is None else f"alarm after {self.alarm_s:.1f} s"
        rows = f"{self.windows} windows, {len(self.wrong)} wrong"
        return f"{alarm}; {self.connects} connects of two devices in {self.minutes * 60:.0f} s; {rows}"


class Site:
    """Broker, region and root with certificates, and the two devices."""

    def __init__(self, folder: Path) -> None:
        keys = Keys(folder / "keys")
        access = Access(parents=("north", "root"), operators=("ops",))
        (port,) = free_ports(1)
        self.broker = Broker("broker", folder / "broker", port, keys=keys.issue("broker", LOOPBACK), access=access)
        self._ops, self._root, self._url = keys.issue("ops"), keys.issue("root"), self.broker.url
        link = f'broker = "{self._url}"\n{settings_lines(keys.issue("north"))}'
        spool = '[spool]\ncommit_interval = "200ms"\n'
        region = f'[node]\nid = "north"\nrole = "region"\n[uplink]\n{link}spread = "0s"\n[lower]\n{spool}'
        self.region = Node("merge", "north", folder / "north", region)
        self.begin_us = int(time.time()) * SECOND
        link = f'broker = "{self._url}"\nparent = "north"\n{settings_lines(keys.issue("gw-1"))}'
        begin = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.begin_us // SECOND))
        self.devices = []
        for seed in (1, 2):
            sensor = {"driver": "simulated", "rate": 20, "resolution": 0.01, "begin": begin, "seed": seed}
            table = "[sensor.boiler]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in sensor.items())
            text = f'[node]\nid = "gw-1"\n[uplink]\n{link}{spool}{table}{QUERY}'
            self.devices.append(Node("run", f"device-{seed}", folder / f"device-{seed}", text))
            if seed == 1:
                self.sensor = parse_sensor("boiler", json.dumps(sensor))

    @contextmanager
    def running(self) -> Iterator[Top]:
        """Without the second device."""
        with ExitStack() as stack:
            for child in (self.broker, self.region, *self.devices):
                stack.callback(child.kill)
            self.broker.start()
            top = stack.enter_context(Top(link_with(self._url, self._root, backoff_s=(0.1, 0.5))))
            self.region.start()
            self.devices[0].start()
            yield top

    def alarms(self) -> dict[str, Any]:
        """Those in the region's status."""
        topic = f"{topics.PREFIX}/up/north/status"
        for _, payload, _, _ in heard(link_with(self._url, self._ops), topic, 1.0):
            found = json.loads(payload).get("alarms", {})
            return dict(found)
        return {}

    def connects(self) -> int:
        """How often a device of this name has connected, as the broker says."""
        return len(re.findall(r"New client connected from \S+ as gw-1 ", self.broker.log.read_text()))


def twins(folder: Path, seconds: float) -> Outcome:
    """seconds: how long both run."""
    site = Site(folder)
    with site.running() as top:
        until = time.monotonic() + 30.0
        while not top.results() and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(ALONE_S)
        begin, before, alarm_s = time.monotonic(), site.connects(), None
        site.devices[1].start()
        while (ran_s := time.monotonic() - begin) < seconds:
            if alarm_s is None and "gw-1" in site.alarms():
                alarm_s = time.monotonic() - begin
            time.sleep(0.2)
        connects = site.connects() - before
        site.devices[1].kill()
        goal_us = int(time.time()) * SECOND
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until and not any(row.start >= goal_us for row in top.results().values()):
            time.sleep(0.2)
        rows = {row.start: (row.readings, round((row.values["sum"] or 0) * 100)) for row in top.results().values()}
    first = min(rows, default=goal_us)
    made = truth({"gw-1": site.sensor}, site.begin_us, SECOND, goal_us)
    expected = {start: row for start, row in made.items() if start >= first}
    wrong = tuple(f"{start}: {rows.get(start)}, not {row}" for start, row in expected.items() if rows.get(start) != row)
    return Outcome(alarm_s, connects, ran_s / 60, len(expected), wrong)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.twins", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="headwater-twins-") as folder:
        outcome = twins(Path(folder), args.seconds)
    print(outcome.summary())
    print("\n".join(outcome.wrong[:10]))
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main())
