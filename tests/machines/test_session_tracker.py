"""Which sessions the root computes now, which wait until a revision is due, and the greatest bounds so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from edge_agent.algebra.frame import NEVER_US, Gap, Serving
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.span import FAR_US
from edge_agent.algebra.windows import Session
from edge_agent.machines.downlink.epochs.renumbering import TextNumbers
from edge_agent.root.completeness import GroupView
from edge_agent.root.decision.session_tracker import ClosableSessions, OpenSessions, SessionBounds, SessionDecisionView

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
    tracked.add("c", 4, 5)
    view = GroupView(101 * S, leaves, {QUERY.key: serving}, {}, bounds=leaves)
    tracked.track.step(SessionDecisionView(QUERY.group, view, serving, {}, {}, (), 0, True), tracked.names)
    assert tracked.track.crossing_us == 5 * S + QUERY.group.cut.gap_us, "a late one"
    again = OpenSessions.restore(tracked.track.snapshot(tracked.names), tracked.names)
    assert again.crossing_us == tracked.track.crossing_us


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
    assert not tracked.waits()
    assert tracked.step(100, due=False, lost=True) is None
    assert tracked.waits()
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
    tracked.add("z", 900)
    tracked.step(130, {"b": 125})
    assert tracked.shut_s == ({"b": 125}, 130), "also while none of those that wait is complete"
    tracked.step(140)
    assert tracked.shut_s == ({}, 140)
    tracked = Tracked()
    tracked.step(120)
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


def test_a_piece_that_ends_with_its_gap_at_the_horizon_is_dropped_and_one_after_it_is_not() -> None:
    """protocol 8.2"""
    tracked = closed()
    for end_us, many in ((49 * S + 1, 0), (49 * S + 2, 1)):
        piece = tracked.names.of(["a"]), np.array([40 * S]), np.array([end_us])
        tracked.track.add([piece], tracked.names, QUERY.group.cut, 50 * S, 0)
        assert len(tracked.track.code) == many


def test_a_piece_that_begins_at_the_bound_of_its_key_joins_no_row() -> None:
    """protocol 5.1: the bound says that nothing earlier comes; a row that ends there has ended with its gap."""
    tracked = closed(hints={"b": 60})
    tracked.add("a", 99, 100)
    tracked.add("b", 59, 60, 62)
    track = tracked.track
    found = zip(track.code.tolist(), (track.start // S).tolist(), track.again.tolist(), strict=True)
    flags = {(code, start_s): again for code, start_s, again in found}
    a, b = tracked.names.of(["a", "b"]).tolist()
    assert flags == {(a, 99): True, (b, 59): True, (b, 62): False}
    tracked = closed()
    tracked.add("a", 100)
    assert tracked.track.again.tolist() == [False]


def test_islands_are_forgotten_with_the_horizon_once_their_gap_is_over() -> None:
    """protocol 8.2"""
    tracked = Tracked()
    tracked.add("a", 1, 5)
    tracked.add("b", 5)
    tracked.track.drop(2 * S - 1, QUERY.group.cut.gap_us)
    assert len(tracked.track.code) == 3
    tracked.track.drop(2 * S, QUERY.group.cut.gap_us)
    assert (tracked.track.start.tolist(), tracked.track.end.tolist()) == ([5 * S] * 2, [5 * S + 1] * 2)
    assert tracked.track.code.tolist() == tracked.names.of(["a", "b"]).tolist()
    assert tracked.track.again.tolist() == [False, False]


def test_a_session_is_complete_once_its_bound_is_past_its_gap() -> None:
    """protocol 5.1"""
    tracked = Tracked()
    tracked.add("a", 1)
    assert tracked.step(2) is None
    found = tracked.step(3)
    assert found is not None
    assert found.first == SessionBounds((S, S), (2 * S, 2 * S), S, frozenset({"a"}))


def test_the_bounds_of_rows_are_those_of_all_islands_that_get_one() -> None:
    """protocol 4.7: coverage is computed between them only."""
    tracked = Tracked()
    tracked.add("a", 1, 2, 3)
    tracked.add("b", 7)
    tracked.add("c", 200)
    found = tracked.step(100)
    assert found is not None
    assert found.first == SessionBounds((S, 7 * S), (4 * S, 8 * S), 3 * S, frozenset({"a", "b"}))
    assert (found.low_us, found.again, tracked.track.longest_us) == (S, None, 3 * S)
    assert (tracked.track.low_us, OpenSessions().low_us) == (200 * S, FAR_US)
    tracked.add("a", 50)
    tracked.add("b", 60)
    found = tracked.step(150)
    assert found is not None
    assert found.low_us is None
    away = 3 * S
    assert found.again == SessionBounds(
        (50 * S - away, 61 * S), (50 * S, 61 * S + away), S + 2 * away, frozenset({"a", "b"})
    )


def test_rows_that_a_loss_touches_may_be_of_any_key() -> None:
    """protocol 4.7"""
    tracked = closed()
    tracked.add("a", 50)
    found = tracked.step(150, lost=True)
    assert found is not None
    assert found.again == SessionBounds((-S, 51 * S), (0, 51 * S + S), 11 * S - 1 + 2 * S, None)
    assert tracked.step(151) is None


@pytest.mark.parametrize("lost", [False, True])
def test_all_islands_of_a_key_with_a_late_piece_are_computed_with_it(*, lost: bool) -> None:
    """protocol 5.4: one range selects them."""
    tracked = closed()
    tracked.add("a", 50, 105)
    tracked.add("b", 105)
    if not lost:
        assert tracked.step(120, {"b": 105}, due=False) is None
        assert tracked.track.again.tolist() == [True, True, False]
    found = tracked.step(150, lost=lost)
    assert found is not None
    assert (found.low_us, found.first and found.first.keys) == (105 * S, frozenset({"b"}))
    assert {key: range_us for key, (_, _, range_us) in found.keyed.items() if range_us} == {"a": (50 * S, 106 * S)}
    assert len(tracked.track.code) == 0


def test_a_late_piece_waits_for_an_open_island_that_a_row_may_join_to_it() -> None:
    """protocol 5.4: rows are at most as long as the longest so far, from first reading to last + gap."""
    for late_s, waits in ((95, True), (94, False)):
        tracked = closed()
        tracked.track.stretch(3 * S)
        tracked.add("a", late_s, 99)
        found = tracked.step(110, {"a": 100})
        assert (found is None) == waits
        assert (tracked.track.start // S).tolist() == ([95, 99] if waits else [99])
        assert tracked.track.again.tolist() == [True] * (2 if waits else 1)


def test_what_waits_for_an_open_island_makes_others_wait() -> None:
    """protocol 5.4"""
    tracked = closed()
    tracked.track.stretch(3 * S)
    tracked.add("a", 91, 95, 99)
    tracked.add("b", 50, 92)
    tracked.add("c", 98)
    found = tracked.step(110, {"a": 100})
    assert found is not None
    ranges = {key: range_us for key, (_, _, range_us) in found.keyed.items()}
    assert ranges == {"a": None, "b": (50 * S, 93 * S), "c": (98 * S, 99 * S)}
    assert found.again is not None
    assert found.again.keys == frozenset({"b", "c"})
    assert (tracked.track.start // S).tolist() == [91, 95, 99]


def test_keys_with_values_of_their_own_are_in_the_order_of_their_texts() -> None:
    """protocol 8.4: a root that was started again numbers them in another order."""
    tracked = Tracked()
    for key in ("c", "a", "b", "d"):
        tracked.add(key, 1, 150)
    tracked.names.of(["none here"])
    found = tracked.step(100, {"c": 90, "a": 80, "b": 70, "none here": 60})
    assert found is not None
    assert list(found.keyed.items()) == [
        ("a", (80 * S, NEVER_US, None)),
        ("b", (70 * S, NEVER_US, None)),
        ("c", (90 * S, NEVER_US, None)),
    ]


def looks(
    tracked: Tracked,
    *,
    begins: Mapping[str, int] | None = None,
    ends: Mapping[str, int] | None = None,
    registers: Mapping[str, Mapping[str, int]] | None = None,
    bounds: Mapping[str, int] | None = None,
    gaps: tuple[Gap, ...] = (),
    floor_us: int = 0,
) -> tuple[int, int] | None:
    """The range of rows to compute again [s]; all times in seconds."""
    leaves = LeafTimes.of({leaf: us * S for leaf, us in ({"g": 900} if bounds is None else bounds).items()})
    own = {leaf: {key: us * S for key, us in each.items()} for leaf, each in (registers or {}).items()}
    view = GroupView(100 * S, leaves, {QUERY.key: Serving("q", 1)}, {}, registers=own, bounds=leaves)
    begun, ended = ({leaf: us * S for leaf, us in (each or {}).items()} for each in (begins, ends))
    now = SessionDecisionView(QUERY.group, view, Serving("q", 1), begun, ended, gaps, floor_us * S, due=True)
    found = tracked.track.step(now, tracked.names)
    touched = None if found is None else found.touched
    return None if touched is None else (touched[0] // S, (touched[1] + 1) // S)


def test_rows_are_computed_again_from_where_what_is_known_of_a_leaf_has_changed() -> None:
    """protocol 4.7: from the earlier one of two times; rows above the bound so far do not exist yet."""
    tracked = closed()
    assert looks(tracked) is None
    assert looks(tracked, bounds={"g": 30}) == (30, 100)
    assert looks(tracked, bounds={"g": 40}) == (30, 100)
    assert looks(tracked, bounds={"g": 100}) == (40, 100)
    assert looks(tracked, bounds={"g": 200}) is None, "there is no row above"
    assert looks(tracked, begins={"g": 20}, bounds={"g": 200}) is not None
    assert looks(tracked, begins={"g": 50}, bounds={"g": 200}) == (20, 100)
    assert looks(tracked, begins={"g": 50, "h": 60}, bounds={"g": 200, "h": 200}) == (60, 100)
    assert looks(tracked, begins={"g": 50, "h": 60}, bounds={"g": 200}) == (60, 100), "it is not expected any more"
    assert looks(tracked, begins={"g": 50}, bounds={"g": 200}) is None
    assert looks(tracked, begins={"g": 50}, ends={"g": 40}, bounds={"g": 200}) == (38, 100)
    assert looks(tracked, begins={"g": 50}, ends={"g": 60}, bounds={"g": 200}) == (38, 100)
    assert looks(tracked, begins={"g": 50}, ends={"g": 60}, bounds={"g": 200}, registers={"g": {"a": 30}}) == (30, 100)
    assert looks(tracked, begins={"g": 50}, ends={"g": 60}, bounds={"g": 200}, registers={"g": {"a": 35}}) == (30, 100)
    assert looks(tracked, begins={"g": 50}, ends={"g": 60}, bounds={"g": 200}, registers={"g": {"a": 35}}) is None
    assert looks(tracked, begins={"g": 50}, ends={"g": 60}, bounds={"g": 200}) == (35, 100)


def test_only_losses_of_the_group_and_within_the_horizon_touch_rows() -> None:
    """protocol 4.2, 4.7"""
    other = Gap((replace(QUERY, where="value > 1").group,), 0, 10 * S, 1, ("g",), "poison")
    assert looks(closed(), gaps=(other,)) is None
    assert looks(closed(), gaps=(LOSS,), floor_us=11) is None
    assert looks(closed(), gaps=(LOSS,), floor_us=10) == (10, 11)
