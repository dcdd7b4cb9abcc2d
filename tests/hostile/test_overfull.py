"""Counts that only together are too large cost the row that they are in, not the frame with the rows of the others."""

from __future__ import annotations

import numpy as np
import pytest

from edge_agent.algebra.frame import LEAF_READINGS, Frame, GroupPart, Plan, Section
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.multisets import FlatMultisets
from edge_agent.algebra.partials.partial import Partials
from edge_agent.machines.events import Arrived, Tick
from edge_agent.machines.region.overfull import MOST_RANGES, OVERFULL, losses
from edge_agent.runtime.region import heard
from edge_agent.wire import frames
from tests.hostile.fed_region import COUNTED, GROUP, NOW_US, Region, S, counted, rows

BAGS = Plan(b"12345678", "slice", ("count", "bag"), 0, S, (("q", 1),))


class Tree:
    """A region below another, with a good and a bad gateway."""

    def __init__(self, plan: Plan) -> None:
        self.below, self.above = Region(), Region(gateways_only=False)
        for child in ("good", "bad"):
            self.below.gives(child, frames.encode(self.below.birth(child, plan)))
        self._passed = 0
        self.seq = 10

    def goes_on(self) -> None:
        for _ in range(5):
            for region in (self.below, self.above):
                region.now_us += 20 * S
            self.below.gives("good", frames.encode(Frame(7, self.seq, groups=(GroupPart(0, self.below.now_us),))))
            self.seq += 1
            self.below.feed(Tick())
            for frame in self.below.sent[self._passed :]:
                if frame.birth is not None:
                    self.above.merger.parent.inbox.journal = frame.birth.journal
                self.above.feed(Arrived((("m", heard(frames.encode(frame)), None),)))
            self._passed = len(self.below.sent)
            self.above.feed(Tick())


def bag(count: int) -> Array:
    return FlatMultisets(np.array([7]), np.array([count]), np.ones(1, np.int64)).column()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_rows_that_merge_to_too_many_readings_are_declared_lost_and_the_others_arrive(
    together: bool, late: bool
) -> None:
    """protocol 7.1: each row of the gateway is within its bound; their sum is that of three gateways, and two exist."""
    tree = Tree(COUNTED)
    tree.seq = 2
    tree.below.gives("good", frames.encode(counted(1, 5)))
    if late:
        tree.goes_on()
    k = 3 if together else 1
    start = np.full(k, NOW_US - 8 * S)
    states: dict[str, Array] = {"count": np.full(k, 2 * LEAF_READINGS // 3 if together else LEAF_READINGS)}
    states["sum"] = np.ones(k, np.int64)
    for seq in (1, 2, 3):
        part = Section.of(0, COUNTED, Partials(start, start + S, np.zeros(k, np.int64), states))
        sections = ((), (part,)) if late else ((part,), ())
        tree.below.gives("bad", frames.encode(Frame(7, seq, groups=(GroupPart(0, NOW_US, *sections),))))
    tree.goes_on()
    assert not tree.below.quarantined
    assert not tree.above.quarantined
    assert tree.below.readings() == tree.above.readings() == 5
    lost = [gap for gap in tree.above.losses() if gap.reason == OVERFULL]
    assert {(gap.start_us, gap.end_us) for gap in lost} == {(NOW_US - 8 * S, NOW_US - 7 * S)}


def test_bags_that_merge_to_too_many_readings_are_kept_in_no_slot_that_no_start_can_read() -> None:
    """protocol 7.1: 2^24 such rows would wrap around to a count that contradicts the bag."""
    tree = Tree(BAGS)
    k = 60_000
    start = np.full(k, NOW_US - 8 * S)
    cell = bag(LEAF_READINGS // 60_000)[0]
    column = np.empty(k, object)
    column[:] = [cell] * k
    states: dict[str, Array] = {"count": np.full(k, LEAF_READINGS // 60_000), "bag": column}
    part = Section.of(0, BAGS, Partials(start, start + S, np.zeros(k, np.int64), states))
    for seq in range(1, 5):
        tree.below.gives("bad", frames.encode(Frame(7, seq, groups=(GroupPart(0, None, (part,)),))))
    tree.below.waits()
    tree.below.start()
    tree.below.gives("good", frames.encode(rows(1, BAGS, {"count": np.array([5]), "bag": bag(5)})))
    tree.seq = 2
    tree.goes_on()
    assert not tree.above.quarantined
    assert tree.above.readings() == 5
    assert OVERFULL in {gap.reason for gap in tree.above.losses()}


def test_a_frame_whose_rows_together_have_more_readings_than_fit_is_refused() -> None:
    """protocol 3.6: the sums of many such frames would not fit 64 bits before the parent looks at them."""
    region = Region()
    for child in ("good", "bad"):
        region.hears(child, region.birth(child, COUNTED))
    k = 3
    start = np.full(k, NOW_US - 8 * S)
    states: dict[str, Array] = {"count": np.full(k, LEAF_READINGS), "sum": np.ones(k, np.int64)}
    part = Section.of(0, COUNTED, Partials(start, start + S, np.zeros(k, np.int64), states))
    region.gives("bad", frames.encode(Frame(7, 1, groups=(GroupPart(0, NOW_US, (part,)),))))
    assert "rows of one range and key" in region.quarantined[0]
    region.hears("good", counted(1, 5))
    region.goes_on("good")
    assert region.readings() == 5


@pytest.mark.parametrize(("many", "records"), [(MOST_RANGES, MOST_RANGES), (MOST_RANGES + 1, 1)])
def test_rows_of_many_ranges_that_are_taken_out_have_one_record(many: int, records: int) -> None:
    """A record for each would not fit a frame."""
    start = np.arange(many) * S
    found = list(losses(GROUP, Partials(start, start + S, np.zeros(many, np.int64), {})))
    assert len(found) == records
    assert (found[0].start_us, found[-1].end_us) == (0, many * S)
