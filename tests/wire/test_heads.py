"""What the root stores of a frame: its head, and the rows as parts that decode on their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from edge_agent.algebra.frame import (
    MOST_SECTIONS,
    NOT_SEEN,
    Define,
    Extent,
    Frame,
    GroupPart,
    Heartbeat,
    Plan,
    Section,
)
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.multisets import is_bags
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.series import is_series
from edge_agent.algebra.sketches import is_sketches
from edge_agent.errors import WireError
from edge_agent.wire import frames, heads
from tests.support.wire import frame_strategies as any_
from tests.support.wire.same import same

HOUR = heads.BUCKET_US
START = 497_000 * HOUR


any_frames = any_.frames().map(lambda frame: replace(frame, define=None))  # no plan that the rows could contradict


@given(any_frames)
def test_head_and_parts_together_are_the_frame(frame: Frame) -> None:
    head, parts = heads.head(frames.envelope(frames.encode(frame)))
    assert isinstance(head, Frame)
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    kept = [(part.group, part.plan, part.late, heads.rows(part.body)) for part in parts]
    for was, now in zip(frame.groups, head.groups, strict=True):
        for sections, late in ((was.sections, False), (was.late, True)):
            for section in sections:
                rows = section.partials
                buckets = np.unique(rows.start // HOUR)
                for bucket in buckets:
                    group, plan, is_late, got = kept.pop(0)
                    assert (group, plan, is_late) == (was.group, section.plan, late)
                    assert same(got, narrow(rows.take(rows.start // HOUR == bucket)))
        assert same(now, _without_rows(was))
    assert not kept


def narrow(rows: Partials) -> Partials:
    """Wide integers that fit into 64 bits come back as int64."""

    def narrowed(column: Array) -> Array:
        wide = column.dtype == object and not is_bags(column) and not is_series(column) and not is_sketches(column)
        return column.astype(np.int64) if wide and all(abs(v) < 2**63 for v in column) else column

    states = {name: narrowed(column) for name, column in rows.states.items()}
    return Partials(rows.start, rows.end, rows.key, states)


def extent(section: Section) -> Extent:
    """As a head says it while the plan is not known, which may be one of sessions."""
    return Extent.of(replace(section, partials=narrow(section.partials), seen=NOT_SEEN), sessions=True)


def _without_rows(part: GroupPart) -> GroupPart:
    def empty(sections: tuple[Section, ...]) -> tuple[Section, ...]:
        return tuple(Section(s.plan, s.partials.take(slice(0, 0)), extent(s)) for s in sections)

    return replace(part, sections=empty(part.sections), late=empty(part.late))


@given(any_frames)
def test_a_part_says_what_its_rows_span(frame: Frame) -> None:
    """protocol 8.6: the range of the starts and the latest end; the starts lie in one bucket."""
    for part in heads.head(frames.envelope(frames.encode(frame)))[1]:
        rows = heads.rows(part.body)
        assert part.rows == len(rows) > 0
        assert (part.first_start_us, part.last_start_us) == (rows.start.min(), rows.start.max())
        assert (part.earliest_end_us, part.latest_end_us) == (rows.end.min(), rows.end.max())
        assert part.first_start_us // HOUR == part.last_start_us // HOUR


def test_late_and_on_time_rows_are_parts_of_their_own() -> None:
    """protocol 8.6"""
    rows = Partials(np.array([START]), np.array([START + 1]), np.array([4]), {"count": np.array([3])})
    frame = Frame(1, 1, groups=(GroupPart(7, START, (Section(2, rows),), (Section(2, rows),)),))
    _, parts = heads.head(frames.envelope(frames.encode(frame)))
    assert [(part.group, part.plan, part.late, part.rows) for part in parts] == [(7, 2, False, 1), (7, 2, True, 1)]


def test_rows_of_several_hours_become_several_parts() -> None:
    start = START + np.arange(240) * (HOUR // 60)
    rows = Partials(start, start + HOUR // 60, np.zeros(240, np.int64), {"count": np.arange(1, 241)})
    _, parts = heads.head(
        frames.envelope(frames.encode(Frame(1, 1, groups=(GroupPart(0, None, (Section(0, rows),)),))))
    )
    assert [part.rows for part in parts] == [60] * 4


def test_a_frame_of_a_few_bytes_does_not_make_a_row_of_the_table_for_every_hour_of_a_century() -> None:
    """protocol 2.1: the rows of one section may lie in as many hours as there are rows."""

    def parts(hours: int) -> int:
        start = START + np.arange(hours) * HOUR
        rows = Partials(start, start + HOUR, np.zeros(hours, np.int64), {"count": np.ones(hours, np.int64)})
        frame = Frame(1, 1, groups=(GroupPart(0, None, (Section(0, rows), Section(1, rows.take(slice(0, 1))))),))
        return len(heads.head(frames.envelope(frames.encode(frame)))[1])

    assert parts(MOST_SECTIONS - 1) == MOST_SECTIONS
    with pytest.raises(WireError, match="different hours"):
        parts(MOST_SECTIONS)


def test_rows_that_contradict_their_plan_are_refused_where_it_is_known() -> None:
    """protocol 3.6: the body is bad; whether this frame defines the plan or one before it."""
    plan = Plan(b"12345678", "slice", ("count", "sum"), None, 1, ())
    rows = Partials(np.array([START]), np.array([START + 1]), np.array([4]), {"count": np.array([3])})
    frame = Frame(1, 1, groups=(GroupPart(7, START, (Section(2, rows),)),))
    envelope = frames.envelope(frames.encode(frame))
    assert len(heads.head(envelope)[1]) == 1
    with pytest.raises(WireError, match="has 2 columns"):
        heads.head(envelope, {2: plan})
    with pytest.raises(WireError, match="has 2 columns"):
        heads.head(frames.envelope(frames.encode(replace(frame, define=Define(plans=((2, 7, plan),))))))


def test_a_heartbeat_has_no_parts() -> None:
    """protocol 2.5"""
    heartbeat = Heartbeat(1, 5, ((0, START),))
    assert heads.head(frames.envelope(frames.encode_heartbeat(heartbeat))) == (heartbeat, ())
