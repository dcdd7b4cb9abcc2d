"""`headwater simulate`: a gateway and a root in one process, on simulated and recorded sensors, without a network."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from edge_agent.algebra.query.query import Query, Sensor
from edge_agent.algebra.span import FAR_US
from edge_agent.cli.explain import definitions_in
from edge_agent.cli.main import DONE, UNAVAILABLE
from edge_agent.cli.support.message_rendering import clock
from edge_agent.cli.support.option_values import seconds
from edge_agent.cli.support.progress import Progress
from edge_agent.config.checking.foreign_json import printable
from edge_agent.config.checking.json_lines import json_line
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.config.definitions.drivers import DRIVERS
from edge_agent.config.node_file.settings import DEFAULT_FILE
from edge_agent.errors import ConfigError
from edge_agent.machines.events import Configured, LinkUp, Note, Tick
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.ports.sensors.node_sensors import Sensors
from edge_agent.recording.tree import JOURNAL, Host
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row as Result
from edge_agent.wire import frames, receipts

HELP = (
    "Run simulated sensors and recorded files through the gateway's own code, without a network, and print every "
    "window that has ended: as fast as possible in simulated time, or with --live in real time, also for the metrics "
    "of this machine. The first window of a live sensor is marked as not complete, because listening began within it."
)
EXAMPLES = """\
  headwater simulate                               # headwater.toml, for 60 simulated seconds
  headwater simulate --seconds 3600 --query boiler-10m
  headwater simulate sensor.json query.json --json
  headwater simulate --live                        # in real time, until Ctrl-C
"""
NODE: Final = "here"
STEP_US: Final = 1_000_000  # simulated time between two commits of the gateway
NOT_READ: Final = ("sensor.not_started", "sensor.failed")  # notes with the reason in `why`
LIVE_HORIZON_US: Final = 600_000_000  # of --live, which may run for days: bounds the rows kept for revisions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        default=[Path(DEFAULT_FILE)],
        metavar="FILE",
        help=f"settings, or definitions of sensors and queries ({DEFAULT_FILE})",
    )
    parser.add_argument(
        "--seconds", type=seconds, metavar="S", help="seconds to simulate (60; with --live until Ctrl-C)"
    )
    parser.add_argument("--query", metavar="ID", help="only the windows of this query")
    parser.add_argument("--live", action="store_true", help="run in real time")
    parser.add_argument("--json", action="store_true", help="one JSON object per window")


def main(args: argparse.Namespace) -> int:
    """Run and print the windows. On standard error: definitions left out, and the readings of each sensor.

    Returns 3 if a sensor could not be read. Raises: ConfigError if there is nothing to run.
    """
    found = _each_once(args.files)
    sensors = [one for one in found if isinstance(one, Sensor)]
    queries = [one for one in found if isinstance(one, Query)]
    if args.query is not None and args.query not in {query.id for query in queries}:
        there = ", ".join(query.id for query in queries) or "none"
        raise ConfigError(f"--query: no query {args.query}; there are {there}")
    queries = [query for query in queries if args.query in (None, query.id)]
    for sensor in sensors:
        if why := cannot_run(sensor, live=args.live):
            print(f'headwater: sensor "{sensor.id}" is left out: driver {sensor.driver} {why}', file=sys.stderr)
    sensors = [sensor for sensor in sensors if not cannot_run(sensor, live=args.live)]
    known = {sensor.id for sensor in sensors}
    for query in queries:
        if missing := [name for name in query.sources if name not in known]:
            print(f'headwater: query "{query.id}" is left out, with its sensor "{missing[0]}"', file=sys.stderr)
    queries = [query for query in queries if known >= {*query.sources}]
    if not queries:
        raise ConfigError(
            "nothing to simulate: add a query over a sensor of driver simulated or file, or use --live for driver host"
        )
    gateway = Simulated(sensors, queries, horizon_us=LIVE_HORIZON_US if args.live else FAR_US)
    try:
        for row in live(gateway, args.seconds) if args.live else fast(gateway, args.seconds or 60.0):
            print(json_line(row) if args.json else text_of(row))
            if args.live:
                sys.stdout.flush()
    except KeyboardInterrupt:
        if not args.live:
            raise  # its windows come at the end only
    for name, counts in gateway.counters().items():
        text = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        print(f"headwater: {name}: {text or 'no readings'}", file=sys.stderr)
    gateway.close()
    return UNAVAILABLE if gateway.unread else DONE


def _each_once(files: Sequence[Path]) -> list[Query | Sensor]:
    """The sensors and queries of the files. Raises: ConfigError if two sensors, or two queries, have one id."""
    found: dict[tuple[type, str], tuple[Query | Sensor, Path]] = {}
    for file in files:
        for one in definitions_in(file):
            known, first = found.setdefault((type(one), one.id), (one, file))
            if known != one:
                kind = type(one).__name__.lower()
                raise ConfigError(f'{file}: {kind} "{one.id}" is another one in {first}; leave one of them out')
    return [one for one, _ in found.values()]


def cannot_run(sensor: Sensor, *, live: bool) -> str:
    """Why a sensor cannot be simulated; '' if it can."""
    driver = DRIVERS[sensor.driver]
    if driver.local:
        return "needs a network"
    return "" if live or driver.own_clock else "runs only with --live"


class OwnTime:
    """A clock whose time is set: it returns `us`."""

    synced = True

    def __init__(self, now_us: int) -> None:
        self.us = now_us

    def now_us(self) -> int:
        """The time in `us`."""
        return self.us

    def boot_us(self) -> int:
        return self.us


class Simulated:
    """The product's sensors, gateway and root in one process. Messages are passed by calls, not by a network."""

    def __init__(self, sensors: Sequence[Sensor], queries: Sequence[Query], *, horizon_us: int = FAR_US) -> None:
        """horizon_us: how long rows are revised and kept."""
        self.time = OwnTime(time.time_ns() // 1000)
        self._sensors = Sensors(self.time, gather_us=0)
        self._sensors.configure(sensors, {})
        self._queries = {query.id: query for query in queries}
        settings = NodeSettings(NODE, "simulate", commit_interval_us=1, heartbeat_us=1, frontier_step_us=1)
        self._gateway = Gateway(settings, Random(NODE))
        self._host = Host(NODE, self._gateway)
        self.root = NumpyRoot(JOURNAL, grace_us=FAR_US, named=[NODE], horizon_us=horizon_us)
        self._received_us = FAR_US // 4  # later than any time of the sensors' clocks
        self._rows: list[Result] = []
        self.unread = set[tuple[str, str]]()  # (sensor, why) for sensors that failed
        texts = tuple(canonical_query(query) for query in queries)
        self._host.do(LinkUp(), self.time.us)
        self._host.do(Configured(tuple(sensors), tuple(queries), (), texts), self.time.us)
        for _ in range(3):  # the birth, its receipt, and the declaration of the served groups
            self._up()

    @property
    def ended(self) -> bool:
        """Whether all sources are files that have been read to the end."""
        return all(source.ended for source in self._gateway.sources.values())

    def step(self, now_us: int) -> None:
        """Read the sensors up to now_us, and pass their readings through the gateway to the root."""
        self.time.us = now_us
        for read in self._sensors.poll(now_us, everything=True):
            if read.sensor in self._gateway.sources:
                self._host.do(read, now_us)
        for note in self._sensors.notes():
            self._say(note)
        self._up()

    def _say(self, note: Note) -> None:
        fields = dict(note.fields)
        if note.name not in NOT_READ:
            print(
                f"headwater: {note.name}: {', '.join(f'{name} {got}' for name, got in fields.items())}", file=sys.stderr
            )
        elif (failed := (str(fields["sensor"]), str(fields["why"]))) not in self.unread:  # it is tried again and again
            self.unread.add(failed)
            print(f'headwater: sensor "{failed[0]}" cannot be read: {failed[1]}', file=sys.stderr)

    def _up(self) -> None:
        """Commit at the gateway, pass its messages to the root and the receipts back."""
        self._received_us += 1
        self._host.do(Tick(), self.time.us)
        self._host.take_receipts(self.time.us)
        for payload in self._host.take_sent():
            message = frames.decode(payload)
            self.root.take(NODE, message, self._received_us)
            self._host.receipts.append(receipts.encode(self.root.receipt(NODE, message.epoch)))
        self._rows += self.root.step(self._received_us)
        self.root.beyond.clear()

    def ended_windows(self) -> Iterator[dict[str, Any]]:
        """The last revision of each window that ended or was revised since the last call, by end."""
        last = {(row.query, row.key, row.start): row for row in self._rows}
        self._rows = []
        rows = (self._as_dict(row) for row in last.values() if not row.withdrawn)
        return iter(sorted(rows, key=lambda row: (row["end"], row["query"], row["key"])))

    def _as_dict(self, row: Result) -> dict[str, Any]:
        fields = {name: getattr(row, name) for name in ("query", "key", "start", "end", "readings", "complete")}
        details = {"details": json.loads(row.details)} if row.details else {}
        by = {"by": "position"} if getattr(self._queries[row.query].window, "positions", False) else {}
        return {**fields, "values": dict(row.values), **details, **by}

    def counters(self) -> dict[str, dict[str, int]]:
        """Sensor or group -> numbers of readings that were read, late, refused and so on."""
        groups = self._gateway.groups.items()
        by_group = {f"group {group.source} {group.where}".strip(): state.slicer.counters for group, state in groups}
        return {**self._sensors.counters(), **by_group}

    def close(self) -> None:
        self._sensors.close()


def fast(gateway: Simulated, seconds: float) -> Iterator[dict[str, Any]]:
    """Run in simulated time. Returns the windows at the end, with late readings."""
    begin_us, last_us = gateway.time.us, gateway.time.us + int(seconds * 1e6)
    with Progress("simulating", seconds) as bar:
        while gateway.time.us < last_us and not gateway.ended:
            gateway.step(min(last_us, gateway.time.us + STEP_US))
            bar.at((gateway.time.us - begin_us) / 1e6)
    return gateway.ended_windows()


def live(gateway: Simulated, seconds: float | None) -> Iterator[dict[str, Any]]:
    """Run in real time and yield each window as soon as it has ended."""
    until_s = time.monotonic() + seconds if seconds is not None else None
    while until_s is None or time.monotonic() < until_s:
        gateway.step(time.time_ns() // 1000)
        yield from gateway.ended_windows()
        time.sleep(0.25)


def text_of(row: dict[str, Any]) -> str:
    """A window as a line: boiler-10m site=a 2026-11-21T09:00:00.000Z +600s avg=20.4 (600 readings).

    A row that is not complete, as where listening began within its window, ends with `(600 readings, not complete)`.
    """
    values = " ".join(f"{name}={'null' if value is None else f'{value:.6g}'}" for name, value in row["values"].items())
    key = f" {row['key']}" if row["key"] else ""
    where = f"{clock(row['start'])} +{(row['end'] - row['start']) / 1e6:g}s"
    if row.get("by") == "position":
        where = f"{row['start']} to {row['end']}"
    mark = "" if row["complete"] else ", not complete"
    return printable(f"{row['query']}{key}  {where}  {values}  ({row['readings']} readings{mark})")
