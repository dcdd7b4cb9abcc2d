"""JSON between a node and its operator: the retained status, commands and their answers."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from edge_agent.algebra.frame import MAX_FRAME_BYTES
from edge_agent.algebra.punctuation.markers import Marker
from edge_agent.algebra.span import FAR_US
from edge_agent.config import topics
from edge_agent.config.checking import foreign_json
from edge_agent.config.checking.checker import Report
from edge_agent.config.checking.quantities import Instant
from edge_agent.errors import PortError
from edge_agent.machines.node import Node
from edge_agent.ports import Clock
from edge_agent.ports.clock import JudgedClock
from edge_agent.ports.mqtt.connection import RAISE, Connection
from edge_agent.ports.mqtt.link import Will

log = logging.getLogger("headwater")
COMMAND_ID: Final = re.compile(r"[a-z0-9-]{1,64}")
_AT: Final = 'at: needs a moment like "2026-11-21T06:00:00Z", or microseconds since 1970'
LONG_LISTS: Final = ("sensors", "failing", "refused", "retired", "regions")  # fields of the status that can be left out
MOST_SENSORS: Final = 20  # failing sensors with an alarm of their own; `state` names all
MOST_RETIRED: Final = 20  # retired nodes that are named; the others are counted
MOST_REGIONS: Final = 256  # regions below that are named, 8 kB; beyond that not every circle is found
TOPIC_BYTES: Final = 256  # at most, of a packet with a frame: its topic and what MQTT adds
MOST_WORDS: Final = 8_192  # bytes of a command; 64 patterns of nodes have 2.3 kB
NO_COMMAND: Final = f"not a command: wanted a word, or a JSON object with `cmd`, of at most {MOST_WORDS} bytes"
BOOKS_EVERY_US: Final = 120_000_000  # interval, for audits of nodes that do not answer; 450 bytes each time
BOOKS_AGAIN_US: Final = 3_600_000_000  # unchanged books are repeated, so that `headwater status` shows a node as heard
BOOKS_LOOK_US: Final = 10_000_000  # between two comparisons of the books with the published ones


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """A command: its name, the id for its answer, and its other fields. named: the sender chose the id."""

    name: str
    id: str
    named: bool = False
    fields: Mapping[str, object] = field(default_factory=dict)


def parse_command(payload: bytes) -> OperatorCommand:
    """Read a command: a bare word (`diagnose`), or {"cmd": "diagnose", "id": "x1"}. Without a name: it is neither."""
    text = payload.decode("utf-8", "replace").strip() if len(payload) <= MOST_WORDS else ""
    name, given, table = text, "", {}
    if text.startswith("{"):
        table = foreign_json.table(text)
        name, given = str(table.get("cmd", "")), str(table.get("id", ""))
    name = name[:64]
    fallback = name if COMMAND_ID.fullmatch(name) else "unknown"
    fields = {key: value for key, value in table.items() if key not in {"cmd", "id"}}
    named = COMMAND_ID.fullmatch(given) is not None
    return OperatorCommand(name, given if named else fallback, named, fields)


def unknown_key(command: OperatorCommand, *known: str) -> str:
    """An error text about the first key that a command does not have; '' if it has all of them."""
    unknown = sorted(command.fields.keys() - {*known})
    return f"{unknown[0][:64]}: unknown key of {command.name}; keys are {', '.join(known)}" if unknown else ""


def marker_of(command: OperatorCommand, now_us: int | None) -> Marker | str:
    """The marker of a command `mark`, or an error text. now_us: the time if `at` is missing; None: clock not synced."""
    if why := unknown_key(command, "at", "kind", "marker", "nodes"):
        return why
    at, kind, name = (command.fields.get(key) for key in ("at", "kind", "marker"))
    time_us = now_us if at is None else _instant(at)
    if time_us is None:
        return "the clock of this node is not synchronised: add `at` to the command" if at is None else _AT
    if kind is not None and (not isinstance(kind, str) or kind not in ("", "start", "end")):
        return "kind: needs start or end, or leave it out"
    return Marker(time_us, str(kind or ""), "" if name is None else str(name)[:64])


def _instant(at: object) -> int | None:
    """Convert a number of microseconds since 1970, or a time in RFC 3339, to microseconds; None if it is neither."""
    if isinstance(at, str):
        at = Instant().read(at, (), Report())
    return at if isinstance(at, int) and not isinstance(at, bool) and 0 <= at < FAR_US else None


@dataclass(slots=True)
class NodeStatus:
    """The identity and state of a node, as it publishes them.

    config: hash of the definitions in force. sensors: ids. refused: reason -> count of messages and values, with an
    example. failing: functions of packages that failed, and why. in_doubt: former parent -> number of frames that wait
    for it, and since when (0: not known). asked_us: when the node asked its parent for the time, us since boot; the
    parent repeats it in its answer (docs/protocol.md 4.3). differ: definition -> how it differs between two brokers.
    failing_sensors: sensor whose driver fails -> why. retired: nodes that configuration retired here (1.5). small:
    broker whose limit for packets is too small for frames -> text. regions: those below this one, at any depth, by
    which one in a circle finds itself. circles: child that has this region below it -> text.
    """

    node: str
    role: str
    parent: str
    version: str
    config: str = ""
    sensors: tuple[str, ...] = ()
    failing: tuple[Mapping[str, object], ...] = ()
    asked_us: int | None = None
    refused: Mapping[str, object] = field(default_factory=dict)
    in_doubt: Mapping[str, object] = field(default_factory=dict)
    differ: Mapping[str, str] = field(default_factory=dict)
    failing_sensors: Mapping[str, str] = field(default_factory=dict)
    retired: tuple[str, ...] = ()
    small: dict[str, str] = field(default_factory=dict)
    regions: tuple[str, ...] = ()
    circles: Mapping[str, str] = field(default_factory=dict)

    def note_limit(self, connection: Connection, down: str = "") -> None:
        """Raise an alarm while a broker accepts smaller packets than frames may have, or end it.

        down: why the connection was lost, if it was.
        """
        broker, most_bytes = f"broker {connection.link.url}", connection.maximum_packet_bytes
        if down:
            self.small |= {broker: down} if RAISE in down else {}
        elif most_bytes is None or most_bytes >= MAX_FRAME_BYTES + TOPIC_BYTES:
            self.small.pop(broker, None)
        elif broker not in self.small:
            self.small[broker] = (
                f"accepts packets of at most {most_bytes} bytes, frames have up to {MAX_FRAME_BYTES}; {RAISE}"
            )
            log.warning("broker.small_packets", extra={"broker": connection.link.url, "why": self.small[broker]})

    def card(self, machine: Node, clock: Clock) -> dict[str, object]:
        """The fields of the status and of the answer to `diagnose`."""
        return {
            "role": self.role,
            "parent": self.parent,
            "version": self.version,
            "epoch": f"{machine.outbox.epoch:08x}",
            "config": self.config,
            "sensors": list(self.sensors),
            "clock": self._clock(clock),
            **({"parent_journals_lost": machine.outbox.changes} if machine.outbox.changes else {}),
            **({"alarms": alarms} if (alarms := self._alarms(machine)) else {}),
            **({"in_doubt": dict(self.in_doubt)} if self.in_doubt else {}),
            **({"failing": list(self.failing)} if self.failing else {}),
            **({"refused": dict(self.refused)} if self.refused else {}),
            **retired_fields(self.retired),
            **({"regions": list(self.regions)} if self.regions else {}),
        }

    def _alarms(self, machine: Node) -> dict[str, str]:
        """Alarms of the machine and of this process: child, definition or sensor -> text."""
        sensors = {f"sensor {name}": why for name, why in islice(self.failing_sensors.items(), MOST_SENSORS)}
        more = len(self.failing_sensors) - MOST_SENSORS
        return {
            **machine.alarms,
            **self.differ,
            **self.small,
            **self.circles,
            **sensors,
            **({"sensors": f"{more} more fail"} if more > 0 else {}),
        }

    def _clock(self, clock: Clock) -> dict[str, object]:
        """Whether the time is known, its source, and how far it may be off."""
        about: dict[str, object] = {"synced": clock.synced}
        if isinstance(clock, JudgedClock):
            about |= {"source": clock.state.source, "error_s": clock.state.error_us / 1e6}
            about |= {} if self.asked_us is None else {"asked": self.asked_us}
        return about

    def online(self, machine: Node, clock: Clock, *, short: bool = False) -> bytes:
        """The retained status of a running node. short: without its long lists, for a broker that refuses them."""
        card = {name: of for name, of in self.card(machine, clock).items() if not (short and name in LONG_LISTS)}
        return _text({"online": True, **card})

    def offline(self) -> bytes:
        """The retained status of a stopped node, which is also its last will."""
        fields = {"role": self.role, "parent": self.parent, "version": self.version, "config": self.config}
        return _text({"online": False, **fields})

    def books(self, book: Mapping[str, object], now_us: int, *, final: bool) -> bytes:
        """The retained books (docs/protocol.md 9.1). final: the process ends in order, so these are its last books."""
        return _text({"parent": self.parent, "at_us": now_us, "final": final, **book})

    def will(self) -> Will:
        """The message that the broker publishes when the connection is lost."""
        return Will(topics.status(self.node), self.offline())

    def answer(self, command: OperatorCommand, fields: Mapping[str, object]) -> bytes:
        """The answer to a command."""
        return _text({"cmd": command.name, "id": command.id, **fields})


@dataclass(slots=True)
class BooksTimes:
    """Decides when a node publishes its books.

    They are published at each connection, every 120 s if they differ from the published ones, every hour if not, and
    at most once in between if the reason why the node is behind (`why`) appeared or disappeared: `headwater status`
    must not show for two minutes that a node waits for its parent, because its first books were published before the
    first receipt.
    """

    sent: Mapping[str, object] = field(default_factory=dict)
    sent_us: int = 0
    looked_us: int = 0
    early: bool = False  # the last publication was one in between

    def look(self, now_us: int) -> bool:
        """Whether it is time to compare."""
        if 0 <= now_us - self.looked_us < BOOKS_LOOK_US:
            return False
        self.looked_us = now_us
        return True

    def due(self, book: Mapping[str, object], now_us: int) -> bool:
        """Whether to publish the book now."""
        if not 0 <= now_us - self.sent_us < BOOKS_EVERY_US:
            return book != self.sent or not 0 <= now_us - self.sent_us < BOOKS_AGAIN_US
        return not self.early and bool(book.get("why")) != bool(self.sent.get("why"))

    def published(self, book: Mapping[str, object], now_us: int) -> None:
        """The book has been handed to the broker."""
        self.early = 0 <= now_us - self.sent_us < BOOKS_EVERY_US
        self.sent, self.sent_us = book, now_us


def asked_in(status: Mapping[str, object]) -> int | None:
    """The time since boot at which a child asked for its parent's time, from its status; None: it did not ask."""
    clock = status.get("clock")
    asked = clock.get("asked") if isinstance(clock, dict) else None
    return asked if isinstance(asked, int) and not isinstance(asked, bool) and 0 <= asked < FAR_US else None


def regions_in(status: Mapping[str, object]) -> frozenset[str]:
    """The regions below a child, from its status."""
    named = status.get("regions")
    names = named[:MOST_REGIONS] if isinstance(named, list) else ()
    return frozenset(name for name in names if isinstance(name, str) and topics.is_node_id(name))


def retired_fields(nodes: Sequence[str]) -> dict[str, object]:
    """The fields of a status about nodes that configuration retired: the first are named, the others counted."""
    more = len(nodes) - MOST_RETIRED
    return {
        **({"retired": list(nodes[:MOST_RETIRED])} if nodes else {}),
        **({"retired_more": more} if more > 0 else {}),
    }


def _text(table: Mapping[str, object]) -> bytes:
    return json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()


def publish_fitting(connection: Connection, topic: str, status: bytes, shorter: Callable[[], bytes]) -> bool:
    """Publish a status; the shorter one if it exceeds the broker's maximum packet size.

    Returns whether there is nothing left to do, also if neither fits. False: not connected, so try again later.
    """
    try:
        return connection.publish(topic, status, retain=True) is not None
    except PortError as err:
        log.warning("status.not_published", extra={"why": str(err)})
    try:
        return connection.publish(topic, shorter(), retain=True) is not None
    except PortError as err:
        log.warning("status.not_published", extra={"why": f"without its long lists, too: {err}"})
        return True


def publish_or_log(connection: Connection, topic: str, payload: bytes, event: str) -> None:
    """Publish what is sent again later in any case. event: for the log, if the broker does not accept its size."""
    try:
        connection.publish(topic, payload)
    except PortError as err:
        log.warning(event, extra={"why": str(err)})
