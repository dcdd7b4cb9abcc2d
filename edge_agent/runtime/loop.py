"""The one place that waits: an event comes in, the machine decides, the loop performs its actions. Start reading here.

A process is one thread. `turn` sleeps until a connection is ready or something is due, turns what arrived into events,
passes each to the machine with the time, and performs the returned actions in order. node_loop.py adds what gateways
and regions share; lander.py is the lander's loop.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from edge_agent.ports.clock import SystemClock
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import REFUSED_CODE, Confirmed, Down, Messages, Subscribed, Taken, Up
from edge_agent.ports.mqtt.packets import Message, RefusedPublish
from edge_agent.ports.service_manager import ServiceManager
from edge_agent.ports.waiter import Waiter
from edge_agent.runtime.guard import Guard
from edge_agent.runtime.refusals import Refusals

log = logging.getLogger("headwater")

LONGEST_S: Final = 1.0  # the longest sleep: the machine is asked at least so often
LISTEN_EVERY_US: Final = 5_000_000  # between two looks whether connections bring what others send
QUIET_US: Final = 60_000_000  # a message that is sent again waits up to a minute
LONGEST_QUIET_US: Final = 3_600_000_000

E = TypeVar("E")
A = TypeVar("A")
E_contra = TypeVar("E_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


class Machine(Protocol[E_contra, A_co]):
    """Events in, actions out."""

    def handle(self, event: E_contra, now_us: int, /) -> Iterable[A_co]:
        """The actions that follow from an event."""


class SilentBroker:
    """Decides when one connection is made anew because the broker has ceased to deliver on it.

    A broker has a limited number of QoS 1 messages in flight to a client. Mosquitto drops packets for a client whose
    queue is full, also packets that it has counted as in flight. Once it has dropped as many as the limit, the client
    gets no QoS 1 message any more, though pings and messages of QoS 0 arrive. A new connection resets the count.
    """

    def __init__(self) -> None:
        self._received = 0
        self._since_us: int | None = None  # the first look at which a message was missing; None: none is
        self._limit_us = QUIET_US

    def connect_anew(self, now_us: int, received: int, *, missing: bool) -> bool:
        """True once a message has been missing for the limit and none has arrived meanwhile.

        received: a count that grows with each message of QoS 1. missing: somebody sent a message that has not arrived.
        The limit is a minute. It doubles with each new connection that brings nothing, up to an hour.
        """
        if received != self._received:
            self._received, self._since_us, self._limit_us = received, None, QUIET_US
        if not missing:
            self._since_us = None
            return False
        if self._since_us is None:
            self._since_us = now_us
        if now_us - self._since_us < self._limit_us:
            return False
        self._since_us, self._limit_us = None, min(2 * self._limit_us, LONGEST_QUIET_US)
        return True


class Loop(ABC, Generic[E, A]):
    """One machine as a process. connections: all that it receives from. hearing: the last subscription was accepted."""

    def __init__(self, machine: Machine[E, A], clock: SystemClock, waiter: Waiter, connection: Connection) -> None:
        self._decides, self.clock, self.waiter = machine, clock, waiter
        self.connections = [connection]
        self.stopping = self.hearing = False
        self.guard: Guard | None = None
        self.handling: tuple[str, bytes] | None = None  # topic and payload of the message that is being handled
        self._own_refusals = Refusals()
        self.turned = False  # at least one turn has ended
        self._silent: dict[Connection, SilentBroker] = {}
        self._listened_us = 0
        self._events: deque[E] = deque()
        self._systemd = ServiceManager()

    # --- life ------------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Serve until `stop`, or until `until` returns True; then finish and let go.

        Raises: ProtocolError for our own bugs.
        """
        try:
            self.start()
            self._systemd.ready()
            while not (self.stopping or (until is not None and until())):
                self.turn()
                self.turned = True
                if self.guard is not None:
                    self.guard.turned()
                self._systemd.alive()
            self._systemd.stopping()
            self._finish(self.clock.now_us())
        finally:
            self.close()

    def start(self) -> None:
        for connection in self.connections:
            connection.open()

    def stop(self) -> None:
        """End after this turn; may be called from a signal handler."""
        self.stopping = True
        self.waiter.wake()

    def turn(self, longest_s: float = LONGEST_S) -> None:
        """Wait for something to happen, at most that long, and handle it."""
        self.waiter.wait(self.connections, min(longest_s, self._pause_s(self.clock.now_us())))
        self._look()
        now_us = self.clock.now_us()
        if step_us := self.clock.step_us():
            log.warning("clock.stepped", extra={"by_s": step_us / 1e6})
        self._events.extend(self._retry(now_us))
        for connection in self.connections:
            self._hear(connection, now_us)
        for event in self._gathered(now_us):
            self.feed(event, now_us)
        self._settle(now_us)
        self._renew_silent(self.clock.boot_us())

    def feed(self, event: E, now_us: int) -> None:
        """Give an event to the machine, perform its actions, and so on until no event is left."""
        self._events.append(event)
        while self._events:
            for action in self._decides.handle(self._events.popleft(), now_us):
                self._events.extend(self._perform(action, now_us))

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.waiter.close()
        self._systemd.close()

    @property
    def refusals(self) -> Refusals:
        """Counts of refused messages and values, including those of earlier loops of this process."""
        return self._own_refusals if self.guard is None else self.guard.refusals

    def _look(self) -> None:
        """Read the clock before anything gets its time."""

    # --- what a role adds ------------------------------------------------------------------------------------------

    @abstractmethod
    def _pause_s(self, now_us: int) -> float:
        """The time until something is due, in seconds."""

    @abstractmethod
    def _perform(self, action: A, now_us: int) -> Iterable[E]:
        """Perform an action of the machine. Returns the events that follow."""

    @abstractmethod
    def _retry(self, now_us: int) -> Iterable[E]:
        """Repeat what a disk refused, when its time has come. Returns the events that follow."""

    @abstractmethod
    def _gathered(self, now_us: int) -> Iterable[E]:
        """Events besides messages; the last one is a tick."""

    @abstractmethod
    def _settle(self, now_us: int) -> None:
        """Do what the end of a turn requires."""

    @abstractmethod
    def _finish(self, now_us: int) -> None:
        """End in order: connections are still open."""

    @abstractmethod
    def _messages(self, connection: Connection, messages: list[Message], now_us: int) -> None:
        """Handle messages. Sets `handling` while it handles a single one."""

    def _left_out(self, connection: Connection, message: Message, why: str, now_us: int) -> None:
        """Settle a message that the guard leaves out, where it came from."""
        connection.ack([message[2]])

    def _make_durable(self, now_us: int) -> None:
        """Commit the effects of the last message, so that a later failure is not its own."""

    def _guarded(self, connection: Connection, messages: list[Message], now_us: int) -> None:
        guard = self.guard
        self.handling = messages[0][:2] if len(messages) == 1 else None
        if guard is None or guard.calm:
            self._messages(connection, messages, now_us)
            self.handling = None
            return
        good = list[Message]()
        for message in messages:
            if why := guard.why_left_out(message[0], message[1]):
                self._left_out(connection, message, why, now_us)
            elif guard.one_by_one:
                self.handling = message[:2]
                guard.begins(*message[:2])
                self._messages(connection, [message], now_us)
                self.handling = message[:2]
                self._make_durable(now_us)
                guard.passed()
                self.handling = None
            else:
                good.append(message)
        if good:
            self._messages(connection, good, now_us)
        self.handling = None

    @abstractmethod
    def _on_up(self, connection: Connection, report: Up, now_us: int) -> None:
        """A connection was made."""

    @abstractmethod
    def _on_down(self, connection: Connection, report: Down, now_us: int) -> None:
        """A connection was lost, or could not be made."""

    @abstractmethod
    def _taken(self, connection: Connection, report: Taken, now_us: int) -> None:
        """The broker answered for a publish."""

    def _confirmed(self, connection: Connection, tokens: tuple[int, ...]) -> None:
        """A broker has read these acknowledgements."""

    def _lacks(self, connection: Connection) -> bool:
        """Whether somebody sent a message over this connection that has not arrived."""
        return False

    # --- hearing ---------------------------------------------------------------------------------------------------

    def _renew_silent(self, now_us: int) -> None:
        """Connect anew to each broker that has ceased to deliver messages which were sent to this node."""
        if now_us < self._listened_us + LISTEN_EVERY_US:
            return
        self._listened_us = now_us
        for connection in self.connections:
            silent = self._silent.setdefault(connection, SilentBroker())
            if silent.connect_anew(now_us, connection.heard, missing=connection.up and self._lacks(connection)):
                connection.renew("the broker delivers no QoS 1 message, although some were sent to this node")

    def _hear(self, connection: Connection, now_us: int) -> None:
        broker = connection.link.url
        for report in connection.take():
            match report:
                case Messages(messages):
                    self._guarded(connection, messages, now_us)
                case Taken():
                    self._taken(connection, report, now_us)
                case Up():
                    log.info("link.up", extra={"broker": broker, "session": report.session_present})
                    self._on_up(connection, report, now_us)
                case Down():
                    self.hearing = False
                    retry_s = round(report.retry_s, 1)
                    log.warning("link.down", extra={"broker": broker, "why": report.why, "retry_s": retry_s})
                    self._on_down(connection, report, now_us)
                case Confirmed(tokens):
                    self._confirmed(connection, tokens)
                case Subscribed():
                    refused = [name for name, code in report.results if code >= REFUSED_CODE]
                    for name in refused:
                        log.error("subscription.refused", extra={"broker": broker, "topic": name})
                    self.hearing = not refused
                case RefusedPublish():
                    fields = {"topic": report.topic, "why": report.why, "size_bytes": report.size_bytes}
                    if self.refusals.add(report.why, report.topic):
                        log.warning("message.refused", extra=fields)
