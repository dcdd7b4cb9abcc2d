"""What a boot makes of the gateway's file: files of the machine, the last good file, the spool's node."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from edge_agent.cli.main import main
from edge_agent.config.node_file.gateway_file import GatewayFile, parse_gateway_file
from edge_agent.config.node_file.settings import load
from edge_agent.ports.spool_file import SpoolFile
from edge_agent.provisioning.first_boot import apply, report
from edge_agent.provisioning.machine_files import MachineFile, machine_files
from tests.image.gateway_files import PEM, SMALL, WHOLE, wifi


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
    assert "cannot apply the file: TypeError in test_gateway_boot.py, line " in said
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
