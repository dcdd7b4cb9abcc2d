"""The commands of a fleet's identities, and their wrong use."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

import pytest

from edge_agent.cli.main import main
from edge_agent.identity.authority import Authority


def test_what_cannot_be_a_node_gets_no_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ca = str(tmp_path / "ca")
    assert main(["ca", "init", ca]) == 0
    for name in ("#", "+", "g/1", "G1", "g" * 33):
        assert main(["ca", "token", ca, name]) == 2
        assert "cannot be a name in a certificate" in capsys.readouterr().err


def test_the_commands_of_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ca = str(tmp_path / "ca")
    assert main(["ca", "init", ca]) == 0
    assert main(["ca", "init", ca]) == 2, "an authority is never overwritten"
    assert stat.S_IMODE((tmp_path / "ca" / "ca.key").stat().st_mode) == 0o600
    assert main(["ca", "issue", ca, "region-1", "--out", str(tmp_path / "keys")]) == 0
    assert stat.S_IMODE((tmp_path / "keys" / "key.pem").stat().st_mode) == 0o600
    assert main(["ca", "issue", ca, "region-1", "--out", str(tmp_path / "keys")]) == 2, "nor a key"
    assert main(["ca", "token", ca, "g1", "--url", "https://ca:1"]) == 0
    capsys.readouterr()
    assert main(["ca", "revoke", ca, "region-1"]) == 0
    assert main(["ca", "revoke", ca, "region-1"]) == 1
    assert main(["ca", "revoke", ca, "g1"]) == 0, "it has a token"
    assert "g1: 0 certificates and 1 unused token revoked; " in capsys.readouterr().out
    assert main(["ca", "revoke", ca, "g1"]) == 1
    assert main(["ca", "list", ca]) == 0
    assert "revoked 20" in capsys.readouterr().out
    assert main(["ca", "list", str(tmp_path)]) == 2
    assert "`headwater ca init` makes one" in capsys.readouterr().err


def test_a_node_that_cannot_enrol_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["enrol", str(tmp_path), "--url", "https://127.0.0.1:9"]
    assert main([*words, "--id", "g1"]) == 2
    assert "ca.pem does not exist; copy it" in capsys.readouterr().err
    (tmp_path / "ca.pem").write_bytes(b"no certificate")
    assert main([*words, "--id", "G 1"]) == 2
    assert main([*words, "--id", "g1", "--token-file", str(tmp_path / "token")]) == 2, "no token, and not enrolled"
    assert "`headwater ca token` makes one" in capsys.readouterr().err
    (tmp_path / "token").write_text("t\n")
    assert main([*words, "--id", "g1", "--token-file", str(tmp_path / "token")]) == 3
    assert f"cannot use {tmp_path}/ca.pem: " in capsys.readouterr().err


LONG: Final = "x" * 300  # as the name of a folder, it cannot be opened, not even by root


@pytest.mark.parametrize(
    "wrong",
    [
        (["init", ""], "wanted the name of a folder"),
        (["issue", "ca", "b1", "--out", ""], "wanted the name of a folder"),
        (["init", "new", "--name", ""], "--name ''"),
        (["init", "new", "--name", "x" * 100], "1 to 64 bytes"),
        (["init", "new", "--name", "a\nb"], "--name 'a\\nb'"),
        (["token", "ca", "g1", "--life", "999999999d"], "wanted 1s to 7300d"),
        (["token", "ca", "g1", "--url", "http://ca"], "is not an https address"),
        (["token", "ca", "g1", "--url", 'https://ca"\nx = "'], "is not an https address"),
        (["token", "ca", "g1", "--life", "0s"], "wanted 1s to 7300d"),
        (["issue", "ca", "b1", "--life", "99999999d"], "wanted 1s to 7300d"),
        (["issue", "ca", "b1", "--life", "0s"], "wanted 1s to 7300d"),
        (["issue", "ca", "b1", "--host", "bücher.de"], "--host 'bücher.de': "),
        (["issue", "ca", "b1", "--host", "a b"], "--host 'a b': "),
        (["issue", "ca", "b1", "--host", ""], "--host '': "),
        (["serve", "ca", "--host", "x", "--port", "999999"], "--port 999999: "),
        (["serve", "ca", "--host", "x", "--port", "0", "--address", "ü" * 99], "--address 'üüü"),
    ],
    ids=str,
)
def test_wrong_use_of_an_authority_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    authority: Authority,
    wrong: tuple[list[str], str],
) -> None:
    words, says = wrong
    monkeypatch.chdir(tmp_path)
    assert main(["ca", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert [each.name for each in tmp_path.iterdir()] == ["ca"]


def test_a_folder_that_cannot_be_opened_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], authority: Authority
) -> None:
    monkeypatch.chdir(tmp_path)
    enrol = ["enrol", "--id", "g1", "--url", "https://127.0.0.1:9"]
    for words in (["ca", "init", LONG], ["ca", "issue", "ca", "b1", "--out", LONG], [*enrol, LONG]):
        assert main(words) == 3
        assert "File name too long" in capsys.readouterr().err
    (tmp_path / "ca.pem").write_bytes(b"")
    (tmp_path / "current").symlink_to(LONG)
    assert main([*enrol, str(tmp_path)]) == 3
    assert "run as the user who owns" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["https://127.0.0.1:99999", "https://a b:1", "https://[::1", "http://x", "https://x:0"])
def test_a_wrong_url_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str) -> None:
    (tmp_path / "ca.pem").write_bytes(b"")
    (tmp_path / "token").write_text("t")
    assert main(["enrol", str(tmp_path), "--id", "g1", "--url", url, "--token-file", str(tmp_path / "token")]) == 2
    assert f"'{url}': wanted a URL like https://host:port" in capsys.readouterr().err


def test_a_token_file_that_is_no_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ca.pem").write_bytes(b"")
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    words = ["enrol", str(tmp_path), "--id", "g1", "--url", "https://x", "--token-file", str(tmp_path / "token")]
    assert main(words) == 2
    assert f"{tmp_path}/token is not a text; wanted the token of `headwater ca token`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["enrol", "FOLDER", "--id", "g1", "--url", "https://x", "--token-file", "/dev/zero"],
        ["update", "make", "--key", "/dev/zero"],
        ["image", "check", "/dev/zero"],
    ],
)
def test_a_file_without_an_end_is_refused_in_a_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They read it until the memory was used up."""
    (tmp_path / "ca.pem").touch()
    assert main([str(tmp_path) if word == "FOLDER" else word for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "/dev/zero" in line


def test_an_address_with_a_password_is_refused_and_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ca.pem").touch()
    assert main(["enrol", str(tmp_path), "--id", "g1", "--url", "https://me:s3cret@127.0.0.1:1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "must not contain credentials" in line
    assert "s3cret" not in line
