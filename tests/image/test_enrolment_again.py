"""Enrolment after power cuts, wrong answers and revocations, and revocations that meet a signature."""

from __future__ import annotations

import datetime
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509

from edge_agent.errors import PortError
from edge_agent.identity import authority as authority_module
from edge_agent.identity import device as device_module
from edge_agent.identity.authority import Authority, RefusedError
from edge_agent.identity.device import FOLDER_OF_PAIR, MOST_ANSWER_BYTES, Device, _post
from tests.support.file_locks import locks_asked_for, runs_or_waits

SECOND = datetime.timedelta(seconds=1)


def certificate(device: Device) -> x509.Certificate:
    return x509.load_pem_x509_certificate(device.cert_file.read_bytes())


@pytest.mark.parametrize("left", [b"", b"-----BEGIN PRIVATE KEY-----\nMIG", b"\0" * 241])
def test_half_a_key_does_not_stop_enrolment(
    url: str, authority: Authority, device: Callable[..., Device], left: bytes
) -> None:
    """An earlier version could leave it after a power cut."""
    gateway = device("g1")
    (gateway.folder / "enrolling.pem").write_bytes(left)
    assert gateway.ensure(url, authority.token("g1")).startswith("g1 got a certificate")


@pytest.mark.parametrize("left", [b"", b"-----BEGIN CERTIFICATE-----\nMIG"])
def test_half_a_certificate_is_none(url: str, authority: Authority, device: Callable[..., Device], left: bytes) -> None:
    gateway = device("g1")
    gateway.ensure(url, authority.token("g1"))
    gateway.cert_file.write_bytes(left)
    assert gateway.validity() is None
    assert gateway.ensure(url, authority.token("g1")).startswith("g1 got a certificate")


def test_a_key_is_on_disk_before_it_has_its_name(
    url: str, authority: Authority, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(_: int) -> None:
        raise OSError(5, "Input/output error")

    gateway, token = device("g1"), authority.token("g1")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", cut)
        with pytest.raises(PortError, match="cannot read or write"):
            gateway.ensure(url, token)
    assert not (gateway.folder / "enrolling.pem").exists()


@pytest.mark.parametrize("wrong", ["another key", "another name", "no certificate"])
def test_an_answer_with_another_certificate_leaves_the_identity_in_force(
    url: str, authority: Authority, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    gateway, other = device("g1"), "g2" if wrong == "another name" else "g1"
    gateway.ensure(url, authority.token("g1"))
    validity, before = gateway.validity(), (gateway.key_file.read_bytes(), gateway.cert_file.read_bytes())
    assert validity is not None
    answer = b"x" if wrong == "no certificate" else authority.key_pair(other)[1]
    monkeypatch.setattr(Authority, "renew", lambda *_: answer)
    with pytest.raises(PortError, match="the certificate in the answer is not for g1 and its key"):
        gateway.ensure(url, None, now_s=validity.renew_s + 1)
    assert (gateway.key_file.read_bytes(), gateway.cert_file.read_bytes()) == before


@pytest.mark.parametrize("way", ["enrol", "renew"])
def test_a_revocation_reaches_a_certificate_that_is_being_signed(
    authority: Authority, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    gateway, token = device("g1"), authority.token("g1")
    _, request = gateway._request(new=True)
    first = x509.load_pem_x509_certificate(authority.enrol(authority.token("g1"), request))
    sign, threads = x509.CertificateBuilder.sign, list[threading.Thread]()

    def slowly(*words: object) -> object:
        threads.append(threading.Thread(target=Authority(authority.folder).revoke, args=("g1",)))
        threads[0].start()
        threads[0].join(1.0)  # it waits for this certificate
        return sign(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(x509.CertificateBuilder, "sign", slowly)
    if way == "enrol":
        authority.enrol(token, request)
    else:
        authority.renew(f"{first.serial_number:x}", request)
    threads[0].join()
    assert [each.revoked is None for each in authority.issued() if each.name == "g1"] == [False, False]
    assert len(list(x509.load_pem_x509_crl((authority.folder / "crl.pem").read_bytes()))) == 2


def test_nobody_collects_certificates_by_renewing(
    authority: Authority, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, request = device("g1")._request(new=True)
    first = x509.load_pem_x509_certificate(authority.enrol(authority.token("g1"), request))
    serial = f"{first.serial_number:x}"
    for _ in range(5):
        authority.renew(serial, request)
    with pytest.raises(RefusedError, match="g1 got 5 renewals within a day; wait a day, or enrol with a new token"):
        authority.renew(serial, request)
    assert len(authority.issued()) == 6
    now = authority_module._now()
    monkeypatch.setattr(authority_module, "_now", lambda: now + datetime.timedelta(days=1, seconds=1))
    assert authority.renew(serial, request)


def test_with_a_new_token_a_revoked_device_enrols_again_at_once(
    url: str, authority: Authority, device: Callable[..., Device]
) -> None:
    """It cannot know that its certificate is revoked, which is not expired yet."""
    gateway, first = device("g1"), authority.token("g1")
    gateway.ensure(url, first)
    before = certificate(gateway).serial_number
    authority.revoke("g1")
    second = authority.token("g1")
    assert gateway.ensure(url, second).startswith("g1 got a certificate")
    after = certificate(gateway).serial_number
    assert after != before
    assert gateway.ensure(url, second).startswith("g1: certificate until"), "used"
    validity = gateway.validity()
    assert validity is not None
    assert gateway.ensure(url, second, now_s=validity.renew_s + 1).startswith("g1 renewed its certificate")
    renewed = certificate(gateway).serial_number
    assert gateway.ensure(url, second).startswith("g1: certificate until"), "a renewal does not make it new"
    assert certificate(gateway).serial_number == renewed


def test_a_token_that_is_refused_does_not_harm_a_certificate_that_is_good(
    url: str, authority: Authority, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of gateway.toml, used by an earlier version, which did not remember it."""
    gateway, old = device("g1"), authority.token("g1", -SECOND)
    gateway.ensure(url, authority.token("g1"))
    before = certificate(gateway).serial_number
    for _ in range(2):
        said = gateway.ensure(url, old)
        assert said.startswith("g1: certificate until")
        assert "the token was not used: " in said
        assert "unknown or expired" in said
        monkeypatch.setattr(Authority, "enrol", lambda *_: pytest.fail("asked again"))
    assert certificate(gateway).serial_number == before
    validity = gateway.validity()
    assert validity is not None
    assert gateway.ensure(url, old, now_s=validity.renew_s + 1).startswith("g1 renewed its certificate")


def test_a_new_token_waits_for_an_authority_that_is_away(
    url: str, authority: Authority, device: Callable[..., Device]
) -> None:
    gateway = device("g1")
    gateway.ensure(url, authority.token("g1"))
    before, token = certificate(gateway).serial_number, authority.token("g1")
    with pytest.raises(PortError, match="cannot reach the authority"):
        gateway.ensure("https://127.0.0.1:9", token)
    assert gateway.ensure(url, token).startswith("g1 got a certificate")
    assert certificate(gateway).serial_number != before


def test_a_note_of_another_user_does_not_stop_a_renewal(
    url: str, authority: Authority, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`headwater enrol` once as root, of an earlier version, left it."""
    gateway, token = device("g1"), authority.token("g1")
    gateway.ensure(url, token)
    note = gateway.current / "tried-token"
    read = Path.read_bytes

    def refused(file: Path) -> bytes:
        if file == note:
            raise PermissionError(13, "Permission denied")
        return read(file)

    monkeypatch.setattr(Path, "read_bytes", refused)
    validity = gateway.validity()
    assert validity is not None
    assert gateway.ensure(url, None, now_s=validity.renew_s + 1).startswith("g1 renewed its certificate")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user reaches; that of pytest is for one."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_enrolment_as_root_belongs_to_the_owner_of_the_folder(url: str, authority: Authority, folder: Path) -> None:
    identity, token = folder / "identity", folder / "token"
    identity.mkdir(mode=0o700)
    (identity / "ca.pem").write_bytes((authority.folder / "ca.pem").read_bytes())
    token.write_text(authority.token("g1"))
    token.chmod(0o600)
    for path in (identity, identity / "ca.pem"):
        os.chown(path, 65534, 65534)
    words = ["-m", "edge_agent", "enrol", str(identity), "--id", "g1", "--url", url, "--token-file", str(token)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("g1 got a certificate"), done.stderr
    owners = {(each.lstat().st_uid, each.lstat().st_gid) for each in identity.rglob("*")}
    assert owners == {(65534, 65534)}


def test_of_an_answer_without_end_a_part_is_read() -> None:
    asked = list[int]()

    def read(most: int = -1) -> bytes:
        asked.append(most)
        return b"x"

    answer = SimpleNamespace(status=200, read=read)
    connection: Any = SimpleNamespace(request=lambda *_: None, getresponse=lambda: answer, close=lambda: None)
    with pytest.raises(PortError, match="wanted the answer of an authority"):
        _post(connection, "https://ca", "/enrol", {})
    assert asked == [MOST_ANSWER_BYTES]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_root_that_the_owner_of_the_folder_linked_there_stays_with_root(folder: Path) -> None:
    identity, secret = folder / "identity", folder / "secret"
    pair = identity / f"{FOLDER_OF_PAIR}x"
    pair.mkdir(parents=True)
    key = pair / "key.pem"
    for path in (secret, key):
        path.touch(0o600)
    (pair / "cert.pem").hardlink_to(secret)
    os.chown(identity, 65534, 65534)
    Device(identity, "g1").give_to_owner()
    assert (key.stat().st_uid, secret.stat().st_uid) == (65534, 0)


def test_a_list_of_revocations_is_on_disk_before_it_has_its_name(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut an empty one would be in its place."""
    fsync, before = os.fsync, (authority.folder / "crl.pem").read_bytes()

    def cut(handle: int) -> None:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(5, "Input/output error")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", cut)
    with pytest.raises(PortError, match="Input/output error"):
        authority.revoke("g1")
    assert (authority.folder / "crl.pem").read_bytes() == before


def test_a_new_pair_is_on_disk_before_the_old_one_is_deleted(
    url: str, authority: Authority, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is a new list of revocations before its command ends."""
    gateway, steps = device("g1"), list[str]()
    gateway.ensure(url, authority.token("g1"))
    fsync, rmtree = os.fsync, shutil.rmtree

    def synced(handle: int) -> None:
        steps.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    def deleted(folder: Path, *, ignore_errors: bool) -> None:
        steps.append("deleted")
        rmtree(folder, ignore_errors=ignore_errors)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(shutil, "rmtree", deleted)
    validity = gateway.validity()
    assert validity is not None
    gateway.ensure(url, None, now_s=validity.renew_s + 1)
    assert str(gateway.folder) in steps[: steps.index("deleted")]
    steps.clear()
    authority.revoke("g1")
    assert steps[-1] == str(authority.folder)


def test_an_identity_that_was_copied_without_its_link_is_renewed(
    url: str, authority: Authority, device: Callable[..., Device]
) -> None:
    """`scp -r` follows links: no renewal could replace the folder, and the certificate ended."""
    gateway = device("g1")
    gateway.ensure(url, authority.token("g1"))
    shutil.copytree(gateway.current, gateway.folder / "copy")
    gateway.current.unlink()
    (gateway.folder / "copy").rename(gateway.current)
    validity = gateway.validity()
    assert validity is not None
    assert gateway.ensure(url, None, now_s=validity.renew_s + 1).startswith("g1 renewed its certificate")
    assert gateway.current.is_symlink()
    assert len(list(gateway.folder.glob(f"{FOLDER_OF_PAIR}*"))) == 1


def test_two_renewals_at_once_leave_an_identity(
    url: str, authority: Authority, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the timer and by hand: one deleted the pair that the other had put into force, and the node was without."""
    gateway = device("g1")
    gateway.ensure(url, authority.token("g1"))
    validity = gateway.validity()
    assert validity is not None
    due_s, said, others = validity.renew_s + 1, list[str](), list[threading.Thread]()
    sync_names, asked = device_module.sync_names, locks_asked_for(monkeypatch)

    def renew() -> None:
        said.append(gateway.ensure(url, None, now_s=due_s))

    def meanwhile(folder: Path) -> None:
        """The second one comes when the first has moved the link, and has not deleted the others yet."""
        sync_names(folder)
        if folder == gateway.folder and not others:
            others.append(threading.Thread(target=renew))
            others[0].start()
            runs_or_waits(others[0], asked)

    monkeypatch.setattr(device_module, "sync_names", meanwhile)
    renew()
    others[0].join()
    assert len(said) == 2
    assert gateway.validity() is not None, "there is a certificate"
    assert gateway._has_key()
