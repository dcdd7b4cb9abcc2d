"""Definitions in the waiting frames of an epoch, which may explain a frame before them (docs/protocol.md 2.4).

A child decides how many frames wait and how many of them have unknown numbers. So each definition is learnt once, and
those that cannot be learnt yet are tried again only after another one has come.
"""

from __future__ import annotations

from edge_agent.algebra.frame import Define, Frame
from edge_agent.errors import WireError
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.events import BadFrame


class DefinitionsAhead:
    """The definitions of one epoch's waiting frames that its dictionary lacks."""

    __slots__ = ("_fresh", "_of")

    def __init__(self) -> None:
        self._of: dict[int, Define] = {}  # seq -> what it defines
        self._fresh = False  # one has come since the last look

    def add(self, message: Frame | BadFrame) -> None:
        """Note that a frame waits."""
        if isinstance(message, Frame) and message.define is not None:
            self._of[message.seq] = message.define
            self._fresh = True

    def remove(self, seq: int) -> None:
        """Note that a frame no longer waits."""
        self._of.pop(seq, None)

    def learn(self, dictionary: EpochDictionary) -> bool:
        """Learn what can be learnt, in the order of seq. Returns whether anything was."""
        if not self._fresh:
            return False
        self._fresh, before = False, len(self._of)
        for seq, define in sorted(self._of.items(), key=lambda each: each[0]):
            if dictionary.lacks_before(define):
                continue  # a frame that has not come defines the numbers before
            try:
                dictionary.learn(define)
            except WireError:
                continue
            del self._of[seq]
        return len(self._of) < before
