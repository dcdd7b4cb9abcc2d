"""A card or an image that is mounted is not written to: `headwater image configure` says where it is mounted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from edge_agent.cli.main import main
from edge_agent.provisioning import fat
from edge_agent.provisioning.mounts import mount_points
from tests.image.gateway_files import SMALL

MOUNTS = """\
22 1 179:2 / / ro,noatime shared:1 - ext4 /dev/mmcblk0p2 rw
31 22 8:17 / /media/ann/GW\\040BOOT rw,nosuid - vfat /dev/sdb1 rw
32 22 8:19 / /media/ann/gwdata rw - ext4 /dev/sdb3 rw
33 22 8:1 / /boot rw - ext4 /dev/sda1 rw
34 22 259:0 / /mnt rw - vfat /dev/loop3p1 rw
35 22 253:4 /sub /srv/x rw - ext4 /dev/mapper/loop4p1 rw
nonsense
"""


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    """/proc and /sys of a machine with a card at sdb, and with images at loop3 and loop4."""
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    files = {
        sys / "dev/block/8:16/sdb1/partition": "1\n",
        sys / "dev/block/8:16/sdb1/dev": "8:17\n",
        sys / "dev/block/8:16/sdb3/partition": "3\n",
        sys / "dev/block/8:16/sdb3/dev": "8:19\n",
        sys / "dev/block/8:16/queue/dev": "8:1\n",
        sys / "block/loop3/dev": "7:3\n",
        sys / "block/loop3/loop/backing_file": f"{tmp_path}/card.img\n",
        sys / "block/loop3/loop3p1/partition": "1\n",
        sys / "block/loop3/loop3p1/dev": "259:0\n",
        sys / "block/loop4/dev": "7:4\n",
        sys / "block/loop4/loop/backing_file": f"{tmp_path}/other.img\n",
        sys / "block/loop4/holders/dm-4/dev": "253:4\n",
        proc / "self/mountinfo": MOUNTS,
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("card.img", "other.img", "third.img"):
        (tmp_path / name).touch()
    return proc, sys


class Device:
    """Stands for /dev/sdb: a block device of number 8:16."""

    def stat(self) -> os.stat_result:
        return os.stat_result((stat.S_IFBLK | 0o660, *[0] * 9), {"st_rdev": os.makedev(8, 16)})


def test_partitions_of_a_card_are_found_by_their_numbers(machine: tuple[Path, Path]) -> None:
    found = mount_points(Device(), *machine)  # type: ignore[arg-type]
    assert found == ["/media/ann/GW BOOT", "/media/ann/gwdata"]


def test_an_image_is_found_by_the_loop_devices_that_have_it(machine: tuple[Path, Path], tmp_path: Path) -> None:
    assert mount_points(tmp_path / "card.img", *machine) == ["/mnt"]
    (tmp_path / "link").symlink_to("card.img")
    assert mount_points(tmp_path / "link", *machine) == ["/mnt"]
    assert mount_points(tmp_path / "other.img", *machine) == ["/srv/x"], "by kpartx"
    assert mount_points(tmp_path / "third.img", *machine) == []
    assert mount_points(tmp_path / "card.img", tmp_path / "none", tmp_path / "none") == [], "no Linux"


def test_a_mounted_card_is_refused_with_what_to_do(
    image: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, before = tmp_path / "gateway.toml", image.read_bytes()
    config.write_text(SMALL)
    monkeypatch.setattr("edge_agent.provisioning.fat.mount_points", lambda _: ["/media/ann/GW BOOT", "/mnt"])
    assert main(["image", "configure", str(image), "--config", str(config)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{image}: is mounted at /media/ann/GW BOOT and /mnt, " in line
    assert line.endswith("first run: umount '/media/ann/GW BOOT' /mnt")
    assert image.read_bytes() == before
    assert fat.find(image, "gateway.toml") is None, "reading goes on"
