"""Ten thousand gateways below a hundred mergers: exact while some fail, and what a node costs.

`python -m tests.support.simulation.large --gateways 100 1000 10000` runs each size for an hour at one reading a second
a gateway, compares every row with numpy, prints the cost and draws it (--svg). Mergers, lander and root are the real
machines on the real wire, and so is one gateway in a hundred: these, and the mergers, are killed between any two of
their actions again and again. The other gateways are stand-ins (steady_gateways). Of all messages 1 % is lost and 1 %
comes twice.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from edge_agent.algebra.query.query import Aggregate, Query, Sensor
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.events import Arrived, Restored
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from edge_agent.runtime.region import heard, pack, unpack
from tests.support.simulation import cost_plot
from tests.support.simulation.failpoints import CrashError
from tests.support.simulation.fleets import LABELS, Fleet, GatewayHost, Reading
from tests.support.simulation.network import Message
from tests.support.simulation.steady_gateways import WINDOW_US, Pattern, SteadyGateway, Windows
from tests.support.simulation.world import SECOND, Chaos, Host, MergerHost, RootHost, World

BEGIN_US: Final = 1_020 * SECOND  # a multiple of the window
STEP_US: Final = 10 * SECOND
GRACE_US: Final = 120 * SECOND  # of the lowest mergers; each tier above adds as much
HEAL_US: Final = 900 * SECOND
REAL: Final = 100  # one gateway in so many is a whole one, and fails
DOOM: Final = 0.02  # of nodes that fail: how likely it is in a step
CHILDREN: Final = 100  # of a merger, where it is not said


class LargeWorld(World):
    """Delivers by the bunch, and kills the nodes that are doomed at some action of theirs."""

    def __init__(self, seed: int, chaos: Chaos) -> None:
        super().__init__(seed, chaos)
        self.doomed: dict[str, int] = {}  # node -> actions until it dies
        self.steady: dict[str, SteadyGateway] = {}
        self.step_us = STEP_US

    def may_crash(self, host: Host | RootHost, name: str) -> None:
        left = self.doomed.get(host.name)
        if left is None:
            return
        self.doomed[host.name] = left - 1
        if left <= 0:
            del self.doomed[host.name]
            self.crashes[type(host).__name__] += 1
            raise CrashError(name)

    def advance(self, *, failing: bool) -> None:
        """One step."""
        self.now_us += self.step_us
        if failing:
            for name in self.hosts:
                if name not in self.doomed and self.random.random() < DOOM:
                    self.doomed[name] = self.random.randrange(40)
        frames: dict[str, list[Message]] = {}
        for message in self.network.due(self.now_us):
            if message.address.to in self.steady:
                self.steady[message.address.to].deliver(message)
            elif message.address.kind == "frame" and isinstance(self.hosts[message.address.to], MergerHost):
                frames.setdefault(message.address.to, []).append(message)
            else:
                self.hosts[message.address.to].deliver(message, self.now_us)
        for name, messages in frames.items():
            merger = self.hosts[name]
            assert isinstance(merger, Host)
            merger.do(Arrived(tuple((m.address.sender, heard(m.payload), None) for m in messages)), self.now_us)
        for host in self.hosts.values():
            self._tick(host)
        for gateway in self.steady.values():
            gateway.tick(self.now_us)


class LargeFleet(Fleet):
    """One query, a row a minute and machine; readings of a seed, one a second."""

    world: LargeWorld

    def __init__(self, seed: int, gateways: int, mergers: int, tiers: int, seconds: int) -> None:
        """tiers: of parents, the root among them. seconds: a multiple of 60."""
        self.count, self.merger_count, self.tiers = gateways, mergers, tiers
        self.values = np.random.default_rng(seed).integers(-500, 500, (gateways, seconds), np.int16)
        self.mergers: list[str] = []
        super().__init__(seed, Chaos(drop=0.01, repeat=0.01, delay_us=2 * SECOND))
        self.length_us = seconds * SECOND

    def _world(self, seed: int, chaos: Chaos) -> World:
        return LargeWorld(seed, chaos)

    def _queries(self, random: Random) -> tuple[Query, ...]:
        del random
        aggregates = tuple(Aggregate(fn, fn) for fn in ("sum", "count", "max"))
        return (Query("q0", 1, "s", Tumbling(WINDOW_US), aggregates, by=("machine",)),)

    def _sensor(self) -> Sensor:
        return Sensor("s", 1, "simulated", scale=-1, timeout_us=60 * SECOND, rereadable=True, own_clock=True)

    def settings(self, name: str) -> NodeSettings:
        return NodeSettings(name, "sim", STEP_US, STEP_US)

    def _root(self, journal: int) -> NumpyRoot:
        return NumpyRoot(journal, grace_us=GRACE_US * self.tiers, revise_every_us=60 * SECOND)

    def _merger(self, host: Host, restored: Restored) -> Merger:
        grace_us = GRACE_US * (self.tiers - 1 - int(host.name[1 : host.name.index("-")]))
        return Merger(
            self.settings(host.name), host.rng, restored, host.disk.load, grace_us=grace_us, pack=pack, unpack=unpack
        )

    def _grow(self, random: Random, prefix: str) -> None:
        """Mergers by tier, a tenth of them in each but the lowest; below these the gateways, in turn."""
        del random, prefix
        world, parents, left = self.world, ["root"], self.merger_count
        for level in range(self.tiers - 1):
            lowest = level == self.tiers - 2
            names = [f"m{level}-{i}" for i in range(left if lowest else max(self.merger_count // 10, 1))]
            for i, name in enumerate(names):
                world.hosts[name] = MergerHost(world, name, parents[i % len(parents)], self._merger)
            parents, left = names, max(left - len(names), 1)
            self.mergers += names
        self.gateways = [f"g{i}" for i in range(self.count)]
        self.truth = {name: self._readings_of(i) for i, name in enumerate(self.gateways) if i % REAL == 0}
        pattern = self._pattern()
        windows = Windows(self.values, pattern.plan.basis, BEGIN_US)
        for i, name in enumerate(self.gateways):
            parent = parents[i // REAL % len(parents)] if i % REAL == 0 else parents[i % len(parents)]
            if name in self.truth:
                host = world.hosts[name] = GatewayHost(world, name, parent, self.truth[name], self)
                host.hears_after_us = 0
            else:
                world.steady[name] = SteadyGateway(world, parent, i, windows, pattern)

    def _readings_of(self, number: int) -> list[Reading]:
        series = number % len(LABELS)
        times = range(BEGIN_US, BEGIN_US + len(self.values[number]) * SECOND, SECOND)
        return [Reading(us, us, series, int(v)) for us, v in zip(times, self.values[number].tolist(), strict=True)]

    def _pattern(self) -> Pattern:
        """What a real gateway sends that nobody answers."""
        world = World(0, Chaos())
        host = GatewayHost(world, "pattern", "nobody", self.truth[self.gateways[0]][:150], self)
        host.hears_after_us, world.hosts["pattern"] = 0, host
        world.now_us, world.step_us = BEGIN_US, STEP_US
        world.run(BEGIN_US + 180 * SECOND, lambda now: None)
        return Pattern.of(host)

    def run(self) -> list[str]:
        world = self.world
        world.now_us = BEGIN_US
        while world.now_us < BEGIN_US + self.length_us:
            world.advance(failing=True)
        world.calm()
        world.doomed.clear()
        until_us = world.now_us + HEAL_US
        while world.now_us < until_us and not self._arrived():
            world.advance(failing=False)
        self.root_host.batch()
        self.root_host.flush()
        return self.wrong()

    def _arrived(self) -> bool:
        end_us = BEGIN_US + self.length_us
        if not all(each.done for each in self.world.steady.values()):
            return False
        memberships = self.root_host.root.decider.parent.children.memberships.values()
        fronts: list[Any] = [us for each in memberships for us, _ in each.leaf_frontiers().values()]
        return len(fronts) == self.count and min(fronts) >= end_us

    def wrong(self) -> list[str]:
        """Rows that are not exactly numpy's, not complete, not there, or too many."""
        final: dict[tuple[str, int], Row] = {}
        for row in self.root_host.rows:
            final[row.key, row.start] = row
        out, per = [], self.values.reshape(self.count, -1, WINDOW_US // SECOND)
        for series, labels in enumerate(LABELS):
            own = per[series :: len(LABELS)]
            for at in range(own.shape[1]):
                row = final.pop((f"machine={labels[0][1]}", BEGIN_US + at * WINDOW_US), None)
                window = own[:, at]
                if not window.size:
                    continue
                want = {
                    "sum": round(window.sum(dtype=np.int64) / 10, 1),
                    "count": window.size,
                    "max": window.max() / 10,
                }
                if row is None or row.withdrawn:
                    out.append(f"missing {labels} {at}")
                elif not row.complete or {name: round(row.values[name] or 0, 1) for name in want} != want:
                    out.append(f"want {want}, got {row.values}, missing {len(row.coverage.missing)}")
        return out + [f"extra {key}" for key, row in final.items() if not row.withdrawn]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulation.large", description=__doc__)
    parser.add_argument("--gateways", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--mergers", type=int, help="one for every hundred gateways where it is not said")
    parser.add_argument("--tiers", type=int, default=3, help="of parents, the root among them")
    parser.add_argument("--seconds", type=int, default=3_600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--svg", type=Path, help="where to draw the cost")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    costs, failed = [], 0
    for gateways in args.gateways:
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        mergers = args.mergers or max(gateways // CHILDREN, 2)
        fleet = LargeFleet(args.seed, gateways, mergers, args.tiers, args.seconds)
        wrong = fleet.run()
        cpu_s, took_s = time.process_time() - began_cpu_s, time.monotonic() - began_s
        nodes = gateways + len(fleet.mergers) + 1
        costs.append((nodes, cpu_s))
        failed += len(wrong)
        report(fleet, wrong)
        print(f"    {cpu_s:.1f} s of one processor, {took_s:.0f} s, {cpu_s / nodes * 1e3:.1f} ms a node", flush=True)
    if args.svg is not None:
        args.svg.write_text(cost_plot.drawn(costs, args.seconds))
    print(f"sizes {len(costs)}, wrong rows {failed}")
    return failed > 0


def report(fleet: LargeFleet, wrong: list[str]) -> None:
    """What was simulated, and what came of it."""
    world, seconds = fleet.world, fleet.length_us // SECOND
    killed = ", ".join(f"{name.removesuffix('Host').lower()} {n}" for name, n in sorted(world.crashes.items()))
    lost, twice = world.faults.hits["network.drop"], world.faults.hits["network.repeat"]
    print(f"{fleet.count} gateways ({len(fleet.truth)} whole ones), {len(fleet.mergers)} mergers, root:")
    print(f"    {seconds} s simulated, then {(world.now_us - BEGIN_US) // SECOND - seconds} s until all was there")
    print(f"    killed: {killed}; messages {world.network.stats['messages']}, lost {lost}, twice {twice}")
    print(f"    {fleet.count * seconds} readings, {len(fleet.root_host.rows)} rows, wrong {len(wrong)}")
    for line in wrong[:3]:
        print(f"    {line[:300]}")


if __name__ == "__main__":
    sys.exit(main())
