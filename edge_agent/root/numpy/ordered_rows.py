"""Rows of windows of positions: keeps raw readings until an Ordering request gives them positions.

Rules: docs/protocol.md 7.4. root/positions.py gives positions and forms windows, here and in Spark. A row is final:
positions do not change, so neither late readings nor leaves that catch up revise it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edge_agent.algebra.coverage import Coverage
from edge_agent.algebra.partials.arrays import NO_INTS, Array, Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.series import flat
from edge_agent.algebra.query.query import Query
from edge_agent.machines.downlink.epochs.renumbering import Renumbering
from edge_agent.root.decision.work import Ordering
from edge_agent.root.numpy.rows import Row, WindowAnswers
from edge_agent.root.positions import KeyPositions, UnorderedReadings, advance, meet
from edge_agent.root.work_rows import cells_of


@dataclass(slots=True)
class RawRows:
    """Raw rows of one plan. scale: of their values."""

    scale: int | None
    parts: list[Partials] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(rows) for rows in self.parts)

    def between(self, after_us: int, upto_us: int) -> Iterator[Partials]:
        """The rows that may contain a reading in [after, upto)."""
        for rows in self.parts:
            touched = (rows.start < upto_us) & (rows.end > after_us)
            if touched.any():
                yield rows if touched.all() else rows.take(touched)

    def free(self, below_us: int) -> None:
        """Drop rows that end by below_us."""
        kept = [rows.take(rows.end > below_us) for rows in self.parts]
        self.parts = [rows for rows in kept if len(rows)]


class PositionRows:
    """Gives positions to readings and forms windows of them. Keeps the last positions of each key."""

    def __init__(self, numbers: Renumbering) -> None:
        self._numbers = numbers
        self._positions: dict[tuple[str, str], KeyPositions] = {}  # by query and node: a new revision continues

    def made(
        self, found: Ordering, query: Query, raw: Sequence[RawRows], coverages: Mapping[str, Coverage]
    ) -> Iterator[Row]:
        """Give positions. Yields the rows of windows that are complete. raw: of the plans that feed the query."""
        readings = self._readings(found, raw)
        if not len(readings.key):
            return
        place = (found.query, found.node)
        before = self._positions.get(place, KeyPositions())
        concerned = np.isin(before.key, readings.key)
        texts = self._numbers.keys.texts
        now, made = advance(query, before.take(concerned), readings, texts)
        self._positions[place] = before.take(~concerned).joined(now)
        cells = cells_of(found.cells, made.first_us, made.last_us)
        answers = WindowAnswers.of(query, made.answers, made.readings, np.zeros_like(made.readings))
        columns = (column.tolist() for column in (made.key, made.start, made.end, cells))
        for at, (code, start, end, cell) in enumerate(zip(*columns, strict=True)):
            coverage = coverages[found.cells[cell].coverage_id]
            yield answers.row(at, (found.node, texts[code], start, end), coverage)

    def _readings(self, found: Ordering, raw: Sequence[RawRows]) -> UnorderedReadings:
        """The readings in [after, upto) of a request, at its scale."""
        ranks = self._numbers.ranks()
        columns: list[tuple[Ints, Ints, Ints, Ints]] = []
        values: list[tuple[Array, int | None]] = []
        for of in raw:
            for rows in of.between(found.after_us, found.upto_us):
                series = flat(rows.states["series"])
                mine = (series.time_us >= found.after_us) & (series.time_us < found.upto_us)
                node = series.node if ranks is None else ranks[series.node]
                key = np.repeat(rows.key, series.sizes)
                columns.append((key[mine], series.time_us[mine], node[mine], series.order[mine]))
                values.append((series.value[mine], of.scale))
        if not columns:
            return UnorderedReadings(NO_INTS, NO_INTS, NO_INTS, NO_INTS, NO_INTS, 0)
        scaled, scale = meet(values, found.target)
        key, time_us, node, order = (np.concatenate(column) for column in zip(*columns, strict=True))
        return UnorderedReadings(key, time_us, np.concatenate(scaled), node, order, scale)
