"""Which sessions the root computes now, which wait until a revision is due, and the greatest bounds so far."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from edge_agent.algebra.frame import Gap, Serving
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Session
from edge_agent.machines.downlink.epochs.renumbering import TextNumbers
from edge_agent.root.completeness import GroupView
from edge_agent.root.decision.session_tracker import ClosableSessions, OpenSessions, SessionDecisionView

S = 1_000_000
QUERY = Query("q", 1, "s", Session(S), (Aggregate("sum", "sum"),))
LOSS = Gap((QUERY.group,), 0, 10 * S, 1, ("g",), "poison")


class Tracked:
    """The sessions of one query. All times in seconds."""

    def __init__(self) -> None:
        self.track, self.names = OpenSessions(), TextNumbers()

    def add(self, key: str, *starts_s: int) -> None:
        """Pieces of a microsecond each."""
        starts = np.array(starts_s, np.int64) * S
        self.track.add([(self.names.of([key] * len(starts)), starts, starts + 1)], self.names, QUERY.group.cut, 0, 0)

    def step(
        self, frontier_s: int, hints: Mapping[str, int] | None = None, *, due: bool = True, lost: bool = False
    ) -> ClosableSessions | None:
        """hints: registers by key. lost: a gap record over the first 10 seconds has arrived."""
        leaves, serving = LeafTimes.of({"g": 900 * S}), Serving("q", 1)
        registers = {key: us * S for key, us in (hints or {}).items()}
        view = GroupView(frontier_s * S, leaves, {QUERY.key: serving}, {}, hints=registers, bounds=leaves)
        gaps = (LOSS,) if lost else ()
        return self.track.step(SessionDecisionView(QUERY.group, view, serving, {}, {}, gaps, 0, due), self.names)

    def waits(self) -> bool:
        return self.track.waiting

    @property
    def shut_s(self) -> tuple[dict[str, int], int]:
        """The greatest bounds: by key, and of all other keys."""
        return {key: us // S for key, us in self.track.shut.items()}, self.track.shut_us // S


def closed(*, hints: Mapping[str, int] | None = None) -> Tracked:
    """One session at 1 s, of the key a, whose row was computed."""
    tracked = Tracked()
    tracked.add("a", 1)
    found = tracked.step(100, hints)
    assert found is not None
    assert found.low_us == S
    assert len(tracked.track.code) == 0
    return tracked


@pytest.mark.parametrize(
    ("before", "now", "fallen"),
    [
        ({}, {"b": 99}, True),
        ({}, {"b": 100}, False),
        ({"b": 40}, {"b": 39}, True),
        ({"b": 40}, {"b": 50}, False),
        ({"b": 40}, {"b": 50, "c": 99}, True),
    ],
)
def test_rows_that_a_loss_touches_are_computed_again_until_no_bound_is_lower_than_before(
    before: dict[str, int], now: dict[str, int], fallen: bool
) -> None:
    """protocol 4.4, 5.4: a row of the key waits for a session that may still join it, and its coverage for the row."""
    tracked = closed(hints=before)
    found = tracked.step(100, now, lost=True)
    assert found is not None
    assert found.touched is not None
    again = tracked.step(100)
    assert (again is not None) == fallen
    assert again is None or again.touched == found.touched
    assert tracked.step(100) is None


def added(track: OpenSessions, names: TextNumbers, start_s: int, end_s: int, *, floor_s: int, begun_s: int) -> int:
    """How many islands wait after a piece has come."""
    piece = names.of(["a"]), np.array([start_s * S]), np.array([end_s * S])
    track.add([piece], names, QUERY.group.cut, floor_s * S, begun_s * S)
    return len(track.code)


def test_a_session_that_had_no_row_yet_is_not_beyond_the_horizon_though_the_frontier_is_far_ahead() -> None:
    """protocol 4.2, 8.2: the root was away for longer than the horizon, and takes all of it in one batch."""
    tracked = Tracked()
    assert added(tracked.track, tracked.names, 1, 2, floor_s=500, begun_s=0) == 1
    found = tracked.step(600)
    assert found is not None
    assert found.low_us == S
    assert added(tracked.track, tracked.names, 1, 2, floor_s=500, begun_s=0) == 0, "now it has its row"


def test_rows_that_a_loss_touches_are_computed_with_the_pieces_that_wait_near_an_open_session() -> None:
    """protocol 4.7, 5.4: what is read for the row has all of them."""
    tracked = closed()
    tracked.track.stretch(100 * S)
    tracked.add("a", 5, 98)
    found = tracked.step(100, {"a": 50}, lost=True)
    assert found is not None
    assert found.keyed["a"][2] == (5 * S, 6 * S)


def test_a_session_that_crosses_the_start_of_a_query_is_remembered_up_to_where_a_piece_may_join_it() -> None:
    """protocol 6.3, 8.4: without its readings, what follows would look like a session of its own."""
    tracked, leaves, serving = Tracked(), LeafTimes.of({"g": 900 * S}), Serving("q", 1, start_from_us=5 * S)
    tracked.add("a", 3)
    tracked.add("b", 7)
    view = GroupView(100 * S, leaves, {QUERY.key: serving}, {}, bounds=leaves)
    tracked.track.step(SessionDecisionView(QUERY.group, view, serving, {}, {}, (), 0, True), tracked.names)
    assert tracked.track.crossing_us == 3 * S + QUERY.group.cut.gap_us


def test_rows_that_reach_to_where_a_leaf_has_stopped_are_computed_again() -> None:
    """protocol 4.7, 6.3: the coverage of a session counts its gap, and that before its first reading."""
    tracked, leaves, serving = closed(), LeafTimes.of({"g": 900 * S}), Serving("q", 1)
    view = GroupView(100 * S, leaves, {QUERY.key: serving}, {}, bounds=leaves)
    now = SessionDecisionView(QUERY.group, view, serving, {}, {"g": 50 * S}, (), 0, True)
    found = tracked.track.step(now, tracked.names)
    assert found is not None
    assert found.touched == (50 * S - 2 * QUERY.group.cut.gap_us, 100 * S - 1)


def test_of_the_rows_that_a_loss_touches_those_beyond_the_horizon_stay_as_they_are() -> None:
    """protocol 4.2"""
    tracked, leaves, serving = closed(), LeafTimes.of({"g": 900 * S}), Serving("q", 1)
    view = GroupView(100 * S, leaves, {QUERY.key: serving}, {}, bounds=leaves)
    now = SessionDecisionView(QUERY.group, view, serving, {}, {}, (LOSS,), 7 * S, True)
    found = tracked.track.step(now, tracked.names)
    assert found is not None
    assert found.touched == (7 * S, 11 * S - 1)


def test_a_piece_that_began_before_the_mark_is_in_no_row() -> None:
    """protocol 8.4: readings that it would be joined with may be deleted."""
    tracked = Tracked()
    assert added(tracked.track, tracked.names, 49, 600, floor_s=100, begun_s=50) == 0
    assert added(tracked.track, tracked.names, 50, 600, floor_s=100, begun_s=50) == 1


def test_what_revises_rows_waits_until_a_revision_is_due() -> None:
    """protocol 8.3: a late piece, and a loss; new sessions do not wait."""
    tracked = closed()
    tracked.add("a", 2)
    assert tracked.step(100, due=False) is None
    assert tracked.step(100, due=False, lost=True) is None
    assert tracked.waits()
    tracked.add("b", 150)
    found = tracked.step(200, due=False)
    assert found is not None
    assert (found.low_us, found.touched, found.again) == (150 * S, None, None)
    found = tracked.step(200)
    assert found is not None
    assert (found.low_us, found.touched) == (None, (0, 11 * S - 1))
    assert found.again is not None
    assert found.keyed["a"][2] == (2 * S, 3 * S)
    assert not tracked.waits()
    assert tracked.step(200) is None


def test_a_late_piece_whose_key_has_a_lower_bound_than_before_waits() -> None:
    """protocol 5.4, 4.4: another one may come before it, from a member that is no longer left out."""
    tracked = closed()
    tracked.add("a", 2)
    assert tracked.step(100, {"a": 50}) is None
    assert tracked.waits()
    found = tracked.step(101)
    assert found is not None
    assert found.keyed["a"][2] == (2 * S, 3 * S)


def test_the_greatest_bounds_so_far_stay_when_a_frontier_or_a_register_falls() -> None:
    """protocol 4.4, 5.4: a piece above the present bound may still join a row that was computed by an earlier one."""
    tracked = Tracked()
    tracked.step(100, {"a": 40, "b": 60})
    assert tracked.shut_s == ({"a": 40, "b": 60}, 100)
    tracked.step(80, {"a": 30, "c": 50})
    assert tracked.shut_s == ({"a": 40, "b": 80}, 100), "c had come as far as all others"
    tracked.step(120, {"a": 70})
    assert tracked.shut_s == ({"a": 70}, 120)
    tracked.step(120)
    assert tracked.shut_s == ({}, 120)
    tracked.add("a", 110)
    assert tracked.track.again.tolist() == [True]


def test_a_piece_below_the_bound_of_its_key_alone_may_join_a_row() -> None:
    """protocol 5.4"""
    tracked = Tracked()
    tracked.step(100, {"a": 40})
    tracked.add("a", 39, 41)
    assert tracked.track.again.tolist() == [True, False]


def test_rows_are_computed_again_from_where_a_leaf_begins_that_is_expected_from_now_on() -> None:
    """protocol 4.5, 4.7: it is missing in those that it may have readings of."""
    tracked, leaves, serving = closed(), LeafTimes.of({"g": 900 * S, "h": 900 * S}), Serving("q", 1)
    view = GroupView(100 * S, leaves, {QUERY.key: serving}, {}, bounds=leaves)
    now = SessionDecisionView(QUERY.group, view, serving, {"h": 50 * S}, {}, (), 0, True)
    found = tracked.track.step(now, tracked.names)
    assert found is not None
    assert found.touched == (50 * S, 100 * S - 1)
