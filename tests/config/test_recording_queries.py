"""Queries as recordings ask for them."""

from __future__ import annotations

import pytest

from edge_agent.algebra.query.query import Aggregate
from edge_agent.algebra.windows.sliding import Sliding
from edge_agent.algebra.windows.tumbling import Tumbling
from edge_agent.config.definitions.definitions import canonical_query, parse_recording_query, query_of
from edge_agent.errors import ConfigError, NotSupported
from tests.support.config.parsing import parse_query
from tests.support.config.query_tables import COUNT


def test_plain_numbers_of_a_recording_are_in_its_unit() -> None:
    table = {"id": "q1", "window": {"type": "sliding", "length": 700, "slide": 300, "unit": "ms"}, "aggregate": "avg"}
    read = parse_recording_query(table)
    assert (read.window, read.aggregates) == (Sliding(700_000, 300_000), (Aggregate("avg", "avg"),))
    assert (read.id, read.source, read.lateness_us, read.late, read.by) == ("q1", "recording", 0, "per_window", ())
    assert parse_recording_query({**table, "window": {"type": "tumbling", "length": 3}}, 1).window == Tumbling(3)


def test_the_odd_measures_of_a_recording_travel_too() -> None:
    table = {"id": "q", "window": {"type": "sliding", "length": 7, "slide": 2}, "aggregate": "avg"}
    read = parse_recording_query(table, 1, lateness=30 * 86_400_000_000)
    assert query_of(canonical_query(read)) == read
    with pytest.raises(ConfigError, match="shorter than 1ms"):
        parse_query("q", canonical_query(read))


def test_what_a_recording_says_for_all_its_queries_goes_where_a_query_is_silent() -> None:
    table = {"id": "q", "window": {"type": "tumbling", "length": 10}, "aggregate": "sum"}
    read = parse_recording_query(table, 1000, by=["key"], lateness=40, late="drop", source="s")
    assert (read.by, read.lateness_us, read.late, read.source) == (("key",), 40_000, "drop", "s")
    assert (
        parse_recording_query(
            {**table, "window": {"type": "tumbling", "length": 1, "keyed": False}}, 1000, by=["key"]
        ).by
        == ()
    )


def test_a_recording_may_hold_fields_we_do_not_know() -> None:
    table = {
        "id": "Q.1 %",
        "aggregate": "max",
        "slice_group": "g",
        "added_after_items": 3,
        "window": {"type": "tumbling", "length": 10, "slide": None, "unit": "ms", "hue": 1},
    }
    assert parse_recording_query(table).id == "Q.1 %"


@pytest.mark.usefixtures("without_counts")
def test_what_a_recording_asks_too_early_is_one_line() -> None:
    with pytest.raises(NotSupported) as caught:
        parse_recording_query({"id": "q", "window": COUNT, "aggregate": "sum"})
    assert str(caught.value).startswith('query "q": ')
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "window", [{"type": "tumbling", "length": 0}, {"type": "sliding", "length": 5, "slide": 9}, {}, None]
)
def test_a_recording_can_be_wrong_too(window: object) -> None:
    with pytest.raises(ConfigError):
        parse_recording_query({"id": "q", "window": window, "aggregate": "sum"})
