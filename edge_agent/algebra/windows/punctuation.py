"""Punctuation windows: from marker to marker. Where they begin and end is in the stream, not in the definition.

Source: the thesis on Disco, section 3.2, has the readings of markers over several nodes (docs/how-it-works.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from edge_agent.algebra.windows.base import Setting, Wrong

INTERPRETATIONS: Final = ("local", "bounds", "order", "overlap", "central")
COMMANDS: Final = "."  # in a form, where no sensor gives the markers
SKIPS: Final = "/skip"  # behind an interpretation
FORM: Final = "markers"  # what the form of a group of such queries begins with


@dataclass(frozen=True, slots=True)
class Punctuation:
    """Windows [p_i, p_i+1) between markers; from a 'start' marker to an 'end' marker where these are explicit.

    interpretation: what is one window of several nodes. 'local': every gateway's own; 'bounds': those of equal bounds;
    'order': the i-th of every node; 'overlap': those that overlap or touch; 'central': markers of all nodes cut one
    stream, as at one central computer. leading: whether the first reading before
    any marker opens a window ('open'), or is in none ('drop'). punctuation_id: only markers of that id, '' for all.
    markers: id of a sensor whose changes of value are the markers (with the value as id; overlapping windows begin with
    a value other than 0 and end with 0), '' for those of commands.
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
        """Nothing that its keys cannot show."""
        return None

    @property
    def gap_us(self) -> int:
        """Windows that overlap or touch are one, as pieces [start, end) of sessions 1 us apart are."""
        return 1 if self.interpretation == "overlap" else 0

    @property
    def own(self) -> bool:
        """Whether every gateway has a group of its own: nothing of it merges below the root."""
        return self.interpretation in {"local", "order"}

    @property
    def alone(self) -> Punctuation | None:
        """The same windows of every gateway alone, for scope 'local'; None: a sensor's changes are no other markers."""
        return None if self.interpretation == "overlap" and self.markers else replace(self, interpretation="local")

    @property
    def by_end(self) -> bool:
        """Whether windows of one start may have several ends, so that both name a row."""
        return self.interpretation != "overlap"

    @property
    def waits(self) -> bool:
        """Whether it waits for nodes that are left out, unless the query says otherwise."""
        return self.interpretation in {"order", "central"}

    @property
    def form(self) -> str:
        """What separates groups: equal only where markers make the same windows."""
        return self.form_of(skips=False)

    def form_of(self, *, skips: bool) -> str:
        """The same. skips: nodes that are left out hold nothing back."""
        merged, source = self.interpretation + (SKIPS if skips else ""), self.markers or COMMANDS
        return f"{FORM} {merged} {self.leading} {source} {self.punctuation_id}".rstrip()
