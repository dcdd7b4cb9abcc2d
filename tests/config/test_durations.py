from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config.checking.durations import (
    SIZES,
    UNITS_US,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from edge_agent.config.definitions.definitions import parse_definition
from edge_agent.errors import ConfigError


@given(st.integers(0, 10**15))
def test_a_duration_reads_back_from_its_canonical_text(us: int) -> None:
    assert parse_duration(format_duration(us)) == us


@given(st.integers(0, 10**12))
def test_a_size_reads_back_from_its_canonical_text(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS_US)))
def test_a_duration_is_its_number_times_its_unit(number: int, unit: str) -> None:
    assert parse_duration(f"{number}{unit}") == number * UNITS_US[unit]


@given(st.integers(1, 10**6), st.sampled_from(sorted(SIZES)))
def test_a_size_is_its_number_times_its_unit(number: int, unit: str) -> None:
    assert parse_size(f"{number}{unit}") == number * SIZES[unit]


@pytest.mark.parametrize(
    ("text", "us"),
    [
        *(("250ms", 250_000), ("5s", 5_000_000), ("10m", 600_000_000), ("1h", 3_600_000_000), ("1d", 86_400_000_000)),
        *(("1.5h", 5_400_000_000), ("0.25s", 250_000), ("2w", 1_209_600_000_000), ("7us", 7), ("0s", 0)),
    ],
)
def test_the_units_people_write(text: str, us: int) -> None:
    assert parse_duration(text) == us


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-5s", "5 s", "5S", "1m30s", "05s", "0.5us", "1e3s", "∞s", "5s\n", "٣s"]
)
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a number with a unit|not a whole number"):
        parse_duration(text)


@pytest.mark.parametrize(("us", "text"), [(0, "0s"), (5_400_000_000, "90m"), (604_800_000_000, "7d"), (1500, "1500us")])
def test_canonical_text_takes_the_longest_unit_that_divides(us: int, text: str) -> None:
    assert format_duration(us) == text


@pytest.mark.parametrize(
    ("value", "why", "hint"),
    [
        ("0.3333333s", "has more than 6 decimals", "0.333333s"),
        ("1.0000000s", "has more than 6 decimals", "1s"),
        ("99999999999999999s", "longer than 366d", "366d"),
        ("٣s", "not a number with a unit", ""),
    ],
)
def test_a_duration_of_many_digits_is_refused_for_what_is_wrong_with_it(value: str, why: str, hint: str) -> None:
    window = {"type": "tumbling", "length": value}
    query = {"source": "s", "window": window, "aggregates": ["avg"], "revision": 1}
    with pytest.raises(ConfigError) as caught:
        parse_definition("query", "q", json.dumps(query))
    (problem,) = caught.value.problems
    assert why in problem.why
    assert hint in (problem.hint or "")
