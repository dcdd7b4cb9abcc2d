"""A merger states serving ranges that have changed, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.algebra.frame import LATEST_US, Serving
from edge_agent.algebra.query.key import QueryKey, QueryPlace
from edge_agent.machines.region.stated_ranges import StatedRanges

KEYS = [P := QueryKey("p", 1), QueryKey("q", 1), QueryKey("q", 2)]
TIMES = st.dictionaries(st.sampled_from(KEYS), st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), min_size=1))
OF_ALL = st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(1, 3)).map(
    lambda found: {key: Serving(*key, start_us) for key, start_us in found.items()}
)
STEPS = st.lists(st.tuples(st.builds(StatedRanges, OF_ALL, TIMES, TIMES), st.sets(st.sampled_from(KEYS))))


class Membership:
    """A group in which some queries are served, whether or not that counts."""

    def __init__(self, served: set[QueryKey]) -> None:
        self._served = served

    def serves(self, key: QueryKey) -> bool:
        return key in self._served


def one_by_one(ranges: StatedRanges) -> dict[QueryPlace, Serving]:
    """Every range, as the tier above keeps them."""
    out = {QueryPlace(*key, ""): serving for key, serving in ranges.of_all.items()}
    for key in {**ranges.begins, **ranges.ends}:
        of_all = ranges.of_all.get(key)
        for leaf in {**ranges.begins.get(key, {}), **ranges.ends.get(key, {})}:
            start_us = ranges.begins.get(key, {}).get(leaf, None if of_all is None else of_all.start_from_us)
            last_us = ranges.ends.get(key, {}).get(leaf)
            out[QueryPlace(*key, leaf)] = Serving(*key, start_us or 0, None, last_us, leaf)
    return out


LATER = [(StatedRanges({P: Serving(*P, us)}, ends={P: {"a": 9}}), set[QueryKey]()) for us in (1, 2)]


@given(STEPS)
@example(LATER)  # a leaf that only ends has the start of all
def test_the_tier_above_has_after_each_step_what_the_merger_stated_one_by_one(
    steps: list[tuple[StatedRanges, set[QueryKey]]],
) -> None:
    """protocol 6.3, 6.5: nothing is stated twice, and a query that is served but does not count stays."""
    before, above = StatedRanges(), dict[QueryPlace, Serving]()
    for now, served in steps:
        membership: Any = Membership(served)
        after, withdrawn = now.without(before, membership)
        wanted = one_by_one(now)
        assert withdrawn == [
            Serving(*place.key, node=place.node) if place.node else Serving(*place.key, LATEST_US)
            for place in sorted(above.keys() - wanted.keys())
            if place.node or place.key not in served
        ]
        kept = {place: above[place] for place in above.keys() - wanted.keys() if not place.node and place.key in served}
        changed = list(after.since(before))
        assert changed == [each for place, each in wanted.items() if above.get(place) != each]
        for each in changed:
            above[QueryPlace(*each.key, each.node)] = each
        above = {place: each for place, each in above.items() if place in wanted or place in kept}
        assert bool(after) == bool(above)
        assert not list(after.since(after))
        before = after
    assert list(before.all()) == list(one_by_one(before).values())


def test_a_range_that_is_kept_for_a_query_stays_while_nothing_changes_and_is_withdrawn_with_its_last_server() -> None:
    """protocol 6.3, 6.5: else the tier above would believe for ever that the query goes on here."""
    served: Any = Membership({P})
    unserved: Any = Membership(set())
    without = StatedRanges()
    kept, _ = without.without(StatedRanges({P: Serving(*P, 1)}), served)
    again, withdrawn = without.without(replace(kept, begins=without.begins), served)
    assert (again.kept, withdrawn) == ({P: Serving(*P, 1)}, [])
    assert without.without(again, unserved) == (without, [Serving(*P, LATEST_US)])
