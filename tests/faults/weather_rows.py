"""Compares the rows of a weather with the readings."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from edge_agent.algebra.query.query import Query
from tests.faults.landed_root import LandedRoot
from tests.faults.tree import SECOND
from tests.faults.weather_definitions import DefinedRows, close
from tests.faults.weather_devices import DEVICE_QUERY, DeviceRows
from tests.faults.weather_faults import MARKED_US, Weather
from tests.faults.weather_tables import Tables
from tests.faults.weather_tree import COUNTED, EXTRA, QUERIES, WeatherTree, query_of
from tests.oracle import central_computer


@dataclass(slots=True)
class Outcome:
    """What the tree was left with. wrong: a line each."""

    faults: int = 0
    readings: int = 0
    rows: int = 0
    in_tables: int = 0  # rows there, if a Spark root made some
    incomplete: int = 0
    excused: int = 0
    twice: int = 0  # incomplete rows with more readings than there were: possible repeats of a lost disk
    devices: int = 0  # rows of what cannot be read again; and how many of these are incomplete
    devices_incomplete: int = 0
    defined: int = 0  # rows of queries that were altered
    root_kills: int = 0
    largest: str = ""
    wrong: list[str] = field(default_factory=list)
    audit: list[str] = field(default_factory=list)

    def summary(self) -> str:
        return (
            f"weather: {self.faults} faults, {self.readings} readings, {self.rows} rows"
            + (f" ({self.in_tables} in tables)" if self.in_tables else "")
            + f": {self.incomplete} incomplete "
            f"({self.twice} with repeats), "
            f"{self.devices} of devices ({self.devices_incomplete} incomplete), {self.defined} of altered queries, "
            + (f"{self.root_kills} kills of a Spark root, " if self.root_kills else "")
            + f"{self.largest}, "
            f"{self.excused} missing after a lost disk, {len(self.wrong)} wrong; audit: {(self.audit or ['none'])[-1]}"
        )


def excused(place: central_computer.Row, lost_us: Mapping[str, Sequence[int]], leaves: Iterable[str] = ()) -> bool:
    """Whether lost disks may be the reason that a window is not complete: one of each of these leaves; () of any.

    Positions never recover from a loss.
    """
    found = [lost_us.get(leaf, ()) for leaf in leaves] or [[time_us for of in lost_us.values() for time_us in of]]
    return all(of and (place[0] == COUNTED or place[2] < max(of) + MARKED_US) for of in found)


def compare_tables(outcome: Outcome, tree: WeatherTree, tables: Tables, faults: Weather, goal_us: int) -> None:
    """Complete rows of the tables are the oracle's; those of the other root that are complete are so there."""
    truth = central_computer.results(
        [query_of(name, table) for name, table in QUERIES.items()], tree.readings(time.time_ns() // 1000)
    )
    rows = {place: row for place, row in tables.rows().items() if place[3] <= goal_us}
    found = {place: row for place, row in rows.items() if place[0] in QUERIES}
    outcome.in_tables = len(rows)
    if tables.double:
        outcome.wrong.append(f"{tables.double} rows are in the tables twice")
    devices = DeviceRows(tree.devices.values())
    for (query, key, start_us, end_us), (values, whole) in rows.items():
        if query != DEVICE_QUERY or not whole or devices.silent(key, start_us, end_us):
            continue
        if why := devices.wrong(key, start_us, end_us, values):
            outcome.wrong.append(f"complete in the tables, but {(query, key, start_us, end_us)}: {why}")
    for place, (values, whole) in found.items():
        if whole and not (place[0] == COUNTED and faults.lost_us) and (why := _differs(values, truth.get(place))):
            outcome.wrong.append(f"complete in the tables, but {place}: {why}")
    for row in faults.root.rows.values():
        place = (row.query, row.key, row.start, row.end)
        other = row.query in QUERIES and row.complete and not row.withdrawn and row.end <= goal_us
        other = other and not (row.query == COUNTED and faults.lost_us)  # it may have been there before the loss was
        if other and not found.get(place, ({}, False))[1]:
            outcome.wrong.append(f"not complete in the tables: {place}, {found.get(place)}")


def compare(
    outcome: Outcome, tree: WeatherTree, root: LandedRoot, goal_us: int, lost_us: Mapping[str, Sequence[int]]
) -> None:
    """Compare every row that ends by goal_us with the readings. lost_us: gateway -> when its readings were lost.

    A loss moves all later positions of a count window, which are right without it; so these rows are not compared then.
    """
    queries = {name: query_of(name, table) for name, table in QUERIES.items()}
    readings = tree.readings(max(goal_us, time.time_ns() // 1000))
    before = [reading for reading in readings if reading.time_us < goal_us]
    truth = central_computer.results(queries.values(), readings)
    due = {row for row in truth if row[0] in QUERIES and row[0] != COUNTED and row[3] <= goal_us}
    due |= central_computer.results([queries[COUNTED]], before).keys()
    got = {
        (row.query, row.key, row.start, row.end): row
        for row in root.rows.values()
        if row.query in QUERIES and not row.withdrawn and (row.query == COUNTED or row.end <= goal_us)
    }
    outcome.readings, outcome.rows = len(before), len(got)
    counts = Counts(queries.values(), readings)
    for place, row in got.items():
        if lost_us and place[0] == COUNTED:
            continue
        outcome.incomplete += not row.complete
        outcome.twice += not row.complete and row.readings > (truth.get(place, {}).get("count") or 0)
        if row.complete and (found := _differs(row.values, truth.get(place))):
            outcome.wrong.append(f"complete, but {place}: {found}")
        missing = {leaf for leaf, _ in row.coverage.missing}
        if missing and place[0] in QUERIES and not excused(place, lost_us, missing):
            outcome.wrong.append(f"incomplete without a reason: {place}: {row.coverage.missing}")
        if place[0] in QUERIES and place[0] != COUNTED and row.readings < (least := counts.least(place, missing)):
            outcome.wrong.append(f"{row.readings} readings of {least} of gateways that are not missing: {place}")
    for place in due - got.keys():
        if excused(place, lost_us, counts.nodes(place)):
            outcome.excused += 1
        else:
            outcome.wrong.append(f"no row: {place}")


def compare_devices(outcome: Outcome, tree: WeatherTree, faults: Weather, goal_us: int) -> None:
    """Complete rows of the devices hold what their brokers have taken; others have a reason."""
    truth, found = DeviceRows(tree.devices.values()), set[tuple[str, int]]()
    for row in faults.root.rows.values():
        if row.query != DEVICE_QUERY or row.withdrawn or row.end > goal_us:
            continue
        place = (row.query, row.key, row.start, row.end)
        found.add((row.key, row.start))
        outcome.devices += 1
        outcome.devices_incomplete += not row.complete
        why = truth.wrong(row.key, row.start, row.end, row.values) if row.complete else ""
        if why and not truth.silent(row.key, row.start, row.end):
            outcome.wrong.append(f"complete, but {place}: {why}")
        missing = {leaf for leaf, _ in row.coverage.missing}
        unexplained = [each for each in missing if not _explained(tree, truth, each, row.start, row.end)]
        if unexplained and not excused(place, faults.lost_us, unexplained):
            outcome.wrong.append(f"incomplete without a reason: {place}: {row.coverage.missing}")
    for key, start_us in truth.windows(2 * SECOND, goal_us) - found:
        place, gateway = (DEVICE_QUERY, key, start_us, start_us + 2 * SECOND), key.removeprefix("machine=")
        explained = truth.silent(*place[1:]) or _explained(tree, truth, gateway, *place[2:])
        if not explained and not excused(place, faults.lost_us, [gateway]):
            outcome.wrong.append(f"no row: {place}")


def _explained(tree: WeatherTree, truth: DeviceRows, gateway: str, start_us: int, end_us: int) -> bool:
    return truth.excused(gateway, start_us, end_us, tree.watched[gateway], tree.locals[gateway])


def compare_defined(outcome: Outcome, tree: WeatherTree, faults: Weather, goal_us: int) -> None:
    """Complete rows of queries that are altered, and of a sensor that comes and goes, are of their revision."""
    until_us = max(goal_us, time.time_ns() // 1000)
    truth = DefinedRows(faults.definitions, {source: tree.readings(until_us, source) for source in ("few", "more")})
    for row in faults.root.rows.values():
        if row.query in EXTRA and not row.withdrawn and row.end <= goal_us:
            outcome.defined += 1
            place = (row.query, row.key, row.start, row.end)
            why = truth.wrong(place, row.definition_revision, row.values, row.coverage.expected) if row.complete else ""
            if why:
                outcome.wrong.append(f"complete, but {place}, revision {row.definition_revision}: {why}")


class Counts:
    """How many readings of which gateway lie in a window."""

    def __init__(self, queries: Iterable[Query], readings: Sequence[central_computer.Reading]) -> None:
        self._times: dict[tuple[tuple[str, ...], str], dict[str, list[int]]] = {}
        self._by = {query.id: query.by for query in queries}
        for query in {query.by: query for query in queries}.values():
            for reading in readings:
                of = self._times.setdefault((query.by, central_computer.key_of(query, reading)), {})
                of.setdefault(reading.node, []).append(reading.time_us)
        for of in self._times.values():
            for times in of.values():
                times.sort()

    def _in(self, place: central_computer.Row) -> dict[str, int]:
        query, key, start_us, end_us = place
        of = self._times.get((self._by[query], key), {})
        return {node: bisect_left(times, end_us) - bisect_left(times, start_us) for node, times in of.items()}

    def least(self, place: central_computer.Row, missing: Container[str]) -> int:
        """The readings in a window of gateways other than these."""
        return sum(count for node, count in self._in(place).items() if node not in missing)

    def nodes(self, place: central_computer.Row) -> set[str]:
        """The gateways with readings in a window; of a count window those of its key."""
        return {node for node, count in self._in(place).items() if count or place[0] == COUNTED}


def _differs(values: Mapping[str, float | None], expected: dict[str, float | None] | None) -> str:
    if expected is None:
        return f"no window of the readings: {dict(values)}"
    same = all(close(value, values.get(name)) for name, value in expected.items())
    return "" if same else f"{dict(values)}, not {expected}"
