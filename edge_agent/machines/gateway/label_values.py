"""What labels of a sensor's series say as numbers: each label read once, for functions that weigh readings by it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials.partial import Batch

if TYPE_CHECKING:
    from edge_agent.algebra.query.key import Labels

_NUMBER: Final = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
MOST: Final = 1e150  # weights beyond are none: nothing weighs so much, and sums of them would leave the floats


def number_of(text: str) -> float:
    """A label's text as a weight: a decimal of 0 or more; NaN for any other text."""
    number = float(text) if _NUMBER.fullmatch(text.strip()) else np.nan
    return number if number <= MOST else np.nan


class LabelValues:
    """Labels as numbers, a number a series. The driver's table only grows; another table begins anew."""

    __slots__ = ("_known", "_labels")

    def __init__(self) -> None:
        self._labels: Sequence[Labels] = ()
        self._known: dict[str, NDArray[np.float64]] = {}

    def of(self, batch: Batch, wanted: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        """Name of a label -> what it says of each reading, shape (k,), NaN where it says no number."""
        if batch.labels is not self._labels:
            self._labels, self._known = batch.labels, {}
        return {label: self._of_series(label)[batch.series] for label in wanted}

    def _of_series(self, label: str) -> NDArray[np.float64]:
        known = self._known.get(label)
        done = 0 if known is None else len(known)
        if known is None or done < len(self._labels):
            fresh = [number_of(dict(labels).get(label, "")) for labels in self._labels[done:]]
            known = self._known[label] = np.concatenate([np.zeros(0) if known is None else known, np.array(fresh)])
        return known
