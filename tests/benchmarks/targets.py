"""What the figures must reach, in one place. docs/performance.md explains each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Target:
    """bound: in base units. at_most: smaller is better."""

    bound: float
    unit: str
    at_most: bool = False

    def met(self, value: float) -> bool:
        """Whether a figure reaches it."""
        return value <= self.bound if self.at_most else value >= self.bound


TARGETS: Final[dict[str, Target]] = {
    "slicer_1_key": Target(400e6, "readings/s"),
    "slicer_1000_keys": Target(120e6, "readings/s"),
    "slicer_1000_windows_share": Target(0.5, "1"),
    "median_batches": Target(60e6, "readings/s"),
    "sliding_cost_ratio": Target(3, "1", at_most=True),
    "windows_flat_avg": Target(1.3, "1", at_most=True),
    "median_1000_windows": Target(5e6, "readings/s"),
    "keys_100000": Target(2e6, "readings/s"),
    "windows_bytes_factor": Target(100, "1"),
    "windows_bytes_factor_ms": Target(1, "1"),
    "quantiles_root": Target(3e6, "values/s"),
    "bytes_median_quantised": Target(0.5, "B/reading", at_most=True),
    "bytes_median_adc": Target(1.6, "B/reading", at_most=True),
    "bytes_median_plugs": Target(1, "B/reading", at_most=True),
    "bytes_median_random": Target(8.1, "B/reading", at_most=True),
    "slicer_approx_distinct": Target(20e6, "readings/s"),
    "slicer_theta_distinct": Target(8e6, "readings/s"),
    "slicer_approx_median": Target(10e6, "readings/s"),
    "slicer_top_k": Target(8e6, "readings/s"),
    "bytes_approx_distinct": Target(2_500, "B/window", at_most=True),
    "bytes_theta_distinct": Target(33_000, "B/window", at_most=True),
    "bytes_approx_median": Target(5_000, "B/window", at_most=True),
    "gateway_batches": Target(10e6, "readings/s"),
    "gateway_json": Target(70e3, "readings/s"),
    "gateway_rss_mb": Target(52, "MB", at_most=True),
    "gateway_keys_peak_mb": Target(75, "MB", at_most=True),
    "gateway_keys_after_mb": Target(58, "MB", at_most=True),
    "gateway_cpu_share": Target(0.04, "1", at_most=True),
    "merger_rows": Target(1e6, "rows/s"),
    "lander_frames": Target(15e3, "frames/s"),
    "backlog_rss_mb": Target(4, "MB", at_most=True),
    "backlog_disk_share": Target(1.3, "1", at_most=True),
    "backlog_drain": Target(10, "1"),
    "root_windows": Target(200e3, "windows/s"),
    "sessions_root": Target(150e3, "sessions/s"),
    "central_root": Target(150e3, "readings/s"),
    "root_small_batch_s": Target(2.5, "s", at_most=True),
    "sliding_small_batch_s": Target(2.5, "s", at_most=True),
    "births_root_s": Target(5, "s", at_most=True),
    "decision_root_s": Target(1, "s", at_most=True),
    "decision_root_excluded_s": Target(1, "s", at_most=True),
    "births_root_linear": Target(1.3, "1", at_most=True),
    "root_state_bytes_s": Target(60_000, "B", at_most=True),
    "root_state_again_s": Target(15, "s", at_most=True),
    "month_files": Target(1.1, "1", at_most=True),
    "month_bytes": Target(1.1, "1", at_most=True),
    "month_state": Target(1.1, "1", at_most=True),
    "month_query": Target(1.5, "1", at_most=True),
    "payload_one_bytes": Target(40, "B", at_most=True),
    "payload_key_bytes": Target(11, "B", at_most=True),
    "window_to_row_s": Target(6, "s", at_most=True),
    "extra_tier_share": Target(0.0001, "1", at_most=True),
}
