"""Sessions of recordings: equal to the oracle, whatever the tree, the disorder and the policy."""

from __future__ import annotations

from typing import Any

import pytest

from edge_agent.root.numpy.rows import Row, WindowAnswers
from tests.support.effort import seeds
from tests.support.recording.seeded import answered, reach, told_rows
from tests.support.recording.seeded_sessions import expected_sessions, made_sessions
from tests.support.tolerance import close


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds(0, 40))
def test_sessions_of_any_recording_are_those_of_the_oracle(seed: int) -> None:
    """protocol 5.1 to 5.4, 4.2: rows that were joined are not there any more."""
    given = made_sessions(seed)
    got, want = told_rows(answered(given), given), expected_sessions(given, "made")
    assert got.keys() == want.keys()
    for place, numbers in want.items():
        pairs = zip(got[place].values(), numbers.values(), strict=True)
        assert all(close(a, b, reach(given, place[0])) for a, b in pairs), (place, got[place], numbers)


def test_rows_that_stand_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round of late readings touches a few sessions; the hundreds that stand cost a look."""
    made: list[int] = []
    row = WindowAnswers.row

    def counted(self: WindowAnswers, at: int, place: tuple[str, str, int, int], *rest: Any, **more: Any) -> Row:
        made.append(place[2])
        return row(self, at, place, *rest, **more)

    monkeypatch.setattr(WindowAnswers, "row", counted)
    stream: list[list[Any]] = []
    for turn in range(300):
        stream += [[10 * turn, 0, 1], ["wm", 10 * turn + 3]]
        stream += [[10 * turn - 995, 0, 1]] if turn % 30 == 29 and turn > 100 else []
    given = {
        "queries": [{"id": "q", "window": {"type": "session", "gap": 2}, "aggregate": "count"}],
        "streams": {"a": stream},
        "watermarks": {"mode": "markers"},
        "late_policy": "revise",
    }
    rows = answered(given)
    assert len(rows) == 300 + 7
    assert len(made) < 2 * len(rows)


@pytest.mark.parametrize("tree", [{}, {"m1": ["a"]}, {"m2": ["m1"], "m1": ["a"]}])
def test_more_open_sessions_than_a_frame_has_hints_for_all_have_rows(tree: dict[str, list[str]]) -> None:
    """protocol 2.3: hints that one frame does not hold leave with later steps, also after the last reading."""
    keys = 6_000
    given = {
        "queries": [{"id": "s", "window": {"type": "session", "gap": 10_000}, "aggregates": ["count"]}],
        "tree": tree,
        "streams": {"a": [[k // 100, f"k{k}", 1] for k in range(keys)]},
    }
    assert len(told_rows(answered(given), given)) == keys
