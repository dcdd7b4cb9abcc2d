"""One MQTT connection, driven by whoever waits: the only importer of paho.

paho does the handshakes, keep-alive, subscriptions and publishing; dialling, back-off, reading and acknowledging are
here. Nothing blocks: names are resolved, TCP and TLS set up in a short-lived thread; all else happens in the caller's
loop (`Waiter`). Each connection attempt uses a fresh paho client, so nothing that paho kept is ever sent twice.

A PUBACK means nothing durable (docs/protocol.md 3): it only makes room for the next publish.
"""

from __future__ import annotations

import random
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from edge_agent.ports.dial import Dial
from edge_agent.ports.link import Confirmed, Down, Link, Messages, Report, Subscribed, Taken, TooLargeError, Up, Will
from edge_agent.ports.packets import DUP, RETAIN, Message, Refused, Splitter, acknowledgements
from edge_agent.ports.stream import READ_BYTES, Stream

__all__ = [
    "DUP",
    "RETAIN",
    "Confirmed",
    "Connection",
    "Down",
    "Link",
    "Message",
    "Messages",
    "Refused",
    "Report",
    "Subscribed",
    "Taken",
    "TooLargeError",
    "Up",
    "Will",
]

IDLE_BYTES: Final = 64 * 1024  # a read smaller than this found little waiting: the next may wait `read_every_s`
STABLE_S: Final = 30.0  # up that long, a connection counts as good and the back-off begins anew
FLUSH_S: Final = 1.0  # an orderly close gives what is queued that long to leave
PUBACK: Final = 0x40
PINGREQ: Final = 0xC0
DISCONNECT: Final = b"\xe0\x00"  # an orderly end in either version: no will
PUBLISH_OVERHEAD: Final = 32  # fixed header, lengths, packet id and the properties we use, generously


class _Client(paho.Client):
    """paho on a socket that is already connected."""

    def __init__(self, link: Link, stream: Stream) -> None:
        modern = link.version == MQTTProtocolVersion.MQTTv5
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=link.client_id,
            clean_session=None if modern else link.clean_start,
            protocol=MQTTProtocolVersion(link.version),
            reconnect_on_failure=False,
            manual_ack=True,  # acknowledging is ours in either case
        )
        self.max_inflight_messages_set(65535)  # we hand over no more than the broker allows
        self.fences: deque[tuple[int, ...] | None] = deque()  # of each PINGREQ under way; None: a mere keep-alive
        self.passed: list[tuple[int, ...]] = []  # of fences that were answered
        self._stream = stream

    def _create_socket(self) -> Any:
        return self._stream

    def fence(self, tokens: tuple[int, ...]) -> None:
        """Ask for an answer behind all that was written so far: MQTT answers PINGREQ, unlike PUBACK."""
        self.fences.append(tokens)
        self._send_simple_command(PINGREQ)

    def _send_pingreq(self) -> MQTTErrorCode:
        self.fences.append(None)
        return super()._send_pingreq()

    def _handle_pingresp(self) -> MQTTErrorCode:
        tokens = self.fences.popleft() if self.fences else None
        if tokens is None:
            return super()._handle_pingresp()
        self.passed.append(tokens)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def write(self, packets: bytes) -> None:
        """Send finished packets behind what is queued."""
        self._packet_queue(PUBACK, packets, 0, 1)

    def obey_keepalive(self, keepalive_s: int) -> None:
        """For paho 2.1, which does not take the server's keep-alive from CONNACK by itself."""
        self._keepalive = keepalive_s


class Connection:
    """One client at one broker: dials, keeps itself connected, splits what comes, limits what goes.

    Call `open` once; then, whenever the `Waiter` or you find it due, `on_readable`, `on_writable` and `misc`; `take`
    what it reports. Not thread-safe.
    """

    def __init__(self, link: Link, *, seed: int | None = None, now: Callable[[], float] = time.monotonic) -> None:
        link.address()
        self.link = link
        self.up = False
        self.maximum_packet_bytes: int | None = None  # the broker's, from CONNACK
        self._in_bytes = self._out_bytes = 0  # of earlier connections
        self._now = now
        self._jitter = random.Random(seed)
        self._reports: list[Report] = []
        self._filters: dict[str, int] = {}
        self._client: _Client | None = None
        self._stream: Stream | None = None
        self._generation = 0
        self._dial: Dial | None = None
        self._wanted = False
        self._attempts = 0
        self._short_lives = 0  # connections in a row that did not last
        self._due = 0.0  # of the next attempt, of the end of this one, or of paho's housekeeping
        self._since = 0.0  # when this attempt or connection began
        self._quiet_until = 0.0
        self._quota = 65535  # publishes of QoS 1 the broker lets be open
        self._open: dict[int, int] = {}  # mid -> token of publishes without PUBACK
        self._waiting: deque[tuple[int, str, bytes, bool, int | None]] = deque()
        self._tokens = 0
        self._asked: dict[int, tuple[str, ...]] = {}  # mid of a SUBSCRIBE -> its filters
        self._buffer = bytearray(READ_BYTES)

    # --- life ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """From now on, be connected."""
        self._wanted, self._due = True, self._now()
        self.misc()

    def close(self, flush_s: float = FLUSH_S) -> None:
        """Send what is queued, say goodbye (no will), and stay disconnected."""
        self._wanted = False
        if self._dial is not None:
            self._dial.abandon()
            self._dial = None
        client, stream = self._client, self._stream
        if client is not None and stream is not None and self.up:
            client.on_disconnect = None
            self._part(client, stream, self._now() + flush_s)
        self._forget(client)

    def _part(self, client: _Client, stream: Stream, until: float) -> None:
        """Say goodbye behind what is queued, and wait until the broker has read it.

        A socket closed with answers unread in it is reset, and what the broker had not read yet is lost.
        """
        try:
            stream.sock.settimeout(max(0.01, until - self._now()))
            client.write(DISCONNECT)
            while client.want_write() and self._now() < until and client.loop_write() == MQTTErrorCode.MQTT_ERR_SUCCESS:
                pass
            stream.sock.shutdown(socket.SHUT_WR)
            while self._now() < until and stream.sock.recv_into(self._buffer):
                pass
        except OSError:
            pass  # it was gone already

    def misc(self) -> None:
        """Whatever the time asks for: dial, give up an attempt, keep-alive. Call it at `due` or more often."""
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
        else:
            self._due = now + 1.0
            self._client.loop_misc()

    @property
    def due(self) -> float:
        """Monotonic time at which `misc` or `on_readable` is wanted even if no socket is ready."""
        if self.unread:
            return 0.0
        if self._quiet_until > self._now():
            return min(self._due, self._quiet_until)
        return self._due if self._dial is None else self._now() + 1.0

    def fileno(self) -> int:
        """What to wait on for reading; -1 if nothing is."""
        if self._dial is not None:
            return self._dial.fileno()
        return -1 if self._stream is None else self._stream.fileno()

    @property
    def wants_read(self) -> bool:
        """False for a while after a small read, so that many small messages are read together."""
        return self._now() >= self._quiet_until

    @property
    def wants_write(self) -> bool:
        """True when bytes wait for room in the socket."""
        return self._client is not None and self._client.want_write()

    @property
    def unread(self) -> bool:
        """Bytes are known to wait in the socket: read again without asking."""
        return self._stream is not None and self._stream.more

    def take(self) -> list[Report]:
        """What has happened since the last call, in order."""
        reports, self._reports = self._reports, []
        return reports

    # --- connecting ------------------------------------------------------------------------------------------------

    def _dialled(self) -> None:
        dial, self._dial = self._dial, None
        assert dial is not None
        sock = dial.take()
        if sock is None:
            self._failed(dial.why, was_up=False)
            return
        link = self.link
        self._generation += 1
        modern = link.version == MQTTProtocolVersion.MQTTv5
        splitter = Splitter(modern, self._generation, link.max_packet_bytes)
        stream = self._stream = Stream(sock, splitter, self._buffer)
        client = self._client = _Client(link, stream)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        self._due = self._now() + link.connect_timeout_s
        try:
            if link.user is not None:
                password = link.password_file.read_text("utf-8").strip() if link.password_file else None
                client.username_pw_set(link.user, password)
            if link.will is not None:
                client.will_set(link.will.topic, link.will.payload, link.will.qos, link.will.retain)
            host, port, _ = link.address()
            if modern:
                wanted = _properties(PacketTypes.CONNECT)
                wanted.SessionExpiryInterval = link.session_expiry_s
                wanted.ReceiveMaximum = link.receive_maximum
                wanted.MaximumPacketSize = link.max_packet_bytes
                client.connect_async(host, port, link.keepalive_s, clean_start=link.clean_start, properties=wanted)
            else:
                client.connect_async(host, port, link.keepalive_s)
            client.reconnect()
        except OSError as err:
            self._drop(f"{err.strerror or err}")

    def _on_connect(self, client: paho.Client, _data: object, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._drop(f"refused: {reason}")
            return
        self.up, self._since = True, self._now()
        self._due = self._since + 1.0
        self.maximum_packet_bytes = getattr(properties, "MaximumPacketSize", None)
        self._quota = getattr(properties, "ReceiveMaximum", 65535)
        keepalive_s = getattr(properties, "ServerKeepAlive", None)
        if keepalive_s is not None and isinstance(client, _Client):
            client.obey_keepalive(keepalive_s)
        self._reports.append(Up(bool(flags.session_present)))
        self._ask(self._filters.items())
        if self.link.confirm_acks and isinstance(client, _Client):
            client.fence(())

    def _on_disconnect(self, _client: paho.Client, _data: object, _flags: Any, reason: Any, _properties: Any) -> None:
        self._drop("closed by the broker" if self._stream is not None and self._stream.ended else str(reason))

    def _drop(self, why: str) -> None:
        """This attempt or connection is over."""
        client, was_up = self._client, self.up
        if client is None:
            return
        lasted_s = self._now() - self._since
        self._forget(client)
        if was_up and lasted_s >= STABLE_S:
            self._attempts = self._short_lives = 0
        elif was_up:  # connects that succeed and drop at once: paho alone would never slow down
            self._short_lives += 1
            if self._short_lives > 1:
                why += f", again {lasted_s:.1f} s after connecting: does another client use {self.link.client_id!r}?"
        self._failed(why, was_up=was_up)

    def _failed(self, why: str, *, was_up: bool) -> None:
        first_s, longest_s = self.link.backoff_s
        pause_s = min(longest_s, first_s * 2 ** min(self._attempts, 16)) * self._jitter.uniform(0.5, 1.0)
        self._attempts += 1
        self._due = self._now() + pause_s
        self._reports.append(Down(why, pause_s, was_up))

    def _forget(self, client: _Client | None) -> None:
        if client is not None:
            client.on_disconnect = None
        stream, self._client, self._stream = self._stream, None, None
        self.up = False
        self._quiet_until = 0.0
        if stream is not None:
            self._in_bytes += stream.in_bytes
            self._out_bytes += stream.out_bytes
            stream.close()
        self._open.clear()
        self._waiting.clear()
        self._asked.clear()

    # --- receiving -------------------------------------------------------------------------------------------------

    def on_readable(self) -> None:
        """Read what is there, in large pieces. Reports come out of `take`."""
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
            self._pass_on(stream, others)  # CONNACK says whether the tokens of what follows are known
            others = b""
        splitter = stream.splitter
        if splitter.messages:
            messages, splitter.messages = splitter.messages, []
            self._reports.append(Messages(messages))
            if not self.link.manual_ack:
                self.ack([message[2] for message in messages])
        if splitter.refused:
            refused, splitter.refused = splitter.refused, []
            self._reports += refused
            self.ack([one.token for one in refused])  # settled: it would come again for ever
        self._pass_on(stream, others)

    def _pass_on(self, stream: Stream, others: bytes) -> None:
        """Let paho read the packets that are its own, or the end of the connection."""
        stream.ready += others
        client = self._client
        while client is not None and client is self._client and (stream.ready or stream.ended):
            try:
                lost = client.loop_read() != MQTTErrorCode.MQTT_ERR_SUCCESS and "connection lost"
            except Exception as err:  # foreign bytes: paho 2.1 lets through whatever its parsers stumble over
                lost = f"the peer does not speak MQTT: {err!r}"
            if lost and client is self._client:
                self._drop(lost)
        if client is not None and client.passed:
            passed, client.passed = client.passed, []
            self._reports += map(Confirmed, passed)

    def ack(self, tokens: Iterable[int]) -> None:
        """Acknowledge messages of QoS 1; tokens of an earlier connection, and 0, are passed over."""
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
        """Hand a message over; None if not connected (keep it and come back), else the token that `Taken` will name.

        QoS 1 waits here while the broker's Receive Maximum is reached; what waits is void when the connection is lost.
        Raises: TooLargeError if the broker said it takes nothing that large.
        """
        limit = self.maximum_packet_bytes
        if limit is not None and len(payload) + len(topic.encode()) + PUBLISH_OVERHEAD > limit:
            raise TooLargeError(f"{topic}: {len(payload)} bytes, the broker takes packets of at most {limit}")
        if not self.up:
            return None
        self._tokens += 1
        if qos == 0:
            self._send(0, topic, payload, retain, expiry_s)
        elif len(self._open) < self._quota:
            self._send(self._tokens, topic, payload, retain, expiry_s)
        else:
            self._waiting.append((self._tokens, topic, payload, retain, expiry_s))
        return self._tokens

    def _send(self, token: int, topic: str, payload: bytes, retain: bool, expiry_s: int | None) -> None:
        client = self._client
        if client is None:
            return
        extra = None
        if expiry_s is not None and self.link.version == MQTTProtocolVersion.MQTTv5:
            extra = _properties(PacketTypes.PUBLISH)
            extra.MessageExpiryInterval = expiry_s
        info = client.publish(topic, payload, 1 if token else 0, retain, extra)
        if token and client is self._client:
            self._open[info.mid] = token

    def _on_publish(self, _client: paho.Client, _data: object, mid: int, reason: Any, _properties: Any) -> None:
        token = self._open.pop(mid, None)
        if token is not None:
            self._reports.append(Taken(token, reason.value, str(reason)))
        while self._waiting and len(self._open) < self._quota:
            self._send(*self._waiting.popleft())

    @property
    def out_bytes(self) -> int:
        """Bytes written to the broker so far, all packets, without TLS."""
        return self._out_bytes + (self._stream.out_bytes if self._stream is not None else 0)

    @property
    def in_bytes(self) -> int:
        """Bytes read from the broker so far, all packets, without TLS."""
        return self._in_bytes + (self._stream.in_bytes if self._stream is not None else 0)

    @property
    def open_publishes(self) -> int:
        """Publishes of QoS 1 handed over and not yet answered."""
        return len(self._open) + len(self._waiting)

    def subscribe(self, filters: Mapping[str, int]) -> None:
        """Hear these filters (filter -> QoS), now and after every reconnect."""
        new = {name: qos for name, qos in filters.items() if self._filters.get(name) != qos}
        self._filters.update(new)
        if self.up:
            self._ask(new.items())

    def unsubscribe(self, filters: Iterable[str]) -> None:
        """Hear them no longer."""
        gone = [name for name in filters if self._filters.pop(name, None) is not None]
        if gone and self.up and self._client is not None:
            self._client.unsubscribe(gone)

    def _ask(self, filters: Iterable[tuple[str, int]]) -> None:
        wanted = list(filters)
        if not wanted or self._client is None:
            return
        modern = self.link.version == MQTTProtocolVersion.MQTTv5
        topics: Any = [(name, SubscribeOptions(qos=qos)) if modern else (name, qos) for name, qos in wanted]
        code, mid = self._client.subscribe(topics)
        if code == MQTTErrorCode.MQTT_ERR_SUCCESS and mid is not None:
            self._asked[mid] = tuple(name for name, _ in wanted)

    def _on_subscribe(self, _client: paho.Client, _data: object, mid: int, reasons: Any, _properties: Any) -> None:
        names = self._asked.pop(mid, ())
        self._reports.append(
            Subscribed(tuple((name, reason.value) for name, reason in zip(names, reasons, strict=False)))
        )

    def on_writable(self) -> None:
        """There is room again: send what waits."""
        if self._client is not None:
            self._client.loop_write()


def _properties(packet: int) -> Any:
    """An empty property list of that packet type; paho's class is not typed."""
    return Properties(packet)  # type: ignore[no-untyped-call]
