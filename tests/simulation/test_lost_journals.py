"""Mergers that lose their spools in a simulated fleet: nobody is mute, nothing counts twice, losses are declared."""

from __future__ import annotations

import pytest

from tests.support.effort import seeds
from tests.support.simulation.fleets import quickly
from tests.support.simulation.journal_fleets import CHANGED, JournalFleet
from tests.support.simulation.world import MS, Chaos


def fleets(first: int, count: int, chaos: Chaos) -> list[JournalFleet]:
    """Those that have mergers and readings."""
    drawn = [JournalFleet(seed, chaos) for seed in seeds(first, count)]
    return [fleet for fleet in drawn if fleet.mergers and any(fleet.truth.values())]


@pytest.mark.seeded
def test_a_spool_that_is_lost_makes_no_child_mute_and_no_row_wrong_that_says_it_is_complete() -> None:
    """protocol 3.7"""
    changed = declared = 0
    for fleet in fleets(1, 4, Chaos(delay_us=20 * MS)):
        assert quickly(fleet) == [], fleet.world.seed
        changed += fleet.noted(CHANGED)
        declared += fleet.declared
    assert changed > 3
    assert declared > 3


@pytest.mark.seeded
def test_the_same_on_links_that_lose_and_repeat_with_crashes() -> None:
    """protocol 3.7, 1.2"""
    for fleet in fleets(40, 3, Chaos(drop=0.1, repeat=0.1, crash=0.002, delay_us=20 * MS)):
        assert quickly(fleet) == [], fleet.world.seed
