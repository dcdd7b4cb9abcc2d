"""Sessions of recordings: equal to the oracle, whatever the tree, the disorder and the policy."""

from __future__ import annotations

import pytest

from tests.recording.made import reach, told_rows
from tests.recording.made_sessions import expected_sessions, made_sessions
from tests.recording.test_run import answered
from tests.tolerance import close

SEEDS = 40


@pytest.mark.parametrize("seed", range(SEEDS))
def test_sessions_of_any_recording_are_those_of_the_oracle(seed: int) -> None:
    """protocol 5.1 to 5.4, 4.2: rows that were joined are not there any more."""
    given = made_sessions(seed)
    got, want = told_rows(answered(given), given), expected_sessions(given, "made")
    most = reach(given)
    assert got.keys() == want.keys()
    for place, numbers in want.items():
        pairs = zip(got[place].values(), numbers.values(), strict=True)
        assert all(close(a, b, most) for a, b in pairs), (place, got[place], numbers)
