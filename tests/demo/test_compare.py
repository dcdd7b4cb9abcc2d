"""The demo's truth against the naive oracle, and that its comparison finds every kind of mistake."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from edge_agent.algebra.query.query import Query, Sensor
from edge_agent.demo.compare import Comparison, DeltaRow, compare
from edge_agent.demo.fleet_plan import QUERIES, SECOND_US, query_messages, seats
from edge_agent.ports.sensors.simulated import Simulation
from tests.oracle import central_computer
from tests.support.config.parsing import parse_query

BEGIN = 1_795_256_000 * SECOND_US
UNTIL = BEGIN + 14 * SECOND_US


def demo_sensors() -> dict[str, dict[str, Sensor]]:
    found: dict[str, dict[str, Sensor]] = {}
    for seat in seats(4, BEGIN):
        for name, sensor in seat.simulated.items():
            options = tuple((k, 20.0 if k == "rate" else v) for k, v in sensor.options)  # fewer: the oracle is slow
            found.setdefault(name, {})[seat.name] = replace(sensor, options=options)
    return found


def demo_queries() -> list[Query]:
    wanted = [(topic, payload.decode().replace("value > 80", "value > 70")) for topic, payload in query_messages()]
    return [parse_query(topic.rpartition("/")[2], text) for topic, text in wanted if "host" not in text]


def readings(sensors: dict[str, Sensor]) -> list[central_computer.Reading]:
    out = []
    for gateway, sensor in sensors.items():
        made = Simulation(sensor, BEGIN).between(BEGIN, UNTIL)
        made = made.take(made.arrival_us.argsort(kind="stable"))
        for order, (at, value, series) in enumerate(
            zip(made.time_us.tolist(), made.value.tolist(), made.series.tolist(), strict=True)
        ):
            exact = (
                value
                if sensor.scale is None
                else central_computer.exact(round(value / 10.0**sensor.scale), sensor.scale)
            )
            labels = {**dict(sensor.labels), "series": str(series)}
            out.append(central_computer.Reading(at, exact, gateway, order, labels))
    return out


def oracle_rows() -> list[DeltaRow]:
    """What the tables would hold."""
    rows = []
    for source, sensors in demo_sensors().items():
        queries = [query for query in demo_queries() if query.source == source]
        all_readings = readings(sensors)

        def passes(query: Query, reading: central_computer.Reading) -> bool:
            return not query.where or reading.value > Fraction(70)

        counts = central_computer.results([replace(q, aggregates=(COUNT,)) for q in queries], all_readings, passes)
        for (query, key, start, end), values in central_computer.results(queries, all_readings, passes).items():
            if start >= BEGIN and end <= UNTIL:
                number = int(counts[query, key, start, end]["count"] or 0)
                rows.append(DeltaRow(query, 0, key, start, end, values, number, 0, True, 3))
    return rows


COUNT = parse_query(
    "c", '{"source": "b", "window": {"type": "tumbling", "length": "1s"}, "aggregates": ["count"]}'
).aggregates[0]


def verdict(rows: list[DeltaRow]) -> Comparison:
    return compare(rows, demo_queries(), demo_sensors(), (BEGIN, UNTIL), frozenset(QUERIES))


def test_the_truth_is_what_the_oracle_says() -> None:
    rows = oracle_rows()
    found = verdict(rows)
    assert found.differences == []
    assert found.line == f"{len(rows)} windows, 0 differ, 0 missing, 0 double"
    assert found.good
    assert len(rows) > 40


@pytest.mark.parametrize("what", ["differ", "missing", "double", "never"])
def test_every_kind_of_mistake_is_found(what: str) -> None:
    rows = oracle_rows()
    victim = next(row for row in rows if row.query == "boiler-1s" and row.start_us > BEGIN + 2 * SECOND_US)
    rest = [row for row in rows if row is not victim]
    changed = {
        "differ": [*rest, replace(victim, values={**victim.values, "sum": (victim.values["sum"] or 0) + 0.1})],
        "missing": rest,
        "double": [*rows, victim],
        "never": [*rows, replace(victim, key="site=nowhere")],
    }[what]
    found = verdict(changed)
    assert not found.good
    assert (found.differ, found.missing, found.double) == {
        "differ": (1, 0, 0),
        "missing": (0, 1, 0),
        "double": (0, 0, 1),
        "never": (1, 0, 0),
    }[what]


def test_nothing_at_all_is_not_good() -> None:
    assert not verdict([]).good


def test_a_query_that_a_user_narrowed_or_cannot_be_checked_is_told_and_not_judged() -> None:
    mine = parse_query(
        "mine", '{"source": "boiler", "window": {"type": "tumbling", "length": "1s"}, "aggregates": ["count"]}'
    )
    row = DeltaRow("mine", 0, "", BEGIN, BEGIN + SECOND_US, {"count": 1.0}, 1, 0, True, 1)
    found = compare([row], [mine], demo_sensors(), (BEGIN, UNTIL), frozenset(QUERIES))
    assert found.skipped == {"mine": "it does not run on all gateways"}


@pytest.mark.parametrize("complete", [False, True])
def test_windows_of_a_user_s_query_count_once_all_gateways_were_told_of_it(complete: bool) -> None:
    """protocol 6.3: a gateway that was down when the query came begins within a window, whose row says so."""
    mine = frozenset(QUERIES) - {"boiler-1s"}
    gateways = len(demo_sensors()["boiler"])
    rows = [replace(row, expected=gateways) for row in oracle_rows()]
    first_us = min(row.start_us for row in rows if row.query == "boiler-1s")
    told = [
        replace(row, readings=row.readings - 1, complete=complete)
        if (row.query, row.start_us) == ("boiler-1s", first_us)
        else row
        for row in rows
    ]
    found = compare(told, demo_queries(), demo_sensors(), (BEGIN, UNTIL), mine)
    assert "boiler-1s" not in found.skipped
    assert found.good == (not complete)
    assert not compare(told, demo_queries(), demo_sensors(), (BEGIN, UNTIL), frozenset(QUERIES)).good
