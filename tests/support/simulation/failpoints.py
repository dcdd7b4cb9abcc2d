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
    "link.lower": "a merger's connection downward is lost for some seconds",
    "process.crash": "a process dies between two actions; its disk holds what was committed",
    "frames.step": "the frame limit is small: what one step releases takes several frames",
    "frames.flush": "the frame limit is small: a flush takes several frames",
    "frames.birth": "the frame limit is small: a birth takes several frames",
    "keys.many": "an epoch numbers fewer keys than there are",
    "epochs.many": "a node starts 70 times while its parent is away, once in a world",
    "disk.full": "a commit fails; it is tried again until there is room",
    "disk.flip_frame": "a spooled frame has one bit changed at a start",
    "disk.flip_slot": "a slot of a spool has one bit changed at a start",
    "disk.older": "a spool is an older copy of itself at a start",
    "disk.wiped": "a spool is empty at a start",
    "journal.unsynced": "the lander's journal lacks its last entries at a start",
    "journal.wiped": "the lander's journal is gone at a start; its id is found in the landing folder",
    "landing.cut": "a landing file is cut short after it was receipted",
    "journal.new": "the lander starts with a new journal: its landing folder is gone too",
    "clock.skew": "the clocks of nodes differ by up to two seconds",
    "clock.step": "a node's clock steps, by seconds, an hour or a month, and back",
    "clock.unset": "a node starts in 1970 and learns the time five seconds later",
    "clock.lander": "the lander's clock steps, by seconds, an hour or a month, and back",
    "command.sent": "an operator tells a node to say its numbers again, or to send again",
    "source.live": "the sensors cannot be read again",
    "source.tokens": "the sensors' messages are acknowledged after the commit, and come again otherwise",
    "node.late": "a gateway starts when others have gone on",
    "node.cloned": "for some seconds two devices have one id and the same spool",
    "node.move": "a gateway is started again with another parent",
    "merger.move": "a merger is started again with another parent, or goes to another while its own is away",
    "parent.away": "a merger is away for longer than its gateways, which know another parent, wait for it",
    "parent.unreached": "a node and its parent do not reach each other for longer than it waits; others reach both",
    "root.killed": "the root dies between two commits and goes on from its last decision row",
    "power.cut": "all processes die at the same moment, and what is under way is lost",
    "clock.all": "the clocks of all nodes and of the lander step together, and back",
    "broker.held": "the broker keeps what comes for a parent that is away, and repeats what it did not acknowledge",
    "broker.older": "the broker is started again with an older copy of its messages: they come again",
    "landing.lost": "a landing file is gone after it was receipted",
    "journal.older": "the lander's journal is an older copy of itself at a start",
    "source.early": "readings come before their time",
}

# What is wrong today, by failpoint: seeds of the gate leave these out until the rule is built.
NOT_YET: Final[Mapping[str, str]] = {}

MORE: Final = frozenset(  # worlds of their own (see programme.py): the others stay as they are
    ("power.cut", "clock.all", "broker.held", "broker.older", "landing.lost", "journal.older", "source.early")
)
GATE: Final = frozenset(FAILPOINTS) - frozenset(NOT_YET) - MORE
LOSSES: Final = frozenset(  # readings may be gone, and then it is declared
    (
        "node.cloned",
        "source.live",
        "disk.flip_frame",
        "disk.flip_slot",
        "disk.older",
        "disk.wiped",
        "landing.cut",
        "landing.lost",
        "journal.new",
    )
)

FORGETFUL: Final = ("disk.flip_slot", "disk.older", "disk.wiped")  # after which a node does not know where it was


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
        chance = self.chances.get(name)
        if not chance or self.stream(name).random() >= chance:
            return False
        self.hits[name] += 1
        return True

    def heal(self) -> None:
        """No more faults, but of those that are part of how the world is built."""
        built = (
            "frames.step",
            "frames.flush",
            "frames.birth",
            "keys.many",
            "source.live",
            "source.tokens",
            "broker.held",
        )
        self.chances = {name: chance for name, chance in self.chances.items() if name in built or name == "root.killed"}
