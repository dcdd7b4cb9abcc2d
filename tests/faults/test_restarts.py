"""Some starts of a gateway without its parent in every run; 72 are part of `make storm`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.restarts import restarts
from tests.faults.storm import LONGEST_START_S


@pytest.mark.broker
@pytest.mark.slow
def test_starts_while_the_parent_is_away_lose_and_double_nothing(tmp_path: Path) -> None:
    """protocol 1.3, 2.3, 3.3: what each start sends again counts once, however many epochs wait for the parent."""
    outcome = restarts(tmp_path, 16)
    assert len(outcome.recovery_s["gateway"]) == 16
    assert max(outcome.recovery_s["gateway"]) < LONGEST_START_S  # each start sent a frame
    assert outcome.readings > 200
    assert outcome.exact, outcome.summary()
