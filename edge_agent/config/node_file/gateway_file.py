"""Reads gateway.toml of the image: the settings of a gateway and of the machine on which it runs.

The file has the tables of `headwater.toml` and those below. It may contain secrets, because the card also contains the
private key of the gateway: anybody who has the card can read both.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_interface, ip_network
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from edge_agent.config.checking.checker import BAD, Report, complete, line_of, read_table, type_of
from edge_agent.config.checking.composite_types import ListOf
from edge_agent.config.checking.documents import Path, read
from edge_agent.config.checking.value_types import AsWritten, Text, without_credentials
from edge_agent.config.node_file.node_tables import keys_of, setting
from edge_agent.config.node_file.settings import MAX_FILE_BYTES, Settings, read_settings
from edge_agent.errors import ConfigError

NAME: Final = "gateway.toml"
IDENTITY: Final = PurePosixPath("/var/lib/headwater-identity")  # folder of `headwater enrol` on the image
LOCAL_PASSWORD: Final = PurePosixPath("/run/headwater/local-password")  # of the agent at the local broker
LOCAL_BROKER: Final = "mqtt://127.0.0.1:1883"
AGENT_USER: Final = "headwater"
MOST_SSID_BYTES: Final = 32
OF_NO_MACHINE: Final = (ip_network("0.0.0.0/8"), ip_network("255.255.255.255"))  # RFC 6890, 2.2.2


@dataclass(frozen=True, slots=True)
class Address(AsWritten):
    """An IP address. prefix: with the length of the network, like 192.168.1.20/24. own: on which this machine listens,
    so that it may also be 0.0.0.0, :: or a loopback address.
    """

    prefix: bool = False
    own: bool = False

    def read(self, value: Any, at: Path, report: Report) -> Any:
        hint = 'like "192.168.1.20/24"' if self.prefix else 'like "192.168.1.1"'
        if not isinstance(value, str):
            return report.wrong(at, value, f"wanted an address, got {type_of(value)}", hint)
        try:
            if self.prefix and "/" not in value:
                return report.wrong(at, value, "has no network length", hint)
            found = ip_interface(value) if self.prefix else ip_address(value)
        except ValueError:
            return report.wrong(at, value, "is not an IP address", hint)
        if "%" in value:  # any text may follow, which would stand in files of the machine
            return report.wrong(at, None, "has a scope", "leave out what begins with %")
        ip = found.ip if isinstance(found, IPv4Interface | IPv6Interface) else found
        if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
            return report.wrong(at, value, "is an IPv4 address in the form of IPv6", f'write "{ip.ipv4_mapped}"')
        if self.own and ip.version == 6 and ip.is_link_local:  # without its network, which a scope would name
            return report.wrong(at, value, "counts within one network only, and no broker starts on it", "use another")
        nobody = found.is_loopback or found.is_unspecified or any(ip in network for network in OF_NO_MACHINE)
        if found.is_multicast or (nobody and not (self.own and (found.is_unspecified or found.is_loopback))):
            return report.wrong(at, value, "is not the address of a machine", hint)
        if isinstance(found, IPv4Interface | IPv6Interface) and _is_of_network(found):
            return report.wrong(at, value, "is the address of the network itself, or its broadcast", hint)
        return str(found)


def _is_of_network(found: IPv4Interface | IPv6Interface) -> bool:
    """Whether an address stands for its network, or for all machines in it; in networks of one or two, none does."""
    network = found.network
    if network.num_addresses <= 2:
        return False
    return found.ip == network.network_address or (found.version == 4 and found.ip == network.broadcast_address)


@dataclass(frozen=True, slots=True)
class Pem(AsWritten):
    """One or more certificates as PEM text."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        hint = "`headwater ca token` prints it"
        if not isinstance(value, str):
            return report.wrong(at, value, f"wanted a certificate, got {type_of(value)}", hint)
        body = r"\s*(-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----\s*)+"
        if len(value) > 65_536 or not re.fullmatch(body, value):
            return report.wrong(at, None, "is not a certificate in PEM", hint)
        import ssl  # here, because only a file with [enrol] needs it

        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=value)
        except ssl.SSLError:
            return report.wrong(at, None, "has a certificate that cannot be read: it is damaged or cut short", hint)
        return value


@dataclass(frozen=True, slots=True)
class Https(AsWritten):
    """The https address of the service of a certificate authority."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        hint = 'like "https://ca.example:8443"'
        try:
            url = urlsplit(value) if isinstance(value, str) else None
            fits = url is not None and url.scheme == "https" and url.hostname and url.port != 0
        except ValueError:
            fits = False
        plain = isinstance(value, str) and re.fullmatch(r"https://[A-Za-z0-9.:\[\]-]{1,300}/?", value)
        return (
            value if fits and plain else report.wrong(at, _host(value), "is not an https address without a path", hint)
        )


def _host(value: object) -> object:
    """An address up to its host: what follows may be a token."""
    shown = without_credentials(value)
    return re.sub(r"(://[^/?#]*).+", r"\1…", shown) if isinstance(shown, str) else shown


@dataclass(frozen=True, slots=True)
class NetworkName(AsWritten):
    """The name of a Wi-Fi network: at most 32 bytes. Source: IEEE 802.11-2020, 9.4.2.2."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        name = Text("a network's name").read(value, at, report)
        if name is not BAD and len(name.encode()) > MOST_SSID_BYTES:
            why = f"is longer than {MOST_SSID_BYTES} bytes"
            return report.wrong(at, None, why, "a letter like ü has two bytes, a sign like € three")
        return name


_HOST: Final = Text("a host", r"[A-Za-z0-9.:-]{1,253}", "a name or an address")
_SSH_KEY: Final = Text(
    "an SSH key",
    r"(ssh-ed25519|ecdsa-sha2-nistp\d+|ssh-rsa|sk-[a-z0-9@.-]+) [A-Za-z0-9+/=]+( .*)?",
    "a line of id_*.pub",
    4000,
    secret=True,  # somebody may write the private key here
)


@dataclass(frozen=True, slots=True)
class SshKey(AsWritten):
    """A public key of SSH: its fields, each with its length before it, fill it exactly. Source: RFC 4253, 6.6."""

    secret: bool = True

    def read(self, value: Any, at: Path, report: Report) -> Any:
        key = _SSH_KEY.read(value, at, report)
        if key is not BAD and not _is_whole(key):
            return report.wrong(at, None, "is damaged or cut short", "a line of id_*.pub")
        return key


def _is_whole(key: str) -> bool:
    """Whether the fields of a key fill it exactly, and the first is its type."""
    kind, body = key.split(" ", 2)[:2]
    try:
        rest = base64.b64decode(body, validate=True)
    except ValueError:
        return False
    fields = list[bytes]()
    while len(rest) >= 4:
        size = int.from_bytes(rest[:4], "big")
        if size > len(rest) - 4:
            return False
        fields.append(rest[4 : 4 + size])
        rest = rest[4 + size :]
    return not rest and len(fields) > 1 and fields[0] == kind.encode()


_UPDATE_KEY: Final = Text("a key", r"[A-Za-z0-9+/]{43}=", "`headwater update key` prints it", secret=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolTable:
    """[enrol]: where the certificate of this gateway comes from. `headwater ca token` prints this table."""

    url: str = setting(Https(), doc="the authority's service, https://host:port")
    token: str | None = setting(
        Text("a token", r"[A-Za-z0-9_-]{8,200}", "`headwater ca token` prints it", secret=True),
        None,
        "one-time token; not needed once enrolled",
    )
    ca: str = setting(Pem(), doc="certificate of the authority, PEM")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTable:
    """[network]: network of the machine; left out: a cable, with addresses from DHCP."""

    address: str | None = setting(Address(prefix=True), None, "fixed address with prefix; left out: from DHCP")
    router: str | None = setting(Address(), None, "router, with a fixed address")
    dns: tuple[str, ...] = setting(ListOf(Address(), most=3), (), "name servers, with a fixed address")
    wifi_ssid: str | None = setting(NetworkName(), None, "name of a Wi-Fi network, instead of a cable")
    wifi_password: str | None = setting(
        Text("a password", r"[ -~]{8,63}", "8 to 63 letters, digits, signs and blanks of ASCII", secret=True),
        None,
        "password of the Wi-Fi network (WPA)",
    )
    wifi_country: str | None = setting(
        Text("a country", "[A-Z]{2}", 'like "DE"'), None, "country, which decides the allowed radio channels"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTable:
    """[time]: time servers (NTP); left out: those of DHCP, then Debian's."""

    servers: tuple[str, ...] = setting(ListOf(_HOST, least=1, most=8), doc="names or addresses")


@dataclass(frozen=True, slots=True, kw_only=True)
class SshTable:
    """[ssh]: who may log in as root, with a key; left out: nobody, and there is no SSH service."""

    keys: tuple[str, ...] = setting(ListOf(SshKey(), least=1, most=20), doc="public keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBrokerTable:
    """[local_broker]: an MQTT broker on this gateway, port 1883, for sensors; left out: there is none."""

    user: str = setting(
        Text("a user name", r"[A-Za-z0-9_.-]{1,64}", "letters, digits, _ . -", secret=True),  # it may be user:password
        "sensors",
        "user name of the sensors",
    )
    password: str = setting(
        # mosquitto_passwd would take a colon for the end of the password
        Text("a password", r"[!-9;-~]{8,100}", "8 to 100 letters, digits and signs, but no colon", secret=True),
        doc="password of the sensors",
    )
    address: str = setting(
        Address(own=True),
        "0.0.0.0",  # noqa: S104 - behind a password
        "address on which the broker listens",
        "all addresses; set one if the gateway has two networks",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTable:
    """[update]: whose updates of the agent this gateway accepts; left out: nobody's."""

    keys: tuple[str, ...] = setting(
        ListOf(_UPDATE_KEY, least=1, most=4), doc="public keys of the signers; `headwater update key` prints one"
    )


MACHINE_TABLES: Final[dict[str, type]] = {
    "enrol": EnrolTable,
    "network": NetworkTable,
    "time": TimeTable,
    "ssh": SshTable,
    "local_broker": LocalBrokerTable,
    "update": UpdateTable,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFile:
    """A checked gateway.toml. tables: the tables to write to headwater.toml; settings: the same, checked."""

    settings: Settings
    tables: Mapping[str, object]
    enrol: EnrolTable | None = None
    network: NetworkTable | None = None
    time: TimeTable | None = None
    ssh: SshTable | None = None
    local_broker: LocalBrokerTable | None = None
    update: UpdateTable | None = None


def parse_gateway_file(payload: bytes, name: str = NAME) -> GatewayFile:
    """Read and check a gateway.toml. Raises: ConfigError with every problem, one line each."""
    try:
        document = read(payload, MAX_FILE_BYTES)
    except ConfigError as err:
        raise ConfigError("\n".join(line_of(p, name) for p in err.problems), err.problems) from err
    report = Report(document)
    ours: dict[str, Any] = {}
    for word, table in MACHINE_TABLES.items():
        if word in document.value:
            keys = keys_of(table)
            values = read_table(keys, document.value[word], (word,), report)
            ours[word] = table(**{key.inside: values[key.name] for key in keys}) if complete(values) else BAD
    _machine(ours, report)
    tables = _node_tables(document.value, ours, report)
    settings = read_settings(tables, report, also=tuple(MACHINE_TABLES))
    report.finish(name)
    assert isinstance(settings, Settings)
    return GatewayFile(settings=settings, tables=tables, **ours)


def _node_tables(value: Mapping[str, object], ours: Mapping[str, Any], report: Report) -> dict[str, object]:
    """The tables of headwater.toml, with the values that the image sets: paths of certificates, the local broker."""
    tables = {word: table for word, table in value.items() if word not in MACHINE_TABLES}
    node, uplink, spool = (tables.get(word) for word in ("node", "uplink", "spool"))
    if isinstance(node, Mapping) and node.get("role", "gateway") != "gateway":
        report.wrong(("node", "role"), node["role"], "the image is for a gateway", "leave it out")
    if isinstance(spool, Mapping) and "path" in spool:
        report.wrong(
            ("spool", "path"), spool["path"], "the image keeps the spool on its data partition", "leave it out"
        )
    if isinstance(uplink, Mapping):
        for word in ("ca_file", "cert_file", "key_file", "password_file"):
            if word in uplink:
                report.wrong(("uplink", word), None, "the image manages its own files", "use [enrol]")
        if "password" in uplink:
            report.wrong(("uplink", "password"), None, "the image has a certificate instead", "use [enrol]")
            uplink = tables["uplink"] = {word: value for word, value in uplink.items() if word != "password"}
        secure = str(uplink.get("broker", "")).startswith("mqtts://")
        if ours.get("enrol") is not None and secure:
            files = {"ca_file": "ca.pem", "cert_file": "current/cert.pem", "key_file": "current/key.pem"}
            tables["uplink"] = dict(uplink) | {word: str(IDENTITY / file) for word, file in files.items()}
        elif ours.get("enrol") is not None:
            report.wrong(
                ("uplink", "broker"), without_credentials(uplink.get("broker")), "[enrol] needs TLS", "use mqtts://..."
            )
    if "local" in tables:
        report.wrong(("local",), None, "the image has its own broker", "use [local_broker]")
    elif ours.get("local_broker") is not None:
        tables["local"] = {"broker": LOCAL_BROKER, "user": AGENT_USER, "password_file": str(LOCAL_PASSWORD)}
    return tables


def _machine(ours: Mapping[str, Any], report: Report) -> None:
    """Checks that involve several keys."""
    network, broker = ours.get("network"), ours.get("local_broker")
    if isinstance(network, NetworkTable):
        if network.address is None and (network.router or network.dns):
            report.wrong(("network",), None, "router and dns are only used with a fixed address", "add address = ...")
        if network.address is not None and network.router and (why := _unreachable(network.address, network.router)):
            report.wrong(("network", "router"), network.router, why, "use the address of the router in this network")
        if isinstance(broker, LocalBrokerTable) and network.address is not None:
            _broker_address(broker.address, network.address, report)
        if (network.wifi_ssid is None) != (network.wifi_password is None):
            report.wrong(("network",), None, "Wi-Fi needs both wifi_ssid and wifi_password", "add the other one")
        if network.wifi_ssid is not None and network.wifi_country is None:
            report.wrong(("network",), None, "Wi-Fi needs a country", 'add wifi_country, like "DE"')
    if isinstance(broker, LocalBrokerTable) and broker.user == AGENT_USER:
        report.wrong(
            ("local_broker", "user"),
            broker.user,
            "is the user name of the gateway itself",
            'use another, like "sensors"',
        )


def unresolved(file: GatewayFile) -> tuple[str, ...]:
    """The hosts that the gateway may be unable to find: named, with a fixed address and without name servers.

    No mistake: a router may announce name servers over IPv6.
    """
    if file.network is None or file.network.address is None or file.network.dns:
        return ()
    uplink = file.settings.uplink
    urls = [uplink.broker, *(url for _, url in uplink.brokers)] if uplink else []
    urls += [file.enrol.url] if file.enrol else []
    hosts = [urlsplit(url).hostname for url in urls]
    hosts += file.time.servers if file.time else ()
    return tuple(dict.fromkeys(host for host in hosts if host and not _is_address(host)))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _unreachable(address: str, router: str) -> str:
    """Why a machine with this address cannot reach this router; '' if it can."""
    own, other = ip_interface(address), ip_address(router)
    if own.version != other.version:
        return f"is an IPv{other.version} address, and address is of IPv{own.version}"
    if other == own.ip:
        return "is the address of this gateway"
    if other not in own.network:
        local = other.version == 6 and other.is_link_local
        return "" if local else f"is not in the network of address, {own.network}"
    if other.version == 4 and _is_of_network(ip_interface(f"{other}/{own.network.prefixlen}")):
        return "is the address of the network itself, or its broadcast"
    return ""  # in IPv6 the address of the network is that of its routers: RFC 4291, 2.6.1


def _broker_address(listens: str, address: str, report: Report) -> None:
    """Check that a machine with a fixed address has the one on which its broker listens: it would start on any other
    too, and no sensor would reach it. IPv6 addresses may also come from a router.
    """
    own, found = ip_interface(address), ip_address(listens)
    if not (found.version == 6 or found.is_unspecified or found.is_loopback or found == own.ip):
        at = ("local_broker", "address")
        report.wrong(
            at, listens, f"is no address of this gateway, which has {own.ip}", f'use "{own.ip}", or leave it out'
        )
