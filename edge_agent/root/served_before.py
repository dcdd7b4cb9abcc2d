"""From when leaves served a query before they stated a later start of it (docs/protocol.md 4.7).

A child that has forgotten its past states the range of a query anew, and a sensor that was removed may come back. The
earlier rows were written with these leaves, so a gap record of such a leaf still marks them when they are revised.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from typing import Any

from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.codec import decode, encode

Starts = Mapping[QueryKey, Mapping[str, int]]


class ServedBefore:
    """of: group -> query -> leaf -> the earliest start, for leaves that state a later one now."""

    def __init__(self) -> None:
        self.of: dict[Group, dict[QueryKey, dict[str, int]]] = {}
        self._last: dict[Group, tuple[Starts, Sequence[str]]] = {}  # of the last decision: starts, and all leaves

    def look(self, group: Group, begins: Starts, leaves: Sequence[str], served: Container[QueryKey]) -> Starts:
        """Returns the earlier starts of a group's leaves. begins: see GroupView. served: queries it served before."""
        former, listed = self._last.get(group, ({}, ()))
        self.note(group, begins, leaves)
        if begins != former:
            self._compare(group, begins, former, frozenset(listed), served)
        return self.of.get(group, {})

    def note(self, group: Group, begins: Starts, leaves: Sequence[str]) -> None:
        """Remember what a decision took, or what it had taken when the state was stored."""
        self._last[group] = begins, leaves

    def _compare(
        self, group: Group, begins: Starts, former: Starts, listed: Set[str], served: Container[QueryKey]
    ) -> None:
        known, found = self.of.pop(group, {}), dict[QueryKey, dict[str, int]]()
        for key, starts in begins.items():
            own, earlier = known.get(key, {}), former.get(key, {})
            for leaf, us in starts.items():
                was_us = earlier.get(leaf, NEVER_US) if leaf in listed and key in served else us
                was_us = min(was_us, own.get(leaf, us))
                if was_us < us:
                    found.setdefault(key, {})[leaf] = was_us
        if found:
            self.of[group] = found

    def forget(self, group: Group, key: QueryKey) -> None:
        """Forget a query that ended long ago."""
        self.of.get(group, {}).pop(key, None)

    def forget_group(self, group: Group) -> None:
        """Forget a group that has ended."""
        self.of.pop(group, None)
        self._last.pop(group, None)

    def snapshot(self) -> object:
        return encode([(group, list(own.items())) for group, own in self.of.items()])

    def restore(self, state: Any) -> None:
        """Continue from the result of `snapshot`."""
        found = decode(list[tuple[Group, list[tuple[QueryKey, dict[str, int]]]]], state)
        self.of = {group: dict(own) for group, own in found}
