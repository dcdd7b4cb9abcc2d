"""An authority: its files, the certificates that it gives and those that it refuses."""

from __future__ import annotations

import datetime
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edge_agent.cli.main import main
from edge_agent.errors import ConfigError
from edge_agent.identity import authority as authority_module
from edge_agent.identity.authority import MOST_RENEWALS, Authority, RefusedError, _utc, end_of
from edge_agent.identity.signatures import make_key
from tests.support.file_locks import locks_asked_for, runs_or_waits

SUBJECT = serialization.PublicFormat.SubjectPublicKeyInfo


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


def test_only_its_owner_reads_names_and_tokens(tmp_path: Path) -> None:
    (tmp_path / "ca").mkdir(mode=0o755)
    authority = Authority.create(tmp_path / "ca", "fleet")
    file = tmp_path / "ca" / "ca.db"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)  # as of an earlier version
    authority.token("g1")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
