"""Recordings drawn from a seed, with their right rows: the oracle over the readings that count."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from fractions import Fraction
from random import Random
from typing import Any

from edge_agent.algebra.query.group_cut import OrderedCut
from edge_agent.algebra.query.query import Query
from edge_agent.recording.parser import Recording, parse
from edge_agent.recording.row_rendering import RenderedRow, RowRenderer
from edge_agent.recording.tree import Tree
from tests.oracle import central_computer
from tests.oracle.central_computer import Reading

UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000}
AGGREGATES: list[dict[str, Any]] = [
    {"aggregate": "sum"},
    {"aggregate": "count"},
    {"aggregate": "min"},
    {"aggregate": "max"},
    {"aggregate": "range"},
    {"aggregate": "avg"},
    {"aggregate": "avg", "param": {"rounding": "truncate"}},
    {"aggregate": "var", "param": {"ddof": 0}},
    {"aggregate": "var"},
    {"aggregate": "stddev", "param": {"ddof": 1}},
    {"aggregate": "geomean"},
    {"aggregate": "first"},
    {"aggregate": "last"},
    {"aggregates": ["sum", "last", {"fn": "stddev", "ddof": 0, "as": "sd"}]},
    {"aggregates": ["median", "mode", "distinct", "p95", {"fn": "median", "even": "lower", "as": "low"}]},
    {"aggregate": "quantile", "param": {"q": 0.3, "method": "nearest_rank"}},
    {"aggregates": ["delta", "percent_change", "time_weighted_avg"]},
    {"aggregates": ["skewness", {"fn": "kurtosis", "ddof": 0}, "rms", "harmonic", "sum_of_squares"]},
    {"aggregates": ["increase", "rate", "resets", "changes", "time_weighted_avg"]},
    {"aggregates": [{"fn": "integral", "method": "linear"}, {"fn": "time_in_state", "value": 20, "op": "<"}]},
    {"aggregates": [{"fn": "count_if", "value": 7.5}, {"fn": "share_if", "value": 7, "op": "!="}]},
]

Row = tuple[str, str, int, int]
Value = dict[str, float | None]


def made(seed: int) -> dict[str, Any]:
    """A recording: a random tree, streams with disorder and lateness, windows of all kinds."""
    random = Random(seed)
    unit = random.choice(["ms", "ms", "ms", "us", "s"])
    mode = random.choice(["end_of_stream", "markers", "implicit"])
    lag, allowed = random.choice([0, 0, 7, 40]), random.choice([0, 0, 5, 30])
    if unit == "us":
        lag, allowed = 0, random.choice([0, 1])
    children = [f"child-{n}" for n in range(random.randint(1, 6))]
    streams = {child: _stream(random, unit, mode) for child in children}
    return {
        "id": f"made-{seed}",
        "unit": unit,
        "queries": [_query(random, n) for n in range(random.randint(1, 4))],
        "streams": streams,
        **({"topology": topology(random, children)} if random.random() < 0.8 else {}),
        **({"child_order": random.sample(children, len(children))} if random.random() < 0.3 else {}),
        "watermarks": {"mode": mode, "implicit_lag_ms": lag, "allowed_lateness_ms": allowed},
        **({"late_policy": policy} if (policy := random.choice([None, "per_window", "drop", "revise"])) else {}),
    }


def _query(random: Random, n: int) -> dict[str, Any]:
    length = random.choice([5, 10, 12, 40, 100, 333, 1000])
    window: dict[str, Any] = {"type": "tumbling", "length": length}
    if random.random() < 0.6:
        window = {"type": "sliding", "length": length, "slide": random.randint(max(1, length // 9), length)}
    if random.random() < 0.1:
        window["keyed"] = False
    return {"id": f"q{n}", "window": window, **random.choice(AGGREGATES)}


def _stream(random: Random, unit: str, mode: str) -> list[list[Any]]:
    if random.random() < 0.15:
        return []
    keys: list[Any] = random.choice([[None], [0], [0, 1, 2], ["a", "b,=%", "ü"], [1, "1", None]])
    values = random.choice(["int", "int", "float", "large", "nan"])
    time = random.choice([0, 3, 1_000, 10**6])
    disorder = random.choice([0, 0, 3, 50])
    items: list[list[Any]] = []
    for _ in range(random.choice([1, 5, 40, 120])):
        time += random.choice([0, 0, 1, 1, 2, 5, 20, 400 if random.random() < 0.1 else 1])
        items.append([max(0, time - random.randint(0, disorder)), random.choice(keys), _value(random, values)])
        if mode == "markers" and random.random() < 0.15:
            items.append(["wm", time - random.choice([0, 0, 5, -3])])
        if random.random() < 0.02:
            items.append(["p", time])
    return items


def _value(random: Random, values: str) -> Any:
    match values:
        case "int":
            return random.randint(-20, 100)
        case "large":
            return random.choice([2**53, -(2**53), 2**52 + 1, 7])
        case "nan" if random.random() < 0.2:
            return "NaN"
    return round(random.uniform(-20, 100), 2)


def topology(random: Random, children: list[str]) -> dict[str, list[str]]:
    """Levels of mergers, some with one input; some children stay under the root."""
    topology: dict[str, list[str]] = {}
    level = list(children)
    for _ in range(random.randint(0, 3)):
        above: list[str] = []
        waiting = list(level)
        while waiting:
            many = random.randint(1, 3)
            inputs, waiting = waiting[:many], waiting[many:]
            if random.random() < 0.2:
                above += inputs
            else:
                name = f"merger-{len(topology) + 1}"
                topology[name] = inputs
                above.append(name)
        level = above
    return {**topology, "root": level}


def expected(given: dict[str, Any], name: str) -> dict[Row, Value]:
    """What must come out: (query, key as JSON, start, end in us) -> values."""
    recording = parse(json.dumps(given), name)
    out: dict[Row, Value] = {}
    for asked in recording.asked:
        query = asked.query
        if query.window.type == "session":
            continue  # a reading alone does not say in which it is
        if isinstance(query.group.cut, OrderedCut):
            out |= in_order(asked.recorded_id, query, judged(given, recording), recording.unit_us)
            continue
        inside: dict[tuple[str, int, int], list[Reading]] = {}
        for reading, frontier in judged(given, recording):
            late = reading.time_us < frontier
            if not math.isfinite(reading.value) or (late and query.late == "drop"):
                continue
            for start, end in central_computer.windows(query, [reading]):
                if not late or query.late == "revise" or end > frontier:
                    inside.setdefault((_key(query, reading), start, end), []).append(reading)
        for (key, start, end), readings in inside.items():
            readings.sort(key=lambda r: (r.time_us, r.node, r.order))
            out[str(asked.recorded_id), key, start, end] = central_computer.answers(query, readings)
    return out


def in_order(name: object, query: Query, readings: Iterable[tuple[Reading, float]], unit_us: int) -> dict[Row, Value]:
    """Windows of readings in one order, of those that were on time; positions as if they were in the unit."""
    lines: dict[str, list[Reading]] = {}
    for reading, frontier in readings:
        if math.isfinite(reading.value) and reading.time_us >= frontier:
            lines.setdefault(_key(query, reading), []).append(reading)
    step = unit_us if query.central.positions else 1
    out: dict[Row, Value] = {}
    for key, line in lines.items():
        line.sort(key=lambda r: (r.time_us, r.node, r.order))
        for (start, end), inside in central_computer.windows(query, line).items():
            out[str(name), key, start * step, end * step] = central_computer.answers(query, inside)
    return out


def _key(query: Query, reading: Reading) -> str:
    return reading.labels["key"] if query.by else "null"


def judged(given: dict[str, Any], recording: Recording) -> list[tuple[Reading, float]]:
    """Every reading with its child's frontier when it arrived."""
    unit_us, marks = UNITS[given["unit"]], given["watermarks"]
    order = given.get("child_order") or list(given["streams"])
    whole = recording.scale is not None
    out = []
    for rank, child in enumerate(order):
        reached = -math.inf
        for arrival, item in enumerate(given["streams"][child]):
            if item[0] == "wm" and marks["mode"] == "markers":
                reached = max(reached, item[1] * unit_us - marks["allowed_lateness_ms"] * 1_000)
            if isinstance(item[0], str):
                continue
            time, key, value = item
            number = Fraction(value) if whole and value != "NaN" else float(value)
            reading = Reading(time * unit_us, number, f"{rank:05d}", arrival, {"key": key_text(key)})
            out.append((reading, reached))
            if marks["mode"] == "implicit":
                behind = (marks["implicit_lag_ms"] + marks["allowed_lateness_ms"]) * 1_000
                reached = max(reached, time * unit_us - behind)
    return out


def told_rows(told: list[dict[str, Any]], given: dict[str, Any]) -> dict[Row, Value]:
    """Rows as `replay` prints them, or as a case expects them, by (query, key as JSON, start, end in us)."""
    unit_us = UNITS[given.get("unit", "ms")]
    out: dict[Row, Value] = {}
    for row in told:
        place = (str(row["query"]), key_text(row["key"]), round(row["start"] * unit_us), round(row["end"] * unit_us))
        assert place not in out, f"{place} stands twice"
        out[place] = row["values"] if "values" in row else {"value": row["value"]}
    return out


def key_text(key: Any) -> str:
    """A key as JSON, in one form."""
    return json.dumps(key, ensure_ascii=False, sort_keys=True)


def reach(given: dict[str, Any], query: str = "", *, whole: bool = False) -> float:
    """How large the terms of a sum may be, for tests/support/tolerance.py: integers are exact, so only floats need it.

    query: the id of one that may ask a function that is not exact of integers. whole: all queries may.
    """
    whole = whole or any(str(asked.get("id")) == query and _inexact(asked) for asked in given["queries"])
    values = [item[2] for items in given["streams"].values() for item in items if len(item) == 3]
    numbers = [abs(value) for value in values if isinstance(value, int | float)]
    return float(sum(numbers)) if whole or any(isinstance(value, float) for value in values) else 1.0


def _inexact(asked: dict[str, Any]) -> bool:
    """Whether a query asks for value x seconds, which is a sum of floats whatever the readings are."""
    words = asked.get("aggregates", [asked.get("aggregate")])
    return any((word["fn"] if isinstance(word, dict) else word) in {"integral", "time_weighted_avg"} for word in words)


def answered(given: dict[str, Any]) -> list[RenderedRow]:
    recording = parse(json.dumps(given), "made")
    assert not recording.refused
    return RowRenderer(recording).final(Tree(recording).run())
