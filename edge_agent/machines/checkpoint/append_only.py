"""A table, in slots of some of its entries each: a commit writes the slots that grew or changed, not the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

SLOT_TEXTS: Final = 256  # one more text writes a few kB; 100 000 of them are 400 rows of the spool


class AppendOnlyTable:
    """The slots of one table; what they hold of it."""

    __slots__ = ("_name", "_said", "_slots")

    def __init__(self, name: str, state: Mapping[str, Any] | None = None) -> None:
        """name: of the slots, before their number. state: the spool's, where some may stand from before."""
        self._name = name
        self._said = 0
        self._slots = 0 if state is None else len(self._there(name, state))

    def changes(self, texts: Sequence[object], *, anew: bool = False) -> dict[str, object]:
        """Slots to write so that they hold these entries: those that have grown.

        anew: all of them, for it is not the table of the last call; the spool writes only those that differ.
        """
        self._said = 0 if anew else self._said
        many = -(-len(texts) // SLOT_TEXTS)
        out: dict[str, object] = {f"{self._name}/{n}": None for n in range(many, self._slots)}
        for n in range(self._said // SLOT_TEXTS, many) if len(texts) > self._said else ():
            out[f"{self._name}/{n}"] = list(texts[n * SLOT_TEXTS : (n + 1) * SLOT_TEXTS])
        self._said, self._slots = len(texts), many
        return out

    @classmethod
    def read(cls, name: str, state: Mapping[str, Any]) -> list[Any]:
        """The entries that the slots of a spool hold."""
        return [text for texts in cls._there(name, state) for text in texts]

    @staticmethod
    def _there(name: str, state: Mapping[str, Any]) -> list[list[Any]]:
        found: list[list[Any]] = []
        while isinstance(texts := state.get(f"{name}/{len(found)}"), list):
            found.append(texts)
        return found
