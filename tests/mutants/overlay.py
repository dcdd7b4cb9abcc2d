"""A copy of the tree in which one mutant at a time is in force; the checkout itself is never changed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.mutants.table import ROOT, Mutant

LEFT_OUT: Final = ("build", "dist", "spark-warehouse", "metastore_db", "__pycache__", "*.egg-info", ".*")
LONGEST_S: Final = 400.0  # of the tests of one mutant, with their collection
TEST_S: Final = 120  # of one test: a mutant may make it wait for ever, which counts as a failure
FAILED, COLLECTION, NO_TESTS = 1, 2, 5  # exit codes of pytest


class Overlay:
    """One copy, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)
        self.folder = folder
        self._written = 1_000_000_000  # modification times: a later one each, so that no compiled file is stale

    def run(self, mutant: Mutant) -> str:
        """Its verdict: `caught by TEST`, `survived`, or `invalid: WHY` where no test could tell."""
        path = self.folder / mutant.file
        whole = path.read_text("utf-8")
        try:
            broken = mutant.broken(whole)
        except ValueError as err:
            return f"invalid: {err}"
        self._write(path, broken)
        try:
            code, output = self.pytest(["-x", *mutant.tests])
        finally:
            self._write(path, whole)
        failed = re.search(r"^FAILED (\S+)", output, re.MULTILINE)
        if code == FAILED and failed is not None:
            return f"caught by {failed.group(1)}"
        if code == 0:
            return "survived"
        return f"invalid: pytest ended with {code}: {output[-800:]}"

    def pytest(self, arguments: Sequence[str], longest_s: float = LONGEST_S) -> tuple[int, str]:
        """Run tests in the copy, ended after a time. Returns (exit code, output)."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--tb=line",
            "-rf",
            "-o",
            f"timeout={TEST_S}",
            *arguments,
        ]
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "OPENBLAS_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=longest_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return NO_TESTS, f"no end within {longest_s:.0f} s"
        return done.returncode, done.stdout + done.stderr

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, "utf-8")
        self._written += 10
        os.utime(path, (self._written, self._written))
