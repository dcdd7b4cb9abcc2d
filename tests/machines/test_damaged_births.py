"""Rows of a gateway that come before it is listed, because its birth was damaged (protocol 1.2, 3.6, 4.4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.algebra.frame import LOST, Frame
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.machines.scripted_child import GRACE, JOURNAL, S, Sender

QUERY = Query("q", 1, "s", Tumbling(5 * S), (Aggregate("count", "count"),), lateness_us=0)


def bare(birth: Frame) -> Frame:
    """A birth without its content, which lists no leaf."""
    return replace(birth, members=(), groups=())


def rows(sender: Sender, *starts: int, upto: int | None) -> Frame:
    """A frame with a reading in each window that starts there. upto: its frontier."""
    pieces = [(s * S, (s + 5) * S, "", 1.0) for s in starts]
    return sender.send(*pieces, frontier_us=None if upto is None else upto * S)


def counted(root: NumpyRoot, frames: list[Frame], now: int) -> dict[int, int]:
    """Take frames and decide. Returns the readings of each row by its start."""
    for frame in frames:
        root.take("a", frame, now * S)
    return {row.start // S: row.readings for row in root.step(now * S)}


@pytest.mark.parametrize("upto", [None, 5])
@pytest.mark.parametrize("listed", ["by its birth", "later"])
def test_a_line_that_was_not_listed_is_not_read_again_by_the_next_one(listed: str, upto: int | None) -> None:
    """protocol 1.2: the gateway lost its spool before another birth had listed it."""
    root, old, new = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0), Sender("a", QUERY), Sender("a", QUERY)
    new.outbox.random.seed(2)
    found = counted(root, [bare(old.birth()), rows(old, 0, upto=upto)], 6)
    birth = new.birth()
    assert birth.birth is not None
    begun, again = replace(birth, birth=replace(birth.birth, predecessor=LOST)), rows(new, 0, 5, 10, upto=15)
    if listed == "later":
        begun, again = bare(begun), replace(again, members=birth.members)
    found |= counted(root, [begun], 16)
    found |= counted(root, [again], 17)
    found |= counted(root, [rows(new, 15, upto=20)], 21)
    assert found == {0: 1, 5: 1, 10: 1, 15: 1}


def test_a_group_does_not_end_before_any_leaf_of_it_was_listed() -> None:
    """protocol 4.4: its rows would be gone, and they come once."""
    root, sender = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0), Sender("a", QUERY)
    found = counted(root, [bare(sender.birth()), rows(sender, 0, upto=5)], 6)
    found |= counted(root, [sender.birth()], 7)
    found |= counted(root, [rows(sender, 5, upto=10)], 11)
    assert found == {0: 1, 5: 1}
