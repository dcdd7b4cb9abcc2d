"""A `leave` that waits at the root for a former journal of its lander (protocol 1.5, 3.7): it never takes effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.algebra.frame import Leaf, Members
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.machines.scripted_child import GRACE, JOURNAL, S, Sender, leaving

QUERY = Query("q", 1, "s", Tumbling(5 * S), (Aggregate("count", "count"),), lateness_us=0)


@pytest.mark.parametrize("lacks", ["a frame", "its epoch"])
@pytest.mark.parametrize("listed", ["before", "after"])
def test_a_gateway_is_not_awaited_for_ever_from_a_line_whose_leave_waits_for_a_former_journal(
    lacks: str, listed: str
) -> None:
    """The gateway has a receipt for the leave, and sends elsewhere by now."""
    root, old, new = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0), Sender("a", QUERY), Sender("m", QUERY)
    for frame in (old.birth(), old.send((0, 5 * S, "", 1.0), frontier_us=5 * S)):
        root.take("a", frame, 6 * S)
    root.step(6 * S)
    old.send((5 * S, 10 * S, "", 1.0), frontier_us=10 * S)  # its landing file is gone
    if lacks == "its epoch":
        old.birth()
        root.take("a", old.birth(), 11 * S)
    root.take("a", leave := leaving(old), 11 * S)
    new.leaves = ("b",)
    births = [new.birth(), new.send(frontier_us=10 * S)]
    moved = Members(0, (Leaf("a", leave.leave or 0, leave.epoch),))
    lists = replace(new.send((15 * S, 20 * S, "", 1.0), frontier_us=20 * S), members=(moved,))
    for frame in births:
        root.take("m", frame, 12 * S)
    membership = root.decider.parent.children.memberships[QUERY.group]
    if listed == "before":
        root.take("m", lists, 20 * S)
        root.step(20 * S)
        assert membership.leaf_frontiers()["a"][0] <= 5 * S
    root.decider.change_journal(JOURNAL + 1)
    if listed == "after":
        root.take("m", lists, 20 * S)
    root.step(21 * S)
    assert membership.leaf_frontiers()["a"][0] == 20 * S
    lost = [(gap.start_us, gap.end_us) for _, gap in root.decider.gaps if "a" in gap.nodes]
    assert any(start_us <= 5 * S and end_us > 11 * S for start_us, end_us in lost), "a frame before it never came"
