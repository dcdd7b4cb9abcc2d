"""Break one line at a time and watch the tests: `python -m tests.mutants [NAME...]` (`make mutants ONLY=...`).

First the tests that the mutants name run on an unbroken copy: all must pass. Then each mutant runs its own. Exit code
1 when a mutant survives, is invalid, or an unbroken copy fails. The last line: `caught N, survivors M`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.mutants.overlay import LONGEST_S, Overlay
from tests.mutants.table import Mutant, mutants

A_TEST_S: Final = 4.0  # for each test that all mutants name, when nothing is broken: a busy machine is slow


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for, by names or parts of names; default: all."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants by a part of their name; default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="copies that run at once; default: cores")
    args = parser.parse_args(argv)
    chosen = [m for m in mutants() if not args.names or any(name in m.name for name in args.names)]
    if not chosen:
        print("mutants: no such mutant; there are: " + " ".join(m.name for m in mutants()))
        return 2
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headwater-mutants-") as folder:
        copies = [Overlay(Path(folder) / str(n)) for n in range(max(1, min(args.jobs, len(chosen))))]
        if not unbroken(copies[0], chosen):
            return 1
        verdicts = run(copies, chosen)
    survivors = sum(verdict == "survived" for verdict in verdicts)
    caught = sum(verdict.startswith("caught") for verdict in verdicts)
    invalid = len(verdicts) - survivors - caught
    print(f"mutants: {time.monotonic() - begun:.0f} s" + (f", {invalid} invalid" if invalid else ""))
    print(f"caught {caught}, survivors {survivors}", flush=True)
    return 0 if caught == len(chosen) else 1


def unbroken(copy: Overlay, chosen: Sequence[Mutant]) -> bool:
    """Whether all tests named pass as long as nothing is broken: else they prove nothing."""
    selection = sorted({test for mutant in chosen for test in mutant.tests})
    code, output = copy.pytest(selection, LONGEST_S + A_TEST_S * len(selection))
    print(f"mutants: unbroken: {output.strip().splitlines()[-1] if output.strip() else code}", flush=True)
    if code:
        print(output)
    return code == 0


def run(copies: Sequence[Overlay], chosen: Sequence[Mutant]) -> list[str]:
    """The verdicts, in the order of the mutants; one copy does one mutant at a time."""
    free: SimpleQueue[Overlay] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(mutant: Mutant) -> str:
        copy, begun = free.get(), time.monotonic()
        try:
            verdict = copy.run(mutant)
        finally:
            free.put(copy)
        print(f"mutants: {mutant.rule:4} {mutant.name}: {verdict} ({time.monotonic() - begun:.1f} s)", flush=True)
        return verdict

    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(one, chosen))


if __name__ == "__main__":
    sys.exit(main())
