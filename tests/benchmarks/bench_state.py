"""What the rows of ops.batches hold of the root's state: a million open sessions, of which a batch changes few."""

from __future__ import annotations

import tempfile
import time

import numpy as np

from cloud_job.spark import decision_checkpoint, state_log
from cloud_job.spark.job import JobSettings
from edge_agent.algebra.windows import Session
from edge_agent.root.decision.root_state import RootLimits
from tests.benchmarks.bench import bench, record
from tests.support.cloud.child_frames import SECOND, START, Child, query, tick
from tests.support.cloud.child_frames import record as landed
from tests.support.cloud.list_jobs import Kept, ListJob

CHILDREN, KEYS = 160, 6_250  # a session of each key is open
BATCHES, READINGS = 200, 1_000  # a batch
GAP_US = 3600 * SECOND


@bench("root_state_bytes_s", "root_state_again_s", budget_s=300)
def state_rows() -> None:
    fleet = [
        Child(f"gw-{i}", (query(window=Session(GAP_US)),), tuple(f"site=s{i}-{k}" for k in range(KEYS)))
        for i in range(CHILDREN)
    ]
    with tempfile.TemporaryDirectory() as folder:
        job = ListJob(None, None, JobSettings(folder, 60 * SECOND, RootLimits()))  # type: ignore[arg-type]
        job.kept = Kept()
        job.process([("0", b"".join([tick(START), *(landed(each, START, each.birth()) for each in fleet)]))])
        every = np.arange(KEYS)
        for i, each in enumerate(fleet):
            start = np.full(KEYS, START + SECOND)
            frame = each.rows(START + 2 * SECOND, start, key=every, length_us=1)
            job.process([(f"1-{i:03}", tick(START + 2 * SECOND) + landed(each, START + 2 * SECOND, frame))])
        job.finish()  # a whole state
        first, rng, arrived, busy_s = len(job.kept.batches), np.random.default_rng(1), 0, 0.0
        for n in range(BATCHES):
            now_us, each = START + (3 + n) * SECOND, fleet[n % CHILDREN]
            keys = np.sort(rng.choice(KEYS, READINGS, replace=False))
            frame = each.rows(now_us, np.full(READINGS, now_us - SECOND), key=keys, length_us=1)
            content = tick(now_us) + landed(each, now_us, frame)
            arrived += len(content)
            began_s = time.process_time()
            job.process([(f"2-{n:06}", content)])
            busy_s += time.process_time() - began_s
        rows = job.kept.batches[first:]
        kept_bytes = sum(len(row["state"]) for row in rows)
        whole_bytes = len(decision_checkpoint.dumps(job.decider, job.state, job.parts))
        began_s = time.process_time()
        state_log.recall(job.kept.batches[job.needed_from :], job.settings.rules)
        again_s = time.process_time() - began_s
    how = (
        f"{CHILDREN * KEYS} open sessions, {BATCHES} batches of {READINGS} readings, {arrived / BATCHES:.0f} B landed "
        f"with each; the whole state is {whole_bytes} B; {busy_s / BATCHES:.2f} s CPU a batch without Delta"
    )
    record("root_state_bytes_s", kept_bytes / BATCHES, "B", f"{how}; bytes of state a batch")
    record("root_state_again_s", again_s, "s", f"{how}; CPU of a start that decides these batches again")
