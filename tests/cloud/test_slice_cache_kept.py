"""Which plans have slices on the driver, from when on, and what is read back (docs/protocol.md 8.6; no Spark)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from cloud_job.ingest.decode import EpochView, Lookup
from cloud_job.spark import slice_cache
from cloud_job.spark.recent_parts import no_parts
from cloud_job.spark.slice_cache import SliceCache
from cloud_job.spark.slice_cache_plan import CachedPlan, kept_plans
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.query.key import EpochKey, QueryPlace
from edge_agent.algebra.query.planner import plan as planned
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Punctuation, Sliding
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.work import ReadRequest, identity
from edge_agent.wire import snapshot
from edge_agent.wire.heads import Part
from tests.support.cloud.child_frames import SECOND, query

PART = Part(1, 0, 0, False, 1, 0, 0, 9, 9, b"")
REQUEST = ReadRequest(0, b"plan", "slice", ("count",), None, None)


def kept(longest_us: int, from_us: int = 50) -> CachedPlan:
    return CachedPlan(REQUEST, longest_us, from_us)


class Asked:
    """A cache that is asked for spans; each needs all plans that are kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache = SliceCache()
        monkeypatch.setattr(self.cache, "_plans", lambda _span, _lookup: dict.fromkeys(self.cache._held, REQUEST))
        monkeypatch.setattr(self.cache, "_formed", lambda *_: iter(()))

    def missing(self, *lows: int) -> dict[bytes, int]:
        return self.cache.missing(spans(*lows))

    def formed(self, *lows: int) -> set[int]:
        return self.cache.windows(spans(*lows))[0]


def spans(*lows: int) -> Any:
    return mock.Mock(spans=[mock.Mock(low_us=low_us) for low_us in lows])


def test_a_plan_whose_rows_passed_before_it_was_kept_is_read_back_and_a_new_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """protocol 8.6: its queries had short windows only, until a child served one with a long one."""
    asked = Asked(monkeypatch)
    assert not asked.cache.keep({}, [b"old"])
    assert asked.cache.keep({b"new": kept(9)}, [b"old", b"new"])
    assert (asked.missing(60), asked.formed(60)) == ({}, {0})
    assert asked.cache.keep({b"new": kept(9), b"old": kept(9)}, [b"old", b"new"])
    assert (asked.missing(60), asked.formed(60)) == ({b"old": 50}, set()), "all plans of a window are needed"
    assert asked.cache.keep({b"new": kept(9)}, [b"old", b"new"])
    assert asked.cache.keep({b"new": kept(9), b"old": kept(9)}, [b"old", b"new"])
    assert asked.missing(60) == {b"old": 50}, "it was not kept in between"


def test_a_plan_that_gets_a_longer_window_is_read_back_and_one_that_loses_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked(monkeypatch)
    for longest_us, missing in ((9, {}), (10, {b"plan": 50}), (10, {}), (9, {})):
        asked.cache.keep({b"plan": kept(longest_us)}, [b"plan"])
        assert asked.missing(60) == missing
        asked.cache.fill(missing, ())
        assert asked.formed(60) == {0}


def test_rows_are_read_back_from_the_first_that_is_kept_on_and_for_no_window_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked(monkeypatch)
    asked.cache = cache = SliceCache([b"plan"])
    monkeypatch.setattr(cache, "_plans", lambda _span, _lookup: {b"plan": REQUEST})
    cache.keep({b"plan": kept(9)}, [b"plan"])
    assert asked.missing(49) == {}, "it closed long ago"
    assert asked.missing(50) == asked.missing(49, 70, 80) == {b"plan": 50}
    cache.fill({b"plan": 50}, ())
    assert asked.missing(49, 50, 70) == {}


def test_what_is_read_back_of_a_plan_that_is_too_large_is_not_gathered_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """All together may exceed the memory of the driver."""
    cache, most = SliceCache([b"plan"]), 10_000
    monkeypatch.setattr(slice_cache, "MOST_BYTES", most)
    cache.keep({b"plan": kept(9)}, [b"plan"])

    def rows() -> Iterator[tuple[int, bool, bytes]]:
        start = np.arange(200) * 100
        plain = {"start": start, "end": start + 1, "key": np.zeros(200, np.int64), "states": {"count": start + 1}}
        content = snapshot.dumps({**plain, "keys": ["k"], "nodes": []})
        for _ in range(20):
            assert cache._held[b"plan"].bytes < 3 * most
            yield 0, False, content
            start += 1_000_000

    cache.fill({b"plan": 50}, rows())
    assert cache._held[b"plan"].bytes == 0


def test_the_largest_plan_goes_first_when_all_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SliceCache()
    cache.keep({b"a": kept(9), b"b": kept(9), b"c": kept(9)}, [])
    sizes = {b"a": 300, b"b": 500, b"c": 100}
    for name, held in cache._held.items():
        held.blocks[False].bytes = sizes[name]
    monkeypatch.setattr(slice_cache, "MOST_BYTES", 400)
    cache._fit()
    assert {name for name, held in cache._held.items() if held.bytes} == {b"a", b"c"}


def test_a_plan_that_is_too_large_is_not_read_back_sooner_because_a_frame_was_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, frame = Asked(monkeypatch), ("gw", 1, 2)
    cache = asked.cache
    cache.keep({b"plan": kept(9)}, [b"plan"])
    known = Lookup({EpochKey("gw", 1): EpochView((), (), {0: b"plan"}, [(2, 2)])}, (), {}, {}, {})
    cache.take(None, {frame: (PART,)}, (), known)
    assert asked.missing(50 + 2 * 9) == {b"plan": 50}
    cache.fill({b"plan": 50}, [(0, False, None)])
    for _ in range(2):
        assert asked.missing(50 + 2 * 9 - 1) == {}, "for these windows it was too large"
        assert asked.missing(50 + 2 * 9) == {b"plan": 50}
        cache.take(None, {frame: (PART,)}, (), known)


def test_a_frame_that_has_no_effect_makes_no_rows_incomplete_and_does_not_stay() -> None:
    """protocol 3.6: it was settled, and nothing of it counts."""
    cache, plans = SliceCache(), {0: b"plan"}
    cache.keep({b"plan": kept(9)}, [b"plan"])
    known = Lookup({EpochKey("gw", 1): EpochView((), (), plans, [(3, 3)])}, (), {}, {}, {})
    applied = {("gw", 1, 2): (PART,), ("gw", 1, 3): (PART,), ("other", 1, 3): (PART,)}
    assert slice_cache._touched(applied, known) == {b"plan": {("gw", 1, 3)}}
    row = {"batch": 1, "owner": "a", "node": "gw", "epoch": 1, "plan": 0, "late": False, "payload": b""}
    stored = pa.Table.from_pylist([{**row, "seq": seq} for seq in (2, 4)], schema=no_parts().schema)
    cache.take(stored, {}, {("gw", 1, 4)}, known)
    assert [table["seq"].to_pylist() for table in cache._waiting] == [[4]]
    cache.take(None, {}, (), known)
    assert cache._waiting == []


LONG = query("long", Sliding(30 * SECOND, SECOND), ("avg", "max"))
SIX = replace(LONG, id="six", window=Sliding(6 * SECOND, SECOND))
FOUR = replace(LONG, id="four", window=Sliding(4 * SECOND, SECOND))


def plans(closed: dict[str, int], *queries: Query, serving: tuple[Query, ...] = (), kind: str = "slice") -> Any:
    """The only plan that is kept, of these queries. closed: by id, in seconds; serving: default all."""
    state = RootState(RootLimits(revise_every_us=0))
    state.learn([canonical_query(asked) for asked in queries])
    group, plan = queries[0].group, replace(planned(queries, None)[0].plan, kind=kind)
    state.plans[identity(group, plan)] = group, plan
    for name, second in closed.items():
        state.close(QueryPlace(name, 1, ""), second * SECOND)
    view: Any = mock.Mock(serving=[asked.key for asked in serving or queries])
    found = kept_plans(state, {group: view})
    assert kept_plans(state, {}) == {}, "nobody serves the group"
    return next(iter(found.values()), None)


def test_slices_are_kept_for_the_longest_window_of_the_query_that_is_behind_and_a_fourth_more() -> None:
    """protocol 8.6, 4.2"""
    found = plans({"long": 1_000, "six": 900, "four": 800}, LONG, SIX, FOUR)
    assert (found.longest_us, found.from_us) == (30 * SECOND, int((800 - 37.5) * SECOND))
    assert found.order.plan == identity(LONG.group, planned((LONG, SIX, FOUR), None)[0].plan)
    found = plans({"long": 1_000, "six": 900}, LONG, SIX, serving=(SIX,))
    assert (found.longest_us, found.from_us) == (6 * SECOND, int((900 - 7.5) * SECOND)), "nobody serves the other"
    found = plans({"long": 1_000}, LONG, SIX)
    assert found.from_us < NEVER_US, "windows of the other have not closed yet"
    assert plans({"four": 1_000}, FOUR) is None
    assert plans({"long": 1_000}, LONG, kind="window") is None, "slices of no other plan are kept"
    assert plans({"long": 1_000}, LONG, kind="raw") is None


def test_slices_between_markers_are_not_kept() -> None:
    """Nothing says how long such windows are."""
    marked = replace(LONG, window=Punctuation(interpretation="local", markers="state"))
    assert plans({"long": 1_000}, marked) is None
