"""A small micro-batch of the Spark root whose windows hold an hour: what it costs beside one of tumbling windows."""

from __future__ import annotations

import statistics

from tests.benchmarks.bench import bench, record
from tests.benchmarks.lanes import HOUR, ONE, lanes

CHILDREN, KEYS = 10, 10
HOUR_S, STRIDE_S = 3_600, 300  # of event time that lie behind, in batches of so many
SMALL_S, BATCHES, UNTIL_WARM = 2, 12, 2  # of event time in a small batch; batches measured


@bench("sliding_small_batch_s", "sliding_small_batch_ratio", "sliding_restart_s", budget_s=400)
def small() -> None:
    """The first batch after a restart is measured last."""
    with lanes((ONE, HOUR), CHILDREN, KEYS) as both:
        for seconds in (*[STRIDE_S] * (HOUR_S // STRIDE_S), *[SMALL_S] * BATCHES):
            for lane in both.values():
                lane.batch(seconds)
        one, hour = (statistics.median(both[about].took[UNTIL_WARM - BATCHES :]) for about in (ONE, HOUR))
        both[HOUR].restart()
        both[HOUR].batch(SMALL_S)
        first_s = both[HOUR].took[-1]
    how = (
        f"avg and max of {KEYS} keys, {CHILDREN} children, an hour of slices of 1 s behind, batches of "
        f"{CHILDREN * SMALL_S} frames that close {SMALL_S * KEYS} windows of 1 h by 1 s, local[2], into Delta, median "
        f"of {BATCHES - UNTIL_WARM} once warm"
    )
    record("sliding_small_batch_s", hour, "s", how)
    record("sliding_small_batch_ratio", hour / one, "1", f"{how}; over that of tumbling 1 s, {one:.2f} s")
    record("sliding_restart_s", first_s, "s", f"{how}; instead: the first batch after a restart")
