"""A gateway that starts again and again while its parent is away: `python -m tests.faults.restarts --starts 72`.

Each start is a process of its own with the real spool and broker, killed with -9 once a frame of it has left; it begins
an epoch and sends again what was spooled. Then the parent comes, and all rows are compared with the readings. Exit code
1 when a reading is lost or counts twice. `make storm` ends with it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.faults.ears import Ears
from tests.faults.landed_root import LandedRoot
from tests.faults.storm import DRAIN_S, LONGEST_START_S, Outcome, compare, settled
from tests.faults.tree import SECOND, Plan, Tree

SMALL: Final = Plan(regions=1, gateways=1, keys=8, tick_s=1.0, rhythm="100ms")


class Forks:
    """Starts `headwater ARGUMENTS` without the second that imports take: forks of a process that has done them."""

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        """folder: working directory, with the log."""
        words = [sys.executable, "-m", "tests.faults.restarts", "--fork", *arguments]
        with (folder / "forks.log").open("ab") as log:
            self._process = subprocess.Popen(
                words,
                cwd=Path.cwd(),
                env={**os.environ, "FORKS_FOLDER": str(folder)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def start(self) -> int:
        """The id of a new process."""
        return int(self._asked("start"))

    def kill(self, pid: int) -> None:
        """With -9; it is gone when this returns."""
        self._asked(f"kill {pid}")

    def _asked(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None) -> None:
        """All are killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def serve(arguments: Sequence[str]) -> int:
    """Fork what is asked for, line by line on standard input; at its end kill what still runs."""
    from edge_agent.cli import run
    from edge_agent.cli.main import main as headwater

    assert run.HELP
    os.chdir(os.environ["FORKS_FOLDER"])
    running: set[int] = set()
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        if word == "start":
            pid = os.fork()
            if not pid:
                os.dup2(2, 1)
                os._exit(headwater(arguments))
            running.add(pid)
            print(pid, flush=True)
        else:
            end(int(number))
            running.discard(int(number))
            print(number, flush=True)
    for pid in running:
        end(pid)
    return 0


def end(pid: int) -> None:
    """Kill a child and wait for it."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def restarts(folder: Path, starts: int) -> Outcome:
    """So many starts of one gateway without its parent; then the parent, until all is there."""
    outcome = Outcome(kills=starts)
    with Tree(folder, SMALL) as tree, Ears(broker.url for broker in tree.brokers) as ears:
        root, (gateway,), (merger,) = LandedRoot(tree.landing), tree.gateways.values(), tree.mergers.values()
        until = time.monotonic() + LONGEST_START_S
        while not root.rows and time.monotonic() < until:
            time.sleep(0.1)
            root.turn()
        gateway.kill()
        merger.kill()
        with Forks(["run", "headwater.toml"], gateway.folder) as forks:
            for _ in range(starts):
                begun = time.monotonic()
                pid = forks.start()
                while ears.after([gateway.name], begun) is None and time.monotonic() < begun + LONGEST_START_S:
                    time.sleep(0.01)
                outcome.recovery_s.setdefault("gateway", []).append(time.monotonic() - begun)
                forks.kill(pid)
            merger.start()
            gateway.start()
            goal_us = (int(time.time()) // 10 + 1) * 10 * SECOND
            until = time.monotonic() + DRAIN_S
            while not settled(root, goal_us) and time.monotonic() < until:
                time.sleep(0.2)
                root.turn()
    compare(outcome, tree, root, goal_us)
    return outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Run it and print what is left; the logs stay where something is wrong."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--fork"]:
        return serve(words[1:])
    parser = argparse.ArgumentParser(prog="python -m tests.faults.restarts", description=__doc__)
    parser.add_argument("--starts", type=int, default=72)
    args = parser.parse_args(words)
    folder = Path(tempfile.mkdtemp(prefix="headwater-restarts-"))
    outcome = restarts(folder, args.starts)
    if outcome.exact:
        shutil.rmtree(folder)
    else:
        print(f"restarts: folders and logs: {folder}")
    print(outcome.summary().replace("storm:", "restarts:").replace(" kills,", " starts without the parent,"))
    return 0 if outcome.exact else 1


if __name__ == "__main__":
    sys.exit(main())
