"""What gateways read between two losses of their spools, and which stores of the world could still know of it.

A gateway whose spool is gone begins as a new one. What it read before, of sensors that cannot be read again, is a loss
that somebody must declare, unless no disk ever kept a word of it, or each that did has lost it too: then nobody can
know that it was read. This is the ground truth of that rule (docs/protocol.md 1.2), computed from bytes alone. A word
of a life is the number of an epoch of it, which stands in each frame of the gateway and wherever a tier lists it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from edge_agent.errors import WireError
from edge_agent.wire.frames import envelope

HEARD, IN_COMMIT, KEPT = range(3)  # by a process; a commit is being made since; it stands on the disk
WORD_BYTES: Final = 4
T = TypeVar("T")


@dataclass(slots=True)
class Life:
    """From a start with an empty spool to the next one. first: the reading it began at.

    holders: host -> how firmly it holds a word. A parent that throws away what it heard counts as knowing it.
    """

    first: int
    words: set[bytes] = field(default_factory=set)
    holders: dict[str, int] = field(default_factory=dict)

    def stands_in(self, contents: Iterable[bytes]) -> bool:
        """Whether a word of it does."""
        return any(word in content for content in contents for word in self.words)


class Lives:
    """Those of the gateways whose sensors cannot be read again from their start."""

    def __init__(self) -> None:
        self._of: dict[str, list[Life]] = {}  # in order; the last one goes on

    def begins(self, node: str, at: int) -> None:
        """A gateway starts with nothing. at: how many readings came before."""
        self._of.setdefault(node, []).append(Life(at))

    def speaks(self, node: str, payload: bytes) -> None:
        """A gateway publishes."""
        lives = self._of.get(node)
        if lives and _stays(payload):
            lives[-1].words.add(envelope(payload).epoch.to_bytes(WORD_BYTES, "big"))

    def heard(self, host: str, payload: bytes) -> None:
        """A parent that is up hears a message, of a gateway itself or of a tier that passes on what it knows."""
        for life in self._all() if self._of and _stays(payload) else ():
            if life.holders.get(host) is None and life.stands_in((payload,)):
                life.holders[host] = HEARD

    def commits(self, host: str) -> None:
        """A commit is made of all that a host has heard."""
        self._raise(host, HEARD, IN_COMMIT)

    def committed(self, host: str) -> None:
        """The last one is on the disk."""
        self._raise(host, IN_COMMIT, KEPT)

    def landed(self, host: str, content: bytes) -> None:
        """The lander has written a file, which is never lost."""
        for life in self._all():
            if life.holders.get(host) == HEARD and life.stands_in((content,)):
                life.holders[host] = KEPT

    def died(self, host: str) -> None:
        """A process ends: what is not on its disk is gone."""
        for life in self._all():
            if life.holders.get(host, KEPT) < KEPT:
                del life.holders[host]

    def disk_lost(self, host: str, left: Collection[bytes]) -> None:
        """A disk has lost something. left: what can still be read of it."""
        for life in self._all():
            if host in life.holders and not life.stands_in(left):
                del life.holders[host]

    def readings(self, node: str, every: Sequence[T], under_way: Collection[bytes]) -> list[T]:
        """The readings whose loss somebody could know of; under_way: messages.

        What came before the first start nobody listened to.
        """
        lives = self._of.get(node)
        if lives is None:
            return list(every)
        out: list[T] = []
        ends = [*(life.first for life in lives[1:]), len(every)]
        for life, end in zip(lives, ends, strict=True):
            if life is lives[-1] or life.holders or life.stands_in(filter(_stays, under_way)):
                out += every[life.first : end]
        return out

    def _all(self) -> Iterable[Life]:
        return (life for lives in self._of.values() for life in lives)

    def _raise(self, host: str, before: int, after: int) -> None:
        for life in self._all():
            if life.holders.get(host) == before:
                life.holders[host] = after


def _stays(payload: bytes) -> bool:
    """Whether it is a frame: of a heartbeat nothing stays anywhere (2.5)."""
    try:
        return envelope(payload).seq is not None
    except WireError:  # a receipt, or damaged
        return False
