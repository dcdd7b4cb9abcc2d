"""Many open rows in slots of some keys each: a commit writes those of keys that changed, not all that is open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

PAGE_KEYS: Final = 128  # rows of one more key write a few kB; 100 000 keys are 800 rows of the spool
MANY_ROWS: Final = 1_024  # fewer stay where they are: a slot of their own each would cost more than it saves
ROWS: Final = frozenset({"start", "end", "key", "states"})  # what algebra.partial.Store.snapshot answers
_PAGED: Final = "paged"


class PagedRows:
    """The slots of one state; which of them there are."""

    __slots__ = ("_name", "_slots")

    def __init__(self, name: str) -> None:
        """name: of the slots, before what tells them apart."""
        self._name = name
        self._slots: set[str] = set()

    def changes(self, state: object) -> tuple[Any, dict[str, object]]:
        """(the state without its many rows, slots that hold those; None: one that holds none any more).

        Slots are answered whether they changed or not: the spool writes only those that did.
        """
        pages: dict[str, object] = {}
        rest = _without_rows(state, self._name, pages)
        gone, self._slots = self._slots - pages.keys(), set(pages)
        return rest, {**dict.fromkeys(gone), **pages}

    @staticmethod
    def read(rest: object, slots: Mapping[str, Any]) -> Any:
        """The state that `changes` was given. slots: of the spool."""
        if isinstance(rest, Mapping):
            if _PAGED in rest:
                return _joined([slots[f"{rest[_PAGED]}/{n}"] for n in rest["pages"].tolist()])
            return {name: PagedRows.read(value, slots) for name, value in rest.items()}
        return [PagedRows.read(value, slots) for value in rest] if isinstance(rest, list) else rest


def _without_rows(value: object, name: str, pages: dict[str, object]) -> object:
    if isinstance(value, list):
        return [_without_rows(item, f"{name}/{n}", pages) for n, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if value.keys() != ROWS or len(value["key"]) < MANY_ROWS:
        return {of: _without_rows(item, f"{name}/{of}", pages) for of, item in value.items()}
    page = np.asarray(value["key"]) // PAGE_KEYS
    order = np.argsort(page, kind="stable")
    first = np.flatnonzero(np.diff(page[order], prepend=-1))
    numbers = page[order[first]]
    for number, rows in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
        pages[f"{name}/{number}"] = _taken(value, rows)
    return {_PAGED: name, "pages": numbers}


def _taken(rows: Mapping[str, Any], which: Any) -> dict[str, object]:
    columns = {name: rows[name][which] for name in ("start", "end", "key")}
    return {**columns, "states": {name: column[which] for name, column in rows["states"].items()}}


def _joined(pages: list[Any]) -> dict[str, object]:
    columns = {name: np.concatenate([page[name] for page in pages]) for name in ("start", "end", "key")}
    names = pages[0]["states"]
    states = {name: np.concatenate([page["states"][name] for page in pages]) for name in names}
    order = np.lexsort((columns["key"], columns["end"], columns["start"]))
    return _taken({**columns, "states": states}, order)
