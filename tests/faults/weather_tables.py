"""A Spark root over the landing files of a weather, killed while it runs; `headwater audit` of tables and tree."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from cloud_job.sql import delta_rs
from edge_agent.demo.processes import ChildProcess
from edge_agent.wire import landing
from tests.oracle.central_computer import Row
from tests.support.processes.background import Background

HALF_S: Final = 90.0  # so soon after the root or its JVM was killed the other one ends by itself
UPKEEP: Final = "15s"
ROOT_S: Final = 400.0
AUDIT_S: Final = 60.0
ROWS: Final = (
    'select query, key, start, "end", "values", complete from gold.results where not withdrawn order by 1, 2, 3'
)
Values = Mapping[str, float | None]


class Tables:
    """Tables beside the landing folder of a tree."""

    def __init__(self, folder: Path, grace_us: int) -> None:
        """folder: of the lander. grace_us: as the other root's."""
        self._folder, self.tables = folder, folder / "tables"
        self.double = 0  # rows that are there twice
        settings = (folder / "headwater.toml").read_text()
        settings = settings.replace("[lower]\n", f'[lower]\ngrace = "{grace_us // 1_000_000}s"\n')
        (folder / "spark.toml").write_text(
            f'{settings}[root]\ntables = "tables"\nrevise_every = "0s"\nupkeep = "{UPKEEP}"\n'
        )

    def made(self) -> str:
        """Process all landing files there are. Returns what is wrong with that, or nothing."""
        root, until = self.process("--once"), time.monotonic() + ROOT_S
        root.start()
        while root.alive and time.monotonic() < until:
            time.sleep(0.2)
        code = root.code
        root.kill()
        return "" if code == 0 else f"headwater root --once: {code}: {root.tail(3)}"

    def process(self, *options: str) -> ChildProcess:
        """The root, not started."""
        command = [sys.executable, "-m", "edge_agent", "root", *options, str(self._folder / "spark.toml")]
        return ChildProcess("spark", command, self._folder)

    def audit(self, brokers: Sequence[str]) -> tuple[int, list[str]]:
        """(exit code, lines) of the command."""
        also = [word for url in brokers[1:] for word in ("--also", url)]
        command = [sys.executable, "-m", "edge_agent", "audit", "--tables", str(self.tables), "--broker", brokers[0]]
        done = subprocess.run([*command, *also], capture_output=True, text=True, timeout=AUDIT_S, check=False)
        return done.returncode, (done.stdout + done.stderr).splitlines()

    def rows(self) -> dict[Row, tuple[Values, bool]]:
        """The values of each row, and whether it is complete."""
        found = delta_rs.ask(ROWS, str(self.tables)).rows
        rows = {(query, key, start, end): (values, whole) for query, key, start, end, values, whole in found}
        self.double = len(found) - len(rows)
        return rows


class KilledRoot(Background):
    """The Spark root of a running tree. kept: links to all landing files, of which it deletes those it is done with."""

    def __init__(self, tables: Tables, landed: Path) -> None:
        super().__init__()
        self.tables, self.kept, self._landed = tables, landed.parent / "kept", landed
        self.kept.mkdir(parents=True, exist_ok=True)
        self.wrong: list[str] = []
        self.kills = 0
        self._root = tables.process()
        self._killed = True  # or not started yet
        self._halves: list[tuple[float, psutil.Process]] = []

    def _run(self) -> None:
        """A root deletes a file with the batch after that in which it took it, a second later at the earliest."""
        while not self._over.wait(0.1):
            self.keep()

    def keep(self) -> None:
        """Link what has landed."""
        for path in sorted(self._landed.glob(f"[0-9]*{landing.SUFFIX}")):
            with suppress(FileExistsError, FileNotFoundError):
                os.link(path, self.kept / path.name)

    def turn(self, chance: random.Random) -> str:
        """Start it; or kill it, its JVM, or both."""
        self._look()
        if not self._root.alive:
            if not self._killed:
                self.wrong.append(f"the Spark root ended with {self._root.code}: {self._root.tail(3)}")
            if self._halves:
                return "has not ended yet"
            self._killed = False
            self._root.start()
            return "started"
        return self._kill(chance.choice(("root", "JVM", "both")))

    def _kill(self, kind: str) -> str:
        root = psutil.Process(self._root.pid)
        java = [each for each in root.children(recursive=True) if "java" in each.name()]
        victims = {"root": [root], "JVM": java}.get(kind) or [root, *java]
        self._halves = [(time.monotonic() + HALF_S, each) for each in (root, *java) if each not in victims]
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        self._killed = True
        self.kills += 1
        return f"{kind} killed, {'with' if java else 'before it had'} a JVM"

    def _look(self) -> None:
        """The half that was not killed ends by itself."""
        for until, each in [*self._halves]:
            if not (self._root.alive if each.pid == self._root.pid else each.is_running()):
                self._halves.remove((until, each))
            elif time.monotonic() > until:
                self.wrong.append(f"the Spark root: {each} did not end within {HALF_S:g} s after the other half")
                self._halves.remove((until, each))
                with suppress(psutil.NoSuchProcess):
                    each.kill()

    def end(self) -> None:
        """Kill it if it runs, so that its tables are those of a root that was killed."""
        if self._root.alive and not self._killed:
            self._kill("both")
        while self._halves:
            self._look()
            time.sleep(0.2)
        self._root.kill()
        self.keep()
