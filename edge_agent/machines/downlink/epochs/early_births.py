"""Births that came before frames that they follow (docs/protocol.md 1.2).

A child decides how many of its births wait, and its epochs are gone through with each that comes and each that takes
effect. So those of which nothing has changed are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping

from edge_agent.algebra.query.key import EpochKey


class EarlyBirths:
    """Epochs whose birth waits for an epoch that is not here, or not as far as the birth says."""

    __slots__ = ("_followers", "_of")

    def __init__(self) -> None:
        self._of: dict[str, dict[int, int]] = {}  # child -> epoch -> the one that its birth names
        self._followers: dict[EpochKey, set[int]] = {}  # epoch -> those whose births name it

    def of(self, node: str) -> Mapping[int, int]:
        """The epochs of a child to pass over; `changed` takes them out of this mapping."""
        return self._of.get(node, {})

    def wait(self, key: EpochKey, before: EpochKey) -> None:
        """Note that the birth of an epoch waits for another one."""
        self._of.setdefault(key.node, {})[key.epoch] = before.epoch
        self._followers.setdefault(before, set()).add(key.epoch)

    def changed(self, key: EpochKey) -> None:
        """Note that an epoch has changed: its birth, and those that wait for it, may take effect now."""
        waits = self._of.get(key.node)
        if waits is None:
            return
        named = waits.pop(key.epoch, None)
        if named is not None:
            before = EpochKey(key.node, named)
            self._followers[before].discard(key.epoch)
            if not self._followers[before]:
                del self._followers[before]
        for epoch in self._followers.pop(key, ()):
            del waits[epoch]
        if not waits:
            del self._of[key.node]
