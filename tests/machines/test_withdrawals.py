"""Why a row is withdrawn: one list of reasons, asked by every place that withdraws rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from edge_agent.root.decision.withdrawals import SessionExtent, joined, superseded

ROOT: Final = Path(__file__).resolve().parents[2]
WITHDRAWS: Final = re.compile(r'withdrawn(=True|": F\.lit\(True\))')


@pytest.mark.parametrize(
    ("row", "made", "is_joined"),
    [
        (SessionExtent(10, 20, 0), SessionExtent(5, 15, 0), True),
        (SessionExtent(10, 20, 0), SessionExtent(20, 30, 0), True),  # they touch: ends are last + gap
        (SessionExtent(10, 20, 0), SessionExtent(21, 30, 0), False),
        (SessionExtent(10, 20, 0), SessionExtent(0, 9, 0), False),
        (SessionExtent(10, 20, 0), SessionExtent(0, 10, 0), True),
        (SessionExtent(10, 20, 0), SessionExtent(10, 30, 0), False),  # the same row, revised
        (SessionExtent(10, 20, 0), SessionExtent(20, 30, 20), False),  # a cut of the maximum duration is between them
    ],
)
def test_a_session_joins_the_rows_that_it_touches(row: SessionExtent, made: SessionExtent, is_joined: bool) -> None:
    """protocol 5.4, 5.5"""
    assert joined(row, made) == is_joined


def test_a_newer_revision_withdraws_rows_from_its_start_on_within_the_horizon() -> None:
    """protocol 6.3"""
    assert superseded(100, 110, 100, 50)
    assert not superseded(99, 110, 100, 50)
    assert not superseded(100, 110, 100, 110)


def test_every_place_that_withdraws_rows_has_its_reason_from_the_list() -> None:
    files = [path for room in ("edge_agent", "cloud_job") for path in (ROOT / room).rglob("*.py")]
    withdrawing = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
    withdrawing = {path: text for path, text in withdrawing.items() if WITHDRAWS.search(text)}
    assert len(withdrawing) >= 3
    for path, text in withdrawing.items():
        assert "from edge_agent.root.decision.withdrawals import" in text, path
