"""A disk whose power goes at a given step: what was not brought to it by then may be there, in part, or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from edge_agent.provisioning.updates.version_folder import Disk


class PowerCutError(Exception):
    """The power went."""


class CutDisk(Disk):
    """at: the step before which the power goes; 0: never. steps: done so far."""

    def __init__(self, at: int, seed: int) -> None:
        self.at, self.steps = at, 0
        self._random = random.Random(seed)
        self._loose: set[Path] = set()  # files whose content is not on the disk yet
        self._undo: Callable[[], None] | None = None  # of a name that is not on the disk yet

    def write(self, path: Path, content: bytes) -> None:
        self._step()
        super().write(path, content)
        self._loose.add(path)

    def compile(self, folder: Path) -> None:
        super().compile(folder)
        self._loose |= set(folder.rglob("*.pyc"))
        self._step()

    def settle(self, path: Path) -> None:
        self._step()
        super().settle(path)
        self._loose -= {each for each in self._loose if each.is_relative_to(path)}

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        before = target.read_bytes() if target.is_file() else None

        def undo() -> None:
            target.rename(source)
            if before is not None:
                target.write_bytes(before)

        super().rename(source, target)
        moved = {each for each in self._loose if each.is_relative_to(source)}
        self._loose = self._loose - moved | {target / each.relative_to(source) for each in moved}
        self._undo = undo
        self._step()
        self._undo = None

    def remove(self, folder: Path) -> None:
        if 0 < self.at <= self.steps:  # the power is off: nobody cleans up
            return
        files = [each for each in folder.rglob("*") if each.is_file()]
        for file in self._random.sample(files, len(files) // 2):
            file.unlink()
        self._step()
        super().remove(folder)

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            self._cut()
            raise PowerCutError

    def _cut(self) -> None:
        if self._undo is not None and self._random.random() < 0.5:
            self._undo()
            return
        for path in sorted(self._loose):
            if not path.exists():
                continue
            content, what = path.read_bytes(), self._random.randrange(4)
            if what == 0:
                path.unlink()
            elif what < 3:
                path.write_bytes(content[: len(content) // 2] if what == 1 else b"")
