"""Foreign bytes and every decoder that may get them, for tests."""

from __future__ import annotations

from collections.abc import Callable

import cbor2

from edge_agent.errors import WireError
from edge_agent.wire import frames, heads, readings, receipts, snapshot

Tag = cbor2.CBORTag


def wrapped(body: bytes, *, version: object = 1, epoch: object = 1, seq: object = 1) -> bytes:
    """A body in an envelope."""
    return cbor2.dumps([version, epoch, seq, body])


def settle(decode: Callable[[bytes], object], payload: bytes) -> bool:
    """Whether it decodes; anything but a value or a WireError ends the test."""
    try:
        decode(payload)
    except WireError as err:
        return not str(err)  # without a reason it would count as decoded
    return True


DECODERS: dict[str, Callable[[bytes], object]] = {
    "message": frames.decode,
    "body": lambda payload: frames.decode(wrapped(payload)),
    "heartbeat": lambda payload: frames.decode(wrapped(payload, seq=None)),
    "section": lambda payload: frames.decode(wrapped(b"\x83\x00\xf6" + payload)),
    "column": lambda payload: frames.decode(wrapped(b"\x83\x00\xf6\x86\x00\x00\x00\x00" + payload + payload)),
    "extras": lambda payload: frames.decode(wrapped(b"\x81\x82\x01" + payload)),
    "head": heads.head,
    "part": heads.rows,
    "receipt": receipts.decode,
    "readings": readings.decode,
    "state": snapshot.loads,
}

U8 = Tag(64, b"\x01\x02")
