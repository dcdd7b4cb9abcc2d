"""The interface through which a parent asks about definitions of queries.

A parent that receives the operator's topics uses edge_agent/config/in_force/known_definitions.py.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Set
from typing import Final, Protocol

from edge_agent.algebra.frame import Plan, Serving
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.text_shares import TextShares

MOST_TEXTS: Final = 20_000  # of a child, for each gateway below it; without a bound it could fill the memory


class Definitions(Protocol):
    """The definitions that a parent knows.

    texts: the definitions that count, in order of arrival, with the children that sent them. unnamed: new queries that
    no plan or member has named yet. not_taken: number of texts ignored because of the bounds. version: changes whenever
    `contradicts` may give another result; not the same in another process.
    """

    texts: TextShares
    unnamed: set[QueryKey]
    not_taken: int
    version: int

    @property
    def held(self) -> Collection[str]:
        """Definition texts taken from frames; they do not count until the operator publishes them."""

    def add(self, text: str, child: str = "", gateways: int = 1) -> str:
        """Take a definition text from a frame. Returns the text that counts instead if it is new here, else ''.

        child: in whose share it counts; '': kept before. gateways: number below the child, which has a share for each.
        """

    def revisions(self) -> Set[QueryKey]:
        """The query revisions whose texts are known; empty if texts are not parsed here."""

    def name(self, keys: Iterable[QueryKey]) -> None:
        """Note that a plan or a member names these queries."""

    def forget(self, keys: Iterable[QueryKey]) -> list[QueryKey]:
        """Forget the texts of these queries, except published and new ones. Returns the forgotten queries."""

    def contradicts(self, group: Group, plan: Plan) -> str:
        """Why a plan contradicts the definitions of its queries; '' if it does not."""

    def serves(self, child: str, leaves: Container[str], serving: Serving, now_us: int) -> bool:
        """Whether a child's serving range counts (6.5). leaves: names of the leaves below the child, or itself."""

    def overdue(self, now_us: int) -> Iterable[tuple[str, str]]:
        """Returns (child, reason) for claims about unpublished queries that are due for a report; each once (6.5)."""


class HeardDefinitions:
    """Accepts all definitions of children. For recordings and simulations, in which no operator publishes any."""

    def __init__(self) -> None:
        self.texts = TextShares(MOST_TEXTS)
        self.not_taken = self.version = 0
        self.held: tuple[str, ...] = ()
        self.unnamed: set[QueryKey] = set()

    def add(self, text: str, child: str = "", gateways: int = 1) -> str:
        if text in self.texts:
            return ""
        if not self.texts.add(text, child, gateways):
            self.not_taken += 1
            return ""
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
