"""Remembers ended epochs of children, with one number each (docs/protocol.md 3.4)."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from edge_agent.algebra.query.key import EpochKey

UNDER_WAY: Final = 1_024  # newest ended epochs kept although their node holds no frame: copies may still be in transit
MOST_ENDED: Final = 20_000  # most ended epochs kept per child; beyond this the oldest are forgotten


class EndedEpochs:
    """of: node -> ended epoch -> seq below which all frames were received.

    changed: nodes whose epochs changed since the owner cleared this. forgotten: number of epochs forgotten because of
    the bound, since the process started.
    """

    def __init__(self) -> None:
        self.of: dict[str, dict[int, int]] = {}
        self.changed: set[str] = set()
        self.forgotten = 0

    def __contains__(self, key: EpochKey) -> bool:
        return key.epoch in self.of.get(key.node, ())

    def add(self, key: EpochKey, upto: int) -> None:
        """Note that an epoch has ended before seq `upto`. Beyond the bound the oldest is forgotten."""
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

    def born(self, node: str, held: Container[int]) -> None:
        """Forget epochs of a node that are not in `held`, the list of its new birth, except the newest UNDER_WAY."""
        ended = self.of.get(node, {})
        for epoch in [epoch for epoch in list(ended)[:-UNDER_WAY] if epoch not in held]:
            del ended[epoch]
            self.changed.add(node)
