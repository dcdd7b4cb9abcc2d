"""Remembers ended epochs of children by one number, and the flushes of the newest (docs/protocol.md 3.4, 1.3)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from edge_agent.algebra.frame import Flush, Frame
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.epoch_frames import apart

UNDER_WAY: Final = 1_024  # newest ended epochs kept although their node holds no frame: copies may still be in transit
MOST_FLUSHES: Final = 16  # flushes kept per child: a second device sends what it has left within a few restarts
MOST_CONTESTED: Final = 1_000  # numbers kept per flush
MOST_ENDED: Final = 20_000  # most ended epochs kept per child; beyond this the oldest are forgotten


@dataclass(slots=True)
class LastFlush:
    """The flush that ended an epoch. contested: its seqs in whose place a frame of another line came (1.3).

    others: seqs that a frame of another flush took before, in this process.
    """

    flush: Flush
    contested: set[int] = field(default_factory=set)
    others: set[int] = field(default_factory=set)

    def came(self, seq: int, flush: Flush) -> None:
        """Note a frame with a new number, if it is of another flush."""
        if seq > self.flush.after and not self.flush.agrees(flush) and len(self.others) < MOST_CONTESTED:
            self.others.add(seq)

    def contest(self, seq: int, flush: Flush | None) -> bool:
        """Whether a frame with a received number is of another line than the one received. True once per number.

        flush: of the frame.
        """
        if seq in self.others and self.flush.agrees(flush):
            self.others.remove(seq)
            self.contested.add(seq)  # what comes again of the other flush is a repeat
            return True
        if seq <= self.flush.after or self.flush.agrees(flush) or seq in self.contested or seq in self.others:
            return False
        if len(self.contested) >= MOST_CONTESTED:
            return False
        self.contested.add(seq)
        return True


def remember_flush(flushes: dict[int, LastFlush], epoch: int, last: LastFlush) -> None:
    """Add the flush of an epoch of one child. Beyond MOST_FLUSHES the oldest is forgotten."""
    flushes[epoch] = last
    if len(flushes) > MOST_FLUSHES:
        del flushes[next(iter(flushes))]


class EndedEpochs:
    """of: node -> ended epoch -> seq below which all frames were received.

    flushes: node -> epoch -> its flush, for the newest MOST_FLUSHES epochs that ended by one. changed: nodes whose
    epochs changed since the owner cleared this. forgotten: number of epochs forgotten because of the bound, since the
    process started.
    """

    def __init__(self) -> None:
        self.of: dict[str, dict[int, int]] = {}
        self.flushes: dict[str, dict[int, LastFlush]] = {}
        self.changed: set[str] = set()
        self.forgotten = 0

    def __contains__(self, key: EpochKey) -> bool:
        return key.epoch in self.of.get(key.node, ())

    def add(self, key: EpochKey, upto: int, last: LastFlush | None = None) -> None:
        """Note that an epoch has ended before seq `upto`. Beyond the bounds the oldest epochs are forgotten."""
        if last is not None:
            remember_flush(self.flushes.setdefault(key.node, {}), key.epoch, last)
        ended = self.of.setdefault(key.node, {})
        ended[key.epoch] = upto
        if len(ended) > MOST_ENDED:
            del ended[next(iter(ended))]
            self.forgotten += 1
        self.changed.add(key.node)

    def pass_over(self, key: EpochKey, seq: int, run: int) -> bool:
        """Take frames of an ended epoch, from seq on. Returns whether they follow directly on those received."""
        ended = self.of[key.node]
        if seq != ended[key.epoch]:
            return False
        ended[key.epoch] = seq + run
        self.changed.add(key.node)
        return True

    def contest(self, key: EpochKey, frame: Frame) -> bool:
        """Whether a frame with the number of a flush frame is of another line (1.3). True once per number."""
        last = self.flushes.get(key.node, {}).get(key.epoch)
        if last is None or apart(frame) or not last.contest(frame.seq, frame.flush):
            return False
        self.changed.add(key.node)
        return True

    def snapshot_flushes(self, node: str) -> dict[int, tuple[Flush, list[int]]] | None:
        """The flushes of a node, for the spool; None if there are none."""
        flushes = self.flushes.get(node, {})
        return {epoch: (last.flush, sorted(last.contested)) for epoch, last in flushes.items()} or None

    def restore(
        self,
        of: Iterable[tuple[str, Mapping[int, int]]],
        flushes: Iterable[tuple[str, Mapping[int, tuple[Flush, Iterable[int]]]]],
    ) -> None:
        """Continue from `of` and the results of `snapshot_flushes`, each with its node."""
        self.of.update((node, dict(epochs)) for node, epochs in of)
        for node, epochs in flushes:
            self.flushes[node] = {epoch: LastFlush(flush, set(seqs)) for epoch, (flush, seqs) in epochs.items()}

    def born(self, node: str, held: Container[int]) -> None:
        """Forget epochs of a node that are not in `held`, the list of its new birth, except the newest UNDER_WAY."""
        ended = self.of.get(node, {})
        for epoch in [epoch for epoch in list(ended)[:-UNDER_WAY] if epoch not in held]:
            del ended[epoch]
            self.changed.add(node)
