"""Exact and approximate functions side by side in one query, through a tree: the one bounds the other."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from edge_agent.algebra.sketches import kll
from edge_agent.recording.parser import parse
from edge_agent.recording.row_rendering import RowRenderer
from edge_agent.recording.tree import Tree

ASKED = ["distinct", "approx_distinct", "theta_distinct", "median", "approx_median", "top_k"]
LAST = {"fn": "approx_quantile", "q": 0.99, "as": "p99"}


def recording(window: dict[str, Any], children: int = 3, readings: int = 4_000) -> dict[str, Any]:
    """Half of the values in one place, the rest all different; the children see some of the same."""
    random = np.random.default_rng(11)
    common = random.normal(20, 3, readings // 4)
    streams = {}
    for child in range(children):
        own = np.concatenate([random.normal(20, 3, readings // 4), common, np.full(readings // 2, 21.5)])
        times = np.sort(random.integers(0, 10_000, readings))
        streams[f"c{child}"] = [[int(t), None, float(v)] for t, v in zip(times, random.permutation(own), strict=True)]
    return {
        "queries": [{"id": "q", "window": window, "aggregates": [*ASKED, LAST]}],
        "streams": streams,
        "topology": {"m": ["c0", "c1"], "root": ["m", "c2"]},
    }


@pytest.mark.parametrize(
    "window",
    [
        {"type": "tumbling", "length": 10_000},
        {"type": "sliding", "length": 6_000, "slide": 2_000},
        {"type": "session", "gap": 500},
    ],
    ids=lambda window: str(window["type"]),
)
def test_what_is_approximate_is_within_its_error_of_what_is_exact(window: dict[str, Any]) -> None:
    given = recording(window)
    parsed = parse(json.dumps(given), "made")
    assert not parsed.refused
    rows = RowRenderer(parsed).final(Tree(parsed).run())
    assert rows
    for row in rows:
        values: Any = row["values"]
        inside = sorted(
            value
            for stream in given["streams"].values()
            for time, _, value in stream
            if row["start"] <= time < row["end"]
        )
        assert row["readings"] == len(inside)
        exact = len(set(inside))
        assert values["distinct"] == exact
        assert values["theta_distinct"] == exact or exact > 4_096
        assert values["approx_distinct"] == pytest.approx(exact, rel=4 * 0.01625)
        for name, q in (("approx_median", 0.5), ("p99", 0.99)):
            low, high = (np.searchsorted(inside, values[name], side) / len(inside) for side in ("left", "right"))
            assert low - kll.ERROR < q < high + kll.ERROR, name
        (first, count), *_ = values["top_k"]
        assert first == 21.5
        assert 0 <= inside.count(21.5) - count <= len(inside) / 256
