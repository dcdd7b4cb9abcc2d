"""Which rows of bronze.messages no result needs (docs/protocol.md 8.4): of frames that wait, of epochs that ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_job.delta import expiring
from edge_agent.algebra.frame import Plan
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Group
from edge_agent.root.decision.work import identity
from edge_agent.wire.heads import Part, Parts

GROUP = Group("s", "", ("site",), 0)
A, B = (Plan(name * 8, "slice", ("count",), None, 0, (("q", 1),), 5) for name in (b"a", b"b"))
OLD, NEW = EpochKey("gw", 1), EpochKey("gw", 2)


class Known:
    """What a decider and a state say. needed: plan -> time; lines: epoch -> its plans by number."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, needed: Mapping[bytes, int | None], lines: Mapping[EpochKey, list[Plan]]
    ) -> None:
        self.asked: Counter[bytes] = Counter()
        self.needed = dict(needed)
        plans = {line: dict(enumerate((GROUP, plan) for plan in every)) for line, every in lines.items()}
        dictionaries = {line: SimpleNamespace(plans=every) for line, every in plans.items()}
        parent = SimpleNamespace(dictionaries=dictionaries, inbox=SimpleNamespace(epochs={NEW: None}))
        self.decider: Any = SimpleNamespace(parent=parent)
        self.state: Any = SimpleNamespace(plans={identity(GROUP, plan): None for plan in (A, B)}, extent={})
        monkeypatch.setattr(expiring, "needed_us", self._needed_us)

    def _needed_us(self, group: Group, plan: Plan, *_: object) -> int | None:
        assert group == GROUP
        self.asked[plan.hash] += 1
        return self.needed[plan.hash]

    def expiring(self, parts: Parts) -> list[expiring.Expiring]:
        return expiring.expiring(self.decider, self.state, parts)

    def over(self, parts: Parts | None = None) -> list[EpochKey]:
        return expiring.over(self.decider, self.state, parts or {})


def part(end_us: int) -> Part:
    return Part(1, 0, 0, False, 1, 0, 0, end_us, end_us, b"")


def test_each_plan_of_each_epoch_has_the_time_of_its_plan_which_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = Known(monkeypatch, {A.hash: 50, B.hash: None}, {OLD: [A, B], NEW: [B, A], EpochKey("other", 1): [A]})
    assert known.expiring({}) == [(*OLD, 0, 50), (*NEW, 1, 50), ("other", 1, 0, 50)]
    assert known.asked == {A.hash: 1, B.hash: 1}


def test_the_parts_of_a_frame_that_waits_stay_with_all_later_ones_of_its_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has not been counted by any decision: without them nothing would be left to apply."""
    known = Known(monkeypatch, {A.hash: 50, B.hash: 20}, {OLD: [A, B], NEW: [A, B]})
    waiting: Parts = {("gw", 1, 7): (part(45), part(40)), ("gw", 1, 6): (part(60),), ("gw", 1, 8): (part(44),)}
    assert known.expiring(waiting) == [(*OLD, 0, 40), (*OLD, 1, 20), (*NEW, 0, 50), (*NEW, 1, 20)]
    assert known.expiring({("gw", 1, 6): (part(60),)}) == known.expiring({}), "its rows are needed anyway"


def test_an_epoch_is_over_when_it_has_ended_and_none_of_its_plans_needs_its_last_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = Known(monkeypatch, {A.hash: 50, B.hash: 60}, {OLD: [A, B], NEW: [A]})
    assert known.over() == [OLD], "no part of it was ever stored; the epoch that goes on is not over"
    known.state.extent = {OLD: (10, 49)}
    assert known.over() == [OLD]
    assert known.over({("gw", 1, 3): ()}) == [], "a frame of it waits"
    assert known.over({("gw", 2, 3): ()}) == [OLD]
    known.state.extent = {OLD: (10, 50)}
    assert known.over() == [], "one plan needs it"
    known.needed[A.hash], known.state.extent = None, {OLD: (10, 49)}
    assert known.over() == [], "nobody knows yet"
    del known.state.plans[identity(GROUP, A)]
    assert known.over() == [OLD], "a plan that is not in the state has no rows"
