"""Counts records that the root left out and steps of its upkeep that failed, for `headwater status`.

The root is not connected to a broker. It writes a small file to the landing folder, and the lander publishes the
content in its status.
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
SHOWN_US: Final = 7 * 86_400_000_000  # counts of an earlier run are kept this long
MOST_BYTES: Final = 65_536
LEFT_OUT: Final = "left_out"
UPKEEP_FAILED: Final = "upkeep_failed"
PARTS: Final = (LEFT_OUT, UPKEEP_FAILED)  # of the file and of the status, each with counts by reason


class RootReport:
    """Counts of records left out and of failed upkeep. Continues the counts of a run within the last week."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        before = read(folder)
        at_us = before.get("at_us")
        fresh = isinstance(at_us, int) and time.time_ns() // 1000 - at_us < SHOWN_US
        self._counted = {part: Refusals() for part in PARTS}
        for part, counted in self._counted.items():
            counted.restore(before.get(part) if fresh else None)

    def note(self, why: str, example: str) -> None:
        """Count a record or file that was left out."""
        self._add(LEFT_OUT, why, example)

    def upkeep_failed(self, why: str, step: str) -> None:
        """Count a step of upkeep that failed."""
        self._add(UPKEEP_FAILED, why, step)

    def _add(self, part: str, why: str, example: str) -> None:
        """Count and write the file. A disk error is logged and has no other effect."""
        self._counted[part].add(why, example)
        counted = {name: found.plain() for name, found in self._counted.items() if found.total}
        text = json.dumps({"at_us": time.time_ns() // 1000, **counted}, ensure_ascii=False)
        beside = self._path.with_name(f".{NAME}.tmp")
        try:
            beside.touch(mode=0o600)
            beside.write_text(text, encoding="utf-8")
            beside.replace(self._path)
        except OSError as err:
            log.error("report.failed", extra={"file": str(self._path), "why": err.strerror or str(err)})


def read(folder: Path) -> dict[str, Any]:
    """The report of a landing folder; empty if there is none or it cannot be read."""
    try:
        with (folder / NAME).open("rb") as file:
            return dict(foreign_json.table(file.read(MOST_BYTES)))
    except OSError:
        return {}
