"""`headwater explain`: where the parts of a query are computed, and why. The plan is the one that every node makes."""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from edge_agent.algebra.query.placement_reasons import EVERY, placement_reasons
from edge_agent.algebra.query.planner import Placement, plan
from edge_agent.algebra.query.query import Group, Query, Sensor
from edge_agent.algebra.sliding.prefix_blocks import PARTS, kept_us
from edge_agent.cli.support.message_rendering import title
from edge_agent.cli.support.size_estimates import Rate, lines_of, rate_of, weighed
from edge_agent.config.checking.documents import read
from edge_agent.config.checking.durations import UNITS_US, format_duration
from edge_agent.config.definitions.definitions import Definition, parse_definition, parse_recording_query
from edge_agent.config.definitions.window_table import window_text
from edge_agent.config.node_file.settings import MAX_FILE_BYTES, parse
from edge_agent.errors import ConfigError

HELP = (
    "Show where the parts of queries are computed, and why: what travels upward, which state columns, where the "
    "windows are formed. Queries over one source, filter, key and lateness share their slices."
)
EXAMPLES = """\
  headwater explain headwater.toml                 # the queries of a configuration
  headwater explain boiler-10m.json                # one definition, as published under hw/1/all/cfg/query/boiler-10m
  headwater explain one.toml two.toml --json       # several together, for programs
  headwater explain recording.json                 # the queries of a recording
"""
EXPLAINED = 0
NOTHING_EXPLAINED = 3
MOST_RATE = 1e9  # as many as anybody has

Explained = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of explain."""
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="a configuration, definitions of queries or sensors, or recordings",
    )
    parser.add_argument(
        "--rate", type=rate, metavar="N", help="readings a second of each key, where the sensor does not say it (1)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a group")


def rate(text: str) -> float:
    """Of readings, of an option. Raises: ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MOST_RATE:
        raise argparse.ArgumentTypeError(f"{text!r}: wanted a number above 0, of readings a second")
    return value


def main(args: argparse.Namespace) -> int:
    """Read everything, plan it together, print. What this version does not carry is said in a line each."""
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
        print(json.dumps(one, ensure_ascii=False) if args.json else text_of(one))
    return EXPLAINED if explained else NOTHING_EXPLAINED


def definitions_in(file: Path) -> Iterable[Query | Sensor]:
    """Whatever a file defines. Raises: ConfigError."""
    try:
        payload = file.read_bytes()
    except OSError as err:
        raise ConfigError(f"{file}: {(err.strerror or str(err)).lower()}") from err
    value = tree_of(payload, file)
    if "queries" in value:
        return recorded(value)
    if "window" in value:
        return [the_value(parse_definition("query", file.stem, {"id": file.stem, **value}, str(file)))]
    if "driver" in value:
        return [the_value(parse_definition("sensor", file.stem, {"id": file.stem, **value}, str(file)))]
    return [the_value(one) for one in parse(payload, str(file)).definitions if not one.removed]


def tree_of(payload: bytes, file: Path) -> Mapping[str, object]:
    """TOML or JSON as plain values; recordings may be longer than a definition. Raises: ConfigError."""
    if payload[:1] == b"{" and b'"streams"' in payload:
        try:
            value = json.loads(payload)
        except ValueError as err:
            raise ConfigError(f"{file}: no JSON: {err}") from err
        return value if isinstance(value, dict) else {}
    try:
        return read(payload, MAX_FILE_BYTES).value
    except ConfigError as err:
        raise ConfigError("\n".join(f"{file}: {line}" for line in str(err).splitlines())) from err


def recorded(recording: Mapping[str, object]) -> Iterable[Query]:
    """The queries of a recording that this version carries; a line on standard error for each other."""
    unit_us = UNITS_US.get(str(recording.get("unit", "ms")), 1000)
    queries = recording["queries"]
    for table in queries if isinstance(queries, list) else ():
        try:
            yield parse_recording_query(table, unit_us)
        except ConfigError as err:
            complain(str(err))


def the_value(definition: Definition) -> Query | Sensor:
    """What a definition defines. Raises: ConfigError for a removal."""
    if definition.value is None:
        raise ConfigError(f'{definition.kind} "{definition.id}" is a removal: there is nothing to explain')
    return definition.value


TRAVELS: Final = {
    "slice": "slices",
    "window": "whole windows",
    "session": "partial sessions",
    "raw": "readings as they are",
    "marker": "markers",
}
EACH: Final = "each gateway"  # in the place of a node
KEPT: Final = "windows longer than four slides, of states of one size: a window costs a few rows, not all its slices"


def explain(queries: Iterable[Query], sensors: Mapping[str, Sensor], per_s: float | None = None) -> list[Explained]:
    """The plans of each group. A query that cannot be served is named on standard error, and the others go on.

    per_s: readings a second of a key; None: as the sensors say.
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
            "queries": {query.id: wish_of(query) for query in members},
            "decisions": {query.id: decided(query, scales.get(group.source)) for query in members},
            "plans": [
                plan_of(
                    placement,
                    members,
                    Rate(per_s, "as asked") if per_s else rate_of(sensors.get(group.source), group.by),
                )
                for placement in plan(tuple(members), scales.get(group.source))
            ],
            "kept": kept_of(members, scales.get(group.source)),
        }
        for group, members in sorted(groups.items())
    ]


def values_of(source: str, scales: Mapping[str, int | None]) -> str:
    """How the readings of a source travel inside."""
    if source not in scales:
        return "floats, unless the sensor says a resolution"
    scale = scales[source]
    return "floats" if scale is None else f"integers in units of 1e{scale}: sums are exact"


def wish_of(query: Query) -> str:
    """A query's own words: `sliding 10m every 1m: avg, max`."""
    return f"{window_text(query.window)}: {', '.join(aggregate.name for aggregate in query.aggregates)}"


def decided(query: Query, scale: int | None) -> list[Explained]:
    """Where its window and each of its functions are computed, and why."""
    return [
        {
            "about": each.about,
            "computed": f"at {each.where}" if each.where == EVERY else f"at the {each.where}",
            "why": each.why,
        }
        for each in placement_reasons(query, scale)
    ]


def plan_of(placement: Placement, queries: Iterable[Query], per_s: Rate) -> Explained:
    """One plan: what travels, what it weighs, where it ends, why."""
    made = placement.plan
    return {
        "plan": made.hash.hex(),
        "travels": TRAVELS[made.kind],
        "feeds": placement.feeds,
        "columns": list(made.basis),
        "unit": format_duration(made.unit_us),
        "weighs": weighed(placement, queries, per_s),
        "formed_at": placement.where,
        "reason": placement.reason,
    }


def kept_of(queries: Iterable[Query], scale: int | None) -> Explained | None:
    """Which slices the Spark root keeps decoded, None where that does not pay."""
    members = tuple(queries)
    longest_us = kept_us(members, scale)
    if not longest_us or all(placement.kind != "slice" for placement in plan(members, scale)):
        return None
    return {"longest": format_duration(longest_us), "block": format_duration(longest_us // PARTS), "why": KEPT}


def text_of(one: Explained) -> str:
    """The same for a person."""
    lines = [f"{one['group']}  (lateness {one['lateness']}; {one['values']})"]
    lines += [f"  {name}: {wish}" for name, wish in one["queries"].items()]
    whys: dict[tuple[str, str, str], None] = {}  # in the order of the queries, each once
    for told in one["decisions"].values():
        whys.update(dict.fromkeys((each["about"], each["computed"], each["why"]) for each in told))
    lines += [f"  computed   {about} {where}: {why}" for about, where, why in whys]
    for made in one["plans"]:
        feeds = "" if made["feeds"] in {"all", "markers"} else f" of {made['feeds'].replace('_', ' ')} readings"
        edges = f", edges on multiples of {made['unit']}" if made["unit"] != "1us" else ""  # where there are any
        lines += [
            f"  travels    {made['travels']}{feeds}: {', '.join(made['columns'])}",
            f"             (plan {made['plan']}{edges})",
            *(f"  {'' if n else 'weighs':10} {line}" for n, line in enumerate(lines_of(made["weighs"]))),
            f"  formed at  the {made['formed_at']}",
            f"  because    {made['reason']}",
        ]
    if (kept := one["kept"]) is not None:
        lines += [f"  kept       by the root: slices of {kept['longest']}, with sums of {kept['block']}: {kept['why']}"]
    return "\n".join(lines)


def complain(text: str) -> None:
    """One line on standard error for each line."""
    for line in text.splitlines():
        print(f"headwater: {line}", file=sys.stderr)
