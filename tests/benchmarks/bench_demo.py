"""How old a row is when it can be read: the demo without kills, measured on Delta's own log."""

from __future__ import annotations

import statistics

from edge_agent.demo.runner import DemoRun
from tests.benchmarks.bench import bench, record

SECONDS = 90.0


@bench("window_to_row_s", budget_s=420)
def window_to_row() -> None:
    """From the end of a window to the commit of its row; lateness 1 s, heartbeat 0.5 s, all on one machine."""
    run = DemoRun(8, SECONDS, lambda text: print(text, flush=True), kill=False)
    verdict = run.run()
    if not verdict.good:
        raise SystemExit(f"the answers are wrong: {verdict.line}")
    stale_s = run.staleness()
    run.tidy()
    warm = stale_s[len(stale_s) // 2 :]
    tenth = statistics.quantiles(warm, n=10)
    record(
        "window_to_row_s",
        statistics.median(warm),
        "s",
        f"the demo with 8 gateways and 2 regions, no kills, local[2]: end of a window to the commit of its first row, "
        f"median over the last {len(warm)} windows of {len(stale_s)}; 10 % within {tenth[0]:.1f} s, 90 % "
        f"within {tenth[-1]:.1f} s",
    )


if __name__ == "__main__":
    window_to_row()
