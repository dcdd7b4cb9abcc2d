"""What a batch cannot be made with is in ops.quarantine with its bytes, later windows stand, and none says too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cloud_job.delta import tables
from cloud_job.spark import batch_guard
from cloud_job.spark.batch_guard import BatchGuard
from edge_agent.root.completeness import Decider
from edge_agent.root.decision import transition
from tests.support.cloud.child_frames import SECOND, START, Child, query, record, tick
from tests.support.cloud.jobs import FragileJob, Roots

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def raising(monkeypatch: pytest.MonkeyPatch, of: Any, name: str, when: Callable[..., bool]) -> None:
    before = getattr(of, name)

    def raises(*args: Any, **named: Any) -> Any:
        out = before(*args, **named)
        if when(*args, **named):
            raise RecursionError("injected")
        return out

    monkeypatch.setattr(of, name, raises)


def test_a_batch_is_made_without_what_raises_at_any_stage_before_its_decision(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_guard, "PAUSES_S", (0.0, 0.0))
    root = roots()
    told: list[str] = []
    guard = BatchGuard(root.start, lambda why, example: told.append(why))
    good, bad = Child("gw-good", (query(),)), Child("gw-bad", (query(),), keys=("site=b",))
    births = root.land(tick(START), *(record(c, START, c.birth()) for c in (good, bad)))
    sent: dict[int, bytes] = {}
    files = [births]
    for n in range(6):
        at = START + n * SECOND
        sent[n], also = (c.rows(at + SECOND, np.array([at]), np.array([1.0])) for c in (bad, good))
        records = [record(c, at + SECOND, made) for c, made in ((bad, sent[n]), (good, also))]
        files.append(root.land(tick(at + SECOND), *records))
    named = [(path.name, path.read_bytes()) for path in files]

    def is_frame(node: str, message: Any, seq: int) -> bool:
        return node == "gw-bad" and getattr(message, "seq", -1) == seq and hasattr(message, "groups")

    raising(monkeypatch, Decider, "take", lambda _d, node, message, _us: is_frame(node, message, 2))
    raising(
        monkeypatch,
        transition,
        "step",
        lambda _s, decision, *_, **__: any(is_frame(e.node, e.frame, 3) for e in decision.effects),
    )
    stored = FragileJob._stored

    def no_rows(job: FragileJob, content: Any) -> Any:
        if any(row["node"] == "gw-bad" and row["seq"] == 4 and row["part"] == 1 for row in content.to_pylist()):
            raise TypeError("rows that Spark refuses")
        return stored(job, content)

    monkeypatch.setattr(FragileJob, "_stored", no_rows)
    guard.process(named)
    monkeypatch.setattr(FragileJob, "_stored", stored)
    after = root.land(tick(START + 10 * SECOND), *(record(c, START, c.rows(START + 9 * SECOND)) for c in (good, bad)))
    guard.process([(after.name, after.read_bytes())])

    results = root.results()
    whole = {(key, (start - START) // SECOND): row["complete"] for (_, key, start), row in results.items()}
    lost = {1, 2, 3, 4}  # what is declared reaches from what was promised before to the time of receipt
    assert {key for key, _ in whole} == {"site=a", "site=b"}
    assert {second for key, second in whole if key == "site=a"} == {0, 1, 2, 4, 5}
    assert {second for key, second in whole if key == "site=b"} == {0, 4, 5}
    assert all(whole[at] == (at[1] not in lost) for at in whole), whole
    found = root.rows(tables.QUARANTINE)
    assert {(row["node"], row["seq"]) for row in found} >= {("gw-bad", 2), ("gw-bad", 3), ("gw-bad", 4), ("gw-good", 4)}
    payloads = {bytes(row["payload"]) for row in found}
    assert {sent[1], sent[2], sent[3]} <= payloads, "their bytes are kept"
    reasons = " ".join(row["reason"] for row in found)
    assert "RecursionError: injected" in reasons
    assert "no decision" in reasons
    assert "cannot be processed: TypeError: rows that Spark refuses" in reasons
    assert len(told) >= 3
    assert {row["nodes"][0] for row in root.rows(tables.GAPS)} == {"gw-bad", "gw-good"}
