"""The loop of every process: wait for events, pass them to the machine, perform its actions. Start reading here.

A process is one thread. `turn` sleeps until a connection is ready or something is due, turns messages into events,
passes each event to the machine with the time, and performs the returned actions in order. node_loop.py is the loop of
gateways and regions, lander.py that of the lander.
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

LONGEST_S: Final = 1.0  # the longest sleep, so that the machine gets a tick at least this often
LISTEN_EVERY_US: Final = 5_000_000  # between two checks for brokers that deliver nothing
QUIET_US: Final = 60_000_000  # time without an expected message until a reconnect; senders repeat within a minute
LONGEST_QUIET_US: Final = 3_600_000_000  # the same after many reconnects in vain

E = TypeVar("E")
A = TypeVar("A")
E_contra = TypeVar("E_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


class Machine(Protocol[E_contra, A_co]):
    """Events in, actions out."""

    def handle(self, event: E_contra, now_us: int, /) -> Iterable[A_co]:
        """The actions that follow from an event."""


class SilentBroker:
    """Decides when to reconnect because the broker has ceased to deliver messages on a connection.

    A broker limits the QoS 1 messages in flight to a client. Mosquitto drops packets for a client whose queue is full,
    also packets that it has counted as in flight. Once it has dropped as many as the limit, the client gets no more QoS
    1 messages, though pings and messages of QoS 0 arrive. A new connection resets the count.
    """

    def __init__(self) -> None:
        self._received = 0
        self._since_us: int | None = None  # since when a message has been missing; None: none is missing
        self._limit_us = QUIET_US

    def connect_anew(self, now_us: int, received: int, *, missing: bool) -> bool:
        """Whether to reconnect: a message has been missing for the limit, and no other message has arrived meanwhile.

        received: a count that grows with each message of QoS 1. missing: whether a message was sent to this node and
        has not arrived. The limit is a minute. It doubles with each reconnect in vain, up to an hour.
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
    """One machine as a process. connections: all of the process. hearing: the last subscription was accepted."""

    def __init__(self, machine: Machine[E, A], clock: SystemClock, waiter: Waiter, connection: Connection) -> None:
        self._decides, self.clock, self.waiter = machine, clock, waiter
        self.connections = [connection]
        self.stopping = self.hearing = False
        self.guard: Guard | None = None
        self.handling: tuple[str, bytes] | None = None  # topic and payload of the present message
        self._own_refusals = Refusals()
        self.turned = False  # at least one turn has ended
        self._silent: dict[Connection, SilentBroker] = {}
        self._listened_us = 0
        self._events: deque[E] = deque()
        self._systemd = ServiceManager()

    # --- life ------------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Serve until `stop`, or until `until` returns True; then finish and close everything.

        Raises: ProtocolError for bugs of this program.
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
        """Wait for events, at most longest_s seconds, and handle them."""
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
        """Pass an event to the machine and perform its actions; repeat for the events that follow from these."""
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
        """Prepare a turn before its time is read, for example by judging the clock."""

    # --- what a role adds ------------------------------------------------------------------------------------------

    @abstractmethod
    def _pause_s(self, now_us: int) -> float:
        """The time until something is due, in seconds."""

    @abstractmethod
    def _perform(self, action: A, now_us: int) -> Iterable[E]:
        """Perform an action of the machine. Returns the events that follow."""

    @abstractmethod
    def _retry(self, now_us: int) -> Iterable[E]:
        """Repeat a failed write when it is time. Returns the events that follow."""

    @abstractmethod
    def _gathered(self, now_us: int) -> Iterable[E]:
        """Returns the events of a turn that are not messages; the last is a tick."""

    @abstractmethod
    def _settle(self, now_us: int) -> None:
        """Do the work at the end of a turn, such as publishing the status."""

    @abstractmethod
    def _finish(self, now_us: int) -> None:
        """Do the last work of the process, while connections are still open."""

    @abstractmethod
    def _messages(self, connection: Connection, messages: list[Message], now_us: int) -> None:
        """Handle messages. Set `handling` while handling a single message."""

    def _left_out(self, connection: Connection, message: Message, why: str, now_us: int) -> None:
        """Settle a message that the guard leaves out, so that the broker does not send it again."""
        connection.ack([message[2]])

    def _make_durable(self, now_us: int) -> None:
        """Commit the effects of the last message, so that a later failure is not blamed on it."""

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
        """Handle a new connection."""

    @abstractmethod
    def _on_down(self, connection: Connection, report: Down, now_us: int) -> None:
        """Handle a connection that was lost or could not be made."""

    @abstractmethod
    def _taken(self, connection: Connection, report: Taken, now_us: int) -> None:
        """Handle the broker's answer to a publish."""

    def _confirmed(self, connection: Connection, tokens: tuple[int, ...], now_us: int) -> None:
        """Handle the confirmation that a broker has read the acknowledgements with these tokens."""

    def _lacks(self, connection: Connection) -> bool:
        """Whether a message was sent to this node over the connection and has not arrived."""
        return False

    # --- reports of connections ------------------------------------------------------------------------------------

    def _renew_silent(self, now_us: int) -> None:
        """Reconnect to each broker that has ceased to deliver messages sent to this node."""
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
                    self._confirmed(connection, tokens, now_us)
                case Subscribed():
                    refused = [name for name, code in report.results if code >= REFUSED_CODE]
                    for name in refused:
                        log.error("subscription.refused", extra={"broker": broker, "topic": name})
                    self.hearing = not refused
                case RefusedPublish():
                    fields = {"topic": report.topic, "why": report.why, "size_bytes": report.size_bytes}
                    if self.refusals.add(report.why, report.topic):
                        log.warning("message.refused", extra=fields)
