"""Cells of coverage of sessions: whatever row lies where rows may lie, its cell says what is missing from it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.coverage import session_coverage
from edge_agent.algebra.frame import BEGAN, LOST, NEVER_US, Gap
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.group_cut import SessionCut
from edge_agent.algebra.query.query import Group
from edge_agent.root.completeness import GroupView
from edge_agent.root.decision.session_coverage import CoverageSources, grid
from edge_agent.root.decision.session_tracker import SessionBounds, behind
from edge_agent.root.decision.window_ranges import CoverageRef

SECOND = 1_000_000
HOUR = 3_600 * SECOND
GROUP = Group("s", "", ("site",), SECOND, cut=SessionCut(5))
NOBODY = LeafTimes((), (), {})
LEAVES = ("a", "b", "c")
TIMES = st.integers(0, 60)
GAPS = st.builds(
    lambda start, length, nodes, reason: Gap((GROUP,), start, start + length, -1, nodes, reason),
    TIMES,
    st.integers(1, 9),
    st.sampled_from([("a",), ("b", "c"), ()]),
    st.sampled_from([LOST, BEGAN]),
)


VIEWS = st.builds(
    lambda frontier, bounds, held: GroupView(frontier, bounds, {}, {}, {}, bounds, {"a": held}),
    st.integers(20, 90),
    st.fixed_dictionaries(dict.fromkeys(LEAVES, TIMES)),
    st.dictionaries(st.sampled_from(["x", "y"]), TIMES),
)
KNOWN = st.builds(
    lambda view, gaps, begins, ends: CoverageSources(GROUP, view, gaps, begins, -1, behind(view, {}, NEVER_US), ends),
    VIEWS,
    st.lists(GAPS, max_size=6),
    st.dictionaries(st.sampled_from(LEAVES), TIMES),
    st.dictionaries(st.sampled_from(LEAVES), TIMES),
)


@given(known=KNOWN, rows=st.lists(st.tuples(TIMES, st.integers(0, 20), st.sampled_from(["", "x", "y"])), min_size=1))
def test_the_cell_of_a_row_says_its_coverage(known: CoverageSources, rows: list[tuple[int, int, str]]) -> None:
    """protocol 4.7: by the rows' own places; a key that a leaf holds back has cells of its own."""
    view, frontier = known.view, known.view.frontier_us
    spans = [
        (first, first + lasted, key) for first, lasted, key in rows if first + lasted + GROUP.cut.gap_us < frontier
    ]
    if not spans:
        return
    firsts, ends = [first for first, _, _ in spans], [last + GROUP.cut.gap_us for _, last, _ in spans]
    longest = max(end - first for first, end in zip(firsts, ends, strict=True))
    where = SessionBounds(
        (min(firsts), max(firsts)), (min(ends), max(ends)), longest, frozenset(key for *_, key in spans)
    )
    cells, covers = grid(known, where, None)
    names = {cover.id: cover for cover in covers}
    own = {cell.key for cell in cells}
    for first, last, key in spans:
        (cell,) = (
            cell
            for cell in cells
            if cell.key == (f"={key}" if f"={key}" in own else "")
            and cell.first_low <= first < cell.first_high
            and cell.end_low <= last + GROUP.cut.gap_us < cell.end_high
        )
        mine = {leaf: view.leaf_bound_us(leaf, key) for leaf in LEAVES}
        wanted = session_coverage(mine, known.gaps, GROUP, first, last, begins=known.begins, ends=known.ends)
        assert names[cell.coverage_id] == CoverageRef.of(wanted)
        told = len(wanted.expected), wanted.received, wanted.complete
        assert (cell.expected, cell.received, cell.complete) == told


def test_a_thousand_gap_records_make_few_cells() -> None:
    """A week of restarts: what no row can meet is not worked out, and no coverage of it is told."""
    gaps = [Gap((GROUP,), i * HOUR, i * HOUR + SECOND, -1, (f"gw-{i}",), "stopped") for i in range(1_000)]
    now = 1_000 * HOUR
    view = GroupView(now, NOBODY, {}, {}, {}, LeafTimes.of({f"gw-{i}": now for i in range(1_000)}), {})
    known = CoverageSources(GROUP, view, gaps, {}, 0, behind(view, {}, NEVER_US))
    recent = SessionBounds((now - HOUR, now), (now - HOUR, now), HOUR, None)
    cells, covers = grid(known, recent, None)
    assert len(cells) <= 4
    assert len(covers) <= 3
    assert max(len(cover.missing) for cover in covers) == 1
    week = SessionBounds((0, now), (0, now), HOUR, None)
    assert len(grid(known, None, week)[0]) < 5_000


def test_rows_made_again_have_cells_of_their_own() -> None:
    view = GroupView(50, NOBODY, {}, {}, {}, LeafTimes.of(dict.fromkeys(LEAVES, 50)), {})
    where = SessionBounds((0, 40), (5, 45), 45, None)
    cells, _ = grid(CoverageSources(GROUP, view, [], {}, 0, behind(view, {}, NEVER_US)), where, where)
    assert [cell.revising for cell in cells] == [False, True]
