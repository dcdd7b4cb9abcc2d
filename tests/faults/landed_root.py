"""The rows that follow from landing files, by the root's own decision, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edge_agent.algebra.frame import Frame
from edge_agent.config import topics
from edge_agent.machines.events import BadEnvelope
from edge_agent.root.books import RootBook
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from edge_agent.runtime.region import heard
from edge_agent.wire import landing
from tests.support.simulation.fleet_books import numpy_root_book

RowKey = tuple[str, str, str, int]  # query, node, key, start
GRACE_US: Final = 600_000_000


class LandedRoot:
    """Reads each landing file of a folder once, in the order of their names."""

    def __init__(self, folder: Path, *, delete: bool = False, grace_us: int = GRACE_US) -> None:
        """delete: files go once they are read."""
        self.folder, self._delete, self._grace_us = folder, delete, grace_us
        self.rows: dict[RowKey, Row] = {}
        self.files = self.bad = 0
        self._done: set[str] = set()
        self._landed: list[tuple[str, int, int, int]] = []  # sender, epoch, seq, readings of each frame
        self.root: NumpyRoot | None = None

    def turn(self) -> None:
        """Take what has landed since the last call, and decide."""
        now_us = 0
        for path in sorted(self.folder.glob(f"[0-9]*{landing.SUFFIX}")):
            if path.name in self._done:
                continue
            self._done.add(path.name)
            self.files += 1
            for topic, received_us, payload in landing.iterate(path.read_bytes()):
                now_us = max(now_us, received_us)
                self._take(topic, received_us, payload)
            if self._delete:
                path.unlink()
        if self.root is not None and now_us:
            for row in self.root.step(now_us):
                self.rows[row.query, row.node, row.key, row.start] = row

    def _take(self, topic: str, received_us: int, payload: bytes) -> None:
        if topic == landing.TICK_TOPIC:
            if self.root is None:
                self.root = NumpyRoot(landing.tick(payload).journal, grace_us=self._grace_us)
            return
        parsed, message = topics.parse(topic), heard(payload)
        if parsed is None or self.root is None or isinstance(message, BadEnvelope):
            self.bad += 1
        else:
            self.root.take(parsed.node, message, received_us)
            if isinstance(message, Frame):
                self._landed.append((parsed.node, message.epoch, message.seq, message.readings))

    def book(self) -> RootBook:
        """The books, as tables would hold them."""
        return RootBook() if self.root is None else numpy_root_book(self.root, self._landed)

    def frontier_us(self, query: str) -> int:
        """The end of the newest window of a query."""
        return max((row.end for (name, *_), row in self.rows.items() if name == query), default=0)
