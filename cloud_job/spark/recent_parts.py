"""Keeps recently stored parts on the driver: most windows close on them, and a read from the table costs a query.

They equal their rows in bronze.messages, and a request is served only if no other part can overlap it. So results do
not depend on where parts are read from. A restart begins empty and reads the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cloud_job.delta.tables import MESSAGES, arrow_schema
from cloud_job.ingest.decode import READ
from edge_agent.algebra.frame import NEVER_US
from edge_agent.wire.heads import Parts

MOST_BYTES: Final = 32 * 1024 * 1024  # kept; more is read from the table, side by side on all cores
MOST_ASKED_BYTES: Final = 4 * 1024 * 1024  # answered: more is quicker on all cores too
_KEPT: Final = (*READ, "start", "end")


class RecentParts:
    """The newest parts, one Arrow table per batch."""

    def __init__(self, older_end_us: int) -> None:
        """older_end_us: parts stored earlier end by then."""
        self._older_end_us = older_end_us
        self._batches: list[pa.Table] = []

    def add(self, stored: pa.Table) -> None:
        """Add the rows that a batch appended to bronze.messages."""
        parts = stored.select(_KEPT).filter(stored["start"].is_valid())
        if parts.num_rows:
            self._batches.append(parts)
        while sum(batch.nbytes for batch in self._batches) > MOST_BYTES:
            self._drop(self._batches.pop(0))

    def forget(self, before_us: int) -> None:
        """Drop batches whose parts all end by then."""
        kept = []
        for batch in self._batches:
            if int(_numbers(batch, "end").max()) <= before_us:
                self._drop(batch)
            else:
                kept.append(batch)
        self._batches = kept

    def within(self, ranges: Sequence[tuple[int, int]]) -> pa.Table | None:
        """The columns READ of all parts that overlap one of [low, high); None: ask the table."""
        if not ranges or min(low for low, _ in ranges) < self._older_end_us:
            return None
        found = []
        for batch in self._batches:
            start, end = _numbers(batch, "start"), _numbers(batch, "end")
            wanted = np.zeros(len(start), np.bool_)
            for low, high in ranges:
                wanted |= (start < high) & (end > low)
            if wanted.any():
                found.append(batch.filter(pa.array(wanted)))
        if sum(batch.nbytes for batch in found) > MOST_ASKED_BYTES:
            return None
        return pa.concat_tables(found).select(READ) if found else no_parts()

    def _drop(self, batch: pa.Table) -> None:
        self._older_end_us = max(self._older_end_us, int(_numbers(batch, "end").max()))


def stored_end_us(extents: Iterable[tuple[int, int]], waiting: Parts) -> int:
    """The latest end of all stored parts: of those applied, given as (start, end), and of those that still wait."""
    ends = [end for _, end in extents]
    return max([*ends, *(part.latest_end_us for parts in waiting.values() for part in parts)], default=NEVER_US)


def no_parts() -> pa.Table:
    """An empty table with the columns READ."""
    return arrow_schema(MESSAGES).empty_table().select(READ)


def _numbers(batch: pa.Table, column: str) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = batch[column].to_numpy().astype(np.int64, copy=False)
    return numbers
