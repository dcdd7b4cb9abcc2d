"""Coverage: which leaves the row of a window contains and which are missing (docs/protocol.md 4.7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from edge_agent.algebra.frame import BEGAN, ENDED, LOST, Gap
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.query import Group


@dataclass(frozen=True, slots=True)
class Coverage:
    """expected: leaves that should be in the row. missing: (leaf, reason), sorted; received = expected - missing."""

    expected: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]

    @property
    def received(self) -> int:
        """Number of expected leaves in the row."""
        return len(self.expected) - len({leaf for leaf, _ in self.missing})

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
) -> Coverage:
    """Coverage of [start, end). leaves: leaf -> frontier. gaps: all known gap records; one without nodes concerns all.

    begins: leaf -> first window start that it serves, for leaves that joined the query late. Such a leaf is not
    expected in windows that end by then (docs/protocol.md 4.5). If it begins within the window, it is missing with
    reason 'began', because the row contains only its later readings. A leaf is missing with reason 'behind' while its
    frontier lies below the end, and with 'lost' if a gap record of the group covers a part of the window ('began' if
    that is the record's reason). ends: leaf -> latest window end that it serves, of those that removed the query before
    others did. Such a leaf is not expected in windows that start there or later, and it is missing with the reason
    'ended' where it ends within the window.
    """
    expected, _, missing = _lacking(LeafTimes.of(leaves), start_us, end_us, begins, ends)
    for gap in gaps:
        if group in gap.groups and gap.start_us < end_us and gap.end_us > start_us:
            why, whole = _reason(gap), (leaf for leaf in gap.nodes or expected if ends.get(leaf, end_us) >= end_us)
            missing.update((leaf, why) for leaf in whole if begins.get(leaf, start_us) <= start_us)
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
) -> Coverage:
    """Coverage of the session of readings first..last of one key. bounds: leaf -> its bound for that key.

    A leaf is missing with reason 'behind' while its bound is not past last + gap, because it may still extend the
    session; a gap record at last + gap touches it too (docs/protocol.md 4.7). begins: as for window_coverage, by
    readings. A leaf that begins less than a gap before the first reading, or later up to last + gap, is missing with
    reason 'began': its earlier readings might belong to the session. A leaf that begins later is not expected. ends: so
    too; its later readings, up to last + gap, might belong to the session.
    """
    end_us, low_us = last_us + group.cut.gap_us, first_us - group.cut.gap_us
    times = LeafTimes.of(bounds)
    expected, unserved, missing = _lacking(times, low_us, end_us + 1, begins, ends)
    for gap in gaps:
        if group in gap.groups and gap.start_us <= end_us and gap.end_us > low_us:
            nodes = (leaf for leaf in gap.nodes if leaf in times and leaf not in unserved) if gap.nodes else expected
            missing.update((leaf, _reason(gap)) for leaf in nodes)
    return Coverage(expected, tuple(sorted(missing)))


def _lacking(
    times: LeafTimes, start_us: int, end_us: int, begins: Mapping[str, int], ends: Mapping[str, int]
) -> tuple[tuple[str, ...], set[str], set[tuple[str, str]]]:
    """(expected leaves of [start, end), in order; leaves that do not serve it; missing leaves, without gap records).

    Single leaves are examined only where they differ from the others, because in a large fleet most windows miss
    nobody.
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
