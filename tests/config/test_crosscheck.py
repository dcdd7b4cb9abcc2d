"""What a definition on its own cannot say: whether the sensor of a query has the labels that the query uses."""

from __future__ import annotations

from typing import Any

from edge_agent.config.definitions.definitions import parse_sensor
from edge_agent.config.in_force.crosscheck import warnings
from tests.support.config.parsing import parse_query

SENSOR = parse_sensor("boiler", {"driver": "mqtt", "topic": "a/+", "labels": {"site": "a", "area": "{topic[1]}"}})
QUERY: dict[str, Any] = {"source": "boiler", "window": {"type": "tumbling", "length": "1m"}, "aggregates": ["avg"]}


def told(**more: Any) -> list[tuple[str, str]]:
    """(place, hint) of each warning."""
    found = warnings(parse_query("q", {**QUERY, **more}), {"boiler": SENSOR})
    return [(problem.at, problem.hint) for problem in found]


def test_labels_that_the_sensor_has_are_no_reason_to_warn() -> None:
    weighted = {"fn": "weighted_avg", "weight": "area"}
    assert told(by=["site"], where="area = '3'", aggregates=["avg", weighted]) == []


def test_labels_that_the_sensor_lacks_are_told_with_their_place_and_the_nearest_one() -> None:
    weighted = {"fn": "weighted_avg", "weight": "are"}
    assert told(by=["sites"]) == [("by", "site")]
    assert told(where="zone = 'x'") == [("where", "labels are area, site")]
    assert told(aggregates=["avg", weighted]) == [("aggregates[1].weight", "area")]


def test_a_session_without_end_that_keeps_its_values_is_told_to_set_max() -> None:
    """Its row grows with each reading, and is written with each commit: some GB a day for 1 reading a second."""
    session = {"type": "session", "gap": "1m"}
    assert told(window=session, aggregates=["avg", "approx_median", "last"]) == []
    assert told(window={**session, "max": "1d"}, aggregates=["median"]) == []
    (problem,) = warnings(
        parse_query("q", {**QUERY, "window": session, "aggregates": ["avg", "median", "time_weighted_avg"]}),
        {"boiler": SENSOR},
    )
    assert (problem.at, problem.hint) == ("window.max", 'set max, like "1d"')
    assert "median, time_weighted_avg" in problem.why
