"""Remembers where late rows lie in frames without a receipt: if the bytes of one are damaged, its loss is declared
there.

Rows on time lie above the frontier promised to the parent, so the parent knows from where on they may be missing. Late
rows lie anywhere below it. The list is short, because it is written with every commit: several frames share an entry if
there are many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from edge_agent.algebra.frame import DAMAGED, Frame, Gap
from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.slots import LateExtentState
from edge_agent.machines.uplink.pending_frames import FrameKey

MOST: Final = 64


class LateExtents:
    """Entries in the order of their frames; each is for one epoch and group, and for frames first to last."""

    def __init__(self, entries: Iterable[LateExtentState] = ()) -> None:
        self.entries = list(entries)

    def note(self, frame: Frame, groups: Mapping[Group, int]) -> None:
        """Note a frame that was numbered. groups: with their numbers in it."""
        for part in frame.groups:
            spans = [section.span_us for section in part.late]
            if spans:
                group = next(group for group, number in groups.items() if number == part.group)
                span_us = min(start for start, _ in spans), max(end for _, end in spans)
                self.entries.append(LateExtentState(frame.epoch, frame.seq, frame.seq, group, *span_us))

    def needed(self, spooled: Callable[[FrameKey], bool]) -> list[LateExtentState]:
        """The entries of frames that are still in the spool. spooled: whether a frame is."""
        self.entries = [
            each for each in self.entries if spooled((each.epoch, each.first)) or spooled((each.epoch, each.last))
        ]
        while len(self.entries) > MOST:
            self._share()
        return list(self.entries)

    def _share(self) -> None:
        """Join the two oldest entries of one epoch and group; if there are none, drop the oldest."""
        known: dict[tuple[int, Group], int] = {}
        for at, each in enumerate(self.entries):
            before = known.setdefault((each.epoch, each.group), at)
            if before != at:
                one = self.entries[before]
                start_us, end_us = min(one.start_us, each.start_us), max(one.end_us, each.end_us)
                self.entries[before] = replace(one, last=each.last, start_us=start_us, end_us=end_us)
                del self.entries[at]
                return
        del self.entries[0]

    def gaps(self, epoch: int, seq: int) -> Iterator[Gap]:
        """Gap records for the late rows that a frame may have contained."""
        for each in self.entries:
            if each.epoch == epoch and each.first <= seq <= each.last:
                yield Gap((each.group,), each.start_us, each.end_us, -1, (), DAMAGED)
