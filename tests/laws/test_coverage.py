"""Which leaves a row contains and which it misses, at the edges of what they serve (docs/protocol.md 4.5, 4.7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.algebra.coverage import session_coverage, window_coverage
from edge_agent.algebra.frame import BEGAN, ENDED, LOST, Gap
from edge_agent.algebra.query.group_cut import SessionCut
from edge_agent.algebra.query.query import Group

GROUP = Group("s", "", (), 0)
SESSIONS = Group("s", "", (), 0, cut=SessionCut(5))
LEAVES = {"a": 100, "b": 100}


@pytest.mark.parametrize(
    ("begins", "ends", "expected", "missing"),
    [
        ({"b": 10}, {}, ("a", "b"), ()),
        ({"b": 11}, {}, ("a", "b"), (("b", BEGAN),)),
        ({"b": 20}, {}, ("a",), ()),
        ({}, {"b": 20}, ("a", "b"), ()),
        ({}, {"b": 19}, ("a", "b"), (("b", ENDED),)),
        ({}, {"b": 10}, ("a",), ()),
    ],
)
def test_a_leaf_that_begins_or_ends_within_a_window_is_missing_from_it_and_not_expected_in_others(
    begins: dict[str, int], ends: dict[str, int], expected: tuple[str, ...], missing: tuple[tuple[str, str], ...]
) -> None:
    found = window_coverage(LEAVES, [], GROUP, 10, 20, begins=begins, ends=ends)
    assert (found.expected, found.missing) == (expected, missing)
    assert found.complete == (not missing)


def test_a_loss_of_a_leaf_touches_only_windows_that_the_leaf_serves() -> None:
    gap = Gap((GROUP,), 0, 100, 1, ("b",), "quota")
    assert window_coverage(LEAVES, [gap], GROUP, 10, 20).missing == (("b", LOST),)
    assert window_coverage(LEAVES, [gap], GROUP, 10, 20, begins={"b": 20}).complete
    assert window_coverage(LEAVES, [gap], GROUP, 10, 20, ends={"b": 10}).complete
    assert session_coverage(LEAVES, [replace(gap, groups=(SESSIONS,))], SESSIONS, 10, 20, begins={"b": 40}).complete


@pytest.mark.parametrize(("since_us", "touches"), [(5, True), (10, True), (11, False)])
def test_a_loss_of_a_leaf_that_states_a_later_start_now_touches_what_it_served_before(
    since_us: int, touches: bool
) -> None:
    gap = Gap((GROUP,), 0, 100, 1, ("b",), "quota")
    found = window_coverage(LEAVES, [gap], GROUP, 10, 20, begins={"b": 20}, since={"b": since_us})
    assert found.missing == ((("b", LOST),) if touches else ())
    assert "b" not in found.expected
    low_us = 10 - SESSIONS.cut.gap_us
    gap = replace(gap, groups=(SESSIONS,))
    since = {"b": since_us - 10 + low_us}
    found = session_coverage(LEAVES, [gap], SESSIONS, 10, 20, begins={"b": 40}, since=since)
    assert found.missing == ((("b", LOST),) if touches else ())


@pytest.mark.parametrize(
    ("start_us", "end_us", "touches"), [(0, 10, False), (0, 11, True), (19, 30, True), (20, 30, False)]
)
def test_a_loss_touches_the_windows_that_share_a_time_with_it(start_us: int, end_us: int, touches: bool) -> None:
    gap = Gap((GROUP,), start_us, end_us, 1, (), "quota")
    assert window_coverage(LEAVES, [gap], GROUP, 10, 20).complete != touches


@pytest.mark.parametrize(
    ("start_us", "end_us", "touches"), [(0, 5, False), (0, 6, True), (25, 30, True), (26, 30, False)]
)
def test_a_loss_touches_a_session_up_to_a_gap_away(start_us: int, end_us: int, touches: bool) -> None:
    """A lost reading exactly one gap after the last would belong to the session."""
    gap = Gap((SESSIONS,), start_us, end_us, 1, (), "quota")
    assert session_coverage(LEAVES, [gap], SESSIONS, 10, 20).complete != touches


def test_a_leaf_is_in_a_session_once_its_bound_is_above_last_plus_gap() -> None:
    assert session_coverage({"a": 26}, [], SESSIONS, 10, 20).complete
    assert session_coverage({"a": 25}, [], SESSIONS, 10, 20).missing == (("a", "behind"),)
    assert window_coverage({"a": 20}, [], GROUP, 10, 20).complete
    assert window_coverage({"a": 19}, [], GROUP, 10, 20).missing == (("a", "behind"),)
