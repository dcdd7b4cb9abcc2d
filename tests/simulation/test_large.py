"""The large mode in small: a hundred gateways below real mergers that are killed, every row exact."""

from __future__ import annotations

import pytest

from tests.support.simulation import cost_plot
from tests.support.simulation.large import LargeFleet
from tests.support.simulation.steady_gateways import SteadyGateway


def test_every_row_is_exact_while_mergers_and_gateways_are_killed() -> None:
    """protocol 2, 3, 4"""
    fleet = LargeFleet(1, gateways=120, mergers=3, tiers=3, seconds=600)
    assert fleet.run() == []
    assert sum(fleet.world.crashes.values()) > 3
    assert len({(row.key, row.start) for row in fleet.root_host.rows}) == 3 * 10


def test_stand_ins_that_let_a_frame_go_before_its_receipt_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: what is lost on the way must show."""
    publish = SteadyGateway._publish

    def once(self: SteadyGateway, payload: bytes, now_us: int) -> None:
        publish(self, payload, now_us)
        self.spool = {seq: (kept, now_us + 10**12) for seq, (kept, _) in self.spool.items()}  # never again

    monkeypatch.setattr(SteadyGateway, "_publish", once)
    assert LargeFleet(1, gateways=120, mergers=3, tiers=3, seconds=300).run()


def test_the_plot_has_a_point_for_each_size() -> None:
    text = cost_plot.drawn([(102, 3.1), (1_011, 30.0), (10_101, 310.0)], 3_600)
    assert text.count("<circle") == 3
    assert "31 ms a node" in text
