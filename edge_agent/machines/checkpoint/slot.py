"""One slot of a spool: its name, the type of its value, and what a node does without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from edge_agent.machines.checkpoint.codec import decode, encode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Slot(Generic[T]):
    """name: of the slot, or of all slots `name/...`. holds: the type of the value, as `codec.decode` takes it.

    without: what the node does if the row is damaged; '' if it would count readings twice or omit some without a
    record: then its past is `lost` (docs/protocol.md 1.2).
    """

    name: str
    holds: type[T]
    without: str = ""

    def write(self, value: T | None, *names: object) -> dict[str, object]:
        """The row to commit. value None: the row is deleted."""
        return {self._row(names): None if value is None else encode(value)}

    def read(self, state: Mapping[str, Any], *names: object) -> T | None:
        """The value among the rows of a spool; None if there is none."""
        plain = state.get(self._row(names))
        return None if plain is None else decode(self.holds, plain)

    def each(self, state: Mapping[str, Any]) -> Iterator[tuple[str, T]]:
        """(names joined by '/', value) of all rows `name/...`."""
        for row, plain in state.items():
            if row.startswith(f"{self.name}/"):
                yield row.removeprefix(f"{self.name}/"), decode(self.holds, plain)

    def _row(self, names: tuple[object, ...]) -> str:
        return "/".join((self.name, *map(str, names)))
