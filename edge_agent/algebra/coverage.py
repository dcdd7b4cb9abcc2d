"""Coverage: which leaves the row of a window contains and which are missing (docs/protocol.md 4.7)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from edge_agent.algebra.frame import BEGAN, ENDED, LOST, Gap
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.query import Group


@dataclass(frozen=True, slots=True)
class Coverage:
    """The leaves of one row. expected: those that should be in it. missing: (leaf, reason); both sorted by leaf.

    A leaf may be missing without being expected: it declared a loss and has left the group since. Rows that the loss
    touches are not complete.
    """

    expected: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]

    @property
    def received(self) -> int:
        """Number of expected leaves in the row."""
        return len(self.expected) - sum(self._expects(leaf) for leaf in {leaf for leaf, _ in self.missing})

    def _expects(self, leaf: str) -> bool:
        at = bisect_left(self.expected, leaf)
        return at < len(self.expected) and self.expected[at] == leaf

    def also_behind(self, leaves: Iterable[str]) -> Coverage:
        """With the expected ones of these leaves missing."""
        more = {(leaf, "behind") for leaf in leaves if self._expects(leaf)}
        return Coverage(self.expected, tuple(sorted({*self.missing, *more}))) if more else self

    @property
    def complete(self) -> bool:
        """Whether all expected leaves are in the row and no gap record touches it."""
        return not self.missing


def window_coverage(
    leaves: Mapping[str, int],
    gaps: Iterable[Gap],
    group: Group,
    start_us: int,
    end_us: int,
    *,
    begins: Mapping[str, int] = MappingProxyType({}),
    ends: Mapping[str, int] = MappingProxyType({}),
    since: Mapping[str, int] = MappingProxyType({}),
) -> Coverage:
    """Coverage of the window [start, end). leaves: leaf -> its frontier. gaps: all known gap records.

    begins: leaf -> first window start that it serves, for leaves that joined the query late. ends: leaf -> latest
    window end that it serves, for leaves that removed the query early. A leaf is not expected in windows that end at or
    before its `begins`, or that start at or after its `ends` (docs/protocol.md 4.5).

    since: leaf -> first window start that it served before, for leaves that state a later one now. Gap records of such
    a leaf still mark the earlier windows.

    Reasons why an expected leaf is missing: 'behind' (its frontier is below the end of the window), 'lost' (a gap
    record of the group overlaps the window), 'began' (it begins within the window, so the row contains only its later
    readings; or a gap record with that reason overlaps) and 'ended' (it ends within the window). A gap record without
    nodes concerns all leaves.
    """
    expected, _, missing = _lacking(LeafTimes.of(leaves), start_us, end_us, begins, ends)
    served = {**begins, **since} if since else begins
    for gap in gaps:
        if group in gap.groups and gap.start_us < end_us and gap.end_us > start_us:
            why, whole = _reason(gap), (leaf for leaf in gap.nodes or expected if ends.get(leaf, end_us) >= end_us)
            missing.update((leaf, why) for leaf in whole if served.get(leaf, start_us) <= start_us)
    return Coverage(expected, tuple(sorted(missing)))


def session_coverage(
    bounds: Mapping[str, int],
    gaps: Iterable[Gap],
    group: Group,
    first_us: int,
    last_us: int,
    *,
    begins: Mapping[str, int] = MappingProxyType({}),
    ends: Mapping[str, int] = MappingProxyType({}),
    since: Mapping[str, int] = MappingProxyType({}),
) -> Coverage:
    """Coverage of a session of one key, from its first to its last reading. bounds: leaf -> its bound for that key.

    A leaf is missing with reason 'behind' until its bound is above last + gap, because it may still extend the session.
    Gap records count up to and including last + gap (docs/protocol.md 4.7), also those of a leaf that has left since.

    begins, ends: as in window_coverage, but compared with first - gap and last + gap, because readings of the leaf in
    that range might belong to the session. A leaf that begins within the range is missing with reason 'began', a leaf
    that ends within it with 'ended'; a leaf that begins after it or ends before it is not expected.
    """
    end_us, low_us = last_us + group.cut.gap_us, first_us - group.cut.gap_us
    expected, unserved, missing = _lacking(LeafTimes.of(bounds), low_us, end_us + 1, begins, ends)
    for gap in gaps:
        if group in gap.groups and gap.start_us <= end_us and gap.end_us > low_us:
            served = (leaf for leaf in gap.nodes if leaf not in unserved or since.get(leaf, low_us + 1) <= low_us)
            nodes = served if gap.nodes else expected
            missing.update((leaf, _reason(gap)) for leaf in nodes)
    return Coverage(expected, tuple(sorted(missing)))


def _lacking(
    times: LeafTimes, start_us: int, end_us: int, begins: Mapping[str, int], ends: Mapping[str, int]
) -> tuple[tuple[str, ...], set[str], set[tuple[str, str]]]:
    """(expected leaves of [start, end), in order; leaves that do not serve it; missing leaves, ignoring gap records).

    Only leaves that differ from the others are examined one by one, because most windows of a large fleet miss no leaf.
    """
    unserved = {leaf for leaf, us in begins.items() if us >= end_us}
    unserved.update(leaf for leaf, us in ends.items() if us <= start_us)
    expected = tuple(leaf for leaf in times.names if leaf not in unserved) if unserved else times.names
    missing = {(leaf, "behind") for leaf in times.below(end_us)}
    missing.update((leaf, BEGAN) for leaf, us in begins.items() if us > start_us and leaf in times)
    missing.update((leaf, ENDED) for leaf, us in ends.items() if us < end_us and leaf in times)
    return expected, unserved, {(leaf, why) for leaf, why in missing if leaf not in unserved} if unserved else missing


def _reason(gap: Gap) -> str:
    return BEGAN if gap.reason == BEGAN else LOST
