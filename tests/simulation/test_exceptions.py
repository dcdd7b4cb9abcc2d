"""Worlds in which those who are left out do not fit into one frame (protocol 2.3)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.effort import exploring, seeds
from tests.support.simulation.trees import Shape, Tree
from tests.support.simulation.world import Chaos


@pytest.mark.seeded
def test_exceptions_that_go_by_their_changes_make_the_same_rows() -> None:
    found = Counter[str]()
    for seed in seeds(60, 6):
        chances = {"frames.step": 1.0, "frames.birth": 1.0, "frames.flush": 1.0, "clock.step": 0.03}
        tree = Tree(seed, Chaos.of(chances, 20_000, 250), Shape.of(seed))
        assert tree.run() == [], seed
        found += tree.world.faults.hits
    assert exploring() or found["frames.exceptions"] > 50
