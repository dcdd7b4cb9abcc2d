"""A gateway is started again before its clock was ever known: the stops are declared (docs/protocol.md 3.1, 4.3)."""

from __future__ import annotations

import pytest

from edge_agent.algebra.frame import BEGAN
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import CountTumbling, Tumbling
from edge_agent.machines.checkpoint.slots import UNDATED
from edge_agent.machines.gateway.undated import MOST_STARTS
from tests.support.machines.simulated_host import S
from tests.support.machines.wrong_clock import T0, Line, N, query

MINUTE = query(Tumbling(60 * S))
TENS = Query("tens", 1, "s", CountTumbling(10), N, lateness_us=S)


def stop(line: Line, *, known: bool = False) -> None:
    """Ten seconds without a process."""
    line.now_us += 10 * S
    line.known = known
    line.start()


def stops(line: Line) -> set[tuple[int, int]]:
    """Seconds from which and up to which readings are declared to be lost in a stop; whole ones."""
    spans = ((gap.start_us - T0, gap.end_us - T0) for _, gap in line.root.decider.gaps if gap.reason == "stopped")
    return {(low // S, high // S) for low, high in spans}


def test_each_stop_before_the_clock_is_known_is_declared_from_the_last_reading_that_waits() -> None:
    """protocol 3.1, 4.3: by the last process; the windows hold the readings of all of them, and are not complete."""
    line = Line(MINUTE, known=False)
    for _ in range(2):
        line.seconds(60)
        stop(line)
    line.seconds(60)
    line.learn()
    line.seconds(180)
    assert stops(line) == {(59, 70), (129, 140)}
    assert {(gap.reason, gap.end_us) for _, gap in line.root.decider.gaps if gap.reason != "stopped"} == {(BEGAN, T0)}
    whole = {(row.start - T0) // (60 * S): (row.values["n"], row.complete) for row in line.rows.values()}
    assert [whole[at] for at in range(4)] == [(60, False), (50, False), (50, False), (60, True)]


@pytest.mark.parametrize("asked", [MINUTE, TENS], ids=["time", "count"])
def test_a_stop_is_declared_if_the_clock_is_known_at_once_behind_it(asked: Query) -> None:
    """protocol 3.1: and only once, though later epochs begin with a flush as well."""
    line = Line(MINUTE, asked, known=False) if asked is TENS else Line(asked, known=False)
    line.seconds(30)
    stop(line, known=True)
    line.seconds(30)
    assert stops(line) == {(29, 40)}
    assert [gap.reason for _, gap in line.root.decider.gaps if asked.group in gap.groups].count("stopped") == 1
    line.wrong_us = -5 * S  # a step back begins an epoch
    line.tell(-5 * S)
    line.seconds(5)
    assert stops(line) == {(29, 40)}


def test_a_stop_behind_which_the_computer_was_started_is_no_stop_of_what_began_behind_it() -> None:
    """protocol 4.3: readings of the boot before have no time, and listening begins anew."""
    line = Line(MINUTE, known=False)
    line.seconds(30)
    line.boot, line.booted_us = "boot-2", line.now_us + 5 * S
    stop(line)
    line.seconds(5)
    line.learn()
    line.seconds(90)
    assert stops(line) == set()
    assert [(gap.reason, gap.end_us - T0) for _, gap in line.root.decider.gaps if gap.reason == BEGAN] == [
        (BEGAN, 40 * S)
    ]


@pytest.mark.parametrize("more", [-1, 0, 5])
def test_of_many_starts_all_from_the_first_on_is_declared(more: int) -> None:
    """protocol 3.1: a gateway that ends again and again would remember each."""
    line = Line(MINUTE, known=False)
    for _ in range(MOST_STARTS + more):
        line.seconds(2)
        stop(line)
    line.seconds(2)
    line.learn()
    line.seconds(10)
    last = 12 * (MOST_STARTS + more)
    each = {(at + 1, at + 12) for at in range(0, last, 12)}
    assert stops(line) == (each if more <= 0 else {(0, last)})


def test_starts_that_are_remembered_are_bounded() -> None:
    """protocol 4.3: each commit of the slot would write them."""
    line = Line(MINUTE, known=False)
    for _ in range(3 * MOST_STARTS):
        line.second()
        stop(line)
    line.second()
    found = UNDATED.read(line.disk.restored().state)
    assert found is not None
    assert len(found.began) == 1 + MOST_STARTS
