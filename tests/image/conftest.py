"""An authority, its service and devices, for the tests of identities; a disk with our partitions."""

from __future__ import annotations

import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_agent.identity.authority import Authority
from edge_agent.identity.device import Device
from edge_agent.identity.service import EnrolmentService
from edge_agent.provisioning import fat


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca", "fleet")


@pytest.fixture
def url(authority: Authority) -> Iterator[str]:
    service = EnrolmentService(authority, "127.0.0.1", 0, ("127.0.0.1",))
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"https://127.0.0.1:{service.server_address[1]}"
    service.shutdown()
    service.server_close()
    thread.join()


@pytest.fixture
def device(tmp_path: Path, authority: Authority) -> Callable[..., Device]:
    def device(node: str, place: str = "") -> Device:
        folder = tmp_path / (place or node)
        folder.mkdir(exist_ok=True)
        (folder / "ca.pem").write_bytes((authority.folder / "ca.pem").read_bytes())
        return Device(folder, node)

    return device


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A disk with the partition table of our image and an empty FAT partition."""
    disk = tmp_path / "card.img"
    start, size = 2048, 66_000  # sectors
    with disk.open("wb") as out:
        out.truncate((start + size) * 512)
        mbr = bytearray(512)
        struct.pack_into("<I", mbr, 440, fat.SIGNATURE)
        struct.pack_into("<4xB3xII", mbr, 446, fat.FAT32_LBA, start, size)
        mbr[510:] = b"\x55\xaa"
        out.write(mbr)
    subprocess.run(["mformat", "-i", f"{disk}@@{start * 512}", "-T", str(size), "::"], check=True)
    return disk
