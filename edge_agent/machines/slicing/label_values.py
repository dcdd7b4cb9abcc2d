"""Parses labels of series as numbers, once each, for functions that weigh readings by a label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.key import Labels, label_number


class LabelValues:
    """Labels as numbers, one per series. The driver's table only grows; another table replaces the known numbers."""

    __slots__ = ("_known", "_labels")

    def __init__(self) -> None:
        self._labels: Sequence[Labels] = ()
        self._known: dict[str, NDArray[np.float64]] = {}

    def of(self, batch: Batch, wanted: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        """Name of each wanted label -> its number for each reading, shape (k,), NaN if the label is not a number."""
        if batch.labels is not self._labels:
            self._labels, self._known = batch.labels, {}
        return {label: self._of_series(label)[batch.series] for label in wanted}

    def _of_series(self, label: str) -> NDArray[np.float64]:
        known = self._known.get(label)
        done = 0 if known is None else len(known)
        if known is None or done < len(self._labels):
            fresh = [label_number(dict(labels).get(label, "")) for labels in self._labels[done:]]
            known = self._known[label] = np.concatenate([np.zeros(0) if known is None else known, np.array(fresh)])
        return known
