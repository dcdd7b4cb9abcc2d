"""Many seeds: each draws a fleet and its faults, runs it, and compares it with the oracle. A wrong one is shrunk."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.support.simulation.failpoints import FORGETFUL, GATE, MS, SECOND
from tests.support.simulation.ordered_trees import OrderedTree
from tests.support.simulation.trees import Shape, Tree
from tests.support.simulation.world import Chaos

# How likely a failpoint is each time it could happen, in worlds that have it.
CHANCES: Final = {
    "network.drop": (0.1, 0.4),
    "network.repeat": (0.1, 0.4),
    "network.late": (0.02,),
    "broker.restart": (0.01,),
    "link.down": (0.01,),
    "link.lower": (0.01,),
    "process.crash": (0.002, 0.01, 0.03),
    "frames.step": (1.0,),
    "frames.flush": (1.0,),
    "frames.birth": (1.0,),
    "keys.many": (1.0,),
    "epochs.many": (0.01,),
    "disk.full": (0.01, 0.05),
    "disk.flip_frame": (0.5,),
    "disk.flip_slot": (0.3,),
    "disk.older": (0.3,),
    "disk.wiped": (0.3,),
    "journal.unsynced": (0.5,),
    "journal.wiped": (0.5,),
    "landing.cut": (0.03,),
    "journal.new": (0.3,),
    "clock.skew": (0.7,),
    "clock.step": (0.01, 0.03),
    "clock.unset": (0.5,),
    "clock.lander": (0.01,),
    "command.sent": (0.01, 0.05),
    "source.live": (1.0,),
    "source.tokens": (1.0,),
    "node.late": (0.5,),
    "node.cloned": (0.05,),
    "node.move": (0.01, 0.03),
    "merger.move": (0.01, 0.03),
    "parent.away": (0.01, 0.03),
    "parent.unreached": (0.01, 0.03),
    "root.killed": (0.05, 0.3),
    "power.cut": (0.01, 0.03),
    "clock.all": (0.01,),
    "broker.held": (1.0,),
    "broker.older": (0.01, 0.03),
    "landing.lost": (0.03,),
    "journal.older": (0.3,),
    "source.early": (1.0,),
}
SHARES: Final = {  # of the worlds that have a failpoint; 0.3 where nothing is said
    **dict.fromkeys(("network.drop", "network.repeat", "process.crash", "frames.step", "frames.flush"), 0.5),
    "node.cloned": 0.05,
    **dict.fromkeys(("disk.flip_frame", "landing.cut", "epochs.many", "source.live", "source.tokens"), 0.1),
    "parent.unreached": 0.2,
}
AT_STARTS: Final = ("disk.flip", "disk.older", "disk.wiped", "source.")  # which take a process that dies
CLONED_WITH: Final = (
    "node.",
    "network.",
    "frames.",
    "keys.",
    "command.",
    "root.",
    "clock.skew",
)  # else it falls silent
MOVES: Final = ("node.move", "merger.move", "parent.away", "parent.unreached")
FRAME_BYTES: Final = (333, 500, 1_500, 5_000, 131_072)
FLUSH_BYTES: Final = FRAME_BYTES[:3]  # a flush holds what was open at a crash, and that is little
WORLDS: Final[dict[str, type[Tree]]] = {"timed": Tree, "ordered": OrderedTree}  # ordered: count and state windows too
DELAYS_US: Final = (20 * MS, 500 * MS, 5 * SECOND)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a seed. wrong: one line each; on: the failpoints of its world; hits: how often each happened.

    kind: of the world, in WORLDS.
    """

    seed: int
    wrong: tuple[str, ...]
    on: frozenset[str]
    shape: Shape
    hits: Counter[str]
    kind: str = "timed"


def chaos_of(seed: int, on: Collection[str]) -> Chaos:
    """The faults that a seed draws, among those that may happen. Each is drawn apart: others do not change it."""
    chances = {}
    for name in on:
        random = Random(f"draws {seed} {name}")
        if random.random() < SHARES.get(name, 0.3):
            chances[name] = random.choice(CHANCES[name])
    if any(name.startswith(AT_STARTS) for name in chances) and "process.crash" in on:
        chances.setdefault("process.crash", 0.01)
    if "source.live" in chances:  # what was lost is declared by the node's clock
        chances = {name: chance for name, chance in chances.items() if not name.startswith("clock.")}
    if "source.tokens" in chances:  # nobody knows of what was acknowledged after a copy was made, and never sent
        chances.pop("disk.older", None)
    if any(name in chances for name in FORGETFUL):  # what another parent has, nobody below the root knows (1.5)
        chances = {name: chance for name, chance in chances.items() if name not in MOVES}
    if "node.cloned" in chances:
        chances = {name: p for name, p in chances.items() if name.startswith(CLONED_WITH) and name not in MOVES}
    random = Random(f"world {seed}")
    delay_us, frame_bytes = random.choice(DELAYS_US), random.choice(FRAME_BYTES)
    if "frames.flush" in chances and frame_bytes not in FLUSH_BYTES:
        frame_bytes = random.choice(FLUSH_BYTES)
    return Chaos.of(chances, delay_us, frame_bytes)


def run(seed: int, on: Collection[str] = GATE, shape: Shape | None = None, kind: str = "timed") -> Outcome:
    """One world. on: the failpoints that may happen in it. shape: instead of the one that the seed draws."""
    chaos, shape = chaos_of(seed, on), shape or Shape.of(seed)
    tree = WORLDS[kind](seed, chaos, shape)
    try:
        wrong = tuple(tree.run())
    except Exception as err:  # whatever a machine raises is a wrong answer of this seed
        at = traceback.extract_tb(err.__traceback__)[-1]
        wrong = (f"{type(err).__name__} in {at.name}, line {at.lineno}: {err}",)
    had = frozenset(name for name, chance in chaos.more.items() if chance)
    return Outcome(seed, wrong, had, shape, tree.world.faults.hits, kind)


def shrunk(outcome: Outcome) -> Outcome:
    """The same seed with as few failpoints, nodes, seconds and readings as still give a wrong answer."""
    again = True
    while again:
        again = False
        smaller = [(outcome.on - {name}, outcome.shape) for name in sorted(outcome.on)]
        smaller += [(outcome.on, shape) for shape in outcome.shape.smaller()]
        for on, shape in smaller:
            fewer = run(outcome.seed, on, shape, outcome.kind)
            if fewer.wrong:
                outcome, again = fewer, True
                break
    return outcome


def wrong_ones(seeds: range, on: Collection[str] = GATE) -> Iterator[Outcome]:
    """Seeds that went wrong, shrunk."""
    for seed in seeds:
        outcome = run(seed, on)
        if outcome.wrong:
            yield shrunk(outcome)
