"""Devices and their authority: enrolment with a token, renewal, revocation."""

from __future__ import annotations

import datetime
import os
import ssl
import stat
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from cryptography import x509

from edge_agent.errors import ConfigError, PortError
from edge_agent.identity.authority import Authority
from edge_agent.identity.device import Device

SECOND = datetime.timedelta(seconds=1)


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
