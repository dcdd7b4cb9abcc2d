"""Which rows no future result needs, so that they may be deleted (docs/protocol.md 8.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from edge_agent.algebra.coverage import Coverage
from edge_agent.algebra.frame import Plan
from edge_agent.algebra.query.key import QueryKey, QueryPlace
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import CountTumbling, Punctuation, Session, Sliding, Tumbling
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.needed import needed_us
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.session_tracker import OpenSessions
from edge_agent.root.decision.work import identity
from edge_agent.root.punctuation_state import PunctuationWindows
from tests.support.machines.scripted_child import SUM

S = 1_000_000
HORIZON_US, FLOOR_US = 100 * S, 900 * S
SHORT = Query("short", 1, "boiler", Tumbling(10 * S), SUM, lateness_us=0)
LONG = replace(SHORT, id="long", window=Sliding(30 * S, 10 * S))


def plan_of(kind: str, *queries: Query) -> Plan:
    return Plan(b"12345678", kind, ("count",), None, 1, tuple((query.id, query.revision) for query in queries))


def knowing(*queries: Query, closed: Mapping[str, int] | None = None) -> RootState:
    """A state with these definitions. closed: query -> windows that end by then have had their rows."""
    state = RootState(RootLimits(revise_every_us=0, horizon_us=HORIZON_US))
    state.learn([canonical_query(query) for query in queries])
    state.floors[queries[0].group] = FLOOR_US
    for query, us in (closed or {}).items():
        state.close(QueryPlace(query, 1, queries[0].group.node), us)
    return state


def decider(*groups: Group, served: bool | None = True, elapsed_us: int = 0, start_us: int | None = None) -> Decider:
    """What the deletion asks a decider for. groups: those with members. served: whether each serves every query."""
    found = SimpleNamespace(
        parent=SimpleNamespace(children=SimpleNamespace(memberships=dict.fromkeys(groups))),
        serves=lambda group, key: served,
        start_us=lambda group, key: start_us,
        elapsed_us=elapsed_us,
    )
    return cast("Decider", found)


@pytest.mark.parametrize(
    ("closed", "want_s"),
    [
        ({"short": 950 * S, "long": 940 * S}, 870),
        ({"short": 850 * S, "long": 940 * S}, 820),
        ({"short": 950 * S, "long": 840 * S}, 810),
        ({"short": 950 * S}, None),
    ],
)
def test_rows_of_a_plan_are_needed_for_the_longest_window_of_the_query_that_is_behind(
    closed: dict[str, int], want_s: int | None
) -> None:
    """protocol 8.4: and for all that the horizon lets be revised."""
    state = knowing(SHORT, LONG, closed=closed)
    found = needed_us(SHORT.group, plan_of("slice", SHORT, LONG), decider(SHORT.group), state)
    assert found == (None if want_s is None else want_s * S)


def test_rows_stay_while_a_definition_is_not_known_or_nothing_was_decided() -> None:
    """protocol 8.4: how long its windows are is not known either."""
    state, plan = knowing(SHORT, closed={"short": 950 * S, "long": 950 * S}), plan_of("slice", SHORT, LONG)
    for served in (True, False, None):
        assert needed_us(SHORT.group, plan, decider(SHORT.group, served=served), state) is None
    assert needed_us(SHORT.group, plan, decider(), state) is None
    state = knowing(SHORT, LONG, closed={"short": 950 * S, "long": 950 * S})
    assert needed_us(SHORT.group, plan, decider(SHORT.group), state) == 870 * S
    del state.floors[SHORT.group]
    assert needed_us(SHORT.group, plan, decider(SHORT.group), state) is None


def test_rows_of_removed_queries_stay_for_two_horizons_and_their_longest_window() -> None:
    """protocol 8.4: a gateway that was away may still send late rows; the floor is a horizon behind the frontier."""
    state, plan = knowing(SHORT, LONG), plan_of("slice", SHORT, LONG)
    assert needed_us(SHORT.group, plan, decider(SHORT.group, served=False), state) == 770 * S


@pytest.mark.parametrize(("decided_s", "elapsed_s"), [(1_000, 5_000), (5_000, 1_000)])
def test_rows_of_a_group_that_nobody_serves_stay_for_two_horizons_of_time_that_has_passed(
    decided_s: int, elapsed_s: int
) -> None:
    """protocol 8.4: an error of the clock makes no reading old."""
    state, plan = knowing(SHORT, LONG), plan_of("slice", SHORT, LONG)
    state.decided_us = decided_s * S
    nobody = decider(elapsed_us=elapsed_s * S)
    assert needed_us(SHORT.group, plan, nobody, state) == 770 * S
    state.plans[identity(SHORT.group, plan)] = SHORT.group, plan
    assert needed_us(SHORT.group, plan, nobody, state) is None


def test_raw_readings_are_needed_until_they_have_their_positions() -> None:
    """protocol 7.4"""
    tens = replace(SHORT, window=CountTumbling(10))
    plan = plan_of("raw", tens)
    for closed_us, want_us in ((950 * S, FLOOR_US), (850 * S, 850 * S)):
        state = knowing(tens, closed={"short": closed_us})
        assert needed_us(tens.group, plan, decider(tens.group), state) == want_us


def test_pieces_of_sessions_are_needed_for_the_longest_row_that_they_may_join() -> None:
    """protocol 8.4, 5.4: none before anything was decided."""
    visits = replace(SHORT, window=Session(5 * S))
    plan, place = plan_of("session", visits), QueryPlace("short", 1, "")
    state = knowing(visits, closed={"short": 950 * S})
    assert needed_us(visits.group, plan, decider(visits.group), state) is None
    state.begun[visits.group] = 800 * S
    assert needed_us(visits.group, plan, decider(visits.group), state) == 800 * S
    state.sessions.tracks[place] = track = OpenSessions(longest_us=70 * S)
    assert needed_us(visits.group, plan, decider(visits.group), state) == 730 * S
    served_since = decider(visits.group, start_us=700 * S)
    assert needed_us(visits.group, plan, served_since, state) == 730 * S
    track.crossing_us = 800 * S
    assert needed_us(visits.group, plan, served_since, state) == (700 - 5 - 70) * S
    state.closed.clear()
    assert needed_us(visits.group, plan, decider(visits.group), state) is None


def test_rows_between_markers_are_needed_for_windows_of_the_node_that_may_be_revised() -> None:
    """protocol 8.4: however old; where windows may be joined or cut anew nobody knows."""
    local = replace(SHORT, window=Punctuation(interpretation="local", markers="state"))
    group = local.group_at("a")
    plan, windows = plan_of("slice", local), PunctuationWindows()
    state = knowing(local)
    state.floors[group], state.markers.windows[QueryKey("short", 1)] = FLOOR_US, windows
    assert needed_us(group, plan, decider(group), state) is None
    state.close(QueryPlace("short", 1, "a"), 950 * S)
    assert needed_us(group, plan, decider(group), state) == FLOOR_US
    pick = ("a", 300 * S, 400 * S)
    windows.shown[pick] = (pick,), Coverage((), ())
    assert needed_us(group, plan, decider(group), state) == 300 * S
    windows.known["b"] = {(100 * S, 200 * S): 0}
    assert needed_us(group, plan, decider(group), state) == 300 * S
    central = replace(SHORT, window=Punctuation(interpretation="central", markers="state"))
    group = central.group_at("a")
    state = knowing(central)
    state.floors[group] = FLOOR_US
    state.close(QueryPlace("short", 1, "a"), 950 * S)
    assert needed_us(group, plan, decider(group), state) is None
