"""Finds changes of a sensor's value, which serve as markers of punctuation windows (docs/configure.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from edge_agent.algebra.partials.arrays import distinct
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.partials.units import as_floats
from edge_agent.algebra.query.key import key_text

MOST_SERIES: Final = 65_536  # as many as a sensor may have at once ([limits] keys): devices may invent labels for ever


@dataclass(slots=True)
class ValueChanges:
    """last: text of a series' labels -> its last value, those heard last at the end, at most MOST_SERIES.

    The first value of a series does not count as a change, neither does the first one after it was forgotten.
    """

    last: dict[str, float] = field(default_factory=dict)

    def of(self, batches: Iterable[Batch], scale: int | None) -> list[tuple[int, float]]:
        """Returns (time in us, new value in the sensor's unit) of every change, unordered. scale: of the sensor."""
        out: list[tuple[int, float]] = []
        for batch in batches:
            for series in distinct(batch.series).tolist():
                rows = np.flatnonzero(batch.series == series)
                rows = rows[np.argsort(batch.time_us[rows], kind="stable")]
                value = as_floats(batch.value[rows], scale)
                rows, value = rows[np.isfinite(value)], value[np.isfinite(value)]
                if not len(value):
                    continue
                labels = batch.labels[series]
                name = key_text(labels, tuple(label for label, _ in labels))
                new = np.concatenate([[value[0] != self.last.get(name, value[0])], value[1:] != value[:-1]])
                self.last.pop(name, None)
                self.last[name] = float(value[-1])
                out += zip(batch.time_us[rows[new]].tolist(), value[new].tolist(), strict=True)
        while len(self.last) > MOST_SERIES:
            del self.last[next(iter(self.last))]
        return out
