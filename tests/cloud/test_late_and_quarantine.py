"""What is in no result: found among the parts that are stored, however many gateways were late at once."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from cloud_job.delta import driver_rows
from cloud_job.delta.late_and_quarantine import parts_of, quarantined
from cloud_job.delta.tables import MESSAGES
from edge_agent.root.decision.work import TooLate, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
GATEWAYS = 1_000


def test_parts_of_a_thousand_late_gateways_are_found_at_once(spark: SparkSession) -> None:
    """protocol 4.2: after a long outage all come late together. One condition for each of 300 ended the root."""
    names = itertools.product((f"gw-{i}" for i in range(GATEWAYS)), (1, 2), (5, 6), (0, 1, 2))
    content = [
        {
            "node": node,
            "epoch": epoch,
            "seq": seq,
            "part": part,
            "plan": 0,
            "payload": f"{node} {epoch}".encode(),
            "batch": 3 - epoch % 2,  # half of them have waited for a batch
        }
        for node, epoch, seq, part in names
    ]
    frames = driver_rows.frame(
        spark, pa.Table.from_pylist(content, schema=driver_rows.arrow_schema(MESSAGES)), driver_rows.schema(MESSAGES)
    )
    beyond = [TooLate(f"gw-{i}", 1 + i % 2, 5, 1 + i % 2, "s", 0) for i in range(GATEWAYS)]
    began_s = time.monotonic()
    found = parts_of(frames, [*beyond, TooLate("gw-0", 1, 7, 1, "s", 0), beyond[0]], 3)
    assert time.monotonic() - began_s < 20
    rows = zip(*(found[name].to_pylist() for name in ("node", "epoch", "seq", "part", "plan", "payload")), strict=True)
    wanted = [(b.node, b.epoch, b.seq, b.part, 0, f"{b.node} {b.epoch}".encode()) for b in beyond]
    assert sorted(rows) == sorted(wanted)


def test_each_damaged_landing_file_of_a_batch_is_in_quarantine(spark: SparkSession) -> None:
    """protocol 3.2: only one of them was; a message that came twice is there once."""
    about = {"node": "", "epoch": -1, "seq": -1, "part": 0, "kind": "envelope", "received_us": 5, "owner": "me"}
    content = [{**about, "batch": 3, "payload": b"", "reason": f"{n}.cborseq: landing file damaged"} for n in (1, 2, 1)]
    content += [{**about, "batch": 3, "node": "gw-1", "payload": b"x", "reason": "no envelope"}] * 2
    content += [{**about, "batch": 2, "payload": b"", "reason": "of another batch"}]
    messages = pa.Table.from_pylist(content, schema=driver_rows.arrow_schema(MESSAGES))
    found = quarantined(driver_rows.frame(spark, messages, driver_rows.schema(MESSAGES)), Work(3), "me")
    assert sorted(row["reason"] for row in found.collect()) == [
        "1.cborseq: landing file damaged",
        "2.cborseq: landing file damaged",
        "no envelope",
    ]
