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
