"""Finds the earliest start of late rows and gap records of a frame, without decoding columns (docs/protocol.md 3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edge_agent.algebra.earliest_start import earliest_start
from edge_agent.algebra.frame import MAX_FRAME_BYTES, MOST_SECTIONS
from edge_agent.algebra.gap_scope import has_times
from edge_agent.errors import WireError
from edge_agent.wire import fields, members, sections
from edge_agent.wire.cbor import loads
from edge_agent.wire.frames import BIRTH, DEFINE, GAPS, MEMBERS, VERSION, Envelope


def earliest_of(envelope: Envelope) -> int | None:
    """The earliest start, as of `earliest_start`; None if the frame has no late rows and gap records, or is invalid."""
    if envelope.seq is None or envelope.version != VERSION or len(envelope.body) > MAX_FRAME_BYTES:
        return None
    try:
        body = loads(envelope.body, "body")
        return earliest_start(_starts(body)) if type(body) is list else None
    except WireError:  # the root quarantines a frame with an invalid body
        return None


def _starts(body: list[Any]) -> Iterator[int]:
    at = 0
    if body and type(body[0]) is list:
        at = 1
        yield from _of_gaps(body[0])
    frontier_us: int | None = None
    if sum(type(item) is list for item in body) - at > MOST_SECTIONS:
        raise WireError(f"more than {MOST_SECTIONS} sections")
    room = sections.MAX_ROWS
    while at < len(body):
        if type(body[at]) is not list:
            frontier_us = fields.maybe(fields.a_time, body[at + 1], "frontier") if at + 1 < len(body) else None
            at += 2
            continue
        if sections.is_late(body[at]):
            start_us, rows = sections.first_start(body[at], frontier_us, room)
            room -= rows
            yield start_us
        at += 1


def _of_gaps(extras: list[Any]) -> Iterator[int]:
    """Starts of the gap records that say themselves which windows they affect."""
    mask = extras[0] if extras else None
    if type(mask) is not int or not mask & GAPS:
        return
    before = sum(bool(mask & bit) for bit in (BIRTH, DEFINE, MEMBERS))
    if len(extras) > 1 + before:
        for gap in members.gaps(extras[1 + before]):
            if has_times(gap):
                yield gap.start_us
