"""Reads and writes the definition of a query: source, filter, keys, window, aggregates, lateness.

Words of the language that this version does not support are reported as not supported yet, not as mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.aggregates.families.weighted import labels_of
from edge_agent.algebra.frame import MAX_COLUMNS
from edge_agent.algebra.query.group_cut import OrderedCut
from edge_agent.algebra.query.query import LATE_POLICIES, ON_MISSING, SCOPES, Aggregate, Query
from edge_agent.algebra.windows import Punctuation
from edge_agent.algebra.windows.ordered import RAW
from edge_agent.config.checking.checker import BAD, REQUIRED, Key, Report, complete, dotted, read_table, type_of
from edge_agent.config.checking.composite_types import ListOf, write_table
from edge_agent.config.checking.documents import Path
from edge_agent.config.checking.durations import format_duration
from edge_agent.config.checking.quantities import DAY_US, Duration, Instant
from edge_agent.config.checking.value_types import Choice, Text
from edge_agent.config.definitions.aggregate_entries import PLACED, PLACES, AggregateEntry, unplaced
from edge_agent.config.definitions.conditions import Condition
from edge_agent.config.definitions.sensors import LABEL
from edge_agent.config.definitions.window_table import WindowTable
from edge_agent.config.topics import ITEM_ID

MOST_AGGREGATES: Final = 64
DEFAULT_LATENESS_US: Final = 2_000_000  # one missed report of a 1 s sensor, plus clock skew

_ITEM: Final = Text("an id", ITEM_ID.pattern, "a-z, 0-9 and -, at most 64")

_AGGREGATES: Final = ListOf(AggregateEntry(), 1, MOST_AGGREGATES, unique=False)
KEYS: Final = (
    Key("source", _ITEM, REQUIRED, "id of the sensor whose readings are aggregated"),
    Key("where", Condition(), "", "filter by value and labels, like value > 0 and site = 'a'"),
    Key("by", ListOf(LABEL, most=16), (), "labels that make the key: a result for each combination of their values"),
    Key("window", WindowTable(), REQUIRED, "window type and its parameters"),
    Key("aggregates", _AGGREGATES, REQUIRED, "functions; each is a column of the result"),
    Key(
        *(
            "lateness",
            Duration(0, 7 * DAY_US),
            DEFAULT_LATENESS_US,
            "how far the frontier stays behind the newest reading",
        ),
        why="one missed report of a 1 s sensor, plus clock skew",
    ),
    Key(
        "scope",
        Choice(SCOPES, what="scope", meant=tuple((word, PLACED) for word in PLACES)),
        "global",
        "global: one result over all nodes; local: a result for each node",
    ),
    Key(
        "late",
        Choice(LATE_POLICIES, what="policy"),
        "revise",
        "what happens to a reading behind the frontier: revise its windows, drop it, or count it only in windows that "
        "are still open",
        "with revise nothing is lost",
    ),
    Key(
        "on_missing",
        Choice(ON_MISSING, what="way"),
        "hold",
        "for windows that wait for every gateway (counts, states, punctuation with interpretation order or central): "
        "hold them until all have reported, or skip missing gateways after the grace time",
    ),
    Key(
        "effective_from",
        Instant(),
        None,
        "first window start of this revision; left out: as soon as all nodes serve it",
    ),
)


def read_query(item: str, revision: int, table: Mapping[str, object], at: Path, report: Report) -> Any:
    """Read a query from a table without the keys that all definitions share. Returns BAD if there are problems."""
    long = unplaced(_long_form(table, at, report), at, report)
    values = read_table(KEYS, long, at, report)
    if long.get("aggregates") is not table.get("aggregates"):
        _places_as_written(at, report)
    if values["aggregates"] is not BAD:
        _names_differ(values["aggregates"], (*at, "aggregates"), report)
    if not complete(values):
        return BAD
    window = values["window"]
    if values["scope"] == "local" and (window := getattr(window, "alone", window)) is None:
        why = "windows of a sensor's state are merged over gateways, but scope local is not"
        return report.wrong((*at, "scope"), "local", why, 'interpretation = "local": from change to change')
    inside = {key.inside: values[key.name] for key in KEYS}
    by = values["by"] if getattr(values["window"], "keyed", True) else ()
    query = Query(id=item, revision=revision, **{**inside, "window": window, "by": by})
    sound = _travels(query, (*at, "aggregates"), report) and _fits_window(query, at, report)
    return query if sound else BAD


def _fits_window(query: Query, at: Path, report: Report) -> bool:
    """Whether the other keys of the query are valid with its window."""
    if isinstance(query.window, Punctuation) and query.window.waits:
        return True
    if not isinstance(query.group.cut, OrderedCut):
        if query.on_missing != "hold":
            why = f"a {query.window.type} window never waits longer than the grace time"
            report.wrong((*at, "on_missing"), query.on_missing, why, "leave it out")
        return query.on_missing == "hold"
    missing = sorted(query.central.labels - set(query.by))
    if missing:
        why = "its conditions can use the key and value of a reading, not this label"
        report.wrong((*at, "window"), missing[0], why, f'add "{missing[0]}" to by')
    return not missing


def _travels(query: Query, at: Path, report: Report) -> bool:
    """Whether the columns and labels that the functions need fit into frames. Notes problems."""
    needed = basis_of(query.aggregates, None)
    if len(needed) > MAX_COLUMNS:
        why = f"the functions need {len(needed)} state columns, at most {MAX_COLUMNS} fit into a frame"
        report.wrong(at, len(needed), why, "use fewer edges, or a second query with another filter or lateness")
        return False
    lacking = set(labels_of(needed)) - set(query.by) if RAW in query.group.cut.plan_kinds else set()
    for n, aggregate in enumerate(query.aggregates):
        missing = sorted(lacking & set(labels_of(basis_of([aggregate], None))))
        if missing:
            why = f"a {query.window.type} window can use the key and value of a reading, not this label"
            report.wrong((*at, n), missing[0], why, f'add "{missing[0]}" to by, or use a time window')
    return not lacking


def _long_form(table: Mapping[str, object], at: Path, report: Report) -> Mapping[str, object]:
    """Replaces the short form, keys `aggregate` and `param`, by `aggregates`."""
    if "aggregate" not in table or "aggregates" in table:
        return table
    rest = {name: item for name, item in table.items() if name not in {"aggregate", "param"}}
    given = table.get("param")
    param = {} if given is None else given
    if not isinstance(param, Mapping):
        report.wrong((*at, "param"), param, f"wanted a table, got {type_of(param)}")
        param = {}
    fn = table["aggregate"]
    if isinstance(fn, list):
        report.wrong((*at, "aggregate"), fn, "wanted one function, got a list", "aggregates")
        fn = "count"
    if "fn" in param:
        report.unknown((*at, "param"), "fn", (), f"the function is {fn}, as aggregate says")
    return {**rest, "aggregates": [{**param, "fn": fn}]}


def _places_as_written(at: Path, report: Report) -> None:
    """Moves problems of the aggregate to the keys of the short form, as it was written."""
    long = dotted((*report.base, *at, "aggregates", 0))
    for problems in (report.problems, report.later):
        for n, problem in enumerate(problems):
            head, _, inner = problem.at.partition(long)
            if head or problem.at == inner or inner[:1] not in {"", "."}:
                continue
            place: Path = ("param", inner[1:]) if inner not in {"", ".fn"} else ("aggregate",)
            path = (*report.base, *at, *place)
            problems[n] = replace(problem, at=dotted(path), line=report.document.line(path))


def _names_differ(aggregates: tuple[Aggregate, ...], at: Path, report: Report) -> None:
    seen: set[str] = set()
    for n, aggregate in enumerate(aggregates):
        if aggregate.name.lower() in seen:
            report.wrong((*at, n), aggregate.name, "two columns have this name", 'rename one: as = "..."')
        seen.add(aggregate.name.lower())


def write_query(query: Query) -> dict[str, object]:
    """The table of a query, without values that equal their default; lateness is always written."""
    made = write_table(KEYS, {key.inside: getattr(query, key.inside) for key in KEYS})
    return {**made, "lateness": format_duration(query.lateness_us)}
