"""Gateways whose spool holds keys and open rows in many small slots, killed again and again."""

from __future__ import annotations

import pytest

from edge_agent.machines.checkpoint import append_only, paged_rows
from tests.support.effort import seeds
from tests.support.simulation.faults import crashing
from tests.support.simulation.fleets import fleets


@pytest.mark.seeded
@pytest.mark.parametrize("sessions", [False, True])
def test_what_lies_in_slots_of_its_own_comes_back_whole(monkeypatch: pytest.MonkeyPatch, sessions: bool) -> None:
    """protocol 1.3, 3.1: with slots of one key each; nothing is lost, nothing of an older commit comes back."""
    monkeypatch.setattr(append_only, "SLOT_TEXTS", 1)
    monkeypatch.setattr(paged_rows, "PAGE_KEYS", 1)
    monkeypatch.setattr(paged_rows, "MANY_ROWS", 1)
    assert fleets(seeds(4_000, 4), crashing, changes=not sessions, sessions=sessions) == []
