"""Slices kept on the driver: windows formed from them are those that decoding all of bronze.messages gives.

The job runs without Spark: its tables are lists, and each window that it forms from what is kept is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from cloud_job.delta.tables import Table
from cloud_job.ingest.decode import EpochView, Lookup, windows_of
from cloud_job.spark import decision_checkpoint, slice_cache
from cloud_job.spark.job import Job, JobSettings
from cloud_job.spark.recent_parts import RecentParts
from cloud_job.spark.slice_cache import SliceCache, slices_of
from cloud_job.spark.slice_cache_plan import kept_plans
from cloud_job.spark.state_log import BatchInput
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.planner import plan as planned
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.sliding import prefix_blocks
from edge_agent.algebra.windows import Sliding, Tumbling, Window
from edge_agent.root.decision.root_state import RootLimits
from edge_agent.root.decision.work import Work
from tests.support.cloud.child_frames import SECOND, Child, at, query, record, starts, tick
from tests.support.cloud.jobs import CrashError
from tests.support.cloud.recorded_fleets import content, grouped
from tests.support.simulation.faults import calm, crashing, everything, lossy
from tests.support.simulation.fleets import GRACE, Fleet
from tests.support.simulation.world import Chaos, RootHost

States = dict[str, Any]
Shown = dict[tuple[int, int, str, bool], States]


class Dry(Job):
    """The job as far as windows; its tables are lists."""

    def __init__(self, stored: list[pa.Table], last: bytes | None = None) -> None:
        """last: the state after the last decision, None for none."""
        place: Any = Kept(stored)
        spark: Any = None
        super().__init__(spark, place, JobSettings("", GRACE, RootLimits(revise_every_us=0)))
        self.kept, self.last, self.crash = stored, last, ""
        self.seen: Counter[str] = Counter()
        if last is not None:
            self.decider, self.state, self.parts = decision_checkpoint.loads(last, self.settings.limits, GRACE)
            self._rows.recent, self._rows.slices = RecentParts(0), SliceCache(self.state.plans)

    def batch(self, *files: bytes) -> None:
        """One micro-batch."""
        intake, told = self._intake(), tuple((str(number), body) for number, body in enumerate(files))
        for name, body in told:
            intake.read(body, name)
        self._batch(intake, BatchInput(told, flush=not files))

    def _may_wait(self, *_: object) -> bool:
        """Each batch is written, so that a crash takes none but its own files with it."""
        return False

    def _stored(self, content: pa.Table) -> Any:
        return content

    def _done(self, step: str, number: int) -> None:
        if self.crash == step:
            raise CrashError

    def _decide(self, *_: object) -> None:
        self.last = decision_checkpoint.dumps(self.decider, self.state, self.parts)

    def _show(self, *_: object) -> None:
        """There is no table."""

    def _perform(self, work: Work, *, again: bool = False) -> None:
        lookups = self._lookups()
        for spans in (work.closing, work.revising):
            if not spans:
                continue
            lookup = lookups.of_windows(work, spans)
            self._read_back(lookup)
            found, formed = self._rows.slices.windows(lookup)
            self.seen["formed"] += len(found)
            self.seen["revised"] += len(found) if spans is work.revising else 0
            self.seen["decoded"] += len(spans) - len(found)
            rest = tuple(span if i in found else replace(span, orders=()) for i, span in enumerate(spans))
            whole = windows_of(lookups.of_windows(work, rest))(self.batches())
            assert shown(formed, lookup) == shown(whole, lookup)

    def _read_back(self, lookup: Lookup) -> None:
        kept, lookups = self._rows.slices, self._lookups()
        missing = kept.missing(lookup)
        if missing:
            self.seen["read back"] += 1
            parts = reversed(list(self.batches()))  # a table has no order
            rows = slices_of(kept.wanted(missing, lookups.known(lookups.pages())))(parts)
            told = [zip(*(batch[name].to_pylist() for name in slice_cache.READ_BACK), strict=True) for batch in rows]
            kept.fill(missing, [row for batch in told for row in batch])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All that was stored."""
        return iter([batch for table in self.kept for batch in table.to_batches()])


class Kept:
    """In the place of the tables: what is stored stays."""

    def __init__(self, stored: list[pa.Table]) -> None:
        self.stored = stored

    def append(self, _table: Table, rows: pa.Table, _step: str, _number: int) -> None:
        self.stored.append(rows)


def shown(batches: Iterable[pa.RecordBatch], lookup: Lookup) -> Shown:
    """The states of each (span, start, key, late or not); what several plans have of it, combined."""
    rows: Shown = {}
    for batch in batches:
        for row in batch.to_pylist():
            place = (row["span"], row["start"], row["key"], row["late"])
            rows[place] = united(rows.get(place), {name: row[name] for name in lookup.columns})
    return rows


def united(one: States | None, other: States) -> States:
    """States of disjoint readings combined."""
    if one is None:
        return other
    added = {name: one[name] + other[name] for name in other if name in ("count", "sum_units", "sq_units")}
    extreme = {name: max(one[name], other[name]) for name in other if name == "max_units"}
    last = [f"last_{part}_units" for part in ("time", "node", "order", "value")]
    later = max(one, other, key=lambda states: [states.get(name) for name in last])
    return {**{name: later[name] for name in last if name in other}, **added, **extreme}


class SlidingFleet(Fleet):
    """A fleet whose windows are longer than four slides."""

    def _queries(self, random: Random) -> tuple[Query, ...]:
        long = (Sliding(6 * SECOND, SECOND), Sliding(9 * SECOND, 1_500_000, 500_000))
        windows: tuple[Window, ...] = (*long, Tumbling(2 * SECOND))
        first, *_ = super()._queries(random)
        fns = tuple(Aggregate(fn, fn) for fn in ("sum", "max", "var", "last"))
        return tuple(replace(first, id=f"q{i}", window=window, aggregates=fns) for i, window in enumerate(windows))


@pytest.mark.parametrize(
    ("seed", "chaos"), [(1, calm), (1, lossy), (2, lossy), (3, crashing), (1, everything), (3, everything)]
)
def test_windows_from_kept_slices_are_those_from_all_parts(
    seed: int, chaos: Callable[[Random], Chaos], monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 8.6, 2.2, 4.2, 6.1, 6.3, 8.2: frames that wait, late ones, changed queries, crashes and restarts."""
    monkeypatch.setattr(prefix_blocks, "PARTS", 3)  # so that a block is some slices
    fleet, random = SlidingFleet(seed, chaos(Random(seed)), changes=True), Random(seed)
    assert fleet.run() == []
    root = fleet.world.hosts["root"]
    assert isinstance(root, RootHost)
    files = [(at_us, tuple(objects)) for at_us, objects in root.files]
    job, seen = Dry([]), Counter[str]()
    for group in grouped(files, min(len(files) - 1, 100), random):
        bodies = [content(file, root.journal) for file in group]
        job.crash = random.choice(["", "", "", "store", "decision"])
        if job.crash:
            stored, last = job.kept, job.last
            with pytest.raises(CrashError):
                job.batch(*bodies)
            seen += job.seen
            job = Dry(stored, last if job.crash == "store" else job.last)
            bodies = bodies if job.last is last else []
        if bodies:
            job.batch(*bodies)
    job.batch()
    seen += job.seen
    assert seen["formed"] > 10
    assert seen["read back"] > 0


class Line:
    """One child with a window of 30 s by 1 s, whose job runs from second to second."""

    def __init__(self, *queries: Query, keys: int = 3) -> None:
        self.child = Child("gw", queries or (LONG,), tuple(f"site={key}" for key in range(keys)))
        self.job, self.second = Dry([]), 0
        self.job.batch(tick(at(0)), record(self.child, at(0), self.child.birth()))

    def go(self, seconds: int, *more: bytes) -> Counter[str]:
        """A batch of so many seconds; what was seen in it."""
        key, first = np.arange(len(self.child.keys)), self.second
        self.second += seconds
        now = at(self.second)
        records = list(more)
        for second in range(first, self.second):
            payload = self.child.rows(at(second + 1), np.full(len(key), at(second)), key + float(second), key)
            records.append(record(self.child, now, payload))
        self.job.seen.clear()
        self.job.batch(tick(now), *records)
        return Counter(self.job.seen)

    def late(self, second: float) -> bytes:
        """The record of a late reading."""
        rows = (np.array([at(second)]), np.array([900.0]), np.array([0]))
        return record(self.child, at(self.second), self.child.rows(at(self.second), *rows, length_us=1, late=True))

    def restart(self) -> None:
        """Another process."""
        self.job = Dry(self.job.kept, self.job.last)


LONG = query("long", Sliding(30 * SECOND, SECOND), ("avg", "max"))


def test_a_restart_reads_back_once_what_its_windows_need() -> None:
    """protocol 8.6"""
    line = Line()
    assert line.go(40)["formed"] == 1
    line.restart()
    assert line.go(2) == {"formed": 1, "read back": 1, "revised": 0, "decoded": 0}
    assert line.go(2) == {"formed": 1, "revised": 0, "decoded": 0}


def test_readings_that_come_late_revise_from_what_is_kept() -> None:
    """protocol 4.2, 6.1, 8.6: also where the block of their slice has its sum already."""
    line = Line()
    line.go(60)
    seen = line.go(1, line.late(55.5))
    assert (seen["revised"], seen["formed"], seen["decoded"]) == (1, 2, 0)
    seen = line.go(1, line.late(5.5))
    assert (seen["formed"], seen["decoded"], seen["read back"]) == (1, 1, 0), "windows long closed are decoded"


def test_windows_of_more_rows_than_the_driver_may_compute_are_decoded_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line()
    assert line.go(40)["formed"] == 1
    rows = len(line.child.keys)
    for most, formed in ((3 * rows, 1), (0, 0), (3 * rows, 1)):
        monkeypatch.setattr(slice_cache, "MOST_ROWS", most)
        assert line.go(2) == {"formed": formed, "revised": 0, "decoded": 1 - formed}


def test_a_frame_that_waits_for_another_counts_when_it_takes_effect() -> None:
    """protocol 2.2, 8.2, 8.6: also where the process that stored it is gone."""
    for restarts in (False, True):
        line = Line()
        line.go(40)
        now, key = at(41), np.zeros(1, np.int64)
        lost = record(line.child, now, line.child.rows(at(41), np.array([at(40)]), np.array([900.0]), key))
        assert line.go(2)["formed"] == 0, "the frames after the lost one wait"
        if restarts:
            line.restart()
        assert line.go(1, lost) == {"formed": 1, "revised": 0, "decoded": 0, **({"read back": 1} if restarts else {})}


def test_a_batch_too_large_for_the_driver_is_decoded_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 8.6, 7.3: what is read back has the same keys and nodes, in whatever order it comes."""
    asked = query("long", Sliding(30 * SECOND, SECOND), ("avg", "last"))
    line, other = Line(asked), Child("another", (asked,), ("site=9", "site=1"))

    def sent(until: int, *seconds: int) -> list[bytes]:
        starts, key = np.array([at(second) for second in seconds], np.int64), np.ones(len(seconds), np.int64)
        return [record(other, at(until), other.rows(at(until), starts, key * 1.0, key))]

    line.go(40, record(other, at(0), other.birth()), *sent(40, 30, 39))
    monkeypatch.setattr(slice_cache, "MOST_ASKED_BYTES", 1_000)
    assert line.go(30, *sent(70, 50, 69)) == {"formed": 0, "decoded": 1, "revised": 0}
    monkeypatch.setattr(slice_cache, "MOST_ASKED_BYTES", 1)
    assert line.go(1, *sent(71)) == {"formed": 0, "decoded": 1, "revised": 0}, "more such batches may follow"
    monkeypatch.undo()
    assert line.go(1, *sent(72)) == {"formed": 1, "decoded": 0, "revised": 0, "read back": 1}


@pytest.mark.parametrize("many", [(5, 1), (1, 5)])
def test_keys_and_nodes_of_ended_epochs_do_not_stay(monkeypatch: pytest.MonkeyPatch, many: tuple[int, int]) -> None:
    """A label that is new every day filled the memory of a root. protocol 8.6: windows are the same."""
    keys, nodes = many
    line = Line()
    line.go(40)
    slices, seen, most = line.job._rows.slices, Counter[str](), 0
    monkeypatch.setattr(slice_cache, "MOST_KEYS", 20)
    slices._most_keys = 20
    for epoch in range(30):
        old = EpochKey("gone", epoch)
        named = [f"order={epoch}-{n}" for n in range(keys)], [f"gone-{epoch}-{n}" for n in range(nodes)]
        texts = EpochView(*named, {}, ())
        slices.numbers.maps(old, texts)
        seen += line.go(1)
        line.job._rows.forget_epochs([old])
        most = max(most, slices.numbers.many)
    assert most <= 26
    assert seen["formed"] == 30
    assert 3 <= seen["read back"] <= 15


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_PIECE_BYTES"])
def test_slices_that_are_too_many_are_not_kept_nor_read_back_again_and_again(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """protocol 8.6"""
    line = Line()
    line.go(40)
    line.restart()
    monkeypatch.setattr(slice_cache, limit, 1_000)
    assert line.go(1) == {"formed": 0, "decoded": 1, "revised": 0, "read back": 1}
    assert sum((line.go(1) for _ in range(30)), Counter[str]()) == {"decoded": 30}
    monkeypatch.undo()
    seen = sum((line.go(1) for _ in range(30)), Counter[str]())
    assert seen["read back"] == 1
    assert seen["formed"] >= 5


def test_functions_whose_states_grow_are_decoded_and_do_not_hinder_the_others() -> None:
    """protocol 8.6"""
    line = Line(LONG, query("whole", Sliding(30 * SECOND, SECOND), ("median",)), query("short"))
    line.go(40)
    assert line.go(1) == {"formed": 2, "decoded": 1, "revised": 0}


def test_what_comes_late_for_windows_by_themselves_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 4.2, 6.2: `late: per_window` sends whole windows, each of which counts in no other."""
    asked = tuple(
        replace(LONG, id=name, window=Sliding(length_us, SECOND), late="per_window")
        for name, length_us in (("long", 30 * SECOND), ("six", 6 * SECOND))
    )
    monkeypatch.setattr(prefix_blocks, "PARTS", 1)  # so that a block has rows of several windows
    line, other = Line(*asked), Child("other", asked, ("site=0",))
    _, other.plan = (placement.plan for placement in planned(asked, None))
    assert other.plan.kind == "window"
    line.go(20, record(other, at(1), other.birth()))
    whole = other.rows(at(20), np.array([at(10)]), np.array([900.0]), length_us=30 * SECOND, late=True)
    short = other.rows(
        at(20), starts(18, 19), np.array([70.0, 80.0]), np.array([0, 0]), length_us=6 * SECOND, late=True
    )
    line.go(10, record(other, at(20), whole), record(other, at(20), short))
    for second, more in ((39, 9), (39.999999, 1), (40, 10), (60, 10)):  # at 40 s a window of each length ends
        seen = line.go(more, record(other, at(second), other.rows(at(second))))
        assert (seen["formed"], seen["decoded"]) == (2, 0)


def test_without_a_long_window_nothing_is_kept() -> None:
    """protocol 8.6"""
    line = Line(query("short"), query("four", Sliding(4 * SECOND, SECOND)))
    line.go(10)
    assert line.go(1) == {"decoded": 2, "formed": 0, "revised": 0}
    assert kept_plans(line.job.state, line.job.decider.decide(at(20)).groups) == {}


def test_a_window_that_begins_before_the_slices_that_are_kept_is_decoded() -> None:
    """protocol 8.6"""
    line = Line(LONG, query("minute", Tumbling(60 * SECOND), ("avg", "max")))
    line.go(59)
    assert line.go(2) == {"formed": 1, "decoded": 1, "revised": 0}


def test_slices_that_no_window_needs_any_more_do_not_stay() -> None:
    line = Line()
    line.go(60)
    slices, sizes = line.job._rows.slices, list[int]()
    for _ in range(4):
        line.go(60)
        sizes.append(sum(held.bytes for held in slices._held.values()))
    assert 0 < max(sizes) <= 1.1 * sizes[0]


def test_rows_that_are_read_back_take_the_place_of_those_that_are_kept() -> None:
    """protocol 8.6: a query that is behind the others needs slices from before those that are kept."""
    line = Line()
    line.go(40)
    for held in line.job._rows.slices._held.values():
        held.from_us = at(20)
    assert line.go(1) == {"formed": 1, "decoded": 0, "revised": 0, "read back": 1}
    assert line.go(1) == {"formed": 1, "decoded": 0, "revised": 0}


def test_a_slice_at_the_very_first_time_that_is_kept_is_read_back() -> None:
    """protocol 8.6: a late reading revises a window that begins there."""
    line = Line(query("eight", Sliding(8 * SECOND, SECOND), ("avg", "max")))
    line.go(40)
    line.restart()
    late = line.late(38.999999)
    assert line.go(1, late) == {"formed": 2, "decoded": 0, "revised": 1, "read back": 1}
    (held,) = line.job._rows.slices._held.values()
    assert held.from_us == at(41 - 8 - 2)


@pytest.mark.parametrize(("bound", "most"), [("MOST_ROW_BYTES", 5_000), ("MOST_ROWS", 2)])
def test_cached_rows_of_all_spans_together_are_bounded(monkeypatch: pytest.MonkeyPatch, bound: str, most: int) -> None:
    """Each span had a bound of bytes of its own: ten queries of sketches took ten times 128 MB on the driver."""
    cache, lookup = SliceCache(), mock.Mock(spans=(mock.Mock(low_us=0),) * 10)
    monkeypatch.setattr(slice_cache, bound, most)
    monkeypatch.setattr(cache, "_held", {b"plan": mock.Mock(from_us=0)})
    monkeypatch.setattr(cache, "_plans", lambda _span, _lookup: {b"plan": None})
    batch = pa.RecordBatch.from_pydict({"cell": [b"x" * 2_000]})
    monkeypatch.setattr(cache, "_formed", lambda *_: iter([batch]))
    formed, made = cache.windows(lookup)
    assert len(formed) == len(made) == 2
