"""Windows of one gateway and windows between markers in random fleets: the oracle's, over crashes and losses."""

from __future__ import annotations

import pytest

from tests.support.effort import seeds
from tests.support.simulation.faults import calm, crashing, everything, lossy
from tests.support.simulation.marker_fleets import marked


@pytest.mark.seeded
@pytest.mark.parametrize("chaos", [calm, lossy, crashing, everything])
def test_windows_between_markers_and_of_one_gateway_are_the_oracles(chaos: object) -> None:
    """protocol 1.3, 3.1, 4, 5.1, 5.4, 6.2 and 8.3: complete in the end, none missing, none twice."""
    assert callable(chaos)
    assert marked(seeds(4_000, 6), chaos) == []
