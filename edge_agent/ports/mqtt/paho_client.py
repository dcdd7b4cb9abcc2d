"""Runs paho on a socket that is already connected. No other module imports paho.

paho does the handshakes, keep-alive, subscriptions and publishing. Each connection attempt uses a new client, so that
messages queued in paho are not sent twice.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from edge_agent.ports.mqtt.link import Link
from edge_agent.ports.mqtt.socket_stream import READ_BYTES, SocketStream

PUBACK: Final = 0x40
PINGREQ: Final = 0xC0
DISCONNECT: Final = b"\xe0\x00"  # an orderly end in both versions: the broker does not publish the will


class PahoClient(paho.Client):
    """The client of one connection. Set `on_connect` and the other callbacks before `begin`."""

    def __init__(self, link: Link, stream: SocketStream) -> None:
        """stream: of a connected, non-blocking socket."""
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=link.client_id,
            clean_session=None if link.modern else link.clean_start,
            protocol=MQTTProtocolVersion(link.version),
            reconnect_on_failure=False,
            manual_ack=True,  # Connection always acknowledges itself
        )
        self.max_inflight_messages_set(65535)  # the actual limit is in Outgoing
        self.fences: deque[tuple[int, ...] | None] = deque()  # tokens per unanswered PINGREQ; None: a keep-alive
        self.passed: list[tuple[int, ...]] = []  # tokens per answered fence
        self._link = link
        self._stream = stream

    def _create_socket(self) -> Any:
        return self._stream

    # --- connecting ----------------------------------------------------------------------------------------------

    def begin(self, password: str | None) -> None:
        """Send CONNECT. Raises: OSError if the connection is lost."""
        link = self._link
        if link.user is not None:
            self.username_pw_set(link.user, password)
        if link.will is not None:
            self.will_set(link.will.topic, link.will.payload, link.will.qos, link.will.retain)
        host, port, _ = link.address()
        if link.modern:
            wanted = _properties(PacketTypes.CONNECT)
            wanted.SessionExpiryInterval = link.session_expiry_s
            wanted.ReceiveMaximum = link.receive_maximum
            wanted.MaximumPacketSize = link.max_packet_bytes
            self.connect_async(host, port, link.keepalive_s, clean_start=link.clean_start, properties=wanted)
        else:
            self.connect_async(host, port, link.keepalive_s)
        self.reconnect()

    def obey_keepalive(self, keepalive_s: int) -> None:
        """Use the keep-alive from CONNACK, which paho 2.1 ignores."""
        self._keepalive = keepalive_s

    def part(self, flush_s: float) -> None:
        """Send queued packets and DISCONNECT, then wait up to flush_s until the broker has read them.

        Closing a socket with unread bytes would reset it, and bytes that the broker has not read would be lost.
        """
        sock, until = self._stream.sock, time.monotonic() + flush_s
        try:
            sock.settimeout(max(0.01, flush_s))
            self.write(DISCONNECT)
            while self.want_write() and time.monotonic() < until and self.write_some():
                pass
            sock.shutdown(socket.SHUT_WR)
            while time.monotonic() < until and sock.recv(READ_BYTES):
                pass
        except OSError:
            pass  # the connection was lost already

    # --- packets -------------------------------------------------------------------------------------------------

    def write(self, packets: bytes) -> None:
        """Queue encoded packets for sending."""
        self._packet_queue(PUBACK, packets, 0, 1)

    def write_some(self) -> bool:
        """Send as much as the socket accepts. Returns whether the connection is still up."""
        return self.loop_write() == MQTTErrorCode.MQTT_ERR_SUCCESS

    def read_some(self) -> str:
        """Let paho read a packet or the end of the connection. Returns '', or why the connection was lost."""
        try:
            return "" if self.loop_read() == MQTTErrorCode.MQTT_ERR_SUCCESS else "connection lost"
        except Exception as err:  # untrusted bytes: paho 2.1 does not catch errors of its parsers
            return f"the peer does not speak MQTT: {err!r}"

    def publish_packet(self, topic: str, payload: bytes, qos: int, retain: bool, expiry_s: int | None) -> int:
        """Publish. Returns the packet id that `on_publish` will get. expiry_s: ignored below MQTT 5."""
        extra = None
        if expiry_s is not None and self._link.modern:
            extra = _properties(PacketTypes.PUBLISH)
            extra.MessageExpiryInterval = expiry_s
        return self.publish(topic, payload, qos, retain, extra).mid

    def subscribe_to(self, filters: Iterable[tuple[str, int]]) -> int | None:
        """Subscribe to (filter, QoS). Returns the packet id that `on_subscribe` will get; None if it was not sent."""
        topics: Any = [(name, SubscribeOptions(qos=qos)) if self._link.modern else (name, qos) for name, qos in filters]
        code, mid = self.subscribe(topics)
        return mid if code == MQTTErrorCode.MQTT_ERR_SUCCESS else None

    # --- fences --------------------------------------------------------------------------------------------------

    def fence(self, tokens: tuple[int, ...]) -> None:
        """Send PINGREQ; its answer confirms that the broker has read all earlier packets. A PUBACK has no answer.

        tokens: appended to `passed` when the answer arrives.
        """
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


def _properties(packet: int) -> Any:
    """An empty property list of that packet type; paho's class is not typed."""
    return Properties(packet)  # type: ignore[no-untyped-call]
