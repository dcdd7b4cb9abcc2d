"""Checks that involve several definitions: limits of the node, missing sources, labels that no sensor has."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, cast

from edge_agent.algebra.aggregates import FUNCTIONS, basis_of
from edge_agent.algebra.frame import MAX_COLUMNS, MAX_PLAN_BYTES
from edge_agent.algebra.partials.row_splitting import is_cut
from edge_agent.algebra.query import where, where_parser
from edge_agent.algebra.query.query import Group, Query, Sensor
from edge_agent.algebra.windows import TYPES, Session, Spec, Window
from edge_agent.config.checking.checker import nearest
from edge_agent.config.checking.durations import format_duration
from edge_agent.config.checking.value_types import Number
from edge_agent.config.definitions.definitions import Definition
from edge_agent.config.definitions.drivers import DRIVERS
from edge_agent.config.node_file.node_tables import LimitsTable, keys_of
from edge_agent.errors import Problem

MOST_ID_BYTES: Final = MAX_PLAN_BYTES // 2  # half of a plan, because it also names older revisions with open windows


def not_usable(definition: Definition, at: str) -> Problem:
    """The warning for a sensor that needs a local broker, or a query of one, on a node without a local broker."""
    driver = definition.value.driver if isinstance(definition.value, Sensor) else ""
    why = f"this node has no [local] broker, so it ignores {driver} sensors"
    return Problem(at, definition.id, why, 'to read them here, add [local] with broker = "mqtt://..." and restart')


def driver_fails(why: str) -> Problem:
    """The warning for a sensor whose driver fails while it runs. why: its newest failure."""
    return Problem("driver", None, f"fails: {why}", "it is tried again every 10 s; correct the device, or the driver")


def shows_no_rows(query: str, own: int, published: int) -> Problem:
    """The warning for a query of the node's own file if its id is published too. own, published: the revisions."""
    why = f"revision {own} of this node's own file shows no rows: revision {published} of the id is published"
    return Problem("id", query, why, "use another id in the file")


def too_much(kind: str, item: str, values: Sequence[Sensor | Query | None], limits: LimitsTable) -> Problem | None:
    """Why the node cannot accept the definition with id `item`; None if it can. values: all that would be in force.

    item: "" for the limits of the node alone.
    """
    problem = too_many(kind, item, values, limits)
    if problem is not None or kind == "sensor":
        return problem
    queries = [v for v in values if isinstance(v, Query)]
    groups: Counter[Group] = Counter()
    for query in queries:
        groups[group_of(query)] += id_bytes(query)
    if len(groups) > limits.groups:
        why = f"{len(groups)} different sources, filters, labels or latenesses would be on this node"
        hint = f"let queries share sources, filters, labels and latenesses, or {_raised('groups', len(groups))}"
        return Problem("where", None, f"{why}, at most {limits.groups}", hint)
    largest = max(groups.values(), default=0)
    if largest > MOST_ID_BYTES:
        why = f"the ids of the queries over one source and filter would take {largest} bytes, at most {MOST_ID_BYTES}"
        return Problem("id", item, why, "use shorter ids or fewer queries")
    cut = {(group_of(query), query.window) for query in queries}  # equal windows of a group count once
    rate = sum(edges_per_second(window) for _, window in cut)
    if rate > limits.edges_per_second:
        why = f"{rate:.0f} window edges a second in all, at most {limits.edges_per_second}"
        return Problem("window", None, why, f"use longer slides, or {_raised('edges_per_second', math.ceil(rate))}")
    return _too_wide(item, queries) if item else None


def _too_wide(item: str, queries: Sequence[Query]) -> Problem | None:
    """The problem if the query with id `item` and the others of its group need too many columns; None if not."""
    group = next((group_of(query) for query in queries if query.id == item), None)
    aggregates = [each for query in queries if group_of(query) == group for each in query.aggregates]
    columns = max(len(basis_of(aggregates, scale)) for scale in (None, 0))
    if columns <= MAX_COLUMNS:
        return None
    why = f"the functions of the queries over one source and filter would need {columns} state columns"
    hint = "use fewer functions or fewer `edges` of a histogram, or give the query another filter or lateness"
    return Problem("aggregates", item, f"{why}, at most {MAX_COLUMNS}", hint)


def too_many(kind: str, item: str, values: Sequence[Sensor | Query | None], limits: LimitsTable) -> Problem | None:
    """The problem if there are more sensors or queries among `values` than the limit; None if not."""
    wanted, name = (Sensor, "sensors") if kind == "sensor" else (Query, "queries")
    count, most = sum(isinstance(v, wanted) for v in values), int(getattr(limits, name))
    if count <= most:
        return None
    return Problem("", item, f"{count} {name} would be on this node, at most {most}", _raised(name, count))


def _raised(name: str, wanted: int) -> str:
    """The hint to raise a limit to `wanted`, or to use more gateways if it cannot be raised so far."""
    most = next(int(key.kind.high) for key in keys_of(LimitsTable) if key.name == name and isinstance(key.kind, Number))
    if wanted > most:
        return f"distribute them to more gateways: [limits] {name} can be at most {most}"
    return f"set [limits] {name} = {wanted}; it can be at most {most}"


def over_horizon(value: Sensor | Query | None, horizon_us: int) -> Problem | None:
    """The problem of a session with a gap over the root's horizon: its parts would be final before they can join.

    Only `headwater check` calls this: it reads the configurations of the root and of gateways together.
    """
    window = value.window if isinstance(value, Query) else None
    if not isinstance(window, Session) or window.gap_us <= horizon_us:
        return None
    gap, horizon = format_duration(window.gap_us), format_duration(horizon_us)
    why = f"longer than the correction horizon of the root, {horizon}"
    return Problem("window.gap", gap, why, f'use at most {horizon}, or set [root] horizon = "{gap}" at the root')


def group_of(query: Query) -> Group:
    """The group of a query at a gateway. With scope `local` each gateway has its own group."""
    return query.group_at("here")


def columns_of(query: Query) -> set[str]:
    """The state columns that the functions of a query need, for integers and for floats."""
    return {column for scale in (None, 0) for column in basis_of(query.aggregates, scale)}


def id_bytes(query: Query) -> int:
    """The bytes that the id and revision of a query take in the plan of its group."""
    return len(query.id) + 8


def edges_per_second(window: Spec) -> float:
    """Edges of a window per second of event time. Starts and ends at the same time count once.

    0 for windows that are not cut by time alone: between markers, or formed at the root.
    """
    if isinstance(window, Session):  # at most one edge per gap and key
        return 1e6 / window.gap_us
    if window.type not in TYPES:
        return 0.0
    return sum(1e6 / lattice.step_us for lattice in cast("Window", window).spacing)


def unmet(value: Sensor | Query | None, sensors: Mapping[str, Sensor]) -> Problem | None:
    """The problem of a query if one of its sensors is missing, else None."""
    missing = [name for name in value.sources if name not in sensors] if isinstance(value, Query) else []
    if not missing:
        return None
    why = "no such sensor on this node; the query waits for it"
    at = "source" if isinstance(value, Query) and missing[0] == value.source else "window.markers"
    return Problem(at, missing[0], why, nearest(missing[0], sensors) or "publish the sensor")


def warnings(value: Sensor | Query | None, sensors: Mapping[str, Sensor]) -> tuple[Problem, ...]:
    """Warnings about a query: labels that its sensor does not have, for which filters never match; endless sessions."""
    if not isinstance(value, Query) or value.source not in sensors:
        return ()
    sensor = sensors[value.source]
    return (*_labels_missing(value, sensor), *_endless(value, sensor.scale))


def _endless(query: Query, scale: int | None) -> tuple[Problem, ...]:
    """The warning for sessions without a longest duration whose state grows with each reading."""
    if not isinstance(query.window, Session) or query.window.max_us:
        return ()
    fns = {each.fn for each in query.aggregates if is_cut(basis_of((each,), scale))}
    if not fns:
        return ()
    why = f"a session that does not end keeps all its values for {', '.join(sorted(fns))}, also in each commit"
    return (Problem("window.max", None, why, 'set max, like "1d"'),)


def _labels_missing(value: Query, sensor: Sensor) -> tuple[Problem, ...]:
    labels = {name for name, _ in sensor.labels} | set(DRIVERS[sensor.driver].labels)
    used = [("by", name) for name in value.by]
    if value.where:
        used += [("where", name) for name in sorted(where.names(where_parser.parse(value.where)) - {where.VALUE})]
    for n, aggregate in enumerate(value.aggregates):
        texts = {name for name, param in FUNCTIONS[aggregate.fn].params if param.text}
        used += [(f"aggregates[{n}].{name}", str(label)) for name, label in aggregate.params if name in texts]
    hint = f"labels are {', '.join(sorted(labels))}" if labels else "it has no labels"
    return tuple(
        Problem(at, name, f'sensor "{sensor.id}" has no label "{name}"', nearest(name, labels) or hint)
        for at, name in used
        if name not in labels
    )
