"""Overlapping windows from 1 s slices: the cost of a result against one of tumbling 1 s windows, at both roots."""

from __future__ import annotations

import statistics
import time

from cloud_job.delta import tables
from edge_agent.algebra.windows import Window
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.wire import frames
from tests.benchmarks.bench import bench, record
from tests.benchmarks.lanes import WINDOWS, Lane, fleet, lanes, messages
from tests.support.cloud.child_frames import JOURNAL, SECOND, START

CHILDREN, KEYS = 2, 100
BEFORE, SECONDS, BATCHES = 3_600, 900, 3  # of event time: an hour that lies behind, then a batch; batches measured
STEPS = 40  # of a second each, at the plain root


def at_the_plain_root(window: Window, seconds: int, batches: int) -> float:
    """Seconds of the core a result, from decoded frames to rows, with an hour of slices behind."""
    nodes, root, took = fleet(window, CHILDREN, KEYS), NumpyRoot(JOURNAL, grace_us=60 * SECOND), []
    first = 0
    for until in range(BEFORE, BEFORE + batches * seconds + 1, seconds):
        decoded = [(child.node, frames.decode(payload)) for child, payload in messages(nodes, first, until)]
        began_s = time.process_time()
        for node, frame in decoded:
            root.take(node, frame, START + until * SECOND)
        rows = root.step(START + until * SECOND)
        took.append((time.process_time() - began_s) / len(rows))
        assert len(rows) == (until - first) * KEYS, len(rows)
        first = until
    return statistics.median(took[1:])


def cost(lane: Lane) -> float:
    """Seconds a result, the median of the batches with an hour of slices behind."""
    rows = lane.job.place.read(lane.job.spark, tables.RESULTS).count()
    assert rows == lane.second * KEYS, rows
    return statistics.median(lane.took[1:]) / (SECONDS * KEYS)


def spark_costs() -> dict[str, float]:
    """Of each kind of window."""
    with lanes(tuple(WINDOWS), CHILDREN, KEYS) as all_lanes:
        for seconds in (BEFORE, *[SECONDS] * BATCHES):
            for lane in all_lanes.values():
                lane.batch(seconds)
        return {name: cost(lane) for name, lane in all_lanes.items()}


@bench("sliding_cost_ratio", "sliding_cost_ratio_python", "sliding_cost_ratio_spark", budget_s=400)
def sliding() -> None:
    """Of both roots; the worst counts."""
    how = (
        f"avg and max of {KEYS} keys from 1 s slices of {CHILDREN} children, batches of {SECONDS} s that close "
        f"{SECONDS * KEYS} windows with an hour of slices behind, cost a result over that of tumbling 1 s; "
    )
    costs = {
        "python": {name: at_the_plain_root(window, SECONDS, BATCHES) for name, window in WINDOWS.items()},
        "python in steps of 1 s": {name: at_the_plain_root(window, 1, STEPS) for name, window in WINDOWS.items()},
        "spark": spark_costs(),
    }
    ratios: dict[str, list[float]] = {}
    told = []
    for root, found in costs.items():
        one, *others = found.values()
        ratios.setdefault(root.split()[0], []).append(max(others) / one)
        told.append(f"{root}: " + ", ".join(f"{name} {cost * 1e6:.3g} us" for name, cost in found.items()))
    for root, each in ratios.items():
        record(f"sliding_cost_ratio_{root}", max(each), "1", how + "; ".join(t for t in told if t.startswith(root)))
    record("sliding_cost_ratio", max(map(max, ratios.values())), "1", how + "the worst of " + "; ".join(told))
