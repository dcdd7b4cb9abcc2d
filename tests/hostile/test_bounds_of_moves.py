"""What is noted about gateways on their way from one parent to another has bounds."""

from __future__ import annotations

import pytest

from edge_agent.algebra.frame import Serving
from edge_agent.machines.downlink import moves as moves_module
from edge_agent.machines.downlink.moves import Moves


def test_ranges_of_gateways_on_their_way_take_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves_module, "MOST_SERVED", 2)
    monkeypatch.setattr(moves_module, "MOST_NOTED", 10)
    moves = Moves(transit={name: {} for name in ("g1", "g2", "g3")})
    for first in (0, 50):
        moves.note_ranges(moves.transit, [Serving("q", first + n) for n in range(8)])
    assert {name: len(ranges) for name, ranges in moves.served.items()} == {"g1": 10, "g2": 10}
