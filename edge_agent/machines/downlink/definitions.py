"""The interface by which a parent asks about definitions of queries. A parent that receives the operator's topics uses
edge_agent/config/in_force/known_definitions.py.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Set
from typing import Final, Protocol

from edge_agent.algebra.frame import Plan, Serving
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group

MOST_TEXTS: Final = 20_000  # definitions that are kept: frames cost their sender nothing


class Definitions(Protocol):
    """texts: those that count, in the order in which they came. not_taken: how many were beyond the bounds.

    version: changes whenever the known definitions change, so that `contradicts` may give another result; valid in this
    process. unnamed: new ones that neither a plan nor a member has named so far: later frames will.
    """

    texts: dict[str, None]
    unnamed: set[QueryKey]
    not_taken: int
    version: int

    @property
    def held(self) -> Collection[str]:
        """Texts that wait until the operator has published them."""

    def add(self, text: str) -> str:
        """Take a text of a frame. Returns the text that counts instead, if that is new; '' if it is not."""

    def revisions(self) -> Set[QueryKey]:
        """Those whose texts are here, as far as they can be told apart."""

    def name(self, keys: Iterable[QueryKey]) -> None:
        """Note that a plan or a member names these."""

    def forget(self, keys: Iterable[QueryKey]) -> list[QueryKey]:
        """Forget the texts of these, but for what is published at present, or is new. Returns whose it was."""

    def contradicts(self, group: Group, plan: Plan) -> str:
        """How a plan contradicts the definitions of its queries; '' if it does not."""

    def serves(self, child: str, leaves: Container[str], serving: Serving, now_us: int) -> bool:
        """Whether the range for which a child serves a query counts. leaves: those below the child, itself included."""

    def overdue(self, now_us: int) -> Iterable[tuple[str, str]]:
        """(child, why) of claims that are to be reported, each once."""


class HeardDefinitions:
    """Accepts what children define, where nobody publishes definitions: in recordings and simulations."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}
        self.not_taken = self.version = 0
        self.held: tuple[str, ...] = ()
        self.unnamed: set[QueryKey] = set()

    def add(self, text: str) -> str:
        if text in self.texts:
            return ""
        if len(self.texts) >= MOST_TEXTS:
            self.not_taken += 1
            return ""
        self.texts[text] = None
        return text

    def revisions(self) -> Set[QueryKey]:
        return frozenset()

    def name(self, keys: Iterable[QueryKey]) -> None:
        del keys

    def forget(self, keys: Iterable[QueryKey]) -> list[QueryKey]:
        del keys
        return []

    def contradicts(self, group: Group, plan: Plan) -> str:
        del group, plan
        return ""

    def serves(self, child: str, leaves: Container[str], serving: Serving, now_us: int) -> bool:
        del child, leaves, serving, now_us
        return True

    def overdue(self, now_us: int) -> Iterable[tuple[str, str]]:
        del now_us
        return ()
