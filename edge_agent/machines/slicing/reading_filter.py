"""Selects the readings of a batch that are sound (finite and small enough to add up) and pass the group's `where`."""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_agent.algebra.partials.arrays import Mask
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query import where, where_parser

LIMITS: Final = {"f": 1e300, "i": 2**61 - 1}  # above, sums of floats overflow and integers do not fit in frames (7.1)


class ReadingFilter:
    """The filter of one group. A condition on labels is evaluated once per table of labels."""

    __slots__ = ("_cache", "_labels", "_scale", "_where")

    def __init__(self, text: str, scale: int | None) -> None:
        """text: the group's `where`. scale: see Slicer. Raises: ConfigError if the text cannot be parsed."""
        self._where = where_parser.parse(text) if text.strip() else None
        self._scale = scale
        self._cache: dict[where.Expr, Mask] = {}
        self._labels: object = None

    def passing(self, batch: Batch, counters: dict[str, int]) -> Mask | None:
        """Mask of the readings that pass, shape (k,), k > 0; None: all pass.

        Counts the others as nan_skipped, bad or filtered. If all are sound, the check takes two passes (minimum and
        maximum).
        """
        value = batch.value
        limit = LIMITS[value.dtype.kind]
        keep: Mask | None = None
        if not (-limit <= value.min() and value.max() <= limit):  # false for NaN too
            nan = np.isnan(value)
            with np.errstate(invalid="ignore"):
                keep = (value >= -limit) & (value <= limit)
            skipped = int(np.count_nonzero(nan))
            counters["nan_skipped"] += skipped
            counters["bad"] += len(value) - int(np.count_nonzero(keep)) - skipped
        if self._where is not None:
            if batch.labels is not self._labels:
                self._cache, self._labels = {}, batch.labels
            with np.errstate(invalid="ignore"):
                wanted = where.evaluate(self._where, value, batch.series, batch.labels, self._cache, scale=self._scale)
            sound = len(value) if keep is None else int(np.count_nonzero(keep))
            keep = wanted if keep is None else keep & wanted
            counters["filtered"] += sound - int(np.count_nonzero(keep))
        return None if keep is None or keep.all() else keep
