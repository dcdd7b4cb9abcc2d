"""Definitions that change while a fleet runs: no window mixes two revisions, whoever learns of it when."""

from __future__ import annotations

import pytest

from tests.simulation.altering import altering
from tests.simulation.test_fleets import calm, everything, lossy

SEEDS = 6


@pytest.mark.parametrize("chaos", [calm, lossy])
def test_a_revision_said_ahead_holds_from_its_time_on_and_no_row_is_lost(chaos: object) -> None:
    """protocol 6.3: every window that starts before it is the old revision's, every later one the new one's."""
    assert callable(chaos)
    assert altering(0, SEEDS, chaos, ahead=True) == []


@pytest.mark.parametrize("chaos", [calm, lossy])
def test_sessions_are_cut_where_a_revision_holds_also_one_of_another_gap(chaos: object) -> None:
    """protocol 6.3, 5.3: another gap is another group; the old one ends its sessions there, none is left open."""
    assert callable(chaos)
    assert altering(100, SEEDS, chaos, ahead=True, sessions=True) == []


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("chaos", [calm, lossy, everything])
def test_a_complete_row_is_of_one_revision_whenever_a_gateway_hears_of_the_new_one(chaos: object, late: bool) -> None:
    """protocol 6.3, 4.5, 4.7: a gateway that comes later is not expected before, and missing where it begins within."""
    assert callable(chaos)
    assert altering(200, SEEDS, chaos, ahead=False, late=late) == []
