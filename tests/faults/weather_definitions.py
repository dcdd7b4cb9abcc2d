"""Queries and sensors that a weather publishes, alters and removes through the broker at the top of its tree."""

from __future__ import annotations

import json
import math
import random
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from edge_agent.algebra.query.query import Query
from edge_agent.config import topics
from tests.faults.tree import SECOND
from tests.faults.weather_tree import EXTRA, MORE_QUERY, WeatherTree, query_of
from tests.oracle import central_computer
from tests.support.processes.broker_clients import publish

WINDOWS: Final = ("2s", "3s", "4s")
FUNCTIONS: Final = (["count", "sum"], ["count", "max"], ["count", "sum", "min", "max"])
BY: Final[tuple[list[str], ...]] = (["machine"], [])
# Rows so near to a change of a sensor may lack what nobody read at the edge (protocol 3.1); the change itself may be on
# its way for so long.
EDGE_BEFORE_US: Final = 10 * SECOND
EDGE_AFTER_US: Final = 60 * SECOND


class Definitions:
    """What is published, and what was."""

    def __init__(self, tree: WeatherTree, chance: random.Random) -> None:
        self._tree, self._chance = tree, chance
        self._revision = 0
        self._now: dict[str, str] = {}  # topic -> text
        self.queries: dict[tuple[str, int], Query] = {}  # of each revision
        self.changed_us: dict[str, list[int]] = {}  # gateway -> changes of its sensor `more`

    def begin(self) -> None:
        """A sensor of each gateway, and a query of it."""
        for gateway in self._tree.gateways:
            self._sensor(gateway, there=True)
        self._query(MORE_QUERY, {**EXTRA[MORE_QUERY]})

    def again(self) -> None:
        """Publish all that is in force once more: a broker may have lost it, or have an older one."""
        for topic in [*self._now]:
            self._publish(topic, self._now[topic])

    def query(self) -> str:
        """Publish, alter or remove one of the queries."""
        name = self._chance.choice(list(EXTRA))
        if self._chance.random() < 0.35:
            self._publish(topics.definition("query", name), "")
            return f"{name} removed"
        table = {
            **EXTRA[name],
            "window": {"type": "tumbling", "length": self._chance.choice(WINDOWS)},
            "aggregates": self._chance.choice(FUNCTIONS),
            "by": self._chance.choice(BY),
        }
        self._query(name, table)
        return f"{name} published, revision {self._revision}"

    def _query(self, name: str, table: dict[str, object]) -> None:
        self._revision += 1
        table = {**table, "revision": self._revision}
        self.queries[name, self._revision] = query_of(name, table)
        self._publish(topics.definition("query", name), json.dumps(table))

    def sensor(self) -> str:
        """Add, alter or remove the sensor of a gateway."""
        gateway = self._chance.choice(list(self._tree.gateways))
        there = topics.definition("sensor", "more", gateway) in self._now
        there = not there or self._chance.random() < 0.4
        self._sensor(gateway, there=there)
        return f"of {gateway} {'published' if there else 'removed'}"

    def _sensor(self, gateway: str, *, there: bool) -> None:
        self._revision += 1
        table = {**self._tree.more(gateway), "unit": f"u{self._revision}", "revision": self._revision}
        self._publish(topics.definition("sensor", "more", gateway), json.dumps(table) if there else "")
        self.changed_us.setdefault(gateway, []).append(time.time_ns() // 1000)

    def _publish(self, topic: str, text: str) -> None:
        if text:
            self._now[topic] = text
        else:
            self._now.pop(topic, None)
        with suppress(subprocess.SubprocessError):
            publish(self._tree.top.url, topic, text)


class DefinedRows:
    """What rows of these queries may say."""

    def __init__(self, definitions: Definitions, readings: Mapping[str, list[central_computer.Reading]]) -> None:
        """readings: of each source."""
        self._definitions, self._readings = definitions, readings
        self._found: dict[tuple[str, int, tuple[str, ...]], dict[central_computer.Row, dict[str, float | None]]] = {}
        self._nodes = tuple(sorted({each.node for of in readings.values() for each in of}))

    def _rows(
        self, name: str, revision: int, nodes: Iterable[str]
    ) -> dict[central_computer.Row, dict[str, float | None]]:
        of = (name, revision, tuple(sorted(nodes)))
        if of not in self._found:
            query = self._definitions.queries[name, revision]
            readings = [each for each in self._readings[query.source] if each.node in of[2]]
            self._found[of] = central_computer.results([query], readings)
        return self._found[of]

    def wrong(
        self, place: central_computer.Row, revision: int, values: Mapping[str, float | None], expected: tuple[str, ...]
    ) -> str:
        """What is wrong with a row that says it is complete."""
        name, _, start_us, end_us = place
        if (name, revision) not in self._definitions.queries:
            return f"nobody published revision {revision}"
        every = self._rows(name, revision, self._nodes).get(place)
        if every is None:
            return f"no window of the readings: {dict(values)}"
        least = self._rows(name, revision, expected).get(place, {})
        edge = any(self._edge(node, start_us, end_us) for node in self._nodes if name == MORE_QUERY)
        count, most = int(values.get("count") or 0), int(every["count"] or 0)
        if count > most or (count < int(least.get("count") or 0) and not edge):
            return f"{count} readings, not {least.get('count')} to {most}"
        if count == most and not all(close(values.get(of), value) for of, value in every.items()):
            return f"{dict(values)}, not {every}"
        return ""

    def _edge(self, gateway: str, start_us: int, end_us: int) -> bool:
        changes = self._definitions.changed_us.get(gateway, ())
        return any(us - EDGE_BEFORE_US < end_us and start_us < us + EDGE_AFTER_US for us in changes)


def close(one: float | None, other: float | None) -> bool:
    """Whether two values of a row are the same one."""
    return (one is None) == (other is None) and math.isclose(one or 0.0, other or 0.0, rel_tol=1e-9, abs_tol=1e-9)
