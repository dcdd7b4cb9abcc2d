"""Kills of a root that looks after its tables: `python -m tests.faults.root_kills --kills 55` (`make kills`).

A root works on landing files, with every step of upkeep due each second and all that may be deleted due at once. It,
its JVM, or both are killed with -9, mostly within a step, and started again. Then every row is compared with the
readings. Exit code 1 when one is missing, too many, different or there twice, or the books do not balance. Two roots,
each with files and tables of its own, share the kills: one alone waits most of the time.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from cloud_job.audit.root_book import root_book
from cloud_job.delta.retention import Kept
from cloud_job.delta.upkeep import steps_of
from cloud_job.sql import delta_rs
from edge_agent.algebra.windows.count_tumbling import CountTumbling
from edge_agent.algebra.windows.session import Session
from tests.support.cloud.child_frames import SECOND, START, Child, query, record, tick
from tests.support.cloud.raw_frames import Reading, naive, raw_rows

CONFIG: Final = """\
[node]
id = "root"
role = "root"
[lower]
broker = "mqtt://127.0.0.1:1"
grace = "20s"
[lander]
folder = "landing"
[root]
tables = "tables"
trigger = "100ms"
revise_every = "0s"
horizon = "1m"
upkeep = "1s"
keep_versions = "1s"
keep_ops = "1s"
[log]
level = "debug"
"""
KEYS: Final = ("site=a", "site=b", "site=c")
# Of a second each. After a kill each one is a batch, before the first step of the run:
FILES_A_RUN: Final = 5  # with twelve, three quarters of a kill's time were batches
FEED_S: Final = 0.3  # between two
STEPS: Final = (1, 1, 1, 2)  # of a run before it is killed; each run begins with others, after each is a pause
MOMENT_S: Final = 3.0  # of every other kill, after its last step has begun, at most: it may meet the batch after it
LAST_STEPS: Final = 2
ROUND: Final = len(steps_of(Kept(1, 1), 1))  # steps until each has run
LONG: Final = 5  # of so many runs one lasts most of a round: the step that deletes readings is likely among its steps
LONG_FEED_S: Final = 1.5  # between two files then, until it is killed: rows found useless go a batch later
LONG_S: Final = 300.0
START_S: Final = 120.0
DRAIN_S: Final = 300.0
BACKLOG_S: Final = 30.0  # until the first batch of a start, if there is one
COUNT: Final = 10  # readings of a count window
SESSION_GAP_US: Final = 2 * SECOND
LEFT_OUT: Final = re.compile(r" left_out=(\d+)")
ROWS: Final = 'select query, key, start, "values", readings from gold.results where not withdrawn'
DELETED: Final = "select sum(readings) from bronze.messages where kind = 'expired'"
RowKey = tuple[str, str, int]


@dataclass(slots=True)
class Fleet:
    """Gateways with windows of a second or sessions, which late readings revise, and others with count windows."""

    landing: Path
    chance: random.Random
    files: int = 0
    rows: dict[RowKey, list[int]] = field(default_factory=dict)  # values of each window of a second
    readings: list[Reading] = field(default_factory=list)  # of count windows
    pieces: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # key -> (time, value) in sessions
    _timed: list[Child] = field(init=False)
    _counted: list[Child] = field(init=False)
    _sessions: list[Child] = field(init=False)
    _again: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._timed = [Child(f"gw-{i}", (query(fns=("sum", "count")),), KEYS) for i in range(3)]
        counted = query("c", CountTumbling(COUNT), ("sum", "first", "last"), source="t")
        self._counted = [Child(f"gw-c{i}", (counted,), KEYS) for i in range(2)]
        session = query("s", Session(SESSION_GAP_US), ("sum", "count"), source="u")
        self._sessions = [Child(f"gw-s{i}", (session,), KEYS) for i in range(2)]
        self.land([record(each, START, each.birth()) for each in (*self._timed, *self._counted, *self._sessions)])

    def land(self, records: Sequence[bytes]) -> None:
        """A landing file, there whole or not at all."""
        path = self.landing / f"{self.files:08d}.cborseq"
        part = path.with_suffix(".tmp")
        part.write_bytes(tick(START + self.files * SECOND) + b"".join(records))
        part.rename(path)
        self.files += 1

    def second(self) -> None:
        """One more second of readings, some late ones, and a frame that came before."""
        start_us, now_us = START + (self.files - 1) * SECOND, START + self.files * SECOND
        found = [frame for child in self._timed for frame in self._windows(child, start_us, now_us)]
        found += [self._raw(child, start_us, now_us) for child in self._counted]
        found += [frame for child in self._sessions for frame in self._pieces(child, start_us, now_us)]
        self._again = [*self._again[-20:], *found]
        self.land([*found, self.chance.choice(self._again)])

    def _windows(self, child: Child, start_us: int, now_us: int) -> list[bytes]:
        value = [self.chance.randint(-99, 99) for _ in KEYS]
        start = np.full(len(KEYS), start_us)
        rows = child.rows(now_us, start, np.array(value, float), np.arange(len(KEYS)))
        for key, each in zip(KEYS, value, strict=True):
            self.rows.setdefault(("q", key, start_us), []).append(each)
        out = [record(child, now_us, rows)]
        if self.chance.random() < 0.3:
            i, late_us = self.chance.randrange(len(KEYS)), start_us - self.chance.randint(1, 5) * SECOND
            if late_us >= START:
                late = child.rows(now_us, np.array([late_us]), np.array([1.0]), np.array([i]), length_us=1, late=True)
                self.rows["q", KEYS[i], late_us].append(1)
                out.append(record(child, now_us, late))
        return out

    def _pieces(self, child: Child, start_us: int, now_us: int) -> list[bytes]:
        """Readings in sessions: half of the keys in a second, sometimes one that joins two sessions later."""
        found = [(i, start_us + self.chance.randrange(SECOND)) for i in range(len(KEYS)) if self.chance.random() < 0.5]
        late_us = start_us - self.chance.randint(1, 5 * SECOND)
        late = [(self.chance.randrange(len(KEYS)), late_us)] if late_us >= START and self.chance.random() < 0.2 else []
        out = []
        for readings, behind in ((found, False), (late, True)):
            if not readings and behind:
                continue
            values = [self.chance.randint(-99, 99) for _ in readings]
            for (i, us), value in zip(readings, values, strict=True):
                self.pieces.setdefault(KEYS[i], []).append((us, value))
            key, time_us = (np.array([each[at] for each in readings], np.int64) for at in (0, 1))
            frame = child.rows(now_us, time_us, np.array(values, float), key, length_us=1, late=behind)
            out.append(record(child, now_us, frame))
        return out

    def rest(self) -> None:
        """So many seconds without a reading that all sessions are over, in one file."""
        self.files += SESSION_GAP_US // SECOND + 2
        now_us = START + self.files * SECOND
        self.land([record(child, now_us, child.rows(now_us)) for child in self._sessions])

    def _raw(self, child: Child, start_us: int, now_us: int) -> bytes:
        first = len(self.readings)
        for key in KEYS:
            for each in range(self.chance.randint(0, 3)):
                value, order = float(self.chance.randint(-99, 99)), len(self.readings)
                self.readings.append(Reading(start_us + each, key, value, child.node, order))
        return record(child, now_us, raw_rows(child, now_us, self.readings[first:]))

    def wanted(self) -> dict[RowKey, tuple[dict[str, float], int]]:
        """Every row of the readings: values, and how many."""
        out: dict[RowKey, tuple[dict[str, float], int]] = {
            place: ({"sum": float(sum(values)), "count": float(len(values))}, len(values))
            for place, values in self.rows.items()
        }
        asked = self._counted[0].queries[0]
        for place, (_end, found) in naive(asked, self.readings, COUNT, COUNT).items():
            out[place] = ({name: float(value) for name, value in found.items() if value is not None}, COUNT)
        for key, pieces in self.pieces.items():
            for values, start_us in sessions(pieces):
                place = ("s", key, start_us)
                out[place] = ({"sum": float(sum(values)), "count": float(len(values))}, len(values))
        return out


def sessions(pieces: Sequence[tuple[int, int]]) -> Iterator[tuple[list[int], int]]:
    """(values, time of the first reading) of each session. pieces: (time, value) of all readings of a key."""
    start_us, last_us, values = 0, 0, list[int]()
    for us, value in sorted(pieces):
        if values and us - last_us > SESSION_GAP_US:
            yield values, start_us
            values = []
        start_us, last_us = (start_us if values else us), us
        values.append(value)
    if values:
        yield values, start_us


@dataclass(slots=True)
class Outcome:
    """What was found after all kills. hung: processes that did not end by themselves when they had to."""

    kills: Counter[str] = field(default_factory=Counter)
    inside: int = 0
    batches: int = 0
    steps: int = 0
    failed: int = 0
    hung: int = 0
    rows: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    double: int = 0
    deleted: int = 0
    unbalanced: str = ""
    printed: bytes = b""  # on standard output

    @property
    def exact(self) -> bool:
        return not (
            self.missing or self.extra or self.different or self.double or self.hung or self.unbalanced or self.printed
        )

    def summary(self) -> str:
        """Two lines for people. Steps are at least so many: the log is thinned."""
        of = ", ".join(f"{count} of {name}" for name, count in sorted(self.kills.items()))
        return (
            f"kills: {self.kills.total()} kills ({of}), {self.inside} within a step; {self.batches} batches, "
            f"{self.steps} steps or more, {self.failed} failed, {self.hung} hung; {self.deleted} readings deleted\n"
            f"kills: {self.rows} rows: {self.missing} missing, {self.extra} extra, {self.different} different, "
            f"{self.double} double"
            + (f"; books: {self.unbalanced}" if self.unbalanced else "")
            + (f"; printed: {self.printed[:200]!r}" if self.printed else "")
        )


class Killed:
    """A root that is killed and started again, with the files that land meanwhile."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        (folder / "landing").mkdir()
        (folder / "root.toml").write_text(CONFIG)
        self.log, self.out = folder / "log", folder / "out"
        self.fleet, self.outcome = Fleet(folder / "landing", self.chance), Outcome()

    def run(self, kills: int, minutes: float = 60.0) -> Outcome:
        """So many within that time, then an orderly end; the tables against the readings."""
        end_s = time.monotonic() + minutes * 60
        while self.outcome.kills.total() < kills and time.monotonic() < end_s:
            self._one()
        self._last()
        self.outcome.batches, self.outcome.failed = self._seen("batch.done"), self._seen("upkeep.failed")
        self.outcome.steps = self._ended()
        self.outcome.printed = self.out.read_bytes()
        compare(self.outcome, str(self.folder / "tables"), self.fleet)
        return self.outcome

    def _started(self) -> subprocess.Popen[bytes]:
        ready = self._seen("root.ready")
        words = [sys.executable, "-m", "edge_agent", "root", str(self.folder / "root.toml")]
        with self.log.open("ab") as log, self.out.open("ab") as out:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
        if not until(lambda: self._seen("root.ready") > ready or process.poll() is not None, START_S):
            process.kill()
        return process

    def _one(self) -> None:
        """Kill one while files land: a moment after the beginning of some step."""
        process = self._started()
        java = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        long = self.outcome.kills.total() % LONG == LONG - 1
        steps = self.chance.randint(ROUND // 2, ROUND) if long else self.chance.choice(STEPS)
        goal = self._seen("upkeep.step") + steps
        moment_s = self.chance.uniform(0, MOMENT_S) if self.outcome.kills.total() % 2 else 0.0
        last = self.fleet.files + FILES_A_RUN

        def come() -> bool:
            if process.poll() is None and (long or self.fleet.files < last):
                self.fleet.second()
            return self._seen("upkeep.step") >= goal or process.poll() is not None

        until(come, *((LONG_S, LONG_FEED_S) if long else (START_S, FEED_S)))
        until(lambda: False, moment_s)
        inside = self._seen("upkeep.step") > self._ended()
        kind = self.chance.choice(("root", "jvm", "both"))
        victims = {"root": [process.pid], "jvm": [each.pid for each in java]}
        for pid in victims.get(kind) or [pid for pids in victims.values() for pid in pids]:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).send_signal(signal.SIGKILL)
        self.outcome.kills[kind] += 1
        self.outcome.inside += inside
        self._gone(process, java)

    def _gone(self, process: subprocess.Popen[bytes], java: list[psutil.Process]) -> None:
        """The half that was not killed ends by itself."""
        if not until(lambda: process.poll() is not None and not any(each.is_running() for each in java), 90):
            self.outcome.hung += 1
            process.kill()
            process.wait(30)
            for each in java:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        self._closed()

    def _closed(self) -> None:
        """A step that a kill ended has no line of its end: none is under way now."""
        with self.log.open("a") as log:
            log.write("\nupkeep.nothing killed\n" * (self._seen("upkeep.step") - self._ended()))

    def _last(self) -> None:
        done = self._seen("batch.done")
        process, landing = self._started(), self.folder / "landing"
        until(lambda: self._seen("batch.done") > done, BACKLOG_S)
        self.fleet.rest()  # in a batch of its own, because the files of the last batch stay
        until(lambda: len([*landing.glob("0*.cborseq")]) <= 1, DRAIN_S)
        steps = self._ended()
        until(lambda: self._ended() > steps + LAST_STEPS, DRAIN_S)  # the last file stays until another batch
        process.send_signal(signal.SIGTERM)
        try:
            self.outcome.hung += process.wait(180) != 0
        except subprocess.TimeoutExpired:
            process.kill()
            self.outcome.hung += 1

    def _seen(self, event: str) -> int:
        """How many lines of the log; it is thinned, and says of how many."""
        if not self.log.exists():
            return 0
        lines = [line for line in self.log.read_text("utf-8", "replace").splitlines() if event in line]
        return len(lines) + sum(int(found[1]) for line in lines if (found := LEFT_OUT.search(line)))

    def _ended(self) -> int:
        return sum(map(self._seen, ("upkeep.done", "upkeep.failed", "upkeep.nothing")))


def until(true: Callable[[], bool], timeout_s: float, every_s: float = 0.05) -> bool:
    """Whether it has become true within that time."""
    end_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > end_s:
            return False
        time.sleep(every_s)
    return True


def compare(outcome: Outcome, folder: str, fleet: Fleet) -> None:
    """The rows of the tables with those of the readings, and the books."""
    rows = delta_rs.ask(ROWS, folder).rows
    found: dict[RowKey, tuple[Any, int]] = {(q, key, start): (values, n) for q, key, start, values, n in rows}
    wanted = fleet.wanted()
    outcome.rows, outcome.double = len(rows), len(rows) - len(found)
    outcome.missing, outcome.extra = len(wanted.keys() - found.keys()), len(found.keys() - wanted.keys())
    outcome.different = sum(found[place] != wanted[place] for place in found.keys() & wanted.keys())
    outcome.deleted = delta_rs.ask(DELETED, folder).rows[0][0] or 0
    book = root_book(folder)
    if book.stored != book.applied or book.doubled or book.uncounted or book.late:
        outcome.unbalanced = f"{book.stored} stored, {book.applied} applied, {book.doubled}, late {book.late}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run it and print what is left; folders and log stay where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.root_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=55)
    parser.add_argument("--minutes", type=float, default=120.0, help="no further kill after so many (120)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--roots", type=int, default=2, help="that share the kills, side by side (2)")
    args = parser.parse_args(argv)
    kills = [args.kills // args.roots + (i < args.kills % args.roots) for i in range(args.roots)]
    folders = [Path(tempfile.mkdtemp(prefix="headwater-kills-")) for _ in kills]
    with ThreadPoolExecutor(args.roots) as pool:
        roots = [Killed(folder, args.seed + i) for i, folder in enumerate(folders)]
        outcomes = list(pool.map(lambda root, count: root.run(count, args.minutes), roots, kills))
    for folder, outcome in zip(folders, outcomes, strict=True):
        if outcome.exact:
            shutil.rmtree(folder)
        else:
            print(f"kills: folders and log: {folder}")
        print(outcome.summary())
    return 0 if all(outcome.exact for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
