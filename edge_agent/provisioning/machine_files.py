"""Computes the files of a machine from gateway.toml. Nearly all are below /run, so that old settings do not remain."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from edge_agent.config.checking.documents import read
from edge_agent.config.node_file.gateway_file import (
    AGENT_USER,
    IDENTITY,
    LOCAL_PASSWORD,
    NAME,
    GatewayFile,
    LocalBrokerTable,
    NetworkTable,
)
from edge_agent.config.node_file.settings import MAX_FILE_BYTES
from edge_agent.errors import ConfigError

RUN: Final = "/run/headwater"
PASSWORDS: Final = f"{RUN}/mosquitto/passwords"  # plain text; `mosquitto_passwd -U` hashes it before the broker starts
UPDATE_KEYS: Final = f"{RUN}/update-keys"  # public keys of the signers of updates, one a line
SECRET: Final = 0o600
READABLE: Final = 0o644


@dataclass(frozen=True, slots=True)
class MachineFile:
    """A file to write. owner: name of its user and group."""

    path: str
    text: str
    mode: int = READABLE
    owner: str = "root"


def machine_files(file: GatewayFile, local_password: str) -> list[MachineFile]:
    """Returns all files. local_password: for the agent at the local broker; the caller generates it at each boot.

    Raises: ConfigError.
    """
    found = [
        MachineFile(f"{RUN}/headwater.toml", _as_json(file.tables), 0o640, AGENT_USER),
        MachineFile(f"{RUN}/hostname", file.settings.node.id + "\n"),
        *_network(file.network or NetworkTable()),
    ]
    if file.time is not None:
        servers = " ".join(file.time.servers)
        found.append(MachineFile("/run/systemd/timesyncd.conf.d/headwater.conf", f"[Time]\nNTP={servers}\n"))
    if file.ssh is not None:
        found.append(MachineFile(f"{RUN}/authorized_keys", "\n".join(file.ssh.keys) + "\n"))
    if file.enrol is not None:
        found += [
            MachineFile(f"{IDENTITY}/ca.pem", file.enrol.ca, READABLE, AGENT_USER),
            MachineFile(f"{RUN}/enrol.env", f"NODE_ID={file.settings.node.id}\nCA_URL={file.enrol.url}\n"),
            MachineFile(f"{RUN}/enrol-token", (file.enrol.token or "") + "\n", SECRET, AGENT_USER),
        ]
    if file.update is not None:
        found.append(MachineFile(UPDATE_KEYS, "\n".join(file.update.keys) + "\n"))
    if file.local_broker is not None:
        found += _broker(file.local_broker, local_password)
    return found


def _as_json(tables: Mapping[str, object]) -> str:
    """The tables of headwater.toml. Dates are values in TOML but not in JSON; as text they mean the same.

    Raises: ConfigError if the gateway could not read it, as when it is longer than gateway.toml and too long.
    """

    def text_of(value: object) -> str:
        if isinstance(value, datetime.datetime | datetime.date | datetime.time):
            return value.isoformat().replace("+00:00", "Z")
        raise TypeError(f"{type(value).__name__} is not a value of TOML")

    text = json.dumps(tables, ensure_ascii=False, indent=1, default=text_of)
    try:
        read(text, MAX_FILE_BYTES)
    except ConfigError as err:
        raise ConfigError(f"{NAME}: the gateway cannot read what is made of it: {err}") from err
    return text


def _network(table: NetworkTable) -> list[MachineFile]:
    address = [f"Address={table.address}"] if table.address else ["DHCP=yes"]
    router = [f"Gateway={table.router}"] if table.router else []
    lines = ["[Network]", *address, *router, *(f"DNS={server}" for server in table.dns), "LinkLocalAddressing=ipv6"]
    kind = "wlan" if table.wifi_ssid else "ether"
    match = ["[Match]", f"Type={kind}", "", *lines, "", "[Link]", "RequiredForOnline=no", ""]
    found = [MachineFile("/run/systemd/network/10-headwater.network", "\n".join(match))]
    if table.wifi_ssid is None:
        return found
    # iwd.network(5): names with other characters are written in hexadecimal
    plain = re.fullmatch(r"[A-Za-z0-9_ -]+", table.wifi_ssid)
    name = table.wifi_ssid if plain else f"={table.wifi_ssid.encode().hex()}"
    secret = f"[Security]\nPassphrase={_escaped(table.wifi_password or '')}\n"
    return [
        *found,
        MachineFile(f"/var/lib/iwd/{name}.psk", secret, SECRET),
        MachineFile(f"{RUN}/iwd/main.conf", f"[General]\nCountry={table.wifi_country}\n"),
    ]


def _escaped(text: str) -> str:
    """The text with backslashes and a leading blank escaped, as settings of iwd require."""
    text = text.replace("\\", "\\\\")
    return f"\\s{text[1:]}" if text.startswith(" ") else text


def _broker(table: LocalBrokerTable, password: str) -> list[MachineFile]:
    """Files of the local broker. It needs no storage: the agent acknowledges messages after their commit."""
    config = [
        "# Made from gateway.toml at boot.",
        "listener 1883 127.0.0.1",
        *([] if table.address == "127.0.0.1" else [f"listener 1883 {table.address}"]),
        "allow_anonymous false",
        f"password_file {PASSWORDS}",
        f"acl_file {RUN}/mosquitto/acl",
        "max_queued_messages 0",
        "max_queued_bytes 16777216",
        "max_inflight_messages 0",
        "max_packet_size 1048576",
        "persistence false",
        "user mosquitto",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "",
    ]
    if table.address == "0.0.0.0":  # noqa: S104 - one listener serves loopback too; one on `::` is for IPv6 only
        config.remove("listener 1883 127.0.0.1")
    # `#` does not match topics of the broker itself, which a sensor may measure
    acl = f"user {AGENT_USER}\ntopic read #\ntopic read $SYS/#\n\nuser {table.user}\ntopic readwrite #\n"
    return [
        MachineFile(f"{RUN}/mosquitto/mosquitto.conf", "\n".join(config)),
        MachineFile(f"{RUN}/mosquitto/acl", acl, SECRET, "mosquitto"),
        MachineFile(PASSWORDS, f"{table.user}:{table.password}\n{AGENT_USER}:{password}\n", SECRET),
        MachineFile(str(LOCAL_PASSWORD), password + "\n", 0o640, AGENT_USER),
    ]
