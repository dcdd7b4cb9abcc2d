"""Chooses one of several parents: the next in the list while the present one is away, and the first when it is back.

The present parent counts as away when for some time the connection was down, or frames waited for a receipt and none
came. The first parent in the list is asked by a heartbeat with an unknown epoch, which any parent answers by a receipt
(docs/protocol.md 3.7). Pure: the caller reports events and asks for the choice after each.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

PROBE_US: Final = 5_000_000  # interval of questions to the first parent
# the epoch in these questions. It is always the same, so that no late answer, also to a question of an earlier process,
# is taken for a receipt of the present parent
PROBE: Final = 0xFFFFFFFF
MISSED: Final = 3  # after so many questions without an answer the first parent counts as away again


class ParentChoice:
    """The choice among the parents of a node. parents: in order of preference."""

    def __init__(self, parents: tuple[str, ...], away_us: int, back_us: int) -> None:
        """away_us: how long the present parent may owe an answer before the node moves on.

        back_us: how long the first parent must have answered without a break before the node goes back to it.
        """
        self.parents, self.away_us, self.back_us = parents, away_us, back_us
        self._well_us: int | None = None  # when the present parent last answered or owed no answer
        self._asked_us: int | None = None
        # times of the first and the last answer of the first parent, in a series without a break
        self._answered: tuple[int, int] | None = None

    def well(self, now_us: int) -> None:
        """Note that the present parent answered."""
        self._well_us = now_us

    def answered(self, now_us: int) -> None:
        """Note that the first parent in the list answered a question."""
        first_us = now_us if self._answered is None else self._answered[0]
        self._answered = first_us, now_us

    def shift(self, by_us: int) -> None:
        """Shift remembered times by a step of the clock."""
        self._well_us = None if self._well_us is None else self._well_us + by_us
        self._asked_us = None if self._asked_us is None else self._asked_us + by_us
        self._answered = None if self._answered is None else (self._answered[0] + by_us, self._answered[1] + by_us)

    def asks(self, present: str, now_us: int) -> str:
        """The parent to ask now whether it answers; '': none. present: the parent in use."""
        if len(self.parents) < 2 or present == self.parents[0]:
            return ""
        if self._asked_us is not None and 0 <= now_us - self._asked_us < PROBE_US:
            return ""
        self._asked_us = now_us
        if self._answered is not None and now_us - self._answered[1] > MISSED * PROBE_US:
            self._answered = None
        return self.parents[0]

    def wanted(self, present: str, now_us: int, *, waits: bool, unfinished: Collection[str]) -> str:
        """The parent to send to from now on. present: the parent in use.

        waits: the connection to the present parent is down, or it owes a receipt. unfinished: former parents that have
        not receipted all frames sent to them.
        """
        if not self.parents or present not in self.parents:
            return self.parents[0] if self.parents else present
        if len(self.parents) < 2:
            return present
        if not waits or self._well_us is None or now_us < self._well_us:
            self._well_us = now_us
        best = self.parents[0]
        if present != best and self._answered is not None and best not in unfinished:
            first_us, last_us = self._answered
            if last_us - first_us >= self.back_us and now_us - last_us <= MISSED * PROBE_US:
                return self._change(best, now_us)
        if now_us - self._well_us > self.away_us:
            return self._change(self.parents[(self.parents.index(present) + 1) % len(self.parents)], now_us)
        return present

    def _change(self, parent: str, now_us: int) -> str:
        self._well_us, self._asked_us, self._answered = now_us, None, None
        return parent
