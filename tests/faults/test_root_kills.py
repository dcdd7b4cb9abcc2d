"""Some kills of a root that looks after its tables in every run; 55 are `make kills`."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_of_a_root_within_its_upkeep_lose_and_double_nothing(tmp_path: Path) -> None:
    """protocol 8.1, 8.4, 8.5: nor does a root stay without its JVM, or print what VACUUM says."""
    from tests.faults.root_kills import Killed

    outcome = Killed(tmp_path, 3).run(2)
    assert outcome.kills.total() == 2
    assert outcome.steps
    assert outcome.rows > 20
    assert outcome.exact, outcome.summary()
