"""Count and state windows in trees under every fault (protocol 7.4)."""

from __future__ import annotations

import pytest

from edge_agent.root.decision import ordered_queries
from tests.support.effort import seeds
from tests.support.simulation import programme
from tests.support.simulation.failpoints import GATE
from tests.support.simulation.ordered_trees import OrderedTree
from tests.support.simulation.trees import Shape

pytestmark = pytest.mark.seeded


def _wrong(seed: int) -> list[str]:
    return OrderedTree(seed, programme.chaos_of(seed, GATE), Shape.of(seed)).run()


@pytest.mark.parametrize("seed", seeds(0, 8))
def test_every_reading_has_one_position_or_is_late_or_lost_and_a_complete_window_has_all_of_its_time(seed: int) -> None:
    """protocol 7.4, 4.7"""
    assert _wrong(seed) == []


def test_a_window_that_a_gateway_joined_is_not_complete() -> None:
    """protocol 7.4"""
    assert _wrong(900008) == []


def test_a_root_that_forgets_who_joined_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: leaves count as in all windows that end after they were listed."""
    monkeypatch.setattr(ordered_queries, "passed", lambda *_: {})
    assert any(line.startswith("complete, and lacks") for line in _wrong(900008))
