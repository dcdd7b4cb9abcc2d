"""The boot partition of a card: `configure` and the report put files on it, also if it is full."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

import pytest

from edge_agent.cli.main import main
from edge_agent.config.node_file.gateway_file import parse_gateway_file
from edge_agent.errors import ConfigError, PortError
from edge_agent.identity.authority import Authority
from edge_agent.provisioning import fat
from edge_agent.provisioning.first_boot import _replace, apply
from tests.image.gateway_files import SMALL, WHOLE


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
        (image.read_bytes()[2048 * 512 :], "is a partition; name the whole card, like /dev/sdX for /dev/sdX1"),
        (b"x" * 4096, "is not a disk image"),
        (b"", "is not a disk"),
    ):
        other.write_bytes(content)
        assert main(["image", "configure", str(other), "--config", str(config)]) == 2
        assert word in capsys.readouterr().err
        assert other.read_bytes() == content
    assert main(["image", "configure", str(tmp_path / "none"), "--config", str(config)]) == 2


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
