"""The books of random fleets balance, at every moment and at the end, through losses, duplicates and crashes."""

from __future__ import annotations

from random import Random

import pytest

from edge_agent.algebra.frame import Frame, Heartbeat
from edge_agent.machines.downlink.child_frames import Applied, ChildFrames
from edge_agent.machines.events import BadFrame
from edge_agent.root.books import Audit
from tests.support.effort import seeds
from tests.support.simulation.failpoints import MS
from tests.support.simulation.fleet_books import audited
from tests.support.simulation.fleets import START, Fleet
from tests.support.simulation.trees import Shape, Tree
from tests.support.simulation.world import SECOND, Chaos

pytestmark = pytest.mark.seeded


def _chaos(random: Random) -> Chaos:
    return Chaos(
        drop=random.choice([0.0, 0.1]),
        repeat=0.2,
        delay_us=random.choice([20_000, 2 * SECOND]),
        crash=random.choice([0.0, 0.001]),
        broker=0.005,
        partition=0.01,
    )


def _run(seed: int, *, changes: bool = False, sessions: bool = False) -> tuple[Fleet, list[Audit]]:
    """A fleet that has come to its end, and what an audit found every ten seconds and then."""
    fleet = Fleet(seed, _chaos(Random(seed)), changes=changes, sessions=sessions)
    world, found = fleet.world, []
    world.now_us = START
    for until_s in range(10, 41, 10):
        world.run(START + until_s * SECOND, lambda _now: None)
        found.append(audited(fleet))
    world.calm()
    world.settled_step_us = SECOND
    world.settle(START + 190 * SECOND)
    fleet.root_host.batch()
    return fleet, [*found, audited(fleet)]


@pytest.mark.parametrize("seed", seeds(0, 8))
def test_the_books_balance_at_every_moment_and_nothing_is_pending_at_the_end(seed: int) -> None:
    """protocol 9.1."""
    fleet, found = _run(seed, changes=bool(seed % 2), sessions=bool(seed % 3))
    for audit in found:
        assert not audit.off, audit.off
    last = found[-1]
    assert not last.unknown, last.unknown
    assert last.rest == 0
    for node in last.nodes:
        if node.leaf and not fleet.changes:  # every group takes every reading once
            assert node.number("taken") % max(len(fleet.truth[node.node]), 1) == 0
    assert sum(last.pending.values()) == 0, last.pending


@pytest.mark.parametrize(
    ("seed", "fault", "moves"),
    [(10, "disk.wiped", 0.0), (10, "disk.older", 0.0), (6, "disk.wiped", 0.03)],
)
def test_a_spool_that_was_lost_or_is_a_copy_makes_the_books_an_inequality(seed: int, fault: str, moves: float) -> None:
    """protocol 9.1: nobody lost these readings, and nobody counted them twice."""
    chances = {fault: 0.5, "process.crash": 0.01, **({"node.move": moves} if moves else {})}
    tree = Tree(seed, Chaos.of(chances, 20 * MS, 131_072), Shape(1 + seed % 2, 2, 12))
    assert tree.run() == []
    assert tree.world.faults.hits[fault]
    found = audited(tree)
    assert found.off == []
    assert found.unknown


def test_a_frame_that_took_effect_twice_is_found_where_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    take, twice = ChildFrames.take, list[tuple[str, int]]()

    def again(self: ChildFrames, node: str, message: Frame | Heartbeat | BadFrame, received_us: int) -> list[Applied]:
        out = take(self, node, message, received_us)
        for applied in out if not twice else ():
            if applied.effect.frame is not None and applied.effect.frame.readings:
                twice.append((node, applied.effect.frame.readings))
                assert not isinstance(message, Heartbeat)
                return [*out, self._apply(applied.effect, message, received_us)]
        return out

    monkeypatch.setattr(ChildFrames, "take", again)
    _, found = _run(1)
    node, readings = twice[0]
    assert any(line.startswith(f"{node} -> ") and f" {readings} reading" in line for line in found[-1].off), found[
        -1
    ].off
