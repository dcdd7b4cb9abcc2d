"""The definitions that the root knows, and whether what a child sends agrees with them.

The first text of a query's revision counts, as in ops.queries. Rows and serving ranges of a child whose plans say
otherwise fit no window of the query: such frames are settled as bad and declared, for the root would fall over them in
every batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.frame import Plan
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group, Query
from edge_agent.config.checking import foreign_json
from edge_agent.config.definitions.definitions import query_of
from edge_agent.errors import ConfigError

OF_STATES: Final = ("slice", "window", "session")  # kinds of plans whose rows have the states of their queries
MOST_KNOWN: Final = 10_000  # answers that are remembered


class DefinitionsSaid:
    """Texts in the order in which they came."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts: dict[str, None] = {}
        self._text: dict[QueryKey, str] = {}
        self._queries: dict[QueryKey, Query | None] = {}
        self._answers: dict[tuple[Group, Plan], str] = {}
        for text in texts:
            self.add(text)

    def add(self, text: str) -> bool:
        """Keep a text. Returns whether it is new."""
        if text in self.texts:
            return False
        self.texts[text] = None
        said = foreign_json.table(text)
        revision = said.get("revision", 0)
        if isinstance(said.get("id"), str) and isinstance(revision, int):
            self._text.setdefault(QueryKey(said["id"], revision), text)
            self._answers.clear()
        return True

    def fits(self, key: QueryKey, group: Group) -> bool:
        """Whether a query's revision may be of that group; one whose definition cannot be read may."""
        query = self._query(key)
        return query is None or query.group_at(group.node) == group

    def contradicts(self, group: Group, plan: Plan) -> str:
        """What of a plan is not as its queries are defined; '': nothing."""
        answer = self._answers.get((group, plan))
        if answer is None:
            if len(self._answers) >= MOST_KNOWN:
                self._answers.clear()
            answer = self._answers[group, plan] = self._contradicts(group, plan)
        return answer

    def _contradicts(self, group: Group, plan: Plan) -> str:
        for key in plan.keys:
            query = self._query(key)
            if query is None:
                continue
            if query.group_at(group.node) != group:
                return f"query {key.query} revision {key.revision} is defined with another window, filter or key"
            if plan.kind in OF_STATES and not set(basis_of(query.aggregates, plan.scale)) <= set(plan.basis):
                return f"query {key.query} revision {key.revision} is defined with other functions"
        return ""

    def _query(self, key: QueryKey) -> Query | None:
        if key not in self._queries:
            text = self._text.get(key)
            if text is None:
                return None
            try:
                self._queries[key] = query_of(text)
            except ConfigError:  # of a newer version, or of a package that is not here
                self._queries[key] = None
        return self._queries[key]
