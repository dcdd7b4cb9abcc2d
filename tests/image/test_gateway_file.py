"""gateway.toml: checked like every configuration, applied at boot, and never worse than the last good one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from edge_agent.cli.main import main
from edge_agent.config.node_file.gateway_file import GatewayFile, parse_gateway_file
from edge_agent.config.node_file.settings import load
from edge_agent.errors import ConfigError, PortError
from edge_agent.identity.authority import Authority
from edge_agent.ports.spool_file import SpoolFile
from edge_agent.provisioning import fat
from edge_agent.provisioning.first_boot import _replace, apply, report
from edge_agent.provisioning.machine_files import MachineFile, machine_files
from tests.image.gateway_files import KEY, PEM, SMALL, WHOLE


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


def wifi(name: str = "hall", password: str = "12345678") -> str:
    return f'[network]\nwifi_ssid = "{name}"\nwifi_password = "{password}"\nwifi_country = "DE"\n'


def fixed(address: str, router: str) -> str:
    return SMALL + f'[network]\naddress = "{address}"\nrouter = "{router}"\n'


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


def test_a_bad_file_leaves_the_last_good_one_in_force(tmp_path: Path) -> None:
    file, root, console = tmp_path / "gateway.toml", tmp_path / "root", list[str]()
    file.write_text(SMALL)
    assert apply(file, root).node == "g1"
    file.write_text(SMALL.replace("uplink", "uplnk"))
    shutil.rmtree(root / "run")  # a boot
    applied = apply(file, root)
    assert (applied.node, applied.kept) == ("g1", True)
    assert load(root / "run/headwater/headwater.toml").node.id == "g1"
    report(applied, file, console.append)
    said = (tmp_path / "gateway-errors.txt").read_text()
    assert "The last good file is in force, as g1." in said
    assert all(line in said for line in console)
    assert any("[uplink] is missing" in line for line in console)
    file.write_text(SMALL.replace("g1", "g2"))
    report(apply(file, root), file, console.append)
    assert not (tmp_path / "gateway-errors.txt").exists()
    assert load(root / "run/headwater/headwater.toml").node.id == "g2"


@pytest.mark.parametrize("text", [None, "[node]\n", "\x00"])
def test_without_a_good_file_no_gateway_runs_and_the_card_says_why(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "gateway.toml"
    if text is not None:
        file.write_text(text)
    applied = apply(file, tmp_path / "root")
    report(applied, file, lambda _: None)
    assert applied.node == ""
    assert applied.errors
    assert not (tmp_path / "root").exists()
    assert "The gateway does not run until the file is valid" in (tmp_path / "gateway-errors.txt").read_text()


def test_what_is_no_longer_said_is_gone_after_a_boot(tmp_path: Path) -> None:
    """Rights that were taken away stay away: everything but identity and Wi-Fi is below /run."""
    for each in machine_files(parse_gateway_file(WHOLE.encode()), "drawn"):
        assert each.path.startswith(("/run/", "/var/lib/headwater-identity/ca.pem", "/var/lib/iwd/")), each.path


def test_init_writes_a_file_that_passes_and_explains_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--for-image", "--id", "press-1", "--broker", "mqtts://b.example"]) == 0
    text = (tmp_path / "gateway.toml").read_text()
    assert parse_gateway_file(text.encode()).settings.node.id == "press-1"
    for word in ("[enrol]", "[network]", "[time]", "[ssh]", "[local_broker]", "token", "wifi_ssid"):
        assert word in text
    assert main(["init", "--for-image", "--role", "region"]) == 2


def test_the_table_of_a_token_is_what_the_file_wants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Authority.create(tmp_path / "ca", "fleet")
    main(["ca", "token", str(tmp_path / "ca"), "g1", "--url", "https://ca.example:8443"])
    text = SMALL.replace("mqtt:", "mqtts:") + capsys.readouterr().out
    enrol = parse_gateway_file(text.encode()).enrol
    assert enrol is not None
    assert enrol.ca.strip() == (tmp_path / "ca" / "ca.pem").read_text().strip()


def test_a_table_without_an_address_of_the_authority_is_not_taken_for_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A made-up address would pass the check, and the card would never enrol."""
    Authority.create(tmp_path / "ca", "fleet")
    assert main(["ca", "token", str(tmp_path / "ca"), "g1"]) == 0
    table = capsys.readouterr().out
    assert "# url = ... is missing: " in table
    with pytest.raises(ConfigError, match='enrol: "url" is missing'):
        parse_gateway_file((SMALL.replace("mqtt:", "mqtts:") + table).encode())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            fixed("10.0.0.2/24", "10.0.0.1").replace("mqtt://10.0.0.1", "mqtt://broker.example"),
            "may not find broker.example;",
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


def test_configure_puts_a_checked_file_on_an_image(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "gateway.toml"
    for text in (SMALL, WHOLE):
        config.write_text(text)
        assert main(["image", "configure", str(image), "--config", str(config)]) == 0
        assert fat.get(image, "gateway.toml") == text.encode()
    config.write_text("[node]")
    assert main(["image", "configure", str(image), "--config", str(config)]) == 2
    assert fat.get(image, "gateway.toml") == WHOLE.encode(), "a bad file changes nothing"


def fill(image: Path, left: int) -> None:
    """Fill the partition of a card, up to `left` bytes."""
    at = f"{image}@@{2048 * 512}"
    listing = subprocess.run(["mdir", "-i", at, "::"], capture_output=True, text=True, check=True).stdout
    (free,) = re.findall(r"([\d ]+) bytes free", listing)
    big = image.with_name("big")
    with big.open("wb") as out:
        out.truncate(int(free.replace(" ", "")) - left)
    subprocess.run(["mcopy", "-i", at, str(big), "::big"], check=True)


def test_a_full_card_keeps_the_file_it_has(image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "gateway.toml"
    words = ["image", "configure", str(image), "--config", str(config)]
    config.write_text(SMALL)
    assert main(words) == 0
    fill(image, left=0)
    config.write_text(SMALL + "# longer\n" * 5000)
    assert main(words) == 3
    assert f"{image}: the boot partition is full; delete files there" in capsys.readouterr().err
    assert fat.get(image, "gateway.toml") == SMALL.encode()


def test_a_full_card_without_a_file_gets_no_part_of_one(image: Path) -> None:
    fill(image, left=4096)
    with pytest.raises(PortError, match="is full"):
        fat.put(image, b"x" * 30_000)
    assert fat.find(image, "gateway.toml") is None


def test_a_card_without_mistakes_says_so(image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", "errors", str(image)]) == 0
    assert "the gateway found no mistake, or has not booted" in capsys.readouterr().out
    said = tmp_path / "gateway-errors.txt"
    said.write_bytes(b"one\r\ntwo\x1b\r\n")
    subprocess.run(["mcopy", "-i", f"{image}@@{2048 * 512}", str(said), "::"], check=True)
    assert main(["image", "errors", str(image)]) == 0
    assert capsys.readouterr().out == "one\ntwo \n"


def test_configure_touches_only_disks_with_our_image(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(SMALL)
    other = tmp_path / "other.img"
    payload = bytearray(image.read_bytes()[:4096])
    payload[440:444] = b"abcd"
    for content, word in (
        (bytes(payload), "does not contain the gateway image"),
        (b"x" * 4096, "is not a disk image"),
        (b"", "is not a disk"),
    ):
        other.write_bytes(content)
        assert main(["image", "configure", str(other), "--config", str(config)]) == 2
        assert word in capsys.readouterr().err
        assert other.read_bytes() == content
    assert main(["image", "configure", str(tmp_path / "none"), "--config", str(config)]) == 2


def test_what_the_machine_refuses_is_a_line_and_everything_else_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A card that is full or worn, a folder that is a file, and no mosquitto_passwd."""
    file, root = tmp_path / "gateway.toml", tmp_path / "root"
    file.write_text(WHOLE)
    (root / "var/lib").mkdir(parents=True)
    for name in ("iwd", "headwater-machine", "headwater-identity"):
        (root / "var/lib" / name).touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["image", "apply", str(file), "--root", str(root)]) == 2
    said = capsys.readouterr()
    assert "gateway.toml applied, node g1" in said.out
    assert "Traceback" not in said.err
    lines = said.err.splitlines()
    (text,) = tmp_path.glob("gateway-errors.txt")
    for refused in (
        "/var/lib/iwd/",
        "/var/lib/headwater-identity/ca.pem",
        "/var/lib/headwater-machine/",
        "/passwords: ",
    ):
        assert any(refused in line for line in lines), refused
    assert "was applied, as g1, except for this:" in text.read_text()
    assert load(root / "run/headwater/headwater.toml").node.id == "g1"
    assert (root / "run/headwater/authorized_keys").is_file()
    assert not (root / "run/headwater/mosquitto/passwords").exists(), "never in plain text"


def test_a_card_that_takes_no_report_does_not_stop_the_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def worn(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(32, "mount")

    file = tmp_path / "gateway.toml"
    file.write_text(SMALL.replace("uplink", "uplnk"))
    monkeypatch.setattr("os.path.ismount", lambda _: True)
    monkeypatch.setattr("subprocess.run", worn)
    assert main(["image", "apply", str(file), "--root", str(tmp_path / "root")]) == 2
    *mistakes, last = capsys.readouterr().err.splitlines()
    assert any("uplnk" in line for line in mistakes)
    assert last.startswith("headwater: gateway-errors.txt on the card is not up to date: ")


def test_on_a_full_card_the_report_that_is_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The boot partition is full: the file may not be emptied for a text that does not fit."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    file, text = tmp_path / "gateway.toml", tmp_path / "gateway-errors.txt"
    words = ["image", "apply", str(file), "--root", str(tmp_path / "root")]
    file.write_text(SMALL.replace("uplink", "uplnk"))
    assert main(words) == 2
    before = text.read_bytes()
    assert b"uplnk" in before
    capsys.readouterr()
    file.write_text(SMALL.replace("broker", "brokr"))
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        assert main(words) == 2
    said = capsys.readouterr().err
    assert "brokr" in said, "on the console"
    assert "headwater: gateway-errors.txt on the card is not up to date: no space left on device" in said
    assert text.read_bytes() == before
    beside = tmp_path / "gateway-errors.new"
    assert not beside.exists()
    beside.write_bytes(b"half")  # a power cut
    assert main(words) == 2
    assert b"brokr" in text.read_bytes()
    assert not beside.exists()
    beside.write_bytes(b"half")
    file.write_text(SMALL)
    assert main(words) == 0
    assert not beside.exists()
    assert not text.exists()


def test_a_boot_partition_without_a_free_block_keeps_its_report(tmp_path: Path) -> None:
    card = tmp_path / "card"
    card.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "headwater-test", str(card)], check=False, capture_output=True
    )
    if mounted.returncode:  # only root may mount, and not everywhere; the test above needs no mount
        return
    try:
        text = card / "gateway-errors.txt"
        text.write_bytes(b"earlier")
        with contextlib.suppress(OSError), (card / "big").open("wb", buffering=0) as big:
            while True:
                big.write(b"x" * 4096)
        with pytest.raises(OSError, match="No space left"):
            _replace(text, b"y" * 5000, card / "gateway-errors.new")
        assert text.read_bytes() == b"earlier"
        assert {each.name for each in card.iterdir()} == {"gateway-errors.txt", "big"}
    finally:
        subprocess.run(["umount", str(card)], check=True)


def test_a_network_that_is_no_longer_named_is_forgotten(tmp_path: Path) -> None:
    file, root = tmp_path / "gateway.toml", tmp_path / "root"
    known = root / "var/lib/iwd"
    file.write_text(SMALL + wifi("hall"))
    apply(file, root)
    for name in ("cafe.open", "=e4.8021x", ".attic.psk.new", ".known_network.freq"):
        (known / name).touch()
    file.write_text(SMALL + wifi("yard"))
    apply(file, root)
    assert {each.name for each in known.iterdir()} == {"yard.psk", ".known_network.freq"}
    file.write_text(SMALL)
    apply(file, root)
    assert {each.name for each in known.iterdir()} == {".known_network.freq"}


def test_a_full_card_keeps_the_files_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    file, root = tmp_path / "gateway.toml", tmp_path / "root"
    file.write_text(WHOLE)
    apply(file, root)
    before = {each: each.read_bytes() for each in (root / "var").rglob("*") if each.is_file()}
    file.write_text(WHOLE.replace("back", "front"))
    monkeypatch.setattr("os.fsync", full)
    undone = apply(file, root).undone
    assert len(undone) == 2
    assert all(line.endswith(": no space left on device") for line in undone)
    assert {each: each.read_bytes() for each in (root / "var").rglob("*") if each.is_file()} == before


def test_a_file_that_windows_named_otherwise_is_named(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("# the one that came with the image\n")
    assert not any(".txt" in line for line in apply(file, tmp_path / "root").errors)
    (tmp_path / "gateway.toml.txt").write_text(SMALL)
    errors = apply(file, tmp_path / "root").errors
    assert errors[-1] == "gateway.toml.txt beside it is not read: rename it to gateway.toml"
    file.write_text(SMALL)
    assert apply(file, tmp_path / "root").lines == ()


def test_a_boot_writes_to_the_card_only_what_changed(tmp_path: Path) -> None:
    def inodes() -> dict[str, int]:
        found = [each for each in (root / "var").rglob("*") if each.is_file()]
        assert len(found) == 3
        return {each.name: each.stat().st_ino for each in found}

    file, root = tmp_path / "gateway.toml", tmp_path / "root"
    file.write_text(WHOLE)
    apply(file, root)
    with contextlib.ExitStack() as stack:  # so that no inode is used again
        for each in (root / "var").rglob("*.*"):
            stack.enter_context(each.open())
        before = inodes()
        apply(file, root)
        assert inodes() == before
        file.write_text(WHOLE.replace("back", "front"))
        apply(file, root)
        assert {name for name, inode in inodes().items() if before[name] != inode} == {
            "gateway.toml",
            f"={b'hall; 7'.hex()}.psk",
        }


def test_files_are_never_readable_for_more_than_they_say(tmp_path: Path) -> None:
    file, root = tmp_path / "gateway.toml", tmp_path / "root"
    file.write_text(WHOLE)
    apply(file, root)
    modes = {each.path: each.mode for each in machine_files(parse_gateway_file(file.read_bytes()), "")}
    for path, mode in modes.items():
        assert stat.S_IMODE((root / path[1:]).stat().st_mode) == mode
    passwords = (root / "run/headwater/mosquitto/passwords").read_text()
    assert "Sensors-1234" not in passwords, "hashed"
    assert passwords.count("$7$") == 2
    assert stat.S_IMODE((root / "var/lib/headwater-machine/gateway.toml").stat().st_mode) == 0o600


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


def test_an_error_of_the_program_keeps_the_last_good_file_and_is_a_line_on_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(file: GatewayFile, password: str) -> list[MachineFile]:
        if file.settings.node.id == "g1" and file.ssh is None:
            return machine_files(file, password)
        raise TypeError("0123456789abcdef is not a token")

    monkeypatch.setattr("edge_agent.provisioning.first_boot.machine_files", broken)
    file, root = tmp_path / "gateway.toml", tmp_path / "root"
    file.write_text(WHOLE)
    assert main(["image", "apply", str(file), "--root", str(root)]) == 2, "not 1, the code of a crash"
    said = (tmp_path / "gateway-errors.txt").read_text()
    assert "cannot apply the file: TypeError in test_gateway_file.py, line " in said
    assert "0123456789abcdef" not in said
    assert "The gateway does not run until the file is valid." in said
    file.write_text(SMALL)
    assert main(["image", "apply", str(file), "--root", str(root)]) == 0
    file.write_text(WHOLE)
    assert main(["image", "apply", str(file), "--root", str(root)]) == 2
    assert "The last good file is in force, as g1." in (tmp_path / "gateway-errors.txt").read_text()
    assert load(root / "run/headwater/headwater.toml").node.id == "g1"
    assert "Traceback" not in capsys.readouterr().err


def test_a_file_of_the_machine_that_cannot_be_written_is_a_line_whatever_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise TypeError("a mistake of ours")

    monkeypatch.setattr("edge_agent.provisioning.first_boot._forget_networks", broken)
    file = tmp_path / "gateway.toml"
    file.write_text(SMALL)
    assert apply(file, tmp_path / "root").undone == ("/var/lib/iwd: a mistake of ours",)


def test_a_crash_at_boot_is_no_success_of_the_unit() -> None:
    unit = Path(__file__).parents[2] / "gateway_image/overlay/etc/systemd/system/headwater-machine.service"
    assert "\nSuccessExitStatus=2\n" in unit.read_text()


def begin(spool: Path, node: str) -> None:
    """What the gateway's first start leaves."""
    spool.parent.mkdir(parents=True, exist_ok=True)
    file = SpoolFile(spool, node)
    file.open()
    file.close()


@pytest.mark.parametrize(("address", "own"), [("0.0.0.0", False), ("::", True), ("192.168.1.20", True)])
def test_the_gateway_reaches_its_own_broker_whatever_address_it_has(address: str, own: bool) -> None:
    """A listener on `::` takes no IPv4 connections, and the gateway connects to 127.0.0.1."""
    text = SMALL + f'[local_broker]\npassword = "longenough"\naddress = "{address}"\n'
    files = {each.path: each.text for each in machine_files(parse_gateway_file(text.encode(), "x"), "secret")}
    config = next(content for path, content in files.items() if path.endswith("mosquitto.conf"))
    assert ("listener 1883 127.0.0.1" in config.splitlines()) == own
    assert f"listener 1883 {address}" in config.splitlines()


def test_what_the_gateway_s_user_left_in_place_of_a_spool_does_not_stop_the_boot(tmp_path: Path) -> None:
    """A pipe: to open it lasts until somebody writes. The unit has an end of its own, for what nobody thought of."""
    file, root = tmp_path / "gateway.toml", tmp_path / "root"
    spool = root / "var/lib/headwater/spool.db"
    spool.parent.mkdir(parents=True)
    os.mkfifo(spool)
    file.write_text(SMALL)
    assert apply(file, root).lines == ()
    spool.unlink()
    spool.symlink_to("/dev/zero")
    assert apply(file, root).lines == ()
    unit = Path(__file__).parents[2] / "gateway_image/overlay/etc/systemd/system/headwater-machine.service"
    assert "\nTimeoutStartSec=2min\n" in unit.read_text()


@pytest.mark.parametrize("name", ["ca.pem", ".ca.pem.new"])
def test_the_boot_writes_through_no_link_of_the_gateway_s_user(tmp_path: Path, name: str) -> None:
    """The folder of the identity is that user's, and the boot writes there as root."""
    file, root, other = tmp_path / "gateway.toml", tmp_path / "root", tmp_path / "other"
    identity = root / "var/lib/headwater-identity"
    identity.mkdir(parents=True)
    other.write_text("of root")
    (identity / name).symlink_to(other)
    file.write_text(WHOLE)
    assert apply(file, root).lines == ()
    assert other.read_text() == "of root"
    assert not (identity / "ca.pem").is_symlink()
    assert (identity / "ca.pem").read_text().strip() == PEM.strip()


def test_another_node_id_on_a_card_with_a_spool_is_not_applied(tmp_path: Path) -> None:
    """The gateway would refuse the spool for ever, and the settings of the image have no other place for one."""
    file, root = tmp_path / "gateway.toml", tmp_path / "root"
    spool = root / "var/lib/headwater/spool.db"
    file.write_text(SMALL)
    assert apply(file, root).lines == ()
    file.write_text(SMALL.replace("g1", "g2"))
    assert apply(file, root).node == "g2", "no spool yet"
    begin(spool, "g2")
    there = sorted(spool.parent.iterdir())
    file.write_text(SMALL.replace("g1", "g3"))
    applied = apply(file, root)
    assert (applied.node, applied.kept) == ("g2", True)
    assert load(root / "run/headwater/headwater.toml").node.id == "g2"
    assert sorted(spool.parent.iterdir()) == there, "no file of root beside it"
    report(applied, file, lambda _: None)
    said = (tmp_path / "gateway-errors.txt").read_text()
    assert "The last good file is in force, as g2." in said
    assert '[node] id is "g3", but the spool on the card is of "g2"' in said
    assert 'write id = "g2" again' in said
    file.write_text(SMALL.replace("g1", "g2"))
    assert apply(file, root).lines == ()


def test_the_node_of_a_spool_is_known_from_its_first_start_on(tmp_path: Path) -> None:
    """The power may go before SQLite takes over its log, which the boot does not read."""
    root, after = tmp_path / "root", tmp_path / "after"
    spool = SpoolFile(root / "var/lib/headwater/spool.db", "g1")
    spool.path.parent.mkdir(parents=True)
    spool.open()
    shutil.copytree(root, after)
    spool.close()
    (tmp_path / "gateway.toml").write_text(SMALL.replace("g1", "g2"))
    assert 'but the spool on the card is of "g1"' in "\n".join(apply(tmp_path / "gateway.toml", after).lines)


def test_another_node_id_without_a_last_good_file_is_applied_and_said(tmp_path: Path) -> None:
    """Network and SSH of the file are then in force, for who comes to repair it."""
    file, root = tmp_path / "gateway.toml", tmp_path / "root"
    begin(root / "var/lib/headwater/spool.db", "g9")
    file.write_text(SMALL)
    for _ in range(2):
        applied = apply(file, root)
        assert (applied.node, applied.kept) == ("g1", False)
        assert 'but the spool on the card is of "g9"' in "\n".join(applied.undone)


@pytest.mark.parametrize("content", [b"", b"x" * 5000])
def test_a_damaged_spool_does_not_stop_a_file(tmp_path: Path, content: bytes) -> None:
    file, spool = tmp_path / "gateway.toml", tmp_path / "root/var/lib/headwater/spool.db"
    spool.parent.mkdir(parents=True)
    spool.write_bytes(content)
    file.write_text(SMALL)
    assert apply(file, tmp_path / "root").lines == ()
