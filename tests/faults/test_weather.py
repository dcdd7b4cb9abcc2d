"""A minute of weather; `make weather` is the long one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.algebra.coverage import Coverage
from edge_agent.root.numpy.rows import Row
from tests.faults.landed_root import LandedRoot
from tests.faults.tree import SECOND
from tests.faults.weather import weather
from tests.faults.weather_rows import Outcome, compare
from tests.faults.weather_tree import WeatherTree

LENGTH_US = 5 * SECOND  # of the windows of all gateways
pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_after_faults_that_lose_no_disk_every_row_is_complete_and_exact_and_the_books_balance(tmp_path: Path) -> None:
    """protocol 1.5, 3.1 to 3.4, 9.1: three tiers of real processes."""
    only = ["kill", "stop", "broker", "cut", "half-open", "move", "query", "attack", "root"]
    outcome = weather(tmp_path, 12.0, 1, pause_s=1.5, only=only, lead_s=8.0)
    assert outcome.faults >= 4
    assert outcome.rows > 200
    assert outcome.wrong == [], outcome.summary()


def test_a_comparison_with_other_readings_finds_every_row(tmp_path: Path) -> None:
    """A control: without rows each window is missing, except after a lost disk."""
    tree = WeatherTree(tmp_path)
    outcome, after_lost_disk, until_us = Outcome(), Outcome(), tree.begin_us + 20 * SECOND  # 4 s of it are an outage
    compare(outcome, tree, LandedRoot(tree.landing), until_us, {})
    assert len(outcome.wrong) > 8 * 16
    assert all("no row" in line for line in outcome.wrong)
    compare(
        after_lost_disk, tree, LandedRoot(tree.landing), until_us, {name: [tree.begin_us] for name in tree.gateways}
    )
    assert replace(after_lost_disk, excused=0) == replace(outcome, wrong=[])
    assert after_lost_disk.excused == len(outcome.wrong)


def test_a_row_lacks_only_gateways_that_lost_a_disk_and_only_readings_of_those_that_it_names(tmp_path: Path) -> None:
    """A control: a window of all gateways, of which one lost its disk."""
    tree = WeatherTree(tmp_path)
    windows = Counter(reading.time_us // LENGTH_US for reading in tree.readings(tree.begin_us + 20 * SECOND))
    start_us = max(windows, key=windows.__getitem__) * LENGTH_US  # not within an outage
    readings = [each for each in tree.readings(start_us + LENGTH_US) if each.time_us >= start_us]
    of = Counter(reading.node for reading in readings)
    assert len(of) == 4
    lost_us = {"gw-1-1": [start_us]}

    def found(missing: str, lacks: int) -> list[str]:
        """What is wrong with a row without so many readings, that lacks a gateway."""
        coverage = Coverage(tuple(sorted(of)), ((missing, "lost"),))
        row = Row(
            "all", "", {}, start_us, start_us + LENGTH_US, {}, None, len(readings) - lacks, 0,
            withdrawn=False, definition_revision=1, key="", late=0, coverage=coverage,
        )  # fmt: skip
        root, outcome = LandedRoot(tree.landing), Outcome()
        root.rows[row.query, row.node, row.key, row.start] = row
        compare(outcome, tree, root, row.end, lost_us)
        return [line for line in outcome.wrong if "no row" not in line]

    assert found("gw-1-1", of["gw-1-1"]) == []
    assert [line.split(":")[0] for line in found("gw-1-2", of["gw-1-2"])] == ["incomplete without a reason"]
    (line,) = found("gw-1-1", of["gw-1-1"] + 1)
    assert "of gateways that are not missing" in line
