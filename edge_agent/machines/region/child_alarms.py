"""Reports problems with the epochs of children to the operator, one note per finding (docs/protocol.md 1.4)."""

from __future__ import annotations

from itertools import islice
from typing import Any

from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.downlink.line_watch import MOST_NAMED, alarms_of
from edge_agent.machines.events import Action, Note


class ChildAlarms:
    """Remembers which findings were reported. alarmed: child -> text of its alarm, since this process started."""

    def __init__(self) -> None:
        self.alarmed: dict[str, str] = {}
        self._rivals: dict[str, tuple[int, int]] = {}  # node -> epochs of two devices with its name, as last reported
        self._went_back: set[str] = set()  # nodes restored from an older copy, since this process started
        self._turned_away = 0  # refused frames at the last call

    def look(self, inbox: Inbox) -> list[Action]:
        """Returns notes about findings of the inbox since the last call."""
        if not (inbox.rivals or inbox.restored) and inbox.refused == self._turned_away:
            return []  # as at nearly every event
        out = list[Action]()
        if inbox.rivals or inbox.restored:
            self.alarmed = dict(islice({**self.alarmed, **alarms_of(inbox)}.items(), MOST_NAMED))
        for node, epochs in inbox.rivals.items():
            if self._rivals.get(node) != epochs:
                self._rivals[node] = epochs
                out.append(Note("node.two_with_one_id", {"node": node, "epochs": list(epochs)}))
        for node in inbox.restored:
            self._went_back.add(node)
            out.append(Note("node.went_back", {"node": node, "epoch": inbox.current.get(node, 0)}))
        inbox.rivals.clear()
        inbox.restored.clear()
        if self._turned_away == 0 < inbox.refused:
            out.append(Note("frames.turned_away", {"frames": inbox.refused}))
        self._turned_away = inbox.refused
        return out

    def counters(self) -> dict[str, Any]:
        """The children with a finding, for `status`."""
        return {
            **({"two_with_one_id": sorted(self._rivals)} if self._rivals else {}),
            **({"went_back": sorted(self._went_back)} if self._went_back else {}),
        }
