"""Keeps recently stored parts on the driver: most closing windows need only these, and reading the table costs a query.

The parts equal their rows in bronze.messages, and a request is answered only if no other part can overlap its ranges.
So results do not depend on where parts are read from. After a restart there are no parts here, and the table is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cloud_job.delta.driver_rows import arrow_schema
from cloud_job.delta.tables import MESSAGES
from cloud_job.ingest.decode import READ
from edge_agent.algebra.frame import NEVER_US
from edge_agent.wire.heads import Parts

MOST_BYTES: Final = 32 * 1024 * 1024  # of all parts kept; older parts are read from the table
MOST_ASKED_BYTES: Final = 4 * 1024 * 1024  # of one answer: more is faster from the table, in parallel on all cores
_KEPT: Final = (*READ, "start", "end")


class RecentParts:
    """The newest stored parts, one Arrow table per batch."""

    def __init__(self, older_end_us: int) -> None:
        """older_end_us: the latest end of the parts that were stored before."""
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
        """Drop batches whose parts all end at `before_us` or earlier."""
        kept = []
        for batch in self._batches:
            if int(_numbers(batch, "end").max()) <= before_us:
                self._drop(batch)
            else:
                kept.append(batch)
        self._batches = kept

    def within(self, ranges: Sequence[tuple[int, int]]) -> pa.Table | None:
        """The columns READ of all parts that overlap a range [low, high); None: they have to be read from the table."""
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
    """The latest end of all stored parts. extents: (start, end) of parts that took effect. waiting: all other parts."""
    ends = [end for _, end in extents]
    return max([*ends, *(part.latest_end_us for parts in waiting.values() for part in parts)], default=NEVER_US)


def no_parts() -> pa.Table:
    """An empty table with the columns READ."""
    return arrow_schema(MESSAGES).empty_table().select(READ)


def _numbers(batch: pa.Table, column: str) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = batch[column].to_numpy().astype(np.int64, copy=False)
    return numbers
