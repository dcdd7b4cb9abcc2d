"""A kill storm: `python -m tests.faults.storm --kills 100` (`make storm KILLS=100`).

Gateways, mergers, the lander and the brokers of a tree are killed with -9 at random moments and started again, then
all rows are compared with the readings. Exit code 1 when a reading is lost or counts twice, or a row is wrong or
incomplete.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from edge_agent.demo.processes import ChildProcess
from tests.faults.ears import Ears
from tests.faults.landed_root import LandedRoot
from tests.faults.tree import SECOND, WINDOW_US, Plan, Tree

DRAIN_S: Final = 240.0  # until all is complete; a re-sending waits up to a minute
LONGEST_START_S: Final = 60.0


@dataclass(slots=True)
class Outcome:
    """What a storm left. lost, twice: readings. wrong: windows whose rows differ.

    recovery_s: role -> each kill's, on the clock; cpu_s: what the start took of a processor, which tells more on a busy
    machine.
    """

    kills: int = 0
    readings: int = 0
    keys: int = 0
    windows: int = 0
    lost: int = 0
    twice: int = 0
    wrong: int = 0
    incomplete: int = 0
    unsettled: bool = False
    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        return not (self.lost or self.twice or self.wrong or self.incomplete or self.unsettled)

    def summary(self) -> str:
        """Two lines for people."""
        slow = [
            f"{role} {statistics.median(times):.1f}/{max(times):.1f} s ({len(times)})"
            + (f", CPU {statistics.median(cpu):.1f}/{max(cpu):.1f} s" if (cpu := self.cpu_s.get(role)) else "")
            for role, times in sorted(self.recovery_s.items())
            if times
        ]
        return (
            f"storm: recovery, median/longest (kills): {'; '.join(slow) or 'none'}\n"
            f"storm: {self.kills} kills, {self.readings} readings, {self.keys} keys, {self.windows} rows: "
            f"{self.lost} lost, {self.twice} twice, {self.wrong} wrong, {self.incomplete} incomplete"
            + (", NOT SETTLED" if self.unsettled else "")
        )


class Storm:
    """Kills in a running tree."""

    def __init__(self, tree: Tree, ears: Ears, seed: int) -> None:
        self.tree, self.ears, self.chance = tree, ears, random.Random(seed)
        self.kills: list[tuple[str, str, float, float]] = []  # role, name, killed, started again
        self.cpu_s: dict[str, list[float]] = {}
        self._starting: dict[str, tuple[str, ChildProcess, float]] = {}  # name -> role, process, started again
        self._roles: dict[str, list[ChildProcess]] = {
            "gateway": list(tree.gateways.values()),
            "merger": list(tree.mergers.values()),
            "lander": [tree.lander],
            "broker": list(tree.brokers),
        }

    def kill(self) -> None:
        """One process of a random role."""
        role = self.chance.choice(list(self._roles))
        self._kill(role, self.chance.choice(self._roles[role]))

    def _kill(self, role: str, victim: ChildProcess) -> None:
        victim.kill()
        killed = time.monotonic()
        time.sleep(self.chance.choice((0.0, 0.1, 0.5)))
        victim.start()
        self.kills.append((role, victim.name, killed, time.monotonic()))
        if role != "broker":
            self._starting[victim.name] = (role, victim, time.monotonic())

    def pause(self, seconds: float) -> None:
        """Sleep, and look what each start has taken of a processor when it speaks."""
        until = time.monotonic() + seconds
        while True:
            for name, (role, child, started) in list(self._starting.items()):
                if self.ears.after(self._speaks(role, name), started) is None:
                    continue
                with suppress(psutil.Error):
                    spent = psutil.Process(child.pid).cpu_times()
                    self.cpu_s.setdefault(role, []).append(spent.user + spent.system)
                del self._starting[name]
            if (rest := until - time.monotonic()) <= 0:
                return
            time.sleep(min(rest, 0.05))

    def _speaks(self, role: str, name: str) -> list[str]:
        """Whose word shows that a process is back."""
        return [f"parent of {merger}" for merger in self.tree.mergers] if role == "lander" else [name]

    def recovery_s(self) -> dict[str, list[float]]:
        """Role -> seconds from a start to the first message, where nothing else on its way was killed meanwhile."""
        out: dict[str, list[float]] = {}
        for n, (role, name, _, started) in enumerate(self.kills):
            if role == "broker":
                continue
            way = self.tree.lows[self.tree.parents[name]].name if role == "gateway" else self.tree.high.name
            took = self.ears.after(self._speaks(role, name), started)
            until = started + (LONGEST_START_S if took is None else took)
            around = self.kills[max(0, n - 3) : n] + self.kills[n + 1 :]
            if not any(other in {way, name} and started - 3.0 < killed < until for _, other, killed, _ in around):
                out.setdefault(role, []).append(LONGEST_START_S if took is None else took)
        return out


def storm(folder: Path, plan: Plan, kills: int, seed: int, *, pause_s: float = 1.0, readings: int = 0) -> Outcome:
    """Run a tree, kill so often, wait until all is there, and compare. readings: go on at least until so many."""
    outcome = Outcome(kills=kills)
    with Tree(folder, plan) as tree, Ears(broker.url for broker in tree.brokers) as ears:
        root, blows = LandedRoot(tree.landing), Storm(tree, ears, seed)
        until = time.monotonic() + LONGEST_START_S
        while not root.rows and time.monotonic() < until:
            time.sleep(0.3)
            root.turn()
        for _ in range(kills):
            blows.pause(blows.chance.uniform(0.2, 2 * pause_s - 0.2))
            blows.kill()
        while sum(count for *_, count, _ in _all(tree, int(time.time()) * SECOND)) < readings:
            time.sleep(2.0)
        goal_us = (int(time.time()) // 10 + 1) * 10 * SECOND  # windows that are open now belong to it
        until = time.monotonic() + DRAIN_S
        while not settled(root, goal_us) and time.monotonic() < until:
            blows.pause(0.5)
            root.turn()
        outcome.recovery_s, outcome.cpu_s = blows.recovery_s(), blows.cpu_s
    compare(outcome, tree, root, goal_us)
    return outcome


def settled(root: LandedRoot, goal_us: int) -> bool:
    """Whether windows beyond the goal have rows, and all before it are complete."""
    reached = min(root.frontier_us("many-10s"), root.frontier_us("few-1s"))
    return reached >= goal_us and all(row.complete for row in root.rows.values() if row.end <= goal_us)


def _all(tree: Tree, until_us: int) -> list[tuple[str, str, int, int, int]]:
    return [(sensor, *row) for sensor in WINDOW_US for row in tree.truth(sensor, until_us)]


def compare(outcome: Outcome, tree: Tree, root: LandedRoot, goal_us: int) -> None:
    """Count in `outcome` what the rows that end by goal_us are, against the readings."""
    names = {"many": "many-10s", "few": "few-1s"}
    got = {
        (query, key, start): row
        for (query, _, key, start), row in root.rows.items()
        if not row.withdrawn and row.end <= goal_us
    }
    outcome.keys = len({key for query, key, _ in got if query == "many-10s"})
    outcome.unsettled = not settled(root, goal_us)
    for sensor, key, start, count, total in _all(tree, goal_us):
        row = got.pop((names[sensor], key, start), None)
        readings, units = (0, 0) if row is None else (row.readings, round((row.values["sum"] or 0.0) * 100))
        outcome.readings += count
        outcome.windows += row is not None
        outcome.lost += max(0, count - readings)
        outcome.twice += max(0, readings - count)
        outcome.wrong += (readings, units) != (count, total)
        outcome.incomplete += row is not None and not row.complete
    outcome.wrong += len(got)  # rows of no reading


def main(argv: Sequence[str] | None = None) -> int:
    """Run a storm and print what it left; the logs stay where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storm", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--readings", type=int, default=50_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two kills, on average")
    args = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="headwater-storm-"))
    outcome = storm(folder, Plan(keys=args.keys), args.kills, args.seed, pause_s=args.pause, readings=args.readings)
    if outcome.exact:
        shutil.rmtree(folder)
    else:
        print(f"storm: folders and logs: {folder}")
    print(outcome.summary())
    return 0 if outcome.exact else 1


if __name__ == "__main__":
    sys.exit(main())
