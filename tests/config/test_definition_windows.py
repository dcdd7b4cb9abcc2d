"""Windows as definitions ask for them: which there are, which are too early, and what is wrong with one."""

from __future__ import annotations

from typing import Any

import pytest

from edge_agent.algebra.windows import ALL
from edge_agent.algebra.windows.count_tumbling import CountTumbling
from edge_agent.config.definitions.definitions import canonical_query, parse_recording_query, query_of
from edge_agent.config.definitions.window_table import keys_of_window
from edge_agent.errors import ConfigError, NotSupported
from tests.support.config.parsing import parse_query
from tests.support.config.query_tables import COUNT, query


def test_every_window_type_of_the_registry_can_be_asked_for() -> None:
    for word, window in ALL.items():
        assert [key.name for key in keys_of_window(word)] == [setting.name for setting in window.KEYS]


@pytest.mark.usefixtures("without_counts")
def test_window_types_of_a_later_version_are_not_mistakes() -> None:
    with pytest.raises(NotSupported, match='window type "count_tumbling" is not supported yet'):
        parse_query("x", query(window={"type": "count_tumbling", "gap": "5s", "length": 7}))


def test_the_windows_of_a_query_may_be_each_gateways_own() -> None:
    asked = parse_query("x", query(scope="local"))
    assert asked.scope == "local"
    assert query_of(canonical_query(asked)) == asked
    assert (asked.group_at("gw-1").node, parse_query("x", query()).group_at("gw-1").node) == ("gw-1", "")


def test_windows_of_a_state_that_merge_over_gateways_are_refused_for_each_alone() -> None:
    window = {"type": "punctuation", "interpretation": "overlap", "markers": "mode"}
    with pytest.raises(ConfigError, match="are merged over gateways, but scope local is not"):
        parse_query("x", query(window=window, scope="local"))
    given = parse_query("x", query(window={**window, "markers": ""}, scope="local"))
    assert query_of(canonical_query(given)) == given


def test_a_mistake_beside_a_later_word_is_still_a_mistake() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_query("x", query(window={"type": "session"}, aggregates=["avrg"]))
    assert not isinstance(caught.value, NotSupported)
    assert len(caught.value.problems) == 2


def test_windows_that_are_not_keyed_count_all_keys_together() -> None:
    read = parse_recording_query({"id": "q", "window": COUNT, "aggregate": "sum"}, by=["key"])
    assert (read.window, read.by) == (CountTumbling(7, keyed=False), ())
    asked = parse_query("x", query(by=["site"], window={"type": "count_tumbling", "length": 7, "keyed": False}))
    assert asked.by == ()
    assert query_of(canonical_query(asked)) == asked
    assert parse_query("x", query(by=["site"], window={"type": "count_tumbling", "length": 7})).by == ("site",)


@pytest.mark.parametrize(
    ("window", "why"),
    [
        ({"type": "count_tumbling", "length": 0}, "at least 1"),
        ({"type": "count_tumbling", "length": "5s"}, "wanted a whole number"),
        ({"type": "count_tumbling", "length": 10**7}, "at most 1000000"),
        ({"type": "count_tumbling", "length": 9, "slide": 3}, 'use type = "count_sliding"'),
        ({"type": "count_sliding", "length": 3, "slide": 9}, "more than length 3"),
        ({"type": "state"}, '"begin" is missing'),
        ({"type": "state", "begin": ""}, "begin"),
        ({"type": "state", "begin": "value >"}, "window.begin"),
        ({"type": "state", "begin": "value > 1", "end": "5"}, "window.end"),
    ],
)
def test_what_is_wrong_with_a_window_of_positions_or_states_is_said(window: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_query("x", query(window=window))
    assert why in str(caught.value)


def test_only_windows_that_wait_for_missing_nodes_can_skip_them() -> None:
    counted = query(on_missing="skip", window={"type": "count_tumbling", "length": 7})
    asked = parse_query("x", counted)
    assert asked.on_missing == "skip"
    assert query_of(canonical_query(asked)) == asked
    for each in ("order", "central"):
        window = {"type": "punctuation", "interpretation": each}
        assert parse_query("x", query(on_missing="skip", window=window)).on_missing == "skip"
    with pytest.raises(ConfigError, match=r"on_missing.*never waits longer than the grace time"):
        parse_query("x", query(on_missing="skip", window={"type": "punctuation", "interpretation": "bounds"}))
    with pytest.raises(ConfigError, match=r"on_missing.*never waits longer than the grace time"):
        parse_query("x", query(on_missing="skip"))


def test_conditions_of_a_window_look_at_labels_of_the_key_only() -> None:
    state = {"type": "state", "begin": "site = 'a' and value > 3"}
    assert parse_query("x", query(window=state, by=["site"])).by == ("site",)
    with pytest.raises(ConfigError, match='add "site" to by'):
        parse_query("x", query(window=state))
