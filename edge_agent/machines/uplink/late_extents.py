"""Remembers the time ranges of late rows in spooled frames, to declare the loss if a frame's bytes are damaged.

The parent knows from which time on rows on time may be missing, because they lie above the frontier promised to it.
Late rows may lie anywhere below. The list is short, because every commit writes it: if there are many entries, several
frames share one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from edge_agent.algebra.frame import DAMAGED, LATEST_US, Frame, Gap
from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.slots import LateExtentState
from edge_agent.machines.uplink.pending_frames import FrameKey

MOST: Final = 64  # entries


class LateExtents:
    """Entries in the order of their frames. Each is for one epoch and group, and for the frames `first` to `last`."""

    def __init__(self, entries: Iterable[LateExtentState] = ()) -> None:
        self.entries = list(entries)

    def note(self, frame: Frame, groups: Mapping[Group, int]) -> None:
        """Note the late rows of a new frame. groups: their numbers in the frame."""
        for part in frame.groups:
            spans = [section.span_us for section in part.late]
            if spans:
                group = next(group for group, number in groups.items() if number == part.group)
                span_us = min(start for start, _ in spans), max(end for _, end in spans)
                self.entries.append(LateExtentState(frame.epoch, frame.seq, frame.seq, group, *span_us))

    def needed(self, spooled: Callable[[FrameKey], bool]) -> list[LateExtentState]:
        """The entries of frames that are still spooled; others are forgotten. spooled: whether a frame is."""
        if not self.entries:
            return []
        self.entries = [each for each in self.entries if any(map(spooled, _frames(each)))]
        while len(self.entries) > MOST:
            self._share()
        return list(self.entries)

    def _share(self) -> None:
        """Join the two oldest entries with the same epoch and group. If all differ, drop the oldest entry."""
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

    def earliest_us(self, keys: Collection[FrameKey]) -> int:
        """The earliest start of the late rows in frames of a spool; LATEST_US: none. keys: the frames, in order."""
        within = set(keys)
        found = (each.start_us for each in self.entries if not within.isdisjoint(_frames(each)))
        return min(found, default=LATEST_US)

    def gaps(self, epoch: int, seq: int) -> Iterator[Gap]:
        """Gap records for the late rows that a frame may have contained."""
        for each in self.entries:
            if each.epoch == epoch and each.first <= seq <= each.last:
                yield Gap((each.group,), each.start_us, each.end_us, -1, (), DAMAGED)


def _frames(entry: LateExtentState) -> Iterator[FrameKey]:
    """The frames that an entry is for, its ends first: they alone are looked at while frames are receipted in order."""
    seqs = chain((entry.last, entry.first), range(entry.last - 1, entry.first, -1))
    return ((entry.epoch, seq) for seq in seqs)
