"""Declares a slot of a spool: its name, the type of its value, and what a node does if it is damaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from edge_agent.machines.checkpoint.codec import decode, encode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Slot(Generic[T]):
    """A slot, or a family of slots `name/...`. holds: the type of the value, as `codec.decode` takes it.

    without: what the node does if the row is damaged. '': without the row the node would count readings twice or omit
    some without a record, so its past counts as `lost` (docs/protocol.md 1.2).
    """

    name: str
    holds: type[T]
    without: str = ""

    def write(self, value: T | None, *names: object) -> dict[str, object]:
        """The row to commit. value: None deletes the row. names: the rest of the row's name, joined by '/'."""
        return {self._row(names): None if value is None else encode(value)}

    def read(self, state: Mapping[str, Any], *names: object) -> T | None:
        """The value in the rows of a spool; None if there is no such row."""
        plain = state.get(self._row(names))
        return None if plain is None else decode(self.holds, plain)

    def each(self, state: Mapping[str, Any]) -> Iterator[tuple[str, T]]:
        """Yields (names joined by '/', value) for all rows `name/...`."""
        for row, plain in state.items():
            if row.startswith(f"{self.name}/"):
                yield row.removeprefix(f"{self.name}/"), decode(self.holds, plain)

    def _row(self, names: tuple[object, ...]) -> str:
        return "/".join((self.name, *map(str, names))) if names else self.name


class ChangedSlots:
    """Slots without names, each committed only if its value differs from that of the last commit of this process.

    Their values must not share mutable parts with what they were made from.
    """

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, object] = {}

    def changes(self, slot: Slot[T], value: T) -> dict[str, object]:
        """The row to commit; {} if the value is that of the last call for this slot."""
        if slot.name in self._values and self._values[slot.name] == value:
            return {}
        self._values[slot.name] = value
        return slot.write(value)
