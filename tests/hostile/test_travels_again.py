"""Whatever decodes, of several children, is merged and encoded again at every tier: nobody's row ends another's."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edge_agent.algebra.aggregates import Readings, basis_of, lift
from edge_agent.algebra.frame import Define, Frame, GroupPart, Plan, Section
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.query import Aggregate
from edge_agent.errors import WireError
from edge_agent.machines.events import Arrived, Tick
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.runtime.region import heard
from edge_agent.wire import frames
from tests.hostile.fed_region import GROUP, NOW_US, Region, S
from tests.hostile.fuzz import mutated, restructured
from tests.support.algebra_strategies import every_aggregate
from tests.support.effort import seeds

INTS = (0, 1, -1, 2**31, 2**53, -(2**53), 2**61, -(2**61), 2**62, 2**63 - 1, -(2**63))
WIDE = (*INTS, 2**127 - 1, -(2**127), 2**100)
REALS = (0.0, -0.0, 5e-324, 1.5, 1e300, -1e300, 1.7976931348623157e308, -1.7976931348623157e308)
AGGREGATES = every_aggregate()
BAD = ("x", "y")


def row(plan: Plan, draw: random.Random, *, extreme: bool) -> Partials:
    """One row of three readings; extreme: with the greatest and least numbers in columns of numbers."""
    value: Array = np.array([1.5, 2.5, 2.5]) if plan.scale is None else np.array([15, 25, 25])
    readings = Readings(np.full(3, NOW_US - 5 * S) + np.arange(3), value, np.arange(3))
    states = dict(lift(readings, Segments.runs(np.zeros(1, np.int64), 3), plan.basis, plan.scale))
    for name, column in states.items() if extreme else ():
        if draw.randrange(2) and name != "count":
            if column.dtype == np.float64:
                states[name] = np.array([draw.choice(REALS)])
            elif column.dtype == np.int64:
                states[name] = np.array([draw.choice(INTS)])
            elif isinstance(column[0], int):
                states[name] = np.array([draw.choice(WIDE)], object)
    start = np.array([NOW_US - 5 * S])
    return Partials(start, start + S, np.zeros(1, np.int64), states)


def sent(plan: Plan, rows: Partials) -> bytes:
    return frames.encode(Frame(7, 1, groups=(GroupPart(0, NOW_US, (Section.of(0, plan, rows),)),)))


def of_a_bad_child(plan: Plan, draw: random.Random) -> bytes:
    """A frame that some child may send: extreme numbers, items of another kind, flipped bits."""
    try:
        payload = sent(plan, row(plan, draw, extreme=True))
    except (ValueError, WireError, OverflowError):
        payload = sent(plan, row(plan, draw, extreme=False))  # no encoder makes such; bytes may still say so
    match draw.randrange(3):
        case 0:
            return restructured(payload, draw)
        case 1:
            return mutated(payload, draw)
    return payload


def passed(below: Region, above: Region, seen: int) -> int:
    """What a region has sent goes up, as bytes. Returns how many frames."""
    for frame in below.sent[seen:]:
        if frame.birth is not None:
            above.merger.parent.inbox.journal = frame.birth.journal
        above.feed(Arrived((("m", heard(frames.encode(frame)), None),)))
    return len(below.sent)


def travel(aggregate: Aggregate, scale: int | None, seed: int) -> None:
    draw = random.Random(seed)
    plan = Plan(b"12345678", "slice", basis_of((aggregate,), scale), scale, S, (("q", 1),))
    below, above, root = Region(), Region(gateways_only=False), NumpyRoot(0, grace_us=60 * S)
    for child in ("good", *BAD):
        define = Define(keys=(0, ("",)), nodes=(0, (child,)), groups=((0, GROUP),), plans=((0, 0, plan),))
        below.feed(Arrived(((child, heard(frames.encode(below.birth(child, plan, define=define))), None),)))
    for child in BAD:
        below.feed(Arrived(((child, heard(of_a_bad_child(plan, draw)), None),)))
    below.feed(Arrived((("good", heard(sent(plan, row(plan, draw, extreme=False))), None),)))
    seen = 0
    for second in range(2, 9):
        for region in (below, above):
            region.now_us = NOW_US + second * 20 * S
        below.feed(Arrived((("good", Frame(7, second, groups=(GroupPart(0, below.now_us),)), None),)))
        below.feed(Tick())
        seen = passed(below, above, seen)
        above.feed(Tick())
    assert below.readings() >= 3, "the good child's row"
    assert above.readings() == below.readings()
    for frame in above.sent:
        if frame.birth is not None:
            root.decider.parent.inbox.journal = frame.birth.journal
        root.take("top", frame, above.now_us)
    root.step(above.now_us + 100 * S, flush=True)


@pytest.mark.seeded
@pytest.mark.parametrize("scale", [None, 0])
@pytest.mark.parametrize("part", range(8))
def test_all_that_decodes_is_encoded_again_after_merging_through_every_tier(part: int, scale: int | None) -> None:
    """protocol 7.1: every function's columns, extreme numbers, damaged and rebuilt frames of two children at once."""
    for at in range(part, len(AGGREGATES), 8):
        for seed in seeds(0, 3):
            try:
                travel(AGGREGATES[at], scale, seed)
            except Exception as err:
                raise AssertionError(f"{AGGREGATES[at]} scale {scale} seed {seed}") from err
