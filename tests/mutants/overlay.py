"""A copy of the tree in which one mutant at a time is in force; the checkout itself is never changed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.mutants.table import ROOT, Mutant
from tests.mutants.worker import OPTIONS

# compiled files come with their sources and times: to compile the tree costs more than a hundred mutants
LEFT_OUT: Final = ("build", "dist", "spark-warehouse", "metastore_db", "*.egg-info", ".*")
LONGEST_S: Final = 400.0  # of the tests of one mutant, with their collection
FAILED, NO_TESTS = 1, 5  # exit codes of pytest
CAUGHT: Final = "caught by "


class Overlay:
    """One copy, in a folder of its own, with a process that has collected tests (tests/mutants/worker.py)."""

    def __init__(self, folder: Path, selections: Iterable[str]) -> None:
        """selections: the tests that mutants will name; the process collects their files."""
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)
        self.folder = folder
        self._written = 1_000_000_000  # modification times: a later one each, so that no compiled file is stale
        files = sorted({selection.partition("::")[0] for selection in selections})
        self._log = (folder / "worker.log").open("w+")
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.worker", *files],
            cwd=folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.folder), "OPENBLAS_NUM_THREADS": "1"}

    def begin(self) -> str:
        """Wait until the tests are collected. Returns '', or why they are not."""
        return "" if self._answer().startswith("collected") else self._logged()

    def run(self, mutant: Mutant, first: str = "") -> str:
        """Its verdict: `caught by TEST`, `survived`, or `invalid: WHY` where no test could tell.

        first: the test to begin with. A mutant that survives in the process with the collected tests, or that cannot
        be put into it, has its verdict from a new process.
        """
        path = self.folder / mutant.file
        whole = path.read_text("utf-8")
        try:
            broken = mutant.broken(whole)
            compile(broken, mutant.file, "exec", dont_inherit=True)
        except (ValueError, SyntaxError) as err:
            return f"invalid: {err}"
        self._write(path, broken)  # for processes that tests start
        try:
            tests = [*([first] if first else []), *mutant.tests]
            verdict = self._asked(tests, mutant.file, whole, broken)
            return verdict if verdict.startswith(CAUGHT) else self._anew(mutant)
        finally:
            self._write(path, whole)

    def fails(self, tests: Sequence[str]) -> str:
        """The first of these tests that fails though nothing is broken; '' if none does."""
        verdict = self._asked(tests, longest_s=LONGEST_S + 4 * len(tests))
        return "" if verdict == "survived" else verdict

    def close(self) -> None:
        """End the process."""
        self._worker.communicate()
        self._log.close()

    def _asked(
        self, tests: Sequence[str], file: str = "", whole: str = "", broken: str = "", longest_s: float = LONGEST_S
    ) -> str:
        job = {"tests": list(tests), "file": file, "whole": whole, "broken": broken, "longest_s": longest_s}
        assert self._worker.stdin is not None
        self._worker.stdin.write(json.dumps(job) + "\n")
        self._worker.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._worker.stdout is not None
        line = self._worker.stdout.readline()
        return str(json.loads(line)) if line else f"ended: {self._logged()}"

    def _logged(self) -> str:
        return (self.folder / "worker.log").read_text("utf-8", "replace")[-2_000:]

    def _anew(self, mutant: Mutant) -> str:
        """The verdict of a new process of pytest."""
        command = [sys.executable, "-m", "pytest", *OPTIONS, "-x", *mutant.tests]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=LONGEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"invalid: no end within {LONGEST_S:.0f} s"
        output = done.stdout + done.stderr
        failed = re.search(r"^FAILED (\S+)", output, re.MULTILINE)
        if done.returncode == FAILED and failed is not None:
            return f"{CAUGHT}{failed.group(1)}"
        return "survived" if done.returncode == 0 else f"invalid: pytest ended with {done.returncode}: {output[-800:]}"

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, "utf-8")
        self._written += 10
        os.utime(path, (self._written, self._written))
