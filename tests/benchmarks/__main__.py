"""Run the benchmarks, each in a process of its own: `python -m tests.benchmarks [NAME...]`.

NAME is a figure (slicer_1_key) or a module (bench_slicer); what takes longer than all others together runs only where
it is named. Exit code 1 when a figure misses its target or fails.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.benchmarks.bench import REGISTERED, ROOT, Benchmark, load, results_file
from tests.benchmarks.document import readable, write_down
from tests.benchmarks.targets import TARGETS

HERE: Final = Path(__file__).parent
TOTAL_S: Final = 20 * 60  # what `make bench` may take as a whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for and print each figure against its target."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures or modules; default: all")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # we are the process of one benchmark
    parser.add_argument(
        "--document", action="store_true", help="write the figures kept so far into docs/performance.md"
    )
    args = parser.parse_args(argv)
    if args.document:
        write_down()
        return 0
    find()
    chosen = [e for e in REGISTERED if (wanted(e, args.names) if args.names else not e.alone)]
    if not chosen:
        known = ", ".join(sorted(name for entry in REGISTERED for name in entry.names))
        print(f"no benchmark is called {' '.join(args.names)}; there are: {known}", file=sys.stderr)
        return 2
    if args.inside:
        for entry in chosen:
            entry.run()
        return 0
    return run_all(chosen)


def find() -> None:
    """Import every bench_*.py here, so that its functions register themselves."""
    for path in sorted(HERE.glob("bench_*.py")):
        importlib.import_module(f"tests.benchmarks.{path.stem}")


def wanted(entry: Benchmark, names: Sequence[str]) -> bool:
    """Whether one of the names is a figure of it, or its module."""
    return any(name in entry.names or name == entry.module.rpartition(".")[2] for name in names)


def run_all(chosen: Sequence[Benchmark]) -> int:
    """Run each within its budget and what is left of the total."""
    deadline, failed = time.monotonic() + TOTAL_S, False
    for entry in chosen:
        left_s = entry.budget_s if entry.alone else deadline - time.monotonic()
        if left_s <= 0:
            print(f"{', '.join(entry.names)}: not run, the {TOTAL_S // 60} minutes of all benchmarks are over")
            failed = True
            continue
        began = time.time()
        failed |= not run_one(entry, min(entry.budget_s, left_s))
        failed |= not show(entry.names, began)
    print(f"figures: {results_file()}")
    return int(failed)


def run_one(entry: Benchmark, budget_s: float) -> bool:
    """Run one in a fresh process, so that memory and warmth of another do not count."""
    print(f"{', '.join(entry.names)} ...", flush=True)
    command = [sys.executable, "-m", "tests.benchmarks", "--inside", entry.names[0]]
    try:
        return subprocess.run(command, cwd=ROOT, check=False, timeout=budget_s).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"  ended after its {budget_s:.0f} s")
        return False


def show(names: Sequence[str], began: float) -> bool:
    """Print the figures of these names that were recorded since `began` against their targets; are all reached?"""
    kept = {str(entry["name"]): entry for entry in load()}
    fine = True
    for name in names:
        entry, target = kept.get(name), TARGETS.get(name)
        if entry is None or str(entry["at"]) < time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(began)):
            print(f"  {name:28} no figure")
            fine = False
            continue
        value = float(str(entry["value"]))
        unit = "" if entry["unit"] == "1" else f" {entry['unit']}"
        line = f"  {name:28} {readable(value)}{unit}"
        if target:
            met = target.met(value)
            fine &= met
            word = "at most" if target.at_most else "at least"
            line += f", {word} {readable(target.bound)}: {'reached' if met else 'MISSED'}"
        print(line, flush=True)
    return fine


if __name__ == "__main__":
    sys.exit(main())
