"""What the root left out, for `headwater status`: it is connected to no broker, so the lander says it in its status.

A small file in the landing folder, which both have.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any, Final

from edge_agent.config.checking import foreign_json
from edge_agent.runtime.refusals import Refusals

log = logging.getLogger("headwater.root")

NAME: Final = "root.json"
SHOWN_US: Final = 7 * 86_400_000_000  # after that a former run's word is no news
MOST_BYTES: Final = 65_536


class RootReport:
    """Counted since the root began, and of the run before it for a week."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._refusals = Refusals()
        before = read(folder)
        at_us = before.get("at_us")
        fresh = isinstance(at_us, int) and time.time_ns() // 1000 - at_us < SHOWN_US
        self._refusals.restore(before.get("left_out") if fresh else None)

    def note(self, why: str, example: str) -> None:
        """Count what was left out. A disk error is logged and has no other effect."""
        self._refusals.add(why, example)
        text = json.dumps({"at_us": time.time_ns() // 1000, "left_out": self._refusals.plain()}, ensure_ascii=False)
        part = self._path.with_name(f".{NAME}.tmp")
        try:
            part.touch(mode=0o600)
            part.write_text(text, encoding="utf-8")
            part.replace(self._path)
        except OSError as err:
            log.error("report.failed", extra={"file": str(self._path), "why": err.strerror or str(err)})


def read(folder: Path) -> dict[str, Any]:
    """What the root wrote there; nothing where there is nothing of use."""
    try:
        with (folder / NAME).open("rb") as file:
            return dict(foreign_json.table(file.read(MOST_BYTES)))
    except OSError:
        return {}
