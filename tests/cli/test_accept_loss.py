"""What `headwater accept-loss` says was given up."""

from __future__ import annotations

from edge_agent.cli.fleet.accept_loss import told

S = 1_000_000
RETIRE = "Rows wait for region-1 until its own parent lists it in [lower] retired"


def test_frames_with_readings_have_their_number_and_range() -> None:
    """protocol 1.5"""
    of = {"parent": "region-1", "frames": 3, "readings": 40, "from_us": 10**9 * S, "upto_us": (10**9 + 20) * S}
    when = "from 2001-09-09T01:46:40Z to 2001-09-09T01:47:00Z"
    assert told(of) == f"gave up 3 frames for region-1 with 40 readings {when}; declared lost in ops.gaps. {RETIRE}"


def test_frames_without_readings_lose_none_and_unknown_ones_are_said_to_be_unknown() -> None:
    """protocol 1.5: only the leave was on its way, or frames could not be read."""
    of = {"parent": "region-1", "frames": 1, "readings": 0, "from_us": None, "upto_us": None}
    assert told(of) == f"gave up 1 frame for region-1 without readings. {RETIRE}"
    unknown = told({**of, "frames": 2, "readings": None})
    lost = "with an unknown number of readings; declared lost in ops.gaps"
    assert unknown == f"gave up 2 frames for region-1 {lost}. {RETIRE}"


def test_odd_figures_of_a_node_are_no_error() -> None:
    odd = {"parent": ["x"], "frames": "many", "readings": {}, "from_us": 10**18, "upto_us": "now"}
    assert told(odd).startswith("gave up None frames for ['x'] with an unknown number of readings; declared lost")
