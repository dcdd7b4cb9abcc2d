"""Any tree, any order, duplicates, losses, crashes give the answer of one central computer."""

from __future__ import annotations

import pytest

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.epoch_frames import Effect, EpochFrames
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.downlink.serving_agreement import ServingAgreement
from edge_agent.machines.events import BadFrame
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.root.decision.root_state import RootLimits
from tests.support.effort import seeds
from tests.support.simulation.faults import calm, crashing, everything, lossy
from tests.support.simulation.fleets import fleets
from tests.support.simulation.world import SECOND


@pytest.mark.seeded
@pytest.mark.parametrize("chaos", [calm, lossy, crashing, everything])
@pytest.mark.parametrize("first", [0, 20])
def test_final_rows_equal_the_oracle_and_nothing_is_stuck(chaos: object, first: int) -> None:
    """protocol 1.1 to 1.3, 2, 3.1 to 3.4, 4, 6, 7: every rule at once."""
    assert callable(chaos)
    assert fleets(seeds(first, 20), chaos) == []


@pytest.mark.seeded
@pytest.mark.parametrize("chaos", [calm, lossy])
def test_queries_come_and_go_at_run_time_without_a_wrong_row(chaos: object) -> None:
    """protocol 6.3: what is there is exact, what others ask for is untouched, a new query begins for all at once."""
    assert callable(chaos)
    assert fleets(seeds(1_000, 20), chaos, changes=True) == []


@pytest.mark.seeded
@pytest.mark.parametrize("chaos", [calm, lossy, crashing, everything])
def test_sessions_equal_the_oracle_whatever_happens(chaos: object) -> None:
    """protocol 5: joined across gateways, complete by frontier and hint, none stuck, none a lie (4.7)."""
    assert callable(chaos)
    assert fleets(seeds(2_000, 20), chaos, sessions=True) == []


@pytest.mark.seeded
@pytest.mark.parametrize("sessions", [False, True])
@pytest.mark.parametrize(
    "limits", [RootLimits(7 * SECOND), RootLimits(0, 12 * SECOND), RootLimits(3 * SECOND, 30 * SECOND)]
)
def test_a_root_with_limits_gives_the_oracle_s_rows_within_them(limits: RootLimits, sessions: bool) -> None:
    """protocol 4.2, 5.4, 8.3: revised no more often than revise_every, flushed at the end; too late is said so."""
    assert fleets(seeds(5_000, 10), everything, sessions=sessions, limits=limits) == []


@pytest.mark.seeded
@pytest.mark.parametrize("chaos", [lossy, everything])
def test_rows_near_the_removal_of_a_query_claim_no_gateway_that_removed_it_earlier(chaos: object) -> None:
    """protocol 6.3: gateways hear of it up to 2 s apart, or after a crash."""
    assert callable(chaos)
    assert fleets(seeds(1_100, 10), chaos, changes=True) == []


def test_without_ends_of_leaves_such_rows_would_claim_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServingAgreement, "ends", lambda _self, _every, _on_way: {})
    assert any("claims gateways that do not serve it" in line for line in fleets([1_002, 1_007], lossy, changes=True))


def trusting_the_broker(self: Outbox, epoch: int, seq: int) -> None:
    """What custody must not do: a frame the broker took is let go."""
    if self.pending.marked.pop((epoch, seq), None) is not None:
        self.forget.append((epoch, seq))
        self._flying.discard((epoch, seq))


def believing_every_heartbeat(self: Inbox, node: str, epoch: int, seq: int) -> bool:
    """What a parent must not do: a frontier holds before the frames below it are here."""
    del seq
    return EpochKey(node, epoch) in self.epochs


def taking_every_frame(self: Inbox, node: str, message: Frame | BadFrame, received_us: int) -> list[Effect]:
    """What a parent must not do: apply what comes, as it comes."""
    del received_us
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
    """A control: without protocol 3, 2.5 or 2.2 one of the same seeds must fail."""
    monkeypatch.setattr(owner, method, mutant)
    wrong: list[str] = []
    for seed in range(12):
        try:
            wrong += fleets([seed], lossy)
        except (AssertionError, KeyError, ValueError):
            wrong.append(f"seed {seed} broke an invariant")
        if wrong:
            return
    pytest.fail("no seed shows it")
