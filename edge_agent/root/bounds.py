"""Bounds the state that children can make the root keep. State beyond a bound is joined or dropped. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from edge_agent.algebra.frame import LOST, Gap
from edge_agent.algebra.query.key import QueryKey

MOST_SERVED: Final = 20_000  # revisions of a group that no member serves any more
MOST_GONE: Final = 20_000  # leaves that were behind when they left their group; they may return
MOST_SENSORS: Final = 20_000  # definitions of sensors of a child, for each gateway below it
MOST_GAPS: Final = 20_000  # gap records
MOST_UNDATED: Final = 1_000  # gap records that touch no window

Gaps = list[tuple[str, Gap]]  # (the child that declared it, the record)


def bounded_gaps(gaps: Gaps) -> Gaps:
    """Joins gap records until there are at most MOST_GAPS. Of those that touch no window the last MOST_UNDATED stay.

    A joined record covers the time from the first start to the last end. Records with equal child, groups, leaves and
    reason are joined first; if that is not enough, all records of the child with the most.
    """
    if len(gaps) <= min(MOST_GAPS, MOST_UNDATED):
        return gaps
    undated = [i for i, (_, gap) in enumerate(gaps) if gap.end_us <= gap.start_us]
    dropped = set(undated[: max(len(undated) - MOST_UNDATED, 0)])
    kept = [each for i, each in enumerate(gaps) if i not in dropped]
    if len(kept) <= MOST_GAPS:
        return kept
    alike: dict[object, Gaps] = {}
    for node, gap in kept:
        dated = gap.end_us > gap.start_us
        alike.setdefault((node, gap.groups, gap.nodes, gap.reason, dated), []).append((node, gap))
    joined = [(found[0][0], _joined([gap for _, gap in found])) for found in alike.values()]
    while len(joined) > MOST_GAPS:
        by_child: dict[str, list[Gap]] = {}
        for node, gap in joined:
            by_child.setdefault(node, []).append(gap)
        child = max(by_child, key=lambda node: len(by_child[node]))
        if len(by_child[child]) == 1:
            break
        joined = [(node, gap) for node, gap in joined if node != child] + [(child, _joined(by_child[child]))]
    return joined


def _joined(gaps: list[Gap]) -> Gap:
    """Join gap records into one. It names leaves only if every record names some."""
    if len(gaps) == 1:
        return gaps[0]
    first, dated = gaps[0], [gap for gap in gaps if gap.end_us > gap.start_us]
    groups = tuple(dict.fromkeys(group for gap in gaps for group in gap.groups))
    nodes = tuple(sorted({node for gap in gaps for node in gap.nodes})) if all(gap.nodes for gap in gaps) else ()
    reason = first.reason if all(gap.reason == first.reason for gap in gaps) else LOST
    start_us = min((gap.start_us for gap in dated), default=first.start_us)
    return Gap(groups, start_us, max((gap.end_us for gap in dated), default=first.end_us), -1, nodes, reason)


def surplus(held: Iterable[QueryKey], stated: Mapping[QueryKey, object]) -> list[QueryKey]:
    """The oldest revisions of a group, beyond MOST_SERVED, that no member serves. stated: revisions that are served."""
    unserved = [key for key in held if key not in stated]
    return unserved[: max(len(unserved) - MOST_SERVED, 0)]


def newest(times: Mapping[str, int], most: int) -> dict[str, int]:
    """The last `most` entries."""
    return dict(list(times.items())[-most:]) if len(times) > most else dict(times)
