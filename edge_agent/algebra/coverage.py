"""Which leaves a window's row contains and which are missing (docs/protocol.md 4.7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edge_agent.algebra.frame import Gap
from edge_agent.algebra.query import Group


@dataclass(frozen=True, slots=True)
class Coverage:
    """expected: leaves that should be in the row. missing: (leaf, reason), sorted; received = expected - missing."""

    expected: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]

    @property
    def received(self) -> int:
        """How many of the expected leaves are in the row."""
        return len(self.expected) - len({leaf for leaf, _ in self.missing})

    @property
    def complete(self) -> bool:
        """All expected leaves are in it and no gap record touches it."""
        return not self.missing


def window_coverage(
    leaves: Mapping[str, int], gaps: Iterable[Gap], group: Group, start_us: int, end_us: int
) -> Coverage:
    """Coverage of [start, end). leaves: expected leaf -> frontier; gaps: the declared losses known.

    A leaf is missing with reason 'behind' while its frontier lies below the end, with 'lost' where a gap record of the
    group covers a part of the window. A gap that names no nodes concerns every leaf.
    """
    missing = {(leaf, "behind") for leaf, frontier_us in leaves.items() if frontier_us < end_us}
    for gap in gaps:
        if group in gap.groups and gap.start_us < end_us and gap.end_us > start_us:
            missing.update((leaf, "lost") for leaf in gap.nodes or leaves)
    return Coverage(tuple(sorted(leaves)), tuple(sorted(missing)))
