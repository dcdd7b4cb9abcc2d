"""The demo's processes: how they start, and that they end with it."""

from __future__ import annotations

import os
from pathlib import Path

from edge_agent.demo.processes import ChildProcess


def test_a_start_runs_nothing_in_which_ctrl_c_would_be_lost(tmp_path: Path) -> None:
    """Hooks after a fork swallow what is raised in them: a Ctrl+C at that moment left the demo running."""
    ran: list[int] = []
    os.register_at_fork(after_in_parent=lambda: ran.append(1))
    child = ChildProcess("sleeper", ["sleep", "30"], tmp_path)
    child.start()
    try:
        assert child.alive
        assert ran == []
    finally:
        child.kill()
    assert not child.alive
