"""Pauses between attempts to connect."""

from __future__ import annotations

import random
from typing import Final

STABLE_S: Final = 30.0  # a connection that lasted this long resets the pauses to the first


class Backoff:
    """Computes pauses that double up to longest_s, each shortened at random so that clients do not return together.

    spread_s: if the broker ended the connection, it has probably restarted, and all its clients reconnect. Until a
    connection lasts, each pause is then drawn uniformly from 0 to spread_s, or to the doubled pause if that is longer.
    """

    def __init__(self, first_s: float, longest_s: float, seed: int | None = None, spread_s: float = 0.0) -> None:
        self._first_s, self._longest_s, self._spread_s = first_s, longest_s, spread_s
        self._with_others = False  # the broker ended our connection, probably with those of all its clients
        self._random = random.Random(seed)
        self._attempts = 0
        self._short_lives = 0  # connections in a row that did not last

    def lived(self, seconds: float) -> bool:
        """Record the lifetime of a connection that ended. Returns whether it and the one before it were short.

        A short connection counts as a failed attempt. paho alone would reconnect without ever slowing down.
        """
        if seconds >= STABLE_S:
            self._attempts = self._short_lives = 0
            return False
        self._short_lives += 1
        return self._short_lives > 1

    def ended_with_others(self, they_did: bool) -> None:
        """Record whether a connection probably ended together with those of all other clients of the broker."""
        self._with_others = they_did and self._spread_s > 0

    def first_pause_s(self) -> float:
        """The pause after a failure on this machine, which no broker noticed. Does not count as an attempt."""
        return self._first_s * self._random.uniform(0.5, 1.0)

    def longest_pause_s(self) -> float:
        """The pause after a failure that will not pass by itself."""
        return self._longest_s * self._random.uniform(0.5, 1.0)

    def pause_s(self) -> float:
        """The pause before the next attempt. Counts the attempt."""
        doubled_s: float = self._first_s * 2 ** min(self._attempts, 16)
        self._attempts += 1
        full_s = min(self._longest_s, doubled_s)
        if self._with_others:
            return self._random.uniform(0.0, max(self._spread_s, full_s))
        return full_s * self._random.uniform(0.5, 1.0)
