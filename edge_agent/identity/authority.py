"""The certificate authority of a fleet, in one folder.

`ca.pem` and `ca.key` are its certificate and key, `crl.pem` lists revoked certificates, and `ca.db` contains issued
certificates and tokens. Every certificate is for one name. The name of a node is its id, which brokers use as user name
and client id.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import re
import secrets
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edge_agent.config.topics import is_node_id
from edge_agent.errors import ConfigError, PortError
from edge_agent.identity.device import alone, sync_names

LIFE: Final = datetime.timedelta(days=90)  # of a node's certificate: limits the use of a stolen one
TOKEN_LIFE: Final = datetime.timedelta(minutes=15)
CA_LIFE: Final = datetime.timedelta(days=20 * 365)  # longer than gateways last: replacing it means visiting each
PLAUSIBLE: Final = (
    datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC),
    datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC),
)
BACKDATED: Final = datetime.timedelta(hours=1)  # certificates are valid from so long ago, because clocks differ
MAX_REQUEST_BYTES: Final = 16_384  # a request with a P-256 key has 400 bytes
MOST_RENEWALS: Final = 5  # of one name within a day: an answer may be lost, but nobody collects certificates
TOKEN_BYTES: Final = 20  # 160 random bits: cannot be guessed, and short enough to type
MOST_NAME: Final = 64  # characters of a common name, RFC 5280 appendix A.1
HOST: Final = re.compile(r"(?=.{1,253}\Z)(?:\*\.)?\w(?:[\w-]{0,62})(?:\.\w[\w-]{0,62})*", re.ASCII)
_SCHEMA: Final = """
create table if not exists issued (serial text primary key, name text, until text, revoked text);
create table if not exists tokens (hash text primary key, name text, until text, key text);
create table if not exists renewals (name text, at text);
"""


class RefusedError(Exception):
    """The authority refuses a request; the message is the reason. Raised and handled within identity/ only."""


@dataclass(frozen=True, slots=True)
class Issued:
    """One issued certificate. until: end of its validity. revoked: time of its revocation, or None."""

    serial: str
    name: str
    until: datetime.datetime
    revoked: datetime.datetime | None


class Authority:
    """A certificate authority. folder: its files. Raises: ConfigError if the folder has no authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        except OSError as err:
            hint = "`headwater ca init` makes one" if isinstance(err, FileNotFoundError) else "run it as its owner"
            raise ConfigError(f"{folder}: there is no authority in this folder ({err.strerror}); {hint}") from err
        except (ValueError, TypeError, UnsupportedAlgorithm) as err:
            raise ConfigError(f"{folder}: ca.pem or ca.key is invalid: {err}; restore the files from a backup") from err
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{folder}/ca.key: wanted a key of the curve P-256; restore the file from a backup")
        if not (folder / "ca.db").exists():  # an empty one would forget whose certificates may be renewed or revoked
            raise ConfigError(f"{folder}/ca.db is missing, which lists the certificates; restore it from a backup")
        since, until, now = _utc(self.certificate, "not_valid_before"), end_of(self.certificate), _now()
        if not since <= now < until:
            raise ConfigError(
                f"{folder}: the authority is valid from {since:%Y-%m-%d} to {until:%Y-%m-%d}, and the clock of this "
                f"machine says {now:%Y-%m-%d %H:%M}; set the clock, or make another authority with `headwater ca init`"
            )
        if _public(key) != _public(self.certificate):  # no broker and no node would accept what it signs
            raise ConfigError(f"{folder}: ca.key is not the key of ca.pem; restore both files from one backup")
        self._key = key

    @classmethod
    def create(cls, folder: Path, name: str) -> Authority:
        """Make an authority. Raises: ConfigError if the folder has one, PortError if it cannot be written."""
        if not name.strip() or len(name.encode(errors="replace")) > MOST_NAME or not name.isprintable():
            raise ConfigError(f"--name {name!r}: wanted one line of 1 to {MOST_NAME} bytes, like Headwater fleet")
        try:
            exists = (folder / "ca.key").exists()
        except OSError as err:
            raise PortError(f"{folder}: {err.strerror}") from err
        taken = f"{folder} has an authority, whose certificates would be void; name another folder"
        if exists:
            raise ConfigError(taken)
        who, now = _name(name), _now()
        if not PLAUSIBLE[0] <= now < PLAUSIBLE[1]:
            raise ConfigError(f"the clock of this machine says {now:%Y-%m-%d}: set it, because certificates have dates")
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(who)
            .issuer_name(who)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(now + CA_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with alone(folder):  # two at once would leave the key of one beside the certificate of the other
                if (folder / "ca.key").exists():
                    raise ConfigError(taken)
                (folder / "ca.db").touch(0o600)  # SQLite would make it readable for all
                write(folder / "ca.pem", certificate.public_bytes(serialization.Encoding.PEM))
                write(folder / "ca.key", _private(key), 0o600)  # last: the authority exists as soon as its key exists
        except OSError as err:
            raise PortError(f"{folder}: {err.strerror}") from err
        authority = cls(folder)
        authority.write_revoked()
        return authority

    # --- issuing ----------------------------------------------------------------------------------------------------

    def key_pair(self, name: str, hosts: tuple[str, ...] = (), life: datetime.timedelta = LIFE) -> tuple[bytes, bytes]:
        """Make (key, certificate), PEM, without enrolment. hosts: names and addresses of a server, () for a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        with self._db() as db:
            return _private(key), self._issue(db, name, key.public_key(), life, hosts)

    def _sign(self, db: sqlite3.Connection, csr: x509.CertificateSigningRequest, name: str) -> bytes:
        """Issue a certificate for the key in a request, and for this name, which the request must have, too.

        Everything else in the request is ignored. Raises: RefusedError.
        """
        requested = [str(each.value) for each in csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        if requested != [name]:
            raise RefusedError(f"the request is for {' and '.join(requested) or 'nobody'}, not for {name}")
        return self._issue(db, name, csr.public_key(), LIFE, ())

    def _issue(
        self, db: sqlite3.Connection, name: str, key: object, life: datetime.timedelta, hosts: tuple[str, ...]
    ) -> bytes:
        """Issue a certificate, in the transaction that found that it may be: a revocation comes before or after."""
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
            raise RefusedError("wanted a request with a key of the curve P-256")
        now, serial = _now(), x509.random_serial_number()
        until = min(now + life, end_of(self.certificate))
        if end_of(self.certificate) <= now:
            raise RefusedError("the authority is over; `headwater ca init` makes another one")
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self.certificate.subject)
            .public_key(key)
            .serial_number(serial)
            .not_valid_before(now - BACKDATED)
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        db.execute("insert into issued values (?, ?, ?, null)", (f"{serial:x}", name, _text(until)))
        return certificate.public_bytes(serialization.Encoding.PEM)

    # --- tokens -----------------------------------------------------------------------------------------------------

    def token(self, name: str, life: datetime.timedelta = TOKEN_LIFE) -> str:
        """Make a token with which one device can get a certificate for this name."""
        text = secrets.token_urlsafe(TOKEN_BYTES)
        with self._db() as db:
            db.execute("delete from tokens where until < ?", (_text(_now()),))
            db.execute("insert into tokens values (?, ?, ?, null)", (_hash(text), name, _text(_now() + life)))
        return text

    def enrol(self, token: str, request: bytes) -> bytes:
        """Issue a certificate for a token.

        The same key may use the token again while it is valid, because an answer may be lost; this counts as a renewal.
        Raises: RefusedError.
        """
        csr = _request(request)
        digest = hashlib.sha256(_public(csr)).hexdigest()
        with self._db() as db:
            row = db.execute("select name, until, key from tokens where hash = ?", (_hash(token),)).fetchone()
            if row is None or row[1] < _text(_now()):
                raise RefusedError("the token is unknown or expired; `headwater ca token` makes a new one")
            name, _, key = row
            if key not in {None, digest}:
                raise RefusedError(f"the token of {name} was used by another device")
            if key is not None:
                _count_renewal(db, name)
            # In one transaction with the look-up, so that only one of two concurrent devices can use the token.
            db.execute("update tokens set key = ? where hash = ?", (digest, _hash(token)))
            return self._sign(db, csr, name)

    def renew(self, serial: str, request: bytes) -> bytes:
        """Issue a new certificate to the holder of the one with this serial.

        Raises: RefusedError if that one is revoked, or if there were MOST_RENEWALS of its name within a day.
        """
        csr = _request(request)
        with self._db() as db:
            row = db.execute(
                "select name, revoked from issued where serial = ?", (serial.lower().lstrip("0"),)
            ).fetchone()
            if row is None or row[1] is not None or int(serial, 16) in self._listed():
                raise RefusedError("the certificate is revoked or of another authority; enrol again with a new token")
            name = str(row[0])
            _count_renewal(db, name)
            return self._sign(db, csr, name)

    # --- revoking ---------------------------------------------------------------------------------------------------

    def revoke(self, name: str) -> tuple[int, int]:
        """Revoke all certificates and tokens of a name. Returns how many certificates, and tokens nobody had used."""
        now = _text(_now())
        with self._db() as db:
            unused = "select count(*) from tokens where name = ? and until >= ? and key is null"
            (tokens,) = db.execute(unused, (name, now)).fetchone()
            db.execute("delete from tokens where name = ?", (name,))
            count = db.execute("update issued set revoked = ? where name = ? and revoked is null", (now, name)).rowcount
        self.write_revoked()
        return count, tokens

    def write_revoked(self) -> None:
        """Write `crl.pem`. It is valid as long as the authority, because with an expired list a broker refuses all.

        Entries of the present file stay, except of certificates known to have expired: `ca.db` may be an older copy.
        """
        now = _now()
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now - BACKDATED)
            .next_update(end_of(self.certificate))
        )
        with self._db() as db:  # held until the file is written, so that no older list replaces a newer one
            gone = self._listed()
            for each in _issued(db):
                if each.until <= now:  # expired certificates need no entry
                    gone.pop(int(each.serial, 16), None)
                elif each.revoked is not None:
                    gone[int(each.serial, 16)] = each.revoked
            for serial, at in gone.items():
                revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at)
                builder = builder.add_revoked_certificate(revoked.build())
            crl = builder.sign(self._key, hashes.SHA256())
            try:
                write(self.folder / "crl.pem", crl.public_bytes(serialization.Encoding.PEM))
            except OSError as err:
                raise PortError(f"{self.folder}/crl.pem: {err.strerror}") from err

    def _listed(self) -> dict[int, datetime.datetime]:
        """The serials in `crl.pem`, and when each was revoked; none without a list that this authority signed.

        Raises: PortError.
        """
        try:
            crl = x509.load_pem_x509_crl((self.folder / "crl.pem").read_bytes())
            if not crl.is_signature_valid(self._key.public_key()):
                return {}
            return {each.serial_number: _utc(each, "revocation_date") for each in crl}
        except (FileNotFoundError, ValueError, TypeError, UnsupportedAlgorithm):  # `ca.db` alone counts then
            return {}
        except OSError as err:
            raise PortError(f"{self.folder}/crl.pem: {err.strerror}") from err

    def issued(self) -> list[Issued]:
        """All issued certificates, sorted by name and end of validity."""
        with self._db() as db:
            return _issued(db)

    @contextmanager
    def _db(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction, which excludes other writers from its beginning."""
        file = self.folder / "ca.db"
        try:
            if stat.S_IMODE(file.stat().st_mode) != 0o600:  # of an earlier version; the journal gets the same
                file.chmod(0o600)
        except OSError as err:
            raise PortError(f"{file}: {err.strerror}; run it as its owner") from err
        try:
            with closing(sqlite3.connect(file, isolation_level=None, timeout=10.0)) as db:
                db.executescript(_SCHEMA)
                db.execute("pragma synchronous = full")
                db.execute("begin immediate")
                try:
                    yield db
                except BaseException:
                    db.execute("rollback")
                    raise
                db.execute("commit")
        except sqlite3.Error as err:
            raise PortError(f"{file}: {err}; is the disk full, or is the file another user's?") from err


def _count_renewal(db: sqlite3.Connection, name: str) -> None:
    """Count a certificate that no new token asked for. Raises: RefusedError beyond MOST_RENEWALS within a day."""
    now = _now()
    db.execute("delete from renewals where at < ?", (_text(now - datetime.timedelta(days=1)),))
    (count,) = db.execute("select count(*) from renewals where name = ?", (name,)).fetchone()
    if count >= MOST_RENEWALS:
        raise RefusedError(f"{name} got {count} renewals within a day; wait a day, or enrol with a new token")
    db.execute("insert into renewals values (?, ?)", (name, _text(now)))


def _issued(db: sqlite3.Connection) -> list[Issued]:
    rows = db.execute("select serial, name, until, revoked from issued order by name, until").fetchall()
    return [Issued(serial, name, _time(until), _time(gone) if gone else None) for serial, name, until, gone in rows]


def check_name(name: str) -> str:
    """Check the name of a node or operator. Raises: ConfigError, so that no name can act as a topic pattern."""
    if not is_node_id(name):
        raise ConfigError(f'"{name}" cannot be a name in a certificate: use a-z, 0-9 and -, at most 32 characters')
    return name


def write(file: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file atomically and durably. It never has other permissions than `mode`."""
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as out:
        os.fchmod(out.fileno(), mode)  # the umask may have removed permissions, and a broker is another user
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    scratch.replace(file)
    sync_names(file.parent)


def end_of(certificate: x509.Certificate) -> datetime.datetime:
    """The end of a certificate's validity."""
    return _utc(certificate, "not_valid_after")


def _utc(of: object, name: str) -> datetime.datetime:
    """A time of a certificate or list. Before version 42 (Debian bookworm has 38) cryptography gave no time zone."""
    aware = getattr(of, f"{name}_utc", None)
    time: datetime.datetime = getattr(of, name).replace(tzinfo=datetime.UTC) if aware is None else aware
    return time


def _request(request: bytes) -> x509.CertificateSigningRequest:
    try:
        csr = x509.load_pem_x509_csr(request)
        valid = csr.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.UnsupportedGeneralNameType) as err:
        raise RefusedError(f"wanted a certificate request in PEM: {err}") from err
    if not valid:
        raise RefusedError("the request is not signed by its key")
    return csr


def _public(of: x509.CertificateSigningRequest | x509.Certificate | ec.EllipticCurvePrivateKey) -> bytes:
    return of.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError as err:
        if not HOST.fullmatch(host):
            raise ConfigError(
                f"--host {host!r}: wanted an address, or a name of a-z, 0-9, - and dots; write ü and the like as xn--"
            ) from err
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def _text(time: datetime.datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC)
