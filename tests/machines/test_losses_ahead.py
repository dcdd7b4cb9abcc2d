"""Losses with a lost journal that a gateway declares ahead of epochs that were never published (protocol 3.7)."""

from __future__ import annotations

from dataclasses import replace

from edge_agent.algebra.frame import LOST, Frame, Receipt
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.machines.scripted_child import GRACE, JOURNAL, S, Sender

QUERY = Query("q", 1, "s", Tumbling(5 * S), (Aggregate("count", "count"),), lateness_us=0)


def rows(sender: Sender, *starts: int, upto: int) -> Frame:
    """A frame with a reading in each window that starts there. upto: its frontier."""
    return sender.send(*((s * S, (s + 5) * S, "", 1.0) for s in starts), frontier_us=upto * S)


def test_what_a_gateway_sent_to_a_lost_journal_is_not_read_again_if_only_its_record_of_that_has_come() -> None:
    """protocol 1.2, 3.7: the tier above may have it. The gateway lost its spool before another epoch took effect."""
    old, new = Sender("a", QUERY), Sender("a", QUERY)
    new.outbox.random.seed(2)
    old.outbox.journal = JOURNAL - 1
    old.birth()
    rows(old, 0, 5, upto=10)
    old.outbox.receipt(Receipt(old.outbox.epoch, JOURNAL - 1, 2), lambda *_: Frame(0, 0))
    birth = old.birth()  # never published
    old.outbox.receipt(Receipt(old.outbox.epoch, JOURNAL, 0), lambda *_: birth)
    ahead = old.outbox.join_journal(lambda *_: birth, {QUERY.group: 10 * S}, {QUERY.group: ("a",)}).frames
    assert [serving.key for change in ahead[0].members for serving in change.serving] == [("q", 1)], (
        "else rows without it would be complete"
    )
    root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0)
    begun = new.birth()
    assert begun.birth is not None
    begun = replace(begun, birth=replace(begun.birth, predecessor=LOST))
    for frame in (*ahead, begun, rows(new, 0, 5, 10, upto=15)):
        root.take("a", frame, 15 * S)
    assert [(row.start // S, row.readings) for row in root.step(15 * S)] == [(10, 1)]
