"""An authority and its devices: enrolment with a token, renewal, revocation, and the commands of a fleet."""

from __future__ import annotations

import datetime
import os
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edge_agent.cli.main import main
from edge_agent.errors import ConfigError, PortError
from edge_agent.identity import authority as authority_module
from edge_agent.identity.authority import MOST_RENEWALS, Authority, RefusedError, _utc, end_of
from edge_agent.identity.device import Device
from edge_agent.identity.signatures import make_key
from tests.support.file_locks import locks_asked_for, runs_or_waits

SECOND = datetime.timedelta(seconds=1)
SUBJECT = serialization.PublicFormat.SubjectPublicKeyInfo


def certificate(device: Device) -> x509.Certificate:
    return x509.load_pem_x509_certificate(device.cert_file.read_bytes())


def test_a_device_gets_a_certificate_for_the_key_it_made(
    url: str, authority: Authority, device: Callable[..., Device]
) -> None:
    gateway = device("g1")
    assert gateway.ensure(url, authority.token("g1")).startswith("g1 got a certificate, until ")
    found = certificate(gateway)
    assert found.subject.rfc4514_string() == "CN=g1"
    found.verify_directly_issued_by(authority.certificate)
    assert found.not_valid_after_utc - datetime.datetime.now(datetime.UTC) < datetime.timedelta(days=90)
    ssl.create_default_context().load_cert_chain(gateway.cert_file, gateway.key_file)  # they belong together
    assert stat.S_IMODE(gateway.key_file.stat().st_mode) == 0o640
    assert "until" in gateway.ensure(url, None), "nothing to do, and no token needed"
    assert certificate(gateway).serial_number == found.serial_number


def test_an_enrolment_runs_openssl_no_oftener_than_it_must(
    url: str, authority: Authority, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first boot each run delays the first window, on a slow board by half a second."""
    ran, run = list[str](), subprocess.run

    def counted(words: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        ran.append(words[1])
        return run(words, **options)

    gateway, token = device("g1"), authority.token("g1")
    monkeypatch.setattr("edge_agent.identity.openssl.subprocess.run", counted)
    gateway.ensure(url, token)
    assert ran == ["genpkey", "req", "x509", "x509", "pkey"]


def test_a_certificate_of_a_node_is_that_of_a_client_only(authority: Authority) -> None:
    """Else a stolen one could pass for the broker, or sign others."""
    node, broker = (
        x509.load_pem_x509_certificate(authority.key_pair(name, hosts)[1])
        for name, hosts in (("g1", ()), ("b1", ("127.0.0.1",)))
    )
    client, server = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
    assert set(node.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == {client}
    assert set(broker.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == {client, server}
    for each, signs in ((node, False), (broker, False), (authority.certificate, True)):
        assert each.extensions.get_extension_for_class(x509.BasicConstraints).value.ca == signs
        assert each.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign == signs
    assert authority.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


def test_a_device_enrols_where_no_owner_may_be_changed(
    url: str, authority: Authority, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox of headwater-enrol.service refuses every system call of the set @chown."""

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refused)
    gateway = device("g1")
    assert gateway.ensure(url, authority.token("g1")).startswith("g1 got a certificate, until ")


def test_a_token_is_good_once_and_not_for_long(url: str, authority: Authority, device: Callable[..., Device]) -> None:
    token = authority.token("g1")
    device("g1").ensure(url, token)
    with pytest.raises(PortError, match="was used by another device"):
        device("g1", "thief").ensure(url, token)
    with pytest.raises(PortError, match="unknown or expired"):
        device("g2").ensure(url, authority.token("g2", -SECOND))
    with pytest.raises(PortError, match="unknown or expired"):
        device("g2").ensure(url, "guess")


def test_a_token_is_for_one_name(url: str, authority: Authority, device: Callable[..., Device]) -> None:
    with pytest.raises(PortError, match="the request is for g2, not for g1"):
        device("g2").ensure(url, authority.token("g1"))


def test_a_token_tried_on_the_wrong_gateway_stays_good(
    url: str, authority: Authority, device: Callable[..., Device]
) -> None:
    token = authority.token("g1")
    with pytest.raises(PortError, match="the request is for g2, not for g1"):
        device("g2").ensure(url, token)
    assert device("g1").ensure(url, token).startswith("g1 got a certificate")


def test_an_answer_that_was_lost_is_asked_for_again(
    url: str, authority: Authority, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, token = device("g1"), authority.token("g1")
    with monkeypatch.context() as patch:
        patch.setattr(Device, "_put", lambda *_: (_ for _ in ()).throw(PortError("power cut")))
        with pytest.raises(PortError, match="power cut"):
            gateway.ensure(url, token)
    assert gateway.validity() is None
    gateway.ensure(url, token)
    assert gateway.validity() is not None
    assert not (gateway.folder / "enrolling.pem").exists()


def test_a_certificate_is_renewed_at_two_thirds_of_its_life(
    url: str, authority: Authority, device: Callable[..., Device]
) -> None:
    gateway = device("g1")
    gateway.ensure(url, authority.token("g1"))
    validity = gateway.validity()
    assert validity is not None
    life_s = validity.until_s - validity.from_s
    assert validity.renew_s == pytest.approx(validity.from_s + life_s * 2 / 3)
    before, key = certificate(gateway).serial_number, gateway.key_file.read_bytes()
    assert gateway.ensure(url, None, now_s=validity.renew_s - 1).startswith("g1: certificate until")
    assert gateway.ensure(url, None, now_s=validity.renew_s + 1).startswith("g1 renewed its certificate")
    assert certificate(gateway).serial_number != before
    assert gateway.key_file.read_bytes() != key, "each certificate has a key of its own"
    assert len(list(gateway.folder.glob("identity-*"))) == 1, "the old key is gone"
    with pytest.raises(ConfigError, match="no valid certificate and no token"):
        gateway.ensure(url, None, now_s=validity.until_s + 10**8)


def test_who_is_revoked_is_not_renewed(url: str, authority: Authority, device: Callable[..., Device]) -> None:
    gateway = device("g1")
    gateway.ensure(url, authority.token("g1"))
    validity = gateway.validity()
    assert validity is not None
    waiting = authority.token("g1")
    assert authority.revoke("g1") == (1, 1)
    assert authority.revoke("g1") == (0, 0)
    with pytest.raises(PortError, match="revoked or of another authority"):
        gateway.ensure(url, None, now_s=validity.renew_s + 1)
    with pytest.raises(PortError, match="unknown or expired"):
        device("g1", "again").ensure(url, waiting)
    crl = x509.load_pem_x509_crl((authority.folder / "crl.pem").read_bytes())
    assert [each.serial_number for each in crl] == [certificate(gateway).serial_number]
    assert crl.next_update_utc == authority.certificate.not_valid_after_utc


def listed(authority: Authority) -> set[int]:
    return {each.serial_number for each in x509.load_pem_x509_crl((authority.folder / "crl.pem").read_bytes())}


def test_what_is_revoked_stays_revoked_if_an_older_list_of_certificates_comes_back(
    url: str, authority: Authority, device: Callable[..., Device]
) -> None:
    stolen, now_s = device("g1"), time.time()
    stolen.ensure(url, authority.token("g1"))
    authority.key_pair("g2")
    older = (authority.folder / "ca.db").read_bytes()
    authority.revoke("g1")
    serial = certificate(stolen).serial_number
    assert listed(authority) == {serial}
    (authority.folder / "ca.db").write_bytes(older)
    with pytest.raises(PortError, match="is revoked"):
        stolen.ensure(url, None, now_s + 70 * 86_400)
    authority.revoke("g2")
    assert len(listed(authority)) == 2
    assert serial in listed(authority)
    Authority.create(authority.folder.parent / "other", "other").write_revoked()
    (authority.folder / "crl.pem").write_bytes((authority.folder.parent / "other" / "crl.pem").read_bytes())
    authority.write_revoked()
    assert len(listed(authority)) == 1, "a list that another authority signed counts for nothing"


def test_a_key_without_its_list_of_certificates_is_refused(
    authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    (authority.folder / "ca.db").unlink()
    assert main(["ca", "revoke", str(authority.folder), "g1"]) == 2
    said = capsys.readouterr().err
    assert "ca.db is missing" in said
    assert said.count("\n") == 1
    assert not (authority.folder / "ca.db").exists()


def test_a_list_of_revocations_that_is_missing_is_written_again(
    authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a power cut in `ca init`: keys were issued without it, and a second try found them there."""
    device_of, out = authority.key_pair("g1"), authority.folder.parent / "b1"
    assert authority.revoke("g1") == (1, 0)
    (authority.folder / "crl.pem").unlink()
    assert main(["ca", "issue", str(authority.folder), "b1", "--host", "b1", "--out", str(out)]) == 0, (
        capsys.readouterr()
    )
    revoked = x509.load_pem_x509_crl((out / "crl.pem").read_bytes())
    assert [each.serial_number for each in revoked] == [x509.load_pem_x509_certificate(device_of[1]).serial_number]


def test_a_key_that_cannot_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next try said that a key exists already; it was empty."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(ConfigError, match="No space left on device"):
            make_key(tmp_path / "update.pem")
    assert make_key(tmp_path / "update.pem")


def test_of_two_authorities_made_at_once_in_a_folder_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both said that all was well, and the certificates that the first one issued were void."""
    folder, refused, write = tmp_path / "ca", list[str](), authority_module.write

    def second() -> None:
        try:
            Authority.create(folder, "second")
        except ConfigError as err:
            refused.append(str(err))

    other, asked = threading.Thread(target=second), locks_asked_for(monkeypatch)

    def meanwhile(file: Path, content: bytes, mode: int = 0o644) -> None:
        if not other.ident:
            other.start()
            runs_or_waits(other, asked)
        write(file, content, mode)

    monkeypatch.setattr(authority_module, "write", meanwhile)
    first = Authority.create(folder, "first")
    other.join(10)
    assert len(refused) == 1
    assert Authority(folder).certificate == first.certificate


@pytest.mark.parametrize("file", ["ca.key", "ca.pem"])
def test_a_key_of_another_authority_is_named(
    authority: Authority, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    """As after a mixed backup: it signed certificates that nobody accepted, and said that all was well."""
    other = Authority.create(authority.folder.parent / "other", "fleet")
    (authority.folder / file).write_bytes((other.folder / file).read_bytes())
    assert main(["ca", "token", str(authority.folder), "g1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "ca.key is not the key of ca.pem; restore both files from one backup" in line


@pytest.mark.parametrize("damage", ["a byte", "empty", "gone", "another"])
def test_a_damaged_key_is_no_identity(
    url: str, authority: Authority, device: Callable[..., Device], damage: str
) -> None:
    gateway = device("g1")
    token = authority.token("g1")
    gateway.ensure(url, token)
    key = bytearray(gateway.key_file.read_bytes())
    key[60] ^= 1
    wrong = {"a byte": bytes(key), "empty": b"", "gone": b"", "another": authority.key_pair("g1")[0]}[damage]
    gateway.key_file.write_bytes(wrong)
    if damage == "gone":
        gateway.key_file.unlink()
    with pytest.raises(ConfigError, match=r"key\.pem is damaged\) and no token"):
        gateway.ensure(url, None)
    with pytest.raises(PortError, match=r"key\.pem is damaged\), and .* was used by another device"):
        gateway.ensure(url, token)
    assert gateway.ensure(url, authority.token("g1")).startswith("g1 got a certificate")
    assert gateway.ensure(url, None).startswith("g1: certificate until")


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


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "broker", "broker-1.example", "*.example", "xn--bcher-kva.de"])
def test_a_server_may_have_any_address_and_name(authority: Authority, host: str) -> None:
    assert authority.key_pair("b1", (host,))


def test_times_are_those_of_utc_with_every_version_of_cryptography() -> None:
    """Until version 42 the attributes had no time zone; 42 warns of them, and a later one may drop them."""
    end = datetime.datetime(2030, 1, 2, tzinfo=datetime.UTC)
    assert _utc(SimpleNamespace(not_valid_after=end.replace(tzinfo=None)), "not_valid_after") == end
    assert _utc(SimpleNamespace(not_valid_after_utc=end), "not_valid_after") == end


@pytest.mark.parametrize(
    "words", [["issue", "ca", "b1"], ["token", "ca", "g1"], ["serve", "ca", "--host", "x"], ["revoke", "ca", "g1"]]
)
def test_an_authority_that_is_over_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(authority_module, "_now", lambda: datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
        Authority.create(Path("ca"), "Fleet")
    for now in (datetime.datetime(2050, 1, 1, tzinfo=datetime.UTC), datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)):
        monkeypatch.setattr(authority_module, "_now", lambda now=now: now)
        assert main(["ca", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "valid from 2025-12-31 to 2045-12-27" in line


def test_no_authority_is_made_with_a_clock_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(authority_module, "_now", lambda: datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
    assert main(["ca", "init", str(tmp_path / "ca")]) == 2
    assert "the clock of this machine says 2000-01-01" in capsys.readouterr().err
    assert not (tmp_path / "ca").exists()


def test_one_token_gives_the_same_key_a_few_certificates_only(authority: Authority) -> None:
    key, token = ec.generate_private_key(ec.SECP256R1()), authority.token("g1", datetime.timedelta(days=7))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "g1")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    text = request.public_bytes(serialization.Encoding.PEM)
    for _ in range(1 + MOST_RENEWALS):
        authority.enrol(token, text)
    with pytest.raises(RefusedError, match="renewals within a day"):
        authority.enrol(token, text)
    assert len([each for each in authority.issued() if each.name == "g1"]) == 1 + MOST_RENEWALS


def test_a_request_that_its_key_has_not_signed_is_refused(authority: Authority) -> None:
    """Else anybody with a token could have a certificate for the key of another."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "g1")])
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    good = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    other = ec.generate_private_key(ec.SECP256R1())
    one, another = (each.public_key().public_bytes(serialization.Encoding.DER, SUBJECT) for each in (key, other))
    request = x509.load_der_x509_csr(good.replace(one, another)).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(RefusedError, match="not signed by its key"):
        authority.enrol(authority.token("g1"), request)


def test_no_certificate_outlives_its_authority(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    end = end_of(authority.certificate)
    monkeypatch.setattr(authority_module, "_now", lambda: end - datetime.timedelta(days=1))
    assert end_of(x509.load_pem_x509_certificate(authority.key_pair("g1")[1])) == end


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


def test_only_its_owner_reads_names_and_tokens(tmp_path: Path) -> None:
    (tmp_path / "ca").mkdir(mode=0o755)
    authority = Authority.create(tmp_path / "ca", "fleet")
    file = tmp_path / "ca" / "ca.db"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)  # as of an earlier version
    authority.token("g1")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_token_file_that_is_no_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ca.pem").write_bytes(b"")
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    words = ["enrol", str(tmp_path), "--id", "g1", "--url", "https://x", "--token-file", str(tmp_path / "token")]
    assert main(words) == 2
    assert f"{tmp_path}/token is not a text; wanted the token of `headwater ca token`" in capsys.readouterr().err


def test_an_authority_that_is_not_there_is_named_with_what_to_check(device: Callable[..., Device]) -> None:
    check = "cannot reach the authority https://127.0.0.1:9: .*; is the URL right, and does `headwater ca serve` run?"
    with pytest.raises(PortError, match=check):
        device("g1").ensure("https://127.0.0.1:9", "secret")


@pytest.mark.parametrize(
    "refusal",
    [("os.open", "cannot read or write .*/g1/enrolling.pem: "), ("tempfile.mkdtemp", "cannot write key and certif")],
)
def test_a_folder_of_another_user_is_named_with_what_to_do(
    refusal: tuple[str, str],
    url: str,
    authority: Authority,
    device: Callable[..., Device],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    (call, says), gateway, token = refusal, device("g1"), authority.token("g1")
    monkeypatch.setattr(f"edge_agent.identity.device.{call}", refused)
    with pytest.raises(PortError, match=f"{says}.*Permission denied; run as the user who owns "):
        gateway.ensure(url, token)


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
