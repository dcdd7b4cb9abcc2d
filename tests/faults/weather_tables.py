"""What a Spark root makes of the landing files of a weather; `headwater audit` of its tables and the running tree."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cloud_job.sql import delta_rs
from edge_agent.demo.processes import ChildProcess
from tests.oracle.central_computer import Row

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
        settings = (folder / "headwater.toml").read_text()
        settings = settings.replace("[lower]\n", f'[lower]\ngrace = "{grace_us // 1_000_000}s"\n')
        (folder / "spark.toml").write_text(f'{settings}[root]\ntables = "tables"\nrevise_every = "0s"\n')

    def made(self) -> str:
        """Process all landing files there are. Returns what is wrong with that, or nothing."""
        command = [sys.executable, "-m", "edge_agent", "root", "--once", str(self._folder / "spark.toml")]
        root, until = ChildProcess("spark", command, self._folder), time.monotonic() + ROOT_S
        root.start()
        while root.alive and time.monotonic() < until:
            time.sleep(0.2)
        code = root.code
        root.kill()
        return "" if code == 0 else f"headwater root --once: {code}: {root.tail(3)}"

    def audit(self, brokers: Sequence[str]) -> tuple[int, list[str]]:
        """(exit code, lines) of the command."""
        also = [word for url in brokers[1:] for word in ("--also", url)]
        command = [sys.executable, "-m", "edge_agent", "audit", "--tables", str(self.tables), "--broker", brokers[0]]
        done = subprocess.run([*command, *also], capture_output=True, text=True, timeout=AUDIT_S, check=False)
        return done.returncode, (done.stdout + done.stderr).splitlines()

    def rows(self) -> dict[Row, tuple[Values, bool]]:
        """The values of each row, and whether it is complete."""
        found = delta_rs.ask(ROWS, str(self.tables)).rows
        return {(query, key, start, end): (values, whole) for query, key, start, end, values, whole in found}
