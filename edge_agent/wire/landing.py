"""Landing files, which the lander writes and the root reads. Source: schemas/landing.cddl.

A file is a CBOR sequence (RFC 8742) of records [topic, receive time, payload]. The first record is the lander's own. It
contains a checksum of every other record and ends with its own, so that truncated and changed files are detected. The
intact records of such a file are valid.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from edge_agent.algebra.frame import Receipt
from edge_agent.errors import WireError
from edge_agent.wire.cbor import ARRAY, BYTES, NINT, UINT, a_text, an_array, an_int, dumps, head, loads, shown, string
from edge_agent.wire.cbor import TEXT as TEXT_TYPE
from edge_agent.wire.fields import (
    EPOCH_LIMIT,
    ID_LIMIT,
    MAX_REVISION,
    MAX_SEQ,
    NAME,
    TEXT,
    a_node,
    a_time,
    each,
    maybe,
    seq_ranges,
)

SUFFIX: Final = ".cborseq"  # of the names of landing files
TICK_TOPIC: Final = "tick"  # topic of the lander's own record
CHECK_BYTES: Final = 4  # of a CRC-32, most significant byte first
MOST_UNCHECKED: Final = 11  # the payload of a tick without checksums of records has at most so many bytes

Record = tuple[str, int, bytes]  # topic, receive time [us], payload
# node ('' for all), query, revision, canonical text ('': the query is removed; None: of an unknown version)
Published = tuple[str, str, int, str | None]


@dataclass(frozen=True, slots=True)
class LanderTick:
    """The lander's own record in a landing file. connected: whether the lander is connected to its broker.

    journal: id of the lander's journal (docs/protocol.md 3.7, 4.4). checks: CRC-32 of each later record of the file;
    None in files of old landers. received: frames received so far, in this or earlier files, as (child, receipt).
    published: query definitions on the lander's broker: those that changed, and from time to time all of them.
    sealed: whether the record ends with its own checksum; older landers wrote none.
    """

    journal: int
    connected: bool
    checks: tuple[int, ...] | None = None
    received: tuple[tuple[str, Receipt], ...] = ()
    published: tuple[Published, ...] = ()
    sealed: bool = False


def encode(topic: str, received_us: int, payload: bytes) -> bytes:
    """Encode a record. received_us: the time when the lander received the message, by its clock."""
    return dumps([topic, received_us, payload])


def encode_tick(
    received_us: int,
    journal: int,
    records: Iterable[bytes] | None = None,
    received: Iterable[tuple[str, Receipt]] = (),
    published: Iterable[Published] = (),
    *,
    connected: bool,
) -> bytes:
    """Encode the lander's own record, the first of a file. records: all later records; None: write no checksums."""
    content: list[object] = [journal, int(connected)]
    if records is not None:
        checks = [zlib.crc32(record) for record in records]
        content.append(struct.pack(f">{len(checks)}I", *checks))
        content += [[_receipt(node, receipt) for node, receipt in received], [list(each) for each in published]]
        content.append(bytes(CHECK_BYTES))
    record = encode(TICK_TOPIC, received_us, dumps(content))
    return record if records is None else record[:-CHECK_BYTES] + _check(record[:-CHECK_BYTES])


@lru_cache(maxsize=1)  # `iterate` reads the tick of a file, and then its caller does
def tick(payload: bytes) -> LanderTick:
    """Decode the payload of a record whose topic is TICK_TOPIC. Raises: WireError."""
    fields = an_array(loads(payload, "tick"), "tick", 2, 6)
    journal, connected = an_int(fields[0], 0, ID_LIMIT, "journal"), an_int(fields[1], 0, 1, "connected") == 1
    if len(fields) == 2:
        return LanderTick(journal, connected)
    if len(fields) < 4 or not isinstance(fields[2], bytes) or len(fields[2]) % CHECK_BYTES:
        raise WireError("tick: wanted the checksums of the records, 4 bytes each, and the list of received frames")
    checks = struct.unpack(f">{len(fields[2]) // CHECK_BYTES}I", fields[2])
    received = each(lambda item: _received(item, journal), fields[3], "received")
    published = each(_published, fields[4], "published") if len(fields) > 4 else ()
    if len(fields) > 5 and not (isinstance(fields[5], bytes) and len(fields[5]) == CHECK_BYTES):
        raise WireError(f"tick: wanted its checksum, {CHECK_BYTES} bytes")
    return LanderTick(journal, connected, checks, received, published, len(fields) > 5)


def _published(item: object) -> Published:
    node, query, revision, text = an_array(item, "published", 4, 4)
    return (
        a_text(node, "node", NAME),
        a_text(query, "query", NAME),
        an_int(revision, 0, MAX_REVISION, "revision"),
        maybe(a_text, text, "definition", TEXT),
    )


def _receipt(node: str, receipt: Receipt) -> list[object]:
    earliest = [] if receipt.earliest_us is None else [receipt.earliest_us]
    return [node, receipt.epoch, receipt.upto, [list(pair) for pair in receipt.above], *earliest]


def _received(item: object, journal: int) -> tuple[str, Receipt]:
    fields = an_array(item, "received", 4, 5)
    upto = an_int(fields[2], 0, MAX_SEQ, "upto")
    above = seq_ranges(fields[3], upto)
    earliest_us = a_time(fields[4], "earliest start") if len(fields) > 4 else None
    epoch = an_int(fields[1], 0, EPOCH_LIMIT, "epoch")
    return a_node(fields[0], "child"), Receipt(epoch, journal, upto, above, earliest_us=earliest_us)


def iterate(content: bytes) -> Iterator[Record]:
    """Yield the records of a file in order, without a damaged tick and without those that fail their checksum.

    Raises: WireError, after the valid records, for a damaged file. The message has the offset at which the content is
    no record, or the number of missing records; what is wrong with the tick; and the numbers of the records that fail
    their checksum.
    """
    at, count, listing = 0, 0, _Listing()
    found, changed = list[str](), list[int]()
    while at < len(content):
        try:
            record, end = _record(content, at)
        except (WireError, UnicodeDecodeError) as err:
            found.append(f"damaged at byte {at} of {len(content)}: {err}")
            break
        encoded = content[at:end]
        try:
            own = _own(record, encoded, first=not count)
            if not listing.has(count, encoded):
                changed.append(count)
            else:
                listing = listing if count else _Listing(None if own is None else own.checks)
                yield record
        except WireError as err:
            listing = listing if count else _Listing(None, record[2] if len(record[2]) > MOST_UNCHECKED else b"")
            found.append(f"damaged: record {count}, the lander's own: {err}")
        at, count = end, count + 1
    else:
        if listing.checks is not None and (missing := len(listing.checks) + 1 - count) > 0:
            found.append(f"cut short: {missing} of {len(listing.checks) + 1} records are missing")
    if changed:
        found.append(f"damaged: records {changed[:10]} fail their checksums ({len(changed)} in all)")
    if found:
        raise WireError(f"landing file {', '.join(found)}")


def tick_us(content: bytes) -> int | None:
    """The lander's time in a file's first record, its tick [us]; None: it is damaged, or the file has none."""
    try:
        record, end = _record(content, 0)
        return None if _own(record, content[:end], first=True) is None else record[1]
    except (WireError, UnicodeDecodeError):
        return None


@dataclass(frozen=True, slots=True)
class _Listing:
    """Which records a tick lists. checks: of an intact tick; None: it has none. damaged: the payload of a damaged one.

    The order of the checksums in a damaged tick is not known. A record counts whose checksum is anywhere in it.
    """

    checks: Sequence[int] | None = None
    damaged: bytes = b""

    def has(self, number: int, encoded: bytes) -> bool:
        if self.damaged:
            return _check(encoded) in self.damaged
        if self.checks is None or not number:
            return True
        return number <= len(self.checks) and zlib.crc32(encoded) == self.checks[number - 1]


def _own(record: Record, encoded: bytes, *, first: bool) -> LanderTick | None:
    """Decode a tick; None for another record. first: whether it is the first of its file, where no frame belongs.

    Raises: WireError for a damaged tick.
    """
    topic, _, payload = record
    if topic != TICK_TOPIC:
        if first and _is_tick(payload):
            raise WireError(f"tick: its topic is {shown(topic)}")
        return None
    found = tick(payload)
    if found.sealed and _check(encoded[:-CHECK_BYTES]) != encoded[-CHECK_BYTES:]:
        raise WireError("tick: it fails its checksum")
    return found


def _is_tick(payload: bytes) -> bool:
    """Whether a payload is that of a tick. No frame is: its third item is no byte string."""
    try:
        tick(payload)
    except WireError:
        return False
    return True


def _check(encoded: bytes) -> bytes:
    return zlib.crc32(encoded).to_bytes(CHECK_BYTES, "big")


def _record(content: bytes, at: int) -> tuple[Record, int]:
    major, size, at = head(content, at)
    if (major, size) != (ARRAY, 3):
        raise WireError(f"wanted an array of 3 items, got major type {major} with {size}")
    topic, at = string(content, at, TEXT_TYPE)
    major, time, at = head(content, at)
    if major not in (UINT, NINT):
        raise WireError(f"wanted the receive time as an integer, got major type {major}")
    received_us = a_time(time if major == UINT else -1 - time, "receive time")
    payload, at = string(content, at, BYTES)
    return (topic.decode(), received_us, payload), at
