"""Raises alarms about two devices with one id, and about copies of a spool (docs/protocol.md 1.4). Pure.

A merger and the root find both in their inbox. At the root this takes until the next batch; the lander receives every
birth at once, and compares the predecessors that births name.
"""

from __future__ import annotations

from typing import Final

from edge_agent.algebra.frame import Birth
from edge_agent.machines.downlink.inbox import Inbox

MOST_NAMED: Final = 100  # most children with an alarm, because the status lists them
MOST_CHILDREN: Final = 20_000  # most children watched
KEPT: Final = 64  # epochs of a child whose successor is remembered
TWO_DEVICES: Final = "two devices have this id, or one has a copy of the other's spool: give one of them another id"
WENT_BACK: Final = "it forgot what it had sent: its spool was lost or is an older copy, or two devices have its id"


def alarms_of(inbox: Inbox) -> dict[str, str]:
    """Child -> its alarm, from `rivals` and `restored` of an inbox."""
    return dict.fromkeys(inbox.rivals, TWO_DEVICES) | dict.fromkeys(inbox.restored, WENT_BACK)


class LineWatch:
    """Watches the births of children. alarms: child -> its alarm, since this process started."""

    def __init__(self) -> None:
        self.alarms: dict[str, str] = {}
        self._next: dict[str, dict[int, int]] = {}  # child -> epoch -> the epoch that names it as its predecessor
        self._newest: dict[str, int] = {}  # child -> epoch of its newest birth

    def birth(self, node: str, birth: Birth, upto: int | None) -> str:
        """Take a birth. Returns a new alarm, or ''.

        upto: all frames of the predecessor below this seq were received; None: not known.
        """
        epoch, before = birth.epoch_id >> 32, birth.predecessor
        newest = self._newest.get(node)
        if newest == epoch or (newest is None and len(self._newest) >= MOST_CHILDREN):
            return ""
        self._newest[node] = epoch
        successors = self._next.setdefault(node, {})
        if not isinstance(before, tuple):
            return "" if newest is None else self._raise(node, WENT_BACK)
        known = successors.setdefault(before[0], epoch)
        while len(successors) > KEPT:
            del successors[next(iter(successors))]
        if known != epoch:
            return self._raise(node, TWO_DEVICES)
        return self._raise(node, WENT_BACK) if upto is not None and upto > before[1] + 1 else ""

    def _raise(self, node: str, text: str) -> str:
        known = self.alarms.get(node)
        if known in (text, TWO_DEVICES) or (known is None and len(self.alarms) >= MOST_NAMED):
            return ""
        self.alarms[node] = text
        return text
