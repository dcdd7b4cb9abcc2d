"""Recordings with markers, drawn from a seed."""

from __future__ import annotations

from random import Random
from typing import Any

from edge_agent.recording.row_rendering import RenderedRow
from tests.support.recording.seeded import key_text, topology

INTERPRETATIONS = ("local", "bounds", "order", "overlap", "central")
AGGREGATES = ("sum", "count", "max", "median", "last", "avg")
Rows = dict[tuple[str, str, str, int, int], float | None]


def made(seed: int) -> dict[str, Any]:
    """A recording of a random tree, with markers of every kind, disorder, and in half of them lateness."""
    random = Random(seed)
    children = [f"child-{n}" for n in range(random.randint(1, 5))]
    explicit = random.random() < 0.5
    shared = sorted(random.sample(range(400), random.randint(0, 8)))  # inserted everywhere, as 'bounds' supposes
    streams = {child: _stream(random, shared, explicit=explicit) for child in children}
    queries: list[dict[str, Any]] = [
        {
            "id": f"q{n}",
            "window": {
                "type": "punctuation",
                "interpretation": random.choice(INTERPRETATIONS),
                "leading": random.choice(["drop", "open"]),
                "punctuation_id": random.choice([None, None, 7]),
            },
            "aggregate": random.choice(AGGREGATES),
        }
        for n in range(3)
    ]
    given = {"queries": queries, "streams": streams, "topology": topology(random, children)}
    if random.random() < 0.5:
        policy = random.choice(["per_window", "drop", "revise"])
        given |= {
            "watermarks": {"mode": "markers", "allowed_lateness_ms": random.choice([0, 5])},
            "late_policy": policy,
        }
        for stream in streams.values():
            _promise(random, stream)
    return given


def _stream(random: Random, shared: list[int], *, explicit: bool) -> list[list[Any]]:
    keys: list[Any] = random.choice([[None], ["a"], ["a", "b"]])
    items: list[tuple[int, list[Any]]] = []
    for _ in range(random.choice([0, 3, 30])):
        time = random.randint(0, 400)
        items.append((time, [time, random.choice(keys), random.randint(-9, 9)]))
    own = sorted(random.sample(range(400), random.randint(0, 6)))
    for n, time in enumerate(sorted({*shared, *own} if random.random() < 0.7 else own)):
        more = [[random.choice(["start", "end"]) if random.random() < 0.2 else ("start", "end")[n % 2]], []][
            not explicit
        ]
        ident = random.choice([[], [7], [7], [8]])
        items.append((time, ["p", time, *ident, *more]))
    disorder = random.choice([0, 0, 30])
    slow = random.choice([disorder, 0, 100])  # markers may come long after what they part
    items.sort(key=lambda one: one[0] + random.randint(0, slow if one[1][0] == "p" else disorder))
    return [item for _, item in items]


def _promise(random: Random, stream: list[list[Any]]) -> None:
    reached = -(10**6)
    for at in range(len(stream), 0, -1):
        if random.random() < 0.15:
            stream.insert(at, ["wm", 0])
    for at, item in enumerate(stream):
        if item[0] == "wm":
            before = [one[0] if one[0] != "p" else one[1] for one in stream[:at] if one[0] != "wm"]
            reached = max([reached, *before]) + random.choice([0, -5, 3])
            item[1] = reached


def by_place(told: list[RenderedRow]) -> Rows:
    out: Rows = {}
    for row in told:
        key = row["key"] if isinstance(row["key"], str) else key_text(row["key"])
        place = (str(row["query"]), row.get("child", ""), key, row["start"], row["end"])
        assert place not in out, f"{place} stands twice"
        out[place] = row["value"]
    return out
