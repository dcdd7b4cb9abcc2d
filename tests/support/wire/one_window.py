"""The smallest useful frame: one window of a few keys."""

from __future__ import annotations

import numpy as np

from edge_agent.algebra.frame import Frame, GroupPart, Section
from edge_agent.algebra.partials.partial import Partials

SECOND = 1_000_000
START = 1_790_000_000 * SECOND


def one_window(keys: int, seq: int = 1_000, frontier_us: int = START + 1_234_567, seed: int = 1) -> Frame:
    """A frame of one tumbling 1 s avg window: count of at most 255 and a float sum for each key."""
    random = np.random.default_rng(seed)
    start = np.full(keys, START)
    states = {"count": random.integers(100, 256, keys), "sum": random.normal(20, 5, keys) * 200}
    section = Section(0, Partials(start, start + SECOND, np.arange(keys), states))
    return Frame(0xDEADBEEF, seq, groups=(GroupPart(0, frontier_us, (section,)),))
