"""Query definitions as tables."""

from __future__ import annotations

from typing import Any


def query(**changes: Any) -> dict[str, Any]:
    table = {"source": "boiler", "window": {"type": "tumbling", "length": "1m"}, "aggregates": ["avg"], **changes}
    return {name: value for name, value in table.items() if value is not ...}


COUNT: dict[str, Any] = {"type": "count_tumbling", "length": 7, "unit": "events", "keyed": False}
