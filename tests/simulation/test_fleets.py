"""Any tree, any order, duplicates, losses, crashes give the answer of one central computer."""

from __future__ import annotations

from random import Random

import pytest

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.inbox import Effect, EpochFrames, Inbox
from edge_agent.machines.events import BadFrame
from edge_agent.machines.uplink.outbox import Outbox
from tests.support.simulation.fleets import fleets
from tests.support.simulation.world import MS, SECOND, Chaos

SEEDS = 40  # a test; some 0.2 s each


def calm(_random: Random) -> Chaos:
    return Chaos()


def lossy(random: Random) -> Chaos:
    delay_us = random.choice([50 * MS, 500 * MS, 5 * SECOND])
    return Chaos(random.choice([0.1, 0.4]), random.choice([0.1, 0.4]), delay_us, broker=0.01, partition=0.005)


def crashing(random: Random) -> Chaos:
    return Chaos(crash=random.choice([0.001, 0.005, 0.02]))


def everything(random: Random) -> Chaos:
    chaos = lossy(random)
    chaos.crash = random.choice([0.001, 0.005])
    return chaos


@pytest.mark.parametrize("chaos", [calm, lossy, crashing, everything])
@pytest.mark.parametrize("first", [0, SEEDS])
def test_final_rows_equal_the_oracle_and_nothing_is_stuck(chaos: object, first: int) -> None:
    """protocol 1.1 to 1.3, 2, 3.1 to 3.4, 4, 6, 7: every rule at once."""
    assert callable(chaos)
    assert fleets(first, SEEDS, chaos) == []


@pytest.mark.parametrize("chaos", [calm, lossy])
def test_queries_come_and_go_at_run_time_without_a_wrong_row(chaos: object) -> None:
    """protocol 6.3: what is there is exact, what others ask for is untouched, a new query begins for all at once."""
    assert callable(chaos)
    assert fleets(1_000, SEEDS // 2, chaos, changes=True) == []


@pytest.mark.parametrize("chaos", [calm, lossy, crashing, everything])
def test_sessions_equal_the_oracle_whatever_happens(chaos: object) -> None:
    """protocol 5: joined across gateways, complete by frontier and hint, none stuck, none a lie (4.7)."""
    assert callable(chaos)
    assert fleets(2_000, SEEDS // 2, chaos, sessions=True) == []


def trusting_the_broker(self: Outbox, epoch: int, seq: int) -> None:
    """What custody must not do: a frame the broker took is let go."""
    if self.pending.pop((epoch, seq), None) is not None:
        self.forget.append((epoch, seq))
        self._flying.discard((epoch, seq))


def believing_every_heartbeat(self: Inbox, node: str, epoch: int, seq: int) -> bool:
    """What a parent must not do: a frontier holds before the frames below it are here."""
    del seq
    return EpochKey(node, epoch) in self.epochs


def taking_every_frame(self: Inbox, node: str, message: Frame | BadFrame) -> list[Effect]:
    """What a parent must not do: apply what comes, as it comes."""
    key = EpochKey(node, message.epoch)
    applied = self.epochs.setdefault(key, EpochFrames()).applied
    applied.next = max(applied.next, message.seq + 1)
    self.current[node] = message.epoch
    self.changed.add(key)
    return [Effect(node, message.epoch, message.seq, message)] if isinstance(message, Frame) else []


@pytest.mark.parametrize(
    ("owner", "method", "mutant"),
    [
        (Outbox, "sent", trusting_the_broker),
        (Inbox, "reached", believing_every_heartbeat),
        (Inbox, "take", taking_every_frame),
    ],
)
def test_the_simulation_finds_what_the_rules_forbid(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, mutant: object
) -> None:
    """A control: without protocol 3, 2.5 or 2.2 the same seeds must fail."""
    monkeypatch.setattr(owner, method, mutant)
    wrong = []
    for seed in range(12):
        try:
            wrong += fleets(seed, 1, lossy)
        except (AssertionError, KeyError, ValueError):
            wrong.append(f"seed {seed} broke an invariant")
    assert wrong
