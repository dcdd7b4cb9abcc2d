"""The folder of versions on the data partition, consistent after a power cut at any step.

    state.json            the `Versions` of versions.py
    stopped               the version that was started last was stopped by request (written by the image's `stopped`)
    versions/0.2.0/       a complete version; it is unpacked as 0.2.0.part, and renamed once it is durable

A step writes a file or folder, makes it durable and renames it. A power cut may leave a `.part`, which is never read
and which the next start of the gateway deletes. If state.json cannot be read, the copy in the image runs, or the newest
version if only that can read the spool.
"""

from __future__ import annotations

import compileall
import errno
import fcntl
import json
import os
import py_compile
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from edge_agent.provisioning.updates.bundle import PACKAGE, Bundle
from edge_agent.provisioning.updates.versions import IMAGE, VERSION, Installed, Versions, needed

ABOUT: Final = "about.json"  # in the folder of each version: its entry of state.json
PART: Final = ".part"
SPARE_BYTES: Final = 8 * 1024 * 1024  # left free by an installation: two logs of a spool
BLOCK_BYTES: Final = 4096


class Disk:
    """Operations on the disk, one step per method."""

    def write(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(0o755, parents=True, exist_ok=True)
        with _naming(path):
            path.write_bytes(content)

    def compile(self, folder: Path) -> None:
        """Write byte-code beside the sources, because the gateway's user cannot. It does not depend on file times."""
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(folder, quiet=2, invalidation_mode=mode, stripdir=str(folder))

    def settle(self, path: Path) -> None:
        """Make a file durable, or a folder with all its content."""
        for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
            handle = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
            try:
                with _naming(each):
                    os.fsync(handle)
            finally:
                os.close(handle)

    def free_bytes(self, folder: Path) -> int:
        return shutil.disk_usage(folder).free

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing an existing file. The new name is durable when this returns."""
        source.replace(target)
        self._sync_names(target.parent)

    def remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def _sync_names(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class VersionFolder:
    """The versions of one gateway."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder, self._disk = folder, disk or Disk()
        self._state, self._stopped = folder / "state.json", folder / "stopped"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock out other processes: gateway start, watcher and operator may act at the same time."""
        self.folder.mkdir(0o755, parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> Versions:
        """Read state.json. If that is not possible, the result only lists the versions whose files exist."""
        there = self._there()
        try:
            found = json.loads(self._state.read_bytes())
            return Versions(
                installed={**there, **{name: _installed(each) for name, each in found["installed"].items()}},
                current=str(found["current"]),
                before=str(found["before"]),
                trial=None if found["trial"] is None else str(found["trial"]),
                chosen=str(found["chosen"]),
                starts=int(found["starts"]),
                failed=tuple(str(each) for each in found["failed"]),
                from_card=tuple(str(each) for each in found.get("from_card", ())),  # not of an earlier version
            )
        except (OSError, ValueError, KeyError, TypeError):
            return Versions(installed=there)

    def was_stopped(self) -> bool:
        """Whether the last start ended in a requested stop."""
        return self._stopped.exists()

    def forget_stop(self) -> None:
        """Call it once the next start is counted. A power cut in between leaves the note: then one start less counts.

        Raises: OSError.
        """
        self._stopped.unlink(missing_ok=True)

    def write(self, versions: Versions) -> None:
        """Write state.json. Raises: OSError."""
        table = asdict(versions) | {"installed": {name: list(each) for name, each in versions.installed.items()}}
        self._put(self._state, json.dumps(table, indent=1).encode())

    def add(self, bundle: Bundle) -> None:
        """Unpack a version beside the others, completely or not at all. Raises: OSError.

        A disk that is full would stop the gateway, which could commit no readings: so nothing remains of a failure.
        """
        target = self.path(bundle.manifest.version)
        part = target.with_name(target.name + PART)
        self._disk.remove(part)
        wanted_bytes = _size_bytes(bundle) + SPARE_BYTES
        if (free_bytes := self._disk.free_bytes(self.folder)) < wanted_bytes:
            why = f"{os.strerror(errno.ENOSPC)}: {wanted_bytes / 1e6:.0f} MB wanted, {free_bytes / 1e6:.0f} MB free"
            raise OSError(errno.ENOSPC, why, str(self.folder))
        try:
            for name, content in bundle.files.items():
                self._disk.write(part / name, content)
            self._disk.write(part / ABOUT, json.dumps(list(bundle.manifest.installed())).encode())
            self._disk.compile(part)
            self._disk.settle(part)
        except BaseException:
            self._disk.remove(part)
            raise
        if target.exists():  # the same version was given up and is tried again
            old = target.with_name(f"{target.name}.old{PART}")
            self._disk.remove(old)
            self._disk.rename(target, old)
        self._disk.rename(part, target)

    def sweep(self) -> None:
        """Delete what a kill or a power cut left of an installation. Call it with the lock."""
        for each in (self.folder / "versions").glob(f"*{PART}"):
            self._disk.remove(each)

    def prune(self, versions: Versions) -> Versions:
        """Delete versions that are no longer needed. Returns `versions` without them. Raises: OSError."""
        names = needed(versions)
        left = replace(versions, installed={name: each for name, each in versions.installed.items() if name in names})
        self.write(left)
        if (self.folder / "versions").is_dir():
            for each in (self.folder / "versions").iterdir():
                if each.name not in names:
                    self._disk.remove(each)
        return left

    def present(self) -> set[str]:
        """The versions whose files exist."""
        return set(self._there())

    def path(self, version: str) -> Path:
        return self.folder / "versions" / version

    def point(self, version: str, link: Path) -> None:
        """Set the version for the gateway's next start. link: below /run; a boot begins with the copy in the image."""
        link.parent.mkdir(0o755, parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        if version != IMAGE:
            link.symlink_to(self.path(version))

    def _there(self) -> dict[str, Installed]:
        found = {}
        folder = self.folder / "versions"
        for each in folder.iterdir() if folder.is_dir() else ():
            try:
                about = _installed(json.loads((each / ABOUT).read_bytes()))
            except (OSError, ValueError, TypeError):
                continue
            if each.name == about.version and VERSION.fullmatch(each.name) and (each / PACKAGE).is_dir():
                found[each.name] = about
        return found

    def _put(self, path: Path, content: bytes) -> None:
        scratch = path.with_name(path.name + PART)
        self._disk.write(scratch, content)
        self._disk.settle(scratch)
        self._disk.rename(scratch, path)


def _size_bytes(bundle: Bundle) -> int:
    """What a version takes on the disk, at most: its sources, and byte-code of about the same size."""
    return sum(2 * (len(content) + BLOCK_BYTES) for content in bundle.files.values())


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in an error of the disk: those of writing do not."""
    try:
        yield
    except OSError as err:
        err.filename = err.filename or str(path)
        raise


def _installed(found: Any) -> Installed:
    version, (first, second), image = found
    return Installed(str(version), (int(first), int(second)), str(image))
