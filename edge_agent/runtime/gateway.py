"""Runs a gateway as a process: its sensors, their local broker, and its definitions."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final

from edge_agent.algebra.punctuation.markers import Marker
from edge_agent.algebra.query.query import Query, Sensor
from edge_agent.config import topics
from edge_agent.config.checking.quantities import Instant
from edge_agent.config.definitions.definitions import Definition, canonical_query, canonical_sensor
from edge_agent.config.definitions.drivers import DRIVERS
from edge_agent.config.in_force.crosscheck import not_usable
from edge_agent.config.in_force.registry import MAX_STATE_BYTES, DefinitionRegistry
from edge_agent.config.in_force.revision_numbering import SETTLE_US
from edge_agent.config.node_file.node_tables import LimitsTable
from edge_agent.errors import ConfigError, PortError, Problem, advice
from edge_agent.machines.checkpoint.slots import COMMITTED, POSITIONS_OF, REFUSED, REGISTRY, SOURCE
from edge_agent.machines.events import Configured, Event, Gathering, Mark, Note, Polled
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.gateway.gateway_standing import standing
from edge_agent.ports.memory import trim
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Down, Up
from edge_agent.ports.mqtt.packets import Message
from edge_agent.ports.sensors.file_access import FileAccess, paths_of
from edge_agent.ports.sensors.local_outages import LocalOutages
from edge_agent.ports.sensors.node_sensors import Sensors, source_of
from edge_agent.ports.sensors.quality import REFUSALS
from edge_agent.runtime.action_executor import RuntimeParts
from edge_agent.runtime.fleet_commands import FleetCommands
from edge_agent.runtime.node_loop import COMMANDS, NodeLoop
from edge_agent.runtime.start_record import DEFINITIONS
from edge_agent.runtime.status_and_commands import OperatorCommand, marker_of

log = logging.getLogger("headwater")

# beside sensors in POSITIONS_OF, and no ids of sensors: the filters in the session at `local`, and LocalOutages.save
FILTERS: Final = ""
OUTAGE: Final = "?"


class GatewayLoop(NodeLoop):
    """A gateway as a process."""

    def __init__(
        self,
        parts: RuntimeParts,
        *,
        restored: Mapping[str, object],
        limits: LimitsTable,
        access: FileAccess = FileAccess(),  # noqa: B008 - a frozen value
        definitions: Iterable[Definition] = (),
        local: Connection | None = None,
        read_again: Callable[[], Iterable[Definition]] = tuple,
    ) -> None:
        """restored: the slots found in the spool. definitions: of the local file; read_again reads them again.

        access: the files that sensors defined by topic may read.
        """
        super().__init__(parts)
        definitions = tuple(definitions)
        self.sensors = Sensors(self.clock, access=replace(access, named=_named(definitions)), most_series=limits.keys)
        self.local = local
        if local is not None:
            self.connections.append(local)
        self._limits, self._read_again = limits, read_again
        self.fleet = FleetCommands(restored)
        cached = REGISTRY.read(restored)
        self.registry = DefinitionRegistry(self._node, limits, definitions, cached, local_broker=local is not None)
        self._given_back = (0, self.machine.outbox.epoch, 0)  # counts of the machine when memory was last freed
        self._sources: dict[str, str] = {}
        self._positions = _positions(restored)  # of sensors that have not come yet
        self._known_sources = dict(POSITIONS_OF.read(restored) or {})
        self._refused = REFUSED.read(restored) or {}  # sensor -> readings refused, over all runs
        self._counted: dict[str, int] = {}  # sensor -> refusals counted by its driver that are in `_refused`
        # filters on the local broker, at first those of the last run: the session still has them
        self._subscribed = _names(self._known_sources.pop(FILTERS, ""))
        self._saved_filters = set(self._subscribed)
        self._outages: LocalOutages | None = None
        self._unread_us = 0 if local is None else int(local.link.read_every_s * 1e6)  # messages so new may not be read
        self._saved_outage = self._known_sources.pop(OUTAGE, "")
        if local is not None:
            keepalive_s, committed_us = local.link.keepalive_s, COMMITTED.read(restored)
            self._outages = LocalOutages(self.clock, keepalive_s, self._saved_outage, committed_us)
        # whether the sensors of the last run are known, so that a filter without a sensor can be left
        self._leaves_filters = cached is not None or not self._subscribed
        self._changed = False  # definitions came that are not in force yet
        self._reported = False  # the published `state` is up to date
        self._sent_state = b""
        self._warned: Mapping[tuple[str, str], Problem] = {}  # refusals of definitions that have been logged
        self._unpublished: frozenset[str] = frozenset()  # queries of the file without rows that have been logged
        self._unnamed = 1  # how many sensors without a driver may still be logged: only the first is
        self._retained_us: int | None = None  # when the broker will have sent all retained definitions
        self._unsaved = True  # the registry differs from its last commit

    # --- configuration ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Use the definitions of the last run and of the local file before any broker is connected."""
        self._report_clock()
        starts = None if self.guard is None else self.guard.starts
        if starts is not None and starts.careful:
            starts.handling(DEFINITIONS)
        self._configure(self.clock.now_us())
        if starts is not None and starts.careful:
            starts.handling("")
        super().start()

    def _left_out(self, connection: Connection, message: Message, why: str, now_us: int) -> None:
        """Report a definition that the guard leaves out in `state`, with the reason."""
        topic = topics.parse(message[0])
        if topic is not None and topic.what == "definition" and connection is self.up:
            self.registry.leave_out(topic.scope, topic.kind, topic.other, why)
            self._reported, self._unsaved = False, True
        super()._left_out(connection, message, why, now_us)

    def _filters(self) -> tuple[str, ...]:
        return (*super()._filters(), *topics.definitions_for(self._node))

    def _other(self, connection: Connection, topic: topics.Topic, name: str, payload: bytes, now_us: int) -> None:
        if topic.what != "definition" or connection is not self.up:
            return
        self._changed |= self.registry.take(topic.scope, topic.kind, topic.other, payload)
        self._reported, self._unsaved = False, True

    def _publish(self, now_us: int) -> None:
        if self._retained_us is not None and now_us >= self._retained_us:
            self._retained_us = None
            if self.registry.confirmed():
                self._reported, self._unsaved = False, True
            if not self._leaves_filters:
                self._leaves_filters = self._changed = True
        if self._changed:
            self._configure(now_us)
        failing = self.sensors.failing | (
            self._outages.failing(self.sensors.local) if self._outages is not None else {}
        )
        if failing != self.status.failing_sensors:
            self.status.failing_sensors, self._reported = failing, False
        if not self._reported:
            self._report(now_us)

    def _configure(self, now_us: int) -> None:
        sensors, queries = self.registry.in_force()
        for read in self.sensors.poll(now_us, everything=True):
            self.feed(read, now_us)  # earlier readings belong to the earlier sensors
        self._count_refused()
        for read in self.sensors.configure(sensors, self._known_positions(sensors)):
            self.feed(read, now_us)
        self._counted = self._refusals()  # changed sensors count from 0
        self._sources = {sensor.id: _source(sensor) for sensor in sensors}
        self.status.sensors = tuple(sensor.id for sensor in sensors)
        self._listen()
        self._changed, self._reported, self._unsaved = False, False, True
        texts = tuple(map(canonical_sensor, sensors)), tuple(map(canonical_query, queries))
        self.feed(Configured(sensors, queries, *texts), now_us)
        log.info("configured", extra={"sensors": len(sensors), "queries": len(queries)})

    def _known_positions(self, sensors: Sequence[Sensor]) -> dict[str, object]:
        """Positions of the last run, each for the first sensor of its name, and only if the source is unchanged.

        The others are kept: without the definitions of the last run, some sensors come later.
        """
        found = {s.id: self._positions.pop(s.id) for s in sensors if s.id in self._positions}
        known = self._known_sources
        return {s.id: found[s.id] for s in sensors if s.id in found and known.get(s.id) in (_source(s), _whole(s))}

    def _listen(self) -> None:
        if self.local is None:
            return
        filters = self.sensors.filters
        self.local.subscribe(filters)  # first: a message that no filter matches in between would be lost
        if self._leaves_filters:
            self.local.unsubscribe(self._subscribed - filters.keys())
            self._subscribed = set(filters)
        else:
            self._subscribed |= filters.keys()
        if self.sensors.unheard and self.sensors.local:  # after a start without the definitions of the last run
            self.sensors.unheard = False
            self.local.renew("messages came before the first sensor that reads them")

    def _report(self, now_us: int) -> None:
        """Publish `state`: the definitions in force, and the reasons why others are not. Log how many are not."""
        self._warn()
        limit = self.up.maximum_packet_bytes
        most_bytes = MAX_STATE_BYTES if limit is None else min(MAX_STATE_BYTES, limit * 9 // 10)
        state = self.registry.state(most_bytes, self.status.failing_sensors)
        self.status.config = str(state["hash"])
        text = _state_text(state)
        if text != self._sent_state:
            try:
                sent = self.up.publish(topics.state(self._node), text, retain=True) is not None
            except PortError as err:
                log.warning("state.not_published", extra={"why": str(err)})
                sent = self._publish_shorter(most_bytes)
            if not sent:
                return  # published when the link is up
            self._sent_state = text
        self._reported = True
        self.publish_status(now_us)

    def _publish_shorter(self, most_bytes: int) -> bool:
        """Publish as much of `state` as the broker accepts, at last its head alone. Returns False if not connected."""
        while most_bytes:
            most_bytes //= 2
            text = _state_text(self.registry.state(most_bytes, self.status.failing_sensors))
            with suppress(PortError):
                return self.up.publish(topics.state(self._node), text, retain=True) is not None
        return True  # not even the head fits: nothing is left to do until it changes

    def _warn(self) -> None:
        """Log a newly refused definition, a query of the file without rows, a sensor without driver: one of each."""
        refused = self.registry.refused()
        new = {key: why for key, why in refused.items() if self._warned.get(key) != why}
        self._warned = refused
        for (kind, item), why in islice(new.items(), 1):
            problem = {"at": why.at, "why": why.why, "hint": advice(why.hint)}
            fields = {"count": len(refused), "item": f"{kind}/{item}", **problem}
            log.warning("definitions.refused", extra=fields)
        unpublished = self.registry.unpublished()
        new_queries = [query for query in unpublished if query not in self._unpublished]
        for query in new_queries[:1]:
            why = unpublished[query]
            fields = {"count": len(unpublished), "query": query, "why": why.why, "hint": why.hint}
            log.warning("queries.not_published", extra=fields)
        self._unpublished = frozenset(unpublished)
        for sensor in islice(self.registry.cannot_run().values(), self._unnamed):
            self._unnamed, why = 0, not_usable(sensor, "driver")
            log.info("sensors.elsewhere", extra={"sensor": sensor.id, "why": why.why, "hint": why.hint})

    def _other_command(self, command: OperatorCommand, now_us: int) -> dict[str, object]:
        if command.name != "mark":
            return {**super()._other_command(command, now_us), "hint": f"{COMMANDS} mark"}
        marker = marker_of(command, now_us if self.clock.synced else None)
        if not isinstance(marker, Marker):
            return {"ok": False, "why": marker}
        self.feed(Mark(marker), now_us)
        return {"ok": True, "at": Instant().write(marker.time_us)}

    def reload(self) -> dict[str, object]:
        """Read the definitions of the local file again. Other settings need a restart."""
        try:
            definitions = tuple(self._read_again())
        except ConfigError as err:
            return {"ok": False, "why": str(err)}
        state = self.registry.snapshot()
        self.registry = DefinitionRegistry(
            self._node, self._limits, definitions, state, local_broker=self.local is not None
        )
        assert self.sensors.access is not None
        self.sensors.access = replace(self.sensors.access, named=_named(definitions))
        self._changed = True
        return {"ok": True, "definitions": len(definitions)}

    def all_read(self) -> bool:
        """Whether all sources that can end have ended and all frames are receipted. `run --once` then ends."""
        machine = self.machine
        assert isinstance(machine, Gateway)
        sources = [source for source in machine.sources.values() if DRIVERS[source.sensor.driver].ends]
        ends = (source.ended and source.asked for source in sources)
        waits = machine.outbox.spooled or not machine.outbox.epoch_id
        return all(ends) and not waits

    # --- readings --------------------------------------------------------------------------------------------------

    def _wake_us(self) -> int:
        return self.sensors.due_us(self.clock.now_us())

    def _readings(self, now_us: int) -> Iterator[Event]:
        everything = self.stopping or now_us >= self.machine.wake_us
        yield from self.sensors.poll(now_us, everything=everything)
        if everything:  # a turn takes longer on a busy machine, and messages come meanwhile
            yield Polled(now_us - self.waiter.since_poll_us() - self._unread_us)
        self._ack_local(self.sensors.settled())
        self._give_back(now_us)

    def _give_back(self, now_us: int) -> None:
        """Return memory of silent keys to the system, after the sensors or the machine have freed some."""
        machine = self.machine
        assert isinstance(machine, Gateway)
        outbox = machine.outbox
        given_back = (machine.silent_keys.given_back, outbox.epoch, outbox.former[0])
        if self.sensors.give_back(now_us) or given_back != self._given_back:
            self._given_back = given_back
            for connection in self.connections:
                connection.give_back()
            trim()

    def _gathered_so_far(self, now_us: int) -> Iterable[Event]:
        return self.sensors.poll(now_us, everything=True)

    def _messages(self, connection: Connection, messages: list[Message], now_us: int) -> None:
        if connection is self.local and self._outages is not None:
            self._outages.heard()
            self.sensors.feed(messages, now_us)
            self.feed(Gathering(), now_us)
        else:
            super()._messages(connection, messages, now_us)

    def _on_up(self, connection: Connection, report: Up, now_us: int) -> None:
        if connection is self.up:
            self._at_another_broker(now_us)
        if connection is self.local and self._outages is not None:
            self.sensors.session(report.session_present)
            self._outages.up(session=report.session_present)
        super()._on_up(connection, report, now_us)

    def _on_down(self, connection: Connection, report: Down, now_us: int) -> None:
        if connection is self.local and self._outages is not None:
            self._outages.down(report.why, was_up=report.was_up)
        super()._on_down(connection, report, now_us)

    def _at_another_broker(self, now_us: int) -> None:
        self._sent_state, self._reported = b"", False  # it may not have our state
        self.registry.connected()
        self._retained_us = now_us + SETTLE_US

    def _acknowledge(self, tokens: tuple[object, ...]) -> None:
        self._ack_local(self.sensors.acknowledge(tokens))

    def _confirmed(self, connection: Connection, tokens: tuple[int, ...], now_us: int) -> None:
        if connection is not self.local or self._outages is None:
            return
        self.sensors.confirmed(tokens)
        if not tokens and (loss := self._outages.hears(self.sensors.local)) is not None:
            self.feed(loss, now_us)

    def _ack_local(self, tokens: list[int]) -> None:
        if tokens and self.local is not None:
            self.local.ack(tokens)

    def _queries(self) -> Iterable[Query]:
        return self.registry.in_force()[1]

    def _slots(self) -> dict[str, object]:
        slots = self.fleet.slots() | REFUSED.write(self._refused)
        filters = self._subscribed.union(() if self.local is None else self.local.leaving)
        outage = "" if self._outages is None else self._outages.save()
        if not self._unsaved and filters == self._saved_filters and outage == self._saved_outage:
            return slots
        self._unsaved, self._saved_filters, self._saved_outage = False, filters, outage
        waiting = {name: source for name, source in self._known_sources.items() if name in self._positions}
        if filters:
            waiting[FILTERS] = json.dumps(sorted(filters))
        if outage:
            waiting[OUTAGE] = outage
        return slots | REGISTRY.write(self.registry.snapshot()) | POSITIONS_OF.write(waiting | self._sources)

    def book(self) -> dict[str, object]:
        """The book of the node, with `refused`: count of values refused for their value, time or labels."""
        self._count_refused()
        return {**super().book(), "refused": sum(self._refused.values())}

    def _refusals(self) -> dict[str, int]:
        """Sensor -> readings that its driver has refused since it was started."""
        counters = self.sensors.counters()
        return {name: sum(of.get(kind, 0) for kind in REFUSALS) for name, of in counters.items()}

    def _count_refused(self) -> None:
        for name, now in self._refusals().items():
            before = self._counted.get(name, 0)
            if now != before:
                # a restarted driver counts from 0
                self._refused = {
                    **self._refused,
                    name: self._refused.get(name, 0) + now - (before if now > before else 0),
                }
                self._counted[name] = now

    def _standing(self, now_us: int) -> tuple[int | None, str]:
        machine = self.machine
        assert isinstance(machine, Gateway)
        return standing(machine, now_us)

    def _notes(self) -> list[Note]:
        return super()._notes() + self.sensors.notes()

    def close(self) -> None:
        self.sensors.close()
        super().close()

    def counters(self) -> dict[str, object]:
        """The counters of the node, with the quality counters of every sensor."""
        machine = self.machine
        assert isinstance(machine, Gateway)
        return {**super().counters(), **machine.counters(), "quality": self.sensors.counters()}


def _named(definitions: Iterable[Definition]) -> frozenset[str]:
    """The files that sensors of the local file read."""
    return paths_of(each.value for each in definitions if isinstance(each.value, Sensor))


def _source(sensor: Sensor) -> str:
    """The identity of the source of a position."""
    return repr(source_of(sensor))


def _whole(sensor: Sensor) -> str:
    """The identity as earlier versions stored it: with all options, the speed of a file too."""
    return repr((sensor.driver, sensor.options))


def _state_text(state: Mapping[str, object]) -> bytes:
    return json.dumps(state, ensure_ascii=False, separators=(",", ":")).encode()


def _names(text: str) -> set[str]:
    """The filters in a text of the slot; none in ''."""
    return set(json.loads(text or "[]"))


def _positions(restored: Mapping[str, object]) -> dict[str, object]:
    """Sensor -> position, from the machine's slots."""
    return {name: source.position for name, source in SOURCE.each(restored) if source.position is not None}
