"""Punctuation windows: from marker to marker in the stream.

Source of the interpretations: the thesis on Disco, section 3.2 (docs/how-it-works.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from edge_agent.algebra.query.group_cut import INTERPRETATIONS, PunctuationCut
from edge_agent.algebra.windows.declaration import Setting, Wrong


@dataclass(frozen=True, slots=True)
class Punctuation:
    """Windows from each marker to the next, or from 'start' to 'end' markers if these are explicit.

    interpretation: which windows of several nodes are one window: 'local': none; 'bounds': those with equal bounds;
    'order': the i-th of every node; 'overlap': those that overlap or touch; 'central': the markers of all nodes cut one
    stream. leading: readings before the first marker open a window ('open') or are in no window ('drop').
    punctuation_id: only markers with this id count, '' for all.

    markers: id of a sensor whose changes of value are the markers, '' if commands give them. The new value is the
    marker's id; with 'overlap', a value other than 0 begins a window and 0 ends it.
    """

    interpretation: str = "local"
    leading: str = "drop"
    punctuation_id: str = ""
    markers: str = ""
    type: ClassVar[str] = "punctuation"
    KEYS: ClassVar[tuple[Setting, ...]] = (
        Setting(
            *("interpretation", "word", "what is one window of several gateways, see below", "local"),
            words=INTERPRETATIONS,
        ),
        Setting(
            *("leading", "word", "readings before the first marker: in no window, or they open one", "drop"),
            words=("drop", "open"),
        ),
        Setting("punctuation_id", "text", "only markers of that id; empty: all", ""),
        Setting(
            "markers", "text", "sensor whose changes of value are the markers; empty: command `mark` gives them", ""
        ),
    )

    def wrong(self) -> Wrong | None:
        return None

    @property
    def own(self) -> bool:
        """Whether each gateway has its own group, because windows do not merge below the root."""
        return self.interpretation in {"local", "order"}

    @property
    def alone(self) -> Punctuation | None:
        """The same windows for scope 'local'. None if a sensor gives 'start' and 'end' markers, which 'local' lacks."""
        return None if self.interpretation == "overlap" and self.markers else replace(self, interpretation="local")

    @property
    def by_end(self) -> bool:
        """Whether a row is identified by start and end, because several windows may have the same start."""
        return self.interpretation != "overlap"

    @property
    def waits(self) -> bool:
        """Whether windows wait for missing nodes, unless `on_missing` is 'skip'."""
        return self.interpretation in {"order", "central"}

    def group_cut(self, *, skips: bool) -> PunctuationCut:
        """The cut of the query's group. skips: whether windows do not wait for missing nodes."""
        leading = self.leading == "open"
        return PunctuationCut(self.interpretation, skips, leading, self.markers, self.punctuation_id.rstrip())
