"""Epochs of children that have ended: of each only one number is kept (docs/protocol.md 3.4)."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from edge_agent.algebra.query.key import EpochKey

UNDER_WAY: Final = 1_024  # ended epochs of a node that are known although it holds nothing of them: copies may be late
MOST_ENDED: Final = 20_000  # epochs of one child that are known to have ended: the oldest are forgotten


class EndedEpochs:
    """of: node -> epoch that has ended -> all seqs below it are here. changed: nodes, since its owner cleared it.

    forgotten: epochs beyond the bound, since the process started.
    """

    def __init__(self) -> None:
        self.of: dict[str, dict[int, int]] = {}
        self.changed: set[str] = set()
        self.forgotten = 0

    def __contains__(self, key: EpochKey) -> bool:
        return key.epoch in self.of.get(key.node, ())

    def add(self, key: EpochKey, upto: int) -> None:
        """Note that an epoch has ended before that seq. Beyond the bound the oldest is forgotten."""
        ended = self.of.setdefault(key.node, {})
        ended[key.epoch] = upto
        if len(ended) > MOST_ENDED:
            del ended[next(iter(ended))]
            self.forgotten += 1
        self.changed.add(key.node)

    def is_new(self, key: EpochKey, seq: int) -> bool:
        """Take a frame of such an epoch. Returns whether it is none that has arrived before."""
        ended = self.of[key.node]
        if seq < ended[key.epoch]:
            return False
        ended[key.epoch] = seq + 1
        self.changed.add(key.node)
        return True

    def born(self, node: str, held: Container[int]) -> None:
        """Forget the epochs of a node of which a birth says that it holds nothing, but for the newest."""
        ended = self.of.get(node, {})
        for epoch in [epoch for epoch in list(ended)[:-UNDER_WAY] if epoch not in held]:
            del ended[epoch]
            self.changed.add(node)
