"""`headwater simulate`: the gateway's own slicer on simulated and recorded sensors, and its windows; no network."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from edge_agent.algebra import aggregates
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.partial import Partials, Store, assign_windows
from edge_agent.algebra.query import Group, Query, Sensor
from edge_agent.cli.explain import definitions_in
from edge_agent.cli.progress import Progress
from edge_agent.cli.telling import clock
from edge_agent.config.settings import DEFAULT_FILE
from edge_agent.errors import ConfigError
from edge_agent.machines.release import Release
from edge_agent.machines.slicer import Slicer
from edge_agent.machines.source import Source
from edge_agent.ports.sensors import Sensors

HELP = (
    "Run sensors and queries here, with the gateway's own code and no network: simulated sensors and recorded files. "
    "As fast as it can, in a time of its own; or with --live in real time, the machine's own metrics too. Prints every "
    "window that is complete."
)
EXAMPLES = """\
  headwater simulate                               # headwater.toml, 60 simulated seconds
  headwater simulate --seconds 3600 --query boiler-10m
  headwater simulate sensor.json query.json --json
  headwater simulate --live                        # in real time, until Ctrl-C
"""
NODE: Final = "here"
STEP_US: Final = 1_000_000  # a gateway's commit interval
OFFLINE: Final = frozenset({"simulated", "file"})  # drivers with a clock of their own
LIVE: Final = OFFLINE | {"host"}

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of simulate."""
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        default=[Path(DEFAULT_FILE)],
        metavar="FILE",
        help=f"a configuration, or definitions of sensors and queries ({DEFAULT_FILE})",
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="how long (60; --live: until Ctrl-C)")
    parser.add_argument("--query", metavar="ID", help="only the windows of this query")
    parser.add_argument("--live", action="store_true", help="in real time")
    parser.add_argument("--json", action="store_true", help="one JSON object a window")


def main(args: argparse.Namespace) -> int:
    """Run, print the windows, say on standard error what the sensors gave."""
    found = [one for file in args.files for one in definitions_in(file)]
    sensors = [one for one in found if isinstance(one, Sensor)]
    queries = [one for one in found if isinstance(one, Query) and args.query in (None, one.id)]
    usable = LIVE if args.live else OFFLINE
    for sensor in sensors:
        if sensor.driver not in usable:
            why = "try --live" if sensor.driver in LIVE else "it needs a network"
            print(f'headwater: sensor "{sensor.id}" is left out: driver {sensor.driver}; {why}', file=sys.stderr)
    sensors = [sensor for sensor in sensors if sensor.driver in usable]
    known = {sensor.id for sensor in sensors}
    for query in queries:
        if query.source not in known:
            print(f'headwater: query "{query.id}" is left out: no sensor "{query.source}" here', file=sys.stderr)
    queries = [query for query in queries if query.source in known]
    if not queries:
        raise ConfigError(
            "nothing to simulate: name a configuration with a simulated or file sensor and a query for it"
        )
    gateway = Simulated(sensors, queries)
    try:
        for row in live(gateway, args.seconds) if args.live else fast(gateway, args.seconds or 60.0):
            print(json.dumps(row, ensure_ascii=False) if args.json else text_of(row))
            if args.live:
                sys.stdout.flush()
    except KeyboardInterrupt:
        pass  # that is how --live ends
    for name, counts in gateway.counters().items():
        said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        print(f"headwater: {name}: {said or 'no readings'}", file=sys.stderr)
    gateway.close()
    return 0


class OwnTime:
    """A clock that stands still until it is told otherwise."""

    synced = True

    def __init__(self, now_us: int) -> None:
        self.us = now_us

    def now_us(self) -> int:
        """What was told last."""
        return self.us

    def boot_us(self) -> int:
        """The same: there is no other."""
        return self.us


class Answers:
    """The windows of one query, from the partials of a gateway alone."""

    def __init__(self, query: Query, scale: int | None) -> None:
        self.query = query
        self._scale = scale
        self._keys: Sequence[str] = ()
        self._basis = aggregates.basis_of(query.aggregates, scale)
        self._open = Store(self._basis)
        self._late: list[Partials] = []

    def take(self, release: Release) -> None:
        """Add the partials to the windows they count in (docs/protocol.md 6.2)."""
        rows, window = release.partials, self.query.time_window
        if release.plan.kind == "window":
            rows = rows.take(window.ends(rows.start) == rows.end)
        rows = Partials(rows.start, rows.end, rows.key, {name: rows.states[name] for name in self._basis})
        self._open.add(assign_windows(rows, window, self._basis))
        self._keys = release.keys

    def close(self, frontier_us: int) -> Iterator[Row]:
        """The windows that are complete now; one that late readings reach again comes with only these."""
        rows = self._open.close(frontier_us)
        if not len(rows):
            return
        lowered = [(one.name, aggregates.lower(one, rows.states, self._scale)) for one in self.query.aggregates]
        for at in range(len(rows)):
            yield {
                "query": self.query.id,
                "key": self._keys[int(rows.key[at])],
                "start": int(rows.start[at]),
                "end": int(rows.end[at]),
                "readings": int(rows.states["count"][at]),
                "values": {name: None if made.null[at] else float(made.value[at]) for name, made in lowered},
            }


class Simulated:
    """Sensors, slicers and answers of one gateway."""

    def __init__(self, sensors: Sequence[Sensor], queries: Sequence[Query]) -> None:
        self.time = OwnTime(time.time_ns() // 1000)
        self._sensors = Sensors(self.time, gather_us=0)
        self._sensors.configure(sensors, {})
        self._sources = {sensor.id: Source(sensor, self.time.us) for sensor in sensors}
        groups: defaultdict[Group, list[Query]] = defaultdict(list)
        for query in queries:
            groups[query.group_at(NODE)].append(query)
        self._slicers: dict[Group, Slicer] = {}
        self._answers: dict[Group, list[Answers]] = {}
        for group, members in groups.items():
            scale = self._sources[group.source].sensor.scale
            self._slicers[group] = Slicer(group, scale, NODE)
            self._slicers[group].change(tuple(members))
            self._answers[group] = [Answers(query, scale) for query in members]

    @property
    def ended(self) -> bool:
        """Whether every source is a file that has been read to its end."""
        return all(source.ended for source in self._sources.values())

    def step(self, now_us: int) -> None:
        """Read what is there by now, and slice it."""
        self.time.us = now_us
        for read in self._sensors.poll(now_us, everything=True):
            if read.sensor in self._sources:
                self._sources[read.sensor].take(read, now_us)
        for note in self._sensors.notes():
            print(f"headwater: {note.name} {dict(note.fields)}", file=sys.stderr)
        drained = {name: source.drain() for name, source in self._sources.items()}
        for group, slicer in self._slicers.items():
            for batch in drained[group.source]:
                slicer.push(batch)
            reached_us = self._sources[group.source].reached_us(now_us)
            if reached_us > NEVER_US:
                for release in slicer.advance(reached_us - group.lateness_us):
                    for answers in self._answers[group]:
                        answers.take(release)

    def complete(self) -> Iterator[Row]:
        """The windows below the frontier, by their end."""
        rows: Iterable[Row] = (
            row
            for group, slicer in self._slicers.items()
            for answers in self._answers[group]
            for row in answers.close(slicer.frontier_us)
        )
        return iter(sorted(rows, key=lambda row: (row["end"], row["query"], row["key"])))

    def counters(self) -> dict[str, dict[str, int]]:
        """By sensor and by group: what came, and what became of it."""
        by_group = {f"group {group.source} {group.where}".strip(): s.counters for group, s in self._slicers.items()}
        return {**self._sensors.counters(), **by_group}

    def close(self) -> None:
        """Stop the drivers."""
        self._sensors.close()


def fast(gateway: Simulated, seconds: float) -> Iterator[Row]:
    """In a time of its own. Windows come at the end, late readings in their place."""
    begin_us, last_us = gateway.time.us, gateway.time.us + int(seconds * 1e6)
    with Progress("simulating", seconds) as bar:
        while gateway.time.us < last_us and not gateway.ended:
            gateway.step(min(last_us, gateway.time.us + STEP_US))
            bar.at((gateway.time.us - begin_us) / 1e6)
    return gateway.complete()


def live(gateway: Simulated, seconds: float | None) -> Iterator[Row]:
    """In real time, each window as soon as it is complete."""
    until_s = time.monotonic() + seconds if seconds is not None else None
    while until_s is None or time.monotonic() < until_s:
        gateway.step(time.time_ns() // 1000)
        yield from gateway.complete()
        time.sleep(0.25)


def text_of(row: Row) -> str:
    """boiler-10m site=a 2026-11-21T09:00:00.000Z +600s avg=20.4 (600 readings)."""
    values = " ".join(f"{name}={'null' if value is None else f'{value:.6g}'}" for name, value in row["values"].items())
    length_s = (row["end"] - row["start"]) / 1e6
    key = f" {row['key']}" if row["key"] else ""
    return f"{row['query']}{key}  {clock(row['start'])} +{length_s:g}s  {values}  ({row['readings']} readings)"
