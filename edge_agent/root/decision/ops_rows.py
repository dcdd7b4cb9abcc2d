"""Rows of ops.queries, ops.sensors, ops.gaps and ops.nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from edge_agent.algebra.frame import NEVER_US, Gap
from edge_agent.algebra.query.query import Query
from edge_agent.config.definitions.definitions import query_of, sensor_of
from edge_agent.errors import ConfigError
from edge_agent.root.completeness import Decision
from edge_agent.root.decision.work import TableRow

NODES_EVERY_US: Final = 30_000_000  # ops.nodes is for people; each table in a batch costs half a second


def queries(texts: Iterable[str], number: int) -> Iterator[tuple[TableRow, Query | None]]:
    """A row of ops.queries a definition, and what it says; None where this version cannot read it."""
    for text in texts:
        row: TableRow = {"query": "", "revision": -1, "source": "", "by": [], "aggregates": []}
        query: Query | None = None
        try:
            query = query_of(text)
        except ConfigError:  # of a newer version
            pass
        else:
            row = {"query": query.id, "revision": query.revision, "source": query.source, "by": list(query.by)}
            row["aggregates"] = [aggregate.name for aggregate in query.aggregates]
        yield {**row, "definition": text, "batch": number}, query


def sensors(texts: Iterable[str], number: int) -> Iterator[TableRow]:
    """A row of ops.sensors a definition that this version can read."""
    for text in texts:
        try:
            sensor = sensor_of(text)
        except ConfigError:
            continue
        yield {
            "sensor": sensor.id,
            "revision": sensor.revision,
            "unit": sensor.unit,
            "labels": dict(sensor.labels),
            "definition": text,
            "batch": number,
        }


def gaps(found: Iterable[tuple[str, Gap]], number: int) -> Iterator[TableRow]:
    """A row of ops.gaps a loss that (node) declared."""
    for node, gap in found:
        yield {
            "node": node,
            "sources": sorted({group.source for group in gap.groups}),
            "start": gap.start_us,
            "end": gap.end_us,
            "readings": gap.readings,
            "nodes": list(gap.nodes),
            "reason": gap.reason,
            "detail": gap.detail,
            "batch": number,
        }


@dataclass(slots=True)
class NodeRows:
    """What ops.nodes says now. like: who is in which group and behind; us: when it was written."""

    us: int = NEVER_US
    like: tuple[object, ...] = ()

    def rows(self, decision: Decision, number: int) -> tuple[TableRow, ...] | None:
        """The table anew, None while it may stay as it is: nobody came, went, fell behind or caught up."""
        like = tuple(
            (group, leaf, frontier_us < view.frontier_us, view.why.get(leaf, ""))
            for group, view in decision.groups.items()
            for leaf, frontier_us in sorted(view.leaves.items())
        )
        if like == self.like and decision.now_us - self.us < NODES_EVERY_US:
            return None
        self.like, self.us = like, decision.now_us
        return tuple(
            {
                "node": leaf,
                "source": group.source,
                "where": group.where,
                "by": list(group.by),
                "frontier": _known(decision.groups[group].leaves[leaf]),
                "behind": behind,
                "behind_by": _lag(decision.groups[group].leaves[leaf], decision.groups[group].frontier_us),
                "why": why,
                "group_frontier": _known(decision.groups[group].frontier_us),
                "decided_us": decision.now_us,
                "batch": number,
            }
            for group, leaf, behind, why in like
        )


def _lag(own_us: int, group_us: int) -> int | None:
    """How far a gateway is behind its group; null before the first promise of either."""
    return None if min(own_us, group_us) <= NEVER_US else max(group_us - own_us, 0)


def _known(frontier_us: int) -> int | None:
    """A frontier as a column; null before the first promise of a gateway."""
    return None if frontier_us <= NEVER_US else frontier_us
