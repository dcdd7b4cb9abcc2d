"""Some seconds of bad messages in every run; `make fuzz` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.fuzz import fuzz


@pytest.mark.broker
@pytest.mark.slow
def test_bad_messages_between_good_ones_end_no_process_and_change_no_row(tmp_path: Path) -> None:
    """protocol 2.4, 3.6, SECURITY.md: real processes and brokers, a client that may publish anything."""
    outcome, sent, wrong = fuzz(tmp_path, 8.0, seed=1)
    assert wrong == []
    assert sent > 200
    assert outcome.exact, outcome.summary()
