"""One MQTT connection that stays connected, driven by the caller's loop.

Connecting, back-off, reading and acknowledging are here; paho does everything else (paho_client.py). No call blocks: a
short-lived thread resolves names and sets up TCP and TLS; all other work happens in the caller's loop (`Waiter`).

A PUBACK does not mean that a message is durable (docs/protocol.md 3). It only permits the next publish.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any, Final

from edge_agent.ports.mqtt.backoff import Backoff
from edge_agent.ports.mqtt.dial import Dial
from edge_agent.ports.mqtt.link import Confirmed, Down, Link, Messages, Report, Subscribed, Taken, TooLargeError, Up
from edge_agent.ports.mqtt.outgoing import Outgoing, QueuedPublish, in_packets, size_bytes
from edge_agent.ports.mqtt.packets import Splitter, acknowledgements
from edge_agent.ports.mqtt.paho_client import PahoClient
from edge_agent.ports.mqtt.socket_stream import READ_BYTES, SocketStream

IDLE_BYTES: Final = 64 * 1024  # after a read of fewer bytes the next read waits `read_every_s`
FLUSH_S: Final = 1.0  # an orderly close sends queued packets for at most this long
ENDS_OF_ONE: Final = frozenset({0x8D, 0x8E})  # keep-alive timeout, session taken over: other clients stay connected
TOO_LARGE: Final = 0x95  # the broker ends a connection for a packet beyond its limit
RAISE: Final = "raise its limit (max_packet_size of Mosquitto)"
ANSWER_KEEPALIVES: Final = 2  # reconnect if a publish is unanswered for this many keep-alive intervals
MOST_LEAVING: Final = 4_096  # filters to leave that are remembered; those beyond stay in the session
PUBLISH_OVERHEAD: Final = 32  # upper bound of fixed header, lengths, packet id and the properties in use


class Connection:
    """One client of one broker.

    Call `open` once, then `on_readable`, `on_writable` and `misc` when they are due (see `Waiter`). `take` returns the
    reports. Not thread-safe.
    """

    def __init__(self, link: Link, *, seed: int | None = None, now: Callable[[], float] = time.monotonic) -> None:
        link.address()
        self.link = link
        self.up = False
        self.maximum_packet_bytes: int | None = None  # the broker's, from CONNACK
        self.heard = 0  # reads that brought messages of QoS 1
        self._in_bytes = self._out_bytes = 0  # totals of earlier connections
        self._now = now
        self._backoff = Backoff(*link.backoff_s, seed, link.spread_s)
        self._reports: list[Report] = []
        self._filters: dict[str, int] = {}
        self._leaving: dict[str, int | None] = {}  # filter that the session may have -> mid of its UNSUBSCRIBE, if sent
        self._client: PahoClient | None = None
        self._stream: SocketStream | None = None
        self._generation = 0
        self._dial: Dial | None = None
        self._wanted = False
        self._due = 0.0  # when to begin the next attempt, end the current one, or let paho do its housekeeping
        self._since = 0.0  # when this attempt or connection began
        self._quiet_until = 0.0
        self._outgoing = Outgoing(self._send, now)
        self._tokens = 0
        self._unanswered = 0  # connections in a row that the broker ended before it answered CONNECT
        self._subscribing: dict[int, tuple[str, ...]] = {}  # mid of a SUBSCRIBE -> its filters
        self._buffer = mmap(-1, READ_BYTES, MAP_PRIVATE | MAP_ANONYMOUS)  # pages that no read has used take no memory

    # --- life ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect, and reconnect from now on."""
        self._wanted, self._due = True, self._now()
        self.misc()

    def close(self, flush_s: float = FLUSH_S) -> None:
        """Send queued packets, disconnect so that the broker does not publish the will, and stay disconnected."""
        self._wanted = False
        if self._dial is not None:
            self._dial.abandon()
            self._dial = None
        client = self._client
        if client is not None and self.up:
            client.on_disconnect = None
            client.part(flush_s)
        self._forget(client)

    def renew(self, why: str) -> None:
        """Drop the connection and connect again. why: for the report `Down`."""
        if self.up:
            self._drop(why)

    def misc(self) -> None:
        """Do timed work: connect, give up an attempt, keep-alive. Call it at `due` or more often."""
        now = self._now()
        if self._dial is not None:
            if self._dial.done:
                self._dialled()
            return
        if now < self._due:
            return
        if self._client is None:
            if self._wanted:
                self._since = now
                self._dial = Dial(self.link)
                self._due = now + self.link.connect_timeout_s
        elif not self.up:
            self._drop("no answer to CONNECT")
        elif self._outgoing.unanswered_s > ANSWER_KEEPALIVES * self.link.keepalive_s:
            # If the queue of a subscriber is full, a broker may drop a publish without an answer. The message is lost,
            # and it uses up our quota until we reconnect.
            self._drop(f"no answer to a publish for {self._outgoing.unanswered_s:.0f} s")
        else:
            self._due = now + 1.0
            self._client.loop_misc()

    @property
    def due(self) -> float:
        """Monotonic time at which to call `misc` and `on_readable` even if no socket is ready."""
        if self.unread:
            return 0.0
        if self._quiet_until > self._now():
            return min(self._due, self._quiet_until)
        return self._due if self._dial is None else self._now() + 1.0

    def fileno(self) -> int:
        """The socket to wait on for reading; -1 if there is none."""
        if self._dial is not None:
            return self._dial.fileno()
        return -1 if self._stream is None else self._stream.fileno()

    @property
    def wants_read(self) -> bool:
        """False for a while after a small read, so that many small messages are read together."""
        return self._now() >= self._quiet_until

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait until the socket accepts them."""
        return self._client is not None and self._client.want_write()

    @property
    def unread(self) -> bool:
        """Whether reading stopped before the socket was empty: read again without polling."""
        return self._stream is not None and self._stream.more

    def take(self) -> list[Report]:
        """Reports since the last call, in order."""
        reports, self._reports = self._reports, []
        return reports

    # --- connecting ------------------------------------------------------------------------------------------------

    def _dialled(self) -> None:
        dial, self._dial = self._dial, None
        assert dial is not None
        sock = dial.take()
        if sock is None:
            self._failed(dial.why, was_up=False, local=dial.local)
            return
        link = self.link
        self._generation += 1
        splitter = Splitter(link.modern, self._generation, link.max_packet_bytes)
        stream = self._stream = SocketStream(sock, splitter, self._buffer)
        client = self._client = PahoClient(link, stream)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_unsubscribe = self._on_unsubscribe
        self._due = self._now() + link.connect_timeout_s
        try:
            client.begin(dial.password)
        except OSError as err:
            self._drop(stream.why or f"{err.strerror or err}")

    def _on_connect(self, _client: object, _data: object, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._drop(f"refused: {reason}")
            return
        self.up, self._since = True, self._now()
        self._due = self._since + 1.0
        self.maximum_packet_bytes = getattr(properties, "MaximumPacketSize", None)
        self._outgoing.quota = getattr(properties, "ReceiveMaximum", 65535)
        keepalive_s = getattr(properties, "ServerKeepAlive", None)
        client = self._client
        assert client is not None
        if keepalive_s is not None:
            client.obey_keepalive(keepalive_s)
        self._reports.append(Up(bool(flags.session_present)))
        self._subscribe(self._filters.items())
        if flags.session_present:
            self._unsubscribe(self._leaving)
        else:
            self._leaving.clear()
        if self.link.confirm_acks and client is self._client:
            client.fence(())

    def _on_disconnect(self, _client: object, _data: object, _flags: Any, reason: Any, _properties: Any) -> None:
        stream, why = self._stream, str(reason)
        if stream is not None:
            why = stream.why or ("closed by the broker" if stream.ended else why)
        too_large = reason.value == TOO_LARGE
        if too_large and self.maximum_packet_bytes is not None:
            why += f": the broker accepts packets of at most {self.maximum_packet_bytes} bytes; {RAISE}"
        self._drop(why, alone=reason.value in ENDS_OF_ONE, limit=too_large)

    def _drop(self, why: str, *, alone: bool = True, limit: bool = False) -> None:
        """End this attempt or connection and report why.

        alone: the broker's other clients stay connected. limit: it accepts smaller packets only, which will not pass by
        itself. Else a second client with this id may be the cause.
        """
        client, was_up = self._client, self.up
        if client is None:
            return
        lasted_s, stream = self._now() - self._since, self._stream
        self._unanswered = self._unanswered + 1 if not was_up and stream is not None and stream.ended else 0
        if stream is not None and self._unanswered > 1:  # the broker says nothing to a CONNECT that is too large
            why += f", again before an answer to CONNECT: if it accepts no packet of {stream.out_bytes} bytes, {RAISE}"
        self._forget(client)
        if was_up:
            self._backoff.ended_with_others(not alone)
        if was_up and self._backoff.lived(lasted_s):
            why += f", again {lasted_s:.1f} s after connecting"
            why += "" if limit else f": does another client use {self.link.client_id!r}?"
        self._failed(why, was_up=was_up, limit=limit)

    def _failed(self, why: str, *, was_up: bool, local: bool = False, limit: bool = False) -> None:
        # If a certificate file is missing, no broker notices the attempt: try again soon, however often it failed.
        pause_s = self._backoff.first_pause_s() if local else self._backoff.pause_s()
        pause_s = self._backoff.longest_pause_s() if limit else pause_s
        self._due = self._now() + pause_s
        self._reports.append(Down(why, pause_s, was_up))

    def _forget(self, client: PahoClient | None) -> None:
        if client is not None:
            client.on_disconnect = None
        stream, self._client, self._stream = self._stream, None, None
        self.up = False
        self._quiet_until = 0.0
        if stream is not None:
            self._in_bytes += stream.in_bytes
            self._out_bytes += stream.out_bytes
            stream.close()
        self._outgoing.clear()
        self._subscribing.clear()

    def give_back(self) -> None:
        """Release the memory of cached topics."""
        if self._stream is not None:
            self._stream.splitter.forget_topics()

    # --- receiving -------------------------------------------------------------------------------------------------

    def on_readable(self) -> None:
        """Read all available bytes, in large pieces. `take` returns the reports."""
        if self._dial is not None:
            self.misc()
            return
        stream = self._stream
        if stream is None:
            return
        got, others = stream.read()
        if 0 < got < IDLE_BYTES and self.up:
            self._quiet_until = self._now() + self.link.read_every_s
        if not self.up:
            self._pass_on(stream, others)  # CONNACK first: `Up` is reported before the messages
            others = b""
        splitter = stream.splitter
        if splitter.messages:
            messages, splitter.messages = splitter.messages, []
            self.heard += any(message[2] for message in messages)
            self._reports.append(Messages(messages))
            if not self.link.manual_ack:
                self.ack([message[2] for message in messages])
        if splitter.refused:
            refused, splitter.refused = splitter.refused, []
            self._reports += refused
            self.ack([each.token for each in refused])  # otherwise the broker would send them again for ever
        self._pass_on(stream, others)

    def _pass_on(self, stream: SocketStream, others: bytes) -> None:
        """Let paho read the packets `others`, or the end of the connection."""
        stream.ready += others
        client = self._client
        while client is not None and client is self._client and (stream.ready or stream.ended):
            lost = client.read_some()
            if lost and client is self._client:
                self._drop(lost)
        if client is not None and client.passed:
            passed, client.passed = client.passed, []
            self._reports += map(Confirmed, passed)

    def ack(self, tokens: Iterable[int]) -> None:
        """Acknowledge messages of QoS 1. Tokens of an earlier connection and token 0 are ignored."""
        client, generation = self._client, self._generation
        mine = [token for token in tokens if token >> 16 == generation and token]
        if mine and client is not None:
            client.write(acknowledgements(mine))
            if self.link.confirm_acks:
                client.fence(tuple(mine))

    # --- sending -------------------------------------------------------------------------------------------------

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, expiry_s: int | None = None
    ) -> int | None:
        """Publish a message. Returns None if not connected (try again later), else the token that `Taken` will carry.

        While the broker's Receive Maximum is reached, messages of QoS 1 wait here; if the connection is lost, they are
        dropped. Raises: TooLargeError if the message exceeds the broker's maximum packet size.
        """
        limit = self.maximum_packet_bytes
        if limit is not None and len(payload) + len(topic.encode()) + PUBLISH_OVERHEAD > limit:
            raise TooLargeError(f"{topic}: {len(payload)} bytes; the broker accepts packets of at most {limit} bytes")
        if not self.up:
            return None
        self._tokens += 1
        self._outgoing.add(QueuedPublish(self._tokens if qos else 0, topic, payload, retain, expiry_s))
        return self._tokens

    def _send(self, publish: QueuedPublish) -> int | None:
        client = self._client
        if client is None:
            return None
        mid = client.publish_packet(
            publish.topic, publish.payload, 1 if publish.token else 0, publish.retain, publish.expiry_s
        )
        return mid if client is self._client else None

    def _on_publish(self, _client: object, _data: object, mid: int, reason: Any, _properties: Any) -> None:
        token = self._outgoing.answered(mid)
        if token is not None:
            self._reports.append(Taken(token, reason.value, str(reason)))
        self._outgoing.send_waiting()

    @property
    def out_bytes(self) -> int:
        """Bytes written to the broker so far, all packets, without TLS."""
        return self._out_bytes + (self._stream.out_bytes if self._stream is not None else 0)

    @property
    def in_bytes(self) -> int:
        """Bytes read from the broker so far, all packets, without TLS."""
        return self._in_bytes + (self._stream.in_bytes if self._stream is not None else 0)

    def subscribe(self, filters: Mapping[str, int]) -> None:
        """Subscribe to these filters (filter -> QoS), now and after every reconnect."""
        new = {name: qos for name, qos in filters.items() if self._filters.get(name) != qos}
        self._filters.update(new)
        for name in new:
            self._leaving.pop(name, None)
        if self.up:
            self._subscribe(new.items())

    def unsubscribe(self, filters: Iterable[str]) -> None:
        """Leave these filters, also if the session has them of an earlier process. Repeated until the broker answers.

        To replace filters, subscribe to the new ones first: between the two, the broker would queue no message.
        """
        gone = list(filters)
        for name in gone:
            self._filters.pop(name, None)
            self._leaving[name] = None
        while len(self._leaving) > MOST_LEAVING:
            del self._leaving[next(iter(self._leaving))]
        if self.up:
            self._unsubscribe(gone)

    @property
    def leaving(self) -> tuple[str, ...]:
        """Filters that the session may still have, because the broker has not confirmed that they were left."""
        return tuple(self._leaving)

    def _unsubscribe(self, filters: Iterable[str]) -> None:
        gone = list(filters)
        for names in in_packets(gone, self.maximum_packet_bytes):
            if self._client is not None and self._fits(names):
                _, mid = self._client.unsubscribe(names)
                self._leaving.update(dict.fromkeys(self._leaving.keys() & names, mid))

    def _on_unsubscribe(self, _client: object, _data: object, mid: int, _reasons: Any, _properties: Any) -> None:
        self._leaving = {name: sent for name, sent in self._leaving.items() if sent != mid}

    def _subscribe(self, filters: Iterable[tuple[str, int]]) -> None:
        wanted = dict(filters)
        for names in in_packets(wanted, self.maximum_packet_bytes):
            if not self._fits(names):
                self._drop(
                    f"the broker accepts packets of at most {self.maximum_packet_bytes} bytes, and to subscribe to "
                    f"{names[0]} takes {size_bytes(names)}; {RAISE}",
                    limit=True,
                )
            elif self._client is not None:
                mid = self._client.subscribe_to([(name, wanted[name]) for name in names])
                if mid is not None:
                    self._subscribing[mid] = tuple(names)

    def _fits(self, filters: list[str]) -> bool:
        return self.maximum_packet_bytes is None or size_bytes(filters) <= self.maximum_packet_bytes

    def _on_subscribe(self, _client: object, _data: object, mid: int, reasons: Any, _properties: Any) -> None:
        names = self._subscribing.pop(mid, ())
        self._reports.append(
            Subscribed(tuple((name, reason.value) for name, reason in zip(names, reasons, strict=False)))
        )

    def on_writable(self) -> None:
        """Send waiting bytes. Call it when the socket is writable."""
        if self._client is not None:
            self._client.write_some()
