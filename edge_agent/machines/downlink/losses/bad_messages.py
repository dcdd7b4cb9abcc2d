"""Makes the gap record for a message that nobody can use (docs/protocol.md 3.6)."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from edge_agent.algebra.frame import Gap

EVIDENCE_BYTES: Final = 4_096  # of a bad message that travel upward; the hash is of the whole


def unreadable(node: str, why: str, payload: bytes) -> Gap:
    """The gap record with which the root shows a message that is no frame. It has no number, so nothing is lost with it
    (3.6).
    """
    return Gap((), 0, 0, 0, (node,), f"quarantined: {why}", 0, evidence(payload))


def evidence(payload: bytes) -> str:
    """A bad message as text: its length, SHA-256 and first bytes in base64."""
    head = base64.b64encode(payload[:EVIDENCE_BYTES]).decode("ascii")
    return f"{len(payload)} bytes, sha256 {hashlib.sha256(payload).hexdigest()}, base64 {head}"
