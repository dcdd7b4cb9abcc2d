"""`headwater status`: lists the nodes of a broker, and whether their configuration is in force."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from edge_agent.cli.support.broker_listener import UnfinishedError, add_broker, link_of, listen
from edge_agent.cli.support.message_rendering import json_of, listed, published
from edge_agent.cli.support.option_values import seconds
from edge_agent.config import topics
from edge_agent.config.checking.json_lines import json_line
from edge_agent.config.checking.quantities import Instant
from edge_agent.errors import advice

HELP = (
    "List the nodes of a broker: online or not, how far behind and why, frames in their spools, version, and "
    "definitions and messages that they refuse, with the reason. Notes are not mistakes. Exit code 1 if a node is "
    "offline, refuses a definition, has a function or a sensor that fails or a child with an alarm, has frames that "
    "wait for a former parent, or publishes what is not the status of a node; 3 if the broker does not answer, or "
    "--seconds end before all was read."
)
EXAMPLES = """\
  headwater status
  headwater status --broker mqtts://broker.example --user operator --password-file secret
  headwater status --json
"""
QUIET_S: Final = 0.5  # retained messages arrive together: after this pause there are no more
UNFINISHED: Final = 3  # exit code
NAMED: Final = 3  # a note names at most so many definitions, and counts the others
SHOWN_RETIRED: Final = 5  # retired nodes in the line of their parent; --json has the first twenty
RED, GREY = 31, 90  # codes of terminals, ECMA-48 8.3.117 (SGR)
COLUMNS: Final = (
    *("node", "role", "parent", "state", "lag", "spool", "heard", "version", "epoch", "configuration", "refused"),
)
UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))  # seconds of each unit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_broker(parser)
    parser.add_argument("--seconds", type=seconds, default=5.0, metavar="S", help="wait at most S seconds (5)")
    parser.add_argument("--json", action="store_true", help="one JSON object per node, with its whole status and state")


class NodeReport(NamedTuple):
    """What is printed of one node. red, grey: lines in that colour. wrong: whether it counts for the exit code."""

    row: tuple[str, ...]
    red: list[str]
    lines: list[str]
    wrong: bool
    grey: Sequence[str] = ()


def main(args: argparse.Namespace) -> int:
    """Read the retained messages and print them.

    Returns 1 if a node is offline or has a mistake, UNFINISHED if --seconds cut the list off, else 0.
    """
    nodes, unfinished = retained(args)
    now_us = time.time_ns() // 1000
    runs = running(nodes.values())
    reports = {name: report(name, node, now_us, nodes, runs) for name, node in nodes.items()}
    if args.json:
        for name, node in nodes.items():
            print(json_line({"node": name, **node}))
    elif nodes:
        print(summary(nodes, now_us))
        print(table([each.row for each in reports.values()]))
        for name, each in reports.items():
            for code, lines in ((RED, each.red), (0, each.lines), (GREY, each.grey)):
                for text in lines:
                    print(f"{name}: " + (f"\033[{code}m{text}\033[0m" if code and sys.stdout.isatty() else text))
    else:
        who = f"user {args.user}" if args.user else "this user"
        print(
            f"no node has published its status on {args.broker}, or {who} may not read it: a broker with access rules "
            "does not say so"
        )
    if unfinished:
        print(f"headwater: {unfinished}", file=sys.stderr)
        return UNFINISHED
    return int(any(each.wrong for each in reports.values()))


def report(
    name: str,
    node: Mapping[str, Any],
    now_us: int,
    nodes: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    runs: Collection[str] = (),
) -> NodeReport:
    """What is printed of a node. Whatever it has published, the other nodes are shown. nodes: all; runs: `running`."""
    try:
        red, found, elsewhere = [*alarms(node), *in_doubt(name, node, now_us)], refusals(node), waiting(node, runs)
        refused = [line for of, line in found if of not in elsewhere]
        mistakes = [*refused, *failures(node)]
        rest = [*losses(node), *left_out(node), *refused_messages(node), *notes(node, elsewhere)]
        wrong = bool(not online(node) or red or mistakes)
        shown = row(name, node, now_us, len(refused))
        return NodeReport(shown, red, [*standing(node), *mistakes, *rest], wrong, retired(node, nodes, now_us))
    except Exception as err:  # a node speaks for itself only
        why = f"UNREADABLE: its status, state or books are not those of a node ({type(err).__name__})"
        return NodeReport((name, "", "", "UNREADABLE", *[""] * (len(COLUMNS) - 4)), [why], [], wrong=True)


def retained(args: argparse.Namespace) -> tuple[dict[str, dict[str, Any]], str]:
    """(node -> its retained messages 'status', 'state' and 'books', sorted by node; why some are missing, or '')."""
    nodes: dict[str, dict[str, Any]] = {}
    unfinished = ""
    filters = [topics.status(), topics.state(), topics.books()]
    try:
        for topic, payload, _, _ in listen(link_of(args), filters, args.seconds, QUIET_S):
            parsed = topics.parse(topic)
            if parsed is not None and payload:
                content = json_of(payload)
                found = content if isinstance(content, dict) else {"text": content}
                nodes.setdefault(parsed.node, {})[parsed.what] = found
    except UnfinishedError as err:
        unfinished = str(err)
    return dict(sorted(nodes.items())), unfinished


def online(node: Mapping[str, Any]) -> bool:
    """Whether a node's status is online. A node without a status is not."""
    return node.get("status", {}).get("online") is True


def clock_known(node: Mapping[str, Any]) -> bool:
    """Whether a node knows the time. Until then its readings wait (docs/protocol.md 4.3)."""
    clock = node.get("status", {}).get("clock")
    return not (isinstance(clock, dict) and clock.get("synced") is False)


def refusals(node: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(`kind/id`, line) of each mistake in a definition that is not in force on the node."""
    refused = [(name, item.get("errors")) for name, item in items(node) if item.get("ok") is False]
    errors = ((name, each) for name, some in refused for each in (some if isinstance(some, list) and some else [{}]))
    return [(name, f"{name}: {complaint(each if isinstance(each, dict) else {})}") for name, each in errors]


def running(nodes: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """`kind/id` of the definitions that are in force on any of the nodes."""
    return frozenset(of for node in nodes for of, item in items(node) if item.get("ok") is True)


def waiting(node: Mapping[str, Any], elsewhere: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """`query/id` -> its problem, of queries that wait for a sensor here and run on another node. elsewhere: `running`.

    A query that is published for all nodes runs on those that have its sensor, so this is no mistake. If it runs on
    none of them, the name of the sensor is probably wrong.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for name, item in items(node):
        errors = item.get("errors") if item.get("waiting") is True and name in elsewhere else None
        if isinstance(errors, list) and errors and all(map(_of_a_sensor, errors)):
            found[name] = {"why": f"waits for sensor {errors[0].get('got')!r}, which this node does not have"}
    return found


def _of_a_sensor(error: object) -> bool:
    return isinstance(error, dict) and error.get("at") in ("source", "window.markers")


def notes(node: Mapping[str, Any], elsewhere: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> list[str]:
    """One line per warning; definitions with the same warning share a line. elsewhere: what `waiting` returned."""
    found: dict[str, dict[str, None]] = {}
    for name, item in items(node):
        for warning in (*(item.get("warnings") or ()), *([elsewhere[name]] if name in elsewhere else ())):
            if isinstance(warning, dict):
                found.setdefault(complaint({**warning, "at": "", "got": None}), {})[name] = None
    return [f"note: {listed(list(names), NAMED)}: {text}" for text, names in found.items()]


def items(node: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(`kind/id`, entry) of each definition in the node's state."""
    found = node.get("state", {}).get("items")
    entries = found.items() if isinstance(found, dict) else ()
    return [(name, entry) for name, entry in entries if isinstance(entry, dict)]


def failures(node: Mapping[str, Any]) -> list[str]:
    """One line per installed function that failed on the node."""
    failing = node.get("status", {}).get("failing")
    found: list[str] = []
    for one in failing if isinstance(failing, list) else ():
        if isinstance(one, dict):
            step, function, package, why = (one.get(key, "") for key in ("step", "function", "package", "why"))
            queries = ", ".join(map(str, one.get("queries") or ()))
            found.append(f"{step} of {function} ({package}): {why}" + (f"; queries {queries}" if queries else ""))
    return found


def losses(node: Mapping[str, Any]) -> list[str]:
    """Lines about readings that are in no window: a parent lost its journal with them (docs/protocol.md 3.7), or their
    time was never known (4.3).
    """
    status, out = node.get("status", {}), list[str]()
    times = status.get("parent_journals_lost")
    if isinstance(times, int) and times > 0:
        often = "once" if times == 1 else f"{times} times"
        out.append(
            f"LOSS: {status.get('parent', 'its parent')} lost its spool {often}: ops.gaps shows what may be missing"
        )
    undated = node.get("books", {}).get("undated")
    if isinstance(undated, int) and undated > 0:
        out.append(
            f"LOSS: {undated} readings are in no window, because their time was never known: most are in "
            "quarantine.jsonl beside its spool, and their number is in ops.gaps"
        )
    return out


def left_out(node: Mapping[str, Any]) -> list[str]:
    """Lines about records that the root left out and steps of upkeep that failed: count, reason and newest example."""
    words = {
        "left_out": "LEFT OUT by the root, in ops.quarantine",
        "upkeep_failed": "UPKEEP of the root's tables failed",
    }
    lines = []
    for part, text in words.items():
        found = node.get("status", {}).get(part)
        for why, of in found.items() if isinstance(found, dict) else ():
            count, example = (of.get("count"), of.get("example")) if isinstance(of, dict) else (None, None)
            lines.append(f"{text}: {count} times: {why}; such as {example}")
    return lines


def refused_messages(node: Mapping[str, Any]) -> list[str]:
    """Lines about messages and values that the node refused since it started, the most frequent reasons first."""
    found = node.get("status", {}).get("refused")
    reasons = list(found.items()) if isinstance(found, dict) else []
    lines = [
        f"refused {of.get('count')} times: {why}; such as {of.get('example')}"
        for why, of in reasons[:NAMED]
        if isinstance(of, dict)
    ]
    more = len(reasons) - NAMED
    return [*lines, f"refused for {more} further reasons: see --json"] if more > 0 else lines


def alarms(node: Mapping[str, Any]) -> list[str]:
    """Alarms: children with two devices, a lost or copied spool (docs/protocol.md 1.4); sensors whose driver fails."""
    found = node.get("status", {}).get("alarms")
    return [f"ALARM: {child}: {text}" for child, text in found.items()] if isinstance(found, dict) else []


def in_doubt(name: str, node: Mapping[str, Any], now_us: int) -> list[str]:
    """Lines about frames that wait for a parent which the node has left (docs/protocol.md 1.5): count, since when, and
    what to do.
    """
    found, lines = node.get("status", {}).get("in_doubt"), []
    for parent, of in found.items() if isinstance(found, dict) else ():
        frames, since_us = (published(of.get(key)) if isinstance(of, dict) else None for key in ("frames", "since_us"))
        since = f" since {Instant().write(since_us)} ({duration(now_us - since_us)})" if since_us else ""
        waits = "frame waits" if frames == 1 else "frames wait"
        lines.append(
            f"IN DOUBT: {frames} {waits} for {parent}{since}. They count once it is back, at the broker that "
            f"[uplink.brokers] names for it. If it will never be back: headwater accept-loss {name} {parent}"
        )
    return lines


def retired(node: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], now_us: int) -> list[str]:
    """A line about the nodes that the configuration of this one retired (docs/protocol.md 1.5): when each was last
    heard, and how many frames wait in its spool, if its last books say so. nodes: all that published something here.
    """
    status = node.get("status", {})
    found = status.get("retired")
    names = [str(name) for name in found] if isinstance(found, list) else []
    if not names:
        return []
    texts = [name + _last_known(nodes.get(name, {}), now_us) for name in names[:SHOWN_RETIRED]]
    more = len(names) - len(texts) + max(published(status.get("retired_more")) or 0, 0)
    return [f"retired here, not expected any more: {', '.join(texts)}" + (f" and {more} more" if more else "")]


def _last_known(node: Mapping[str, Any], now_us: int) -> str:
    """When a node was last heard and the frames in its spool: ` (heard 4 d ago, 12 frames wait in its spool)`."""
    books = node.get("books", {})
    at_us, frames = (published(books.get("at_us")), frames_of(node)) if isinstance(books, dict) else (None, None)
    parts = [] if at_us is None else [f"heard {duration(now_us - at_us)} ago"]
    if frames:
        parts.append("1 frame waits in its spool" if frames == 1 else f"{frames} frames wait in its spool")
    return f" ({', '.join(parts)})" if parts else ""


def complaint(error: Mapping[str, Any]) -> str:
    """A problem as text: `window.slide: '11m': longer than length 10m; try 10m`."""
    text, got, why = f"{error['at']}: " if error.get("at") else "", error.get("got"), str(error.get("why", "refused"))
    text += f"{got!r}: " if got is not None and json.dumps(got, ensure_ascii=False) not in why else ""
    text += why
    return text + (f"; {advice(str(error['hint']))}" if error.get("hint") else "")


def summary(nodes: Mapping[str, Mapping[str, Any]], now_us: int) -> str:
    """One line: numbers of nodes, the one furthest behind, frames in spools, the one silent for the longest time."""
    parts = []
    for role in ("gateway", "region", "root"):
        found = [node for node in nodes.values() if node.get("status", {}).get("role") == role]
        away = sum(not online(node) for node in found)
        if found:
            plural = "" if len(found) == 1 else "s"
            parts.append(f"{len(found)} {role}{plural}" + (f" ({away} offline)" if away else ""))
    lags = {name: lag for name, node in nodes.items() if (lag := lag_us(node, now_us)) is not None}
    if lags:
        name = max(lags, key=lambda each: lags[each])
        parts.append(f"most behind: {name} by {duration(lags[name])}")
    waiting = [frames_of(node) or 0 for node in nodes.values()]
    parts.append(f"{sum(waiting)} frames in spools")
    heard = {
        name: us for name, node in nodes.items() if (us := published(node.get("books", {}).get("at_us"))) is not None
    }
    if heard:
        name = min(heard, key=lambda each: heard[each])
        parts.append(f"longest not heard: {name}, {duration(now_us - heard[name])} ago")
    return "; ".join(parts)


def frames_of(node: Mapping[str, Any]) -> int | None:
    """The number of frames in its spool. None: not known."""
    spool = node.get("books", {}).get("spool")
    return published(spool.get("frames")) if isinstance(spool, dict) else None


def lag_us(node: Mapping[str, Any], now_us: int) -> int | None:
    """How far the node's lowest frontier was behind when it last published; if it is offline, how far it is behind now.
    None: not known.
    """
    books = node.get("books", {})
    frontier_us, at_us = published(books.get("frontier_us")), published(books.get("at_us"))
    if frontier_us is None or at_us is None:
        return None
    return max((at_us if online(node) else now_us) - frontier_us, 0)


def standing(node: Mapping[str, Any]) -> list[str]:
    """The node's own reason for being behind, if it has one."""
    why = node.get("books", {}).get("why")
    return [why] if isinstance(why, str) and why else []


def duration(us: int) -> str:
    """A duration in its largest unit with at least 2: 12 s, 3 min, 2 h, 4 d."""
    seconds = max(us, 0) // 1_000_000
    return next((f"{seconds // size} {unit}" for size, unit in UNITS if seconds >= 2 * size), f"{seconds} s")


def row(name: str, node: Mapping[str, Any], now_us: int, refused: int = 0) -> tuple[str, ...]:
    """One line of the table. refused: number of mistakes in definitions that are not in force."""
    status, state, books = node.get("status", {}), node.get("state", {}), node.get("books", {})
    lag, at_us = lag_us(node, now_us), published(books.get("at_us"))
    frames = frames_of(node)
    return (
        name,
        str(status.get("role", "")),
        str(status.get("parent", "")),
        "OFFLINE" if not online(node) else "online" if clock_known(node) else "online, CLOCK UNKNOWN",
        "" if lag is None else duration(lag),
        "" if frames is None else str(frames),
        "" if at_us is None else f"{duration(now_us - at_us)} ago",
        str(status.get("version", "")),
        str(status.get("epoch", "")),
        str(state.get("version", "")),
        str(refused or ""),
    )


def table(rows: list[tuple[str, ...]]) -> str:
    """The rows as a table of text with headings."""
    lines = [COLUMNS, *rows]
    widths = [max(len(one[at]) for one in lines) for at in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(f"{text:{width}}" for text, width in zip(one, widths, strict=True)).rstrip() for one in lines
    )
