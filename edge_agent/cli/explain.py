"""`headwater explain`: where the parts of a query are computed, and why. Every node computes the same plan."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from edge_agent.algebra.query.placement_reasons import EVERY, placement_reasons
from edge_agent.algebra.query.planner import Placement, plan
from edge_agent.algebra.query.query import Group, Query, Sensor
from edge_agent.algebra.sliding.prefix_blocks import PARTS, kept_us
from edge_agent.cli.main import DONE, complain
from edge_agent.cli.support.message_rendering import title
from edge_agent.cli.support.size_estimates import Rate, lines_of, rate_of, reason_of, sizes_of
from edge_agent.config.checking.documents import read
from edge_agent.config.checking.durations import format_duration
from edge_agent.config.checking.json_lines import json_line
from edge_agent.config.definitions.definitions import Definition, parse_definition_file
from edge_agent.config.definitions.window_table import window_text
from edge_agent.config.node_file.settings import MAX_FILE_BYTES, bytes_of, parse
from edge_agent.errors import ConfigError
from edge_agent.recording.parser import recorded_queries, table_of

HELP = (
    "Show where the parts of queries are computed, and why: what is sent upward, in which state columns, and where "
    "windows are formed. Queries with the same source, filter, key and lateness share their slices."
)
EXAMPLES = """\
  headwater explain headwater.toml                 # the queries of a configuration
  headwater explain boiler-10m.json                # one definition, as published under hw/1/all/cfg/query/boiler-10m
  headwater explain one.toml two.toml --json       # several together, for programs
  headwater explain recording.json                 # the queries of a recording
"""
MOST_RATE: Final = 1e9  # readings per second; no sensor has more

Explained = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="a configuration, definitions of queries or sensors, or recordings",
    )
    parser.add_argument(
        "--rate", type=rate, metavar="N", help="readings per second of each key, if the sensor has no rate (1)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per group")


def rate(text: str) -> float:
    """Parse --rate. Raises: ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MOST_RATE:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of readings per second between 0 and 1e9")
    return value


def main(args: argparse.Namespace) -> int:
    """Read the files, plan their queries together and print the plans. Returns 3 if there is none."""
    queries: list[Query] = []
    sensors: dict[str, Sensor] = {}
    for file in args.files:
        for found in definitions_in(file):
            if isinstance(found, Sensor):
                sensors[found.id] = found
            else:
                queries.append(found)
    explained = explain(queries, sensors, args.rate)
    for one in explained:
        print(json_line(one) if args.json else text_of(one))
    if not explained:
        return complain(f"nothing to explain: no query to plan in {', '.join(map(str, args.files))}")
    return DONE


def definitions_in(file: Path) -> Iterable[Query | Sensor]:
    """The sensors and queries of a file. Raises: ConfigError."""
    payload = bytes_of(file)
    value = tree_of(payload, file)
    if "queries" in value and "node" not in value:
        return recorded(value, file)
    if "window" in value:
        return [the_value(parse_definition_file("query", file, payload))]
    if "driver" in value:
        return [the_value(parse_definition_file("sensor", file, payload))]
    return [the_value(one) for one in parse(payload, str(file)).definitions if not one.removed]


def tree_of(payload: bytes, file: Path) -> Mapping[str, object]:
    """Read TOML or JSON as plain values. Only recordings may be longer than MAX_FILE_BYTES. Raises: ConfigError."""
    if payload[:1] == b"{" and b'"streams"' in payload:
        value = table_of(payload, str(file))
        return value if isinstance(value, dict) else {}
    try:
        return read(payload, MAX_FILE_BYTES).value
    except ConfigError as err:
        raise ConfigError("\n".join(f"{file}: {line}" for line in str(err).splitlines())) from err


def recorded(recording: Mapping[str, object], file: Path) -> Iterable[Query]:
    """The supported queries of a recording, as a replay reads them. Prints a line on standard error for each other.

    Raises: ConfigError if it has no list of queries.
    """
    try:
        asked, refused = recorded_queries(recording)
    except ConfigError as err:
        raise ConfigError(f"{file}: {err}") from err
    for line in refused:
        complain(f"{file}: {line}")
    return [replace(one.query, id=str(one.recorded_id)) for one in asked]


def the_value(definition: Definition) -> Query | Sensor:
    """The sensor or query of a definition. Raises: ConfigError for a removal."""
    if definition.value is None:
        raise ConfigError(f'{definition.kind} "{definition.id}" is a removal; explain needs its definition')
    return definition.value


TRAVELS: Final = {
    "slice": "slices",
    "window": "whole windows",
    "session": "partial sessions",
    "raw": "readings as they are",
    "marker": "markers",
}
EACH: Final = "each gateway"  # shown as the node of local windows
KEPT: Final = (
    "windows are longer than four slides and their states have one size: a window costs a few rows, not all its slices"
)


def explain(queries: Iterable[Query], sensors: Mapping[str, Sensor], per_s: float | None = None) -> list[Explained]:
    """The plans of each group of queries. Prints a line on standard error for each query that cannot be served.

    sensors: by id. per_s: readings per second of a key; None: the rates of the sensors.
    """
    scales = {name: sensor.scale for name, sensor in sensors.items()}
    groups: defaultdict[Group, list[Query]] = defaultdict(list)
    for query in queries:
        try:
            plan((query,), scales.get(query.source))
        except ConfigError as err:
            complain(str(err))
        else:
            groups[query.group_at(EACH)].append(query)
    return [
        {
            "group": title(group),
            "lateness": format_duration(group.lateness_us),
            "values": values_of(group.source, scales),
            "queries": {query.id: summary_of(query) for query in members},
            "decisions": {query.id: decided(query, scales.get(group.source)) for query in members},
            "plans": [
                plan_of(
                    placement,
                    members,
                    Rate(per_s, "from --rate") if per_s else rate_of(sensors.get(group.source), group.by),
                )
                for placement in plan(tuple(members), scales.get(group.source))
            ],
            "kept": kept_of(members, scales.get(group.source)),
        }
        for group, members in sorted(groups.items())
    ]


def values_of(source: str, scales: Mapping[str, int | None]) -> str:
    """The type of a source's readings on the wire."""
    if source not in scales:
        return "floats, unless the sensor has a resolution"
    scale = scales[source]
    return "floats" if scale is None else f"integers in units of 1e{scale}: sums are exact"


def summary_of(query: Query) -> str:
    """The window and functions of a query: `sliding 10m every 1m: avg, max`."""
    return f"{window_text(query.window)}: {', '.join(aggregate.name for aggregate in query.aggregates)}"


def decided(query: Query, scale: int | None) -> list[Explained]:
    """Where a query's window and functions are computed, and why."""
    return [
        {
            "about": each.about,
            "computed": f"at {each.where}" if each.where == EVERY else f"at the {each.where}",
            "why": each.why,
        }
        for each in placement_reasons(query, scale)
    ]


def plan_of(placement: Placement, queries: Iterable[Query], per_s: Rate) -> Explained:
    """One plan as plain values: what travels, its size, where windows are formed, and why."""
    one = placement.plan
    return {
        "plan": one.hash.hex(),
        "travels": TRAVELS[one.kind],
        "feeds": placement.feeds,
        "columns": list(one.basis),
        "unit": format_duration(one.unit_us),
        "bytes": sizes_of(placement, queries, per_s),
        "formed_at": placement.where,
        "reason": reason_of(placement, per_s),
    }


def kept_of(queries: Iterable[Query], scale: int | None) -> Explained | None:
    """The slices that the Spark root keeps decoded for these queries; None if it keeps none."""
    members = tuple(queries)
    longest_us = kept_us(members, scale)
    if not longest_us or all(placement.kind != "slice" for placement in plan(members, scale)):
        return None
    return {"longest": format_duration(longest_us), "block": format_duration(longest_us // PARTS), "why": KEPT}


def text_of(one: Explained) -> str:
    lines = [f"{one['group']}  (lateness {one['lateness']}; {one['values']})"]
    lines += [f"  {name}: {summary}" for name, summary in one["queries"].items()]
    whys: dict[tuple[str, str, str], None] = {}  # (about, where, why): each once, in the order of the queries
    for reasons in one["decisions"].values():
        whys.update(dict.fromkeys((each["about"], each["computed"], each["why"]) for each in reasons))
    lines += [f"  computed   {about} {where}: {why}" for about, where, why in whys]
    for chosen in one["plans"]:
        feeds = "" if chosen["feeds"] in {"all", "markers"} else f" of {chosen['feeds'].replace('_', ' ')} readings"
        edges = f", edges on multiples of {chosen['unit']}" if chosen["unit"] != "1us" else ""  # 1us: no edges
        lines += [
            f"  travels    {chosen['travels']}{feeds}: {', '.join(chosen['columns'])}",
            f"             (plan {chosen['plan']}{edges})",
            *(f"  {'' if n else 'bytes':10} {line}" for n, line in enumerate(lines_of(chosen["bytes"]))),
            f"  formed at  the {chosen['formed_at']}",
            f"  because    {chosen['reason']}",
        ]
    if (kept := one["kept"]) is not None:
        lines += [f"  kept       by the root: slices of {kept['longest']}, with sums of {kept['block']}: {kept['why']}"]
    return "\n".join(lines)
