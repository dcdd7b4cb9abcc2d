"""A declared loss goes on to concern rows that were written with its leaf, whatever the leaf states later (4.7)."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from edge_agent.algebra.frame import Serving
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import CountTumbling, OrderedWindow, Session, Tumbling, Window
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.root.completeness import Decider
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from tests.support.machines.scripted_child import JOURNAL, S, Sender, root_of


def query(window: Window | Session | OrderedWindow) -> Query:
    return Query("q", 1, "s", window, (Aggregate("sum", "sum"),), lateness_us=0)


Q = query(Tumbling(10 * S))


def rows(root: NumpyRoot, now_us: int) -> Mapping[int, Row]:
    return {row.start: row for row in root.step(now_us)}


def forgotten(node: str, served: Query, start_us: int, seed: int = 99) -> tuple[Sender, Serving]:
    """A gateway without its past, which serves the query from a later start, because it has only just got it again."""
    again = Sender(node, served)
    again.outbox = Outbox(node, Random(seed), version="test", lost=True)
    again.outbox.journal = JOURNAL
    return again, Serving(served.id, served.revision, start_us)


def stored_again(root: NumpyRoot) -> None:
    """The root is started again, from its state."""
    state = root.decider.snapshot(lambda frame: frame)
    decider = Decider(JOURNAL, root.decider.parent.children.grace_us)
    decider.restore(state, lambda frame: frame)
    decider.parent.children.link(0, up=True)
    root.decider = decider


@pytest.mark.parametrize("starts", [(), (2,), (3,), (2, 3)])
@pytest.mark.parametrize("window", [Tumbling(10 * S), Session(3 * S)])
def test_a_row_that_lacks_a_loss_is_never_complete_because_the_leaf_serves_it_from_later_on(
    window: Window, starts: tuple[int, ...]
) -> None:
    """Its spool is lost, and with it the query, which comes back from the broker. starts: of the root."""
    asked = query(window)
    a, b = Sender("a", asked), Sender("b", asked)
    root = root_of(a, b)
    for child in (a, b):
        root.take(child.node, child.send((S, S + 1, "", 1.0), frontier_us=30 * S), 30 * S)
    (row,) = rows(root, 31 * S).values()
    assert row.complete
    root.take("a", a.lose(0, 5 * S), 32 * S)
    assert [row.coverage.missing for row in rows(root, 32 * S).values()] == [(("a", "lost"),)]
    if 2 in starts:
        stored_again(root)
    again, serving = forgotten("a", asked, 100 * S)
    root.take("a", again.birth(servings=[serving]), 105 * S)
    root.take("a", again.send((101 * S, 101 * S + 1, "", 1.0), frontier_us=130 * S), 131 * S)
    root.take("b", b.send((102 * S, 102 * S + 1, "", 1.0), frontier_us=130 * S), 131 * S)
    rows(root, 131 * S)
    if 3 in starts:
        stored_again(root)
    root.take("b", b.send((2 * S, 2 * S + 1, "", 1.0), late=True), 132 * S)
    (late,) = (row for start, row in rows(root, 132 * S).items() if start < 100 * S)
    assert late.readings == 3
    assert ("a", "lost") in late.coverage.missing


def test_a_leaf_that_forgets_again_and_again_has_served_since_its_first_start() -> None:
    a, b = Sender("a", Q), Sender("b", Q)
    root = root_of(a, b)
    for child in (a, b):
        root.take(child.node, child.send((S, S + 1, "", 1.0), frontier_us=30 * S), 30 * S)
    root.take("a", a.lose(0, 5 * S), 31 * S)
    rows(root, 31 * S)
    for second in (100, 200):
        again, serving = forgotten("a", Q, second * S, seed=second)
        root.take("a", again.birth(servings=[serving]), second * S)
        root.take("a", again.send(frontier_us=(second + 30) * S), (second + 31) * S)
        root.take("b", b.send(frontier_us=(second + 30) * S), (second + 31) * S)
        rows(root, (second + 31) * S)
    root.take("b", b.send((2 * S, 2 * S + 1, "", 1.0), late=True), 240 * S)
    (late,) = rows(root, 240 * S).values()
    assert (late.readings, late.expected) == (3, 1)
    assert ("a", "lost") in late.coverage.missing


def test_a_leaf_that_is_new_lacks_nothing_in_rows_of_before_it() -> None:
    """Else each new gateway whose past is not known would make all earlier rows incomplete."""
    b = Sender("b", Q)
    root = root_of(b)
    root.take("b", b.send((S, S + 1, "", 1.0), frontier_us=30 * S), 30 * S)
    rows(root, 31 * S)
    new, serving = forgotten("a", Q, 100 * S)
    root.take("a", new.birth(servings=[serving]), 105 * S)
    root.take("a", new.lose(0, 5 * S), 105 * S)
    rows(root, 106 * S)
    root.take("b", b.send((2 * S, 2 * S + 1, "", 1.0), late=True), 107 * S)
    (late,) = rows(root, 107 * S).values()
    assert (late.readings, late.complete) == (2, True)


def test_positions_lack_what_a_leaf_had_lost_before_it_stated_a_later_start() -> None:
    asked = query(CountTumbling(2))
    a, b = Sender("a", asked), Sender("b", asked)
    root = root_of(a, b)
    root.take("a", a.lose(0, 5 * S), S)
    root.take("b", b.send(frontier_us=S), S)
    root.take("a", a.send(frontier_us=S), S)
    root.step(S)
    again, serving = forgotten("a", asked, 100 * S)
    root.take("a", again.birth(servings=[serving]), 105 * S)
    root.take("a", again.send(frontier_us=130 * S), 131 * S)
    root.take("b", b.send((2 * S, 2 * S + 1, "", 1.0), (3 * S, 3 * S + 1, "", 1.0), frontier_us=130 * S), 131 * S)
    (row,) = root.step(131 * S)
    assert ("a", "lost") in row.coverage.missing
