"""The open rows of a merger: each row that came leaves once, on time or late."""

from __future__ import annotations

from unittest import mock

import pytest

from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Session, Tumbling
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.region import partial_store
from edge_agent.machines.region.partial_store import BEYOND_TIME, PartialStore
from edge_agent.machines.uplink.step import StepRows
from tests.support.machines.scripted_child import SUM, S, Sender

QUERY = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
VISITS = Query("v", 1, "s", Session(5 * S), SUM, by=("k",), lateness_us=0)


def filled(*rows: tuple[int, int, str, float], query: Query = QUERY) -> PartialStore:
    """With rows of a child that has sent nothing else."""
    child, store, dictionary = Sender("a", query), PartialStore(), EpochDictionary()
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


def test_what_was_absorbed_is_no_reason_to_commit_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 3.1"""
    monkeypatch.setattr(partial_store, "MOST_OPEN", 2)
    store = filled(*((start * 10 * S, (start + 1) * 10 * S, "", 1.0) for start in range(4)))
    assert store.full
    store.absorb({})
    assert not store.full


def test_a_session_is_late_only_if_no_reading_within_its_gap_can_come_any_more() -> None:
    """protocol 5.1: below that its rows join others, and a row of it alone would be wrong."""
    store, group = filled((0, 10 * S, "", 1.0), query=VISITS), VISITS.group
    store.absorb({group: 14 * S})
    assert (store.late(group), store.holds(group)) == ((), True)
    store = filled((0, 10 * S, "", 1.0), query=VISITS)
    store.absorb({group: 15 * S})
    assert spans(store.late(group)) == [(True, 0, 1)]


@pytest.mark.parametrize("open_rows", [False, True])
def test_registers_of_children_go_up_beside_the_open_sessions_that_are_here(open_rows: bool) -> None:
    """protocol 5.2: without one the tiers above would end the session of its key."""
    store, group = filled((0, 10 * S, "k=1", 1.0), query=VISITS), VISITS.group
    if open_rows:
        store.absorb({})
    hints = store.hints(group, {"k=2": 7 * S})
    assert hints is not None
    found = {hints.keys[code]: start for code, start in zip(hints.codes.tolist(), hints.starts.tolist(), strict=True)}
    assert found == ({"k=1": 0} if open_rows else {}) | {"k=2": 7 * S}
    assert store.hints(QUERY.group, {}) is None


def test_a_plan_without_rows_leaves_the_spool_with_the_first_commit_of_a_process() -> None:
    """protocol 3.1: it comes back with its next rows; nobody else deletes it."""
    store, again = filled((0, 10 * S, "", 1.0)), PartialStore()
    store.absorb({})
    slots = store.snapshot()
    store.flush(QUERY.group)
    slots |= store.snapshot()
    left = {name: value for name, value in slots.items() if value is not None}
    assert [name.partition("/")[0] for name in left] == ["plan"]
    again.restore(left)
    assert again.snapshot() == dict.fromkeys(left)
    assert again.snapshot() == {}
