"""A small kill storm in every run; the large one is `make storm`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.landed_root import LandedRoot
from tests.faults.storm import Outcome, compare, storm
from tests.faults.tree import SECOND, Plan, Tree

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_after_kills_of_every_role_no_reading_is_lost_and_none_counts_twice(tmp_path: Path) -> None:
    """protocol 3.1 to 3.4, 1.3: real processes, brokers at their defaults."""
    small = Plan(regions=1, gateways=2, keys=400, tick_s=2.0, rhythm="200ms")
    outcome = storm(tmp_path, small, kills=8, seed=3, pause_s=0.8)
    assert outcome.readings > 1_000
    assert outcome.exact, outcome.summary()


def test_a_comparison_with_other_readings_is_not_exact(tmp_path: Path) -> None:
    """A control: without any row all readings are lost, and with rows of nothing they are wrong."""
    tree = Tree(tmp_path, Plan(regions=1, gateways=1, keys=10, tick_s=1.0))
    outcome, until_us = Outcome(), tree.begin_us + 10 * SECOND
    compare(outcome, tree, LandedRoot(tree.landing), until_us)
    assert outcome.unsettled
    assert outcome.lost == outcome.readings > 1_900
    assert not outcome.exact
