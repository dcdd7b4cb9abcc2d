"""A small herd in every run; 200 agents are `make herd`."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.config.node_file.settings import parse
from edge_agent.runtime.links import link
from tests.faults.herd import MOST_A_SECOND, herd, most_in_a_second

NODE = '[node]\nid = "g1"\n[uplink]\nbroker = "{}://b"\n{}[spool]\npath = "g1.db"\n'


@pytest.mark.broker
@pytest.mark.slow
def test_gateways_come_back_one_after_the_other(tmp_path: Path) -> None:
    """Without a spread all 40 come back within the same half second."""
    with herd(tmp_path, 40, spread="8s") as agents:
        assert agents.up() == 40
        back_s = agents.restart(0.5)
        assert len(back_s) == 40
        assert most_in_a_second(back_s) <= MOST_A_SECOND
        assert back_s[-1] - back_s[0] > 4.0


@pytest.mark.parametrize(
    ("scheme", "line", "seconds"),
    [("mqtt", "", 0.0), ("mqtts", "", 30.0), ("mqtts", 'spread = "0s"\n', 0.0), ("mqtt", 'spread = "10m"\n', 600.0)],
)
def test_a_fleet_with_tls_comes_back_within_half_a_minute(scheme: str, line: str, seconds: float) -> None:
    settings = parse(NODE.format(scheme, line))
    assert settings.uplink is not None
    assert link(settings.uplink, "g1").spread_s == seconds
