"""What follows a decision, as pure values: spans, coverage, and the state between batches."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cloud_job.delta.driver_rows import arrow_schema
from cloud_job.delta.tables import MESSAGES
from cloud_job.ingest.intake import Intake
from cloud_job.spark import decision_checkpoint
from cloud_job.spark.recent_parts import RecentParts, stored_end_us
from edge_agent.algebra.coverage import window_coverage
from edge_agent.algebra.frame import Gap
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.query import Aggregate, Group
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.decide import step
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.window_ranges import CoverageRef, covers, join
from edge_agent.root.decision.withdrawals import SupersededRows, WithdrawnWindow
from edge_agent.root.decision.work import (
    CoverageCell,
    Islands,
    Ordering,
    ReadRequest,
    RefusedFrame,
    SessionKey,
    TooLate,
    WindowRange,
    Work,
)
from edge_agent.wire.heads import Part, Parts
from tests.support.cloud import recorded_fleets
from tests.support.simulation.faults import everything

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda r: (r[0], r[0] + r[1])), max_size=12)
GROUP = Group("s", "", (), 0)
OTHER = Group("t", "", (), 0)


def points(ranges: list[tuple[int, int]]) -> set[int]:
    return {n for after, upto in ranges for n in range(after + 1, upto + 1)}


@given(RANGES)
def test_joined_ranges_hold_the_same_ends_and_do_not_touch(ranges: list[tuple[int, int]]) -> None:
    joined = join(ranges)
    assert points(joined) == points(ranges)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(joined))


@given(RANGES, st.integers(1, 4))
def test_of_too_many_ranges_neighbours_are_joined_and_nothing_is_missed(
    ranges: list[tuple[int, int]], most: int
) -> None:
    joined = join(ranges, most)
    assert len(joined) <= most
    assert points(joined) >= points(ranges)


@st.composite
def gap_records(draw: st.DrawFn) -> Gap:
    start, length = draw(st.integers(0, 50)), draw(st.integers(0, 6))
    nodes = draw(st.sampled_from([(), ("a",), ("b", "c")]))
    groups = draw(st.sampled_from([(GROUP,), (OTHER,), (GROUP, OTHER)]))
    return Gap(groups, start, start + length, 1, nodes, "lost")


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(-5, 60), min_size=1),
    st.lists(gap_records(), max_size=3),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 60)),
    st.tuples(st.integers(-3, 40), st.integers(1, 30), st.integers(1, 12)),
)
def test_every_window_of_a_span_has_the_coverage_that_the_span_says(
    leaves: dict[str, int], gaps: list[Gap], begins: dict[str, int], numbers: tuple[int, int, int]
) -> None:
    """protocol 4.7: cut where it changes, window by window the same as window_coverage."""
    after, size, length = numbers
    upto = after + size
    begins = {leaf: start for leaf, start in begins.items() if leaf in leaves}
    whole = WindowRange(
        "q", 1, 0, after, upto, length, 1, 0, after + 1 - length, upto - length, (0,), "", 0, 0, complete=False
    )
    seen = []
    for span, cover in covers(whole, GROUP, LeafTimes.of(leaves), tuple(gaps), begins):
        for end in range(span.after_us + 1, span.upto_us + 1):
            seen.append(end)
            wanted = window_coverage(leaves, gaps, GROUP, end - length, end, begins=begins)
            assert cover == CoverageRef.of(wanted)
            assert (span.expected, span.received, span.complete) == (
                len(wanted.expected),
                wanted.received,
                wanted.complete,
            )
            assert span.low_us <= end - length <= span.high_us
    assert seen == list(range(after + 1, upto + 1))


def test_work_comes_back_from_its_bytes() -> None:
    """protocol 8.1: what a restart carries out is what was decided."""
    keys = (SessionKey("site=a", 9, 7, (2, 3)), SessionKey("site=b", 9, 7))
    cells = (CoverageCell("=site=a", -5, 5, 0, 9, "id", 2, 1, complete=False, revising=True),)
    span = WindowRange("q", 3, 0, -(2**62), 9, 5, 5, 0, 0, 4, (0, 1), "id", 2, 1, complete=False)
    work = Work(
        7,
        (((Aggregate("var", "v", (("ddof", 0),)),), -1),),
        (ReadRequest(0, b"12345678", "slice", ("count", "sum"), -1, None),),
        (span,),
        (replace(span, revision=4),),
        (TooLate("gw", 1, 2, 3, "s", 4),),
        (RefusedFrame("gw", 1, 9, "why"),),
        2,
        ({"coverage_id": "id", "leaf": "gw", "reason": "behind", "batch": 7},),
        (),
        ({"query": "q", "by": ["a"]},),
        (),
        (Islands("q", 3, 0, 5, 0, (1,), 9, 7, 2, True, (1, 4), None, 8, None, 0, "gw", True, keys, cells),),
        (Ordering("q", 3, "", -1, (0, 1), 4, 9, cells),),
        (WithdrawnWindow("q", 3, "gw", 4, 9),),
        (SupersededRows("q", 2, "", 4, -9),),
    )
    assert Work.loads(work.dumps()) == work


def test_the_state_between_batches_comes_back_from_its_bytes() -> None:
    """protocol 8.2: a root that is restarted before every batch asks for the same work."""
    fleet, files = recorded_fleets.fleet(7, everything(Random(7)), changes=True)
    journal = fleet.world.hosts["root"].journal  # type: ignore[union-attr]
    limits = RootLimits(revise_every_us=15_000_000)
    grace_us = 20_000_000
    one: tuple[Decider, RootState, Parts] = (Decider(journal, grace_us), RootState(limits), {})
    other: tuple[Decider, RootState, Parts] = (Decider(journal, grace_us), RootState(limits), {})
    works: list[list[Work]] = [[], []]
    for number, group in enumerate(recorded_fleets.grouped(files, 12, Random(1))):
        for (decider, state, parts), out in zip((one, other), works, strict=True):
            intake = Intake(decider, parts, number, "owner", state.decided_us)
            for file in group:
                intake.read(recorded_fleets.content(file, journal), "file")
            decision = decider.decide(intake.now_us)
            applied = {k: parts.pop(k) for e in decision.effects if (k := (e.node, e.epoch, e.seq)) in parts}
            out.append(step(state, decision, applied, decider.parent.dictionaries, decider.gaps))
        other = decision_checkpoint.loads(decision_checkpoint.dumps(*other), limits, grace_us)
    assert works[0] == works[1]
    assert any(work.revising for work in works[0])


def stored(*ranges: tuple[int, int]) -> pa.Table:
    n = len(ranges)
    columns = {f.name: pa.nulls(n, f.type) for f in arrow_schema(MESSAGES)}
    columns["start"] = pa.array([low for low, _ in ranges], pa.int64())
    columns["end"] = pa.array([high for _, high in ranges], pa.int64())
    columns["seq"] = pa.array(np.arange(n))
    return pa.table(columns)


def seqs(found: pa.Table | None) -> list[int] | None:
    return None if found is None else sorted(found["seq"].to_pylist())


def test_recent_parts_answer_only_where_nothing_older_can_overlap() -> None:
    recent = RecentParts(older_end_us=100)
    recent.add(stored((100, 110), (105, 120), (300, 310)))
    assert seqs(recent.within([(100, 110)])) == [0, 1]
    assert seqs(recent.within([(290, 305)])) == [2]
    assert seqs(recent.within([(150, 200)])) == []
    assert recent.within([(99, 110)]) is None
    recent.add(stored((400, 500)))
    recent.forget(310)
    assert recent.within([(300, 310)]) is None
    assert seqs(recent.within([(310, 500)])) == [0]


def test_after_a_restart_parts_that_wait_in_the_table_are_older_too() -> None:
    """protocol 2.2, 8.2: they take effect later, and are not on the driver."""
    waits = Part(1, 0, 0, False, 1, 300, 300, 310, 310, b"")
    assert stored_end_us([(0, 100), (0, 90)], {}) == 100
    assert stored_end_us([(0, 100)], {("gw", 1, 7): (waits,)}) == 310
    assert RecentParts(stored_end_us([], {})).within([(0, 1)]) is not None, "nothing is stored: nothing can be missed"


def test_recent_parts_are_bounded() -> None:
    recent = RecentParts(0)
    big = stored((0, 10)).set_column(
        stored((0, 10)).schema.get_field_index("payload"), "payload", pa.array([bytes(20 << 20)], pa.binary())
    )
    recent.add(big)
    assert recent.within([(0, 10)]) is None, "so much is quicker from the table"
    recent.add(big)
    recent.add(stored((20, 30)))
    assert recent.within([(5, 10)]) is None
    assert seqs(recent.within([(10, 30)])) == [0]
