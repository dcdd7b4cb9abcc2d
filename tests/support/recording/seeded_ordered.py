"""Recordings of count and state windows, drawn from a seed, with their right rows."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

from edge_agent.algebra.query.group_cut import OrderedCut
from edge_agent.recording.parser import parse
from tests.oracle import central_computer
from tests.oracle.central_computer import Reading
from tests.support.recording.seeded import AGGREGATES, Row, Value, judged, made

MORE: list[dict[str, Any]] = [
    {"aggregate": "median"},
    {"aggregate": "changes"},
    {"aggregates": ["count", "first", {"fn": "quantile", "q": 0.5, "as": "half"}]},
]


def made_central(seed: int) -> dict[str, Any]:
    """As `made`, asked for windows that only the root can form, beside those of time.

    Late readings are in none of them, or, where they revise others, in theirs.
    """
    random, given = Random(seed), made(seed)
    asked = [_query(random, n) for n in range(random.randint(1, 3))]
    return {**given, "id": f"central-{seed}", "queries": [*asked, given["queries"][0]]}


def _query(random: Random, n: int) -> dict[str, Any]:
    length = random.choice([1, 2, 3, 7, 20, 50])
    window: dict[str, Any] = {"type": "count_tumbling", "length": length}
    if random.random() < 0.5:
        window = {"type": "count_sliding", "length": length, "slide": random.randint(1, length)}
    if random.random() < 0.25:
        begin = random.choice(["value > 50", "value <= 0"])
        window = {"type": "state", "begin": begin, **({"end": "value > 70"} if random.random() < 0.5 else {})}
    if random.random() < 0.4 and window["type"] != "state":
        window["keyed"] = False
    return {"id": f"c{n}", "window": window, **random.choice([*AGGREGATES, *MORE])}


def expected_central(given: dict[str, Any], name: str) -> dict[Row, Value]:
    """What must come out of these windows: (query, key as JSON, start, end: positions, or times in us) -> values."""
    recording = parse(json.dumps(given), name)
    out: dict[Row, Value] = {}
    for asked in recording.asked:
        query = asked.query
        if not isinstance(query.group.cut, OrderedCut):
            continue
        by_key: dict[str, list[Reading]] = {}
        for reading, frontier in judged(given, recording):
            if math.isfinite(reading.value) and (query.late == "revise" or reading.time_us >= frontier):
                by_key.setdefault(reading.labels["key"] if query.by else "null", []).append(reading)
        for key, readings in by_key.items():
            readings.sort(key=lambda r: (r.time_us, r.node, r.order))
            for (start, end), inside in central_computer.windows(query, readings).items():
                out[str(asked.recorded_id), key, start, end] = central_computer.answers(query, inside)
    return out
