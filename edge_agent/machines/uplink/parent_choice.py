"""Chooses one of several parents: the next in the list while the present one is away, and the first when it is back.

The present parent counts as away when for some time the connection was down, or frames waited for a receipt and none
came. Each move rewrites the frames that wait, so a parent that has not answered since the node moved to it is left only
for one that answers: if all are away, the node moves once. It asks by a heartbeat with an unknown epoch, which any
parent answers by a receipt (docs/protocol.md 3.7). Pure: the caller reports events and asks for the choice after
each.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

PROBE_US: Final = 5_000_000  # interval of questions to other parents
# the epoch in questions to the first parent, and one less for each further one. They are always the same, so that no
# late answer, also to a question of an earlier process, is taken for a receipt of the present parent
PROBE: Final = 0xFFFFFFFF
MISSED: Final = 3  # after so many questions without an answer a parent counts as away again


class ParentChoice:
    """The choice among the parents of a node. parents: in order of preference."""

    def __init__(self, parents: tuple[str, ...], away_us: int, back_us: int) -> None:
        """away_us: how long the present parent may owe an answer before the node moves on.

        back_us: how long the first parent must have answered without a break before the node goes back to it.
        """
        self.parents, self.away_us, self.back_us = parents, away_us, back_us
        self._well_us: int | None = None  # when the present parent last answered or owed no answer
        self._heard = True  # whether the present parent has answered since the node moved to it; a start is no move
        self._asked_us: int | None = None
        # parent -> times of its first and its last answer, in a series without a break
        self._answered: dict[str, tuple[int, int]] = {}

    def well(self, now_us: int) -> None:
        """Note that the present parent answered."""
        self._well_us, self._heard = now_us, True

    def epoch_to_ask(self, parent: str) -> int:
        """The epoch in questions to a parent in the list. It is not the id of a real epoch."""
        return PROBE - self.parents.index(parent)

    def asked_in(self, epoch: int) -> str:
        """The parent that answers a question if its receipt names this epoch; '': none does."""
        return self.parents[PROBE - epoch] if 0 <= PROBE - epoch < len(self.parents) else ""

    def answered(self, parent: str, now_us: int) -> None:
        """Note that a parent in the list answered a question."""
        self._answered[parent] = self._answered.get(parent, (now_us, now_us))[0], now_us

    def shift(self, by_us: int) -> None:
        """Shift remembered times by a step of the clock, which is no time in which a parent was silent."""
        self._well_us = None if self._well_us is None else self._well_us + by_us
        self._asked_us = None if self._asked_us is None else self._asked_us + by_us
        self._answered = {parent: (first + by_us, last + by_us) for parent, (first, last) in self._answered.items()}

    def asks(self, present: str, now_us: int) -> tuple[str, ...]:
        """The parents to ask now whether they answer. present: the parent in use."""
        others = tuple(each for each in (self.parents[:1] if self._heard else self.parents) if each != present)
        if len(self.parents) < 2 or not others:
            return ()
        if self._asked_us is not None and 0 <= now_us - self._asked_us < PROBE_US:
            return ()
        self._asked_us = now_us
        self._answered = {each: times for each, times in self._answered.items() if self._answers(each, now_us)}
        return others

    def _answers(self, parent: str, now_us: int) -> bool:
        """Whether a parent has answered one of the last questions."""
        return parent in self._answered and now_us - self._answered[parent][1] <= MISSED * PROBE_US

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
        if present != best and best not in unfinished and self._answers(best, now_us):
            first_us, last_us = self._answered[best]
            if last_us - first_us >= self.back_us:
                return self._change(best, now_us)
        if now_us - self._well_us > self.away_us:
            at = self.parents.index(present)
            for each in (*self.parents[at + 1 :], *self.parents[:at]):
                if self._heard or self._answers(each, now_us):
                    return self._change(each, now_us)
        return present

    def _change(self, parent: str, now_us: int) -> str:
        self._well_us, self._asked_us, self._answered, self._heard = now_us, None, {}, False
        return parent
