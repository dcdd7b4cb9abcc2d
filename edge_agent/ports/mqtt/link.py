"""Settings and reports of a connection: plain values, no paho."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from edge_agent.errors import ConfigError, PortError
from edge_agent.ports.mqtt.packets import Message, RefusedPublish

REFUSED_CODE: Final = 0x80  # reason codes from here on are failures (MQTT 5.0 section 2.4)


@dataclass(frozen=True, slots=True)
class Will:
    """The message that the broker publishes when this connection is lost."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = True


@dataclass(frozen=True, slots=True)
class Link:
    """Settings of a connection: broker, client and options. Secrets are file names; files are read at each attempt.

    version: 5 (between tiers) or 4, which is MQTT 3.1.1 (for local sensors, as receiving costs half). manual_ack: the
    caller acknowledges messages of QoS 1 with `ack`. confirm_acks: report when the broker has read acknowledgements.
    receive_maximum: messages that may wait for `ack`. session_expiry_s: how long the broker keeps the session (MQTT 5).
    max_packet_bytes: larger packets are refused. read_every_s: interval at which small messages are read together.
    """

    url: str
    client_id: str
    version: int = 5
    clean_start: bool = True
    session_expiry_s: int = 0
    receive_maximum: int = 65535
    manual_ack: bool = False
    confirm_acks: bool = False
    will: Will | None = None
    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    keepalive_s: int = 30
    max_packet_bytes: int = 1024 * 1024
    connect_timeout_s: float = 10.0  # for each of DNS, TCP, TLS and CONNACK
    backoff_s: tuple[float, float] = (1.0, 60.0)  # first and longest pause, before jitter
    spread_s: float = 0.0  # time over which all clients of a broker reconnect after its restart
    read_every_s: float = 0.0

    @property
    def modern(self) -> bool:
        """Whether the protocol is MQTT 5: properties, reason codes, session expiry."""
        return self.version == 5

    def address(self) -> tuple[str, int, bool]:
        """Returns (host, port, TLS?). Raises: ConfigError if the url is not mqtt[s]://host[:port]."""
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.path.strip("/"):
            raise ConfigError(f"broker {self.url!r}: wanted mqtt://host[:port] or mqtts://host[:port]")
        tls = parts.scheme == "mqtts"
        return parts.hostname, port or (8883 if tls else 1883), tls


# --- reports of a connection ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Up:
    """Connected; subscriptions are being sent. session_present: the broker kept the session."""

    session_present: bool


@dataclass(frozen=True, slots=True)
class Down:
    """Not connected. retry_s: pause before the next attempt. was_up: a connection was lost, else an attempt failed."""

    why: str
    retry_s: float
    was_up: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """The PUBACK of a publish of QoS 1. code 0 or 0x10: accepted; from 0x80 on: refused, with the reason."""

    token: int
    code: int
    reason: str

    @property
    def ok(self) -> bool:
        """Whether the broker accepted the publish. That does not make it durable."""
        return self.code < REFUSED_CODE


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A SUBACK: (filter, reason code). It does not prove that messages will arrive."""

    results: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker has read the acknowledgements of these tokens and will not repeat the messages.

    The first report after `Up` has no tokens. It means that all messages which the broker repeats have been reported.
    """

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Messages:
    """Received messages, in order."""

    messages: list[Message]


Report = Up | Down | Taken | Subscribed | Confirmed | Messages | RefusedPublish


class TooLargeError(PortError):
    """A message above the broker's size limit. Never send it: the broker would close the connection every time."""
