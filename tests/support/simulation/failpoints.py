"""The kinds of faults that can happen in a simulated world: each has a name, can be on or off, and is counted.

Every failpoint draws from a random stream of its own, so that the world stays the same where one is switched off: this
is what lets a failing seed be shrunk to the few faults that matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Final

MS: Final = 1_000
SECOND: Final = 1_000_000


class CrashError(Exception):
    """The process died at a failpoint; what it had committed is on its disk."""


FAILPOINTS: Final[Mapping[str, str]] = {
    "network.drop": "a message is lost",
    "network.repeat": "a message comes twice",
    "network.late": "a message comes half a minute after later ones",
    "broker.restart": "the broker loses all that is under way",
    "link.down": "a node's connection upward is lost for some seconds",
    "process.crash": "a process dies between two actions; its disk holds what was committed",
    "frames.step": "the frame limit is small: what one step releases takes several frames",
    "frames.flush": "the frame limit is small: a flush takes several frames",
    "frames.birth": "the frame limit is small: a birth takes several frames",
    "root.killed": "the root begins a batch from the state in its last decision row",
}

# What is wrong today, by failpoint: seeds of the gate leave these out until the rule is built.
NOT_YET: Final[Mapping[str, str]] = {}  # failpoint -> the rule that is not built
GATE: Final = frozenset(FAILPOINTS) - frozenset(NOT_YET)


class Faults:
    """The failpoints of one world.

    chances: failpoint -> how likely it is each time it could happen. hits: how often each happened.
    """

    def __init__(self, seed: int, chances: Mapping[str, float]) -> None:
        unknown = chances.keys() - FAILPOINTS.keys()
        assert not unknown, f"no failpoint is named {sorted(unknown)}"
        self.seed, self.chances = seed, dict(chances)
        self.hits: Counter[str] = Counter()
        self._streams: dict[str, Random] = {}

    def on(self, name: str) -> bool:
        """Whether it can happen at all."""
        return self.chances.get(name, 0.0) > 0

    def stream(self, name: str) -> Random:
        """The failpoint's own random stream."""
        if name not in self._streams:
            self._streams[name] = Random(f"{self.seed} {name}")
        return self._streams[name]

    def happens(self, name: str) -> bool:
        """Whether it happens now; counted if so."""
        chance = self.chances.get(name, 0.0)
        if chance <= 0 or self.stream(name).random() >= chance:
            return False
        self.hits[name] += 1
        return True

    def heal(self, *kept: str) -> None:
        """No more faults, but of those that are part of how the world is built."""
        self.chances = {name: chance for name, chance in self.chances.items() if name in kept}
