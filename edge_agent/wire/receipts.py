"""Converts receipts to bytes and back. Source: schemas/receipt.cddl, docs/protocol.md 3.2.

[version, epoch, journal, upto, ranges above, quarantined, ? horizon, ? time] (? = optional). The time is included only
if the child asked for it, so a child of an older version never gets the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edge_agent.algebra.frame import HORIZON_US, MAX_FRAME_BYTES, MAX_HORIZON_US, ParentTime, Receipt
from edge_agent.errors import WireError
from edge_agent.wire.cbor import an_array, an_int, dumps, loads
from edge_agent.wire.fields import EPOCH_LIMIT, ID_LIMIT, MAX_SEQ, seq_ranges

VERSION: Final = 1
MAX_TIME_US: Final = 2**61  # of the parent's clock, and of the child's time since boot
MAX_ERROR_US: Final = 2**40  # twelve days: more than any child accepts
MAX_RANGES: Final = 1_000  # further ranges are left out: their frames are sent again and receipted then


def encode(receipt: Receipt, time: ParentTime | None = None) -> bytes:
    """Encode a receipt, with at most MAX_RANGES ranges and quarantined seqs.

    time: for a child that asked for it (docs/protocol.md 4.3).
    """
    return dumps(
        [
            VERSION,
            receipt.epoch,
            receipt.journal,
            receipt.upto,
            [list(pair) for pair in receipt.above[:MAX_RANGES]],
            list(receipt.quarantined[:MAX_RANGES]),
            *([] if receipt.horizon_us == HORIZON_US and time is None else [receipt.horizon_us]),
            *([] if time is None else [[time.time_us, time.error_us, time.asked_us]]),
        ]
    )


def decode(payload: bytes) -> Receipt:
    """Inverse of `encode`. Raises: WireError unless the payload follows schemas/receipt.cddl version 1."""
    if len(payload) > MAX_FRAME_BYTES:
        raise WireError(f"a receipt of {len(payload)} bytes, at most {MAX_FRAME_BYTES} are allowed")
    fields = an_array(loads(payload, "receipt"), "receipt", 6, 8)
    if an_int(fields[0], 0, 2**32 - 1, "version") != VERSION:
        raise WireError(f"receipt of version {fields[0]}: this node reads version {VERSION}")
    upto = an_int(fields[3], 0, MAX_SEQ, "upto")
    above = seq_ranges(fields[4], upto, MAX_RANGES)
    _time(fields)
    quarantined = an_array(fields[5], "quarantined", 0, MAX_RANGES)
    return Receipt(
        an_int(fields[1], 0, EPOCH_LIMIT, "epoch"),
        an_int(fields[2], 0, ID_LIMIT, "journal"),
        upto,
        above,
        tuple(an_int(seq, 0, MAX_SEQ, "quarantined seq") for seq in quarantined),
        an_int(fields[6], 0, MAX_HORIZON_US, "horizon") if len(fields) > 6 else HORIZON_US,
    )


def time_in(payload: bytes) -> ParentTime | None:
    """The parent's time in a receipt; None if the receipt has none. Raises: WireError."""
    return _time(an_array(loads(payload, "receipt"), "receipt", 6, 8))


def _time(fields: Sequence[object]) -> ParentTime | None:
    if len(fields) < 8:
        return None
    time, error, asked = an_array(fields[7], "time", 3, 3)
    error_us = None if error is None else an_int(error, 0, MAX_ERROR_US, "error of the time")
    return ParentTime(an_int(time, 0, MAX_TIME_US, "time"), error_us, an_int(asked, 0, MAX_TIME_US, "asked"))
