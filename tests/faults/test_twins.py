"""Some seconds with two devices of one identity in every run; a minute is `make herd`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.twins import twins


@pytest.mark.broker
@pytest.mark.slow
def test_two_devices_with_one_certificate_raise_an_alarm_and_spoil_no_row(tmp_path: Path) -> None:
    """protocol 1.4: rows are the first device's, all of them; neither device connects more than ten times a minute."""
    outcome = twins(tmp_path, 6.0)
    assert outcome.good, (outcome.summary(), outcome.wrong[:3])
