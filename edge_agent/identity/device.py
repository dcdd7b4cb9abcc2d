"""A node's side of enrolment: makes a private key, which never leaves the node, and renews its certificate in time.

The folder contains `ca.pem`, which the operator copies there, and `current`, a link to the folder of the valid key and
certificate. A renewal makes a new folder and moves the link, so a node never reads a key that does not match its
certificate. The command `openssl` makes keys and requests, so a gateway needs no Python library for this.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import os
import shutil
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from edge_agent.errors import ConfigError, PortError
from edge_agent.identity.openssl import openssl, openssl_agrees, openssl_if_agrees

RENEW_AT: Final = 2 / 3  # of a certificate's life; the rest is reserve if the authority cannot be reached
TIMEOUT_S: Final = 20.0
MOST_ANSWER_BYTES: Final = 65_536
NOTE: Final = "tried-token"  # file beside the certificate: which token was tried last, by its digest
FOLDER_OF_PAIR: Final = "identity-"  # beginning of the name of a folder with a key and its certificate
KEY_MODE: Final = 0o640  # readable for the folder's group: the node's process runs as another user than the owner
PKEY: Final = ("pkey", "-in", "/dev/stdin", "-passin", "pass:")  # an encrypted key asks nobody for its password


class _RefusedError(PortError):
    """The authority refused: another request does not help."""


@dataclass(frozen=True, slots=True)
class Validity:
    """The period of a certificate, in seconds since 1970."""

    from_s: float
    until_s: float

    @property
    def renew_s(self) -> float:
        """The time from which the certificate is renewed, in seconds since 1970."""
        return self.from_s + (self.until_s - self.from_s) * RENEW_AT


class Device:
    """The key and certificate of one node. folder: contains ca.pem."""

    def __init__(self, folder: Path, node: str) -> None:
        self.folder, self.node = folder, node
        self.ca_file = folder / "ca.pem"
        self.current = folder / "current"
        self.key_file, self.cert_file = self.current / "key.pem", self.current / "cert.pem"

    def validity(self) -> Validity | None:
        """The period of the current certificate; None without one that is readable and for this node.

        Raises: PortError.
        """
        try:
            return self._period(self.cert_file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as err:
            raise PortError(f"{self.cert_file}: {err.strerror}; run as the user who owns {self.folder}") from err

    def _period(self, certificate: bytes) -> Validity | None:
        """The period of a certificate; None if it is not a certificate, or not for this node. Raises: PortError."""
        words = ("-noout", "-startdate", "-enddate", "-subject", "-nameopt", "RFC2253")
        output = openssl_if_agrees("x509", "-in", "/dev/stdin", *words, stdin=certificate)
        if output is None:
            return None
        fields = dict(line.partition("=")[::2] for line in output.decode().splitlines())
        if fields.get("subject", "").strip() != f"CN={self.node}":
            return None  # the node's id was changed
        seconds = ssl.cert_time_to_seconds
        return Validity(seconds(fields["notBefore"]), seconds(fields["notAfter"]))

    def _has_key(self) -> bool:
        """Whether the current key is sound and that of the current certificate. Raises: PortError."""
        try:
            key, certificate = self.key_file.read_bytes(), self.cert_file.read_bytes()
        except FileNotFoundError:
            return False
        except OSError:  # another user's: nothing is known about it
            return True
        return openssl_agrees(*PKEY, "-check", "-noout", stdin=key) and _fits(key, certificate)

    def ensure(self, url: str, token: str | None, now_s: float | None = None) -> str:
        """Enrol if there is no valid certificate or a new token; renew the certificate if it is time.

        Returns one line that says what was done. url: of the authority's service. token: for enrolment. An expired
        certificate cannot be renewed, and a revoked one neither, which the node cannot know: with a new token it enrols
        again, as with a damaged key. A second process waits for the first, and finds what that one got.
        Raises: ConfigError, PortError.
        """
        _host_and_port(url)
        with alone(self.folder):  # another process would delete the pair that this one puts into force
            return self._ensure(url, token, time.time() if now_s is None else now_s)

    def _ensure(self, url: str, token: str | None, now_s: float) -> str:
        validity, without = self.validity(), "has no valid certificate"
        if validity is not None and now_s >= validity.until_s:
            validity = None
        elif validity is not None and not self._has_key():
            validity, without = None, f"has no sound key ({self.key_file} is damaged)"
        if token and (validity is None or self._tried(token) is None):
            try:
                return self._enrol(url, token)
            except _RefusedError as err:
                if validity is None:
                    raise PortError(f"{self.node} {without}, and {err}") from err
                self._note(token, str(err))  # so that it is tried once
        if validity is None:
            raise ConfigError(f"{self.node} {without} and no token; `headwater ca token` makes one")
        if now_s >= validity.renew_s:
            return self._renew(url)
        answer = f"{self.node}: certificate until {_day(validity.until_s)}, renewed from {_day(validity.renew_s)} on"
        refusal = self._tried(token) if token else None
        return f"{answer}; the token was not used: {refusal}" if refusal else answer

    def _enrol(self, url: str, token: str) -> str:
        key, request = self._request(new=False)
        certificate = self._post(url, "/enrol", {"request": request.decode(), "token": token})
        until_s = self._accept(url, key, certificate, _note_of(token, ""))
        return f"{self.node} got a certificate, until {_day(until_s)}"

    def _renew(self, url: str) -> str:
        key, request = self._request(new=True)
        certificate = self._post(url, "/renew", {"request": request.decode()}, present=True)
        until_s = self._accept(url, key, certificate, self._noted())
        return f"{self.node} renewed its certificate, until {_day(until_s)}"

    def _post(self, url: str, path: str, body: Mapping[str, str], *, present: bool = False) -> bytes:
        """Ask the authority for a certificate. present: with the certificate in force. Raises: PortError."""
        host, port = _host_and_port(url)
        context = self._context(present=present)
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
        return _post(connection, url, path, body)

    def _accept(self, url: str, key: bytes, certificate: bytes, note: bytes) -> float:
        """Put a certificate into force if it is for this node and key. Returns its end. Raises: PortError."""
        validity = self._period(certificate)
        if validity is None or not _fits(key, certificate):
            raise PortError(f"{url}: the certificate in the answer is not for {self.node} and its key")
        self._put(key, certificate, note)
        return validity.until_s

    def _tried(self, token: str) -> str | None:
        """Why the authority refused this token, '' if it did not; None if it was not tried. Raises: PortError."""
        digest, _, refusal = self._noted().decode("utf-8", "replace").partition("\n")
        return refusal.strip() if digest == _digest(token) else None

    def _noted(self) -> bytes:
        """The note about the last token, beside the certificate; empty if there is none. Raises: PortError.

        A note that this user may not read (root may have enrolled) counts as none: a renewal must not depend on it.
        """
        try:
            return _readable(self.current / NOTE)
        except OSError as err:
            raise PortError(f"{self.current / NOTE}: {err.strerror}; run as the user who owns {self.folder}") from err

    def _note(self, token: str, refusal: str) -> None:
        try:
            _write(self.current / NOTE, _note_of(token, refusal), 0o600)
        except PermissionError:
            pass  # the token is tried again, once a day
        except OSError as err:
            raise PortError(f"{self.current / NOTE}: {err.strerror}; run as the user who owns {self.folder}") from err

    def _request(self, *, new: bool) -> tuple[bytes, bytes]:
        """(key, certificate request). new: for a renewal. An enrolment reuses its key, which its token is bound to."""
        waiting = self.folder / "enrolling.pem"
        try:
            key = b"" if new else _readable(waiting)
            if not (key and openssl_agrees(*PKEY, "-noout", stdin=key)):
                key = openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
                if not new:
                    _write(waiting, key, 0o600)
        except OSError as err:
            raise PortError(
                f"cannot read or write {waiting}: {err.strerror}; run as the user who owns {self.folder}"
            ) from err
        return key, openssl("req", "-new", "-key", "/dev/stdin", "-subj", f"/CN={self.node}", stdin=key)

    def _context(self, *, present: bool) -> ssl.SSLContext:
        """present: whether the device presents its own certificate. Raises: PortError if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if present:
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as err:  # SSLError too
            files = f"{self.ca_file}, {self.cert_file} or {self.key_file}" if present else str(self.ca_file)
            raise PortError(f"cannot use {files}: {err.strerror or err}") from err
        return context

    def _put(self, key: bytes, certificate: bytes, note: bytes) -> None:
        """Put key and certificate into force atomically, by moving the link once the files are on disk."""
        try:
            folder = Path(tempfile.mkdtemp(prefix=FOLDER_OF_PAIR, dir=self.folder))
            folder.chmod(0o750)
            _write(folder / "key.pem", key, KEY_MODE)
            _write(folder / "cert.pem", certificate, 0o644)
            _write(folder / NOTE, note, 0o600)
            group = self.folder.stat().st_gid  # the group of the node's process
            for each in (folder, folder / "key.pem"):
                if each.stat().st_gid != group:  # checked first, because the sandbox of headwater-enrol forbids chown
                    os.chown(each, -1, group)
            link = folder.with_suffix(".link")
            link.symlink_to(folder.name)
            if self.current.is_dir() and not self.current.is_symlink():  # copied by a program that follows links
                self.current.rename(folder.with_suffix(".former"))  # deleted with the others below
            link.replace(self.current)
            sync_names(self.folder)  # before the old pair is deleted, to which a power cut would lead back
            for old in self.folder.glob(f"{FOLDER_OF_PAIR}*"):
                if old != folder:
                    shutil.rmtree(old, ignore_errors=True)
            (self.folder / "enrolling.pem").unlink(missing_ok=True)
        except OSError as err:
            raise PortError(
                f"cannot write key and certificate to {self.folder}: {err.strerror}; run as the user who owns it"
            ) from err

    def give_to_owner(self) -> None:
        """As root, give what was written here to the owner of the folder: the node's service renews as this user.

        Raises: PortError.
        """
        try:
            owner = self.folder.stat()
            if os.geteuid() != 0 or owner.st_uid == 0:
                return
            for _, folders, files, handle in os.fwalk(self.folder):  # by handles: no link leads to another folder
                folders[:] = [name for name in folders if name.startswith((FOLDER_OF_PAIR, "current"))]
                for name in (*folders, *files):
                    found = os.stat(name, dir_fd=handle, follow_symlinks=False)
                    if found.st_uid == 0 and (found.st_nlink == 1 or name in folders):  # not a link to a file of root
                        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=handle, follow_symlinks=False)
        except OSError as err:
            raise PortError(f"{self.folder}: cannot give the files to its owner: {err.strerror}") from err


def _host_and_port(url: str) -> tuple[str, int]:
    """Raises: ConfigError if this is not the URL of a service."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, 443 if parts.port is None else parts.port
    except ValueError:  # a port beyond 65535, or brackets without an address
        host, port = None, 0
    if "@" in url:
        raise ConfigError("https://…: an address must not contain credentials; wanted a URL like https://host:port")
    if not host or not port or parts.scheme != "https" or not url.isprintable() or " " in url:
        raise ConfigError(f"{url!r}: wanted a URL like https://host:port")
    return host, port


def _post(connection: http.client.HTTPSConnection, url: str, path: str, body: Mapping[str, str]) -> bytes:
    """Send a request to the authority. Returns the certificate in its answer.

    Raises: _RefusedError for its no, PortError if the connection fails or something else answers.
    """
    try:
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            payload = answer.read(MOST_ANSWER_BYTES)
        finally:
            connection.close()
        content = json.loads(payload)
        if answer.status == 200:
            return str(content["certificate"]).encode()
        why = str(content["why"])
    except ssl.SSLCertVerificationError as err:
        raise PortError(
            f"{url}: the server's certificate is not accepted: {err.verify_message}; is the clock right?"
        ) from err
    except OSError as err:
        raise PortError(
            f"cannot reach the authority {url}: {err.strerror or err}; is the URL right, and does `headwater ca "
            "serve` run?"
        ) from err
    except (http.client.HTTPException, ValueError, KeyError, TypeError) as err:
        raise PortError(f"{url}: wanted the answer of an authority, got another one; is the URL right?") from err
    refused = f"{url}: the authority refused: {why}"
    raise _RefusedError(refused) if answer.status == 403 else PortError(refused)


def _readable(file: Path) -> bytes:
    """The content of a file; empty if there is none, or it is another user's. Raises: OSError."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, PermissionError):
        return b""


def _fits(key: bytes, certificate: bytes) -> bool:
    """Whether a certificate is for the public part of this key. Raises: PortError."""
    certified = openssl("x509", "-in", "/dev/stdin", "-noout", "-pubkey", stdin=certificate)
    return certified == openssl("pkey", "-in", "/dev/stdin", "-pubout", stdin=key)


def _write(file: Path, content: bytes, mode: int) -> None:
    """Write a file beside its place and rename it: after a power cut it is whole, or as before."""
    scratch = file.with_name(f".{file.name}.new")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as out:
        os.fchmod(out.fileno(), mode)  # because the umask may have removed permissions
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    scratch.replace(file)
    sync_names(file.parent)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock out other processes that write to a folder of keys; they wait."""
    handle = None
    with suppress(OSError):  # a folder of another user, which what follows names; a file system without locks
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def sync_names(folder: Path) -> None:
    """Make new names in a folder durable. Raises: OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _note_of(token: str, refusal: str) -> bytes:
    """What is kept of a token that was tried: its digest, and why the authority refused it."""
    return f"{_digest(token)}\n{refusal}\n".encode()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
