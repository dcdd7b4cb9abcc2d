"""Definitions that contradict their sender's rows, or those of another gateway: the root goes on with the first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge_agent.algebra.frame import HORIZON_US, Frame
from edge_agent.algebra.query.query import Query
from edge_agent.config.definitions.definitions import canonical_query, parse_definition
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.machines.scripted_child import GRACE, JOURNAL, Sender

S = 1_000_000
BEGIN_US = 1_790_000_000 * S
TUMBLING = {"type": "tumbling", "length": "1s"}


def query(window: dict[str, Any], *aggregates: str) -> Query:
    text = {"source": "s", "window": window, "aggregates": list(aggregates or ("sum",)), "revision": 1}
    value = parse_definition("query", "q", text).value
    assert isinstance(value, Query)
    return value


GOOD = query(TUMBLING)
OTHERS = {
    "a session": query({"type": "session", "gap": "2s"}),
    "another length": query({"type": "tumbling", "length": "7s"}),
    "other functions": query(TUMBLING, "median"),
    "overlapping": query({"type": "sliding", "length": "10s", "slide": "3s"}),
    "between markers": query({"type": "punctuation", "interpretation": "local"}),
    "positions": query({"type": "count_tumbling", "length": 3}),
}


def born(node: str, sent: Query, said: Query | None = None) -> tuple[Sender, Frame]:
    """A child that sends rows of a query, and its birth, whose text may say something else."""
    sender = Sender(node, sent)
    birth = sender.birth()
    if said is not None:
        assert birth.define is not None
        birth = replace(birth, define=replace(birth.define, queries=(canonical_query(said),)))
    return sender, birth


def driven(*children: tuple[Sender, Frame]) -> tuple[int, list[str]]:
    """(rows, reasons of refused frames) of a root that hears them for six seconds."""
    root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0, horizon_us=HORIZON_US)
    for sender, birth in children:
        root.take(sender.node, birth, BEGIN_US)
    rows = len(root.step(BEGIN_US))
    for n in range(6):
        now_us = BEGIN_US + (n + 1) * S
        for sender, _ in children:
            if sender.queries[0].window.type in ("tumbling", "sliding", "session"):
                piece = (BEGIN_US + n * S, now_us, "", 1.0 + n)
                root.take(sender.node, sender.send(piece, frontier_us=now_us), now_us)
        rows += len(root.step(now_us))
    rows += len(root.step(BEGIN_US + 100 * S))
    return rows, [gap.reason for _, gap in root.decider.gaps]


@pytest.mark.parametrize("other", OTHERS)
def test_a_text_that_is_not_what_its_sender_sends_stops_no_root(other: str) -> None:
    for lie in ((GOOD, OTHERS[other]), (OTHERS[other], GOOD)):
        driven(born("bad", *lie))
        driven(born("bad", *lie), born("good", GOOD))


@pytest.mark.parametrize("other", OTHERS)
def test_two_gateways_with_one_id_for_two_queries_stop_no_root_and_the_first_one_counts(other: str) -> None:
    rows, _ = driven(born("a", GOOD), born("b", OTHERS[other]))
    assert rows == (0 if other == "other functions" else 6)  # those share a group, whose frontier waits for both
    driven(born("b", OTHERS[other]), born("a", GOOD))


def test_what_is_refused_is_declared() -> None:
    _, reasons = driven(born("a", GOOD), born("b", OTHERS["other functions"]))
    assert any("defined with other functions" in reason for reason in reasons)
