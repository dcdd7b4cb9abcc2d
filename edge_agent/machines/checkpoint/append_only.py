"""Stores an append-only table in several slots, so that a commit writes the slots that grew and not the whole table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

SLOT_TEXTS: Final = 256  # entries per slot: adding a text writes a few kB; 100 000 texts take 400 rows of the spool


class AppendOnlyTable:
    """The slots of one table. length: number of entries at the last call of `changes`."""

    __slots__ = ("_name", "_slots", "length")

    def __init__(self, name: str, state: Mapping[str, Any] | None = None) -> None:
        """name: the slots are called `name/0`, `name/1` and so on. state: the rows of the spool; None: a new table."""
        self._name = name
        self.length = 0
        self._slots = 0 if state is None else len(self._found(name, state))

    def changes(self, entries: Sequence[object], *, anew: bool = False) -> dict[str, object]:
        """The slots to write (None: delete the slot). entries: the whole table, which may only have grown.

        anew: the table is another one than at the last call, so all slots are returned. The spool writes only those
        whose bytes differ.
        """
        self.length = 0 if anew else self.length
        many = -(-len(entries) // SLOT_TEXTS)
        out: dict[str, object] = {f"{self._name}/{n}": None for n in range(many, self._slots)}
        for n in range(self.length // SLOT_TEXTS, many) if len(entries) > self.length else ():
            out[f"{self._name}/{n}"] = list(entries[n * SLOT_TEXTS : (n + 1) * SLOT_TEXTS])
        self.length, self._slots = len(entries), many
        return out

    @classmethod
    def read(cls, name: str, state: Mapping[str, Any]) -> list[Any]:
        """The entries of the table among the rows of a spool."""
        return [entry for entries in cls._found(name, state) for entry in entries]

    @staticmethod
    def _found(name: str, state: Mapping[str, Any]) -> list[list[Any]]:
        found: list[list[Any]] = []
        while isinstance(entries := state.get(f"{name}/{len(found)}"), list):
            found.append(entries)
        return found
