"""Refusals are counted by reason, and reasons without end take no room."""

from __future__ import annotations

from edge_agent.runtime.refusals import MOST_REASONS, OTHER, Refusals


def test_reasons_without_end_are_counted_together() -> None:
    refusals = Refusals()
    for n in range(1, 101):
        refusals.add("x" * n, f"example {n}")
    assert refusals.total == 100
    found = refusals.plain()
    assert len(found) == MOST_REASONS + 1
    assert found[OTHER] == {"count": 100 - MOST_REASONS, "example": "example 100"}


def test_counts_of_a_file_are_bounded_too() -> None:
    refusals = Refusals()
    refusals.restore({"x" * n: {"count": 1, "example": "e" * 1_000} for n in range(1, 101)})
    assert refusals.total == MOST_REASONS
    assert all(len(str(found["example"])) < 1_000 for found in refusals.plain().values())
