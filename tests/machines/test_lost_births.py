"""Births that are lost: what follows lacks the promises that they lowered, the numbers that they defined (2.4, 4.1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.algebra.frame import FRAMES_LOST
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.losses.loss_records import LATE_US
from edge_agent.machines.events import BadFrame
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.machines.scripted_child import GRACE, JOURNAL, S, Sender, leaving

QUERY = Query("q", 1, "s", Tumbling(5 * S), (Aggregate("count", "count"),), lateness_us=0)
NOW = 2_065 * S
AHEAD = 2_060 * S  # promised before the clock stepped back to 2015 s


@pytest.mark.parametrize("reason", [f"{FRAMES_LOST}: 0 to 0", "not CBOR"])
def test_rows_behind_a_lost_birth_are_lost_from_where_they_begin_though_more_was_promised_before(reason: str) -> None:
    """Found by seed 109726 of the simulation: the window was complete without its row, which could not be used."""
    sender, root = Sender("a", QUERY), NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0)
    root.take("a", sender.birth(), 2_000 * S)
    root.take("a", sender.send((2_010 * S, 2_015 * S, "", 1.0), frontier_us=AHEAD), 2_000 * S)
    lowered = sender.birth(2_015 * S)
    root.take("a", BadFrame(lowered.epoch, 0, reason, b""), NOW)
    root.take("a", sender.send((2_015 * S, 2_020 * S, "", 1.0), frontier_us=2_020 * S), NOW)
    root.step(NOW + 2 * GRACE)  # without its birth it is a second line, which waits until the first is silent
    birth, rows = ((gap.start_us, gap.end_us) for _, gap in root.decider.gaps)
    assert birth == (AHEAD - LATE_US, NOW + 2 * GRACE + 1)
    assert rows == (2_015 * S, NOW + 2 * GRACE + 1)


def test_frames_of_which_the_numbers_are_lost_wait_no_longer_than_their_line() -> None:
    """protocol 1.5: nothing follows a `leave`. Seen in world 910072: they waited for ever, and no loss said so."""
    sender, root = Sender("a", QUERY), NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0)
    root.take("a", sender.birth(), 2_000 * S)
    sender.birth()
    rows, more = (replace(sender.send((us, us + 5 * S, "", 1.0)), define=None) for us in (2_015 * S, 2_020 * S))
    leave = leaving(sender)
    root.take("a", BadFrame(rows.epoch, 0, FRAMES_LOST, b""), NOW)
    root.take("a", rows, NOW)
    root.step(NOW + 2 * GRACE)
    waiting = root.decider.parent.inbox.lines_of("a")[rows.epoch].waiting
    assert waiting.keys() == {1}, "what it lacks may be defined later"
    root.take("a", leave, NOW + 2 * GRACE)
    assert waiting.keys() == {1, 3}, "a frame before the end is missing"
    root.take("a", more, NOW + 2 * GRACE)
    root.step(NOW + 2 * GRACE)
    assert waiting == {}
    assert [gap.start_us for _, gap in root.decider.gaps if gap.reason.startswith("quarantined")] == [0, 0]
