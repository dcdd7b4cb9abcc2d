"""Splits a frame for storage at the root: into a head without rows, and parts with rows that can be decoded alone.

A part has rows of one section whose starts lie in one bucket (docs/protocol.md 8.6). Source: schemas/frame.cddl, rule
`part`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from edge_agent.algebra.frame import MOST_SECTIONS, Extent, Frame, Heartbeat, Plan, Section
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.errors import WireError
from edge_agent.wire import frames, sections
from edge_agent.wire.cbor import an_array, an_int, dumps, loads
from edge_agent.wire.columns import numeric

BUCKET_US: Final = 3_600_000_000  # one hour: keeps neighbouring windows in one file of the frame table


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one section whose starts lie in one bucket. group, plan: numbers of the frame's epoch.

    number: 1, 2, ... within the frame. rows: how many. first_start_us, last_start_us: lowest and highest start. body:
    input of the function `rows`. readings: number of readings in the rows.
    """

    number: int
    group: int
    plan: int
    late: bool
    rows: int
    first_start_us: int
    last_start_us: int
    earliest_end_us: int
    latest_end_us: int
    body: bytes
    readings: int = 0


Parts = dict[tuple[str, int, int], tuple[Part, ...]]  # (node, epoch, seq) of a frame -> its parts


def parts_of(frame: Frame) -> tuple[Part, ...]:
    """The parts of a decoded frame, without bodies: one per section, numbered from 1."""
    found = [
        (part.group, late, section)
        for part in frame.groups
        for late, sections_ in ((False, part.sections), (True, part.late))
        for section in sections_
    ]
    return tuple(
        _part(number, group, section, b"", late=late) for number, (group, late, section) in enumerate(found, 1)
    )


def bare(frame: Frame) -> Frame:
    """The frame without its sections."""
    return replace(frame, groups=tuple(replace(part, sections=(), late=()) for part in frame.groups))


def head(
    envelope: frames.Envelope, plans: Mapping[int, Plan] | None = None
) -> tuple[Frame | Heartbeat, tuple[Part, ...]]:
    """Decode a message. Returns its head, which has no rows, and its parts.

    plans: known plans of the epoch. Rows are checked if their plan is known or defined in the frame. A frame has at
    most MOST_SECTIONS parts, since each is a row of a table; nodes put fewer rows into one. Raises: WireError.
    """
    if envelope.seq is None:
        return frames.decode_body(envelope), ()
    frame, found = frames.sections_of(envelope)
    known = dict(plans or {})
    if frame.define is not None:
        known.update((number, plan) for number, _, plan in frame.define.plans)
    parts: list[Part] = []
    for group, decoded in found:
        rows = decoded.section.partials
        if decoded.section.plan in known:
            decoded.section.check(known[decoded.section.plan])
        first, last, _, _ = _edges(decoded.section)
        one = first // BUCKET_US == last // BUCKET_US
        buckets = () if one else _by_bucket(rows)
        if len(parts) + max(len(buckets), 1) > MOST_SECTIONS:
            raise WireError(f"rows of more than {MOST_SECTIONS} different hours and sections")
        if one:
            parts.append(_part(len(parts) + 1, group, decoded.section, _body(_anchored(decoded)), late=decoded.late))
            continue
        for index in buckets:
            section = Section(decoded.section.plan, rows.take(index))
            item = sections.encode(section, None, late=decoded.late)
            parts.append(_part(len(parts) + 1, group, section, _body(item), late=decoded.late))
    return _without_rows(frame, known), tuple(parts)


def _by_bucket(rows: Partials) -> list[Ints]:
    """The numbers of the rows of each bucket, in order. Sorted once: a message may have rows of thousands of hours."""
    bucket = rows.start // BUCKET_US
    order = np.argsort(bucket, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(bucket[order])) + 1)


def _anchored(decoded: sections.Decoded) -> list[Any]:
    """The section's item with ranges counted from tick 0 instead of the frontier's tick."""
    plan, tick, where, *rest = decoded.item
    if type(where) is int:
        return [plan, tick, where + decoded.anchor, *rest]
    first, length = where
    if type(first) is int:
        return [plan, tick, [first + decoded.anchor, length], *rest]
    starts = decoded.section.partials.start // sections.TICKS_US[tick]
    return [plan, tick, [numeric.encode_ints(starts), length], *rest]


def _body(item: list[Any]) -> bytes:
    return dumps([frames.VERSION, item])


def _part(number: int, group: int, section: Section, body: bytes, *, late: bool) -> Part:
    rows = section.partials
    return Part(
        number,
        group,
        section.plan,
        late,
        len(rows),
        *_edges(section),
        body,
        section.readings,
    )


def _edges(section: Section) -> tuple[int, int, int, int]:
    """(lowest start, highest start, lowest end, highest end). The section must have a row."""
    if section.seen.range_us is not None:
        start_us, end_us = section.seen.range_us
        return start_us, start_us, end_us, end_us
    rows = section.partials
    return int(rows.start.min()), int(rows.start.max()), int(rows.end.min()), int(rows.end.max())


def _without_rows(frame: Frame, plans: Mapping[int, Plan]) -> Frame:
    """The frame with extents instead of rows. Extents of sessions, and of unknown plans, include the pieces."""

    def heads(found: tuple[Section, ...]) -> tuple[Section, ...]:
        return tuple(Section(s.plan, s.partials.take(slice(0, 0)), _extent(s, plans.get(s.plan))) for s in found)

    groups = tuple(replace(part, sections=heads(part.sections), late=heads(part.late)) for part in frame.groups)
    return replace(frame, groups=groups)


def _extent(section: Section, plan: Plan | None) -> Extent:
    return Extent.of(section, sessions=plan is None or plan.kind in {"session", "marker"})


def rows(body: bytes) -> Partials:
    """Decode the rows of a part, with columns named by position. Raises: WireError."""
    version, item = an_array(loads(body, "part"), "part", 2, 2)
    if an_int(version, 0, 2**32 - 1, "version") != frames.VERSION:
        raise WireError(f"part of version {version}: this node reads version {frames.VERSION}")
    return sections.decode(item, None, sections.MAX_ROWS).section.partials
