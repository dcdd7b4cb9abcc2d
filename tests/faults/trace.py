"""What a process wrote, by strace: writes with their bytes, fsyncs, names, and what it said meanwhile."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CALLS: Final = (
    "openat,open,creat,close,dup,dup2,dup3,write,pwrite64,writev,pwritev,lseek,ftruncate,truncate,fallocate,fsync,"
    "fdatasync,rename,renameat,renameat2,unlink,unlinkat,link,linkat,chdir,mmap"
)
LINE: Final = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+|0x[0-9a-f]+)(?: .*)?$")
HEX: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes at an offset of a file. file: a number that a file keeps over its names."""

    file: int
    offset: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    """A file cut or extended."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """fsync of a file: what was written to it is durable."""

    file: int


@dataclass(frozen=True, slots=True)
class Named:
    """A name in the folders now is that file's; None: the name is gone."""

    path: Path
    file: int | None


@dataclass(frozen=True, slots=True)
class Moved:
    """One name became another, at once."""

    source: Path
    target: Path
    file: int


@dataclass(frozen=True, slots=True)
class SyncFolder:
    """fsync of a folder: its names are durable."""

    path: Path


@dataclass(frozen=True, slots=True)
class Said:
    """A line of the file `wire`: what others saw."""

    line: str


Operation = Write | Resize | Sync | Named | Moved | SyncFolder | Said


def strace() -> str:
    """Why strace cannot be used here; '' if it can."""
    if shutil.which("strace") is None:
        return "no strace: apt install strace"
    done = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return f"strace: {done.stderr.strip()}" if done.returncode else ""


def run_traced(command: Sequence[str], output: Path) -> None:
    """Run a command to its end. Raises: subprocess.CalledProcessError, with what it printed."""
    words = ["strace", "-f", "-qq", "-xx", "-s", "50000000", "-e", f"trace={CALLS}", "-o", str(output), *command]
    subprocess.run(words, check=True, capture_output=True, timeout=500)


class Traced:
    """The operations of several runs in one folder, one after the other. Only what is in the folder counts."""

    def __init__(self, store: Path, wire: Path) -> None:
        """store: the folder whose files count. wire: the file of what was said."""
        self.store, self.wire = store.resolve(), wire.resolve()
        self.operations: list[Operation] = []
        self._files: dict[Path, int] = {}  # by name
        self._sizes: dict[int, int] = {}
        self._count = 0
        self._rest = b""

    def read(self, output: Path, folder: Path) -> None:
        """Add the run of one process, which began in `folder`."""
        opened: dict[int, tuple[Path, int]] = {}  # descriptor -> (path, position)
        here = folder.resolve()
        with output.open(encoding="ascii") as lines:
            for call, words, result in _calls(lines):
                if result < 0:
                    continue
                if call == "chdir":
                    here = here / _text(words)
                    continue
                self.operations += self._call(call, words, result, opened, here)

    def _call(
        self, call: str, words: str, result: int, opened: dict[int, tuple[Path, int]], here: Path
    ) -> list[Operation]:
        if call in ("openat", "open", "creat"):
            return self._open(words, result, opened, here)
        if call in ("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat"):
            return self._name(call, [here / path for path in _texts(words)])
        if call == "mmap":
            number = int(words.split(", ")[4])
            assert number not in opened or "MAP_SHARED" not in words or "PROT_WRITE" not in words, "a mapped write"
            return []
        number = int(words.split(",", 1)[0]) if call != "truncate" else -1
        if number not in opened:
            return []
        if call in ("dup", "dup2", "dup3"):
            opened[result] = opened[number]
            return []
        path, position = opened[number]
        match call:
            case "close":
                del opened[number]
            case "lseek":
                opened[number] = (path, result)
            case "fsync" | "fdatasync":
                return [SyncFolder(path)] if path not in self._files else [Sync(self._files[path])]
            case "ftruncate":
                size = int(words.split(", ")[1])
                self._sizes[self._files[path]] = size
                return [Resize(self._files[path], size)]
            case "fallocate":
                mode, offset, length = words.split(", ")[1:4]
                file, size = self._files[path], int(offset) + int(length)
                if mode != "0" or size <= self._sizes.get(file, 0):
                    assert mode in ("0", "FALLOC_FL_KEEP_SIZE"), words  # room only: no byte of it changes
                    return []
                self._sizes[file] = size
                return [Resize(file, size)]
            case "write" | "pwrite64":
                content = _bytes(words)[:result]
                if path == self.wire:
                    return self._said(content)
                file = self._files[path]
                at = int(words.rsplit(", ", 1)[1]) if call == "pwrite64" else position
                if call == "write":
                    opened[number] = (path, at + len(content))
                self._sizes[file] = max(self._sizes.get(file, 0), at + len(content))
                return [Write(file, at, content)]
            case _:
                raise AssertionError(f"{call} on {path}: not replayed")
        return []

    def _open(self, words: str, result: int, opened: dict[int, tuple[Path, int]], here: Path) -> list[Operation]:
        path, out = (here / _text(words)).resolve(), list[Operation]()
        if path in (self.wire, self.store):
            opened[result] = (path, 0)
        if not path.is_relative_to(self.store) or path == self.store:
            return out
        opened[result] = (path, 0)
        if "O_DIRECTORY" in words or ("O_CREAT" not in words and path not in self._files):
            return out
        if path not in self._files:
            self._count += 1
            self._files[path] = self._count
            out.append(Named(path.relative_to(self.store), self._count))
        if "O_TRUNC" in words:
            out.append(Resize(self._files[path], 0))
        if "O_APPEND" in words:
            opened[result] = (path, self._sizes.get(self._files[path], 0))
        return out

    def _name(self, call: str, paths: list[Path]) -> list[Operation]:
        if paths[0] not in self._files:
            return []
        within = [path.relative_to(self.store) for path in paths]
        if call.startswith("unlink"):
            del self._files[paths[0]]
            return [Named(within[0], None)]
        assert call.startswith("rename"), call
        file = self._files[paths[1]] = self._files.pop(paths[0])
        return [Moved(within[0], within[1], file)]

    def _said(self, content: bytes) -> list[Operation]:
        *whole, self._rest = (self._rest + content).split(b"\n")
        return [Said(line.decode()) for line in whole]


def _calls(lines: Iterator[str]) -> Iterator[tuple[str, str, int]]:
    """(name, arguments, result) of each call; those that another thread interrupted are put together."""
    begun: dict[str, str] = {}
    for line in lines:
        process = line.split(" ", 1)[0]
        text = line.rstrip("\n")
        if text.endswith(" <unfinished ...>"):
            begun[process] = text.removesuffix(" <unfinished ...>")
            continue
        resumed = re.match(r"^\d+ +<\.\.\. \w+ resumed>(.*)$", text)
        if resumed:
            text = begun.pop(process) + resumed.group(1)
        found = LINE.match(text)
        if found:
            yield found.group(1), found.group(2), int(found.group(3), 0)


def _texts(words: str) -> list[str]:
    return [bytes.fromhex(found.replace("\\x", "")).decode() for found, _ in HEX.findall(words)]


def _text(words: str) -> str:
    return _texts(words)[0]


def _bytes(words: str) -> bytes:
    found = HEX.search(words)
    assert found is not None, words[:200]
    assert not found.group(2), "strace has cut a string"
    return bytes.fromhex(found.group(1).replace("\\x", ""))
