"""Rows of ops.queries, ops.sensors, ops.gaps and ops.nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from edge_agent.algebra.frame import NEVER_US, Gap
from edge_agent.algebra.query.query import Group, Query
from edge_agent.config.definitions.definitions import query_of, sensor_of
from edge_agent.errors import ConfigError
from edge_agent.root.completeness import Decision, GroupView
from edge_agent.root.decision.work import TableRow

NODES_EVERY_US: Final = 30_000_000  # ops.nodes is read by people; each table in a batch costs half a second
NODES_ROW_US: Final = 300  # least time between two writes per row: a million rows are written every 5 minutes
NODE_COLUMNS: Final = ("node", "source", "where", "by", "frontier", "behind", "behind_by", "why", "group_frontier")


def queries(texts: Iterable[str], number: int) -> Iterator[tuple[TableRow, Query | None]]:
    """Yields one row of ops.queries per definition, and its query; None if this version cannot read the definition."""
    for text in texts:
        row: TableRow = {"query": "", "revision": -1, "source": "", "by": [], "aggregates": []}
        query: Query | None = None
        try:
            query = query_of(text)
        except ConfigError:  # written for a newer version
            pass
        else:
            row = {"query": query.id, "revision": query.revision, "source": query.source, "by": list(query.by)}
            row["aggregates"] = [aggregate.name for aggregate in query.aggregates]
        yield {**row, "definition": text, "batch": number}, query


def sensors(texts: Iterable[str], number: int) -> Iterator[TableRow]:
    """Yields one row of ops.sensors per definition that this version can read."""
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
    """Yields one row of ops.gaps per gap record."""
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
    """The present content of ops.nodes. It is not stored: a root writes the whole table again after a start.

    us: time of the last write. like: for each group its leaves, those behind, and why. far: frontiers of the groups and
    leaves. many: number of rows.
    """

    us: int = NEVER_US
    like: tuple[object, ...] = ()
    far: tuple[object, ...] = ()
    many: int = 0

    def columns(self, decision: Decision, number: int) -> dict[str, list[object]] | None:
        """The new columns of the table, by name; None if there is no need to write it now.

        A change of who is in a group, or behind, is written at once, unless the table is large (NODES_ROW_US); a change
        of frontiers alone every NODES_EVERY_US.
        """
        past_us = decision.now_us - self.us
        if 0 <= past_us < self.many * NODES_ROW_US:
            return None
        views = {group: view for group, view in decision.groups.items() if view.leaves}
        like = tuple(_standing(group, view) for group, view in views.items())
        if like == self.like and 0 <= past_us < NODES_EVERY_US:
            return None
        far = tuple((view.frontier_us, view.leaves.in_order()) for view in views.values())
        if like == self.like and far == self.far:
            return None
        self.like, self.far, self.us = like, far, decision.now_us
        out: dict[str, list[object]] = {name: [] for name in NODE_COLUMNS}
        for (group, view), (frontier_us, times_us) in zip(views.items(), far, strict=True):
            for name, column in zip(NODE_COLUMNS, _rows_of(group, view, frontier_us, times_us), strict=True):
                out[name].extend(column)
        self.many = len(out["node"])
        out["decided_us"], out["batch"] = [decision.now_us] * self.many, [number] * self.many
        return out


def _standing(group: Group, view: GroupView) -> object:
    """The leaves of a group, which of them are behind, and why."""
    whys = {leaf: why for leaf, why in view.why.items() if leaf in view.leaves}
    return group, view.leaves.names, view.leaves.below(view.frontier_us).keys(), whys


def _rows_of(group: Group, view: GroupView, frontier_us: int, times_us: Sequence[int]) -> tuple[Sequence[object], ...]:
    """The rows of a group, one sequence per name in NODE_COLUMNS. times_us: frontiers of its leaves, in order."""
    many, lags = len(times_us), {us: _lag(us, frontier_us) for us in set(times_us)}
    whys = [view.why.get(leaf, "") for leaf in view.leaves.names] if view.why else [""] * many
    return (
        view.leaves.names,
        [group.source] * many,
        [group.where] * many,
        [list(group.by)] * many,
        [_known(us) for us in times_us],
        [us < frontier_us for us in times_us],
        [lags[us] for us in times_us],
        whys,
        [_known(frontier_us)] * many,
    )


def _lag(own_us: int, group_us: int) -> int | None:
    """How far a gateway is behind its group [us]; None before the first promise of either."""
    return None if min(own_us, group_us) <= NEVER_US else max(group_us - own_us, 0)


def _known(frontier_us: int) -> int | None:
    """A frontier as a table value: None before the first promise of a gateway."""
    return None if frontier_us <= NEVER_US else frontier_us
