"""Packs a version of the agent into one signed file: a first line, a signature, a line of JSON, and a packed folder.

The signature (Ed25519) covers the line of JSON, which contains size and SHA-256 of the packed folder. Both are parsed
only after the signature was found valid for one of the given keys.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from edge_agent.errors import ConfigError
from edge_agent.provisioning.updates.versions import Installed, SpoolForm, order_of

FIRST_LINE: Final = b"headwater update 1\n"
PACKAGE: Final = "edge_agent"
MOST_BYTES: Final = 32 * 1024 * 1024
MOST_LINE: Final = 4_096
NAME: Final = re.compile(rf"{PACKAGE}(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The signed line. python: lowest version of Python that works. size (bytes), sha256: of the packed folder."""

    version: str
    spool: SpoolForm
    python: tuple[int, int]
    size: int
    sha256: str

    def installed(self) -> Installed:
        return Installed(self.version, self.spool)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A version with a valid signature. files: path below the folder of the version -> content."""

    manifest: Manifest
    files: Mapping[str, bytes]


def pack(
    package: Path, version: str, spool: SpoolForm, python: tuple[int, int], sign: Callable[[bytes], bytes]
) -> bytes:
    """Pack the agent in the folder `package` into a signed file. Equal sources give an equal packed folder.

    Raises: ConfigError for a version or a file that gateways refuse.
    """
    order_of(version)
    packed = _packed(package)
    manifest = Manifest(version, spool, python, len(packed), hashlib.sha256(packed).hexdigest())
    line = json.dumps(asdict(manifest), sort_keys=True).encode()
    return b"".join((FIRST_LINE, base64.b64encode(sign(line)), b"\n", line, b"\n", packed))


def unpack(payload: bytes, signed: Callable[[bytes, bytes], bool]) -> Bundle:
    """Check a file and read it. signed: (text, signature) -> whether a trusted key made it. Raises: ConfigError."""
    if not payload.startswith(FIRST_LINE):
        raise ConfigError("the file is not an update; `headwater update make` writes one")
    parts = payload[len(FIRST_LINE) :].split(b"\n", 2)
    if len(parts) != 3 or max(len(parts[0]), len(parts[1])) > MOST_LINE:
        raise ConfigError("the update is incomplete: copy it again")
    try:
        signature = base64.b64decode(parts[0], validate=True)
    except binascii.Error as err:
        raise ConfigError("the update has no valid signature: copy it again") from err
    if not signed(parts[1], signature):
        raise ConfigError("the update is not signed by a key of [update] in gateway.toml")
    manifest = _manifest(parts[1])
    if len(parts[2]) != manifest.size or hashlib.sha256(parts[2]).hexdigest() != manifest.sha256:
        raise ConfigError("the update is damaged or incomplete: copy it again")
    return Bundle(manifest, _files(parts[2]))


def _manifest(line: bytes) -> Manifest:
    try:
        found: Any = json.loads(line)
        first, second = (int(each) for each in found["spool"])
        major, minor = (int(each) for each in found["python"])
        order_of(str(found["version"]))
        size, digest = int(found["size"]), str(found["sha256"])
        return Manifest(str(found["version"]), (first, second), (major, minor), size, digest)
    except (ValueError, KeyError, TypeError) as err:
        raise ConfigError("the update has a format that this image cannot read: flash a newer image") from err


def _packed(package: Path) -> bytes:
    """A compressed tar of the package's files, in a fixed order, without owners and times."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for path in sorted(package.rglob("*")):
            name = f"{PACKAGE}/{path.relative_to(package).as_posix()}"
            if path.is_file() and "__pycache__" not in path.parts:
                if not NAME.fullmatch(name):
                    raise ConfigError(f"{path}: every gateway refuses a file with such a name; delete it")
                member = tarfile.TarInfo(name)
                content = path.read_bytes()
                member.size = len(content)
                out.addfile(member, io.BytesIO(content))
    return gzip.compress(tar.getvalue(), 9, mtime=0)


def _files(packed: bytes) -> dict[str, bytes]:
    """Unpack a folder. Only regular files of the package are accepted, although the signature is valid."""
    files: dict[str, bytes] = {}
    try:
        with gzip.open(io.BytesIO(packed)) as unzipped:
            content = unzipped.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ConfigError(f"the update is larger than {MOST_BYTES // 2**20} MB")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isreg() else None
                if file is None or not NAME.fullmatch(member.name):
                    raise ConfigError(f"the update has {member.name[:80]!r}, which is not a file of the agent")
                files[member.name] = file.read()
    except (OSError, EOFError, tarfile.TarError) as err:
        raise ConfigError(f"the update cannot be unpacked: {err}") from err
    if f"{PACKAGE}/__main__.py" not in files:
        raise ConfigError("the update does not contain the agent")
    return files
