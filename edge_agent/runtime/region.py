"""Runs a region as a process: takes messages of children, sends receipts, numbers and passes on definitions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from edge_agent.algebra.frame import Frame, Heartbeat, ParentTime
from edge_agent.config import topics
from edge_agent.config.checking import foreign_json
from edge_agent.config.in_force.known_definitions import (
    MOST_REMOVED,
    PUBLISHED,
    KnownDefinitions,
    Publication,
    difference,
    publication,
)
from edge_agent.config.in_force.revision_numbering import RevisionNumberer
from edge_agent.errors import PortError, WireError
from edge_agent.machines.checkpoint.slots import NUMBERER
from edge_agent.machines.downlink.line_watch import MOST_NAMED
from edge_agent.machines.events import Arrived, BadEnvelope, BadFrame, ChildStatus, LowerLink, Retire
from edge_agent.machines.node_clock import COMPUTER
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.region.merger_standing import standing
from edge_agent.ports.clock import JudgedClock
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Down, Up
from edge_agent.ports.mqtt.packets import Message
from edge_agent.runtime.action_executor import RuntimeParts
from edge_agent.runtime.fleet_commands import PASSED_EXPIRY_S, FleetCommands
from edge_agent.runtime.node_loop import NodeLoop
from edge_agent.runtime.status_and_commands import MOST_REGIONS, OperatorCommand, asked_in, regions_in
from edge_agent.wire.frames import decode_body, envelope

log = logging.getLogger("headwater")

IN_A_CIRCLE: Final = "frames of one of this node's own [uplink] parents: remove one of the two from the other's parents"

BELOW_ITSELF: Final = (
    "this region is below it: frames in a circle never reach the root; give one of them another parent"
)

# Messages of children that are decoded before the first takes effect: a frame of some hundred bytes may take 4 MB.
MOST_TOGETHER: Final = 64

Heard = Frame | Heartbeat | BadFrame | BadEnvelope


class RegionLoop(NodeLoop):
    """A merger as a process. It has a single connection if the parent and the children are on one broker."""

    def __init__(
        self,
        parts: RuntimeParts,
        *,
        restored: Mapping[str, object],
        lower: Connection,
        known: KnownDefinitions | None = None,
        retired: Iterable[str] = (),
    ) -> None:
        """restored: the slots found in the spool. lower: the connection to children, which may be that to the parent.

        known: the definitions that the machine uses.
        """
        super().__init__(parts)
        self.lower = self.executor.lower = lower
        if lower not in self.ways:
            self.connections.append(lower)
        self.fleet = FleetCommands(restored)
        self.numberer = RevisionNumberer.restore(NUMBERER.read(restored))
        self.known = known if known is not None else KnownDefinitions()
        self.status.retired = tuple(retired)
        self._children: dict[str, str] = {}  # topic of a child's frames -> the child
        self._asked: dict[str, int] = {}  # child that asked for the time -> its time since boot
        self._below: dict[str, frozenset[str]] = {}  # child that is a region -> the regions below it
        self.executor.time_for = self._time_for
        self._unsaved = False
        # query -> lower broker? -> newest publication; of removed queries, those that `known` remembers
        self._for_all: dict[str, dict[bool, Publication]] = {}
        self._tidy_at = MOST_REMOVED  # when so many queries are compared, those that `known` has forgotten are dropped
        lower.subscribe(dict.fromkeys(self._filters_below(lower), 1))

    def _filters_below(self, connection: Connection) -> tuple[str, ...]:
        """The topic filters for messages of children; () unless the connection is that to children."""
        if connection is not self.lower:
            return ()
        of_children = topics.frames_of_children(self._node), topics.status(), topics.state()
        return (*of_children, *topics.definitions_below())

    def _filters(self) -> tuple[str, ...]:
        return (*super()._filters(), *topics.definitions_for(self._node))

    def start(self) -> None:
        """Retire the nodes that the settings list as retired, then connect."""
        for node in self.status.retired:
            self.feed(Retire(node), self.clock.now_us())
        super().start()

    # --- children --------------------------------------------------------------------------------------------------

    def _lacks(self, connection: Connection) -> bool:
        machine = self.machine
        assert isinstance(machine, Merger)
        return super()._lacks(connection) or (connection is self.lower and bool(machine.parent.speaking()))

    def _messages(self, connection: Connection, messages: list[Message], now_us: int) -> None:
        """Pass all messages of children as one event, to be acknowledged after their commit; handle other messages."""
        if connection is not self.lower:
            super()._messages(connection, messages, now_us)
            return
        arrived: list[tuple[str, Heard, object]] = []
        settled = []
        children = self._children
        for name, payload, token, flags in messages:
            child = children.get(name)
            if child is None:
                child = self._child(name)
            self.handling = (name, payload)
            if child:
                arrived.append((child, heard(payload), token or None))
                if len(arrived) == MOST_TOGETHER:
                    self._arrive(arrived, now_us, alone=False)
                    arrived = []
            else:
                settled.append(token)
                self._message(connection, name, payload, now_us, flags)
        connection.ack(settled)
        if arrived:
            self._arrive(arrived, now_us, alone=len(messages) == 1)

    def _arrive(self, arrived: list[tuple[str, Heard, object]], now_us: int, *, alone: bool) -> None:
        if not alone:
            self.handling = None  # any message of the batch may be at fault
        self.feed(Arrived(tuple(arrived)), now_us)

    def _left_out(self, connection: Connection, message: Message, why: str, now_us: int) -> None:
        """Treat a frame that the guard leaves out as a bad frame: its sender continues, its loss is declared (3.6)."""
        name, payload, token, _ = message
        child = self._child(name) if connection is self.lower else ""
        if not child:
            super()._left_out(connection, message, why, now_us)
            return
        self.feed(Arrived(((child, unusable(payload, why), token or None),)), now_us)

    def _child(self, name: str) -> str:
        """The child that sent a frame or heartbeat to this node on a topic; '' for other topics."""
        topic = topics.parse(name)
        if topic is None or topic.what != "frame" or topic.other != self._node or topic.node == self._node:
            return ""
        above = self.machine.settings.parents
        if len(above) > 1 and topic.node in above:  # frames that go round in a circle never reach the root
            if self.refusals.add(IN_A_CIRCLE, topic.node):
                log.warning("child.is_a_parent", extra={"node": topic.node, "hint": IN_A_CIRCLE})
            return ""
        self._children[name] = topic.node
        return topic.node

    def _acknowledge(self, tokens: tuple[object, ...]) -> None:
        self.lower.ack([token for token in tokens if isinstance(token, int)])

    def _on_up(self, connection: Connection, report: Up, now_us: int) -> None:
        if connection is self.lower:
            self.numberer.connected(now_us)
            self.feed(LowerLink(up=True), now_us)
        super()._on_up(connection, report, now_us)

    def _on_down(self, connection: Connection, report: Down, now_us: int) -> None:
        if connection is self.lower and report.was_up:
            self.feed(LowerLink(up=False), now_us)
        super()._on_down(connection, report, now_us)

    # --- definitions and states ------------------------------------------------------------------------------------

    def _other(self, connection: Connection, topic: topics.Topic, name: str, payload: bytes, now_us: int) -> None:
        match topic.what:
            case "definition":
                if (found := publication(name, payload)) is not None:
                    self._unsaved |= self.known.publish(found)
                    self.known.released, self.known.corrected = [], []  # not needed: `known.texts` has them
                    self._compare(connection, found)
                if connection is self.lower and (not self._one_broker or len(self.ways) > 1):
                    self.numberer.hear(name, payload, now_us)  # the next parent may be on another broker
                    self._unsaved = True
                elif connection is self.up and not self._one_broker:
                    self.numberer.hear_above(name, payload)
            case "state" if connection is self.lower:
                self.numberer.hear_state(payload, topic.node)
            case "status" if connection is self.lower and topic.node != self._node:
                status = foreign_json.table(payload)
                self._below.pop(topic.node, None)
                if status.get("parent") == self._node and isinstance(status.get("online"), bool):
                    if (asked_us := asked_in(status)) is not None:
                        self._asked[topic.node] = asked_us
                    if status["online"] and status.get("role") == "region":
                        self._below[topic.node] = regions_in(status)
                    self.feed(ChildStatus(topic.node, status["online"]), now_us)

    def _compare(self, connection: Connection, found: Publication) -> None:
        """Raise an alarm for a query that is published differently for all nodes on the two brokers."""
        if found.node or connection not in (self.lower, self.up):
            return
        sides = self._for_all.setdefault(found.query, {})
        known = sides.get(side := connection is self.lower)
        if known is None or found.revision >= known.revision:
            sides[side] = found
        why = difference(sides[True], sides[False]) if len(sides) == 2 else ""
        name = f"query {found.query}"
        if why and (name in self.status.differ or len(self.status.differ) < MOST_NAMED):
            self.status.differ = {**self.status.differ, name: why}
        else:
            self.status.differ = {of: text for of, text in self.status.differ.items() if of != name}
        if len(self._for_all) > self._tidy_at:
            queries = {each.query for each in self.known.published()}
            self._for_all = {query: sides for query, sides in self._for_all.items() if query in queries}
            self._tidy_at = max(MOST_REMOVED, 2 * len(self._for_all))

    def _follow(self, now_us: int) -> None:
        """After a change of parent, forget the definitions published at the broker of the former parent."""
        before = self.up
        super()._follow(now_us)
        if self.up is not before:
            self._for_all = {query: {True: sides[True]} for query, sides in self._for_all.items() if True in sides}
            self.status.differ = {}

    @property
    def _one_broker(self) -> bool:
        """Whether parent and children are on one broker. Then the parent numbers its definitions."""
        return self.lower is self.up

    def _time_for(self, node: str) -> ParentTime | None:
        """The answer to a child that asked for the time; None if it did not ask, or the time is not known here."""
        asked_us, clock = self._asked.pop(node, None), self.clock
        if asked_us is None or not clock.synced or not isinstance(clock, JudgedClock):
            return None
        error_us = None if clock.state.source == COMPUTER else clock.state.error_us
        return ParentTime(clock.now_us(), error_us, asked_us)

    def _pass_on(self, payload: bytes, now_us: int) -> None:
        """Pass a command to all nodes on to the lower broker, if that is not the broker of the parent."""
        if not self._one_broker:
            self.fleet.wait(payload, now_us)

    def _obey_with_all(self, command: OperatorCommand, now_us: int) -> bool:
        """Execute `diagnose` only: marks and definitions are for gateways."""
        return command.name != "diagnose" or super()._obey_with_all(command, now_us)

    def _publish(self, now_us: int) -> None:
        for payload in self.fleet.passed(now_us) if self.lower.up else ():
            self._sent_below(topics.commands_to_all(), payload, "command.not_passed_on", expiry_s=PASSED_EXPIRY_S)
        for due in self.numberer.due(now_us) if self.lower.up and not self._one_broker else ():
            if self._sent_below(due.topic, due.payload, "definition.not_passed_on", retain=True):
                log.info("definition.passed_on", extra={"topic": due.topic})
            self._unsaved = True
        if self._below or self.status.regions:
            self._look_for_circles(now_us)
        self.publish_status(now_us)

    def _look_for_circles(self, now_us: int) -> None:
        """State the regions below, and raise an alarm for children that have this region below them (1.5).

        A child that is not heard does not count: its retained status may be of before it got another parent.
        """
        machine = self.machine
        assert isinstance(machine, Merger)
        children = machine.parent.children
        heard = {child: of for child, of in self._below.items() if children.hears(child, now_us)}
        regions = set(heard).union(*heard.values()) - {self._node}
        self.status.regions = tuple(sorted(regions)[:MOST_REGIONS])
        found = sorted(child for child, of in heard.items() if self._node in of)[:MOST_NAMED]
        circles = {f"region {child}": BELOW_ITSELF for child in found}
        for child in found if circles.keys() - self.status.circles.keys() else ():
            log.warning("child.is_above", extra={"node": child, "hint": BELOW_ITSELF})
        self.status.circles = circles

    def _sent_below(
        self, topic: str, payload: bytes, event: str, *, retain: bool = False, expiry_s: int | None = None
    ) -> bool:
        """Publish for all nodes below. Returns False if the broker does not accept the size, and logs `event`."""
        try:
            self.lower.publish(topic, payload, retain=retain, expiry_s=expiry_s)
        except PortError as err:
            log.warning(event, extra={"why": str(err)})
            return False
        return True

    def _wake_us(self) -> int:
        wake_us = None if self._one_broker else self.numberer.wake_us()
        return super()._wake_us() if wake_us is None else min(super()._wake_us(), wake_us)

    def _slots(self) -> dict[str, object]:
        if not self._unsaved:
            return self.fleet.slots()
        self._unsaved = False
        published = {PUBLISHED: [each.plain() for each in self.known.published()]}
        return self.fleet.slots() | NUMBERER.write(self.numberer.snapshot() | published)

    def _standing(self, now_us: int) -> tuple[int | None, str]:
        machine = self.machine
        assert isinstance(machine, Merger)
        return standing(machine, now_us)

    def counters(self) -> dict[str, object]:
        """The counters of the node, with its children and those that are silent."""
        machine = self.machine
        assert isinstance(machine, Merger)
        return {**super().counters(), **machine.counters()}


def unusable(payload: bytes, why: str) -> BadFrame | BadEnvelope:
    """The event for a child's message that is left out without decoding its body."""
    try:
        outer = envelope(payload)
        return BadEnvelope(why, payload) if outer.seq is None else BadFrame(outer.epoch, outer.seq, why, payload)
    except Exception:  # the envelope itself may be the cause
        return BadEnvelope(why, payload)


def heard(payload: bytes) -> Heard:
    """Decode a child's message to an event; bytes that cannot be decoded give an event, too."""
    try:
        outer = envelope(payload)
    except WireError as err:
        return BadEnvelope(str(err), payload)
    try:
        return decode_body(outer)
    except WireError as err:
        if outer.seq is None:
            return BadEnvelope(f"heartbeat: {err}", payload)
        return BadFrame(outer.epoch, outer.seq, str(err), payload)


def pack(message: Frame | BadFrame) -> object:
    """A waiting frame as a plain value for the spool."""
    if isinstance(message, Frame):
        return message
    return [message.epoch, message.seq, message.reason, message.payload, message.run, message.since_us]


def unpack(value: Any) -> Frame | BadFrame:
    """The inverse of `pack`."""
    return value if isinstance(value, Frame) else BadFrame(*value)
