"""Makes the gap record for an unreadable message (docs/protocol.md 3.6), and bounds the texts of all gap records."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import Final

from edge_agent.algebra.frame import Gap

EVIDENCE_BYTES: Final = 4_096  # so many bytes of a bad message are sent upward, with the hash of the whole
# Of a gap record that this node passes on: it has room for them beside the largest group, and repeats the reason for
# each group and leaf. The evidence takes 5 600 bytes.
MOST_REASON_BYTES: Final = 512
MOST_DETAIL_BYTES: Final = 6_144


def unreadable(node: str, why: str, payload: bytes) -> Gap:
    """The gap record that shows a message without a readable envelope at the root. It declares no loss (3.6)."""
    return bounded(Gap((), 0, 0, 0, (node,), f"quarantined: {why}", 0, evidence(payload)))


def shortened(text: str, most_bytes: int) -> str:
    """The beginning of a text, at most so many bytes long as UTF-8."""
    whole = text.encode()
    return text if len(whole) <= most_bytes else whole[: most_bytes - 3].decode(errors="ignore") + "..."


def bounded(gap: Gap) -> Gap:
    """A gap record with a reason and a detail that fit into the frames of this node (2.1)."""
    reason, detail = shortened(gap.reason, MOST_REASON_BYTES), shortened(gap.detail, MOST_DETAIL_BYTES)
    return gap if (reason, detail) == (gap.reason, gap.detail) else replace(gap, reason=reason, detail=detail)


def evidence(payload: bytes) -> str:
    """A bad message as text: its length, SHA-256 and first bytes in base64."""
    head = base64.b64encode(payload[:EVIDENCE_BYTES]).decode("ascii")
    return f"{len(payload)} bytes, sha256 {hashlib.sha256(payload).hexdigest()}, base64 {head}"
