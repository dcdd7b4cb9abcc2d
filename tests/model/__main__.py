"""`python -m tests.model SEEDS [first=0] [quota=0.004] [lost=0] [cut=0] ...`: faults by chance, rules off by 0."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import fields

from tests.model.world import Faults, Rules, World


def main(arguments: list[str]) -> int:
    """Prints seeds, violations and an example of each kind. Returns 1 if there are any."""
    named = dict(each.split("=") for each in arguments[1:])
    first, seeds, started = int(named.pop("first", 0)), int(arguments[0]), time.monotonic()
    rules = Rules(**{f.name: bool(int(named.pop(f.name))) for f in fields(Rules) if f.name in named})
    faults = Faults(**{name: float(chance) for name, chance in named.items()})
    kinds: Counter[str] = Counter()
    examples: dict[str, tuple[int, int, object]] = {}
    happened: Counter[str] = Counter()
    broken = 0
    for seed in range(first, first + seeds):
        world = World(seed, rules, faults).run()
        happened += world.happened
        broken += bool(world.checks.found)
        for what, now, details in world.checks.found:
            if what not in examples or examples[what][0] != seed:
                kinds[what] += 1
            examples.setdefault(what, (seed, now, details))
    for what, (seed, now, details) in examples.items():
        print(f"{what}: {kinds[what]} seeds, first {seed} at {now}: {str(details)[:200]}")
    print(f"{seeds} seeds, {broken} with violations, {time.monotonic() - started:.0f} s, {dict(happened)}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
