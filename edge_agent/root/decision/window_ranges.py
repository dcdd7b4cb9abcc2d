"""Joins ranges of window ends, and cuts a range of windows where its coverage changes. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from edge_agent.algebra.coverage import Coverage, window_coverage
from edge_agent.algebra.frame import BEGAN, Gap
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.query import Group
from edge_agent.root.decision.work import TableRow, WindowRange

Ranges = list[tuple[int, int]]  # in order: of us, (after, upto] or [low, high); of seqs, both ends included
MOST_RANGES: Final = 32  # per query; beyond, neighbours are joined, so that some windows are computed again in vain
# Gap records of equal leaves within a range of windows; beyond, windows between neighbours are marked too.
MOST_RECORDS: Final = 256


@dataclass(frozen=True, slots=True)
class CoverageRef:
    """A coverage with its id in ops.coverage: a hash, so that equal coverages have the same id in every batch."""

    id: str
    coverage: Coverage

    @property
    def missing(self) -> tuple[tuple[str, str], ...]:
        """(leaf, reason) of the leaves that are missing."""
        return self.coverage.missing

    @classmethod
    def of(cls, coverage: Coverage) -> CoverageRef:
        """The reference of a coverage; its id is a hash of the coverage."""
        found = _hash_of(coverage.expected).copy()
        found.update(f"{coverage.missing!r})".encode())
        return cls(found.hexdigest(), coverage)


@lru_cache(maxsize=64)
def _hash_of(expected: tuple[str, ...]) -> hashlib.blake2b:
    """The first part of a coverage's hash, cached: many windows and groups expect the same leaves."""
    return hashlib.blake2b(f"({expected!r}, ".encode(), digest_size=8)


def join(ranges: Iterable[tuple[int, int]], most: int = MOST_RANGES) -> Ranges:
    """Sort ranges (after, upto] and join those that touch. Beyond `most` the nearest neighbours are joined too.

    >>> join([(5, 7), (0, 2), (2, 3), (6, 9)])
    [(0, 3), (5, 9)]
    """
    out: Ranges = []
    for after, upto in sorted(ranges):
        if out and after <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], upto))
        else:
            out.append((after, upto))
    if len(out) <= most:
        return out
    apart = sorted(range(1, len(out)), key=lambda i: (out[i][0] - out[i - 1][1], i))
    firsts = [0, *sorted(apart[len(out) - most :])]
    return [(out[i][0], out[k - 1][1]) for i, k in pairwise((*firsts, len(out)))]


def runs(gaps: Iterable[Gap], group: Group, most: int = MOST_RANGES) -> list[Gap]:
    """The gap records of a group, with those of equal leaves joined as ranges are; most: how many for equal leaves.

    Work on a decision grows with their square, and a child may declare as many as it likes. Of the reasons only `began`
    differs from the others in a coverage.
    """
    alike: dict[tuple[object, ...], list[Gap]] = {}
    for gap in gaps:
        if group in gap.groups:
            alike.setdefault((gap.reason == BEGAN, *sorted({*gap.nodes})), []).append(gap)
    return [
        found[0] if len(found) == 1 else replace(found[0], start_us=start_us, end_us=end_us)
        for found in alike.values()
        for start_us, end_us in join([(gap.start_us, gap.end_us) for gap in found], most)
    ]


def covers(
    whole: WindowRange,
    group: Group,
    leaves: LeafTimes,
    gaps: tuple[Gap, ...],
    begins: Mapping[str, int],
    *,
    ends: Mapping[str, int] = MappingProxyType({}),
    since: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[tuple[WindowRange, CoverageRef]]:
    """Cut a range of windows where its coverage changes: at frontiers of leaves and around gap records (4.7).

    begins, ends, since: see window_coverage.
    """
    length_us = whole.length_us
    inside = [gap for gap in gaps if gap.start_us < whole.upto_us and gap.end_us + length_us > whole.after_us]
    near = runs(inside, group, MOST_RECORDS)
    shares = {*begins.values(), *ends.values(), *since.values()}
    cuts = {whole.upto_us, *leaves.distinct(), *shares, *(us + length_us - 1 for us in shares)}
    for gap in near:
        cuts |= {gap.start_us, gap.end_us + length_us - 1}
    after_us = whole.after_us
    pieces: list[tuple[int, int, Coverage]] = []
    for cut_us in sorted(cuts):
        if not whole.after_us < cut_us <= whole.upto_us:
            continue
        coverage = window_coverage(
            leaves, near, group, cut_us - length_us, cut_us, begins=begins, ends=ends, since=since
        )
        if pieces and pieces[-1][2] == coverage:
            pieces[-1] = (pieces[-1][0], cut_us, coverage)
        else:
            pieces.append((after_us, cut_us, coverage))
        after_us = cut_us
    for after_us, upto_us, coverage in pieces:
        cover = CoverageRef.of(coverage)
        yield (
            replace(
                whole,
                after_us=after_us,
                upto_us=upto_us,
                low_us=max(whole.low_us, after_us + 1 - length_us),
                high_us=min(whole.high_us, upto_us - length_us),
                coverage_id=cover.id,
                expected=len(coverage.expected),
                received=coverage.received,
                complete=coverage.complete,
            ),
            cover,
        )


def coverage_rows(cover: CoverageRef, number: int) -> list[TableRow]:
    """The rows of ops.coverage for a coverage."""
    return [
        {"coverage_id": cover.id, "leaf": leaf, "reason": reason, "batch": number} for leaf, reason in cover.missing
    ]
