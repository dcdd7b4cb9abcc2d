"""Nothing depends on the times that files have (docs/protocol.md 8.1): what lands is read, whatever its mtime says."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from cloud_job.ingest.landing_loop import LandingLoop
from tests.support.cloud.child_frames import SECOND, START, Child, query, record, tick
from tests.support.cloud.jobs import Roots
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]
DAY_S = 86_400


def test_a_file_that_is_dated_ahead_hides_no_other(roots: Callable[..., Roots]) -> None:
    """protocol 8.1: nor do files of the last decision, which lie there until the next one, count twice."""
    root = roots()
    child = Child("gw-1", (query(),))
    loop = LandingLoop(root.job, trigger_us=0)
    ended = threading.Thread(target=loop.run)
    ended.start()
    try:
        for second in range(4):
            now_us = START + (second + 1) * SECOND
            records = [tick(now_us)] if second else [tick(now_us), record(child, now_us, child.birth())]
            rows = child.rows(now_us, np.array([START + second * SECOND]), np.array([1.0]))
            part = root.landing / f".{second:08d}.cborseq"
            part.write_bytes(b"".join((*records, record(child, now_us, rows))))
            ahead = second == 1
            os.utime(part, (0, time.time() + 8 * DAY_S if ahead else 10 * second))
            part.rename(part.with_name(part.name[1:]))
            eventually(lambda: root.job.state.number >= second, 300)  # noqa: B023 (asked for at once)
    finally:
        loop.stop()
        ended.join(300)
    assert {start: row["values"]["count"] for (_, _, start), row in root.results().items()} == {
        START + second * SECOND: 1.0 for second in range(4)
    }
