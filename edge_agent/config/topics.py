"""Builds and parses every topic of the protocol. Source: schemas/topics.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "hw/1"  # the version comes first so that a broker can route by it
NODE_ID: Final = re.compile(r"[a-z0-9-]{1,32}")
ITEM_ID: Final = re.compile(r"[a-z0-9-]{1,64}")
TABLES: Final = frozenset(  # names not allowed for sensors and queries, because a query is a view beside these tables
    {
        *("bronze", "silver", "gold", "ops", "messages", "results", "nodes", "sensors", "queries", "gaps", "coverage"),
        *("quarantine", "late", "batches", "lease", "partials", "values", "sessions", "events", "hints", "tables"),
        "positions",
    }
)
KINDS: Final = ("sensor", "query")
LONGEST_CACHED: Final = 512  # bytes of a name; a foreign one may have 65 535
MOST_CACHED: Final = 4_096
ALL: Final = "all"  # scope of a definition or command for a whole subtree
NODE: Final = "node"  # scope of a definition or command for one node


@dataclass(frozen=True, slots=True)
class Topic:
    """A parsed topic of the protocol.

    what: frame, status, state, books, answer, ack, cmd or definition. node: the node in the topic, '' for `all`.
    other: the parent of a frame, or the id of an answered command or definition. kind: of a definition,
    'sensor' or 'query'. scope: of a definition or command, 'all' or 'node'.
    """

    what: str
    node: str = ""
    other: str = ""
    kind: str = ""
    scope: str = ""


def is_node_id(text: str) -> bool:
    """Whether a text is valid as a node id, which is also the name in the certificate, user name and client id."""
    return NODE_ID.fullmatch(text) is not None


def is_item_id(text: str) -> bool:
    """Whether a text is valid as the id of a sensor or a query."""
    return ITEM_ID.fullmatch(text) is not None and text not in TABLES


def frames(node: str, parent: str) -> str:
    """The topic on which a node publishes frames and heartbeats for one parent."""
    return f"{PREFIX}/up/{node}/f/{parent}"


def frames_of_children(parent: str) -> str:
    """The filter for all frames to one parent."""
    return f"{PREFIX}/up/+/f/{parent}"


def status(node: str = "+") -> str:
    """The topic on which a node is online or offline, retained and set by its last will. '+': filter for all nodes."""
    return f"{PREFIX}/up/{node}/status"


def state(node: str = "+") -> str:
    """The topic on which a node reports its definitions in force, retained. '+': filter for all nodes."""
    return f"{PREFIX}/up/{node}/state"


def books(node: str = "+") -> str:
    """The topic of a node's books (docs/protocol.md 9.1), retained. '+': filter for all nodes."""
    return f"{PREFIX}/up/{node}/books"


def answer(node: str, command: str) -> str:
    """The topic of a node's answer to one command."""
    return f"{PREFIX}/up/{node}/cmd/{command}"


def ack(node: str) -> str:
    """The topic on which a node gets its receipts."""
    return f"{PREFIX}/down/{node}/ack"


def commands(node: str) -> str:
    """The topic on which a node gets an operator's commands."""
    return f"{PREFIX}/down/{node}/cmd"


def commands_to_all() -> str:
    """The topic of an operator's commands to every node of a broker and below."""
    return f"{PREFIX}/{ALL}/cmd"


def definition(kind: str, item: str, node: str | None = None) -> str:
    """The topic of one sensor or query, for one node or (None) for the whole subtree."""
    return f"{PREFIX}/{ALL}/cfg/{kind}/{item}" if node is None else f"{PREFIX}/down/{node}/cfg/{kind}/{item}"


def definitions_for(node: str) -> tuple[str, ...]:
    """The filters for all definitions that may concern a node."""
    return (f"{PREFIX}/{ALL}/cfg/+/+", f"{PREFIX}/down/{node}/cfg/+/+")


def definitions_below() -> tuple[str, ...]:
    """The filters for all definitions on a parent's lower broker, which the parent numbers."""
    return definitions_for("+")


def parse(topic: str) -> Topic | None:
    """Parse a topic. None if the topic is not of the protocol or has an invalid id."""
    match topic.split("/"):
        case ["hw", "1", "up", node, "f", parent] if is_node_id(node) and is_node_id(parent):
            return Topic("frame", node, parent)
        case ["hw", "1", "up", node, ("status" | "state" | "books") as what] if is_node_id(node):
            return Topic(what, node)
        case ["hw", "1", "up", node, "cmd", command] if is_node_id(node) and ITEM_ID.fullmatch(command):
            return Topic("answer", node, command)
        case ["hw", "1", "down", node, "ack"] if is_node_id(node):
            return Topic("ack", node)
        case ["hw", "1", "down", node, "cmd"] if is_node_id(node):
            return Topic("cmd", node, scope=NODE)
        case ["hw", "1", "all", "cmd"]:
            return Topic("cmd", scope=ALL)
        case ["hw", "1", "down", node, "cfg", ("sensor" | "query") as kind, item] if is_node_id(node):
            return Topic("definition", node, item, kind, NODE) if ITEM_ID.fullmatch(item) else None
        case ["hw", "1", "all", "cfg", ("sensor" | "query") as kind, item] if ITEM_ID.fullmatch(item):
            return Topic("definition", "", item, kind, ALL)
    return None


class TopicCache:
    """Topic name -> its parts. Long names are not cached: those of Headwater are short."""

    def __init__(self) -> None:
        self._known: dict[str, Topic | None] = {}

    def parse(self, name: str) -> Topic | None:
        """The parts of a topic; None if it is none of Headwater."""
        if name in self._known:
            return self._known[name]
        topic = parse(name)
        if len(name) <= LONGEST_CACHED:
            if len(self._known) >= MOST_CACHED:
                self._known.clear()
            self._known[name] = topic
        return topic
