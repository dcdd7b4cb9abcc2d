"""Texts and their numbers, an append-only table: what many epochs number each in its own way."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edge_agent.algebra.partials.arrays import Ints


class TextNumbers:
    """Numbers are given at first use, from 0 on."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Its number."""
        number = self.numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def of(self, texts: Iterable[str]) -> Ints:
        """The number of each text."""
        return np.array([self.number(text) for text in texts], np.int64)
