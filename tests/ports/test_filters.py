"""Topic filters as sets: subscriptions that never overlap, so that no message comes twice."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.ports.sensors.filters import cover, disjoint, matches, overlap

LEVELS = ("a", "b", "", "$a", "$b")
TOPICS = ["/".join(levels) for n in (1, 2, 3, 4) for levels in itertools.product(LEVELS, repeat=n)]


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from([*LEVELS, "+"]), min_size=1, max_size=3))
    return "/".join([*levels, *draw(st.sampled_from([[], ["#"]]))]) if draw(st.integers(0, 9)) else "#"


def held(name: str) -> set[str]:
    return {topic for topic in TOPICS if matches(name, topic)}


@given(filters(), filters())
def test_two_filters_overlap_if_and_only_if_a_topic_is_in_both(a: str, b: str) -> None:
    assert overlap(a, b) == bool(held(a) & held(b))
    assert overlap(a, b) == overlap(b, a)


@given(filters(), filters())
def test_a_cover_holds_both(a: str, b: str) -> None:
    if overlap(a, b) or not (a.startswith("$") or b.startswith("$")):
        assert held(cover(a, b)) >= held(a) | held(b)
    assert cover(a, a) == a


@given(st.lists(st.tuples(filters(), st.integers(0, 1)), max_size=6))
def test_no_topic_is_in_two_subscriptions_and_none_is_lost(wanted: list[tuple[str, int]]) -> None:
    made = disjoint(wanted)
    for topic in TOPICS:
        asked = [qos for name, qos in wanted if matches(name, topic)]
        given_ = [qos for name, qos in made.items() if matches(name, topic)]
        assert len(given_) <= 1
        if asked:
            assert given_
            assert given_[0] >= max(asked)


def test_filters_that_do_not_touch_stay_as_they_are() -> None:
    wanted = [("plant/+/temp", 1), ("plant/+/press", 0), ("tele/#", 1)]
    assert disjoint(wanted) == dict(wanted)


def test_topics_of_the_broker_itself_match_no_wildcard_at_the_front() -> None:
    assert not matches("#", "$SYS/uptime")
    assert not matches("+/uptime", "$SYS/uptime")
    assert matches("$SYS/#", "$SYS/uptime")
    for front in ("#", "+/uptime"):
        wanted = {"$SYS/uptime": 0, front: 1}
        assert disjoint(wanted.items()) == wanted, "a cover would hold nothing of the broker itself"


def test_a_filter_for_the_rest_holds_its_own_stem() -> None:
    assert matches("a/#", "a")
    assert matches("a/#", "a/b/c")
    assert not matches("a/#", "ab")
    assert overlap("a", "a/#")
