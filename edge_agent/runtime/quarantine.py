"""Stores bad bytes with their reasons for the operator: a bounded file of JSON lines beside the spool."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Final

log = logging.getLogger("headwater")

QUARANTINE: Final = "quarantine.jsonl"
MOST_BYTES: Final = 2 * 1024 * 1024  # size of the file; the previous file is kept, so a flood needs twice as much
SHOWN_BYTES: Final = 16 * 1024  # stored of a payload: frames have up to 128 kB, and their heads show most errors


class QuarantineFile:
    """`quarantine.jsonl`: one object per line, {"at_us", "node", "reason", "size_bytes", "hex"}."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0  # since the start of this process

    def put(self, now_us: int, node: str, reason: str, payload: bytes) -> None:
        """Append one payload. A disk error is logged and has no other effect."""
        self.count += 1
        line = json.dumps(
            {
                "at_us": now_us,
                "node": node,
                "reason": reason,
                "size_bytes": len(payload),
                "hex": payload[:SHOWN_BYTES].hex(),
            },
            ensure_ascii=False,
        )
        try:
            if self.path.exists() and self.path.stat().st_size + len(line) > MOST_BYTES:
                self.path.replace(self.path.with_name(self.path.name + ".1"))
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as err:
            log.error("quarantine.failed", extra={"file": str(self.path), "why": err.strerror or str(err)})
