"""Markers of many nodes as one stream: whatever the order in which they come, the windows are those of one computer."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.algebra.punctuation.marker_merge import MergedMarkers, Point
from edge_agent.algebra.punctuation.markers import LEAD
from edge_agent.wire import snapshot

Span = tuple[int, int]
Lead = tuple[int, str, int]
times = st.integers(0, 30)
leads = st.tuples(times, st.just(LEAD), st.integers(1, 10)).map(lambda lead: (lead[0], LEAD, lead[0] + lead[2]))
points = st.tuples(times, st.sampled_from(["", "start", "end"])) | leads
steps = st.lists(points | st.integers(0, 40) | st.sampled_from(["restart", "look"]), max_size=30)


def of_one_computer(given: set[Point | Lead], decided_us: int) -> list[Span]:
    """Sort, loop. A reading leads if no marker is before its bound."""
    out: list[Span] = []
    marks = sorted((point[0], point[1]) for point in given if point[1] != LEAD and point[0] < decided_us)
    leading = (point[0] for point in given if len(point) == 3 and marks and point[2] <= marks[0][0])
    begin = min(leading, default=None)
    for time, kind in marks:
        if kind in {"", "end"} and begin is not None:
            out += [(begin, time)] if time > begin else []
            begin = None
        if kind != "end" and begin is None:
            begin = time
    return out


def add(merged: MergedMarkers, point: Point | Lead) -> None:
    if len(point) == 3:
        merged.add_lead(point[0], point[2])
    else:
        merged.add(*point)


@given(steps)
@example([(5, ""), (9, ""), 20, (7, "end"), 20])
@example([(0, "start"), (9, "end"), 20, (3, "end"), (4, "start"), 20])
@example([(5, LEAD, 6), (9, ""), 20, (3, LEAD, 4), (1, LEAD, 12), 20])
def test_windows_told_step_by_step_are_those_of_all_markers_that_have_come(
    script: list[Point | Lead | int | str],
) -> None:
    """protocol 7.4: also of nodes that were behind, of late readings, and over restarts."""
    merged, came, told, decided = MergedMarkers(), set[Point | Lead](), list[Span](), 0
    for step in [*script, 40]:
        if isinstance(step, tuple):
            add(merged, step)
            came.add(step)
        elif step == "restart":
            merged = MergedMarkers.restore(snapshot.loads(snapshot.dumps(merged.snapshot())))
        elif step == "look":
            merged.look_again()
        elif isinstance(step, int):
            decided = max(decided, step)
            fresh, anew = merged.step(decided)
            told = list(fresh) if anew else [*told, *fresh]
            assert told == of_one_computer(came, decided)


@given(st.lists(points, max_size=20), st.lists(points, max_size=20), st.integers(0, 30))
def test_what_is_forgotten_changes_no_window_that_ends_later(
    before: list[Point | Lead], after: list[Point | Lead], floor_us: int
) -> None:
    """Markers from below the floor are too late for all."""
    merged = MergedMarkers()
    for point in before:
        add(merged, point)
    merged.step(floor_us)
    merged.forget(floor_us)
    for point in after:
        add(merged, point)
    came = {*before, *(point for point in after if point[0] >= floor_us)}
    whole, _ = merged.step(40)
    assert [span for span in whole if span[1] > floor_us] == [
        span for span in of_one_computer(came, 40) if span[1] > floor_us
    ]


def test_an_open_window_is_kept_from_its_start_on() -> None:
    merged, low = MergedMarkers(), list[int | None]()
    low.append(merged.low_us)
    merged.add(5, "")
    merged.add(9, "")
    low.append(merged.low_us)
    merged.step(20)
    low.append(merged.low_us)
    merged.add(15, "end")
    merged.step(20)
    assert [*low, merged.low_us] == [None, 5, 9, None]


def test_an_open_window_that_a_reading_leads_is_kept_from_that_reading_on() -> None:
    merged = MergedMarkers()
    merged.add_lead(5, 6)
    merged.add_lead(3, 30)
    assert merged.low_us == 3, "if no marker comes before 30"
    merged.add(20, "")
    merged.step(21)
    assert merged.step(40) == ([], False)
    assert merged.low_us == 20


def test_leads_that_cannot_count_are_not_kept() -> None:
    merged = MergedMarkers()
    for lead in [(5, 6), (5, 9), (7, 8), (3, 30)]:
        merged.add_lead(*lead)
    assert merged.leads == [(3, 30), (5, 6)]
    merged.add(20, "")
    merged.add_lead(2, 25)
    assert merged.leads == [(3, 30), (5, 6)]
    merged.forget(21)
    assert merged.leads == []
    merged.add_lead(22, 23)
    assert merged.leads == []


def test_leads_among_the_points_of_an_older_version_are_read() -> None:
    merged = MergedMarkers.restore([[[5, LEAD], [9, ""]], None, False, -100, 2])
    assert merged.step(20) == ([(5, 9)], True)
