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
NODES_ROW_US: Final = 300  # and each of its rows a few microseconds and bytes: a million rows go every 5 minutes


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
    """What ops.nodes says now. like: who is in which group and behind; far: their frontiers; us: when it was written.

    No part of a decision and not kept: a root that starts writes the table anew.
    """

    us: int = NEVER_US
    like: tuple[object, ...] = ()
    far: tuple[int, ...] = ()

    def rows(self, decision: Decision, number: int) -> list[TableRow] | None:
        """The table anew, None while it may stay as it is: nobody came, went, fell behind or caught up."""
        past_us = decision.now_us - self.us
        if 0 <= past_us < len(self.like) * NODES_ROW_US:
            return None
        like = tuple(
            (group, leaf, frontier_us < view.frontier_us, view.why.get(leaf, ""))
            for group, view in decision.groups.items()
            for leaf, frontier_us in sorted(view.leaves.items())
        )
        if like == self.like and 0 <= past_us < NODES_EVERY_US:
            return None
        views = decision.groups
        far = tuple(view.frontier_us for view in views.values())
        far += tuple(views[group].leaves[leaf] for group, leaf, _, _ in like)
        if like == self.like and far == self.far:
            return None
        self.like, self.far, self.us = like, far, decision.now_us
        return [
            {
                "node": leaf,
                "source": group.source,
                "where": group.where,
                "by": list(group.by),
                "frontier": _known(views[group].leaves[leaf]),
                "behind": behind,
                "behind_by": _lag(views[group].leaves[leaf], views[group].frontier_us),
                "why": why,
                "group_frontier": _known(views[group].frontier_us),
                "decided_us": decision.now_us,
                "batch": number,
            }
            for group, leaf, behind, why in like
        ]


def _lag(own_us: int, group_us: int) -> int | None:
    """How far a gateway is behind its group; null before the first promise of either."""
    return None if min(own_us, group_us) <= NEVER_US else max(group_us - own_us, 0)


def _known(frontier_us: int) -> int | None:
    """A frontier as a column; null before the first promise of a gateway."""
    return None if frontier_us <= NEVER_US else frontier_us
