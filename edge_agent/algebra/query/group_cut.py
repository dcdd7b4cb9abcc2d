"""How the readings of a group are cut into windows: by time, by sessions, by order or by markers.

The text form of a cut is part of frames, checkpoints, plan hashes and the sort order of groups. It is converted here
because wire/ and machines/ both need it and may not import each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

INTERPRETATIONS: Final = ("local", "bounds", "order", "overlap", "central")
_MARKERS: Final = "markers"  # first word of the text of a PunctuationCut
_SKIPS: Final = "/skip"  # suffix of the interpretation if windows do not wait for missing nodes
_COMMANDS: Final = "."  # the marker source if commands give the markers
_LEADING: Final = {False: "drop", True: "open"}


class _Cut:
    """The properties of every cut; a type overrides those in which it differs."""

    __slots__ = ()

    @property
    def gap_us(self) -> int:
        """Greatest distance at which pieces of a window join; children then send hints. 0: pieces do not join."""
        return 0

    @property
    def max_us(self) -> int:
        """Maximum duration of joined windows, which are cut at its multiples since 1970; 0: none."""
        return 0

    @property
    def central(self) -> bool:
        """Whether the root merges the markers of all nodes, and cuts one stream of all readings by them."""
        return False

    @property
    def numbered(self) -> bool:
        """Whether the root merges windows by number: the i-th windows of all nodes are one."""
        return False

    @property
    def skips(self) -> bool:
        """Whether windows do not wait for missing nodes."""
        return False

    @property
    def plan_kinds(self) -> tuple[str, ...]:
        """Values of Plan.kind that a group with this cut may have. Rows of another kind would be kept for no query."""
        return ("slice", "window")

    @property
    def text(self) -> str:
        """The text form, without gap_us and max_us; see `cut_from_text`."""
        return ""


@dataclass(frozen=True, slots=True)
class TimeCut(_Cut):
    """Windows by time: their bounds follow from the definition alone."""


@dataclass(frozen=True, slots=True)
class SessionCut(_Cut):
    """Sessions. gap_us (> 0), max_us: as in algebra.windows.session.Session."""

    gap_us: int = field()  # without field(), the property of _Cut would be taken as the default
    max_us: int = 0

    @property
    def plan_kinds(self) -> tuple[str, ...]:
        return ("session",)


@dataclass(frozen=True, slots=True)
class OrderedCut(_Cut):
    """Windows by the order of readings: nodes send raw readings, and the root orders them and forms the windows."""

    @property
    def plan_kinds(self) -> tuple[str, ...]:
        return ("raw",)

    @property
    def text(self) -> str:
        return "raw"


@dataclass(frozen=True, slots=True)
class PunctuationCut(_Cut):
    """Windows from marker to marker.

    interpretation: as in algebra.windows.punctuation.Punctuation. skips: whether windows do not wait for missing nodes.
    leading: whether the first reading opens a window if no marker precedes it. marker_source: the sensor whose changes
    of value are the markers, '' if commands give them. marker_id: only markers with this id count, '' for all.
    """

    interpretation: str
    skips: bool = False
    leading: bool = False
    marker_source: str = ""
    marker_id: str = ""

    @property
    def gap_us(self) -> int:
        """1 us if overlapping or touching windows are one: pieces [start, end) then join as in sessions. Else 0."""
        return 1 if self.interpretation == "overlap" else 0

    @property
    def central(self) -> bool:
        return self.interpretation == "central"

    @property
    def numbered(self) -> bool:
        return self.interpretation == "order"

    @property
    def plan_kinds(self) -> tuple[str, ...]:
        """If the root cuts: raw readings and markers. Else partials, and a marker row for each window."""
        return ("raw" if self.central else "window", "marker")

    @property
    def text(self) -> str:
        """`markers <interpretation>[/skip] <drop or open> <marker source or .> <marker id>`, right-stripped."""
        merged = self.interpretation + (_SKIPS if self.skips else "")
        source = self.marker_source or _COMMANDS
        return f"{_MARKERS} {merged} {_LEADING[self.leading]} {source} {self.marker_id}".rstrip()


GroupCut = TimeCut | SessionCut | OrderedCut | PunctuationCut
BY_TIME: Final = TimeCut()


def cut_from_text(gap_us: int, max_us: int, text: str) -> GroupCut:
    """The cut with these values of `gap_us`, `max_us` and `text`. Raises: ValueError for other values."""
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
        raise ValueError("form, gap and maximum duration of a group contradict each other")
    return cut
