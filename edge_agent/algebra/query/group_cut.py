"""How the readings of a group are cut into windows: one type for each way.

The text of a cut is part of frames, checkpoints, plan hashes and the order of groups. It is converted here and nowhere
else: frames are wire/'s and checkpoints are machines/', which may not import each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

INTERPRETATIONS: Final = ("local", "bounds", "order", "overlap", "central")
_MARKERS: Final = "markers"  # first word of the text of a PunctuationCut
_SKIPS: Final = "/skip"  # suffix of its interpretation
_COMMANDS: Final = "."  # its marker source where no sensor is one
_LEADING: Final = {False: "drop", True: "open"}


class _Cut:
    """The properties of every cut, as they are where a type does not override them."""

    __slots__ = ()

    @property
    def gap_us(self) -> int:
        """Pieces of a window at most that far apart join, and hints announce the next one; 0: no pieces join."""
        return 0

    @property
    def max_us(self) -> int:
        """Windows that join end at its multiples since 1970; 0: no longest duration."""
        return 0

    @property
    def central(self) -> bool:
        """Whether the markers of all nodes cut one stream, at the root."""
        return False

    @property
    def numbered(self) -> bool:
        """Whether the root merges the i-th windows of all nodes."""
        return False

    @property
    def skips(self) -> bool:
        """Whether windows do not wait for nodes that are left out."""
        return False

    @property
    def plan_kinds(self) -> tuple[str, ...]:
        """The values of Plan.kind that a group of this cut may have."""
        return ("slice", "window", "session", "marker")

    @property
    def text(self) -> str:
        """The text form, without gap_us and max_us; see `cut_from_text`."""
        return ""


@dataclass(frozen=True, slots=True)
class TimeCut(_Cut):
    """Windows follow from the definition alone."""


@dataclass(frozen=True, slots=True)
class SessionCut(_Cut):
    """Sessions. gap_us > 0, max_us: see algebra.windows.session.Session."""

    gap_us: int = field()  # no default: without field() it would be the property of _Cut
    max_us: int = 0


@dataclass(frozen=True, slots=True)
class OrderedCut(_Cut):
    """Readings travel raw; the root puts those of all nodes in order and forms the windows."""

    @property
    def plan_kinds(self) -> tuple[str, ...]:
        """Raw readings only."""
        return ("raw",)

    @property
    def text(self) -> str:
        """See `cut_from_text`."""
        return "raw"


@dataclass(frozen=True, slots=True)
class PunctuationCut(_Cut):
    """Windows from marker to marker.

    interpretation: what is one window of several nodes, see algebra.windows.punctuation.Punctuation. leading: the first
    reading before any marker opens a window. marker_source: the sensor whose changes of value are the markers, '' for
    markers of commands. marker_id: only markers of that id count, '' for all.
    """

    interpretation: str
    skips: bool = False
    leading: bool = False
    marker_source: str = ""
    marker_id: str = ""

    @property
    def gap_us(self) -> int:
        """Windows that overlap or touch are one, as pieces [start, end) of sessions 1 us apart are."""
        return 1 if self.interpretation == "overlap" else 0

    @property
    def central(self) -> bool:
        """Whether the markers of all nodes cut one stream, at the root."""
        return self.interpretation == "central"

    @property
    def numbered(self) -> bool:
        """Whether the root merges the i-th windows of all nodes."""
        return self.interpretation == "order"

    @property
    def plan_kinds(self) -> tuple[str, ...]:
        """Raw readings and markers where the root cuts; else partials, and a marker row for each window."""
        return ("raw", "marker") if self.central else ("slice", "window", "session", "marker")

    @property
    def text(self) -> str:
        """`markers <interpretation>[/skip] <drop or open> <marker source or .> <marker id>`, no blank at the end."""
        merged = self.interpretation + (_SKIPS if self.skips else "")
        source = self.marker_source or _COMMANDS
        return f"{_MARKERS} {merged} {_LEADING[self.leading]} {source} {self.marker_id}".rstrip()


GroupCut = TimeCut | SessionCut | OrderedCut | PunctuationCut
BY_TIME: Final = TimeCut()


def cut_from_text(gap_us: int, max_us: int, text: str) -> GroupCut:
    """The cut with these values of `gap_us`, `max_us` and `text`. Raises: ValueError if there is none."""
    cut: GroupCut
    match text.split(" ", 4):
        case [""]:
            cut = SessionCut(gap_us, max_us) if gap_us else TimeCut()
        case ["raw"]:
            cut = OrderedCut()
        case [word, merged, leading, source, *rest] if word == _MARKERS:
            interpretation = merged.removesuffix(_SKIPS)
            if interpretation not in INTERPRETATIONS:
                raise ValueError("unknown interpretation of markers")
            cut = PunctuationCut(
                interpretation,
                merged.endswith(_SKIPS),
                leading == _LEADING[True],
                "" if source == _COMMANDS else source,
                "".join(rest),
            )
        case _:
            raise ValueError("unknown form of a group")
    if (cut.gap_us, cut.max_us, cut.text) != (gap_us, max_us, text):
        raise ValueError("form, gap and maximum duration of a group do not go together")
    return cut
