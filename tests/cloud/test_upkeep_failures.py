"""A step of upkeep that fails for long: how often it is tried and told (no Spark)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cloud_job.delta import driver_rows
from cloud_job.delta.retention import Kept
from cloud_job.delta.upkeep import MOST_RETRY_S, RETRY_S, TELL_S, Upkeep, UpkeepStep


def fails(_: object) -> None:
    raise ValueError("no space left")


class Failing:
    """Upkeep with one step that fails. told: rows of ops.gaps so far; pauses_s: from each failure to the next try."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.told, self.pauses_s = 0.0, 0, list[float]()
        monkeypatch.setattr(driver_rows, "rows", lambda *_: None)
        self.step = UpkeepStep("clean", 1.0, fails)
        self.upkeep = Upkeep(Kept(1, 1), 1_000_000, lambda: self.now_s, [self.step])
        place = SimpleNamespace(append=self._append)
        state = SimpleNamespace(number=1)
        self.root: Any = SimpleNamespace(state=state, spark=None, place=place, committed=lambda _: None)

    def _append(self, *_: object) -> None:
        self.told += 1

    def once(self) -> None:
        self.now_s = self.step.due_s
        self.upkeep.between(self.root)
        self.pauses_s.append(self.step.due_s - self.now_s)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch)


def test_it_is_tried_again_with_pauses_that_double_up_to_an_hour(failing: Failing) -> None:
    for _ in range(12):
        failing.once()
    assert failing.pauses_s == [min(RETRY_S * 2**n, MOST_RETRY_S) for n in range(12)]
    assert failing.upkeep.failed == 12


def test_it_is_told_once_a_day(failing: Failing) -> None:
    while failing.now_s < TELL_S / 2:
        failing.once()
    assert failing.told == 1
    while failing.now_s < 2.5 * TELL_S:
        failing.once()
    assert failing.told == 3
