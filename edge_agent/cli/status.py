"""`headwater status`: which nodes a broker knows, and whether their configuration is in force."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any, Final

from edge_agent.cli.support.broker_listener import add_broker, link_of, listen
from edge_agent.cli.support.message_rendering import json_of
from edge_agent.config import topics

HELP = (
    "List the nodes that a broker knows: online or not, version, and what of their configuration is refused. "
    "Exit code 1 when a node is offline or refuses something."
)
EXAMPLES = """\
  headwater status
  headwater status --broker mqtts://broker.example --user operator --password-file secret
  headwater status --json
"""
QUIET_S: Final = 0.5  # retained messages come at once: this long without one, and all are here
COLUMNS: Final = ("node", "role", "parent", "state", "version", "epoch", "configuration", "refused")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of status."""
    add_broker(parser)
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="wait at most that long (5)")
    parser.add_argument("--json", action="store_true", help="one JSON object a node, with all that it says of itself")


def main(args: argparse.Namespace) -> int:
    """Hear what is retained, print it, judge it."""
    nodes = hear(args)
    if args.json:
        for name, node in nodes.items():
            print(json.dumps({"node": name, **node}, ensure_ascii=False))
    elif nodes:
        print(table([row(name, node) for name, node in nodes.items()]))
        for name, node in nodes.items():
            for text in (*refusals(node), *failures(node)):
                print(f"{name}: {text}")
    else:
        print(f"no node has said anything on {args.broker}")
    return int(any(not online(node) or refusals(node) or failures(node) for node in nodes.values()))


def hear(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Node -> {'status', 'state'}, each as the node wrote it; sorted by name."""
    nodes: dict[str, dict[str, Any]] = {}
    for topic, payload, _, _ in listen(link_of(args), [topics.status(), topics.state()], args.seconds, QUIET_S):
        parsed = topics.parse(topic)
        if parsed is not None and payload:
            content = json_of(payload)
            nodes.setdefault(parsed.node, {})[parsed.what] = content if isinstance(content, dict) else {"text": content}
    return dict(sorted(nodes.items()))


def online(node: Mapping[str, Any]) -> bool:
    """Whether its status says so; a node without a status is not."""
    return node.get("status", {}).get("online") is True


def refusals(node: Mapping[str, Any]) -> list[str]:
    """A line for each mistake that the node found in its configuration."""
    items = node.get("state", {}).get("items")
    found: list[str] = []
    for name, item in items.items() if isinstance(items, dict) else ():
        if isinstance(item, dict) and item.get("ok") is False:
            errors = [error for error in item.get("errors") or [{}] if isinstance(error, dict)]
            found += [f"{name}: {complaint(error)}" for error in errors]
    return found


def failures(node: Mapping[str, Any]) -> list[str]:
    """A line for each function of another package that failed on the node."""
    failing = node.get("status", {}).get("failing")
    found: list[str] = []
    for one in failing if isinstance(failing, list) else ():
        if isinstance(one, dict):
            asking = ", ".join(map(str, one.get("queries") or ()))
            what = (
                f"{one.get('step', '')} of {one.get('function', '')} ({one.get('package', '')}): {one.get('why', '')}"
            )
            found.append(what + (f"; queries {asking}" if asking else ""))
    return found


def complaint(error: Mapping[str, Any]) -> str:
    """window.slide: '11m': longer than length 10m; try 10m."""
    text = f"{error['at']}: " if error.get("at") else ""
    text += f"{error['got']!r}: " if error.get("got") is not None else ""
    text += str(error.get("why", "refused"))
    return text + (f"; {error['hint']}" if error.get("hint") else "")


def row(name: str, node: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    status, state = node.get("status", {}), node.get("state", {})
    return (
        name,
        str(status.get("role", "")),
        str(status.get("parent", "")),
        "online" if online(node) else "OFFLINE",
        str(status.get("version", "")),
        str(status.get("epoch", "")),
        str(state.get("version", "")),
        str(len(refusals(node)) or ""),
    )


def table(rows: list[tuple[str, ...]]) -> str:
    """Columns as wide as they need to be."""
    lines = [COLUMNS, *rows]
    widths = [max(len(one[at]) for one in lines) for at in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(f"{text:{width}}" for text, width in zip(one, widths, strict=True)).rstrip() for one in lines
    )
