"""A minute of weather; `make weather` is the long one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.landed_root import LandedRoot
from tests.faults.tree import SECOND
from tests.faults.weather import Outcome, WeatherTree, compare, weather

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_after_faults_that_lose_no_disk_every_row_is_complete_and_exact_and_the_books_balance(tmp_path: Path) -> None:
    """protocol 1.5, 3.1 to 3.4, 9.1: three tiers of real processes."""
    only = ["kill", "stop", "broker", "cut", "half-open", "move", "query", "attack"]
    outcome = weather(tmp_path, 12.0, 1, pause_s=1.5, only=only, lead_s=8.0)
    assert outcome.faults >= 4
    assert outcome.rows > 200
    assert outcome.wrong == [], outcome.summary()


def test_a_comparison_with_other_readings_finds_every_row(tmp_path: Path) -> None:
    """A control: without rows each window is missing, except after a lost disk."""
    tree = WeatherTree(tmp_path)
    outcome, after_lost_disk, until_us = Outcome(), Outcome(), tree.begin_us + 10 * SECOND
    compare(outcome, tree, LandedRoot(tree.landing), until_us, [])
    assert len(outcome.wrong) > 80 + 2
    assert all("no row" in line for line in outcome.wrong)
    compare(after_lost_disk, tree, LandedRoot(tree.landing), until_us, [tree.begin_us])
    assert replace(after_lost_disk, excused=0) == replace(outcome, wrong=[])
    assert after_lost_disk.excused == len(outcome.wrong)
