"""Converts frames and heartbeats to bytes and back. Source: schemas/frame.cddl version 1.

A message is an envelope [version, epoch, seq, body]. The envelope is decoded separately and has the same form in every
version (docs/protocol.md 2.1), so a frame with an invalid body can be receipted by its seq (3.6). Frames can be decoded
in any order of arrival; the definitions of the epoch are needed only to name columns, keys and groups.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from edge_agent.algebra.frame import (
    MAX_COLUMNS,
    MAX_FRAME_BYTES,
    MOST_SECTIONS,
    Define,
    Flush,
    Frame,
    GroupPart,
    Heartbeat,
    Section,
)
from edge_agent.errors import WireError
from edge_agent.wire import definitions, fields, members, sections
from edge_agent.wire.cbor import ARRAY, UINT, an_array, an_int, dumps, head, loads, string
from edge_agent.wire.cbor import BYTES as BYTE_STRING

VERSION: Final = 1
MAX_ITEM_BYTES: Final = 108 * 1024  # of a definition or a gap record: a frame has room for one beside its headers
MAX_GROUP_BYTES: Final = 100 * 1024  # of a group: a gap record names one beside its reason, leaves and evidence
MOST_STORED_BYTES: Final = 2**30  # of a frame in the state of a node: practically unlimited, it came as a message
_NULL: Final = b"\xf6"  # CBOR null: the seq of a heartbeat
# Bits of the first item of `extras`: which items follow, in this order.
BIRTH, DEFINE, MEMBERS, GAPS, FLUSH, LEAVE, EXCEPTIONS, REGISTERS, CHANGES = (1 << bit for bit in range(9))
_EXTRAS: Final = (BIRTH, DEFINE, MEMBERS, GAPS, FLUSH, LEAVE, EXCEPTIONS, REGISTERS, CHANGES)


class Envelope(NamedTuple):
    """The fields of a message. body: not decoded yet. seq: None for a heartbeat."""

    version: int
    epoch: int
    seq: int | None
    body: bytes


def envelope(payload: bytes) -> Envelope:
    """Read the envelope of a message of any version. Raises: WireError; the message then cannot be receipted."""
    major, size, at = head(payload, 0)
    if (major, size) != (ARRAY, 4):
        raise WireError(f"envelope: wanted an array of 4 items, got major type {major} with {size}")
    version, at = _unsigned(payload, at, 2**32 - 1, "version")
    epoch, at = _unsigned(payload, at, fields.EPOCH_LIMIT, "epoch")
    seq: int | None = None
    if payload[at : at + 1] == _NULL:
        at += 1
    else:
        seq, at = _unsigned(payload, at, fields.MAX_SEQ, "seq")
    body, at = string(payload, at, BYTE_STRING)
    if at != len(payload):
        raise WireError(f"envelope: {len(payload) - at} bytes after the end")
    return Envelope(version, epoch, seq, body)


def _unsigned(payload: bytes, at: int, most: int, what: str) -> tuple[int, int]:
    major, value, after = head(payload, at)
    if major != UINT or value > most:
        raise WireError(f"envelope: wanted {what} of 0..{most}, got major type {major} with {value}")
    return value, after


def encode(frame: Frame, most_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Encode a frame. The `states` of its sections must be in the order of the plan's basis.

    Raises: ValueError for values out of range and for more than most_bytes: both are bugs of this node.
    """
    if frame.birth is not None and (frame.seq != 0 or frame.birth.epoch_id >> 32 != frame.epoch):
        raise ValueError(f"a birth must be frame 0 of the epoch in its id, got epoch {frame.epoch}, frame {frame.seq}")
    if len({part.group for part in frame.groups}) != len(frame.groups):
        raise ValueError("a frame contains a group twice")
    body = _extras(frame)
    for part in frame.groups:
        body += (part.group, part.frontier_us)
        body += [sections.encode(section, part.frontier_us, late=False) for section in part.sections]
        body += [sections.encode(section, part.frontier_us, late=True) for section in part.late]
    return _wrap(frame.epoch, frame.seq, body, most_bytes)


def _extras(frame: Frame) -> list[Any]:
    items = {
        BIRTH: frame.birth and definitions.birth_item(frame.birth),
        DEFINE: frame.define and definitions.define_item(frame.define),
        MEMBERS: frame.members and members.members_item(frame.members),
        GAPS: frame.gaps and members.gaps_item(frame.gaps),
        FLUSH: frame.flush and _flush_item(frame.flush),
        LEAVE: frame.leave,
        EXCEPTIONS: members.exceptions_item(frame.groups) or None,
        REGISTERS: members.registers_item(frame.groups) or None,
        CHANGES: members.exception_changes_item(frame.groups) or None,
    }
    present = {bit: item for bit, item in items.items() if item is not None and item != ()}
    return [[sum(present), *present.values()]] if present else []


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    body: list[Any] = [heartbeat.last_seq]
    for pair in heartbeat.frontiers:
        body += pair
    return _wrap(heartbeat.epoch, None, body, MAX_FRAME_BYTES)


def _wrap(epoch: int, seq: int | None, body: list[Any], most_bytes: int) -> bytes:
    payload = dumps([VERSION, epoch, seq, dumps(body)])
    if len(payload) > most_bytes:
        raise ValueError(f"a message of {len(payload)} bytes, at most {most_bytes} are allowed")
    return payload


def encode_stored(frame: Frame) -> bytes:
    """Encode a frame of a child for the state of this node. Raises: ValueError for values out of range.

    It may be longer than as it arrived, and than a message, because the child may deflate better.
    """
    return encode(frame, MOST_STORED_BYTES)


def decode_stored(payload: bytes) -> Frame | Heartbeat:
    """Inverse of `encode_stored`. Raises: WireError."""
    found = envelope(payload)
    assert found.seq is not None
    body, rows = _body(found, MOST_STORED_BYTES), sections.MAX_ROWS
    return _frame(found.epoch, found.seq, body, rows, rows * MAX_COLUMNS)[0]


def decode(payload: bytes) -> Frame | Heartbeat:
    """Decode a message. Columns are named by position ('0', '1', ...) until `Section.named` is called.

    Raises: WireError, and nothing else, unless the message follows schemas/frame.cddl version 1.
    """
    return decode_body(envelope(payload))


def decode_body(envelope: Envelope) -> Frame | Heartbeat:
    """The second step of `decode`: separate, as frames with invalid bodies can be receipted. Raises: WireError."""
    if envelope.seq is None:
        return _heartbeat(envelope.epoch, _body(envelope))
    return sections_of(envelope)[0]


def run_of(envelope: Envelope) -> int:
    """Number of seqs that a message covers: more than one if a gap record replaces several frames.

    Decodes only bodies with gap records; of others it reads a few bytes. Raises: WireError.
    """
    if not _says(envelope) & GAPS:  # also an invalid body: it covers only its own seq
        return 1
    frame = decode_body(envelope)
    gaps = frame.gaps if isinstance(frame, Frame) else ()
    return 1 + sum(max(gap.run - 1, 0) for gap in gaps)


def flush_of(envelope: Envelope) -> Flush | None:
    """The flush to which a message belongs. Decodes only frames of a flush. Raises: WireError."""
    if not _says(envelope) & FLUSH:
        return None
    frame = decode_body(envelope)
    return frame.flush if isinstance(frame, Frame) else None


def _says(envelope: Envelope) -> int:
    """The bits of the extras of a frame, by its first bytes; 0 for a heartbeat or an invalid body."""
    try:
        many, size, at = head(envelope.body, 0)
        extras, _, at = head(envelope.body, at) if (many, size > 0) == (ARRAY, True) else (None, 0, 0)
        major, bits, _ = head(envelope.body, at) if extras == ARRAY else (None, 0, 0)
    except WireError:
        return 0
    return bits if major == UINT and envelope.seq is not None else 0


def sections_of(envelope: Envelope) -> tuple[Frame, list[tuple[int, sections.Decoded]]]:
    """Decode a frame. Returns it, and its sections in order as (group number, section with its CBOR item).

    envelope: that of a frame, not of a heartbeat. Raises: WireError.
    """
    assert envelope.seq is not None
    found = _frame(envelope.epoch, envelope.seq, _body(envelope))
    if len(envelope.body) > MAX_GROUP_BYTES:
        _check_sizes(found[0])
    return found


def _check_sizes(frame: Frame) -> None:
    """Refuse definitions and gap records that fill a frame, because the next node could not pass them on (2.1)."""
    keys, nodes, groups, plans, queries, sensors = definitions.define_item(frame.define or Define())
    for item in (*keys[1], *nodes[1], *groups, *plans, *queries, *sensors, *members.gaps_item(frame.gaps)):
        if (size := len(dumps(item))) > MAX_ITEM_BYTES:
            raise WireError(f"a definition or gap record of {size} bytes, at most {MAX_ITEM_BYTES} are allowed")
    for item in (*groups, *(group for record in members.gaps_item(frame.gaps) for group in record[0])):
        if (size := len(dumps(item))) > MAX_GROUP_BYTES:
            raise WireError(f"a group of {size} bytes, at most {MAX_GROUP_BYTES} are allowed")


def _body(envelope: Envelope, most_bytes: int = MAX_FRAME_BYTES) -> list[Any]:
    if envelope.version != VERSION:
        raise WireError(f"version {envelope.version}: this node reads version {VERSION}")
    if len(envelope.body) > most_bytes:
        raise WireError(f"a body of {len(envelope.body)} bytes, at most {most_bytes} are allowed")
    return an_array(loads(envelope.body, "body"), "body", 0)


def _heartbeat(epoch: int, body: list[Any]) -> Heartbeat:
    if len(body) % 2 != 1:
        raise WireError(f"heartbeat: wanted last seq and pairs (group, frontier), got {len(body)} items")
    last = an_int(body[0], -1, fields.MAX_SEQ, "last seq")
    groups = [an_int(number, 0, fields.MAX_GROUPS - 1, "group") for number in body[1::2]]
    if len(set(groups)) != len(groups):
        raise WireError("heartbeat: a group occurs twice")
    return Heartbeat(epoch, last, tuple(zip(groups, (fields.a_time(f, "frontier") for f in body[2::2]), strict=True)))


def _frame(
    epoch: int, seq: int, body: list[Any], most_sections: int = MOST_SECTIONS, cells: int = sections.MAX_CELLS
) -> tuple[Frame, list[tuple[int, sections.Decoded]]]:
    """See `sections_of`. most_sections, cells: limits; a frame that waits here may have come before there were any."""
    extras: dict[int, Any] = {}
    at = 0
    if body and type(body[0]) is list:
        extras, at = _extras_of(body[0]), 1
    exceptions, registers, changes = (extras.get(bit, {}) for bit in (EXCEPTIONS, REGISTERS, CHANGES))
    groups: dict[int, GroupPart] = {}
    found: list[tuple[int, sections.Decoded]] = []
    room = sections.MAX_ROWS
    while at < len(body):
        number = an_int(body[at], 0, fields.MAX_GROUPS - 1, "group")
        if number in groups:
            raise WireError(f"group {number} occurs twice")
        if at + 1 == len(body):
            raise WireError(f"group {number}: wanted its frontier")
        frontier_us = fields.maybe(fields.a_time, body[at + 1], "frontier")
        on_time: list[Section] = []
        late: list[Section] = []
        at += 2
        while at < len(body) and type(body[at]) is list:
            if len(found) == most_sections:
                raise WireError(f"more than {most_sections} sections")
            decoded = sections.decode(body[at], frontier_us, room, cells)
            room, cells = room - decoded.size, cells - decoded.cells
            (late if decoded.late else on_time).append(decoded.section)
            found.append((number, decoded))
            at += 1
        groups[number] = GroupPart(
            number,
            frontier_us,
            tuple(on_time),
            tuple(late),
            exceptions.get(number),
            registers.get(number, ()),
            *changes.get(number, ()),
        )
    if not extras:
        return Frame(epoch, seq, groups=tuple(groups.values())), found
    birth = extras.get(BIRTH)
    if birth is not None and (seq != 0 or birth.epoch_id >> 32 != epoch):
        raise WireError(f"a birth must be frame 0 of the epoch in its id, got epoch {epoch}, frame {seq}")
    if not groups.keys() >= exceptions.keys() | registers.keys() | changes.keys():
        raise WireError("exceptions or registers of a group that is not in the frame")
    frame = Frame(
        epoch,
        seq,
        birth,
        extras.get(DEFINE),
        extras.get(MEMBERS, ()),
        tuple(groups.values()),
        extras.get(GAPS, ()),
        extras.get(FLUSH),
        extras.get(LEAVE),
    )
    if seq + sum(max(gap.run - 1, 0) for gap in frame.gaps) > fields.MAX_SEQ:
        raise WireError(f"gap records at {seq} stand for more frames than there are numbers")
    return frame, found


def _flush_item(flush: Flush) -> object:
    return flush.after if flush.successor is None else [flush.after, flush.successor]


def _flush(value: object) -> Flush:
    after, *successor = value if isinstance(value, list) and len(value) == 2 else (value,)
    return Flush(
        an_int(after, -1, fields.MAX_SEQ, "last seq before the flush"),
        an_int(successor[0], 0, fields.EPOCH_LIMIT, "epoch after the flush") if successor else None,
    )


_READ: Final = {
    BIRTH: definitions.birth,
    DEFINE: definitions.define,
    MEMBERS: members.members,
    GAPS: members.gaps,
    FLUSH: _flush,
    LEAVE: lambda value: an_int(value, 0, fields.EPOCH_LIMIT, "successor epoch"),
    EXCEPTIONS: members.exceptions,
    REGISTERS: members.registers,
    CHANGES: members.exception_changes,
}


def _extras_of(item: list[Any]) -> dict[int, Any]:
    mask = an_int(an_array(item, "extras", 1)[0], 1, sum(_EXTRAS), "extras")
    present = [bit for bit in _EXTRAS if mask & bit]
    if len(item) != 1 + len(present):
        raise WireError(f"extras: wanted {len(present)} items after {mask}, got {len(item) - 1}")
    return {bit: _READ[bit](value) for bit, value in zip(present, item[1:], strict=True)}
