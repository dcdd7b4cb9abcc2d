"""Thousands of queries on one gateway: frames fit, commits stay cheap, and what does not fit is said."""

from __future__ import annotations

from dataclasses import replace

from edge_agent.algebra.aggregates import FUNCTIONS
from edge_agent.algebra.frame import MAX_FRAME_BYTES, MAX_PLAN_BYTES
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.events import Configured, Note, Tick
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.wire import frames
from tests.support.machines.simulated_host import QUERY, SENSOR, T0, S, SimulatedHost, gateway_host, read


def named(many: int, length_us: int = 10 * S) -> tuple[Query, ...]:
    """Queries with ids of 60 characters."""
    asked = (Aggregate(next(iter(FUNCTIONS)), "a"),)
    return tuple(Query(f"{n:060d}", 1, "s", Tumbling(length_us), asked, lateness_us=0) for n in range(many))


def running(queries: tuple[Query, ...]) -> SimulatedHost[Gateway]:
    """A gateway with these queries that its parent knows."""
    host = gateway_host()
    host.accepted(T0)
    host.do(Configured((SENSOR,), queries), T0 + S)
    host.do(Tick(), T0 + 2 * S)
    return host


def test_what_a_thousand_queries_are_served_from_takes_several_frames() -> None:
    """protocol 2.1: a frame is at most 128 kB by construction."""
    queries = named(1_100)
    assert sum(len(q.id) + 60 for q in queries) > MAX_FRAME_BYTES
    assert sum(len(q.id) + 8 for q in queries) < MAX_PLAN_BYTES
    host = running(queries)
    read(host, T0 + 3 * S, 1, T0 + 3 * S)
    host.do(Tick(), T0 + 30 * S)
    assert max(len(frames.encode(frame)) for frame in host.frames) <= MAX_FRAME_BYTES
    told = [s.query for frame in host.frames for members in frame.members for s in members.serving]
    assert set(told) == {QUERY.id, *(query.id for query in queries)}
    assert told.count(QUERY.id) == 2, "it went before it had begun: its end is said too (6.3)"
    assert len(told) == len(set(told)) + 1, "each other one is said once"
    before = len(host.frames)
    host.do(Tick(), T0 + 40 * S)
    assert not any(members.serving for frame in host.frames[before:] for members in frame.members)


def test_queries_whose_names_fit_no_frame_are_refused_and_the_others_go_on() -> None:
    """The checker refuses them before; revisions whose windows are still open may come on top of what it sees."""
    host = running(named(5))
    out = host.do(Configured((SENSOR,), named(2_000)), T0 + 4 * S)
    (note,) = [action for action in out if isinstance(action, Note)]
    assert note.name == "query.refused"
    assert "at most 80000" in str(note.fields["why"])
    read(host, T0 + 5 * S, 3, T0 + 5 * S)
    before = len(host.frames)
    host.do(Tick(), T0 + 30 * S)
    assert any(section for frame in host.frames[before:] for part in frame.groups for section in part.sections)


def test_a_query_that_gets_another_filter_gives_every_window_once() -> None:
    """protocol 6.3: its group changes; the old one is fed until its last window ends, the new one begins there."""
    host = running(named(1, 10 * S))
    (query,) = named(1, 10 * S)
    read(host, T0 + 3 * S, 1, T0 + 3 * S)
    host.do(Tick(), T0 + 4 * S)
    host.do(Configured((SENSOR,), (replace(query, revision=2, where="value > 2"),)), T0 + 5 * S)
    read(host, T0 + 6 * S, 7, T0 + 6 * S)
    host.do(Tick(), T0 + 7 * S)
    servings = {(s.query, s.revision): s for f in host.frames for m in f.members for s in m.serving}
    old, new = servings[query.id, 1], servings[query.id, 2]
    assert old.start_until_us == new.start_from_us == T0 + 3 * S + 1
    assert old.end_until_us is None
    assert {state.slicer.group.where: state.slicer.drained for state in host.machine.groups.values()} == {
        "": False,
        "value > 2": False,
    }
