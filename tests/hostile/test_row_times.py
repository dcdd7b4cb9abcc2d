"""A row whose times no reading has is refused before it is stored, so that it stops neither a commit nor a start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cbor2 import CBORTag

from edge_agent.algebra.frame import LOST, NEVER_US, ROW_LIMIT_US, Birth, Frame, GroupPart, Section
from edge_agent.algebra.partials.partial import Partials
from edge_agent.errors import WireError
from edge_agent.machines.checkpoint.slots import STORE
from edge_agent.machines.downlink.losses import loss_records
from edge_agent.machines.region.partial_store import BEYOND_TIME
from edge_agent.wire import frames, sections
from edge_agent.wire.cbor import dumps
from tests.hostile.fed_region import COUNTED, GROUP, NOW_US, Region, S, counted
from tests.support.wire.one_window import one_window

LIMIT = ROW_LIMIT_US
ONE = (0, 1, 0)  # a key, a count and a sum
SAME = CBORTag(64, b"\0\0")  # the key of two rows


def frame_with(*rows: list[Any], seq: int = 1) -> bytes:
    """A frame of sections without a frontier, as bytes that no encoder makes."""
    return dumps([1, 7, seq, dumps([0, None, *rows])])


@pytest.mark.parametrize(
    "rows",
    [
        [[0, 0, [-(2**62), 2**63], *ONE]],
        [[-1, 0, [-(2**62), 2**63], *ONE]],
        [[-1, 0, [LIMIT - 10, 10], *ONE], [-1, 0, [LIMIT - 5, 10], *ONE]],
        [[0, 0, [-LIMIT - 1, 5], *ONE]],
        [[0, 0, LIMIT, *ONE]],
        [[0, 0, [[LIMIT - 9, 0], [10, 5]], SAME, 1, 0]],
        [[0, 0, [[5, 0], [2**63 - 1, 1]], SAME, 1, 0]],
    ],
)
def test_rows_of_impossible_times_are_refused_and_the_others_part_arrives(rows: list[list[Any]]) -> None:
    """protocol 3.6"""
    region = Region()
    for child in ("good", "bad"):
        region.hears(child, region.birth(child, COUNTED))
    region.gives("bad", frame_with(*rows))
    region.waits()
    assert any("range" in reason for reason in region.quarantined)
    region.start()
    region.hears("good", counted(1, 5))
    region.goes_on("good")
    assert region.readings() == 5


def test_rows_at_the_bounds_of_time_are_merged_and_sent_whatever_rows_they_meet() -> None:
    """Lengths, and starts of one row with the length of another, do not exceed 64 bits."""
    region = Region()
    region.hears("bad", region.birth("bad", COUNTED))
    region.gives("bad", frame_with([-1, 0, [-LIMIT, 2 * LIMIT], *ONE], [-1, 0, [LIMIT - 1, 1], *ONE]))
    region.gives("bad", frame_with([0, 0, [[-LIMIT, LIMIT - 1], [2 * LIMIT, 1]], SAME, 1, 0], seq=2))
    region.waits()
    region.start()
    region.waits()
    assert not region.quarantined
    assert region.readings() == 4


@pytest.mark.parametrize("frontier_us", [None, NEVER_US, 0, 2**62, -(2**62) + 1])
def test_a_frontier_far_from_the_rows_moves_no_row(frontier_us: int | None) -> None:
    start, end = np.array([-LIMIT, 0, LIMIT - 2]), np.array([LIMIT, 7, LIMIT])
    rows = Partials(start, end, np.arange(3), {"count": np.ones(3, np.int64), "sum": np.ones(3, np.int64)})
    part = GroupPart(0, frontier_us, (Section.of(0, COUNTED, rows),))
    back = frames.decode(frames.encode(Frame(7, 1, groups=(part,))))
    assert isinstance(back, Frame)
    found = back.groups[0].sections[0].partials
    assert (found.start.tolist(), found.end.tolist()) == (start.tolist(), end.tolist())


def test_rows_from_before_1970_that_may_be_repeats_spoil_no_frame_of_the_region() -> None:
    """protocol 1.2: a loss ended before its start, in one frame with rows of siblings, which the parent refused."""
    region = Region()
    for child in ("good", "bad"):
        region.hears(child, region.birth(child, COUNTED), counted(1, 5))
    birth = Birth(8 << 32, region.merger.journal, LOST, "1")
    early = np.array([-100 * S])
    states = {"count": np.ones(1, np.int64), "sum": np.zeros(1, object)}
    section = Section.of(0, COUNTED, Partials(early, early + S, np.zeros(1, np.int64), states))
    part = GroupPart(0, NOW_US, (section,))
    region.hears("bad", replace(region.birth("bad", COUNTED), epoch=8, birth=birth), Frame(8, 1, groups=(part,)))
    assert all(gap.start_us <= gap.end_us for gap in region.losses())
    assert loss_records.of_past(GROUP, ("bad",), -5 * S).end_us == 0


def test_a_node_that_would_send_a_row_beyond_the_bounds_fails_itself() -> None:
    (part,) = one_window(1).groups
    for start_us, end_us in ((LIMIT - 1, LIMIT + 1), (-LIMIT - 1, 0), (5, 5)):
        rows = part.sections[0].partials
        moved = Partials(np.array([start_us]), np.array([end_us]), rows.key, rows.states)
        with pytest.raises(ValueError, match="outside"):
            sections.encode(Section(0, moved), None, late=False)
    with pytest.raises(WireError, match="range"):
        frames.decode(frame_with([0, 0, LIMIT, *ONE]))


def test_a_row_that_an_earlier_version_stored_is_declared_lost_and_stops_no_start() -> None:
    """protocol 3.6: spools of versions that took times up to 2^62."""
    region = Region()
    region.hears("good", region.birth("good", COUNTED), Frame(7, 1, groups=(GroupPart(0, None),)))
    region.gives("good", frame_with([0, 0, [NOW_US + 5 * S, S], *ONE], [0, 0, [NOW_US + 9 * S, S], 0, 4, 0], seq=2))
    region.waits()
    ((name, found),) = STORE.each(region.state)
    found.rows.start[0], found.rows.end[0] = -(2**62), 2**62
    region.state |= STORE.write(found, name)
    region.start()
    region.waits()
    assert region.readings() == 4
    assert [gap.reason for gap in region.losses()] == [BEYOND_TIME]
