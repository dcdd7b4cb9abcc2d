"""Many seeds: each draws a fleet and its faults, runs it, and compares it with the oracle. A wrong one is shrunk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.support.simulation.failpoints import FAILPOINTS, GATE, MS, SECOND
from tests.support.simulation.fleets import Fleet
from tests.support.simulation.world import Chaos

# How likely a failpoint is each time it could happen, in worlds that have it.
CHANCES: Final = {
    "network.drop": (0.1, 0.4),
    "network.repeat": (0.1, 0.4),
    "network.late": (0.02,),
    "broker.restart": (0.01,),
    "link.down": (0.005,),
    "process.crash": (0.001, 0.005, 0.02),
    "frames.step": (1.0,),
    "frames.flush": (1.0,),
    "frames.birth": (1.0,),
    "root.killed": (0.1, 0.5),
}
SHARE: Final = 0.5  # of the worlds that have a failpoint
FRAME_BYTES: Final = (333, 500, 1_500, 5_000, 131_072)
DELAYS_US: Final = (20 * MS, 500 * MS, 5 * SECOND)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a seed. wrong: one line each; on: the failpoints of its world; hits: how often each happened."""

    seed: int
    wrong: tuple[str, ...]
    on: frozenset[str]
    hits: Counter[str]


def chaos_of(seed: int, on: Collection[str]) -> Chaos:
    """The faults that a seed draws, among those that may happen."""
    random = Random(f"faults {seed}")
    drawn = {name: random.choice(CHANCES[name]) for name in FAILPOINTS if random.random() < SHARE}
    delay_us, frame_bytes = random.choice(DELAYS_US), random.choice(FRAME_BYTES)
    return Chaos.of({name: chance for name, chance in drawn.items() if name in on}, delay_us, frame_bytes)


def run(seed: int, on: Collection[str] = GATE) -> Outcome:
    """One world. on: the failpoints that may happen in it."""
    random, chaos = Random(f"kind {seed}"), chaos_of(seed, on)
    sessions = random.random() < 0.4
    fleet = Fleet(seed, chaos, sessions=sessions, changes=not sessions and random.random() < 0.3)
    try:
        wrong = tuple(fleet.run())
    except Exception as err:  # whatever a machine raises is a wrong answer of this seed
        wrong = (f"{type(err).__name__}: {err}",)
    had = frozenset(name for name, chance in chaos.more.items() if chance)
    return Outcome(seed, wrong, had, fleet.world.faults.hits)


def shrunk(outcome: Outcome) -> Outcome:
    """The same seed with as few failpoints as still give a wrong answer."""
    for name in sorted(outcome.on):
        fewer = run(outcome.seed, outcome.on - {name})
        if fewer.wrong:
            outcome = fewer
    return outcome


def wrong_ones(seeds: range, on: Collection[str] = GATE) -> Iterator[Outcome]:
    """Seeds that went wrong, shrunk."""
    for seed in seeds:
        outcome = run(seed, on)
        if outcome.wrong:
            yield shrunk(outcome)
