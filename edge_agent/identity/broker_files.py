"""Generates the configuration and access list of Mosquitto for the brokers of a fleet.

These files determine who may publish and how much a broker queues. Whether a reading is lost never depends on a broker
(docs/protocol.md 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent.config import topics

DIALECTS: Final = ("2.0", "2.1")
ACL_PLUGIN: Final = "mosquitto_acl_file.so"  # of 2.1: replaces the setting `acl_file`, which 3.0 will drop
QUEUE_BYTES: Final = 256 * 1024 * 1024  # per disconnected client; senders keep all frames until they are receipted
IN_FLIGHT: Final = 200  # unacknowledged messages to one client, unless its Receive Maximum is lower
NODE_TOPICS: Final = ("f/+", "status", "state", "books", "cmd/+")  # that a node publishes, below its own id
PACKET_BYTES: Final = 1024 * 1024  # far above the size of frames; the default of Mosquitto 2.0 is 256 MB


@dataclass(frozen=True, slots=True)
class Access:
    """Names with more permissions on a broker. parents: mergers and landers with children on it. operators: people."""

    parents: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """The address of a broker. files: folder of its ca.pem, cert.pem, key.pem and crl.pem; None: no TLS.

    Without TLS anybody who reaches the port may do anything, so use it only on the loopback interface.
    """

    port: int
    address: str = "127.0.0.1"
    files: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFiles:
    """Texts of mosquitto.conf and the access list. acl: '' without TLS, because clients then have no names."""

    config: str
    acl: str


def broker_files(
    listener: Listener,
    access: Access,
    *,
    acl_file: Path,
    state: Path,
    dialect: str = "2.0",
    plugins: Path = Path("/usr/lib"),
    in_flight: int = IN_FLIGHT,
    user: str | None = None,
) -> BrokerFiles:
    """Generate the files of one broker.

    acl_file: path of the access list. state: folder for persistent sessions. dialect: version of Mosquitto, one of
    DIALECTS. plugins: folder of the plugins of Mosquitto 2.1. user: user that the broker runs as; None: Mosquitto's
    default.
    """
    secure = listener.files is not None
    lines = [
        "# Made by `headwater broker-config`. Mosquitto reads keys and lists again at SIGHUP.",
        *([f"user {user}"] if user else []),
        f"listener {listener.port} {listener.address}",
        *(_tls(listener.files) if listener.files is not None else ()),
        f"allow_anonymous {'false' if secure else 'true'}",
        f"allow_zero_length_clientid {'false' if secure else 'true'}",
        *(_acl(acl_file, dialect, plugins) if secure else ()),
        "",
        "# Mosquitto's default of 1000 messages drops more than that after it has acknowledged them.",
        "max_queued_messages 0",
        f"max_queued_bytes {QUEUE_BYTES}",
        f"max_inflight_messages {in_flight}",
        f"max_packet_size {PACKET_BYTES}",
        "persistence true",
        f"persistence_location {state}/",
        "autosave_interval 60",
        "persistent_client_expiration 14d",
        "set_tcp_nodelay true",
        "",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "",
    ]
    return BrokerFiles(config="\n".join(lines), acl=acl(access) if secure else "")


def _tls(files: Path) -> list[str]:
    """Settings for TLS 1.2 and later. The name in a client's certificate becomes its user name and client id."""
    return [
        f"cafile {files}/ca.pem",
        f"certfile {files}/cert.pem",
        f"keyfile {files}/key.pem",
        f"crlfile {files}/crl.pem",
        "tls_version tlsv1.2",
        "require_certificate true",
        "use_identity_as_username true",
        "# Without this line a gateway could connect under another one's client id and so disconnect it.",
        "use_username_as_clientid true",
    ]


def _acl(file: Path, dialect: str, plugins: Path) -> list[str]:
    if dialect == "2.0":
        return [f"acl_file {file}"]
    return [f"global_plugin {plugins}/{ACL_PLUGIN}", f"plugin_opt_acl_file {file}"]


def acl(access: Access) -> str:
    """The text of the access list.

    A node may write the topics of its own id and read messages to itself or to all nodes. Below its id there are no
    other topics for it: nobody reads them, and retained messages would fill the broker. Parents may also write to all
    nodes, because they number definitions. Operators have the permissions for `status`, `audit`, `peek`, definitions
    and commands, but may not write frames.
    """
    down, every = f"{topics.PREFIX}/down", f"{topics.PREFIX}/{topics.ALL}"
    up = f"{topics.PREFIX}/up"
    own = "".join(f"pattern write {up}/%u/{topic}\n" for topic in NODE_TOPICS)
    nodes = f"{own}pattern read {down}/%u/#\npattern read {every}/#\n"
    parts = [f"# Every node, %u being the name in its certificate.\n{nodes}"]
    everything = f"topic read {up}/#\ntopic readwrite {down}/#\ntopic readwrite {every}/#\n"
    parts += [f"# A parent of nodes on this broker.\nuser {name}\n{everything}" for name in access.parents]
    parts += [f"# An operator.\nuser {name}\n{everything}" for name in access.operators]
    return "\n".join(parts)
