"""A frame has room for 13 800 gap records: what they cost a parent grows with their number, not with its square."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.coverage import window_coverage
from edge_agent.algebra.frame import BEGAN, JOURNAL_LOST, LOST, Frame, Gap
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.losses.bad_messages import EVIDENCE_BYTES, unreadable
from edge_agent.machines.downlink.losses.loss_records import narrowed
from edge_agent.root.decision import window_ranges
from tests.hostile.fed_region import COUNTED, GROUP, NOW_US, Region, S, counted

RECORDS = st.lists(
    st.builds(
        lambda start, length, nodes, reason: Gap((GROUP,), start, start + length, -1, nodes, reason),
        st.integers(0, 30),
        st.integers(0, 5),
        st.sampled_from([(), ("x",), ("x", "y"), ("y", "x", "x")]),
        st.sampled_from([LOST, BEGAN, "poison"]),
    ),
    max_size=40,
)


def missing(gaps: Any, start_us: int, length_us: int) -> tuple[tuple[str, str], ...]:
    return window_coverage({"x": 99, "y": 99}, gaps, GROUP, start_us, start_us + length_us).missing


@given(RECORDS, st.integers(1, 5))
def test_of_records_of_equal_leaves_a_decision_sees_few_and_every_loss_stays_declared(
    gaps: list[Gap], most: int
) -> None:
    """protocol 4.7"""
    kept = window_ranges.runs(gaps, GROUP, most)
    assert len(kept) <= most * 3 * 2  # three sets of leaves, two kinds of reasons
    for start_us in range(40):
        for length_us in (1, 7):
            exact = missing(gaps, start_us, length_us)
            assert missing(window_ranges.runs(gaps, GROUP, 1_000), start_us, length_us) == exact
            assert {*missing(kept, start_us, length_us)} >= {*exact}
    assert window_ranges.runs(gaps, Group("other", "", (), 0), most) == []


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)), max_size=30), st.integers(1, 6))
def test_ranges_are_joined_as_if_the_nearest_two_were_joined_again_and_again(
    found: list[tuple[int, int]], most: int
) -> None:
    ranges = [(start, start + length) for start, length in found]
    joined = window_ranges.join(ranges, 10**6)
    while len(joined) > most:
        i = min(range(len(joined) - 1), key=lambda i: joined[i + 1][0] - joined[i][1])
        joined[i : i + 2] = [(joined[i][0], joined[i + 1][1])]
    assert window_ranges.join(ranges, most) == joined


def test_a_record_of_a_lost_journal_is_not_multiplied_by_its_groups_and_leaves() -> None:
    """protocol 3.7: one frame has room for 4 000 of each."""
    region = Region(gateways_only=False)
    region.hears("m", region.birth("m", COUNTED))
    memberships = region.merger.parent.children.memberships
    groups = (GROUP, *(Group(f"x-{n}", "", (), 0) for n in range(400)))
    leaves = ("m", *(f"g-{n}" for n in range(400)))
    found = narrowed(memberships, "m", Gap((*groups, *groups), 0, NOW_US, -1, (*leaves, *leaves), JOURNAL_LOST))
    assert sorted((len(gap.groups), len(gap.nodes), gap.start_us) for gap in found) == [
        (1, 1, NOW_US - 10 * S),
        (1, 400, 0),
        (400, 401, 0),
    ]


@pytest.mark.parametrize("reason", [BEGAN, LOST])
def test_records_that_go_ahead_of_rows_are_told_from_others_by_their_reason(reason: str) -> None:
    region = Region()
    region.hears("c", region.birth("c", COUNTED))
    before = len(region.sent)
    gaps = tuple(Gap((GROUP,), NOW_US - S + n, NOW_US - S + n + 1, -1, ("c",), reason) for n in range(3))
    others = tuple(Gap((GROUP,), n, n + 1, -1, ("c",), "poison") for n in range(3))
    row = counted(1, 1)
    region.hears("c", Frame(7, 1, groups=row.groups, gaps=(*gaps, *others)))
    sent = [sorted({gap.reason for gap in frame.gaps}) for frame in region.sent[before:]]
    assert sent[:2] == ([[BEGAN], ["poison"]] if reason == BEGAN else sent[:2])
    assert sum(len(frame.gaps) for frame in region.sent[before:]) == 6


def test_of_a_bad_message_of_any_size_a_few_kilobytes_go_upward() -> None:
    """The whole would make a frame that the parent refuses."""
    short, long = (unreadable("child", "why", bytes(many)).detail for many in (EVIDENCE_BYTES, 1_000_000))
    assert long.startswith("1000000 bytes, sha256 ")
    assert len(long) == len(short) + len("1000000") - len(str(EVIDENCE_BYTES))
