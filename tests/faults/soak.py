"""A tree that runs for long: `python -m tests.faults.soak --minutes 60` (`make soak MINUTES=60`).

Memory, descriptors and disk of every process are sampled; landing files go once they are read, as a root does it. Links
break now and then. Exit code 1 when something grows from the second third of the time to the last one, or a row of the
last minutes is wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from edge_agent.demo.processes import ChildProcess
from edge_agent.ports.sqlite_file import WAL_BYTES
from tests.faults.landed_root import LandedRoot
from tests.faults.storm import Outcome, compare, settled
from tests.faults.tree import SECOND, Plan, Tree

EVERY_S: Final = 5.0
BREAK_EVERY_S: Final = 60.0  # a broker is killed so often: what a lost connection leaves behind adds up
DRAIN_S: Final = 180.0
MB: Final = 1_000_000
MAY_GROW: Final = {"memory": 2 * MB, "descriptors": 1, "disk": MB}  # allocators and the log of SQLite breathe


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one process. memory, disk: bytes."""

    memory: int
    descriptors: int
    disk: int


def look(child: ChildProcess) -> Sample | None:
    """None while it does not run. Its log is no part of its disk."""
    try:
        process = psutil.Process(child.pid)
        with process.oneshot():
            memory, descriptors = process.memory_info().rss, process.num_fds()
    except psutil.Error:
        return None
    disk = 0
    for path in child.folder.rglob("*"):
        try:
            size = path.stat().st_size if path.is_file() and path != child.log else 0
        except FileNotFoundError:
            continue
        disk += max(size, WAL_BYTES) if path.name.endswith("-wal") else size  # it grows so far, in half an hour or so
    return Sample(memory, descriptors, disk)


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """Field -> how much its median grows from the second third to the last one; nothing of fewer than 9 samples."""
    third = len(samples) // 3
    if third < 3:
        return {}
    middle, last = samples[third : 2 * third], samples[2 * third :]
    return {
        name: statistics.median(getattr(each, name) for each in last)
        - statistics.median(getattr(each, name) for each in middle)
        for name in MAY_GROW
    }


def growing(samples: Mapping[str, Sequence[Sample]]) -> list[str]:
    """A line for everything that grows by more than it may."""
    return [
        f"{node}: {field} grows by {by:.0f}"
        for node, seen in samples.items()
        for field, by in growth(seen).items()
        if by > MAY_GROW[field]
    ]


def soak(folder: Path, plan: Plan, seconds: float, seed: int = 1) -> tuple[dict[str, list[Sample]], Outcome]:
    """Run a tree so long. Returns what was sampled, and how its rows of the end compare with the readings."""
    chance, samples, outcome = random.Random(seed), dict[str, list[Sample]](), Outcome()
    with Tree(folder, plan) as tree:
        root, begun, broken = LandedRoot(tree.landing, delete=True), time.monotonic(), time.monotonic()
        while time.monotonic() - begun < seconds:
            time.sleep(EVERY_S)
            root.turn()
            for child in tree.processes:
                if (sample := look(child)) is not None:
                    samples.setdefault(child.name, []).append(sample)
            if time.monotonic() - broken > BREAK_EVERY_S:
                broken = time.monotonic()
                broker = chance.choice(tree.brokers)
                broker.kill()
                broker.start()
                outcome.kills += 1
        goal_us = (int(time.time()) // 10 + 1) * 10 * SECOND
        until = time.monotonic() + DRAIN_S
        while not settled(root, goal_us) and time.monotonic() < until:
            time.sleep(0.5)
            root.turn()
    compare(outcome, tree, root, goal_us)
    return samples, outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Run a soak and print a line a process."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--keys", type=int, default=1_000)
    args = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="headwater-soak-"))
    samples, outcome = soak(folder, Plan(keys=args.keys), args.minutes * 60)
    for node, seen in samples.items():
        grown = growth(seen)
        text = ", ".join(f"{field} {getattr(seen[-1], field)} ({by:+.0f})" for field, by in grown.items())
        print(f"soak: {node}: {text or 'too short to say'}")
    wrong = growing(samples)
    for line in wrong:
        print(f"soak: {line}")
    print(outcome.summary().replace("storm:", "soak:").splitlines()[-1])
    print(f"soak: {args.minutes:g} minutes, {len(samples)} processes, {len(wrong)} growing", flush=True)
    if wrong or not outcome.exact:
        print(f"soak: folders and logs: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
