"""Every function of the registry through the tree: recordings of whole numbers and of floats, equal to the oracle."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from edge_agent.algebra.aggregates import BUILT_IN, FUNCTIONS
from edge_agent.algebra.query.query import Aggregate
from edge_agent.errors import ConfigError
from edge_agent.recording.parser import parse
from edge_agent.recording.row_rendering import RowRenderer
from edge_agent.recording.tree import Tree
from tests.oracle import central_computer, functions, member_itself
from tests.support import algebra_strategies
from tests.support.effort import seeds
from tests.support.recording.seeded import UNITS, Row, Value, expected, judged, made, reach, told_rows
from tests.support.tolerance import close

ESTIMATES = {"approx_distinct", "theta_distinct", "approx_quantile", "approx_median", "top_k"}  # see tests/laws
TOLD = {  # functions whose answer is in the details
    "collect": lambda readings, _: central_computer.collected(readings),
    "sequence": lambda readings, _: central_computer.sequence(readings),
    "histogram": functions.histogram,
    "value_counts": lambda readings, _: functions.value_counts(readings),
    "time_by_state": lambda readings, _: functions.time_by_state(readings),
}


def every_function() -> list[Aggregate]:
    """Each with each choice of its parameters, under names that are columns."""
    built_in = {function.name for family in BUILT_IN for function in family.functions}
    exact = [a for a in algebra_strategies.every_aggregate() if a.fn in built_in - ESTIMATES]
    return [Aggregate(a.fn, f"a{i}", a.params) for i, a in enumerate(exact)]


EVERY = every_function()


def asked(seed: int) -> dict[str, Any]:
    """A recording that asks for all of them, some in each query."""
    given = made(seed)
    queries = []
    for first in range(0, len(EVERY), 30):
        table = [{"fn": a.fn, "as": a.name, **dict(a.params)} for a in EVERY[first : first + 30]]
        window = {"type": "sliding", "length": 40, "slide": 15} if first else {"type": "tumbling", "length": 100}
        queries.append({"id": f"q{first}", "window": window, "aggregates": table})
    return {**given, "queries": queries}


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds(1_000, 12))
def test_every_function_gives_the_answer_of_the_oracle(seed: int, told: None) -> None:
    """protocol 7.1, 7.2 and 7.3, through mergers and frames."""
    given = asked(seed)
    check(given, expected(given, "made"))


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds(2_000, 6))
def test_every_function_gives_the_answer_of_the_oracle_over_sessions(seed: int, told: None) -> None:
    """protocol 5.3 and 7.3, through mergers and frames."""
    given = {**asked(seed), "watermarks": {"mode": "end_of_stream", "allowed_lateness_ms": 0, "implicit_lag_ms": 0}}
    for query in given["queries"]:
        query["window"] = {"type": "session", "gap": 7}
    recording = parse(json.dumps(given), "made")
    want: dict[Row, Value] = {}
    for one in recording.asked:
        by_key: dict[str, list[central_computer.Reading]] = {}
        for reading, _ in judged(given, recording):
            if math.isfinite(reading.value):
                by_key.setdefault(reading.labels["key"] if one.query.by else "null", []).append(reading)
        for key, readings in by_key.items():
            readings.sort(key=lambda r: (r.time_us, r.node, r.order))
            for (start, end), inside in central_computer.windows(one.query, readings).items():
                want[str(one.recorded_id), key, start, end] = central_computer.answers(one.query, inside)
    check(given, want)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle tells what stands in the details as well."""
    unwritten = {fn: member_itself.told(fn) for fn, f in FUNCTIONS.items() if f.gives == "details" and fn not in TOLD}
    for fn, tell in {**unwritten, **TOLD}.items():
        monkeypatch.setitem(central_computer.FUNCTIONS, fn, tell)


def check(given: dict[str, Any], want: Mapping[Row, Value]) -> None:
    """Replay a recording, and compare every row and function."""
    recording = parse(json.dumps(given), "made")
    assert not recording.refused
    got = told_rows(RowRenderer(recording).final(Tree(recording).run()), given)
    assert got.keys() == want.keys()
    most, unit_us = reach(given, whole=True), UNITS[given["unit"]]
    for place, numbers in want.items():
        for aggregate in EVERY:
            if aggregate.name in numbers:
                value = numbers[aggregate.name]
                if FUNCTIONS[aggregate.fn].gives == "time":
                    value = value and value / unit_us
                assert same(aggregate, got[place][aggregate.name], value, most), (place, aggregate, value)


def same(aggregate: Aggregate, got: Any, want: Any, most: float) -> bool:
    """Equal, floats within the tolerance of their terms."""
    if isinstance(want, dict):
        got = {(float(k) if aggregate.fn != "histogram" else k): v for k, v in got.items()}
    if isinstance(want, list | dict) or want is None:
        return bool(got == want)
    if aggregate.fn == "moment" and aggregate.param("kind") == "central":
        return close(got, want, most ** int(str(aggregate.param("order"))))
    if aggregate.fn in {"skewness", "kurtosis", "moment"}:  # how close they come, tests/laws say
        return got is not None and math.isclose(got, want, rel_tol=1e-6, abs_tol=1e-6)
    if aggregate.fn == "stddev":
        got, want = got**2, want**2  # a root enlarges the error of what is nearly 0
    return close(got, want, most**2 if aggregate.fn in {"var", "stddev", "sum_of_squares"} else most)


def test_integers_that_no_float_tells_apart_are_apart_in_details() -> None:
    """docs/recordings.md: integers are exact below 2^61."""
    big = 2**61
    given = {
        "queries": [
            {"id": "q", "window": {"type": "tumbling", "length": 10}, "aggregates": ["value_counts", "time_by_state"]}
        ],
        "streams": {"a": [[1, None, big - 1], [2, None, big - 2], [3, None, big - 3], [4, None, big - 1]]},
    }
    recording = parse(json.dumps(given), "x", 0)
    (row,) = RowRenderer(recording).final(Tree(recording).run())
    assert row["values"] == {
        "value_counts": {str(big - 3): 1, str(big - 2): 1, str(big - 1): 2},
        "time_by_state": {str(big - 3): 0.001, str(big - 2): 0.001, str(big - 1): 0.001},
    }


@pytest.mark.parametrize(("mean", "skewness"), [(10**12, 1.1903401282789947), (10**15, None)])
def test_the_shape_of_readings_that_hardly_differ_is_null(mean: int, skewness: float | None) -> None:
    """docs/configure.md: from a spread of 1e-13 of the mean on; sums of third powers would be noise below it."""
    given = {
        "queries": [{"id": "q", "window": {"type": "tumbling", "length": 10}, "aggregate": "skewness"}],
        "streams": {"a": [[1, None, mean], [2, None, mean + 1]], "b": [[3, None, mean + 2], [4, None, mean + 5]]},
    }
    recording = parse(json.dumps(given), "x", 0)
    (row,) = RowRenderer(recording).final(Tree(recording).run())
    assert row["value"] == (skewness if skewness is None else pytest.approx(skewness))


@pytest.mark.parametrize(
    "query",
    [
        {"where": "value > 2305843009213693950", "aggregates": ["count"]},
        {"aggregates": [{"fn": "count_if", "value": 2**61 - 2}]},
        {"aggregates": [{"fn": "time_in_state", "value": 2**53 + 1}]},
        {"aggregates": [{"fn": "histogram", "edges": [0, 2**61 - 2, 2**61 - 1]}]},
    ],
)
def test_a_comparison_with_an_integer_that_is_no_float_is_refused(query: dict[str, Any]) -> None:
    """The comparison would be with another number than the one written."""
    given = {
        "queries": [{"id": "q", "window": {"type": "tumbling", "length": 10}, **query}],
        "streams": {"a": [[1, None, 1]]},
    }
    (line,) = parse(json.dumps(given), "x", 0).refused
    assert "beyond 2^53 and no float" in line
    assert "the nearest one is" in line


def test_readings_beyond_2_to_the_53_are_compared_exactly() -> None:
    """Where readings are filtered, and where a condition begins a window at the root."""
    big = 2**61
    given = {
        "queries": [
            {"id": "w", "window": {"type": "tumbling", "length": 10}, "where": f"value < {big}", "aggregate": "count"},
            {"id": "s", "window": {"type": "state", "begin": f"value >= {2**60}"}, "aggregate": "count"},
        ],
        "streams": {"a": [[1, None, big - 1], [2, None, 2**60 - 1], [3, None, 2**60], [4, None, 1]]},
    }
    recording = parse(json.dumps(given), "x", 0)
    rows = {(row["query"], row["start"]): row["value"] for row in RowRenderer(recording).final(Tree(recording).run())}
    assert rows == {("w", 0): 4, ("s", 1): 1, ("s", 3): 1}
    assert recording.unanswered == ()


@pytest.mark.parametrize(("aggregate", "other"), [("sum", 0.5), ("var", 1)])
def test_integers_that_are_rounded_to_floats_are_told(aggregate: str, other: float) -> None:
    """Beside values that are no integers, and where sums of their squares would be too large."""
    given = {
        "queries": [{"id": "q", "window": {"type": "tumbling", "length": 10}, "aggregate": aggregate}],
        "streams": {
            "a": [[1, None, 2**53], [2, None, 2**60 + 1], [3, None, -(2**60) - 1]],
            "b": [[1, None, other]] * 80,
        },
    }
    (line,) = parse(json.dumps(given), "x", 0).unanswered
    assert line.startswith(
        "x: streams.a: 2 integers rounded to the nearest float: the first is [1], 1152921504606846977; "
    )


def test_a_comparison_with_a_large_float_is_allowed() -> None:
    given = {
        "queries": [
            {
                "id": "q",
                "window": {"type": "tumbling", "length": 10},
                "where": "value < 1e18",
                "aggregates": [{"fn": "count_if", "value": 10**17}],
            }
        ],
        "streams": {"a": [[1, None, 10**17 + 2], [2, None, 5], [3, None, 2 * 10**18]]},
    }
    recording = parse(json.dumps(given), "x", 0)
    (row,) = RowRenderer(recording).final(Tree(recording).run())
    assert (row["value"], list(recording.refused)) == (1, [])


@pytest.mark.parametrize("place", ["where", "value", "edges", "length", "gap", "q", "time", "wm"])
def test_an_integer_beyond_all_floats_is_no_end_of_the_replay(place: str) -> None:
    """It is reported or left out like the same number written with an exponent."""
    given: dict[str, Any] = {
        "queries": [{"id": "q", "window": {"type": "tumbling", "length": 10}, "aggregates": ["count"]}],
        "streams": {"a": [[1, None, 1]]},
    }
    beyond = 10**400
    query, items = given["queries"][0], given["streams"]["a"]
    match place:
        case "where":
            query["where"] = f"value > {beyond}"
        case "value":
            query["aggregates"] = [{"fn": "count_if", "value": beyond}]
        case "edges":
            query["aggregates"] = [{"fn": "histogram", "edges": [0, beyond]}]
        case "q":
            query["aggregates"] = [{"fn": "quantile", "q": beyond}]
        case "length":
            query["window"]["length"] = beyond
        case "gap":
            query["window"] = {"type": "session", "gap": beyond}
        case "time":
            items.append([beyond, None, 1])
        case "wm":
            items.append(["wm", beyond])
    text = json.dumps(given)
    assert replayed(text) == replayed(text.replace(str(beyond), "1e400"))


def replayed(text: str) -> object:
    """What a replay of the text is: its error, or what it refuses and its rows."""
    try:
        recording = parse(text, "x", 0)
    except ConfigError as err:
        return str(err)
    refused = [line.split(":")[1] for line in recording.refused]  # the lines quote the text as written
    return refused, list(RowRenderer(recording).final(Tree(recording).run()))
