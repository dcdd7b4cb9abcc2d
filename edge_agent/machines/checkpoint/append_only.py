"""An append-only table in slots of some entries each: a commit writes the slots that grew, not the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

SLOT_TEXTS: Final = 256  # one more text writes a few kB; 100 000 of them are 400 rows of the spool


class AppendOnlyTable:
    """The slots of one table. length: how many entries they hold."""

    __slots__ = ("_name", "_slots", "length")

    def __init__(self, name: str, state: Mapping[str, Any] | None = None) -> None:
        """name: of the slots, before their number. state: the rows of the spool, including those of older slots."""
        self._name = name
        self.length = 0
        self._slots = 0 if state is None else len(self._found(name, state))

    def changes(self, entries: Sequence[object], *, anew: bool = False) -> dict[str, object]:
        """The slots to write so that they contain these entries: those that have grown.

        anew: return all of them, because the table is not that of the last call; the spool writes only those that
        differ.
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
