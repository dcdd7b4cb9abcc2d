"""The state of the root stays as large as what is served: what queries, series and nodes leave behind goes."""

from __future__ import annotations

from itertools import pairwise

from tests.support.cloud.changing_fleet import ChangingFleet, some_queries

TERMS = 24  # of half a day; within these each gateway is put out of use once


def test_queries_and_nodes_that_come_and_go_leave_nothing_behind() -> None:
    """protocol 8.4: two horizons after a query has ended nothing is kept of it, nor of a node that was retired."""
    fleet = ChangingFleet()
    most: list[dict[str, int]] = []
    for _ in range(3):
        sizes: list[dict[str, int]] = []
        for _ in range(TERMS):
            fleet.next_term()
            sizes.append(fleet.sizes())
        most.append({part: max(each[part] for each in sizes) for part in sizes[0]})
    assert {part: size for part, size in most[2].items() if size > 1.25 * most[1][part] + 200} == {}
    state, asked = fleet.root.state, len(some_queries(0))
    assert fleet.term * asked > 400
    assert len(state.queries) < 12 * asked
    assert len(state.scales) <= len(state.queries)
    assert len(state.floors) < 12 * asked
    assert len(state.plans) < 12 * asked


def test_what_stays_is_shown_all_the_time() -> None:
    """Forgetting takes nothing from a query that is served on."""
    fleet = ChangingFleet()
    for _ in range(12):
        fleet.next_term()
    rows = [row for row in fleet.rows if row.query == "stays" and not row.withdrawn]
    starts = sorted({row.start for row in rows})
    assert {later - earlier for earlier, later in pairwise(starts)} == {3_600_000_000}
    assert len(starts) > 100
    assert {len([row for row in rows if row.start == start]) for start in starts[1:-13]} == {3}
