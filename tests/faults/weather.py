"""A tree under every kind of fault: `python -m tests.faults.weather --minutes 20 --seed 1` (`make weather`).

Four gateways, two regions, a region above these, a lander and the plain root; each gateway has a device at a local
broker, whose readings nobody can read again. A seed draws the faults; each is printed with its time. Then the tree
rests. Exit code 1 if a row that says it is complete differs from the readings, if a row is missing or incomplete that
no lost disk of the gateways it lacks explains (of a device: that they, or its broker, were up), if a row lacks readings
of a gateway that it does not name as missing, if `headwater audit` does not balance, or if a process ended, raised, or
grew large.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from edge_agent.cli.audit import audit_of, balanced, lines
from edge_agent.ports.mqtt.link import Link
from tests.faults.landed_root import LandedRoot
from tests.faults.storm import DRAIN_S, LONGEST_START_S
from tests.faults.tree import SECOND
from tests.faults.weather_devices import DEVICE_QUERY
from tests.faults.weather_faults import ROOT_GRACE_US, Weather
from tests.faults.weather_rows import Outcome, compare, compare_defined, compare_devices, compare_tables, excused
from tests.faults.weather_tables import KilledRoot, Tables
from tests.faults.weather_tree import COUNTED, LEAD_S, QUERIES, WeatherTree

REACHED: Final = ("seconds", "all", "sliding", DEVICE_QUERY)


def weather(
    folder: Path,
    seconds: float,
    seed: int,
    *,
    pause_s: float = 4.0,
    only: Sequence[str] = (),
    lead_s: float = LEAD_S,
    spark: bool = False,
) -> Outcome:
    """Run a tree under faults for so long, let it rest, and compare. spark: the tables of a Spark root, too."""
    outcome = Outcome()
    with ExitStack() as stack:
        tree = WeatherTree(folder, lead_s=lead_s)
        for way in tree.ways.values():
            stack.enter_context(way)
        stack.enter_context(tree)
        tables = Tables(tree.lander.folder, ROOT_GRACE_US) if spark else None
        root = stack.enter_context(KilledRoot(tables, tree.landing)) if tables is not None else None
        faults = Weather(tree, seed, only, root)
        stack.enter_context(faults.stack)
        for device in tree.devices.values():
            stack.enter_context(device)
        faults.definitions.begin()
        until = tree.begin_us / SECOND + LONGEST_START_S
        while not faults.root.rows and time.time() < until and all(child.alive for child in tree.processes):
            time.sleep(0.3)
            faults.root.turn()
        until = time.monotonic() + seconds
        while (rest_s := until - time.monotonic()) > 0:
            faults.pause(faults.chance.uniform(0.1, 2 * pause_s - 0.1))
            faults.strike(disks=rest_s > seconds / 2)
            outcome.faults += 1
            faults.root.turn()
        faults.end()
        faults.definitions.again()
        faults.log("rest", "begins")
        goal_us = (int(time.time()) // 10 + 2) * 10 * SECOND
        until = time.monotonic() + DRAIN_S
        while not _settled(faults, goal_us) and time.monotonic() < until:
            faults.pause(0.5)
            faults.root.turn()
        if not _settled(faults, goal_us):
            ends = {query: faults.root.frontier_us(query) / 1e6 - goal_us / 1e6 for query in QUERIES}
            outcome.wrong.append(f"not settled within {DRAIN_S:g} s: goal {goal_us}, ends from it [s] {ends}")
        _audit(outcome, tree, faults.root)
        if tables is not None and root is not None:
            root.end()
            outcome.wrong += root.wrong
            outcome.root_kills = root.kills
            _audit_tables(outcome, tree, tables)
        outcome.wrong += faults.ended
        outcome.wrong += faults.sizes.wrong()
        outcome.largest = faults.sizes.largest()
        for child in tree.processes:
            if "Traceback" in child.tail(1_000_000):
                outcome.wrong.append(f"{child.name}: a traceback in {child.log}")
    compare(outcome, tree, faults.root, goal_us, faults.lost_us)
    compare_devices(outcome, tree, faults, goal_us)
    compare_defined(outcome, tree, faults, goal_us)
    if tables is not None:
        compare_tables(outcome, tree, tables, faults, goal_us)
    return outcome


def _settled(faults: Weather, goal_us: int) -> bool:
    """Whether every query has rows beyond the goal, and all rows before it are complete or may be otherwise."""
    rows = {
        (row.query, row.key, row.start, row.end): row
        for row in faults.root.rows.values()
        if row.query in QUERIES and not row.withdrawn and (row.query == COUNTED or row.end <= goal_us)
    }
    reached = all(faults.root.frontier_us(query) >= goal_us for query in REACHED)
    return reached and all(row.complete or excused(place, faults.lost_us) for place, row in rows.items())


def _audit(outcome: Outcome, tree: WeatherTree, root: LandedRoot) -> None:
    links = [Link(broker.url, "audit", connect_timeout_s=5.0) for broker in tree.brokers]
    found = audit_of(root.book(), links, 10.0)
    outcome.audit = lines(found)
    if not balanced(found):
        outcome.wrong += [f"audit: {line}" for line in outcome.audit]


def _audit_tables(outcome: Outcome, tree: WeatherTree, tables: Tables) -> None:
    """While the tree runs: nodes answer for their books."""
    if (why := tables.made()) != "":
        outcome.wrong.append(why)
        return
    code, outcome.audit = tables.audit([broker.url for broker in tree.brokers])
    if code:
        outcome.wrong += [f"audit of the tables: {line}" for line in outcome.audit]


def main(argv: Sequence[str] | None = None) -> int:
    """Run it and print what is wrong; the folders stay then."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.weather", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=4.0, help="seconds between two faults, on average")
    parser.add_argument("--only", action="append", default=[], metavar="FAULT", help="draw this fault; again for more")
    parser.add_argument("--spark", action="store_true", help="at the end also a Spark root and the audit of its tables")
    args = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="headwater-weather-"))
    outcome = weather(folder, args.minutes * 60, args.seed, pause_s=args.pause, only=args.only, spark=args.spark)
    (folder / "wrong.txt").write_text("\n".join([*outcome.wrong, *outcome.audit]))
    for line in outcome.wrong[:40]:
        print(f"weather: {line}")
    print("\n".join(outcome.audit))
    print(outcome.summary())
    if outcome.wrong:
        print(f"weather: folders and logs: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
