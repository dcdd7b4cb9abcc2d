"""The whole demo, small: what the README's first command promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

MOST_S = 900  # minutes on a busy machine; one and a half on an idle one


@pytest.mark.demo
@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(MOST_S + 60)
def test_every_window_is_right_though_processes_are_killed_and_none_is_left(tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    command = [
        sys.executable,
        "-m",
        "edge_agent",
        "demo",
        "--gateways",
        "3",
        "--seconds",
        "30",
        "--picture",
        str(picture),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=MOST_S, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    assert re.search(r"[1-9]\d* windows, 0 differ, 0 missing, 0 double", said), said[-4000:]
    assert len(re.findall(r"kill -9 ", said)) == 3
    assert picture.read_bytes().startswith(b"\x89PNG")
    folder = re.search(r"everything is in (\S+)", said)
    assert folder is not None
    left = [
        process for process in psutil.process_iter(["cmdline"]) if folder[1] in " ".join(process.info["cmdline"] or ())
    ]
    assert not left
