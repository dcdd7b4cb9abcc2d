"""Writes gateway.toml to the FAT partition of an image or a card, with mtools: no mount, and no root for an image."""

from __future__ import annotations

import os
import shlex
import struct
import subprocess
from pathlib import Path
from typing import Final

from edge_agent.config.checking.foreign_json import printable
from edge_agent.config.node_file.gateway_file import NAME
from edge_agent.errors import ConfigError, PortError
from edge_agent.provisioning.mounts import mount_points

SECTOR_BYTES: Final = 512
FAT32_LBA: Final = 0x0C  # type of the boot partition in the MBR
SIGNATURE: Final = 0x67617465  # disk signature in the MBR of the gateway image; part of its partition ids


def boot_partition(disk: Path) -> int:
    """The offset of the FAT partition in bytes. Raises: ConfigError if the disk does not have the gateway image."""
    try:
        with disk.open("rb") as file:
            sector = file.read(SECTOR_BYTES)
    except OSError as err:
        raise ConfigError(
            f"{disk}: {(err.strerror or str(err)).lower()}; name the .img file or the card's device"
        ) from err
    if len(sector) < SECTOR_BYTES or sector[510:] != b"\x55\xaa":
        packed = disk.suffix in {".xz", ".zst", ".gz"}
        raise ConfigError(
            f"{disk}: is not a disk image; {'unpack it first' if packed else 'name the .img file or the device'}"
        )
    if b"FAT" in (sector[54:57], sector[82:85]):
        raise ConfigError(f"{disk}: is a partition; name the whole card, like /dev/sdX for /dev/sdX1")
    (signature,) = struct.unpack_from("<I", sector, 440)
    kind, (start,) = sector[446 + 4], struct.unpack_from("<I", sector, 446 + 8)
    if signature != SIGNATURE or kind != FAT32_LBA or not start:
        raise ConfigError(f"{disk}: does not contain the gateway image; flash the image first")
    return int(start) * SECTOR_BYTES


def put(disk: Path, payload: bytes) -> None:
    """Write gateway.toml; an existing one is replaced. Whatever fails, the existing one stays.

    mcopy deletes the file that it replaces first, and ends with 0 on a full partition: so what it wrote is read again.
    Raises: ConfigError, PortError. A disk that is mounted is refused: desktops mount a card as soon as it is there.
    """
    at = _at(disk)
    if points := mount_points(disk):
        where, command = printable(" and ".join(points)), printable(shlex.join(["umount", *points]))
        raise PortError(
            f"{disk}: is mounted at {where}, and would be damaged by writing beside that; first run: {command}"
        )
    before = _read(at, NAME)
    failure = PortError(f"{disk}: the boot partition is full; delete files there")
    try:
        _write(at, payload)
        if _read(at, NAME) == payload:
            return
    except PortError as err:
        failure = err
    _put_back(at, before)
    raise failure


def get(disk: Path, name: str) -> bytes:
    """Read a file of the partition. Raises: ConfigError, PortError."""
    found = find(disk, name)
    if found is None:
        raise PortError(f"{disk}: there is no {name} on the boot partition")
    return found


def find(disk: Path, name: str) -> bytes | None:
    """Read a file of the partition; None if it is not there. Raises: ConfigError, PortError."""
    return _read(_at(disk), name)


def _at(disk: Path) -> str:
    """The partition as mtools names it."""
    return f"{disk}@@{boot_partition(disk)}"


def _read(at: str, name: str) -> bytes | None:
    done = _run("mtype", "-i", at, f"::{name}")
    if done.returncode and done.stderr.rstrip().endswith(b"not found"):
        return None
    return _output(done)


def _write(at: str, payload: bytes) -> None:
    _output(_run("mcopy", "-n", "-o", "-i", at, "-", f"::{NAME}", stdin=payload))


def _put_back(at: str, before: bytes | None) -> None:
    """Undo a write that failed. before: the contents until then; None: there was no file."""
    if before is not None:
        _write(at, before)
    elif _read(at, NAME) is not None:
        _output(_run("mdel", "-i", at, f"::{NAME}"))


def _run(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(words, input=stdin, capture_output=True, check=False, env=os.environ | {"LC_ALL": "C"})
    except FileNotFoundError as err:
        raise PortError("mtools is not installed: apt install mtools") from err


def _output(done: subprocess.CompletedProcess[bytes]) -> bytes:
    """Raises: PortError with the last line of the command's messages if it failed."""
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason"]
        raise PortError(f"{done.args[0]}: {lines[-1]}")
    return done.stdout
