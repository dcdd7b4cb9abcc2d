"""Gateways that come back after their broker restarted: `python -m tests.faults.herd --agents 200 --restarts 3`.

Connections as gateways have them (settings, TLS, back-off), each with a certificate of its own, against a real
Mosquitto with the files of `headwater broker-config`. The broker is killed with -9 and started again. Exit code 1 when
more than 20 are back within any second, or the 99th percentile takes more than 60 s from the kill.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from edge_agent.config.node_file.settings import parse
from edge_agent.demo.keys import LOOPBACK, Keys, settings_lines
from edge_agent.demo.processes import Broker, free_ports
from edge_agent.identity.broker_files import Access
from edge_agent.ports.mqtt.backoff import STABLE_S
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Up
from edge_agent.ports.waiter import Waiter
from edge_agent.runtime.links import link

MOST_A_SECOND: Final = 20
LONGEST_P99_S: Final = 60.0
GIVE_UP_S: Final = 180.0


class Herd:
    """Agents that are connected to one broker, and the broker."""

    def __init__(self, folder: Path, agents: int, spread: str = "") -> None:
        """spread: of `[uplink] spread`; '' for the default."""
        (port,) = free_ports(1)
        keys = Keys(folder / "keys")
        self.broker = Broker("broker", folder, port, keys=keys.issue("broker", LOOPBACK), access=Access(("root",)))
        self._waiter = Waiter()
        lines = f'spread = "{spread}"\n' if spread else ""
        self.connections = []
        for n in range(1, agents + 1):
            table = f'broker = "{self.broker.url}"\n{settings_lines(keys.issue(f"gw-{n}"))}{lines}'
            settings = parse(f'[node]\nid = "gw-{n}"\n[uplink]\n{table}[spool]\npath = "spool.db"\n')
            assert settings.uplink is not None
            self.connections.append(Connection(link(settings.uplink, f"gw-{n}"), seed=n))

    def up(self) -> int:
        return sum(connection.up for connection in self.connections)

    def serve(self, seconds: float) -> list[float]:
        """Serve all until they are up, at most `seconds`. Returns when each came up."""
        at: list[float] = []
        until = time.monotonic() + seconds
        while self.up() < len(self.connections) and time.monotonic() < until:
            self._waiter.wait(self.connections, 0.05)
            at += self._ups()
        return at

    def _ups(self) -> list[float]:
        now = time.monotonic()
        return [now for connection in self.connections for report in connection.take() if isinstance(report, Up)]

    def idle(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._waiter.wait(self.connections, 0.2)
            self._ups()

    def restart(self, down_s: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Kill the broker and start it again. Returns the seconds from the kill to each return, sorted."""
        begin = time.monotonic()
        self.broker.kill()
        self.idle(down_s)
        assert self.up() == 0
        self.broker.start()
        at = self.serve(GIVE_UP_S)
        return np.sort(np.array(at) - begin)

    def close(self) -> None:
        for connection in self.connections:
            connection.close(0.0)
        self._waiter.close()
        self.broker.kill()


@contextmanager
def herd(folder: Path, agents: int, spread: str = "") -> Iterator[Herd]:
    """All connected."""
    made = Herd(folder, agents, spread)
    try:
        made.broker.start()
        for connection in made.connections:
            connection.open()
        made.serve(GIVE_UP_S)
        yield made
    finally:
        made.close()


def most_in_a_second(at: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
    """at: sorted times [s]. The most within any second, wherever it begins."""
    return int((np.searchsorted(at, at + 1.0, side="left") - np.arange(len(at))).max())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.herd", description=__doc__)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--down", type=float, default=5.0, metavar="S", help="from the kill to the start (5)")
    args = parser.parse_args(argv)
    good = True
    with tempfile.TemporaryDirectory(prefix="headwater-herd-") as folder, herd(Path(folder), args.agents) as agents:
        print(f"{agents.up()} of {args.agents} connected")
        for _ in range(args.restarts):
            agents.idle(STABLE_S)  # connections that lived: as in a fleet
            back_s = agents.restart(args.down)
            median_s, p99_s = np.percentile(back_s, [50, 99])
            most = most_in_a_second(back_s)
            print(
                f"{len(back_s)} back after {args.down:g} s without broker: median {median_s:.1f} s, p99 {p99_s:.1f} s, "
                f"last {back_s[-1]:.1f} s; at most {most} in a second",
                flush=True,
            )
            good &= len(back_s) == args.agents and p99_s <= LONGEST_P99_S and most <= MOST_A_SECOND
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
