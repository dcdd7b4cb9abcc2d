"""What the root must not forget: bounds that never fall, and what rows may still need (docs/protocol.md 8.4)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from edge_agent.algebra.frame import NEVER_US, Birth, Define, Frame, GroupPart, Plan, Section, Serving
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.group_cut import SessionCut
from edge_agent.algebra.query.key import EpochKey, QueryKey, QueryPlace
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.epochs.counting import Counting, Repeats
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.epochs.epoch_frames import Effect
from edge_agent.root.completeness import Decider, Decision, GroupView
from edge_agent.root.decision import session_queries
from edge_agent.root.decision.decide import step
from edge_agent.root.decision.needed import needed_us
from edge_agent.root.decision.read_plan import QueryAtDecision, ReadPlan
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.session_queries import SessionQueries
from edge_agent.root.decision.session_tracker import OpenSessions
from edge_agent.root.decision.transition import sweep
from edge_agent.root.decision.work import TooLate, identity
from edge_agent.root.elapsed_time import ElapsedTime
from edge_agent.root.punctuation_state import PunctuationWindows
from edge_agent.wire.heads import Part
from tests.support.machines.scripted_child import SUM, S, Sender, root_of

HORIZON = 100
GROUP = Group("s", "", (), 0, cut=SessionCut(5))
KEY = QueryKey("q", 1)
PLACE = QueryPlace("q", 1, "")


def state() -> RootState:
    return RootState(RootLimits(revise_every_us=0, horizon_us=HORIZON))


def settled(
    known: RootState,
    frontier_us: int,
    *,
    hints: Mapping[str, int] | None = None,
    leaves: Mapping[str, int] | None = None,
    registers: Mapping[str, Mapping[str, int]] | None = None,
) -> int:
    """The mark of the group after a decision. leaves: leaf -> frontier; registers: of leaves, by key."""
    times = LeafTimes.of(leaves or {"a": frontier_us})
    serving = {KEY: Serving("q", 1)}
    view = GroupView(frontier_us, times, serving, {}, hints=hints or {}, bounds=times, registers=registers or {})
    known.settle(Decision(0, (), {GROUP: view}, {}, (), (), ()))
    return known.begun[GROUP]


def test_no_row_counts_as_revised_after_now_once_the_clock_of_the_lander_has_gone_back() -> None:
    """protocol 8.1, 8.3: else nothing would be revised until the clock has caught up."""
    known = state()
    known.at(1_000)
    known.revised[PLACE] = 1_000
    known.at(10)
    assert known.revised[PLACE] == 10


def test_no_window_between_markers_counts_as_revised_after_now_either() -> None:
    """protocol 8.1, 8.3"""
    known = state()
    known.markers.windows |= {KEY: PunctuationWindows(revised_us=1_000), QueryKey("new", 1): PunctuationWindows()}
    known.at(1_000)
    known.at(10)
    assert [windows.revised_us for windows in known.markers.windows.values()] == [10, None]


def test_the_run_that_decided_a_batch_is_known_while_a_table_may_have_rows_of_it() -> None:
    """protocol 8.2: by it the quarantined messages of the batch are found."""
    known = state()
    for number, run in enumerate(("a", "a", "b", "b", "c")):
        known.own(number, run)
    known.disown(1)
    assert [known.owner_of(number) for number in range(6)] == ["a", "a", "b", "b", "c", "c"]
    known.disown(2)
    assert known.owners == [(2, "b"), (4, "c")]
    known.disown(9)
    assert known.owner_of(9) == "c"


def test_the_mark_of_a_group_of_sessions_never_falls() -> None:
    """protocol 8.4: readings before it may be deleted."""
    known = state()
    assert settled(known, 1_000) == 800
    assert settled(known, 1_000, hints={"k": 700}) == 800
    assert settled(known, 1_100, hints={"k": 850}) == 850


def test_the_mark_stays_at_sessions_that_are_open_at_a_gateway_that_has_not_been_away_for_a_horizon() -> None:
    """protocol 8.4, 5.2"""
    assert settled(state(), 1_000, hints={"k": 500}) == 500
    at_b = {"b": {"k": 400}}
    assert settled(state(), 1_000, leaves={"a": 1_000, "b": 900}, registers=at_b) == 400
    assert settled(state(), 1_000, leaves={"a": 1_000, "b": 899}, registers=at_b) == 800


def test_the_mark_stays_at_rows_that_are_to_be_made_again() -> None:
    """protocol 8.4, 8.3: they are made from all their pieces."""
    known = state()
    known.sessions.tracks[PLACE] = OpenSessions(touched=(300, 400))
    assert settled(known, 1_000) == 300


def test_windows_that_had_their_rows_have_had_them_and_put_off_revisions_need_theirs() -> None:
    """protocol 8.3, 8.4"""
    known = state()
    known.close(PLACE, 50)
    known.close(PLACE, 40)
    assert known.closed_us(PLACE) == 50
    assert known.settled_us(PLACE, 1_000) == 900
    known.pending[PLACE] = [(300, 350)]
    assert known.settled_us(PLACE, 1_000) == 300


def test_first_rows_replace_those_of_an_older_revision_where_there_may_be_some() -> None:
    """protocol 6.3"""
    known = state()
    known.met["q", ""] = 50
    assert known.meets("q", "", 49)
    assert not known.meets("q", "", 50)
    assert not known.meets("r", "", 49)


@pytest.mark.parametrize("untils", [(70, 90), (90, 70)])
def test_readings_that_came_too_late_stay_apart_until_the_latest_of_their_rows_is_needed_no_more(
    untils: tuple[int, int],
) -> None:
    """protocol 4.2: two parts of one frame may be of one plan."""
    known = state()
    plan = Plan(b"12345678", "session", ("count",), None, 1, (("q", 1),), 5)
    for part, until_us in enumerate(untils):
        known.set_apart(TooLate("a", 7, 3, part, "s", 20, begun_us=60, until_us=until_us), GROUP, plan, late=True)
    assert known.too_late[EpochKey("a", 7)][3, identity(GROUP, plan), True].until_us == 90


def test_rows_that_a_put_off_revision_needs_are_needed_however_far_the_frontier_is() -> None:
    """protocol 8.3, 8.4"""
    query = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
    child = Sender("a", query)
    root = root_of(child, revise_every_us=60 * S, horizon_us=100 * S)
    root.take("a", child.send((0, 10 * S, "", 1.0), (40 * S, 50 * S, "", 1.0), frontier_us=50 * S), S)
    root.step(S)
    (group, plan), place = next(iter(root.state.plans.values())), QueryPlace("q", 1, "")
    for value, revisions in ((2.0, 1), (3.0, 0)):
        root.take("a", child.send((40 * S, 50 * S, "", value), late=True), 2 * S)
        assert len(root.step(2 * S)) == revisions
    root.take("a", child.send(frontier_us=300 * S), 3 * S)
    root.step(3 * S)
    assert place in root.state.pending
    assert needed_us(group, plan, root.decider, root.state) == 40 * S - 1
    assert [(row.start, row.values["sum"]) for row in root.step(70 * S)] == [(40 * S, 6.0)]
    assert needed_us(group, plan, root.decider, root.state) == (300 - 100 - 10) * S
    root.decider.servings.of[group].clear()  # the query is stated and not agreed yet
    assert needed_us(group, plan, root.decider, root.state) is None


def test_keys_of_ended_epochs_do_not_stay_beside_those_of_open_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label that is new every day filled the memory of a root, and each decision cost all keys ever seen."""
    monkeypatch.setattr(session_queries, "MOST_KEYS", 20)
    sessions, most = SessionQueries(most_keys=20), 0
    for epoch in range(30):
        line, texts = EpochKey("gw", epoch), EpochDictionary()
        texts.keys = [f"order={epoch}-{n}" for n in range(5)]
        code, start = sessions.numbers.maps(line, texts)[0][:1], np.full(1, 100 * epoch, np.int64)
        track = sessions.tracks.setdefault(PLACE, OpenSessions())
        track.add([(code, start, start + 1)], sessions.numbers.keys, SessionCut(5), 0, 0)
        before = repr(sessions.snapshot())
        sessions.forget(line)
        assert repr(sessions.snapshot()) == before
        most = max(most, sessions.numbers.many)
    assert len(sessions.tracks[PLACE].code) == 30
    assert most <= 60, "twice those of open sessions"


def test_nodes_of_ended_epochs_do_not_stay_where_keys_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region may name other gateways in each epoch."""
    monkeypatch.setattr(session_queries, "MOST_KEYS", 20)
    sessions, most = SessionQueries(most_keys=20), 0
    for epoch in range(30):
        line, texts = EpochKey("region", epoch), EpochDictionary()
        texts.keys, texts.nodes = ["site=a"], [f"gw-{epoch}-{n}" for n in range(5)]
        sessions.numbers.maps(line, texts)
        sessions.forget(line)
        most = max(most, len(sessions.numbers.nodes.texts))
    assert most <= 25


def test_rows_of_an_older_revision_reach_to_the_latest_frontier_at_which_it_ended() -> None:
    """protocol 6.3: revisions of a query may be of several groups, one of which is behind."""
    known = state()
    groups = [Group(source, "", (), 0) for source in ("ahead", "behind")]
    views = {group: GroupView(us, LeafTimes.of({}), {}, {}) for group, us in zip(groups, (50 * S, 20 * S), strict=True)}
    narrowed = {(group, QueryKey("q", 1)): 10 * S for group in groups}
    work = step(known, Decision(0, (), views, {}, (), (), (), narrowed=narrowed), {}, {}, ())
    assert [(each.from_us, each.after_us) for each in work.over] == [(10 * S, 50 * S - 100), (10 * S, 20 * S - 100)]
    assert known.meets("q", "", 50 * S - 1)
    assert not known.meets("q", "", 50 * S)


def test_a_frame_without_rows_that_was_settled_as_bad_cuts_no_range_of_those_that_took_effect() -> None:
    """A child decides how many there are, and the state has a range for each that cuts one."""
    known, line, part = state(), EpochKey("a", 7), Part(1, 0, 0, False, 1, 0, 0, 1, 1, b"", 1)
    parts = {("a", 7, 6): (part,)}  # of a frame that contradicts its definitions, and whose rows are stored
    effects = [Effect(*line, seq, None if seq in (0, 2, 4, 6) else Frame(7, seq), why="bad") for seq in range(9)]
    step(known, Decision(0, tuple(effects), {}, {}, (), (), ()), parts, {line: EpochDictionary()}, ())
    assert known.applied == {line: [(1, 5), (7, 8)]}
    later = [Effect("b", 1, 0, None, why="bad")]
    step(known, Decision(0, tuple(later), {}, {}, (), (), ()), {}, {}, ())
    assert known.applied.keys() == {line}


def test_of_an_epoch_counts_what_every_frame_with_repeats_leaves() -> None:
    """protocol 1.3, 8.2: a decision decodes them anew, with one range for all."""
    known = state()
    for seq, counting in ((3, Counting(10, 50)), (2, Counting(20, 60)), (1, Counting(5, 70))):
        known.apply(Effect("a", 1, seq, None, stale=False, counting={7: counting}))
    assert known.repeats == {EpochKey("a", 1): {7: Repeats(Counting(20, 50), 4)}}


def test_what_waited_for_windows_that_no_group_serves_puts_nothing_off() -> None:
    """protocol 6.5: their rows are withdrawn."""
    known = state()
    known.pending[PLACE] = [(0, 10)]
    known.drop_corrected(Decision(0, (), {}, {}, (), (), ()))
    assert not known.put_off


def test_rows_and_pieces_count_within_a_range_and_only_in_the_frames_that_have_one() -> None:
    """protocol 1.3"""
    start, end, key = np.array([5, 10, 15]), np.array([8, 14, 21]), np.arange(3)
    rows, counting = Partials(start, end, key, {"count": np.ones(3, np.int64)}), Counting(10, 20)
    assert counting.of(rows).key.tolist() == [1]
    assert counting.of_pieces(key, start, end)[0].tolist() == [1]
    repeats = Repeats(counting, 4)
    assert repeats.of(rows, 3).key.tolist() == [1]
    assert repeats.of(rows, 4).key.tolist() == [0, 1, 2]


def swept(known: RootState) -> Decider:
    """A root that has lost a node, after a sweep."""
    decider, known.decided_us = Decider(1, 60 * S), 10_000
    decider._elapsed = ElapsedTime(10_000, 10_000)
    decider.take("gone", Frame(1, 0, Birth(1 << 32, 1, None, "1")), 10_000)
    decider.parent.children.retired = {"gone"}
    sweep(decider, known, {})
    return decider


def test_horizons_of_groups_without_members_and_epochs_of_nodes_that_have_gone_are_not_kept_for_ever() -> None:
    """protocol 1.5, 8.4: two horizons after the last of them."""
    known, other = state(), Group("t", "", (), 0, cut=SessionCut(5))
    known.floors = {GROUP: 10_000 - 2 * HORIZON - 1, other: 10_000 - 2 * HORIZON}
    known.begun = dict(known.floors)
    decider = swept(known)
    assert known.floors == known.begun == {other: 10_000 - 2 * HORIZON}
    assert EpochKey("gone", 1) not in decider.parent.inbox.epochs


def test_open_sessions_of_a_query_that_nobody_serves_stay_for_a_horizon_beyond_that_of_rows() -> None:
    """protocol 5.4, 8.4: a gateway that was away may still send pieces that they join."""
    known, plan = state(), Plan(b"12345678", "session", ("count",), None, 0, (("q", 1),), 5)
    known.floors[GROUP] = 9_950
    known.plans[identity(GROUP, plan)], known.ends[identity(GROUP, plan)] = (GROUP, plan), 10_000
    start = np.array([9_800, 9_900])
    known.sessions.tracks[PLACE] = OpenSessions(np.zeros(2, np.int64), start, start + 10, np.zeros(2, np.bool_))
    swept(known)
    assert known.sessions.tracks[PLACE].start.tolist() == [9_900]


def joined(counting: Mapping[int, Counting], begun_us: int) -> list[int]:
    """Starts of the open sessions after a frame with pieces at 5, 15 and 25, a key each."""
    plan = Plan(b"12345678", "session", ("count",), None, 0, (("q", 1),), 5)
    start, one = np.array([5, 15, 25]), np.ones(3, np.int64)
    rows = Partials(start, start + 1, np.arange(3), {"count": one})
    frame = Frame(1, 3, groups=(GroupPart(0, sections=(Section(0, rows),)),))
    dictionary = EpochDictionary()
    dictionary.learn(Define((0, ("k=a", "k=b", "k=c")), (0, ()), ((0, GROUP),), ((0, 0, plan),)))
    line, queries = EpochKey("a", 1), SessionQueries()
    effect = Effect(*line, 3, frame, counting=counting)
    decision = Decision(0, (effect,), {}, {}, (), (), ())
    queries.join(decision, {line: dictionary}, lambda group, us: us, {GROUP: begun_us})
    return sorted(queries.tracks[PLACE].start.tolist())


def test_of_pieces_of_sessions_count_those_that_are_no_repeats_and_begin_after_the_mark_of_their_group() -> None:
    """protocol 1.3, 8.4"""
    assert joined({}, NEVER_US) == [5, 15, 25]
    assert joined({0: Counting(10, 20)}, NEVER_US) == [15]
    assert joined({}, 15) == [15, 25]


def test_windows_are_formed_of_the_starts_that_a_query_serves() -> None:
    """protocol 6.3"""
    query = Query("q", 1, "s", Tumbling(10), SUM)
    leaves, serving = LeafTimes.of({"a": 100}), Serving("q", 1, 30, 60)
    view = GroupView(100, leaves, {query.key: serving}, {})
    plan = ReadPlan({(query.aggregates, None): 0}, (), {}, lambda key: None)
    found = [span for span, _ in plan.ranges(QueryAtDecision(query.key, query, query.group, view), 0, 100)]
    assert (min(span.low_us for span in found), max(span.high_us for span in found)) == (30, 59)
