"""The open rows of a merger: each row that came leaves once, on time or late."""

from __future__ import annotations

from unittest import mock

from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.region import partial_store
from edge_agent.machines.region.partial_store import BEYOND_TIME, PartialStore
from edge_agent.machines.uplink.step import StepRows
from tests.support.machines.scripted_child import SUM, S, Sender

QUERY = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)


def filled(*rows: tuple[int, int, str, float]) -> PartialStore:
    """With rows of a child that has sent nothing else."""
    child, store, dictionary = Sender("a", QUERY), PartialStore(), EpochDictionary()
    for frame in (child.birth(), child.send(*rows)):
        if frame.define is not None:
            dictionary.learn(frame.define)
        for part in frame.groups:
            for section in part.sections:
                store.add(EpochKey("a", frame.epoch), dictionary, section, late=False)
    return store


def spans(released: tuple[StepRows, ...]) -> list[tuple[bool, int, int]]:
    """(late, start in s, sum) of each row."""
    rows = [(each.late, each.partials) for each in released]
    return [
        (late, start // S, int(total))
        for late, partials in rows
        for start, total in zip(partials.start.tolist(), partials.states["sum"].tolist(), strict=True)
    ]


def test_of_rows_on_both_sides_of_the_published_frontier_those_below_are_late() -> None:
    """protocol 4.4: the child did not know that its parent had gone on without it."""
    group = QUERY.group
    store = filled((0, 10 * S, "", 1.0), (10 * S, 20 * S, "", 2.0), (20 * S, 30 * S, "", 4.0))
    store.absorb({group: 10 * S})
    assert spans(store.late(group)) == [(True, 0, 1)]
    assert spans(store.release(group, 20 * S)) == [(False, 10, 2)]
    assert spans(store.flush(group)) == [(False, 20, 4)]


def test_rows_in_a_slot_that_no_frame_can_carry_are_declared_lost_and_the_others_stay() -> None:
    """protocol 3.5: earlier versions took rows of any time; with such a row no commit would ever succeed."""
    store, again = filled((0, 10 * S, "", 1.0), (10 * S, 20 * S, "", 2.0)), PartialStore()
    store.absorb({})
    slots = store.snapshot()
    with mock.patch.object(partial_store, "ROW_LIMIT_US", 15 * S):
        again.restore(slots)
    assert [(gap.groups, gap.readings, gap.reason) for gap in again.lost] == [((), -1, BEYOND_TIME)]
    assert spans(again.flush(QUERY.group)) == [(False, 0, 1)]
