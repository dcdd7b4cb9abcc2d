"""An upgrade of a running tree, roots first: `python -m tests.faults.upgrade COMMIT` (`make upgrade FROM=COMMIT`).

All processes begin with the code of an earlier commit. Then the lander, the mergers and the gateways, in this order,
are stopped in order and go on with the code of this checkout, on the spools, journal and landing folder that they have;
meanwhile frames of the older ones reach newer parents. At the end all rows are compared with the readings. Exit code 1
when one differs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from edge_agent.demo.processes import ChildProcess
from tests.faults.landed_root import LandedRoot
from tests.faults.storm import DRAIN_S, LONGEST_START_S, Outcome, compare, settled
from tests.faults.tree import SECOND, Plan, Tree

ROOT = Path(__file__).parents[2]


def checked_out(commit: str, folder: Path) -> Path:
    """The package of a commit. Raises: subprocess.CalledProcessError if there is none."""
    archive = subprocess.run(
        ["git", "archive", commit, "edge_agent"], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True, timeout=60)
    return folder


def older(child: ChildProcess, code: Path) -> ChildProcess:
    """The same process with other code."""
    verb = {"region": "merge", "root": "land"}.get(child.name.partition("-")[0], "run")
    command = [sys.executable, "-m", "edge_agent", verb, str(child.folder / "headwater.toml")]
    return ChildProcess(child.name, command, child.folder, env={**os.environ, "PYTHONPATH": str(code)})


def upgrade(folder: Path, commit: str, each_s: float) -> tuple[Outcome, list[str]]:
    """(how the rows compare, processes that ended by themselves). each_s: between two steps."""
    outcome, wrong = Outcome(), list[str]()
    code = checked_out(commit, folder / "code")
    tree = Tree(folder, Plan(regions=1, gateways=2, keys=100, tick_s=1.0), lead_s=3.0)
    former = {child.name: older(child, code) for child in tree.processes}
    root = LandedRoot(tree.landing)
    try:
        for child in (*tree.brokers, *former.values()):
            child.start()
        until = time.monotonic() + LONGEST_START_S
        while not root.rows and time.monotonic() < until:
            time.sleep(0.3)
            root.turn()
        for child in tree.processes:
            time.sleep(each_s)
            if not former[child.name].alive:
                wrong.append(f"{child.name} of {commit}: {former[child.name].tail(2)}")
            former[child.name].stop()
            child.start()
        time.sleep(each_s)
        goal_us = (int(time.time()) // 10 + 1) * 10 * SECOND
        until = time.monotonic() + DRAIN_S
        while not settled(root, goal_us) and time.monotonic() < until:
            time.sleep(0.3)
            root.turn()
        wrong += [f"{child.name}: {child.tail(2)}" for child in tree.processes if not child.alive]
    finally:
        for child in former.values():
            child.kill()
        tree.stop()
    compare(outcome, tree, root, goal_us)
    return outcome, wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Run it and print what is wrong; the logs stay then."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.upgrade", description=__doc__)
    parser.add_argument("commit", help="where the older code comes from")
    parser.add_argument("--seconds", type=float, default=8.0, help="between two steps")
    args = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="headwater-upgrade-"))
    outcome, wrong = upgrade(folder, args.commit, args.seconds)
    for line in wrong:
        print(f"upgrade: {line}")
    print(outcome.summary().splitlines()[-1].replace("storm: 0 kills", f"upgrade: from {args.commit}"))
    if outcome.exact and not wrong:
        shutil.rmtree(folder)
        return 0
    print(f"upgrade: folders and logs: {folder}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
