"""Parses a recording: its streams, tree of nodes and queries. Format: docs/recordings.md."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.frame import MAX_HORIZON_US
from edge_agent.algebra.punctuation.markers import MOST_WINDOWS
from edge_agent.algebra.query.group_cut import OrderedCut, PunctuationCut
from edge_agent.algebra.query.key import Labels
from edge_agent.algebra.query.planner import plan
from edge_agent.algebra.query.query import LATE_POLICIES, Group, Query
from edge_agent.config.checking.checker import line_of, nearest, short
from edge_agent.config.checking.durations import UNITS_US
from edge_agent.config.checking.durations import unit_us as unit_us_of
from edge_agent.config.checking.foreign_json import reason
from edge_agent.config.definitions.definitions import canonical_query, parse_recording_query, query_of
from edge_agent.config.in_force.crosscheck import group_of, too_much
from edge_agent.config.node_file.node_tables import LimitsTable
from edge_agent.errors import ConfigError, NotSupported, Problem, advice
from edge_agent.recording.diagnostics import before_first, early, odd_items, rounded
from edge_agent.recording.streams import FAR_US, KEY, ChildStream, columns, is_unicode, item_times, read_streams

MODES: Final = ("end_of_stream", "markers", "implicit")
MS: Final = UNITS_US["ms"]

MOST_DIGITS: Final = 290  # of an integer that is read exactly: times a unit, it is in the range of a double
PARSED_DIGITS: Final = 4_000  # of an integer that Python parses

_QUERY_ID: Final = re.compile("r[0-9]{5,}-q[0-9]{3,}")
_LIMITS: Final = LimitsTable(edges_per_second=10**15)  # as a gateway, but windows may be microseconds long


@dataclass(frozen=True, slots=True)
class RecordedQuery:
    """A query of a recording.

    recorded_id: the id in the file, any JSON value. several: whether it has several aggregates; then its rows have
    `values` instead of `value`. after_items: number of items of a stream after which it is added.
    """

    recorded_id: object
    query: Query
    several: bool
    after_items: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """A parsed recording.

    source: id of its sensor, and prefix of its other ids. streams: in the global order of nodes. labels: by series.
    tree: merger -> inputs. root: inputs of the root. scale: 0 if all values are integers, None for floats. mode: one of
    MODES. late_by_us: how far the frontier stays behind the newest reading, in mode `markers` behind the watermark.
    asked: its valid queries. refused: a line for each invalid query. unanswered: a line for each stream or query with
    readings that are in no result, or rounded.
    """

    name: str
    source: str
    unit_us: int
    streams: tuple[ChildStream, ...]
    labels: tuple[Labels, ...]
    scale: int | None
    tree: Mapping[str, tuple[str, ...]]
    root: tuple[str, ...]
    mode: str
    late_by_us: int
    asked: tuple[RecordedQuery, ...]
    refused: tuple[str, ...]
    unanswered: tuple[str, ...] = ()


def names_of(recording: Recording) -> dict[str, str]:
    """Node in the recording -> its id: children in the global order, then mergers."""
    names = {stream.child: f"{recording.source}-n{at:05d}" for at, stream in enumerate(recording.streams)}
    return names | {merger: f"{recording.source}-m{at:05d}" for at, merger in enumerate(recording.tree)}


def parse(text: str | bytes, name: str, number: int = 0, file: str = "") -> Recording:
    """Read a recording. number: part of the ids of its queries and nodes; must differ between recordings.
    file: start of the line of an error, if it is not the name.

    Raises: ConfigError, one line, if the text is not a recording. Invalid queries are in `refused`.
    """
    table = table_of(text, file or name)
    try:
        return _recording(table, name, f"r{number:05d}")
    except ConfigError as err:
        raise ConfigError(f"{file or name}: {err}") from err


def table_of(text: str | bytes, file: str) -> Any:
    """The values in the text of a recording. file: start of the line of an error. Raises: ConfigError, one line."""
    try:
        return json.loads(text, parse_int=_integer, object_pairs_hook=_once)
    except UnicodeDecodeError as err:
        raise ConfigError(f"{file}: not UTF-8 text: byte {err.start}; save it as UTF-8") from err
    except RecursionError as err:
        raise ConfigError(f"{file}: nested too deep; flatten it") from err
    except ConfigError as err:
        raise ConfigError(f"{file}: {err}") from err
    except ValueError as err:
        raise ConfigError(f"{file}: not JSON: {reason(err)}") from err


def _integer(digits: str) -> float:
    """An integer of a recording; infinite beyond the range of a double, like the same number with an exponent.

    Python raises OverflowError where a longer integer is checked for being finite. Raises: ValueError for thousands of
    digits, which Python refuses.
    """
    return float(digits) if MOST_DIGITS < len(digits) <= PARSED_DIGITS else int(digits)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises: ConfigError for a name that is given twice: one of the two would be lost."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"{short(json.dumps(twice))} is given twice in one object; rename or remove one of them")
    return table


def _recording(table: Any, name: str, source: str) -> Recording:
    if not isinstance(table, dict):
        raise ConfigError(f"wanted an object, got {type(table).__name__}")
    table = _without_nulls(table)
    unit_us = _unit_us(table)
    raw = table.get("streams")
    if not isinstance(raw, dict):
        raise ConfigError("streams: wanted an object of child -> items")
    raw = {child: [] if items is None else items for child, items in raw.items()}
    asked, refused = _queries(table.get("queries"), source, unit_us)
    squared = any("sq" in basis_of(one.query.aggregates, 0) for one in asked)
    order = _order(table.get("child_order"), tuple(raw))
    streams, labels, scale = read_streams(raw, order, unit_us, squared=squared)
    tree, root = _tree(table.get("topology") or None, [stream.child for stream in streams])
    known = {stream.child for stream in streams}
    silent = [node for node in _below(tree, root) if node not in tree and node not in known]
    streams += [columns(child, [], unit_us, {}, scale) for child in silent]
    if not streams:
        raise ConfigError("streams: wanted at least one")
    watermarks = table.get("watermarks") or {}
    mode = (watermarks.get("mode") or "end_of_stream") if isinstance(watermarks, dict) else watermarks
    if mode not in MODES:
        raise ConfigError(f"watermarks.mode: wanted one of {', '.join(MODES)}, got {short(repr(mode))}")
    late_by_us = _late_by(table, watermarks if isinstance(watermarks, dict) else {}, mode, streams)
    late = table.get("late_policy") or "per_window"
    if late not in LATE_POLICIES:
        raise ConfigError(f"late_policy: wanted one of {', '.join(LATE_POLICIES)}, got {short(repr(late))}")
    waiting_us = max([late_by_us, *(_furthest_behind(stream, mode) for stream in streams)])
    windows = max(len(stream.markers) for stream in streams)
    keyed = any(label for (label,) in labels if label != (KEY, "null"))
    final = []
    for one in asked:
        waits = late == "revise" and _final_once_formed(one.query.group, waiting_us, windows)
        lateness_us = waiting_us if waits else late_by_us
        query = replace(one.query, source=source, lateness_us=lateness_us, late=late)
        unkeyed = replace(query, by=())
        if not keyed and _refusal((unkeyed,), scale) is None:  # otherwise a condition or a weight needs the key
            query = unkeyed
        final.append(replace(one, query=query))
    asked, refused = _together(*_bounded(final, refused), scale)
    return Recording(
        name,
        source,
        unit_us,
        tuple(streams),
        tuple(labels),
        scale,
        tree,
        root,
        mode,
        late_by_us,
        tuple(asked),
        tuple(f"{name}: {line}" for line in refused),
        tuple(
            f"{name}: {line}" for line in (*_strays(table, streams), *_unanswered(raw, streams, asked, unit_us, scale))
        ),
    )


def recorded_queries(table: Mapping[str, Any]) -> tuple[list[RecordedQuery], list[str]]:
    """Returns (the valid queries of a recording, a line for each other), whatever its streams contain.

    Raises: ConfigError, one line, if the recording has no list of queries, or its unit is none.
    """
    table = _without_nulls(table)
    return _queries(table.get("queries"), "recording", _unit_us(table))


def _unit_us(table: Mapping[str, Any]) -> int:
    unit_us = unit_us_of(str(table.get("unit", "ms")))
    if unit_us is None:
        raise ConfigError(f"unit: wanted one of {', '.join(UNITS_US)}, got {short(repr(table['unit']))}")
    return unit_us


def _unanswered(
    raw: Mapping[str, Any],
    streams: Sequence[ChildStream],
    asked: Sequence[RecordedQuery],
    unit_us: int,
    scale: int | None,
) -> Iterator[str]:
    """Yields a line for each stream or query with readings that are in no result, or not what they were."""
    yield from odd_items(raw, unit_us)
    yield from rounded(raw) if scale is None else ()
    yield from early(streams, [one.query for one in asked], unit_us)
    for one in asked:
        if why := before_first(streams, one.query, unit_us):
            yield f"query {one.recorded_id}: {why}"


def _without_nulls(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table without null values, which mean absent."""
    return {name: value for name, value in table.items() if value is not None}


def _order(order: Any, children: tuple[str, ...]) -> tuple[str, ...]:
    """The global order of children with streams: those in `child_order`, if present, then the others."""
    if order is None:
        return children
    if not isinstance(order, list) or not all(isinstance(child, str) for child in order):
        raise ConfigError("child_order: wanted a list of children")
    ranks = {child: rank for rank, child in reversed([*enumerate(order)])}
    return tuple(sorted(children, key=lambda child: ranks.get(child, len(order))))


def _strays(table: Mapping[str, Any], streams: Sequence[ChildStream]) -> Iterator[str]:
    """Yields a line for each name in `child_order` that is no child. A child in its place is behind all others."""
    children = dict.fromkeys(stream.child for stream in streams)
    for name in dict.fromkeys(table.get("child_order") or ()):
        if name not in children:
            hint = advice(nearest(name, children) or "name children as in streams")
            yield f"child_order: {short(repr(name))} is no child and is left out; {hint}"


# --- tree ---------------------------------------------------------------------------------------------------------


def _tree(topology: Any, children: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Returns (merger -> inputs, inputs of the root). The root is the node that is not an input of another."""
    if topology is None:
        topology = {"root": list(children)}
    if not isinstance(topology, dict) or not all(
        isinstance(inputs, list) and all(isinstance(node, str) for node in inputs) for inputs in topology.values()
    ):
        raise ConfigError("topology: wanted an object of node -> list of inputs")
    tree = {node: tuple(dict.fromkeys(inputs)) for node, inputs in topology.items()}
    fed = Counter(node for inputs in tree.values() for node in inputs)
    tree = {node: inputs for node, inputs in tree.items() if inputs or node not in fed}  # others are leaves
    tops = [node for node in tree if node not in fed]
    both = [child for child in children if child in tree]
    if wrong := _not_a_tree(tree, fed, tops, both):
        raise ConfigError(f"topology: {wrong}")
    inputs = tree.pop(tops[0])
    if apart := tree.keys() - set(_below(tree, inputs)):
        nodes = short(", ".join(sorted(apart)))
        why = f"{nodes} are inputs of each other, and no input of the root; make one of them an input of it"
        raise ConfigError(f"topology: {why}")
    return tree, (*inputs, *(child for child in children if child not in fed))


def _not_a_tree(tree: Mapping[str, Sequence[str]], fed: Counter[str], tops: Sequence[str], both: Sequence[str]) -> str:
    """Why the nodes are no tree, and what to do; '' if they may be one.

    fed: how often each node is an input. tops: nodes that are none. both: children with inputs.
    """
    twice = next((node for node, many in fed.items() if many > 1), None)
    if twice is not None:
        one, other = [node for node, inputs in tree.items() if twice in inputs][:2]
        return f"{short(twice)} is an input of {short(one)} and of {short(other)}; leave it in one of them"
    if both:
        return f"{short(both[0])} has a stream and inputs; give its readings to an input of its own"
    if len(tops) > 1:
        return f"wanted one root, got {short(', '.join(tops))}; add a node with these as inputs"
    return "" if tops else "wanted one root, got none: each node is an input of another; leave one out of the inputs"


def _below(tree: Mapping[str, Sequence[str]], inputs: Sequence[str]) -> list[str]:
    """The nodes `inputs` and all nodes below, each before the nodes below it."""
    out: list[str] = []
    waiting = list(inputs)[::-1]
    while waiting:
        out.append(waiting.pop())
        waiting += tree.get(out[-1], ())[::-1]
    return out


# --- time and queries ---------------------------------------------------------------------------------------------


def _late_by(table: Mapping[str, Any], watermarks: Mapping[str, Any], mode: str, streams: Sequence[ChildStream]) -> int:
    """How far frontiers stay behind, in us. In mode `end_of_stream` so far that no reading is late."""
    if mode == "end_of_stream":
        times = [item_times(stream) for stream in streams]
        found = [int((np.maximum.accumulate(us) - us).max()) for us in times if len(us)]
        return max([_ms(table, "max_disorder_ms"), *found])
    lag_us = _ms(watermarks, "implicit_lag_ms") if mode == "implicit" else 0
    return lag_us + _ms(watermarks, "allowed_lateness_ms")


def _final_once_formed(group: Group, waiting_us: int, windows: int) -> bool:
    """Whether rows are not revised: ordered windows, and a gateway's punctuation windows if a reading begins them.

    waiting_us: how late a reading may be. windows: most windows between markers of a child. A gateway keeps them for
    MAX_HORIZON_US, no longer, and the last MOST_WINDOWS.
    """
    cut = group.cut
    if isinstance(cut, PunctuationCut):
        return not cut.central and (cut.leading or waiting_us > MAX_HORIZON_US or windows > MOST_WINDOWS)
    return isinstance(cut, OrderedCut)


def _furthest_behind(stream: ChildStream, mode: str) -> int:
    """The longest time, in us, by which a reading is behind the event time that its child had reached."""
    if not len(stream.time_us):
        return 0
    if mode == "markers":
        none = np.array([-FAR_US])  # before the first watermark no reading is behind
        reached = np.maximum.accumulate(np.concatenate([none, stream.mark_us]))[
            np.searchsorted(stream.mark_item, stream.item)
        ]
    else:
        reached = np.maximum.accumulate(stream.time_us)
    return max(int((reached - stream.time_us).max()), 0)


def _ms(table: Mapping[str, Any], name: str) -> int:
    value = table.get(name) or 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < FAR_US / MS:
        raise ConfigError(f"{name}: wanted milliseconds, got {short(repr(value))}")
    return round(value * MS)


def _queries(raw: Any, source: str, unit_us: int) -> tuple[list[RecordedQuery], list[str]]:
    if not isinstance(raw, list):
        raise ConfigError("queries: wanted a list of objects")
    for at, each in enumerate(raw):
        if not isinstance(each, dict):
            raise ConfigError(f"queries[{at}]: wanted an object with id, window and aggregate, got {short(repr(each))}")
    asked: dict[str, RecordedQuery] = {}
    refused = []
    for at, table in enumerate(map(_without_nulls, raw)):
        item = table.get("id", f"q{at + 1}")
        after = table.get("added_after_items") or 0
        try:
            if not is_unicode(known := json.dumps(item, sort_keys=True, ensure_ascii=False)):
                item = f"q{at + 1}"
                raise ConfigError(f"queries[{at}]: the id is not valid Unicode")
            if isinstance(after, bool) or not isinstance(after, int) or after < 0:
                raise ConfigError(f"added_after_items: wanted a number of items, got {short(repr(after))}")
            if known in asked:
                raise ConfigError(
                    f"queries[{at}] has the same id as another query: rename it, so that their rows differ"
                )
            query = parse_recording_query({**table, "id": f"{source}-q{at:03d}"}, unit_us, by=[KEY])
            if not is_unicode(canonical_query(query)):  # frames contain this text
                raise ConfigError(f"queries[{at}]: a text is not valid Unicode: half of a pair of surrogates")
        except ConfigError as err:
            unsupported = isinstance(err, NotSupported)
            lines = [each.why if unsupported else line_of(replace(each, line=None)) for each in err.problems]
            refused.append(f"query {item}: {'; '.join(lines) or err}")
        else:
            asked[known] = RecordedQuery(item, query, "aggregates" in table and len(query.aggregates) > 1, after)
    return list(asked.values()), refused


def _together(
    asked: Sequence[RecordedQuery], refused: Sequence[str], scale: int | None
) -> tuple[list[RecordedQuery], list[str]]:
    """Returns (the queries that can be served beside those before them; `refused`, with a line for each other)."""
    groups: dict[Group, list[RecordedQuery]] = {}
    for one in asked:
        groups.setdefault(group_of(one.query), []).append(one)
    why: dict[str, str] = {}
    for members in groups.values():
        fit: list[RecordedQuery] = []
        waiting = [members]
        while waiting:  # halves, because a trial of each query beside all others takes the square of their number
            some = waiting.pop()
            err = _refusal(tuple(one.query for one in (*fit, *some)), scale)
            if err is None:
                fit += some
            elif len(some) > 1:
                waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
            else:
                why[some[0].query.id] = _as_recorded(str(err), asked)
    lines = [f"query {one.recorded_id}: {why[one.query.id]}" for one in asked if one.query.id in why]
    return [one for one in asked if one.query.id not in why], [*refused, *lines]


def _as_recorded(text: str, asked: Sequence[RecordedQuery]) -> str:
    """A message with the ids of the queries in the file instead of those in the tree."""
    ids = {one.query.id: str(one.recorded_id) for one in asked}
    return _QUERY_ID.sub(lambda found: ids.get(found[0], found[0]), text)


def _refusal(queries: tuple[Query, ...], scale: int | None) -> ConfigError | None:
    """Why the queries of one group cannot be served together, or not be read by the root; None if they can."""
    try:
        plan(queries, scale)
        for query in queries:
            _read_by_root(query)
    except ConfigError as err:
        return err
    return None


@functools.lru_cache(maxsize=4_096)  # more than the queries of a recording, which are tried in several sets
def _read_by_root(query: Query) -> None:
    """Raises: ConfigError if the root cannot read the query, as it is in frames."""
    query_of(canonical_query(query))


def _bounded(asked: list[RecordedQuery], refused: list[str]) -> tuple[list[RecordedQuery], list[str]]:
    """Returns (the first queries, as many as the limits of a node allow; `refused`, with a line about the others)."""
    fit, beyond = 0, len(asked) + 1  # bisection: `fit` queries are within the limits, `beyond` are not
    problem: Problem | None = None
    while beyond - fit > 1:
        some = len(asked) if beyond > len(asked) else (fit + beyond) // 2
        found = too_much("query", "", [each.query for each in asked[:some]], _LIMITS)
        fit, beyond, problem = (some, beyond, problem) if found is None else (fit, some, found)
    if problem is not None:
        why = f"{problem.why}; move them to another recording"
        refused.append(f"query {asked[fit].recorded_id} and all after it ({len(asked) - fit} queries): {why}")
    return asked[:fit], refused
