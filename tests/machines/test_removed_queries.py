"""A root long after a query was removed, while a gateway that was away still sends rows of a plan that names it."""

from __future__ import annotations

import pytest

from edge_agent.algebra.frame import Serving
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import CountTumbling, Session, Tumbling, Window
from edge_agent.machines.uplink.step import GroupStep
from edge_agent.root.decision.too_late import BEFORE
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.machines.scripted_child import SUM, S, Sender, root_of

HORIZON_US = 1_000 * S
T0 = 1_000_000 * S


def removed(kept: Window | Session, other: Window | Session) -> tuple[NumpyRoot, Sender, Sender, int]:
    """(root, here, away, now): a group serves two queries; one is removed while a gateway is away, 4.4 horizons ago."""
    queries = Query("kept", 1, "s", kept, SUM, lateness_us=0), Query("removed", 1, "s", other, SUM, lateness_us=0)
    here, away = Sender("here", *queries), Sender("away", *queries)
    root = root_of(here, away, horizon_us=HORIZON_US)
    for sender in (here, away):
        root.take(sender.node, sender.send((T0, T0 + S, "", 1.0), frontier_us=T0 + 10 * S), T0)
    root.step(T0)
    root.take("here", here.tell(Serving("removed", 1, None, T0 + 20 * S)), T0)
    here.queries = queries[:1]
    for n in range(1, 45):
        goes_on(root, here, T0 + n * 100 * S)
    served = {key.query for held in root.decider.servings.of.values() for key in held}
    assert served == {"kept"}
    return root, here, away, T0 + 44 * 100 * S


def goes_on(root: NumpyRoot, sender: Sender, now_us: int) -> None:
    root.take(sender.node, sender.send((now_us - 50 * S, now_us - 50 * S + 1, "", 1.0), frontier_us=now_us), now_us)
    root.step(now_us)


@pytest.mark.parametrize("start_s", [-500, -3_000])
def test_its_sessions_do_not_keep_readings_for_ever(start_s: int) -> None:
    root, here, away, now_us = removed(Session(10 * S), Session(10 * S))
    start_us = now_us + start_s * S
    root.take("away", away.send((start_us, start_us + S, "", 5.0), frontier_us=now_us), now_us)
    root.step(now_us)
    for n in range(1, 101):
        goes_on(root, here, now_us + n * 100 * S)
        root.take("away", away.send(frontier_us=now_us + n * 100 * S), now_us + n * 100 * S)
    assert {place.query for place in root.state.sessions.tracks} == {"kept"}
    (begun_us,) = root.state.begun.values()
    assert now_us + 100 * 100 * S - begun_us <= 2 * HORIZON_US + 100 * S
    assert sum(len(index) for index in root.kept.indexes.values()) < 30


def test_readings_beyond_the_horizon_are_listed_as_late() -> None:
    root, _, away, now_us = removed(Tumbling(10 * S), Tumbling(20 * S))
    old_us = T0 + 60 * S
    root.take("away", away.send((old_us, old_us + S, "", 5.0), (old_us + 20 * S, old_us + 21 * S, "", 5.0)), now_us)
    assert root.step(now_us) == []
    assert [late.start for late in root.beyond] == [old_us, old_us + 20 * S]


def test_a_loss_in_sessions_of_a_group_that_ends_with_it_is_declared() -> None:
    """The last gateways leave in the decision in which pieces come too late: the group has no members any more."""
    query = Query("q", 1, "s", Session(10 * S), SUM, lateness_us=0)
    senders = here, away = Sender("here", query), Sender("away", query)
    root = root_of(*senders, horizon_us=HORIZON_US)
    for sender in senders:
        root.take(sender.node, sender.send((T0, T0 + S, "", 1.0), frontier_us=T0 + 10 * S), T0)
    for n in range(1, 45):
        goes_on(root, here, T0 + n * 100 * S)
    now_us = T0 + 44 * 100 * S
    root.take("away", away.send((now_us - 2_500 * S, now_us - 500 * S, "", 5.0), late=True), now_us)
    for sender in senders:
        root.take(sender.node, sender._put(GroupStep(query.group, None, dropped=(sender.node,))), now_us)
    root.step(now_us)
    assert not root.decider.parent.children.memberships
    (gap,) = [gap for _, gap in root.decider.gaps if gap.detail == BEFORE]
    assert gap.nodes == ("away",)


@pytest.mark.parametrize("horizons", [1.5, 4])
def test_count_windows_get_their_rows_however_long_a_gateway_is_away(horizons: float) -> None:
    """protocol 7.4: positions wait for every gateway, also if the query is removed meanwhile."""
    query = Query("q", 1, "s", CountTumbling(2), SUM, lateness_us=0)
    here, away = Sender("here", query), Sender("away", query)
    root, rows = root_of(here, away, horizon_us=HORIZON_US), []
    for sender in (here, away):
        root.take(sender.node, sender.send((T0, T0 + 1, "", 1.0), frontier_us=T0 + 10 * S), T0)
    rows += root.step(T0)
    for n in range(1, 5):
        goes_on(root, here, T0 + n * 100 * S)
    root.take("here", here.tell(Serving("q", 1, None, T0 + 400 * S)), T0 + 400 * S)
    for n in range(5, round(10 * horizons)):
        now_us = T0 + n * 100 * S
        root.take("here", here.send(frontier_us=now_us), now_us)
        rows += root.step(now_us)
    assert [row.values["sum"] for row in rows] == [2.0]
    root.take("away", away.send((T0 + 320 * S, T0 + 320 * S + 1, "", 10.0), frontier_us=now_us), now_us)
    assert [row.values["sum"] for row in root.step(now_us)] == [2.0, 11.0]
    root.take("here", here.send(frontier_us=now_us + 100 * S), now_us + 100 * S)
    root.step(now_us + 100 * S)
    assert root.decider.serves(query.group, query.key) is (horizons < 2)
