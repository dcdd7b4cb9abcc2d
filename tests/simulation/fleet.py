"""Random fleets in a `World`, compared with the oracle: what one central computer with all readings would say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from edge_agent.algebra.partial import Batch
from edge_agent.algebra.query import Aggregate, Query, Sensor
from edge_agent.algebra.windows import Sliding, Tumbling
from edge_agent.machines.events import Configured, Read, Restored
from edge_agent.machines.gateway import Gateway
from edge_agent.machines.merger import Merger
from edge_agent.machines.node import NodeSettings
from edge_agent.machines.root import Root, Row
from tests import oracle
from tests.simulation.world import MS, SECOND, Chaos, Host, MergerHost, RootHost, World
from tests.tolerance import close

GRACE = 20 * SECOND
LABELS = tuple(((("machine", name)),) for name in "xyz")
START = 1_000 * SECOND


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading as the world makes it: when it arrives at the sensor, and what it says."""

    arrives_us: int
    time_us: int
    series: int
    value: int


class GatewayHost(Host):
    """A gateway that reads a re-readable source: the position in it is committed with what was sliced."""

    def __init__(self, world: World, name: str, parent: str, readings: list[Reading], fleet: Fleet) -> None:
        super().__init__(world, name, parent)
        self.readings, self.fleet = readings, fleet
        self.position = 0
        self.labels = list(LABELS)

    def build(self, restored: Restored) -> Gateway:
        settings = NodeSettings(self.name, "sim", 500 * MS, 1 * SECOND)
        return Gateway(settings, self.rng, restored, self.load)

    def started(self, now_us: int) -> None:
        self.do(self.fleet.configuration(self.name), now_us)
        source = self.machine.sources.get("s") if isinstance(self.machine, Gateway) else None
        self.position = source.position if source is not None and isinstance(source.position, int) else 0

    def tick(self, now_us: int) -> None:
        first = self.position
        while self.position < len(self.readings) and self.readings[self.position].arrives_us <= now_us:
            self.position += 1
        part = self.readings[first : self.position]
        if part:
            batch = Batch(
                np.array([r.time_us for r in part], np.int64),
                np.array([r.value for r in part], np.int64),
                np.array([r.series for r in part], np.int64),
                self.labels,
            )
            self.do(Read("s", batch, position=self.position), now_us)
        super().tick(now_us)


class Fleet:
    """A tree, its readings and its queries, all from one seed."""

    def __init__(self, seed: int, chaos: Chaos, *, changes: bool = False) -> None:
        random = Random(f"fleet {seed}")
        self.world = World(seed, chaos)
        self.changes = changes
        self.sensor = Sensor("s", 1, "simulated", scale=-1, timeout_us=3 * SECOND, delay_us=1 * SECOND)
        self.queries = self._queries(random)
        self.length_us = 40 * SECOND
        hosts = self.world.hosts
        hosts["root"] = RootHost(self.world, self._root)
        depth = random.choice([0, 1, 1, 2])
        parents = ["root"]
        for level in range(depth):
            names = [f"m{level}-{i}" for i in range(random.randint(1, 2))]
            for name in names:
                hosts[name] = MergerHost(self.world, name, random.choice(parents), self._merger)
            parents = names
        self.gateways = [f"g{i}" for i in range(random.randint(1, 4))]
        self.truth: dict[str, list[Reading]] = {}
        for name in self.gateways:
            self.truth[name] = self._readings(random)
            hosts[name] = GatewayHost(self.world, name, random.choice(parents), self.truth[name], self)
        for host in hosts.values():
            host.start(0) if isinstance(host, RootHost) else None

    def _queries(self, random: Random) -> tuple[Query, ...]:
        windows: list[Any] = [Tumbling(random.choice([1, 2, 5]) * SECOND)]
        slide = random.choice([1, 2, 3]) * SECOND
        windows.append(Sliding(slide * 2 + random.choice([0, 500 * MS]), slide))
        aggregates = tuple(Aggregate(fn, fn) for fn in ("sum", "count", "max", "avg", "var", "last"))
        by = random.choice([(), ("machine",)])
        lateness = random.choice([0, 1, 2]) * SECOND
        return tuple(
            Query(f"q{i}", 1, "s", window, aggregates[: random.randint(1, 6)], by=by, lateness_us=lateness)
            for i, window in enumerate(windows[: random.randint(1, 2)])
        )

    def _readings(self, random: Random) -> list[Reading]:
        if random.random() < 0.1:
            return []
        out = []
        time_us = START + random.randint(0, 5) * SECOND
        while time_us < START + self.length_us:
            time_us += random.choice([1, 50, 200, 500, 1_000, 1_000, 6_000]) * MS
            late_us = random.choice([0, 0, 0, 0, 300 * MS, 1_500 * MS, 9 * SECOND])
            out.append(Reading(time_us + late_us, time_us, random.randrange(3), random.randint(-500, 500)))
        return sorted(out, key=lambda r: r.arrives_us)

    def configuration(self, node: str) -> Configured:
        """What is in force at a node now."""
        del node
        texts = tuple(json.dumps([q.id, q.revision]) for q in self.queries)
        return Configured((self.sensor,), self.queries, (), texts)

    def _root(self, journal: int) -> Root:
        by_text = {json.dumps([q.id, q.revision]): q for q in self.queries}
        return Root(journal, grace_us=GRACE, parse=by_text.__getitem__)

    def _merger(self, host: Host, restored: Restored) -> Merger:
        settings = NodeSettings(host.name, "sim", 500 * MS, 1 * SECOND)
        return Merger(settings, host.rng, restored, host.load, grace_us=GRACE // 2)

    def run(self) -> list[str]:
        """Chaos while there are readings, then calm until everything has arrived; answers what is wrong."""
        world = self.world
        world.now_us = START
        world.run(START + self.length_us, lambda now: None)
        world.calm()
        world.run(START + self.length_us + 150 * SECOND, lambda now: None)
        return self.wrong()

    def wrong(self) -> list[str]:
        """Differences between the final rows and the oracle, and what is still under way."""
        out = []
        for name, host in self.world.hosts.items():
            if isinstance(host, Host) and len(host.disk.frames) > 2:
                out.append(f"{name} still holds {len(host.disk.frames)} frames")
        root = self.world.hosts["root"]
        assert isinstance(root, RootHost)
        final: dict[tuple[str, str, int], Row] = {}
        for row in root.rows:
            key = (row.query, row.key, row.start)
            if key in final and row.revision != final[key].revision + 1:
                out.append(f"revision {final[key].revision} of {key} is followed by {row.revision}")
            final[key] = row
        want = self.expected()
        for key, values in want.items():
            got = final.get(key)
            if got is None:
                out.append(f"missing {key}")
            elif not all(close(got.values[name], value) for name, value in values.items()):
                out.append(f"{key}: want {values}, got {dict(got.values)}")
            elif not got.complete:
                out.append(f"{key}: incomplete at the end: {got}")
        out += [f"extra {key}" for key in final if key not in want]
        return out

    def expected(self) -> dict[tuple[str, str, int], dict[str, float | None]]:
        """The oracle's rows for windows that must have closed."""
        raise NotImplementedError


def fleets(first: int, count: int, chaos: Callable[[Random], Chaos]) -> list[str]:
    """Run many; one line a seed that went wrong."""
    out = []
    for seed in range(first, first + count):
        fleet = Fleet(seed, replace(chaos(Random(seed))))
        wrong = fleet.run()
        if wrong:
            out.append(f"seed {seed}: {len(wrong)} wrong: " + "; ".join(wrong[:2]))
    return out
