"""Texts and their numbers, and rows of many children brought under the holder's own numbers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edge_agent.algebra.aggregates import COLUMNS, renumbered
from edge_agent.algebra.columns import OF_NODES
from edge_agent.algebra.frame import Plan
from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.store import ranks_of
from edge_agent.machines.downlink.epoch_dictionary import EpochDictionary


class NumberedTexts:
    """An append-only table of texts and the number of each."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts = list(texts)
        self.numbers = {text: n for n, text in enumerate(self.texts)}

    def number(self, text: str) -> int:
        """Its number, given at first use."""
        number = self.numbers.get(text)
        if number is None:
            number = self.numbers[text] = len(self.texts)
            self.texts.append(text)
        return number


class Renumbering:
    """Key and node numbers of children's epochs -> those of the holder's own tables `keys` and `nodes`."""

    def __init__(self) -> None:
        self.keys, self.nodes = NumberedTexts(), NumberedTexts()
        self._maps: dict[tuple[str, str, int], Ints] = {}
        self._ranks: Ints = NO_INTS

    def rows(self, node: str, epoch: int, book: EpochDictionary, plan: Plan, rows: Partials) -> Partials:
        """Rows of a child's epoch, columns named by the basis, under our numbers."""
        keys = self._map("keys", node, epoch, book.keys, self.keys)[rows.key]
        states = rows.states
        if any(COLUMNS[name].kind in OF_NODES for name in plan.basis):
            nodes = self._map("nodes", node, epoch, book.nodes, self.nodes)
            states = renumbered(states, plan.basis, lambda codes: nodes[codes])
        return Partials(rows.start, rows.end, keys, states)

    def forget(self, node: str, epoch: int) -> None:
        """An epoch is over and its book is gone."""
        self._maps.pop(("keys", node, epoch), None)
        self._maps.pop(("nodes", node, epoch), None)

    def ranks(self) -> Ints | None:
        """Place of each node number in the bytewise order of ids (docs/protocol.md 7.3); None without nodes."""
        texts = self.nodes.texts
        if len(texts) != len(self._ranks):
            self._ranks = ranks_of(texts)
        return self._ranks if len(self._ranks) else None

    def _map(self, kind: str, node: str, epoch: int, texts: list[str], names: NumberedTexts) -> Ints:
        known = self._maps.get((kind, node, epoch))
        if known is None or len(known) < len(texts):
            known = np.array([names.number(text) for text in texts], np.int64)
            self._maps[kind, node, epoch] = known
        return known
