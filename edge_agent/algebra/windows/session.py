"""Session windows: readings of a key until it is silent for longer than the gap. Not context-free: no edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Session:
    """start = first reading, end = last reading + gap; readings exactly one gap apart are one session.

    max_us: a session is cut at its multiples since 1970; 0: no maximum (docs/protocol.md 5.5).
    """

    gap_us: int
    max_us: int = 0
    type: ClassVar[str] = "session"
