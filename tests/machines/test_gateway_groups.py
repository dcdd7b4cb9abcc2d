"""Groups at a gateway: how far each is, from when a query is in another one, and what waits for the clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.algebra.frame import BEGAN, Gap
from edge_agent.algebra.query.query import Query, Sensor
from edge_agent.algebra.windows import Punctuation, Tumbling
from edge_agent.machines.checkpoint.slots import GroupSlots
from edge_agent.machines.events import ClockChanged
from edge_agent.machines.gateway.group_frontier import advanced_us, promise_anew
from edge_agent.machines.gateway.group_state import GroupState, moved_queries
from edge_agent.machines.gateway.source import Source
from edge_agent.machines.gateway.undated import UndatedRecords
from edge_agent.machines.slicing.slicer import Slicer
from edge_agent.wire import snapshot
from tests.support.machines.slicer_runs import query, started

SENSOR = Sensor("s", 1, "mqtt", timeout_us=10**15, delay_us=3)
UNKNOWN = ClockChanged(known=False, boot="one", offset_us=1_000, by_us=0)
KNOWN = replace(UNKNOWN, known=True)


def state_of(slicer: Slicer) -> GroupState:
    return GroupState(slicer, GroupSlots(slicer.group))


@pytest.mark.parametrize(
    ("times", "from_us"),
    [
        ({}, 11),
        ({"newest": 20}, 21),
        ({"arrived": 30}, 31),
        ({"frontier": 40}, 40),
        ({"frontier_there": 50}, 50),
        ({"effective": 60}, 60),
    ],
)
def test_a_query_is_in_another_group_after_all_readings_and_promises_of_both(
    times: dict[str, int], from_us: int
) -> None:
    """protocol 6.3: each window has the readings of one revision."""
    asked = query("q", Tumbling(10))
    other = replace(asked, revision=2, where="value > 0", effective_from_us=times.get("effective"))
    here, there = started(asked), Slicer(other.group, None, "n")
    here.newest_us, here.frontier_us = times.get("newest", 10), times.get("frontier", 0)
    there.frontier_us = times.get("frontier_there", 0)
    source = Source(SENSOR, 0, newest_us=times.get("arrived", 10))
    states = {each.group: state_of(each) for each in (here, there)}
    assert moved_queries({other.group: [other]}, states, {"s": source}) == {"q": from_us}
    assert moved_queries({asked.group: [asked]}, states, {"s": source}) == {"q": None}
    there.change((other,))
    assert moved_queries({other.group: [other]}, states, {"s": source}) == {"q": None}


@pytest.mark.parametrize(("step_us", "want_us"), [(4, 52), (5, 50), (3, 53), (1, 53)])
def test_a_frontier_is_a_multiple_of_the_step_if_all_edges_are(step_us: int, want_us: int) -> None:
    """protocol 4.1: a window whose edges are none would wait for the next multiple."""
    asked = replace(query("q", Tumbling(20)), lateness_us=7)
    state, source = state_of(started(asked)), Source(SENSOR, 0, newest_us=60)
    sources = {"s": source}
    assert advanced_us(asked.group, state, sources, 100, clock_known=True, step_us=step_us) == want_us


def test_a_frontier_waits_for_the_clock_and_never_falls() -> None:
    """protocol 4.1, 4.3: what was promised stands, in the slicer or by the last commit; a sensor may have a clock."""
    asked = query("q", Tumbling(20))
    state, source = state_of(started(asked)), Source(SENSOR, 0, newest_us=60)
    sources = {"s": source}
    state.frontier_us = 30
    assert advanced_us(asked.group, state, sources, 100, clock_known=False, step_us=1) == 30
    source.own_clock, source.clock_us = True, 55
    assert advanced_us(asked.group, state, sources, 100, clock_known=False, step_us=1) == 55
    state.slicer.frontier_us = 70
    assert advanced_us(asked.group, state, sources, 100, clock_known=False, step_us=1) == 70
    assert advanced_us(asked.group, state, {}, 100, clock_known=True, step_us=1) == 100


def test_a_promise_falls_with_the_clock_of_the_node_and_with_no_other() -> None:
    """protocol 4.1: a sensor with a clock of its own, or a watermark, has promised by that; so has one for markers."""
    asked = query("q", Tumbling(20))
    marked = Query("m", 1, "s", Punctuation(markers="state"), asked.aggregates, lateness_us=0)
    for of, own_clock, mark_us, want_us in (
        (asked, False, None, 400),
        (asked, True, None, 900),
        (asked, False, 900, 900),
        (marked, False, None, 400),
        (marked, True, None, 900),
    ):
        group = of.group_at("n") if of is marked else of.group
        slicer = Slicer(group, None, "n")
        slicer.change((of,))
        slicer.advance(900)
        state, source = state_of(slicer), Source(SENSOR, 0)
        state.frontier_us = 900
        clock = Source(replace(SENSOR, id="state"), 0, own_clock=own_clock, mark_us=mark_us)
        sources = {"s": source, "state": clock} if of is marked else {"s": replace(clock, sensor=SENSOR)}
        promise_anew(group, state, sources, 400, step_us=1)
        assert (state.frontier_us, slicer.frontier_us) == (want_us, want_us)


@pytest.mark.parametrize(("boot", "at_us"), [("one", 1_500 + 200), ("two", 1_500 + 777)])
def test_a_start_while_the_clock_is_unknown_is_dated_once_it_is_known_also_by_the_next_process(
    boot: str, at_us: int
) -> None:
    """protocol 3.1, 4.3: in another boot nobody will know its time, and all before now may be missing."""
    asked = replace(query("q", Tumbling(20)), lateness_us=7)
    records = UndatedRecords()
    assert records.listening(asked.group, Source(SENSOR, 1_200), UNKNOWN, "a") == ()
    assert records.stopped((asked.group,), Source(SENSOR, 0), 2_000, 1_300, UNKNOWN, node="a") == ()
    rows = {name: snapshot.loads(snapshot.dumps(plain)) for name, plain in records.changes().items()}
    assert records.changes() == {}
    known = replace(KNOWN, offset_us=1_500)
    sources = {"s": Source(SENSOR, 1_200)}
    began, stopped = records.gaps(known, "a", sources)
    assert began == Gap((asked.group,), 1_700 - 1 - 3 - 7, 1_700, -1, ("a",), BEGAN)
    assert (stopped.start_us, stopped.end_us) == (1_800 - 3 - 7, 2_001)
    assert records.gaps(known, "a", sources) == []
    assert list(records.changes().values()) == [None]
    again = UndatedRecords()
    again.restore(rows, boot, 777)
    assert again.changes()
    (gap,) = again.gaps(known, "a", {})
    assert (gap.start_us, gap.end_us) == (at_us - 1 - 7, at_us), "its sensor is removed by then"


def test_a_start_by_a_known_clock_lacks_what_was_on_its_way() -> None:
    """protocol 3.1: readings of the delay and the lateness before it may have come to nobody."""
    asked = replace(query("q", Tumbling(20)), lateness_us=7)
    (gap,) = UndatedRecords().listening(asked.group, Source(SENSOR, 1_200), KNOWN, "a")
    assert (gap.start_us, gap.end_us) == (1_200 - 1 - 3 - 7, 1_200)
