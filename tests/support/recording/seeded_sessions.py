"""Recordings of sessions, drawn from a seed, with their right rows."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

from edge_agent.algebra.windows import Session
from edge_agent.recording.parser import parse
from tests.oracle import central_computer
from tests.oracle.central_computer import Reading
from tests.support.recording.seeded import AGGREGATES, Row, Value, judged, made

HOLISTIC: list[dict[str, Any]] = [
    {"aggregate": "median"},
    {"aggregate": "median", "param": {"even": "upper"}},
    {"aggregates": ["mode", "max", {"fn": "quantile", "q": 0.9, "as": "p90"}]},
]


def made_sessions(seed: int) -> dict[str, Any]:
    """A recording with sessions of several gaps, two of them mostly equal, so that they share what travels."""
    random = Random(seed)
    gaps = [random.choice([1, 2, 5, 20, 100, 1_000]) for _ in range(random.randint(1, 3))]
    queries = [
        {"id": f"q{n}", "window": {"type": "session", "gap": gap}, **random.choice([*AGGREGATES, *HOLISTIC])}
        for n, gap in enumerate([*gaps, gaps[0]])
    ]
    return {**made(seed), "id": f"sessions-{seed}", "queries": queries}


def expected_sessions(given: dict[str, Any], name: str) -> dict[Row, Value]:
    """What must come out: (query, key as JSON, start, end in us) -> values.

    A late reading counts by the policy: never, where its session could still have been open, or always.
    """
    recording = parse(json.dumps(given), name)
    out: dict[Row, Value] = {}
    for asked in recording.asked:
        query, window = asked.query, asked.query.window
        assert isinstance(window, Session)
        kept: dict[str, list[Reading]] = {}
        for reading, frontier in judged(given, recording):
            late = reading.time_us < frontier
            in_time = query.late == "revise" or (
                query.late == "per_window" and reading.time_us + window.gap_us >= frontier
            )
            if math.isfinite(reading.value) and (not late or in_time):
                kept.setdefault(reading.labels["key"] if query.by else "null", []).append(reading)
        for key, readings in kept.items():
            readings.sort(key=lambda r: (r.time_us, r.node, r.order))
            for (start, end), inside in central_computer.sessions(window, readings).items():
                out[str(asked.recorded_id), key, start, end] = central_computer.answers(query, inside)
    return out
