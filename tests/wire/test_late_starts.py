"""Where late rows and gap records of a frame begin: what a lander knows of a body without its columns."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.algebra.frame import Frame, Gap
from edge_agent.algebra.query.query import Group
from edge_agent.wire import frames, late_starts, sections
from tests.support.wire import frame_strategies as any_

UNTIMED = Gap((Group("s", "", (), 0),), 5, 5, 1, (), "quota")
OF_ALL = Gap((), 7, 9, 1, (), "quota")  # concerns all groups of its sender


def starts_of(frame: Frame) -> list[int]:
    timed = [gap for gap in frame.gaps if gap.end_us > gap.start_us]
    of_all = ("damaged", "quota", "poison")
    gaps = [gap.start_us for gap in timed if gap.groups or (gap.reason in of_all and not gap.nodes)]
    return gaps + [int(section.partials.start.min()) for part in frame.groups for section in part.late]


@example(Frame(7, 3, gaps=(UNTIMED,)))
@example(Frame(7, 3, gaps=(UNTIMED, OF_ALL, replace(OF_ALL, start_us=6, nodes=("x",)))))
@given(any_.frames())
def test_the_earliest_start_is_that_of_the_decoded_frame(frame: Frame) -> None:
    """protocol 3.2"""
    found = late_starts.earliest_of(frames.envelope(frames.encode(frame)))
    starts = starts_of(frame)
    if all(us > 0 for us in starts):
        assert found == min(starts, default=None)
    else:
        assert found == -min((us for us in starts if us > 0), default=0)


@given(any_.frames(), st.integers(0, 2_000), st.integers(0, 255))
def test_a_body_that_cannot_be_read_stops_nothing(frame: Frame, at: int, value: int) -> None:
    """protocol 3.6: the root settles it."""
    envelope = frames.envelope(frames.encode(frame))
    body = bytearray(envelope.body)
    body[at % len(body)] = value
    found = late_starts.earliest_of(envelope._replace(body=bytes(body)))
    assert found is None or isinstance(found, int)
    assert late_starts.earliest_of(envelope._replace(body=envelope.body[:-1])) is None


@pytest.mark.parametrize("body", [[0, None, *[[-1, 7, 0, [0, 65_536]]] * 11_000], [0, None, *[[-1, 7, 0, 0]] * 60_000]])
def test_a_frame_that_no_parent_takes_costs_the_lander_nothing(body: list[object]) -> None:
    """protocol 2.1: it asks for each frame where late rows begin, before anybody has decoded it; 130 kB took 20 s."""
    envelope = frames.envelope(cbor2.dumps([1, 7, 1, cbor2.dumps(body)]))
    with mock.patch.object(sections, "first_start", wraps=sections.first_start) as looked:
        assert late_starts.earliest_of(envelope) is None
    assert looked.call_count == 0


def test_rows_are_counted_before_they_are_made() -> None:
    envelope = frames.envelope(cbor2.dumps([1, 7, 1, cbor2.dumps([0, None, *[[-1, 7, 0, [0, 30_000]]] * 4_000])]))
    with mock.patch.object(sections, "_decode_where", wraps=sections._decode_where) as made:
        assert late_starts.earliest_of(envelope) is None
    assert made.call_count == 2
