"""Keeps readings while the node's time is unknown, with the time since boot of their arrival (docs/protocol.md 4.3).

A commit stores the readings that arrived since the last one. They are released once the offset of their boot is known.
If their boot ends before that, they are quarantined and a gap record declares them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from edge_agent.algebra.partials.partial import Batch
from edge_agent.machines.checkpoint.codec import encode
from edge_agent.machines.checkpoint.slots import HELD, HeldState

MOST_HELD: Final = 262_144  # readings, about 10 MB: three days at 1 reading/s, two hours at 30/s


class HeldReadings:
    """Pages of readings, oldest first. dropped: number of readings dropped because of the bound MOST_HELD."""

    def __init__(self) -> None:
        self.dropped = 0
        # dropped readings: (sensor, boot) -> (from, upto, number of readings), times since boot
        self._gone: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._pages: dict[int, HeldState] = {}
        self._next = self._many = 0  # number of the next page; readings in all pages
        self._changed: dict[int, None] = {}

    def __len__(self) -> int:
        return self._many

    def add(self, sensor: str, boot: str, batch: Batch) -> None:
        """Add readings, with times since boot. Beyond MOST_HELD the oldest pages are dropped."""
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
        """Remove and yield (sensor, readings with event times) of a boot, in order of arrival.

        offset_us: node time minus time since boot.
        """
        for number in [number for number, page in self._pages.items() if page.boot == boot]:
            yield _batch(self._take(number), offset_us)

    def never_known(self, boot: str) -> dict[str, tuple[int, list[bytes]]]:
        """Remove readings of all boots but this one. Returns sensor -> (number of readings, their pages as JSON)."""
        out: dict[str, tuple[int, list[bytes]]] = {}
        for number in [number for number, page in self._pages.items() if page.boot != boot]:
            page = self._take(number)
            many, texts = out.setdefault(page.sensor, (0, []))
            texts.append(json.dumps(encode(page), default=lambda column: column.tolist()).encode())
            out[page.sensor] = many + len(page.since_us), texts
        return out

    def lost(self, boot: str, offset_us: int) -> Iterator[tuple[str, int, int, int]]:
        """Yield (sensor, from_us, upto_us, readings) for the dropped readings of a boot whose offset is known.

        Each is yielded once.
        """
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
        """The rows to commit: new pages, and deletions of removed pages."""
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
