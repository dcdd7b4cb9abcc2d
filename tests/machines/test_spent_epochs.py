"""An epoch that was declared lost ends at the root once its child cannot send it and no result can need it (8.4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.algebra.frame import LOST, Frame
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.epochs.epoch_frames import SECOND_LINE
from edge_agent.root.decision.transition import SWEEP_US
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.machines.scripted_child import SUM, S, Sender, root_of

HORIZON_US = SWEEP_US
T0 = 1_000 * SWEEP_US
QUERY = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)


def restarted(*, holds: bool | None = False) -> tuple[NumpyRoot, Sender, Sender]:
    """(root, a node, the same node without its past). holds: whether its birth says that it has frames of the first."""
    first, second = Sender("a", QUERY), Sender("a", QUERY)
    second.outbox.random.seed(5)
    root = root_of(first, horizon_us=HORIZON_US)
    take(root, first.send((T0, T0 + S, "", 1.0), frontier_us=T0 + 10 * S), T0)
    birth, held = second.birth(T0 + 10 * S), {True: (first.outbox.epoch,), False: (), None: None}[holds]
    assert birth.birth is not None
    take(root, replace(birth, birth=replace(birth.birth, predecessor=LOST, held=held)), T0)
    return root, first, second


def take(root: NumpyRoot, frame: Frame, now_us: int) -> None:
    root.take("a", frame, now_us)
    root.step(now_us)


def goes_on(root: NumpyRoot, sender: Sender, hours: int) -> int:
    for hour in range(hours):
        now_us = T0 + hour * SWEEP_US
        take(root, sender.send((now_us - 10 * S, now_us - 9 * S, "", 1.0), frontier_us=now_us), now_us)
    return now_us


def known(root: NumpyRoot, sender: Sender) -> bool:
    return EpochKey("a", sender.outbox.epoch) in root.decider.parent.inbox.epochs


def test_it_ends_two_horizons_after_its_rows_and_what_comes_then_is_declared_lost() -> None:
    root, first, second = restarted()
    goes_on(root, second, 3)
    assert known(root, first)
    now_us = goes_on(root, second, 4)
    assert not known(root, first)
    assert known(root, second)
    root.take("a", first.send((now_us - 50 * S, now_us - 49 * S, "", 7.0)), now_us)
    decision = root.decider.decide(now_us)
    assert [(effect.frame, effect.why) for effect in decision.effects] == [(None, SECOND_LINE)]
    assert [(node, gap.start_us) for node, gap in decision.gaps] == [("a", now_us - 50 * S)]


@pytest.mark.parametrize("holds", [True, None])
def test_it_stays_unless_its_child_says_that_it_has_no_frame_of_it(holds: bool | None) -> None:
    root, first, second = restarted(holds=holds)
    now_us = goes_on(root, second, 9)
    assert known(root, first)
    root.take("a", first.send((T0 + S, T0 + 2 * S, "", 7.0)), now_us)
    assert [effect.frame is None for effect in root.decider.decide(now_us).effects] == [False]


def test_it_stays_while_a_frame_of_it_waits() -> None:
    root, first, second = restarted()
    frames = root.decider.parent.inbox.epochs[EpochKey("a", first.outbox.epoch)]
    frames.waiting[99] = Frame(first.outbox.epoch, 99)
    goes_on(root, second, 9)
    assert known(root, first)
