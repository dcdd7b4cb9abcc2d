"""Renders result rows with the ids, keys and time unit of the recording. Integers are rendered as integers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from edge_agent.algebra.aggregates import FUNCTIONS
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Punctuation
from edge_agent.recording.parser import Recording, names_of
from edge_agent.recording.streams import KEY, key_of
from edge_agent.root.numpy.rows import ReplayedRow

RenderedRow = dict[str, Any]


class RowRenderer:
    """Renders the rows of one recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._asked = {one.query.id: (at, one) for at, one in enumerate(recording.asked)}
        self._children = {node: child for child, node in names_of(recording).items()}

    def final(self, rows: Iterable[ReplayedRow]) -> list[RenderedRow]:
        """The last revision of each row, ordered by query, start, key and child, without withdrawn rows."""
        last = {(row.query, row.node, row.start, self._end(row), row.labels.get(KEY)): row for row in rows}
        return [self._fields(row) for row in sorted(last.values(), key=self._place) if not row.withdrawn]

    def _end(self, row: ReplayedRow) -> int:
        """The end of a row if it is part of the row's identity, else 0."""
        window = self._asked[row.query][1].query.window
        return row.end if isinstance(window, Punctuation) and window.by_end else 0

    def revisions(self, rows: Iterable[ReplayedRow]) -> list[RenderedRow]:
        """Every row in order of appearance, with `revision`, and with `withdrawn` if it is no longer a result."""
        gone = {"withdrawn": True}
        return [{**self._fields(row), "revision": row.revision, **(gone if row.withdrawn else {})} for row in rows]

    def _fields(self, row: ReplayedRow) -> RenderedRow:
        """The row as one object of `headwater replay`."""
        _, asked = self._asked[row.query]
        details: Mapping[str, Any] = json.loads(row.details) if row.details else {}
        values = {a.name: self._value(a, row.values[a.name], details.get(a.name)) for a in asked.query.aggregates}
        return {
            "recording": self._recording.name,
            "query": asked.recorded_id,
            **({"child": self._children[row.node]} if row.node else {}),
            "key": key_of(row.labels.get(KEY, "null")),
            "start": self._place_of(asked.query, row.start),
            "end": self._place_of(asked.query, row.end),
            **({"values": values} if asked.several else {"value": next(iter(values.values()))}),
            "readings": row.readings,
        }

    def _place(self, row: ReplayedRow) -> tuple[int, int, str, str]:
        return self._asked[row.query][0], row.start, row.labels.get(KEY, ""), row.node

    def _value(self, aggregate: Aggregate, value: float | None, detail: Any) -> object:
        gives = FUNCTIONS[aggregate.fn].gives
        if gives == "details":
            return detail
        if value is None or not math.isfinite(value):
            return None
        if gives == "time":
            return self._time(int(value))
        if detail is not None and not isinstance(detail, str):  # a text only describes the value
            return detail
        whole = gives == "value" and self._recording.scale is not None
        truncated = aggregate.fn == "avg" and aggregate.param("rounding") == "truncate"
        return int(value) if whole or truncated or gives == "count" else value

    def _place_of(self, query: Query, at: int) -> int | float:
        """A start or end: a time in the unit of the recording, or the position of a reading for count windows."""
        return at if getattr(query.window, "positions", False) else self._time(at)

    def _time(self, us: int) -> int | float:
        """A time in the unit of the recording; a float if it is not a whole number."""
        whole, rest = divmod(us, self._recording.unit_us)
        return us / self._recording.unit_us if rest else whole
