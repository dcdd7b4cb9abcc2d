"""Makes the gap record for an unreadable message (docs/protocol.md 3.6)."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from edge_agent.algebra.frame import Gap

EVIDENCE_BYTES: Final = 4_096  # so many bytes of a bad message are sent upward, with the hash of the whole


def unreadable(node: str, why: str, payload: bytes) -> Gap:
    """The gap record that shows a message without a readable envelope at the root. It declares no loss (3.6)."""
    return Gap((), 0, 0, 0, (node,), f"quarantined: {why}", 0, evidence(payload))


def evidence(payload: bytes) -> str:
    """A bad message as text: its length, SHA-256 and first bytes in base64."""
    head = base64.b64encode(payload[:EVIDENCE_BYTES]).decode("ascii")
    return f"{len(payload)} bytes, sha256 {hashlib.sha256(payload).hexdigest()}, base64 {head}"
