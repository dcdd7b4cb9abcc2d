"""Many open rows in slots of some keys each: a commit writes the slots of keys that changed, not all open rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from edge_agent.algebra.partials.partial import Partials, concat
from edge_agent.machines.checkpoint.codec import encode, rows_from_plain, rows_to_plain

PAGE_KEYS: Final = 128  # rows of one more key write a few kB; 100 000 keys are 800 rows of the spool
MANY_ROWS: Final = 1_024  # fewer stay in their own slot: a slot for each page would cost more than it saves
_PAGED: Final = "paged"


class PagedRows:
    """The page slots of one state."""

    __slots__ = ("_name", "_slots")

    def __init__(self, name: str) -> None:
        """name: the first part of the slot names."""
        self._name = name
        self._slots: set[str] = set()

    def changes(self, state: object) -> tuple[Any, dict[str, object]]:
        """Returns (the encoded state, with references in place of many rows; the page slots, None: deleted).

        Pages are returned whether they changed or not: the spool writes only those that did.
        """
        pages: dict[str, object] = {}
        tables = 0

        def rows(partials: Partials) -> object:
            nonlocal tables
            tables += 1
            if len(partials) < MANY_ROWS:
                return rows_to_plain(partials)
            return _split(partials, f"{self._name}/{tables}", pages)

        plain = encode(state, rows)
        gone, self._slots = self._slots - pages.keys(), set(pages)
        return plain, {**dict.fromkeys(gone), **pages}

    @staticmethod
    def reader(slots: Mapping[str, Any]) -> Callable[[Any], Partials]:
        """What `decode` needs to read the rows that `changes` wrote. slots: of the spool."""

        def rows(plain: Mapping[str, Any]) -> Partials:
            if _PAGED not in plain:
                return rows_from_plain(plain)
            found = concat([rows_from_plain(slots[f"{plain[_PAGED]}/{n}"]) for n in plain["pages"].tolist()])
            return found.take(np.lexsort((found.key, found.end, found.start)))

        return rows


def _split(rows: Partials, name: str, pages: dict[str, object]) -> dict[str, object]:
    """Adds the rows to `pages`, one slot for PAGE_KEYS keys. Returns the reference to them."""
    page = rows.key // PAGE_KEYS
    order = np.argsort(page, kind="stable")
    first = np.flatnonzero(np.diff(page[order], prepend=-1))
    numbers = page[order[first]]
    for number, which in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
        pages[f"{name}/{number}"] = rows_to_plain(rows.take(which))
    return {_PAGED: name, "pages": numbers}
