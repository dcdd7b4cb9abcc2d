"""Stores many open rows in slots of some keys each, so that a commit writes only the slots of keys that changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from edge_agent.algebra.partials.partial import Partials, concat
from edge_agent.machines.checkpoint.codec import encode, rows_from_plain, rows_to_plain

PAGE_KEYS: Final = 128  # keys per page: a change of one key writes a few kB; 100 000 keys take 800 rows of the spool
MANY_ROWS: Final = 1_024  # fewer rows stay in the slot of the state: pages would cost more than they save
_PAGED: Final = "paged"


class PagedRows:
    """The page slots of one state."""

    __slots__ = ("_name", "_slots")

    def __init__(self, name: str) -> None:
        """name: the first part of the slot names."""
        self._name = name
        self._slots: set[str] = set()

    def changes(self, state: object) -> tuple[Any, dict[str, object]]:
        """Returns (the encoded state, in which page references replace many rows; the page slots, None: delete it).

        All pages are returned; the spool writes only those whose bytes changed.
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
        """The `pages` argument with which `codec.decode` reads the rows of `changes`. slots: those of the spool."""

        def rows(plain: Mapping[str, Any]) -> Partials:
            if _PAGED not in plain:
                return rows_from_plain(plain)
            found = concat([rows_from_plain(slots[f"{plain[_PAGED]}/{n}"]) for n in plain["pages"].tolist()])
            return found.take(np.lexsort((found.key, found.end, found.start)))

        return rows


def _split(rows: Partials, name: str, pages: dict[str, object]) -> dict[str, object]:
    """Add the rows to `pages`, one slot for each PAGE_KEYS key codes. Returns the reference to these slots."""
    page = rows.key // PAGE_KEYS
    order = np.argsort(page, kind="stable")
    first = np.flatnonzero(np.diff(page[order], prepend=-1))
    numbers = page[order[first]]
    for number, which in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
        pages[f"{name}/{number}"] = rows_to_plain(rows.take(which))
    return {_PAGED: name, "pages": numbers}
