"""Leaves that are behind the frontier of their group, and those that have come further (docs/protocol.md 4.7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.codec import decode, encode
from edge_agent.root import bounds

CaughtUp = dict[tuple[Group, str], tuple[int, int]]  # (group, leaf) -> its frontier before and now


class LeavesBehind:
    """Remembers how far these leaves were. dropped: leaves forgotten beyond `bounds.MOST_GONE`."""

    def __init__(self) -> None:
        self.of: dict[Group, dict[str, int]] = {}
        self._caught_up: CaughtUp = {}
        self.dropped = 0

    def look(self, group: Group, leaves: LeafTimes, behind: Mapping[str, int]) -> None:
        """Take the frontiers of a group's leaves now. behind: those below the group's frontier."""
        gone: dict[str, int] = {}  # leaves that left the group behind its frontier; they may return
        for leaf, before_us in self.of.get(group, {}).items():
            own_us = behind.get(leaf)
            if own_us is None and leaf not in leaves:
                gone[leaf] = before_us
                continue
            own_us = leaves[leaf] if own_us is None else own_us
            if own_us > before_us:
                self._caught_up[group, leaf] = (before_us, own_us)
        kept = bounds.newest(gone, bounds.MOST_GONE)
        self.dropped += len(gone) - len(kept)
        self.of[group] = {**kept, **behind}

    def take_caught_up(self) -> CaughtUp:
        """The leaves that have come further since the last call."""
        found, self._caught_up = self._caught_up, {}
        return found

    def forget_group(self, group: Group) -> None:
        """Forget a group that has ended."""
        self.of.pop(group, None)

    def snapshot(self) -> object:
        return encode([(group, leaf, us) for group, leaves in self.of.items() for leaf, us in leaves.items()])

    def restore(self, state: Any) -> None:
        """Continue from the result of `snapshot`."""
        for group, leaf, frontier_us in decode(list[tuple[Group, str, int]], state):
            self.of.setdefault(group, {})[leaf] = frontier_us
