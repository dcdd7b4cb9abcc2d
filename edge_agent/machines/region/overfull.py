"""Takes out merged rows that claim more readings than the gateways below can have (docs/protocol.md 7.1).

Each row of a child may be within the bound and their sum beyond it. The parent would refuse the whole frame, with the
rows of all other gateways. A row that several gateways share cannot be divided again, so it is declared lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from edge_agent.algebra.frame import LEAF_READINGS, MAX_LEAVES, Gap
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.row_counts import claimed, claimed_together
from edge_agent.algebra.partials.row_validation import HELD
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.sketches import kll

OVERFULL: Final = "a row has more readings than the gateways below can have"  # reason of a gap record
EXACT: Final = 2**53  # counts of values and their sum agree up to here, because tallies use floats
MOST_RANGES: Final = 64  # ranges of rows with a gap record each; more get one together


def split(rows: Partials, basis: tuple[str, ...], leaves: Callable[[], int]) -> tuple[Partials, Partials | None]:
    """(rows to send, rows that the parent would refuse; None: none). leaves: gateways that the parent knows below."""
    if not len(rows) or claimed(rows, basis) <= LEAF_READINGS:  # nearly always
        return rows, None
    most = LEAF_READINGS * max(1, min(leaves(), MAX_LEAVES))
    most = most if HELD.isdisjoint(basis) else min(most, EXACT)
    most = min(most, kll.MOST_READINGS) if "kll" in basis else most
    over = claimed_together(rows, basis) > most
    return (rows.take(~over), rows.take(over)) if over.any() else (rows, None)


def losses(group: Group, rows: Partials) -> Iterator[Gap]:
    """The gap records for rows that were taken out: one for each range, if there are not too many."""
    ranges = np.unique(np.stack([rows.start, rows.end], axis=1), axis=0)
    if len(ranges) > MOST_RANGES:
        ranges = np.array([[rows.start.min(), rows.end.max()]])
    yield from (Gap((group,), start_us, end_us, -1, (), OVERFULL) for start_us, end_us in ranges.tolist())
