"""Writes gateway.toml to the FAT partition of an image or a card, with mtools: no mount, and no root for an image."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Final

from edge_agent.config.node_file.gateway_file import NAME
from edge_agent.errors import ConfigError, PortError

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
    (signature,) = struct.unpack_from("<I", sector, 440)
    kind, (start,) = sector[446 + 4], struct.unpack_from("<I", sector, 446 + 8)
    if signature != SIGNATURE or kind != FAT32_LBA or not start:
        raise ConfigError(f"{disk}: does not contain the gateway image; flash the image first")
    return int(start) * SECTOR_BYTES


def put(disk: Path, payload: bytes) -> None:
    """Write gateway.toml; an existing one is replaced. Raises: ConfigError, PortError."""
    at = f"{disk}@@{boot_partition(disk)}"
    _mtools("mcopy", "-n", "-o", "-i", at, "-", f"::{NAME}", stdin=payload)


def get(disk: Path, name: str) -> bytes:
    """Read a file of the partition. Raises: ConfigError, PortError."""
    return _mtools("mtype", "-i", f"{disk}@@{boot_partition(disk)}", f"::{name}")


def _mtools(*words: str, stdin: bytes = b"") -> bytes:
    try:
        done = subprocess.run(words, input=stdin, capture_output=True, check=False)
    except FileNotFoundError as err:
        raise PortError("mtools is not installed: apt install mtools") from err
    if done.returncode:
        raise PortError(f"{words[0]}: {done.stderr.decode('utf-8', 'replace').strip().splitlines()[-1:]}")
    return done.stdout
