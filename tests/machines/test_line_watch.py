"""The lander's watch over lines has bounds: children are many, and each begins epochs without end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edge_agent.algebra.frame import Birth
from edge_agent.machines.downlink import line_watch
from edge_agent.machines.downlink.line_watch import KEPT, TWO_DEVICES, LineWatch
from edge_agent.machines.region.child_alarms import ChildAlarms


def birth(epoch: int, before: int) -> Birth:
    return Birth(epoch << 32, 0, (before, 0), "1")


def test_successors_of_the_latest_epochs_of_a_child_are_remembered() -> None:
    watch = LineWatch()
    for epoch in range(1, 10 * KEPT):
        assert watch.birth("c", birth(epoch, epoch - 1), None) == ""
    assert len(watch._next["c"]) == KEPT
    assert watch.birth("c", birth(1_000_000, 9 * KEPT), None) == TWO_DEVICES


def test_children_and_alarms_without_end_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_watch, "MOST_CHILDREN", 10)
    monkeypatch.setattr(line_watch, "MOST_NAMED", 5)
    watch = LineWatch()
    for n in range(100):
        for epoch in (2, 3):
            watch.birth(f"c{n}", birth(epoch, 1), None)
    assert len(watch._newest) == len(watch._next) == 10
    assert list(watch.alarms) == [f"c{n}" for n in range(5)]


def test_frames_that_are_turned_away_are_told_once() -> None:
    alarms, inbox = ChildAlarms(), SimpleNamespace(rivals={}, restored=set(), current={}, refused=0)
    told = list[int]()
    for refused in (0, 3, 3, 9):
        inbox.refused = refused
        found: Any = alarms.look(inbox)  # type: ignore[arg-type]
        told.append(len(found))
    assert told == [0, 1, 0, 0]
