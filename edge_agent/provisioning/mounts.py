"""Finds the mount points of a disk, so that nothing is written beside a mounted file system.

Linux has a cache of its own for a disk and for each of its partitions. What is written to the disk is not seen by a
mounted file system, which later overwrites it, or is damaged by it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from edge_agent.errors import PortError


def mount_points(disk: Path, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> list[str]:
    """Where a disk or one of its partitions is mounted, sorted. disk: a block device, or the file of an image, which
    may be attached to loop devices. Empty if this machine does not have the files in `proc` and `sys`.

    Raises: PortError if the disk cannot be looked at.
    """
    try:
        found = disk.stat()
    except OSError as err:
        raise PortError(f"{disk}: {(err.strerror or str(err)).lower()}") from err
    if stat.S_ISBLK(found.st_mode):
        number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
        numbers = {number, *_below(sys / "dev" / "block" / number)}
    else:
        numbers = {number for loop in _loops_of(disk, sys) for number in (*_number(loop), *_below(loop))}
    return sorted({point for number, point in _mounts(proc) if number in numbers})


def _loops_of(image: Path, sys: Path) -> Iterator[Path]:
    """The loop devices to which an image is attached, as folders of `sys`. Names of files in it end with a newline."""
    wanted = os.fsencode(image.resolve())
    for file in sorted((sys / "block").glob("loop*/loop/backing_file")):
        if _read(file).rstrip(b"\n") == wanted:
            yield file.parents[1]


def _below(device: Path) -> Iterator[str]:
    """Numbers of the partitions of a device, and of what is made of the device or of one of them, as by kpartx."""
    for part in (device, *(file.parent for file in device.glob("*/partition"))):
        if part != device:
            yield from _number(part)
        for holder in part.glob("holders/*"):
            yield from _number(holder)


def _number(device: Path) -> Iterator[str]:
    """The number of a device, `major:minor`."""
    number = _read(device / "dev").decode("ascii", "replace").strip()
    if number:
        yield number


def _mounts(proc: Path) -> Iterator[tuple[str, str]]:
    """(number of the device, mount point) of each mount. Source: proc_pid_mountinfo(5)."""
    for line in _read(proc / "self" / "mountinfo").splitlines():
        words = line.split(b" ")
        if len(words) > 4:
            point = re.sub(rb"\\([0-7]{3})", lambda octal: bytes((int(octal[1], 8) & 255,)), words[4])
            yield words[2].decode("ascii", "replace"), os.fsdecode(point)


def _read(file: Path) -> bytes:
    """The content of a file; empty if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
