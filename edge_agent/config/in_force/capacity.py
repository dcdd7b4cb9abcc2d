"""Counts the accepted definitions of a node, so that most limits are checked without a pass over all definitions.

All accepted definitions count, so the numbers are never below those in force. If they are within the limits, the exact
and slow count of config/in_force/crosscheck.py is not needed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from edge_agent.algebra.frame import MAX_COLUMNS
from edge_agent.algebra.query.query import Group, Query, Sensor
from edge_agent.config.definitions.definitions import Definition
from edge_agent.config.in_force.crosscheck import MOST_ID_BYTES, columns_of, edges_per_second, group_of, id_bytes
from edge_agent.config.node_file.node_tables import LimitsTable
from edge_agent.errors import Problem


class Capacity:
    """Counts of accepted definitions, and the limits that are known to be reached."""

    def __init__(self, limits: LimitsTable) -> None:
        self._limits = limits
        self._slots: Counter[str] = Counter()  # kind -> accepted definitions
        self._ids: Counter[Group] = Counter()  # group -> bytes of the names of its queries
        self._columns: dict[Group, Counter[str]] = {}  # group -> column that its queries need -> of how many queries
        self._edges = 0.0  # window edges a second
        self._full: dict[str, Problem] = {}  # kind -> why no more definitions of it fit
        self._no_group: Problem | None = None  # why no more groups fit

    def count(self, definition: Definition, sign: int) -> None:
        """Count a definition that is accepted (sign 1) or no longer accepted (sign -1)."""
        self._slots[definition.kind] += sign
        if isinstance(query := definition.value, Query):
            group = group_of(query)
            self._edges += sign * edges_per_second(query.window)
            self._ids[group] += sign * id_bytes(query)
            columns = self._columns.setdefault(group, Counter())
            columns.update(dict.fromkeys(columns_of(query), sign))
            self._columns[group] = +columns  # without those of no query
            if not self._ids[group]:
                del self._ids[group], self._columns[group]

    def plenty(self, value: Sensor | Query) -> bool:
        """Whether a definition that is already counted is certainly within the limits."""
        limits = self._limits
        few = self._slots["sensor"] <= limits.sensors and self._slots["query"] <= limits.queries
        if isinstance(value, Query):
            group = group_of(value)
            few = few and self._ids[group] <= MOST_ID_BYTES and len(self._columns[group]) <= MAX_COLUMNS
        few = few and len(self._ids) <= limits.groups
        return few and self._edges <= limits.edges_per_second

    def refusal(self, definition: Definition) -> Problem | None:
        """Why a new definition, not yet counted, certainly exceeds a limit; None: it may fit."""
        if (problem := self._full.get(definition.kind)) is not None:
            return replace(problem, got=definition.id)
        new_group = isinstance(definition.value, Query) and group_of(definition.value) not in self._ids
        return self._no_group if new_group else None

    def refused(self, definition: Definition, problem: Problem) -> None:
        """Note that a new definition exceeded a limit. It must not be counted any more."""
        if problem.at == "":  # there are too many definitions of its kind
            self._full[definition.kind] = problem
        elif problem.at == "where":
            self._no_group = problem

    def changed(self) -> None:
        """Note that an accepted definition has changed, so that others may fit now."""
        self._full.clear()
        self._no_group = None
