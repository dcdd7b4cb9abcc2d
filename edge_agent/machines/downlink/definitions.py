"""What a parent asks about definitions of queries. A parent that hears the operator's topics knows more:
edge_agent/config/in_force/known_definitions.py.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from typing import Final, Protocol

from edge_agent.algebra.frame import Plan, Serving
from edge_agent.algebra.query.query import Group

MOST_TEXTS: Final = 20_000  # definitions that are kept: frames cost their sender nothing


class Definitions(Protocol):
    """texts: those that count, in the order in which they came. not_taken: how many were beyond the bounds.

    version: another one once what is known has changed, so that `contradicts` may answer otherwise; of this process.
    """

    texts: dict[str, None]
    not_taken: int
    version: int

    @property
    def held(self) -> Collection[str]:
        """Texts that wait until the operator has published them."""

    def add(self, text: str) -> str:
        """A text of a frame. Returns the one that counts instead, if that is new; '' if not."""

    def contradicts(self, group: Group, plan: Plan) -> str:
        """What of a plan is not as its queries are defined; '': nothing."""

    def serves(self, child: str, leaves: Container[str], serving: Serving, now_us: int) -> bool:
        """Whether what a child says it serves counts. leaves: those below it, itself included."""

    def overdue(self, now_us: int) -> Iterable[tuple[str, str]]:
        """(child, why) of claims that are to be reported, each once."""


class HeardDefinitions:
    """Takes what children say, where no operator's word is known: in recordings and simulations."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}
        self.not_taken = self.version = 0
        self.held: tuple[str, ...] = ()

    def add(self, text: str) -> str:
        if text in self.texts:
            return ""
        if len(self.texts) >= MOST_TEXTS:
            self.not_taken += 1
            return ""
        self.texts[text] = None
        return text

    def contradicts(self, group: Group, plan: Plan) -> str:
        del group, plan
        return ""

    def serves(self, child: str, leaves: Container[str], serving: Serving, now_us: int) -> bool:
        del child, leaves, serving, now_us
        return True

    def overdue(self, now_us: int) -> Iterable[tuple[str, str]]:
        del now_us
        return ()
