"""Maps series of a sensor to keys of a group: each key text is numbered once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.key import key_text

if TYPE_CHECKING:
    from edge_agent.algebra.query.key import Labels

FEW_KEYS: Final = 4_096  # a table up to this size is never replaced: it costs little, and its keys may return


class KeyIndex:
    """The key table of one group. table: key texts by code; it only grows."""

    __slots__ = ("_by", "_codes", "_labels", "_of_series", "_same", "_seen", "table")

    def __init__(self, by: tuple[str, ...], table: Sequence[str] = ()) -> None:
        """by: labels that make up a key. table: key texts from before a restart."""
        self._by = by
        self.table: list[str] = list(table)
        self._codes = {text: code for code, text in enumerate(self.table)}
        self._labels: Sequence[Labels] = ()  # the driver's table of labels to which _of_series belongs
        self._of_series: Ints = np.zeros(0, np.int64)  # code of each series
        self._same = True  # whether the code of every series equals its number
        self._seen: NDArray[np.bool_] = np.zeros(0, np.bool_)  # by code: had a reading in this turn (for large tables)
        if not by:
            self._code("")

    def of(self, batch: Batch) -> int | Ints:
        """The code of every reading: one int if all have the same key, else shape (k,), int64. k > 0.

        With one key, or one series (`batch.series` of stride 0), this does not iterate over the readings.
        """
        if not self._by:
            return 0
        self._learn(batch.labels)
        if batch.series.strides == (0,) or len(self._of_series) == 1:
            code = int(self._of_series[batch.series[0]])
            if len(self.table) > FEW_KEYS:
                self._see(code)
            return code
        codes = batch.series if self._same else self._of_series[batch.series]
        if len(self.table) > FEW_KEYS:
            self._see(codes)
        return codes

    def _see(self, codes: int | Ints) -> None:
        if len(self._seen) < len(self.table):
            self._seen = np.concatenate([self._seen, np.zeros(len(self.table), np.bool_)])
        self._seen[codes] = True

    def end_turn(self) -> int:
        """Begin a new turn. Returns how many keys had a reading since the last call (0 if the table is small)."""
        seen = int(np.count_nonzero(self._seen))
        self._seen = np.zeros(0, np.bool_)
        return seen

    def _learn(self, labels: Sequence[Labels]) -> None:
        known = len(self._of_series)
        if labels is not self._labels:
            if len(labels) < known or any(a != b for a, b in zip(labels, self._labels, strict=False)):
                known = 0  # another driver's table, as after a change of the sensor
            self._labels = labels
        if len(labels) == known == len(self._of_series):
            return
        codes = [self._code(key_text(labels[series], self._by)) for series in range(known, len(labels))]
        self._of_series = np.concatenate([self._of_series[:known], np.array(codes, np.int64)])
        self._same = bool((self._of_series == np.arange(len(self._of_series))).all())

    def code(self, text: str) -> int:
        """The code of a text that does not come from labels, such as the key of marker rows."""
        return self._code(text)

    def _code(self, text: str) -> int:
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self.table)
            self.table.append(text)
        return code
