"""Damage to the file of a spool."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.ports.spools import reopened


def damage_header(path: Path) -> None:
    path.write_bytes(b"this is no database at all" * 400)


def damage_tree(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def reopened_once(path: Path) -> list[str]:
    """The names of the notes of a start."""
    spool = reopened(path)
    spool.open()
    names = [note.name for note in spool.notes]
    spool.close()
    return names
