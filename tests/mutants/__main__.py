"""Break one line at a time and watch the tests: `python -m tests.mutants [NAME...]` (`make mutants ONLY=...`).

Each mutant runs the tests that it names, up to the first that fails: that one has caught it, and the next time it runs
first. In the end the tests that have caught any must pass on an unbroken copy. Exit code 1 when a mutant survives or is
invalid. The last line: `caught N, survivors M`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.mutants.overlay import CAUGHT, Overlay
from tests.mutants.table import ROOT, Mutant, mutants

LAST: Final = ROOT / "build/mutants.json"  # name of a mutant -> the test that caught it last


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
    begun, last = time.monotonic(), _last()
    with tempfile.TemporaryDirectory(prefix="headwater-mutants-") as folder:
        selections = {test for mutant in chosen for test in mutant.tests}
        copies = [Overlay(Path(folder) / str(n), selections) for n in range(max(1, min(args.jobs, len(chosen))))]
        try:
            for copy in copies:
                if why := copy.begin():
                    print(f"mutants: the tests cannot be collected: {why}")
                    return 1
            verdicts = unbroken(copies[0], run(copies, chosen, last))
        finally:
            for copy in copies:
                copy.close()
    last |= {name: test for name, verdict in verdicts.items() if (test := caught_by(verdict))}
    LAST.parent.mkdir(exist_ok=True)
    LAST.write_text(json.dumps(last, indent=0), "utf-8")
    survivors = sum(verdict == "survived" for verdict in verdicts.values())
    caught = sum(verdict.startswith(CAUGHT) for verdict in verdicts.values())
    invalid = len(verdicts) - survivors - caught
    print(f"mutants: {time.monotonic() - begun:.0f} s" + (f", {invalid} invalid" if invalid else ""))
    print(f"caught {caught}, survivors {survivors}", flush=True)
    return 0 if caught == len(chosen) else 1


def run(copies: Sequence[Overlay], chosen: Sequence[Mutant], last: Mapping[str, str]) -> dict[str, str]:
    """The verdicts by the names of the mutants; one copy does one mutant at a time. last: see LAST."""
    free: SimpleQueue[Overlay] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(mutant: Mutant) -> str:
        copy, begun = free.get(), time.monotonic()
        try:
            verdict = copy.run(mutant, last.get(mutant.name, ""))
        finally:
            free.put(copy)
        print(f"mutants: {mutant.rule:4} {mutant.name}: {verdict} ({time.monotonic() - begun:.1f} s)", flush=True)
        return verdict

    with ThreadPoolExecutor(len(copies)) as pool:
        return dict(zip((mutant.name for mutant in chosen), pool.map(one, chosen), strict=True))


def unbroken(copy: Overlay, verdicts: Mapping[str, str]) -> dict[str, str]:
    """The verdicts without those of tests that fail though nothing is broken: they prove nothing."""
    tests, bad = {test for verdict in verdicts.values() if (test := caught_by(verdict))}, dict[str, str]()
    while left := sorted(tests - bad.keys()):
        why = copy.fails(left)
        if not why:
            break
        bad |= dict.fromkeys([caught_by(why)] if caught_by(why) in left else left, why)
    print(f"mutants: unbroken: {len(tests)} tests, {len(bad)} of them fail", flush=True)
    for test, why in bad.items():
        print(f"mutants: {test} fails though nothing is broken: {why}", flush=True)
    return {
        name: f"invalid: {test} fails though nothing is broken" if (test := caught_by(verdict)) in bad else verdict
        for name, verdict in verdicts.items()
    }


def caught_by(verdict: str) -> str:
    """The test that has caught a mutant; '' if none has."""
    if not verdict.startswith(CAUGHT):
        return ""
    test = verdict.removeprefix(CAUGHT).partition(", which")[0]
    return test if "[" not in test or test.endswith("]") else test.partition("[")[0]  # pytest cuts cases at blanks


def _last() -> dict[str, str]:
    with suppress(OSError, ValueError):
        return dict(json.loads(LAST.read_text("utf-8")))
    return {}


if __name__ == "__main__":
    sys.exit(main())
