"""Random fleets in a `World`, compared with the oracle over all their readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np

from edge_agent.algebra.frame import HORIZON_US, NEVER_US
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Aggregate, Query, Sensor
from edge_agent.algebra.windows import Session, Sliding, Tumbling
from edge_agent.config.definitions.definitions import canonical_query, canonical_sensor
from edge_agent.machines.downlink.member import AHEAD_US
from edge_agent.machines.events import Configured, Read, Restored
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.root.decision.root_state import RootLimits
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from tests.oracle import central_computer
from tests.support.simulation.limits import drawn
from tests.support.simulation.network import Message
from tests.support.simulation.world import MS, SECOND, Chaos, Host, MergerHost, RootHost, World, pack, unpack
from tests.support.tolerance import close

GRACE = 20 * SECOND
AT_ONCE = RootLimits(revise_every_us=0)
LABELS = tuple(((("machine", name)),) for name in "xyz")
START = 1_000 * SECOND
ADDED_US, REMOVED_US = 12 * SECOND, 27 * SECOND
query_text, sensor_text = lru_cache(256)(canonical_query), lru_cache(256)(canonical_sensor)  # a start needs them


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
        self.on_time: set[Reading] = set()
        self.promised_us = NEVER_US  # by commits and by the process that runs
        self._committed_us = NEVER_US  # by commits: what a process promised in none, nobody has heard
        self.version = 0
        self.hears_after_us = world.random.randint(0, 2_000) * MS

    def build(self, restored: Restored) -> Gateway:
        self.promised_us = self._committed_us
        return Gateway(self.fleet.settings(self.name), self.rng, restored, self.disk.load)

    def started(self, now_us: int) -> None:
        self.version = self.fleet.version_at(now_us - self.hears_after_us)
        self.do(self.fleet.configuration(self.version), now_us)
        source = self.machine.sources.get("s") if isinstance(self.machine, Gateway) else None
        self.position = source.position if source is not None and isinstance(source.position, int) else 0

    def deliver(self, message: Message, now_us: int) -> None:
        """Readings of earlier moments come first."""
        self.read(now_us)
        super().deliver(message, now_us)

    def tick(self, now_us: int) -> None:
        self.configure_again(now_us)
        self.read(now_us)
        super().tick(now_us)

    def read(self, now_us: int) -> None:
        """Hand over the readings that have arrived."""
        if self.machine is None:
            return
        first = self.position
        while self.position < len(self.readings) and self.readings[self.position].arrives_us <= now_us:
            self.position += 1
        part = self.readings[first : self.position]
        if part:
            self.note_lateness(part)
            self.do(self.event_of(part), now_us)

    def event_of(self, part: list[Reading]) -> Read:
        """Readings as the source hands them over."""
        return Read("s", self.batch_of(part), position=self.position)

    def batch_of(self, part: list[Reading]) -> Batch:
        """Readings as columns."""
        return Batch(
            np.array([r.time_us for r in part], np.int64),
            np.array([r.value for r in part], np.int64),
            np.array([r.series for r in part], np.int64),
            self.labels,
        )

    @property
    def behind(self) -> bool:
        """Whether the newest definitions have not reached it yet."""
        return self.version != self.fleet.version_at(self.world.now_us)

    def configure_again(self, now_us: int) -> None:
        """Definitions that changed reach this gateway some time after they were published."""
        version = self.fleet.version_at(now_us - self.hears_after_us)
        if version != self.version and self.machine is not None:
            self.version = version
            self.do(self.fleet.configuration(version), now_us)

    def note_lateness(self, part: list[Reading]) -> None:
        """Remember which readings are on time as this gateway has promised so far; the last processing counts.

        A promise that a clock which stepped back took away was one as well; no parent takes one that is far ahead.
        """
        self._note_promise()
        for reading in part:
            (self.on_time.add if reading.time_us >= self.promised_us else self.on_time.discard)(reading)

    def _note_promise(self) -> None:
        frontiers = self.machine._frontiers().values() if self.machine is not None else ()
        likely = [us for us in frontiers if us <= self.world.now_us + AHEAD_US]
        self.promised_us = max([self.promised_us, *likely])

    def committed(self) -> None:
        """Rows and promises leave the node after this."""
        self._note_promise()
        self._committed_us = self.promised_us

    def _turn_clock(self, now_us: int) -> None:
        if self.world.faults.on("clock.step") or self._right_us is not None:  # else it will not turn
            self._note_promise()
        super()._turn_clock(now_us)


class Fleet:
    """A tree, its readings and its queries, all from one seed."""

    def __init__(
        self,
        seed: int,
        chaos: Chaos,
        *,
        changes: bool = False,
        sessions: bool = False,
        prefix: str = "",
        limits: RootLimits = AT_ONCE,
    ) -> None:
        """prefix: of all names of nodes, so that several fleets may have one root. limits: of the root."""
        random = Random(f"fleet {seed}")
        self.seed, self.world = seed, self._world(seed, chaos)
        self.changes, self.sessions, self.limits = changes, sessions, limits
        self.frame_bytes = chaos.frame_bytes
        self.sensor = self._sensor()
        self.queries = self._queries(random)
        self.added = replace(self.queries[0], id="added", window=Tumbling(2 * SECOND))
        self.length_us = 40 * SECOND
        hosts = self.world.hosts
        hosts["root"] = RootHost(self.world, self._root)
        self.gateways: list[str] = []
        self.truth: dict[str, list[Reading]] = {}
        self._grow(random, prefix)
        self.root_host.start(0)

    def _world(self, seed: int, chaos: Chaos) -> World:
        return World(seed, chaos)

    def _sensor(self) -> Sensor:
        return Sensor(
            "s", 1, "simulated", scale=-1, timeout_us=3 * SECOND, delay_us=1 * SECOND, rereadable=True, own_clock=True
        )

    def settings(self, name: str) -> NodeSettings:
        """Those of a node."""
        return NodeSettings(name, "sim", 500 * MS, 1 * SECOND)

    def _grow(self, random: Random, prefix: str) -> None:
        """The nodes below the root, and their readings."""
        hosts = self.world.hosts
        depth = random.choice([0, 1, 1, 2])
        parents = ["root"]
        for level in range(depth):
            names = [f"{prefix}m{level}-{i}" for i in range(random.randint(1, 2))]
            for name in names:
                hosts[name] = MergerHost(self.world, name, random.choice(parents), self._merger)
            parents = names
        self.gateways = [f"{prefix}g{i}" for i in range(random.randint(1, 4))]
        for name in self.gateways:
            self.truth[name] = self._readings(random)
            hosts[name] = GatewayHost(self.world, name, random.choice(parents), self.truth[name], self)

    def _queries(self, random: Random) -> tuple[Query, ...]:
        windows: list[Any] = [Tumbling(random.choice([1, 2, 5]) * SECOND)]
        slide = random.choice([1, 2, 3]) * SECOND
        windows.append(Sliding(slide * 2 + random.choice([0, 500 * MS]), slide))
        if self.sessions:
            windows = [Session(random.choice([500 * MS, 1 * SECOND, 2 * SECOND]), random.choice([0, 0, 7 * SECOND]))]
            windows.append(random.choice([Session(3 * SECOND), Tumbling(2 * SECOND)]))
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

    def version_at(self, now_us: int) -> int:
        """How many changes of the definitions were published by then: first one is added, then one removed."""
        return sum(now_us >= START + at_us for at_us in (ADDED_US, REMOVED_US)) if self.changes else 0

    def configuration(self, version: int) -> Configured:
        """The definitions after that many changes."""
        queries = [*self.queries]
        if version >= 1:
            queries.append(self.added)
        if version >= 2:
            del queries[0]
        return self.configured(queries)

    def configured(self, queries: Iterable[Query]) -> Configured:
        """Definitions as they travel: canonical texts."""
        texts = tuple(query_text(query) for query in queries)
        return Configured((self.sensor,), tuple(queries), (sensor_text(self.sensor),), texts)

    def _root(self, journal: int) -> NumpyRoot:
        horizon_us, revise_every_us = self.limits.horizon_us, self.limits.revise_every_us
        return NumpyRoot(journal, grace_us=GRACE, horizon_us=horizon_us, revise_every_us=revise_every_us)

    def _merger(self, host: Host, restored: Restored) -> Merger:
        settings, named = self.settings(host.name), self._named(host.name)
        return Merger(
            settings,
            host.rng,
            restored,
            host.disk.load,
            grace_us=GRACE // 2,
            named=named,
            pack=pack,
            unpack=unpack,
        )

    def _named(self, _parent: str) -> list[str]:
        """The children that a parent's configuration names."""
        return []

    def _below(self, name: str) -> list[str]:
        return [each.name for each in self.world.hosts.values() if isinstance(each, Host) and each.parent == name]

    def run(self) -> list[str]:
        """Chaos while there are readings, then calm until everything has arrived; answers what is wrong."""
        with drawn(self.world.faults, self.frame_bytes):
            world = self.world
            world.now_us = START
            world.run(START + self.length_us, lambda now: None)
            world.calm()
            world.settle(START + self.length_us + 150 * SECOND)
            self.root_host.flush()
        return self.wrong()

    @property
    def root_host(self) -> RootHost:
        """The host of the root."""
        host = self.world.hosts["root"]
        assert isinstance(host, RootHost)
        return host

    def wrong(self) -> list[str]:
        """Differences between the final rows and the oracle, and what is still under way."""
        out = []
        for name, host in self.world.hosts.items():
            if isinstance(host, Host) and len(host.disk.stored.frames) > 2:
                out.append(f"{name} still holds {len(host.disk.stored.frames)} frames")
        root, final = self.root_host, dict[tuple[str, str, int], Row]()
        for row in root.rows:
            key = (row.query, row.key, row.start)
            if row.withdrawn:
                assert key in final, f"{key} is withdrawn and was never shown"
            if key in final and row.revision != final[key].revision + 1:
                out.append(f"revision {final[key].revision} of {key} is followed by {row.revision}")
            final[key] = row
        for query, times in root.revised.items():
            if any(after - before < self.limits.revise_every_us for before, after in pairwise(times)):
                out.append(f"rows of {query} are revised at {times}")
        return out + self.differences(final) + self.lies(root.rows)

    def differences(self, final: Mapping[tuple[str, str, int], Row]) -> list[str]:
        """Final rows, by query, key and start, that are not the oracle's."""
        out, want = [], self.expected()
        for key, values in want.items():
            got = final.get(key)
            got = None if got is not None and got.withdrawn else got
            if self.settled(got):
                continue
            if self.goes(key[0]):
                out += self.near_the_removal(key, got)
            elif got is None:
                out += [] if self.begins_later(key) else [f"missing {key}"]
            elif key[0] == "added" and got.expected < len(self.gateways):
                continue  # a gateway that was left out when the query was told of serves it from later on (4.5)
            elif any(reason == "began" for _, reason in got.coverage.missing):
                continue  # within this window
            elif not all(close(got.values[name], value) for name, value in values.items()):
                out.append(f"{key}: want {values}, got {dict(got.values)}")
            elif not got.complete:
                out.append(f"{key}: incomplete at the end: {got}")
        extra = [key for key, row in final.items() if key not in want and not row.withdrawn and not self.settled(row)]
        return out + [f"extra {key}" for key in extra]

    def window_of(self, query: str) -> Any:
        """The window type of a query."""
        return next(q.window for q in (*self.queries, self.added) if q.id == query)

    def settled(self, row: Row | None) -> bool:
        """Whether a short horizon may have kept a row as it was, or a reading out of all rows (4.2)."""
        if self.limits.horizon_us >= HORIZON_US:
            return False
        return row is None or not row.complete or self.beyond(row.start, row.end) or self.goes_on_elsewhere(row)

    def goes_on_elsewhere(self, row: Row) -> bool:
        """Whether a late reading of a row may count in a window that ends later, and in ops.late it stands no more."""
        whose = next(query for query in (*self.queries, self.added) if query.id == row.query)
        last = np.array([row.end - 1])
        for query in self.queries:
            if query.group == whose.group and not isinstance(query.window, Session):
                window = query.time_window
                if bool((window.ends(window.assign(last, last + 1)[1]) > row.end).any()):
                    return True
        return False

    def beyond(self, start_us: int, end_us: int) -> bool:
        """Whether a reading came too late for rows there, or for a session that would have joined them."""
        near_us = 3 * SECOND if self.sessions else 0  # the longest gap
        low_us, high_us = start_us - near_us, end_us + near_us
        return any(b.start < high_us and b.end > low_us for b in self.root_host.root.beyond)

    def goes(self, query: str) -> bool:
        """Whether it goes while the fleet runs."""
        return self.changes and query == self.queries[0].id

    def ends(self, query: str) -> dict[str, int]:
        """Gateway -> latest window end of the query that it serves (6.3)."""
        found = dict.fromkeys(self.gateways, 0)
        for name in self.gateways:
            host = self.world.hosts[name]
            assert isinstance(host, GatewayHost)
            assert isinstance(host.machine, Gateway)
            for serving in (each for state in host.machine.groups.values() for each in state.serving):
                if serving.query == query:
                    found[name] = serving.bounds_us[2]
        return found

    def begins_later(self, key: tuple[str, str, int]) -> bool:
        """Whether no gateway with readings in a window of the added query served it yet at their times (6.3).

        A gateway that was down when the query was published serves it from its first promise after that on.
        """
        query, labels, start_us = key
        if query != "added":
            return False
        end_us = start_us + self.window_of(query).length_us
        return start_us < START + ADDED_US + 15 * SECOND or not any(
            start_us <= reading.time_us < end_us
            and reading.time_us >= self._serves_from(name, query)
            and labels in ("", f"machine={LABELS[reading.series][0][1]}")
            for name in self.gateways
            for reading in self.truth[name]
        )

    def _serves_from(self, name: str, query: str) -> int:
        """Time from which a gateway serves a query."""
        host = self.world.hosts[name]
        assert isinstance(host, GatewayHost)
        assert isinstance(host.machine, Gateway)
        servings = [each for state in host.machine.groups.values() for each in state.serving if each.query == query]
        return min((each.bounds_us[0] for each in servings), default=NEVER_US)

    def near_the_removal(self, key: tuple[str, str, int], got: Row | None) -> list[str]:
        """What is wrong with a row, or with its absence, where gateways remove its query at different times."""
        query, _, start_us = key
        window = next(each.time_window for each in self.queries if each.id == query)
        ends, end_us = self.ends(query), start_us + window.longest_us
        if got is None:
            return [f"missing {key}, which ends at {end_us}: {ends}"] if end_us <= min(ends.values()) else []
        if not got.complete and (end_us > min(ends.values()) or any(why == "began" for _, why in got.coverage.missing)):
            return []
        want = self.expected(got.coverage.expected).get(key, {})
        right = bool(want) and all(close(got.values[name], value) for name, value in want.items())
        if right and got.complete:  # also where a promise of a wrong clock gave the row before the query was removed
            return []
        serve = {name for name, us in ends.items() if us >= end_us}
        if set(got.coverage.expected) - {name for name, _ in got.coverage.missing} - serve:
            return [f"{key} claims gateways that do not serve it: {got}"]
        return [f"{key}: incomplete at the end: {got}"] if right else [f"{key}: want {want}, got {dict(got.values)}"]

    def lies(self, rows: Iterable[Row]) -> list[str]:
        """Rows that say they are complete and lack a reading that was on time (4.7)."""
        on_time = {name: h.on_time for name, h in self.world.hosts.items() if isinstance(h, GatewayHost)}
        out = []
        for row in rows:
            if row.complete and not row.withdrawn and not self.settled(row):
                series = [i for i, labels in enumerate(LABELS) if row.key in ("", f"machine={labels[0][1]}")]
                expected = (r for leaf in row.coverage.expected for r in on_time[leaf])
                window = self.window_of(row.query)
                low, high = row.start, row.end
                if isinstance(window, Session):  # nor may one within the gap of it be missing, but across a cut
                    low, high = row.start - window.gap_us, row.end + 1
                    if window.max_us:
                        low = max(low, row.start // window.max_us * window.max_us)
                        high = min(high, (row.start // window.max_us + 1) * window.max_us)
                inside = sum(low <= r.time_us < high and r.series in series for r in expected)
                if row.readings < inside:
                    out.append(f"complete, yet {row.readings} of {inside} readings on time: {row}")
        return out

    def expected(self, leaves: Iterable[str] | None = None) -> dict[tuple[str, str, int], dict[str, float | None]]:
        """The oracle's rows over all readings, of these gateways or of all; after the calm every window has closed."""
        of = self.truth if leaves is None else {name: self.truth[name] for name in leaves}
        readings = [
            central_computer.Reading(
                r.time_us, central_computer.exact(r.value, -1), node, order, dict(LABELS[r.series])
            )
            for node, stream in of.items()
            for order, r in enumerate(stream)
        ]
        queries = (*self.queries, self.added) if self.changes else self.queries
        rows = central_computer.results(queries, readings)
        return {(query, key, start): values for (query, key, start, _), values in rows.items()}


def quickly(fleet: Fleet) -> list[str]:
    """Run one; in steps of a second once nothing is under way after the last fault: most of its time is calm."""
    fleet.world.settled_step_us = SECOND
    return fleet.run()


def fleets(
    seeds: Iterable[int],
    chaos: Callable[[Random], Chaos],
    *,
    changes: bool = False,
    sessions: bool = False,
    limits: RootLimits = AT_ONCE,
) -> list[str]:
    """Run many; one line a seed that went wrong."""
    out = []
    for seed in seeds:
        fleet = Fleet(seed, chaos(Random(seed)), changes=changes, sessions=sessions, limits=limits)
        wrong = quickly(fleet)
        if wrong:
            out.append(f"seed {seed}: {len(wrong)} wrong: " + "; ".join(wrong[:2]))
    return out
