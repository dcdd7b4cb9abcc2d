"""Landing files: a CBOR sequence (RFC 8742) of [topic, receive time, payload]; schemas/landing.cddl.

Written by the lander, read by the root. A file may end in the middle of a record (a power cut before its fsync); the
records before the damage are valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from edge_agent.errors import WireError
from edge_agent.wire.cbor import ARRAY, BYTES, NINT, TEXT, UINT, an_array, an_int, dumps, head, loads, string
from edge_agent.wire.fields import ID_LIMIT

TICK_TOPIC: Final = "tick"  # marks a record of the lander itself, not of a child


def encode(topic: str, received_us: int, payload: bytes) -> bytes:
    """One record. received_us: the lander's clock, microseconds."""
    return dumps([topic, received_us, payload])


def encode_tick(received_us: int, journal: int, *, connected: bool) -> bytes:
    """The lander's own record: its journal id, and whether it is connected to its broker (docs/protocol.md 3.7,
    4.4).
    """
    return encode(TICK_TOPIC, received_us, dumps([journal, int(connected)]))


def tick(payload: bytes) -> tuple[int, bool]:
    """(journal, connected) of a record whose topic is TICK_TOPIC. Raises: WireError."""
    journal, connected = an_array(loads(payload, "tick"), "tick", 2, 2)
    return an_int(journal, 0, ID_LIMIT, "journal"), an_int(connected, 0, 1, "connected") == 1


def iterate(content: bytes) -> Iterator[tuple[str, int, bytes]]:
    """The records of a file in order. Raises: WireError naming the offset of a damaged record, after the good ones."""
    at = 0
    while at < len(content):
        try:
            record, at = _record(content, at)
        except (WireError, UnicodeDecodeError) as err:
            raise WireError(f"landing file damaged at byte {at} of {len(content)}: {err}") from None
        yield record


def _record(content: bytes, at: int) -> tuple[tuple[str, int, bytes], int]:
    major, size, at = head(content, at)
    if (major, size) != (ARRAY, 3):
        raise WireError(f"wanted an array of 3 items, got major type {major} with {size}")
    topic, at = string(content, at, TEXT)
    major, time, at = head(content, at)
    if major not in (UINT, NINT):
        raise WireError(f"wanted a receive time, got major type {major}")
    payload, at = string(content, at, BYTES)
    return (topic.decode(), time if major == UINT else -1 - time, payload), at
