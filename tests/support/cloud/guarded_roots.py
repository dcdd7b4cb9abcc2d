"""A guard over jobs that keep their rows in lists, and children that send."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from cloud_job.delta import tables
from cloud_job.spark.batch_guard import BatchGuard
from cloud_job.spark.job import JobSettings
from edge_agent.root.decision.root_state import RootLimits
from tests.support.cloud.child_frames import SECOND, START, Child, query, record, tick
from tests.support.cloud.list_jobs import Kept, ListJob

File = tuple[str, bytes]


class GuardedRoot:
    """A guard over such jobs, one child that sends and another one beside it."""

    def __init__(self, folder: Path) -> None:
        self.kept, self.told, self.folder = Kept(), list[tuple[str, str]](), folder
        self.runs = 0
        self.guard = BatchGuard(self.run, self.note)
        self.good, self.bad = Child("gw-good", (query(),)), Child("gw-bad", (query(),), keys=("site=b",))
        self.files = 0

    def note(self, why: str, example: str) -> None:
        self.told.append((why, example))

    def run(self) -> ListJob:
        job = ListJob(None, tables.Place(str(self.folder)), JobSettings(str(self.folder), limits=RootLimits(0)))  # type: ignore[arg-type]
        job.kept = self.kept
        self.runs += 1
        job.open()
        return job

    def file(self, *records: bytes) -> File:
        self.files += 1
        return f"{self.files:08d}.cborseq", b"".join(records)

    def births(self) -> File:
        return self.file(tick(START), *(record(c, START, c.birth()) for c in (self.good, self.bad)))

    def second(self, number: int) -> File:
        """One reading of each child in that second, and the frontier behind it."""
        at = START + number * SECOND
        sent = [
            record(c, at + SECOND, c.rows(at + SECOND, np.array([at]), np.array([float(number)])))
            for c in (self.bad, self.good)
        ]
        return self.file(tick(at + SECOND), *sent)

    def applied(self, node: str) -> int:
        return (self.guard.job.state.readings or {}).get(node, 0)

    def quarantined(self) -> list[tuple[str, int, str]]:
        return [(row["node"], row["seq"], row["reason"]) for row in self.kept.messages if row["kind"] != "frame"]

    def gaps(self) -> list[dict[str, Any]]:
        return [gap for work in self.kept.works for gap in work.gaps]

    def closing(self) -> dict[int, bool]:
        """End of a window -> whether its row is complete."""
        return {end: span.complete for work in self.kept.works for span in work.closing for end in _ends(span)}


def _ends(span: Any) -> Iterable[int]:
    return range(max(span.after_us + SECOND, START), span.upto_us + 1, SECOND)
