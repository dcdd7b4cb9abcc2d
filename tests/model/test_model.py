"""Rule 3.8 in the model: no journal that is lost costs a reading, and each part of the rule is needed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.model.rows import in_cut, limited, united
from tests.model.world import Faults, Rules, World

SHOWN_BY = {"settled": 0, "cut": 0, "fence": 26, "whole_steps": 19}  # rule -> a seed that shows what it is for
MANY_LOSSES = Faults(lost=0.012)


def violations(seed: int, rules: Rules | None = None, faults: Faults | None = None) -> set[str]:
    """What went wrong in one run."""
    return {what for what, _, _ in World(seed, rules or Rules(), faults or Faults()).run().checks.found}


@pytest.mark.seeded
def test_lost_journals_moves_and_crashes_cost_nothing_and_nothing_counts_twice() -> None:
    """protocol 3.8, 1.5: no loss, not even a declared one."""
    happened: Counter[str] = Counter()
    for seed in range(6):
        world = World(seed).run()
        assert not world.checks.found, seed
        assert not world.root.lost_ids
        happened += world.happened
    assert happened["journal lost"] > 5
    assert happened["crash"] > 5


@pytest.mark.seeded
def test_frames_that_a_quota_drops_are_the_only_ones_lost() -> None:
    """protocol 3.5, 3.8."""
    for seed in range(20, 23):
        assert not violations(seed, faults=Faults(quota=0.005)), seed


@pytest.mark.parametrize("rule", SHOWN_BY)
def test_without_a_part_of_the_rule_readings_are_lost_or_count_twice(rule: str) -> None:
    """protocol 3.8: the control."""
    assert violations(SHOWN_BY[rule], Rules(**{rule: False}), MANY_LOSSES)


def test_a_cut_is_what_one_of_its_pairs_contains() -> None:
    """protocol 3.8: of frames up to an index all rows that end at or before a time."""
    cut = united(((5, 40), (3, 30)), ((2, 90),))
    assert cut == ((5, 40), (2, 90))
    assert in_cut(cut, 2, 80)
    assert not in_cut(cut, 3, 80)
    assert in_cut(cut, 5, 40)
    assert limited(cut, 50) == ((5, 40), (2, 50))
