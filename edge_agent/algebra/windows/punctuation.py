"""Punctuation windows: from marker to marker in the stream.

Source: the interpretations of the markers of several nodes are those of the thesis on Disco, section 3.2
(docs/how-it-works.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from edge_agent.algebra.query.group_cut import INTERPRETATIONS, PunctuationCut
from edge_agent.algebra.windows.base import Setting, Wrong


@dataclass(frozen=True, slots=True)
class Punctuation:
    """Windows [p_i, p_i+1) between markers; from a 'start' marker to an 'end' marker where these are explicit.

    interpretation: which windows of several nodes are one. 'local': none; 'bounds': those of equal bounds; 'order': the
    i-th of every node; 'overlap': those that overlap or touch; 'central': the markers of all nodes cut one stream.
    leading: whether the first reading opens a window if no marker precedes it ('open'), or is in no window ('drop').
    punctuation_id: only markers of that id count, '' for all. markers: id of a sensor whose changes of value are the
    markers (with the value as id; overlapping windows begin with a value other than 0 and end with 0), '' for markers
    of commands.
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
        """The windows for scope 'local'; None where changes of a sensor are 'start' and 'end', which 'local' lacks."""
        return None if self.interpretation == "overlap" and self.markers else replace(self, interpretation="local")

    @property
    def by_end(self) -> bool:
        """Whether windows with one start may have several ends, so that start and end identify a row."""
        return self.interpretation != "overlap"

    @property
    def waits(self) -> bool:
        """Whether windows wait for missing nodes, unless `on_missing` is 'skip'."""
        return self.interpretation in {"order", "central"}

    def group_cut(self, *, skips: bool) -> PunctuationCut:
        """The cut of groups of such queries. skips: windows do not wait for missing nodes."""
        leading = self.leading == "open"
        return PunctuationCut(self.interpretation, skips, leading, self.markers, self.punctuation_id.rstrip())
