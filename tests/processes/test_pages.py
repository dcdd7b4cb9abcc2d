"""The commands of README.md and docs/start.md, run as they are printed: an empty folder, a plain Mosquitto, a row."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from edge_agent.demo.processes import ChildProcess, free_ports, mosquitto
from tests.support.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ROOT: Final = Path(__file__).resolve().parents[2]
BLOCK: Final = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)
ROWS: Final = re.compile(r"^\((\d+) rows?", re.M)
HEADWATER: Final = """\
#!/bin/bash
# The command as a user has it; only the port of the broker is another.
if [ "$1" = init ]; then set -- "$@" --broker "$HEADWATER_BROKER"; fi
exec {python} -m edge_agent "$@"
"""
PUB: Final = '#!/bin/bash\nexec {program} -p {port} "$@"\n'


def commands(page: str, before: str = "") -> str:
    """The lines of all shell blocks of a page, up to a heading, without `make`, which needs a checkout."""
    text = (ROOT / page).read_text()
    assert before in text
    lines = "".join(BLOCK.findall(text.partition(before)[0] if before else text)).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("make "))


class Shell:
    """Runs commands as a user would type them, and ends what they left running."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, programs = folder / "empty", folder / "bin"
        self.folder.mkdir()
        programs.mkdir()
        published = shutil.which("mosquitto_pub")
        for name, text in {
            "headwater": HEADWATER.format(python=sys.executable),
            "mosquitto_pub": PUB.format(program=published, port=port),
        }.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self._env = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HEADWATER_BROKER": f"mqtt://127.0.0.1:{port}",
        }

    def run(self, text: str, seconds: float) -> str:
        """Standard output of all commands. Fails when one fails, or after that many seconds."""
        out, err = self.folder.parent / "out", self.folder.parent / "err"
        with out.open("w") as stdout, err.open("w") as stderr:
            shell = subprocess.Popen(
                ["bash", "-e", "-c", text],
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                code = shell.wait(seconds)
            except subprocess.TimeoutExpired:
                code = -1
            finally:
                end(shell.pid)
        assert code == 0, f"{out.read_text()[-3000:]}\n{err.read_text()[-3000:]}"
        return out.read_text()


def end(group: int) -> None:
    """End all processes of a group: asked first, killed after some seconds."""
    try:
        os.killpg(group, signal.SIGTERM)
        eventually(lambda: not alive(group), 15)
    except ProcessLookupError:
        return
    except AssertionError:
        os.killpg(group, signal.SIGKILL)


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (port,) = free_ports(1)
    with ExitStack() as stack:
        broker = ChildProcess("plain", [mosquitto(), "-p", str(port)], tmp_path / "broker")
        broker.start()
        stack.callback(broker.stop)
        yield Shell(tmp_path, port)


def test_the_start_page_leads_to_a_gateway(shell: Shell) -> None:
    out = shell.run(commands("docs/start.md", "## The top of the tree"), 120)
    assert re.search(r"^boiler-10m site=a .* \(600 readings\)$", out, re.M), "simulate has something to simulate"
    assert '"query": "level"' in out
    assert re.search(r" (frame|heartbeat) +[0-9a-f]{8}", out), "peek shows what the gateway sends"
    assert re.search(r"^\S+ +gateway +root +online ", out, re.M), "status shows the gateway"


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_commands_of_a_page_give_rows_as_they_are_printed(page: str, shell: Shell) -> None:
    text = commands(page)
    counts = [int(count) for count in ROWS.findall(shell.run(text, 800))]
    assert len(counts) == len(re.findall(r"^headwater query ", text, re.M)) == 2
    assert all(counts)
