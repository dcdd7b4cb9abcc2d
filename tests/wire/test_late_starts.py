"""Where late rows and gap records of a frame begin: what a lander knows of a body without its columns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import Frame
from edge_agent.wire import frames, late_starts
from tests.support.wire import frame_strategies as any_


def starts_of(frame: Frame) -> list[int]:
    gaps = [gap.start_us for gap in frame.gaps if gap.groups and gap.end_us > gap.start_us]
    return gaps + [int(section.partials.start.min()) for part in frame.groups for section in part.late]


@given(any_.frames())
def test_the_earliest_start_is_that_of_the_decoded_frame(frame: Frame) -> None:
    """protocol 3.2"""
    found = late_starts.earliest_of(frames.envelope(frames.encode(frame)))
    assert found == min(starts_of(frame), default=None)


@given(any_.frames(), st.integers(0, 2_000), st.integers(0, 255))
def test_a_body_that_cannot_be_read_stops_nothing(frame: Frame, at: int, value: int) -> None:
    """protocol 3.6: the root settles it."""
    envelope = frames.envelope(frames.encode(frame))
    body = bytearray(envelope.body)
    body[at % len(body)] = value
    found = late_starts.earliest_of(envelope._replace(body=bytes(body)))
    assert found is None or isinstance(found, int)
    assert late_starts.earliest_of(envelope._replace(body=envelope.body[:-1])) is None
