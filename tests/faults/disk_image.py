"""A folder as it may look after a power cut.

Durable is what POSIX promises: of a file what was written before its last fsync, of a folder the names before its
last fsync. Of the rest a seed decides: all of it, none, a prefix, or any set of sectors of 512 bytes, with zeros where
a file grew without its content. Names change in their order, as a file system with a journal keeps them. Folders
themselves are there at once: Linux makes them durable with the first file that is fsynced in them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.faults.trace import Moved, Named, Operation, Resize, Said, Sync, SyncFolder, Write

SECTOR: Final = 512


class Disk:
    """What is durable, and what has been written since. `apply` operations in order; `image` at any time."""

    def __init__(self, store: Path, *, trust_fsync: bool = True) -> None:
        """store: the traced folder. trust_fsync: False replays a disk that forgets every fsync (a control)."""
        self._store, self._trust = store.resolve(), trust_fsync
        self._content: dict[int, bytearray] = {}
        self._unsynced: dict[int, list[Write | Resize]] = {}
        self._names: dict[Path, int] = {}
        self._renaming: list[Named | Moved] = []
        self.said: list[str] = []

    def apply(self, operation: Operation) -> None:
        match operation:
            case Said(line):
                self.said.append(line)
            case Write(file) | Resize(file):
                self._unsynced.setdefault(file, []).append(operation)
            case Sync(file) if self._trust:
                content = self._content.setdefault(file, bytearray())
                for change in self._unsynced.pop(file, ()):
                    _change(content, change)
            case Named() | Moved():
                self._renaming.append(operation)
            case SyncFolder(path) if self._trust:
                folder = path.relative_to(self._store)
                for name in [each for each in self._renaming if _folder(each) == folder]:
                    self._renaming.remove(name)
                    _rename(self._names, name)

    def image(self, target: Path, chance: random.Random) -> None:
        """Write one of the folders that a cut here may leave."""
        names = dict(self._names)
        kept = chance.choice((0, len(self._renaming), chance.randint(0, len(self._renaming))))
        for change in self._renaming[:kept]:
            _rename(names, change)
        for path, file in names.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(self._after_cut(file, chance))

    def _after_cut(self, file: int, chance: random.Random) -> bytes:
        content = bytearray(self._content.get(file, b""))
        changes = self._unsynced.get(file, [])
        mode = chance.choice(("none", "all", "prefix", "sectors", "sectors"))
        if mode == "none":
            return bytes(content)
        if mode != "sectors":
            last = len(changes) if mode == "all" else chance.randint(0, len(changes))
            for change in changes[:last]:
                _change(content, change)
            return bytes(content)
        share = chance.choice((0.1, 0.5, 0.9))
        for change in changes:
            if isinstance(change, Resize):
                if chance.random() < share:
                    _change(content, change)
            else:
                for piece in _sectors(change):
                    if chance.random() < share:
                        _change(content, piece)
        return bytes(content)


def _sectors(write: Write) -> Sequence[Write]:
    edges = [write.offset, *range((write.offset // SECTOR + 1) * SECTOR, write.offset + len(write.content), SECTOR)]
    ends = [*edges[1:], write.offset + len(write.content)]
    return [
        Write(write.file, low, write.content[low - write.offset : high - write.offset])
        for low, high in zip(edges, ends, strict=True)
    ]


def _change(content: bytearray, change: Write | Resize) -> None:
    if isinstance(change, Resize):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
        return
    end = change.offset + len(change.content)
    content.extend(bytes(max(0, end - len(content))))
    content[change.offset : end] = change.content


def _rename(names: dict[Path, int], change: Named | Moved) -> None:
    if isinstance(change, Moved):
        names.pop(change.source, None)
        names[change.target] = change.file
    elif change.file is None:
        names.pop(change.path, None)
    else:
        names[change.path] = change.file


def _folder(change: Named | Moved) -> Path:
    return (change.target if isinstance(change, Moved) else change.path).parent
