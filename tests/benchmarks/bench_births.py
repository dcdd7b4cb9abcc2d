"""Births of thousands of children in one batch of the Spark root, on the driver: its cost is linear in them."""

from __future__ import annotations

import time

from cloud_job.ingest.intake import Intake
from cloud_job.spark import decision_checkpoint
from edge_agent.root.completeness import Decider
from edge_agent.root.decision import decide
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.wire.heads import Parts
from tests.benchmarks.bench import bench, record
from tests.support.cloud import child_frames
from tests.support.cloud.child_frames import JOURNAL, SECOND, START, Child

CHILDREN, FEWER = 10_000, 2_500
GRACE_US = 60 * SECOND


def births(many: int) -> bytes:
    """A landing file with the first frame of so many children of one query."""
    asked = child_frames.query()
    fleet = [Child(f"gw-{i:05d}", (asked,)) for i in range(many)]
    return b"".join([child_frames.tick(START), *(child_frames.record(each, START, each.birth()) for each in fleet)])


def seconds(content: bytes) -> float:
    """CPU time of the batch: file to frames, decision, and its bytes for ops.batches."""
    decider, state, parts = Decider(JOURNAL, GRACE_US), RootState(RootLimits()), Parts()
    began_s = time.process_time()
    intake = Intake(decider, parts, 0, "run", 0)
    intake.read(content, "file")
    decision = decider.decide(intake.now_us)
    state.own(0, "run")
    work = decide.step(state, decision, {}, decider.parent.dictionaries, decider.gaps)
    work.dumps()
    decision_checkpoint.dumps(decider, state, parts)
    return time.process_time() - began_s


@bench("births_root_s", "births_root_linear", budget_s=120)
def root_births() -> None:
    fewer, more = births(FEWER), births(CHILDREN)
    seconds(fewer)
    few_s, many_s = (min(seconds(content) for _ in range(2)) for content in (fewer, more))
    how = f"births of {CHILDREN} children with one query in a batch: CPU of the driver without Delta, best of 2"
    record("births_root_s", many_s, "s", how)
    ratio = many_s / few_s * FEWER / CHILDREN
    record("births_root_linear", ratio, "1", f"{how}; a child at {CHILDREN} over a child at {FEWER}, {few_s:.2f} s")
