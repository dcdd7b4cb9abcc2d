"""Recordings of days around clock changes, drawn from a seed: calendar windows, fixed bands, offsets."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.support.algebra_strategies import CHANGES_US, ZONES
from tests.support.recording.seeded import AGGREGATES, topology

HOUR = 3_600


def made_calendars(seed: int) -> dict[str, Any]:
    """A recording in seconds: some days, readings minutes to hours apart, out of order by up to two hours."""
    random = Random(f"calendars {seed}")
    change = random.choice(CHANGES_US) // 1_000_000
    begin = max(0, change - random.choice([1, 3, 40]) * 24 * HOUR)
    children = [f"child-{n}" for n in range(random.randint(1, 4))]
    mode = random.choice(["end_of_stream", "implicit"])
    return {
        "id": f"calendars-{seed}",
        "unit": "s",
        "queries": [_query(random, n, change) for n in range(random.randint(2, 5))],
        "streams": {child: _stream(random, begin, change) for child in children},
        **({"topology": topology(random, children)} if random.random() < 0.8 else {}),
        "watermarks": {
            "mode": mode,
            "implicit_lag_ms": random.choice([0, HOUR * 1_000]),
            "allowed_lateness_ms": random.choice([0, 600_000]),
        },
        "late_policy": random.choice(["per_window", "drop", "revise"]),
    }


def _query(random: Random, n: int, change: int) -> dict[str, Any]:
    day = 24 * HOUR
    offset = random.choice([0, 0, HOUR, 6 * HOUR, 2 * HOUR + 30 * 60])
    window: dict[str, Any] = {"type": "calendar", "every": random.choice(["day", "day", "week", "month"])}
    window |= {"tz": random.choice(ZONES), "offset": offset}
    match random.randrange(6):
        case 0:
            window = {
                "type": "fixed_band",
                "start": change + random.randint(-day, day),
                "length": random.choice([7, day]),
            }
        case 1:
            window = {"type": "tumbling", "length": random.choice([6 * HOUR + 1, day, 7 * day]), "offset": offset}
        case 2:
            window = {"type": "sliding", "length": day, "slide": random.choice([3, 7]) * HOUR, "offset": offset % HOUR}
    return {"id": f"q{n}", "window": window, **random.choice(AGGREGATES)}


def _stream(random: Random, begin: int, change: int) -> list[list[Any]]:
    disorder = random.choice([0, 0, HOUR // 2, 2 * HOUR])
    keys: list[Any] = random.choice([[None], ["a", "b"]])
    items: list[list[Any]] = []
    time = begin
    while time < change + 4 * 24 * HOUR and len(items) < 80:
        time += random.choice([1, 60, HOUR, 5 * HOUR, 30 * HOUR])
        if random.random() < 0.1:
            time = max(time, change - 1)
        items.append([max(0, time - random.randint(0, disorder)), random.choice(keys), random.randint(-20, 100)])
    return items
