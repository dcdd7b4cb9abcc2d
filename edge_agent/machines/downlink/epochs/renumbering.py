"""Renumbers keys and nodes, so that rows of many epochs share the same tables of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import numpy as np

from edge_agent.algebra.aggregates import COLUMNS, renumbered
from edge_agent.algebra.columns import OF_NODES
from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.store import ranks_of
from edge_agent.algebra.query.key import EpochKey

MOST_EPOCHS: Final = 10_000  # most epochs whose maps are kept; a dropped map is made again from the texts


class EpochTexts(Protocol):
    """The texts of the key and node numbers of an epoch; both lists only grow."""

    @property
    def keys(self) -> Sequence[str]: ...

    @property
    def nodes(self) -> Sequence[str]: ...


class TextNumbers:
    """An append-only table of texts. Numbers count from 0 in the order of first use."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts: list[str] = []
        self.numbers: dict[str, int] = {}
        for text in texts:
            self.number(text)

    def number(self, text: str) -> int:
        """Return the number of a text; a new text gets the next one."""
        number = self.numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def of(self, texts: Iterable[str]) -> Ints:
        """Return the number of each text."""
        return np.array([self.number(text) for text in texts], np.int64)


class Renumbering:
    """Maps key and node numbers of epochs to the numbers of the tables `keys` and `nodes`."""

    def __init__(self) -> None:
        self.keys, self.nodes = TextNumbers(), TextNumbers()
        self._maps: dict[EpochKey, tuple[Ints, Ints]] = {}
        self._ranks: Ints = NO_INTS

    def rows(self, epoch: EpochKey, texts: EpochTexts, rows: Partials) -> Partials:
        """Return rows of an epoch under the numbers of `keys` and `nodes`. State columns are named as in the basis."""
        keys, nodes = self.maps(epoch, texts)
        states = rows.states
        if any(COLUMNS[name].kind in OF_NODES for name in states):
            states = renumbered(states, tuple(states), nodes.__getitem__)
        return Partials(rows.start, rows.end, keys[rows.key], states)

    def maps(self, epoch: EpochKey, texts: EpochTexts) -> tuple[Ints, Ints]:
        """Return (number in `keys` of each key number of an epoch, number in `nodes` of each node number)."""
        keys, nodes = self._maps.get(epoch, (NO_INTS, NO_INTS))
        if len(keys) < len(texts.keys) or len(nodes) < len(texts.nodes) or epoch not in self._maps:
            keys = np.concatenate([keys, self.keys.of(texts.keys[len(keys) :])])
            nodes = np.concatenate([nodes, self.nodes.of(texts.nodes[len(nodes) :])])
            if len(self._maps) >= MOST_EPOCHS:
                self._maps.clear()
            self._maps[epoch] = keys, nodes
        return keys, nodes

    def forget(self, epoch: EpochKey) -> None:
        """Drop the map of an epoch that has ended."""
        self._maps.pop(epoch, None)

    @property
    def many(self) -> int:
        """How many texts of keys and nodes there are."""
        return len(self.keys.texts) + len(self.nodes.texts)

    def used(self, *others: Ints) -> int:
        """How many keys and nodes the epochs have that are not forgotten, with the keys of other lists of numbers."""
        keys, nodes = ([each[i] for each in self._maps.values()] for i in range(2))
        return sum(len(np.unique(np.concatenate(lists))) for lists in ([*keys, *others], nodes) if lists)

    def ranks(self) -> Ints | None:
        """Return the rank of each node number in the bytewise order of node ids (protocol 7.3); None without nodes."""
        texts = self.nodes.texts
        if len(texts) != len(self._ranks):
            self._ranks = ranks_of(texts)
        return self._ranks if len(self._ranks) else None
