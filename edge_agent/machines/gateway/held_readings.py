"""Readings that wait for the clock, by the time since boot at which they came (docs/protocol.md 4.3).

They are committed like open rows; each commit contains those that came since the last one. They leave once the offset
of their boot is known. Those of a boot that ended before are in no window: they are quarantined and declared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from edge_agent.algebra.partials.partial import Batch
from edge_agent.machines.checkpoint.codec import encode
from edge_agent.machines.checkpoint.slots import HELD, HeldState

MOST_HELD: Final = 262_144  # readings; some 10 MB: three days of one a second, two hours of thirty


class HeldReadings:
    """Pages of readings, oldest first. dropped: readings of the oldest pages, which exceeded the bound."""

    def __init__(self) -> None:
        self.dropped = 0
        # (sensor, boot) -> first, end and number of its readings that had to go
        self._gone: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._pages: dict[int, HeldState] = {}
        self._next = self._many = 0
        self._changed: dict[int, None] = {}

    def __len__(self) -> int:
        return self._many

    def add(self, sensor: str, boot: str, batch: Batch) -> None:
        """Add readings whose times are since boot; beyond MOST_HELD the oldest page is dropped."""
        if not len(batch.time_us):
            return
        used, series = np.unique(batch.series, return_inverse=True)
        labels = [list(batch.labels[number]) for number in used.tolist()]
        page = HeldState(
            sensor=sensor,
            boot=boot,
            since_us=np.array(batch.time_us, np.int64),
            value=np.array(batch.value),
            series=series.astype(np.int64).reshape(-1),
            labels=labels,
        )
        self._put(page)
        while self._many > MOST_HELD and len(self._pages) > 1:
            page = self._take(next(iter(self._pages)))
            self.dropped += len(page.since_us)
            bounds = int(page.since_us.min()), int(page.since_us.max()) + 1
            known = self._gone.get((page.sensor, page.boot), (*bounds, 0))
            self._gone[page.sensor, page.boot] = (
                min(known[0], bounds[0]),
                max(known[1], bounds[1]),
                known[2] + len(page.since_us),
            )

    def release(self, boot: str, offset_us: int) -> Iterator[tuple[str, Batch]]:
        """(sensor, readings) of a boot whose offset is known, with their event times, in order of arrival."""
        for number in [number for number, page in self._pages.items() if page.boot == boot]:
            yield _batch(self._take(number), offset_us)

    def never_known(self, boot: str) -> dict[str, tuple[int, list[bytes]]]:
        """Sensor -> (readings, their pages as JSON) of boots before this one, whose clock was never known."""
        out: dict[str, tuple[int, list[bytes]]] = {}
        for number in [number for number, page in self._pages.items() if page.boot != boot]:
            page = self._take(number)
            many, texts = out.setdefault(page.sensor, (0, []))
            texts.append(json.dumps(encode(page), default=lambda column: column.tolist()).encode())
            out[page.sensor] = many + len(page.since_us), texts
        return out

    def lost(self, boot: str, offset_us: int) -> Iterator[tuple[str, int, int, int]]:
        """(sensor, from, upto, readings) of dropped readings of a boot whose offset is known; once each."""
        for sensor, of in [key for key in self._gone if key[1] == boot]:
            first_us, end_us, many = self._gone.pop((sensor, of))
            yield sensor, first_us + offset_us, end_us + offset_us, many

    def _put(self, page: HeldState) -> None:
        self._pages[self._next] = page
        self._many += len(page.since_us)
        self._changed[self._next] = None
        self._next += 1

    def _take(self, number: int) -> HeldState:
        self._changed[number] = None
        page = self._pages.pop(number)
        self._many -= len(page.since_us)
        return page

    def changes(self) -> dict[str, object]:
        """The rows to commit: new pages, and deletions of those that have left."""
        rows: dict[str, object] = {}
        for number in self._changed:
            rows |= HELD.write(self._pages.get(number), number)
        self._changed = {}
        return rows

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the rows of a spool."""
        self._pages = dict(sorted((int(name), page) for name, page in HELD.each(state)))
        self._next = max(self._pages, default=-1) + 1
        self._many = sum(len(page.since_us) for page in self._pages.values())


def _batch(page: HeldState, offset_us: int) -> tuple[str, Batch]:
    labels = [tuple((name, text) for name, text in each) for each in page.labels]
    return page.sensor, Batch(page.since_us + offset_us, page.value, page.series, labels)
