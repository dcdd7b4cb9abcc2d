"""Runs many simulated worlds on all cores: `make simulate SEEDS=10000 FIRST=0`.

Prints each seed that gives a wrong answer with the failpoints that it takes, how often each failpoint was hit, and as
the last line `seeds N, wrong answers M`. `--with NAME` adds a failpoint that the gate leaves out, `--more` all of MORE;
`--only NAME` takes no other. `--kind ordered`: worlds with count and state windows too.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import sys
import time
from collections import Counter
from functools import partial
from typing import Final

from tests.support.simulation import programme
from tests.support.simulation.failpoints import FAILPOINTS, GATE, MORE, NOT_YET
from tests.support.simulation.trees import Shape

YOUNG: Final = 200_000  # objects between two looks for garbage, some worlds; 700 by default


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument(
        "--with", dest="also", action="append", default=[], choices=sorted(NOT_YET.keys() | MORE), metavar="NAME"
    )
    parser.add_argument("--more", action="store_true", help="with all failpoints that have worlds of their own")
    parser.add_argument("--kind", choices=sorted(programme.WORLDS), default="timed", help="of the worlds")
    parser.add_argument("--only", action="append", default=[], choices=sorted(FAILPOINTS), metavar="NAME")
    parser.add_argument("--without", action="append", default=[], choices=sorted(FAILPOINTS), metavar="NAME")
    for name, kind in (("tiers", int), ("gateways", int), ("seconds", int), ("share", float)):
        parser.add_argument(f"--{name}", type=kind, help="of a shrunk world")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    on = (frozenset(args.only) or GATE | frozenset(args.also)) - frozenset(args.without)
    on |= MORE if args.more else frozenset()
    seeds, hits, wrong, began_s = range(args.first, args.first + args.seeds), Counter[str](), 0, time.monotonic()
    with multiprocessing.Pool(min(args.processes, args.seeds), prepare) as pool:
        shape = None if args.tiers is None else Shape(args.tiers, args.gateways, args.seconds, args.share)
        for outcome in pool.imap_unordered(
            partial(programme.run, on=on, shape=shape, kind=args.kind), seeds, chunksize=4
        ):
            hits += outcome.hits
            if outcome.wrong:
                wrong += 1
                report(programme.shrunk(outcome))
    for name in [name for name in FAILPOINTS if name in on or name not in MORE]:
        print(
            f"{name:16} {hits[name]:9} hits"
            + (f"   left out: {NOT_YET[name]}" if name in NOT_YET and name not in on else "")
        )
    rarest = min(sorted(on), key=lambda name: hits[name])
    print(f"each failpoint that may happen was hit at least {hits[rarest]} times ({rarest})")
    print(f"{time.monotonic() - began_s:.0f} s, {min(args.processes, args.seeds)} processes")
    print(f"seeds {args.seeds}, wrong answers {wrong}")
    return wrong > 0


def prepare() -> None:
    """Look for garbage less often, and not at modules: a world makes many small objects, and few cycles among them."""
    gc.freeze()
    gc.set_threshold(YOUNG, 10, 10)


def report(outcome: programme.Outcome) -> None:
    """A seed that went wrong, with what it takes to see it again."""
    shape = outcome.shape
    also = f" --kind {outcome.kind}" + "".join(f" --only {name}" for name in sorted(outcome.on))
    also += f" --tiers {shape.tiers} --gateways {shape.gateways} --seconds {shape.seconds} --share {shape.share}"
    print(f"seed {outcome.seed}: {len(outcome.wrong)} wrong, with {', '.join(sorted(outcome.on)) or 'no fault'}")
    for line in outcome.wrong[:3]:
        print(f"    {line[:300]}")
    print(f"    make simulate SEEDS=1 FIRST={outcome.seed}")
    print(f"    python -m tests.support.simulation --seeds 1 --first {outcome.seed}{also}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
