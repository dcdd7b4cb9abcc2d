"""The demo as a user runs it, small; and that nothing of it is left, however it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import eventually

# What a shell starts with `&` ignores SIGINT, and all that it starts: also tests, and their demo.
TAKES_CTRL_C = ("env", "--default-signal=INT")

pytestmark = [pytest.mark.demo, pytest.mark.broker, pytest.mark.slow]


def left_of(folder: str) -> list[str]:
    """Processes that run in the demo's folder or name it."""
    found = []
    for process in psutil.process_iter():
        try:
            if folder in process.cwd() or any(folder in word for word in process.cmdline()):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
        except psutil.Error:
            continue
    return found


def begin(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "edge_agent", "demo", *words]
    return subprocess.Popen([*TAKES_CTRL_C, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def folder_of(line: str) -> str:
    found = re.search(r"(/\S*headwater-demo-\S+)", line)
    assert found, line
    return found[1]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demo_survives_its_kills_and_every_window_is_right(tmp_path: Path) -> None:
    """protocol 3: the whole tree, its kills, and a query that a user adds with the printed line."""
    picture = tmp_path / "demo.png"
    demo = begin("--seconds", "30", "--gateways", "3", "--picture", str(picture))
    assert demo.stdout is not None
    said: list[str] = []
    added = False
    with demo:
        for line in demo.stdout:
            said.append(line.rstrip())
            if "kill -9" in line and not added:
                added = True
                words = next(text for text in said if "mosquitto_pub" in text).strip()
                command, _, message = words.partition(" -m ")
                assert json.loads(message.strip("'"))["source"] == "boiler"
                subprocess.run([*command.split(), "-m", message.strip("'")], check=True)
    text = "\n".join(said)
    assert demo.returncode == 0, text
    assert said[-1] == "balanced", text
    assert re.search(r"^\d+ windows, 0 differ, 0 missing, 0 double$", text, re.MULTILINE), text
    assert "killed with -9 and started again: gw-1, north, broker-south" in text
    assert picture.stat().st_size > 10_000
    folder = folder_of(said[0])
    tables = Path(folder) / "root" / "tables"
    assert (tables / "gold" / "results").is_dir()
    assert not list(Path(folder).glob("gw-*"))
    assert left_of(folder) == []
    from edge_agent.demo import delta_reader as read

    mine = [row for row in read.results(tables) if row.query == "mine"]
    assert mine
    assert {row.key for row in mine} >= {"machine=gw-1", "machine=gw-2"}


def test_nothing_is_left_when_the_demo_itself_is_killed() -> None:
    demo = begin("--gateways", "3")
    assert demo.stdout is not None
    folder = folder_of(demo.stdout.readline())
    eventually(lambda: len(left_of(folder)) >= 8, 30)
    eventually(lambda: any("java" in process for process in left_of(folder)), 60)
    demo.send_signal(signal.SIGKILL)
    demo.wait()
    demo.stdout.close()
    eventually(lambda: not left_of(folder), 30)


def test_ctrl_c_ends_the_demo_with_all_its_processes() -> None:
    demo = begin("--gateways", "2")
    assert demo.stdout is not None
    folder = folder_of(demo.stdout.readline())
    eventually(lambda: len(left_of(folder)) >= 7, 30)
    demo.send_signal(signal.SIGINT)
    with demo:
        demo.communicate(timeout=30)
    assert demo.returncode == 130
    eventually(lambda: not left_of(folder), 10)
