"""gateway.toml: checked like every configuration, applied at boot, and never worse than the last good one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_agent.cli.main import main
from edge_agent.config.node_file.gateway_file import parse_gateway_file
from edge_agent.config.node_file.settings import load
from edge_agent.errors import ConfigError
from edge_agent.provisioning.first_boot import apply
from edge_agent.provisioning.machine_files import machine_files
from tests.image.gateway_files import KEY, PEM, SMALL, WHOLE, wifi


def texts(text: str) -> dict[str, str]:
    return {each.path: each.text for each in machine_files(parse_gateway_file(text.encode()), "drawn")}


def test_the_smallest_file_is_a_cable_and_a_gateway() -> None:
    found = texts(SMALL)
    assert set(found) == {
        "/run/headwater/headwater.toml",
        "/run/headwater/hostname",
        "/run/systemd/network/10-headwater.network",
    }
    assert "DHCP=yes" in found["/run/systemd/network/10-headwater.network"]
    assert found["/run/headwater/hostname"] == "g1\n"


def test_a_whole_file_is_all_that_a_machine_needs(tmp_path: Path) -> None:
    found = texts(WHOLE)
    settings = tmp_path / "headwater.toml"
    settings.write_text(found["/run/headwater/headwater.toml"])
    read = load(settings, "/var/lib/headwater")
    assert read.uplink is not None
    assert read.local is not None
    assert read.uplink.key_file == "/var/lib/headwater-identity/current/key.pem"
    assert read.uplink.ca_file == "/var/lib/headwater-identity/ca.pem"
    assert (read.local.broker, read.local.user) == ("mqtt://127.0.0.1:1883", "headwater")
    assert read.spool.path == "/var/lib/headwater/spool.db", "not beside the settings, which go at every boot"
    network = found["/run/systemd/network/10-headwater.network"].splitlines()
    assert network[:5] == ["[Match]", "Type=wlan", "", "[Network]", "Address=192.168.1.20/24"]
    assert {"Gateway=192.168.1.1", "DNS=192.168.1.1", "DNS=9.9.9.9"} <= set(network)
    name = b"hall; 7".hex()
    assert found[f"/var/lib/iwd/={name}.psk"] == '[Security]\nPassphrase=\\sback\\\\slash and "quote"\n'
    assert found["/run/systemd/timesyncd.conf.d/headwater.conf"] == "[Time]\nNTP=ntp.example 192.168.1.1\n"
    assert found["/run/headwater/authorized_keys"] == f"{KEY}\n"
    assert found["/var/lib/headwater-identity/ca.pem"].strip() == PEM.strip()
    owners = {each.path: (each.owner, each.mode) for each in machine_files(parse_gateway_file(WHOLE.encode()), "")}
    assert owners["/run/headwater/enrol-token"] == ("headwater", 0o600), "the user who enrols"
    assert owners["/run/headwater/headwater.toml"] == ("headwater", 0o640)
    assert found["/run/headwater/enrol.env"] == "NODE_ID=g1\nCA_URL=https://ca.example:8443\n"


def test_a_network_may_have_a_name_of_32_bytes_and_a_password_of_63_letters() -> None:
    found = texts(SMALL + wifi("ü" * 16, " ~" + "x" * 61))
    assert found[f"/var/lib/iwd/={('ü' * 16).encode().hex()}.psk"].endswith("=\\s~" + "x" * 61 + "\n")


def test_every_sign_but_a_colon_may_be_in_the_password_of_sensors() -> None:
    signs = "".join(map(chr, range(ord("!"), ord("~") + 1))).replace(":", "")
    found = texts(SMALL + f"[local_broker]\npassword = {json.dumps(signs)}\n")
    assert f"sensors:{signs}\n" in found["/run/headwater/mosquitto/passwords"]


def test_secrets_are_readable_for_those_who_need_them() -> None:
    secret = ("Sensors-1234", "0123456789abcdef", "back\\\\slash", "drawn")
    for each in machine_files(parse_gateway_file(WHOLE.encode()), "drawn"):
        if any(word in each.text for word in secret):
            assert each.mode & 0o007 == 0, each.path


def fixed(address: str, router: str) -> str:
    return SMALL + f'[network]\naddress = "{address}"\nrouter = "{router}"\n'


def listens(address: str) -> str:
    return SMALL + f'[local_broker]\npassword = "Sensors-1234"\naddress = "{address}"\n'


MISTAKES = [
    (fixed("10.0.0.2/24", "10.0.1.1"), ["network.router", "is not in the network of address, 10.0.0.0/24"]),
    (fixed("10.0.0.2/24", "10.0.0.2"), ["is the address of this gateway"]),
    (fixed("10.0.0.2/24", "10.0.0.255"), ["network.router", "is the address of the network itself, or its broadcast"]),
    (fixed("10.0.0.2/24", "10.0.0.0"), ["network.router", "is the address of the network itself, or its broadcast"]),
    (fixed("10.0.0.2/24", "10.0.0.1") + 'dns = ["127.0.0.1"]\n', ["network.dns[0]", "is not the address of a machine"]),
    (fixed("10.0.0.2/24", "0.0.0.0"), ["network.router", "is not the address of a machine"]),
    (
        fixed("10.0.0.2/24", "10.0.0.1") + '[local_broker]\npassword = "Sensors-1234"\naddress = "10.0.0.3"\n',
        ["local_broker.address", "is no address of this gateway, which has 10.0.0.2"],
    ),
    (fixed("10.0.0.2/24", "fe80::1"), ["is an IPv6 address, and address is of IPv4"]),
    (fixed("10.0.0.0/24", "10.0.0.1"), ["is the address of the network itself"]),
    (fixed("10.0.0.255/24", "10.0.0.1"), ["is the address of the network itself, or its broadcast"]),
    (fixed("224.0.0.1/24", "224.0.0.2"), ["is not the address of a machine"]),
    (fixed("10.0.0.2/24", "10.0.0.1") + 'dns = ["255.255.255.255"]\n', ["is not the address of a machine"]),
    (fixed("0.1.2.3/24", "0.1.2.1"), ["network.address", "is not the address of a machine"]),
    (fixed("::ffff:10.0.0.2/120", "fe80::1"), ['is an IPv4 address in the form of IPv6; write "10.0.0.2"']),
    (listens("::ffff:10.0.0.2"), ["local_broker.address", "is an IPv4 address in the form of IPv6"]),
    (listens("fe80::1"), ["local_broker.address", "no broker starts on it"]),
    (listens("255.255.255.255"), ["is not the address of a machine"]),
    (fixed("fd00::2%eth0/64", "fd00::1"), ["has a scope"]),
    (SMALL + '[local_broker]\npassword = "Sensors-1234"\naddress = "fe80::1%a\\nuser root"\n', ["has a scope"]),
    (
        SMALL + f"[enrol]\nurl = 'https://ca'\nca = '''{PEM[:200]}\n-----END CERTIFICATE-----'''\n",
        ["damaged or cut short"],
    ),
    (SMALL + f'[ssh]\nkeys = ["{KEY[:40]}="]\n', ["ssh.keys[0]", "is damaged or cut short"]),
    (SMALL + f'[ssh]\nkeys = ["{KEY.replace("AAAAC3", "AAAAC4")}"]\n', ["is damaged or cut short"]),
    (SMALL.replace("g1", "G1"), ["gateway.toml:2  node.id", "is not a node id"]),
    (SMALL + "[netwrk]\n", ['gateway.toml:5  unknown key "netwrk"', "network"]),
    (SMALL + '[network]\nadress = "10.0.0.2/24"\n', ['network: unknown key "adress"', '"address"']),
    (SMALL + '[network]\naddress = "10.0.0.2"\n', ["has no network length"]),
    (SMALL + '[network]\nrouter = "10.0.0.2"\n', ["only used with a fixed address"]),
    (SMALL + '[network]\nwifi_ssid = "hall"\n', ["needs both wifi_ssid and wifi_password", "needs a country"]),
    (
        SMALL + '[network]\nwifi_ssid = "hall\\nKey=x"\nwifi_password = "12345678"\nwifi_country = "DE"\n',
        ["not printable"],
    ),
    (SMALL + wifi(name="ü" * 17), ["network.wifi_ssid", "longer than 32 bytes"]),
    (SMALL + wifi(password="1234567"), ["network.wifi_password", "8 to 63 letters"]),
    (SMALL + wifi(password="x" * 64), ["network.wifi_password", "8 to 63 letters"]),
    (SMALL + wifi(password="schlüssel"), ["network.wifi_password", "of ASCII"]),
    (SMALL + "[time]\n", ['"servers" is missing']),
    (SMALL + '[time]\nservers = ["a b"]\n', ["is not a host"]),
    (SMALL + '[ssh]\nkeys = ["-----BEGIN OPENSSH PRIVATE KEY-----"]\n', ["is not an SSH key"]),
    (SMALL + '[local_broker]\npassword = "short"\n', ["8 to 100"]),
    (SMALL + '[local_broker]\npassword = "with:a-colon"\n', ["no colon"]),
    (SMALL + '[local_broker]\npassword = "longenough"\nuser = "headwater"\n', ["the user name of the gateway"]),
    (SMALL + '[local]\nbroker = "mqtt://x"\n', ["use [local_broker]"]),
    (SMALL + '[sensor.s]\ndriver = "mqtt"\ntopic = "a"\n', ["needs a local broker; add [local_broker] with password"]),
    (
        SMALL + 'user = "a"\npassword = "12345678"\n',
        ["uplink.password: the image has a certificate instead; use [enrol]"],
    ),
    (SMALL + '[spool]\npath = "/boot/spool.db"\n', ["the image keeps the spool"]),
    (SMALL + f"[enrol]\nurl = 'https://ca'\nca = '''{PEM}'''\n", ["[enrol] needs TLS", "mqtts"]),
    (SMALL + "[enrol]\nurl = 'http://ca'\nca = 'x'\n", ["is not an https address", "is not a certificate in PEM"]),
    (SMALL + "[uplink.extra]\n", ["uplink: unknown key"]),
    (SMALL.replace("[uplink]", '[uplink]\nca_file = "ca.pem"'), ["use [enrol]"]),
    ('[node]\nid = "g1"\nrole = "region"\n[uplink]\nbroker = "mqtt://x"\n', ["the image is for a gateway"]),
    ("", ["empty"]),
    ("[node\n", ["not valid TOML"]),
    ("\x00\x01", ["not valid TOML"]),
]


@pytest.mark.parametrize(
    ("address", "router"),
    [("10.0.0.2/31", "10.0.0.3"), ("fd00::2/64", "fe80::1"), ("fd00::2/64", "fd00::1"), ("fd00::2/64", "fd00::")],
)
def test_a_router_that_can_be_reached_is_accepted(address: str, router: str) -> None:
    parse_gateway_file(fixed(address, router).encode())


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "127.0.0.1", "10.0.0.2", "fd00::7"])
def test_the_sensors_broker_may_listen_on_what_a_machine_with_a_fixed_address_has(address: str) -> None:
    text = fixed("10.0.0.2/24", "10.0.0.1") + f'[local_broker]\npassword = "Sensors-1234"\naddress = "{address}"\n'
    assert parse_gateway_file(text.encode()).local_broker is not None


@pytest.mark.parametrize(("text", "parts"), MISTAKES)
def test_a_mistake_is_a_line_with_what_to_do(text: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_gateway_file(text.encode())
    for part in parts:
        assert part in str(caught.value)
    assert all(line.startswith("gateway.toml") for line in str(caught.value).splitlines())


HIDDEN = "p4ss:wörd!"  # as a value wrong everywhere

SECRETS = [
    SMALL + f'[local_broker]\npassword = "{HIDDEN}"\n',
    SMALL + f'[local_broker]\npassword = ["{HIDDEN}"]\n',
    SMALL + f'[local_broker]\npassword = "{HIDDEN * 100}"\n',
    SMALL + f'[[local_broker]]\npassword = "{HIDDEN}"\n',
    f'local_broker = "{HIDDEN}"\n{SMALL}',
    SMALL + f'[network]\nwifi_ssid = "hall"\nwifi_password = "{HIDDEN}\\n"\nwifi_country = "DE"\n',
    SMALL + f"[enrol]\nurl = 'https://u:{HIDDEN}@ca'\ntoken = '{HIDDEN}'\nca = '{HIDDEN}'\n",
    SMALL + f'[ssh]\nkeys = "{HIDDEN}"\n',
    SMALL + f'[ssh]\nkeys = ["{HIDDEN}"]\n',
    SMALL + f'[update]\nkeys = ["{HIDDEN}"]\n',
    SMALL.replace("[uplink]", f'[uplink]\npassword = "{HIDDEN}"'),
    *(SMALL.replace("mqtt://", f"{scheme}://u:{HIDDEN}@") for scheme in ("mqtt", "https")),
    SMALL.replace("mqtt://", f"u:{HIDDEN}@"),
    *(SMALL.replace("[uplink]", f'[uplink]\n{word} = "{HIDDEN}"') for word in ("password_file", "key_file")),
    SMALL + f'[local_broker]\npassword = "longenough"\nuser = "sensors:{HIDDEN}"\n',
    SMALL + f'[network]\nwifi_ssid = "{HIDDEN * 4}"\nwifi_password = "hall-hall"\nwifi_country = "DE"\n',
    *(SMALL + f"[enrol]\nurl = 'https://ca{tail}{HIDDEN}'\nca = '''{PEM}'''\n" for tail in ("/", "?token=", "/a?b#")),
    SMALL.replace("mqtt://", f"mqtt://u:{HIDDEN}@") + f"[enrol]\nurl = 'https://ca'\nca = '''{PEM}'''\n",
]


@pytest.mark.parametrize("text", SECRETS)
def test_no_message_repeats_a_secret(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_gateway_file(text.encode())
    assert HIDDEN not in str(caught.value)
    assert not any(HIDDEN in str(each) for each in caught.value.problems)


DATED = (
    SMALL
    + """
[sensor.s]
driver = "simulated"
begin = 2026-11-21T00:00:00Z
[query.q]
source = "s"
window = {type = "tumbling", length = "1m"}
aggregates = ["avg"]
effective_from = 2026-11-21T01:00:00+01:00
"""
)


def test_a_date_without_quotes_is_applied_and_means_the_same(tmp_path: Path) -> None:
    file, root = tmp_path / "gateway.toml", tmp_path / "root"
    file.write_text(DATED)
    applied = apply(file, root)
    assert (applied.node, applied.lines) == ("g1", ())
    written = load(root / "run/headwater/headwater.toml")
    read = parse_gateway_file(DATED.encode()).settings
    assert [each.value for each in written.definitions] == [each.value for each in read.definitions]


def test_what_becomes_too_long_for_the_gateway_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """headwater.toml, which is written of it, is longer."""
    monkeypatch.setattr("edge_agent.provisioning.machine_files.MAX_FILE_BYTES", len(DATED))
    file = tmp_path / "gateway.toml"
    file.write_text(DATED)
    assert main(["image", "check", str(file)]) == 2
    assert "gateway.toml: the gateway cannot read what is made of it: " in capsys.readouterr().err
    assert apply(file, tmp_path / "root").errors[0].startswith("gateway.toml: the gateway cannot read")


def test_the_gateway_may_read_what_its_own_broker_says_of_itself() -> None:
    """`#` does not match `$SYS/broker/uptime`: a sensor on it received nothing, without a word."""
    acl = texts(f'{SMALL}[local_broker]\npassword = "longenough"\n')["/run/headwater/mosquitto/acl"]
    of_agent, of_devices = acl.split("\n\n")
    assert of_agent.splitlines() == ["user headwater", "topic read #", "topic read $SYS/#"]
    assert "$SYS" not in of_devices


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            fixed("10.0.0.2/24", "10.0.0.1").replace("mqtt://10.0.0.1", "mqtt://broker.example"),
            "may not find broker.example;",
        ),
        (
            fixed("10.0.0.2/24", "10.0.0.1") + '[uplink.brokers]\nregion-2 = "mqtt://hall-2.example"\n',
            "may not find hall-2.example;",
        ),
        (fixed("10.0.0.2/24", "10.0.0.1"), ""),
        (fixed("10.0.0.2/24", "10.0.0.1") + 'dns = ["10.0.0.1"]\n', ""),
        (SMALL, ""),
    ],
)
def test_names_without_name_servers_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "gateway.toml").write_text(text)
    assert main(["image", "check", str(tmp_path / "gateway.toml")]) == 0
    err = capsys.readouterr().err
    assert said in err if said else not err
