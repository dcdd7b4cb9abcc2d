"""Markers of many nodes as one stream: whatever the order in which they come, the windows are those of one computer."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.algebra.punctuation.marker_merge import MergedMarkers, Point
from edge_agent.algebra.punctuation.markers import LEAD
from edge_agent.wire import snapshot

Span = tuple[int, int]
points = st.tuples(st.integers(0, 30), st.sampled_from(["", "start", "end", LEAD]))
steps = st.lists(points | st.integers(0, 40) | st.sampled_from(["restart", "look"]), max_size=30)


def of_one_computer(given: set[Point], decided_us: int) -> list[Span]:
    """Sort, loop."""
    out: list[Span] = []
    begin, led = None, False
    for time, kind in sorted(given):
        if time >= decided_us or (kind == LEAD and led):
            continue
        led = True
        if kind in {"", "end"} and begin is not None:
            out += [(begin, time)] if time > begin else []
            begin = None
        if kind != "end" and begin is None:
            begin = time
    return out


@given(steps)
@example([(5, ""), (9, ""), 20, (7, "end"), 20])
@example([(0, "start"), (9, "end"), 20, (3, "end"), (4, "start"), 20])
def test_windows_told_step_by_step_are_those_of_all_markers_that_have_come(script: list[Point | int | str]) -> None:
    """protocol 7.4: also of nodes that were behind, and over restarts."""
    merged, came, told, decided = MergedMarkers(), set[Point](), list[Span](), 0
    for step in [*script, 40]:
        if isinstance(step, tuple):
            merged.add(*step)
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
    before: list[Point], after: list[Point], floor_us: int
) -> None:
    """Markers from below the floor are too late for all."""
    merged = MergedMarkers()
    for point in before:
        merged.add(*point)
    merged.step(floor_us)
    merged.forget(floor_us)
    for point in after:
        merged.add(*point)
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
