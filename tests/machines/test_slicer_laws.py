"""The slicer against the oracle: what leaves, whatever comes in which order, gives exactly the oracle's rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.query.query import Group, Query
from edge_agent.machines.slicing.slicer import Slicer
from tests.oracle import central_computer
from tests.support import algebra_strategies
from tests.support.effort import examples
from tests.support.machines.slicer_runs import Run
from tests.support.naive_root import expected
from tests.support.tolerance import assert_same_rows


def play(draw: st.DrawFn, run: Run, changes: st.SearchStrategy[tuple[Query, ...]] | None, steps: int = 8) -> None:
    """Random things happen, in disorder, with time going on."""
    now = 0
    kinds = [
        "push",
        "push",
        "push",
        "advance",
        "restart",
        "flush",
        *(["change", "change"] if changes is not None else []),
    ]
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=steps)):
        if kind == "push":
            times = draw(st.lists(st.integers(max(0, now - 25), now + 15), max_size=8))
            values = draw(
                st.lists(algebra_strategies.values(run.slicer.scale), min_size=len(times), max_size=len(times))
            )
            run.push(times, values, draw(st.lists(st.integers(0, 3), min_size=len(times), max_size=len(times))))
            now = max(now, *times) if times else now
        elif kind == "advance":
            run.advance(now - draw(st.integers(-2, 12)))
        elif kind == "restart":
            run.restart()
        elif kind == "flush":
            run.flush()
        elif changes is not None:
            run.change(draw(changes))
    run.end()


@st.composite
def runs(draw: st.DrawFn, late: str) -> Run:
    by = draw(st.sampled_from([(), ("site",), ("room", "site")]))
    queries = draw(algebra_strategies.queries(by=by, late=late))
    run = Run(Slicer(queries[0].group, draw(algebra_strategies.scales), "n"))
    run.change(queries)
    play(draw, run, None)
    return run


@given(run=runs("revise"))
def test_every_reading_counts_once_in_each_of_its_windows_however_late_it_comes(run: Run) -> None:
    """protocol 4.2, 6.1, 6.2: on-time slices, late partials, flushes and restarts add up to the oracle's rows."""
    readings = [*run.readings, *(reading for reading, _ in run.late)]
    assert_same_rows(run.root.results(run.servings), expected(run.queries, run.servings, readings), run.reach())
    assert run.slicer.counters["late"] == len(run.late)
    assert run.slicer.counters["readings"] == len(readings)


@given(run=runs("drop"))
def test_dropped_late_readings_are_in_no_window_and_counted(run: Run) -> None:
    want = expected(run.queries, run.servings, run.readings)
    assert_same_rows(run.root.results(run.servings), want, run.reach())
    assert run.slicer.counters["dropped_late"] == run.slicer.counters["late"] == len(run.late)


@given(run=runs("per_window"))
def test_late_readings_count_in_the_windows_that_are_still_open_and_in_no_other(run: Run) -> None:
    rows: dict[central_computer.Row, list[central_computer.Reading]] = {}
    arrived = [(reading, NEVER_US) for reading in run.readings] + run.late
    for asked in run.queries.values():
        for reading, frontier_us in sorted(arrived, key=lambda pair: (pair[0].time_us, pair[0].order)):
            for start, end in central_computer.windows(asked, [reading]):
                if end > frontier_us:
                    rows.setdefault((asked.id, central_computer.key_of(asked, reading), start, end), []).append(reading)
    want = {row: central_computer.answers(run.queries[row[0], 1], inside) for row, inside in rows.items()}
    assert_same_rows(run.root.results(run.servings), want, run.reach())
    missed = sum(
        any(
            end <= frontier_us
            for asked in run.queries.values()
            for _, end in central_computer.windows(asked, [reading])
        )
        for reading, frontier_us in run.late
    )
    assert run.slicer.counters["dropped_late"] == missed


@st.composite
def changing(draw: st.DrawFn) -> Run:
    """Queries come, go and change while readings flow; a (query, revision) never comes back."""
    revision = iter(range(1, 1_000))
    in_force: dict[str, Query] = {}

    @st.composite
    def changes(draw: st.DrawFn) -> tuple[Query, ...]:
        for name in ("a", "b"):
            what = draw(st.sampled_from(["keep", "set", "set", "remove"]))
            if what == "set":
                begin = draw(st.one_of(st.none(), st.integers(0, 60)))
                window, wanted = draw(algebra_strategies.windows()), draw(algebra_strategies.aggregates())
                in_force[name] = Query(
                    name, next(revision), "s", window, wanted, by=("site",), lateness_us=0, effective_from_us=begin
                )
            elif what == "remove":
                in_force.pop(name, None)
        return tuple(in_force.values())

    run = Run(Slicer(Group("s", "", ("site",), 0), draw(st.sampled_from([None, -1])), "n"))
    play(draw, run, changes(), steps=12)
    return run


@examples(300)
@given(run=changing())
def test_at_changes_of_plan_every_window_of_every_serving_is_exact(run: Run) -> None:
    """protocol 6.3: every reading goes to exactly one of the plans that succeed each other, also the late ones."""
    readings = [*run.readings, *(reading for reading, _ in run.late)]
    assert_same_rows(run.root.results(run.servings), expected(run.queries, run.servings, readings), run.reach())
    for serving in run.servings:
        begin = run.queries[serving.query, serving.revision].effective_from_us
        assert begin is None or (serving.start_from_us is not None and serving.start_from_us >= begin)
        assert serving.start_from_us is None or serving.start_from_us > -100  # unbounded is said so


# --- examples ----------------------------------------------------------------------------------------------------
