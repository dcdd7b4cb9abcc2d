"""Which sessions get rows when: the job's decisions, carried out in plain numpy, against the plain-Python root."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from cloud_job.spark import decision_checkpoint
from edge_agent.algebra.frame import GroupPart, Section
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.windows import Session
from edge_agent.root.decision.root_state import RootLimits
from edge_agent.root.decision.window_ranges import CoverageRef
from edge_agent.root.decision.work import Work
from edge_agent.root.numpy.rows import Row
from edge_agent.wire import frames
from tests.support.cloud.child_frames import JOURNAL, SECOND, START, Child, at, lifted, query, starts
from tests.support.cloud.recorded_fleets import fleet, grouped, plain_rows
from tests.support.cloud.session_rows import Twin
from tests.support.simulation.faults import calm, crashing, everything, lossy
from tests.support.simulation.fleets import Fleet
from tests.support.simulation.world import Chaos, RootHost

SEEDS = (3_000, 3_005, 3_020)  # each found something once


def final(rows: list[Row], made: Fleet) -> dict[tuple[str, str, int], tuple[object, ...]]:
    """What stands at the end, of sessions."""
    sessions = {query.id for query in made.queries if query.window.type == "session"}
    return {(r.query, r.key, r.start): told(r) for r in rows if r.query in sessions}


def told(row: Row) -> tuple[object, ...]:
    """A row without its values."""
    return row.end, row.readings, row.withdrawn, row.late, CoverageRef.of(row.coverage).id, row.revision


@pytest.mark.parametrize("chaos", [calm, lossy, crashing, everything])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_job_decides_on_sessions_as_the_plain_root_does(chaos: Callable[[Random], Chaos], seed: int) -> None:
    """protocol 5.1, 5.4: the same rows, withdrawn ones too, every revision, with the same coverage."""
    made, files = fleet(seed, chaos(Random(seed)), sessions=True)
    groups = grouped(files, min(len(files) - 1, 12), Random(seed))
    root = made.world.hosts["root"]
    assert isinstance(root, RootHost)
    twin = Twin(root.journal, RootLimits(revise_every_us=0))
    for group in groups:
        twin.batch(group)
    twin.batch([], flush=True)
    got = {at: (r.end, r.readings, r.withdrawn, r.late, r.coverage_id, r.revision) for at, r in twin.rows.items()}
    assert got == final(plain_rows(groups, root.journal), made)


@pytest.mark.parametrize("horizon_us", [2 * SECOND, 8 * SECOND])
@pytest.mark.parametrize("chaos", [lossy, everything])
@pytest.mark.parametrize("seed", SEEDS)
def test_pieces_that_have_expired_are_in_no_row_that_is_made(
    chaos: Callable[[Random], Chaos], seed: int, horizon_us: int
) -> None:
    """protocol 8.4: the rows of the plain root, which keeps them, though pieces go as soon as they may."""
    made, files = fleet(seed, chaos(Random(seed)), sessions=True)
    groups = grouped(files, min(len(files) - 1, 25), Random(seed))
    root = made.world.hosts["root"]
    assert isinstance(root, RootHost)
    twin = Twin(root.journal, RootLimits(0, horizon_us), expires=True)
    for group in groups:
        twin.batch(group)
    twin.batch([], flush=True)
    got = {at: (r.end, r.readings, r.withdrawn, r.late, r.coverage_id, r.revision) for at, r in twin.rows.items()}
    assert got == final(plain_rows(groups, root.journal, horizon_us=horizon_us), made)
    assert twin.expired


# --- by hand ----------------------------------------------------------------------------------------------------------

GAP = Session(2 * SECOND)


def batch(twin: Twin, received_us: int, *sent: tuple[Child, bytes]) -> Work:
    """A micro-batch of these messages, of a lander that has run since the one before."""
    objects = tuple((child.node, frames.decode(payload), received_us) for child, payload in sent)
    since_us = max(twin.state.decided_us, received_us - 60 * SECOND)
    return twin.batch([*((us, ()) for us in range(since_us + SECOND, received_us, SECOND)), (received_us, objects)])


def test_a_session_that_lasted_longer_than_the_horizon_is_not_beyond_it() -> None:
    """protocol 4.2: its last reading says how old it is; one whose last reading is too old is set aside."""
    twin, child = (
        Twin(JOURNAL, RootLimits(revise_every_us=0, horizon_us=10 * SECOND)),
        Child("gw", (query(window=GAP),)),
    )
    batch(twin, at(1), (child, child.birth()), (child, holding(child, at(100), until=20)))
    long = child.rows(at(110), starts(20), length_us=80 * SECOND + 1)
    assert batch(twin, at(2), (child, long)).beyond == ()
    old = child.rows(at(110), starts(50), length_us=1, late=True)
    assert [(part.lasting, part.source) for part in batch(twin, at(3), (child, old)).beyond] == [(True, "s")]
    assert [(row.end, row.readings) for row in twin.rows.values()] == [(at(102), 1)]


def test_a_session_that_began_two_horizons_before_is_set_apart_and_declared() -> None:
    """protocol 8.4: the rows that it would join may be made of readings that are gone."""
    a, b = Child("a", (query(window=GAP, fns=("count",)),)), Child("b", (query(window=GAP, fns=("count",)),))
    twin = Twin(JOURNAL, RootLimits(0, 10 * SECOND), expires=True)
    batch(twin, at(1), (a, a.birth()), (b, b.birth()), (a, a.rows(at(10))), (b, b.rows(at(10))))
    batch(twin, at(100), (a, a.rows(at(100), starts(95), length_us=1)))
    batch(twin, at(101), (a, a.rows(at(101))))
    assert [(row.received, row.readings) for row in twin.rows.values()] == [(1, 1)]
    long = b.rows(at(101), starts(60), length_us=34 * SECOND, late=True)
    work = batch(twin, at(102), (b, long))
    assert [(each.begun_us, each.until_us) for each in work.beyond] == [(at(81), at(94))]
    (gap,) = work.gaps
    assert (gap["start"], gap["end"], gap["readings"], gap["nodes"]) == (at(60), at(94), 0, ["b"])
    ((_, row),) = twin.rows.items()
    assert (row.end, row.readings, row.received, row.complete) == (at(97), 1, 1, False), "b has come, but not to it"
    short = b.rows(at(102), starts(93.5), length_us=1, late=True)
    assert batch(twin, at(103), (b, short), (a, a.rows(at(103)))).beyond == ()
    assert [(row.end, row.readings, row.withdrawn) for row in twin.rows.values()][-1] == (at(97), 2, False)


def told_rows(twin: Twin) -> dict[float, tuple[float, int, int, bool]]:
    """Start, in seconds -> (end, readings, revision, withdrawn)."""
    return {
        (start - START) / SECOND: ((row.end - START) / SECOND, row.readings, row.revision, row.withdrawn)
        for (_, _, start), row in twin.rows.items()
    }


def holding(child: Child, frontier_us: int, *seconds: float, until: float | None) -> bytes:
    """A frame with a reading at each of these times, and the hint of key 0: where its next session starts."""
    sections: tuple[Section, ...] = ()
    if seconds:
        time = starts(*seconds)
        states = lifted(np.ones(len(time)), time, child.plan, None)
        sections = (Section.of(0, child.plan, Partials(time, time + 1, np.zeros(len(time), np.int64), states)),)
    register = (0, None if until is None else at(until))
    return child._next(groups=(GroupPart(0, frontier_us, sections, registers=(register,)),))


def pair(revise_every_us: int = 0, window: Session = GAP) -> tuple[Twin, Child, Child]:
    """A root that has heard the births of two children."""
    twin = Twin(JOURNAL, RootLimits(revise_every_us=revise_every_us, horizon_us=3_600 * SECOND))
    one, two = (Child(name, (query(window=window),)) for name in ("gw-1", "gw-2"))
    batch(twin, at(0), (one, one.birth()), (two, two.birth()))
    return twin, one, two


def test_a_session_whose_pieces_come_batches_apart_is_one_row() -> None:
    """protocol 5.1: the frontier passed it long ago, the hint of one child still holds it."""
    twin, one, two = pair()
    batch(twin, at(1), (one, holding(one, at(50), 10, until=None)), (two, holding(two, at(50), until=11)))
    assert told_rows(twin) == {}
    batch(twin, at(2), (one, holding(one, at(60), until=None)), (two, holding(two, at(60), until=11)))
    assert told_rows(twin) == {}
    batch(twin, at(3), (two, holding(two, at(60), 11, 12, until=None)))
    assert told_rows(twin) == {10: (14, 3, 0, False)}


def test_a_key_that_is_held_back_does_not_hold_another_one() -> None:
    """protocol 5.2: one register a key."""
    twin = Twin(JOURNAL, RootLimits(revise_every_us=0))
    child = Child("gw", (query(window=GAP),), ("site=a", "site=b"))
    batch(twin, at(0), (child, child.birth()))
    time = starts(10, 10)
    states = lifted(np.ones(2), time, child.plan, None)
    rows = (Section.of(0, child.plan, Partials(time, time + 1, np.array([0, 1]), states)),)
    batch(twin, at(1), (child, child._next(groups=(GroupPart(0, at(50), rows, registers=((0, at(11)),)),))))
    assert [key for _, key, _ in twin.rows] == ["site=b"]


def test_a_late_reading_between_two_rows_makes_one_of_them_and_withdraws_the_other() -> None:
    """protocol 5.4, 8.3: at most once in `revise_every`, and all of it at an orderly stop."""
    twin, one, two = pair(revise_every_us=60 * SECOND)
    batch(twin, at(1), (one, one.rows(at(50), starts(10, 13), length_us=1)), (two, two.rows(at(50))))
    assert told_rows(twin) == {10: (12, 1, 0, False), 13: (15, 1, 0, False)}
    batch(twin, at(2), (one, one.rows(at(50), starts(11.5), length_us=1, late=True)))
    joined = {10: (15, 3, 1, False), 13: (15, 1, 1, True)}
    assert told_rows(twin) == joined
    batch(twin, at(3), (two, two.rows(at(55), starts(16), length_us=1, late=True)))
    assert told_rows(twin) == joined  # too soon: it waits
    batch(twin, at(63), (one, one.rows(at(55))), (two, two.rows(at(56))))
    assert told_rows(twin)[16] == (18, 1, 0, False)
    batch(twin, at(64), (two, two.rows(at(56), starts(17), length_us=1, late=True)))
    assert twin.state.put_off
    twin.batch([], flush=True)
    assert told_rows(twin)[16] == (19, 2, 1, False)
    assert not twin.state.put_off


def test_a_joined_row_that_is_joined_again_keeps_its_coverage_and_its_place() -> None:
    """protocol 5.4: rows far longer than any single piece are found again by what touches them."""
    twin, one, two = pair()
    first = one.rows(at(50), starts(*range(10, 40, 3)), length_us=1)
    batch(twin, at(1), (one, first), (two, two.rows(at(50))))
    assert len(told_rows(twin)) == 10
    fill = two.rows(at(50), starts(*(s + 1.5 for s in range(10, 37, 3))), length_us=1, late=True)
    batch(twin, at(2), (two, fill))
    assert told_rows(twin)[10] == (39, 19, 1, False)
    batch(twin, at(3), (two, two.rows(at(50), starts(38), length_us=1, late=True)))
    assert told_rows(twin)[10] == (40, 20, 2, False)
    assert sum(not withdrawn for *_, withdrawn in told_rows(twin).values()) == 1


def test_what_is_kept_between_batches_does_not_grow_with_the_sessions_that_have_ended() -> None:
    """Extents of open sessions only; of ended ones not even their keys."""
    twin = Twin(JOURNAL, RootLimits(revise_every_us=0))
    child = Child("gw", (query(window=GAP),), tuple(f"site={n}" for n in range(100)))
    batch(twin, at(0), (child, child.birth()))
    sizes = []
    for turn in range(1, 13):
        rows = child.rows(at(10 * turn + 5), starts(*[10 * turn] * 100), key=np.arange(100), length_us=1)
        batch(twin, at(30 * turn), (child, rows))
        sizes.append(len(decision_checkpoint.dumps(twin.decider, twin.state, twin.parts)))
    assert len(twin.rows) == 1_200
    assert max(sizes[2:]) - min(sizes[2:]) < 64
    (track,) = twin.state.sessions.tracks.values()
    assert (len(track.code), track.shut) == (0, {})
