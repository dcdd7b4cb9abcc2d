"""What waiting frames count as, and the memory that they take (docs/protocol.md 2.2)."""

from __future__ import annotations

import tracemalloc
from typing import Any

import cbor2
import pytest

from edge_agent.algebra.frame import Frame
from edge_agent.machines.downlink.epochs.waiting_frames import size_bytes
from edge_agent.runtime.region import heard

DEFINITIONS = [0, []], [0, []]
LONG = [f"{k:04}" + "l" * 240 for k in range(250)]
NODE, MARKERS = "n" * 250, "markers central open . "


def of_group(*group: Any) -> list[Any]:
    return [[2, [*DEFINITIONS, [[1, *group]], [], [], []]]]


def of_plan(basis: list[str], queries: list[list[Any]]) -> list[Any]:
    return [[2, [*DEFINITIONS, [], [[1, 0, b"12345678", "slice", basis, 0, 1, queries, None]], [], []]]]


BODIES = {
    "gap records": [[8, [[[], 0, 0, 0, [], "", 0, ""]] * 13_000]],
    "long texts": [[8, [[[], 0, 0, 0, [], "r" * 60_000, 0, "d" * 45_000]]]],
    "sections": [0, None, *[[0, 7, [0, 1], 0, 1, 1]] * 3_000],
    "dropped leaves": [[4, [[0, [], ["good"] * 20_000, []]]]],
    "plans": [
        [2, [*DEFINITIONS, [], [[k, 0, b"12345678", "slice", ["count"], 0, 1, [], None] for k in range(3_000)], [], []]]
    ],
    "groups": [[2, [*DEFINITIONS, [[k, f"s{k}", "", [], 0, "drop"] for k in range(4_000)], [], [], []]]],
    "the filter of a group": of_group("s", "w" * 60_000, [], 0, "drop"),
    "the labels of a group": of_group("s", "", LONG, 0, "drop"),
    "the markers of a group": of_group("s", "", [], 0, "drop", 0, 0, "", MARKERS + "i" * 60_000),
    "the columns of a plan": of_plan(LONG, []),
    "the queries of a plan": of_plan(["count"], [[each, 1] for each in LONG]),
    "groups of a gap record": [[8, [[[["s", "w" * 50_000, [], 0, "drop"]] * 2, 0, 0, 0, [], "", 0, ""]]]],
    "serving ranges": [[4, [[0, [], [], [[each, 1, None, None, None, NODE] for each in LONG]]]]],
    "epochs of a birth": [[1, [7 << 32, 0, None, "1", [1, [2**31 + k for k in range(25_000)]]]]],
    "multisets": [0, None, [0, 7, [0, 1], [0, 4_000], [None, 5, [None, 0, 0], 1]]],
    "one multiset": [0, None, [0, 7, [0, 1], [0, 1], [None, 60_000, [None, 0, 0], 1]]],
    "series": [0, None, [0, 7, [0, 1], 0, [True, 20_000, 0, [1, None, 1], [0, 1], [None, 0]]]],
    "keys": [[2, [[0, [f"k={k}" for k in range(12_000)]], [0, []], [], [], [], []]]],
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_waiting_frame_counts_as_about_the_memory_that_it_takes(body: object) -> None:
    """A child that fills its bound costs its region no more than twice the bound."""
    payload = cbor2.dumps([1, 7, 0, cbor2.dumps(body)])
    heard(payload)  # what is made once
    tracemalloc.start()
    try:
        message = heard(payload)
        taken_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert isinstance(message, Frame)
    assert taken_bytes <= 2 * size_bytes(message)
