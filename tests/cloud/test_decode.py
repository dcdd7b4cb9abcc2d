"""Rows of frames become windows in the task that decodes them: no Spark needed to say which."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_job.ingest.decode import READ, EpochView, Lookup, counted, few
from cloud_job.spark import decision_checkpoint
from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.frame import Frame
from edge_agent.algebra.partials.multisets import Multiset
from edge_agent.algebra.partials.partial import NOTHING, Partials, assign_windows, combine, concat, in_windows
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Sliding, Tumbling
from edge_agent.machines.downlink.epochs.counting import Counting, Repeats
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.root import work_rows
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.work import ReadRequest, WindowRange, identity
from edge_agent.root.work_rows import windows_in
from edge_agent.wire import frames, heads
from tests.support.laws.sliced_partials import RANKS, assert_same, largest, sliced, slid
from tests.support.machines.scripted_child import Sender

ASKED = tuple(Aggregate(fn, fn) for fn in ("avg", "max", "stddev", "median"))


def span(window: Sliding, low: int, high: int) -> WindowRange:
    """Windows that start from low to high."""
    bounds = {"after_us": low + window.length_us - 1, "upto_us": high + window.length_us}
    fixed = {"length_us": window.length_us, "slide_us": window.slide_us, "offset_us": window.offset_us}
    about = {"coverage_id": "", "expected": 1, "received": 1, "complete": True}
    return WindowRange("q", 1, 0, **bounds, **fixed, low_us=low, high_us=high, orders=(0,), **about)  # type: ignore[arg-type]


@given(
    data=st.data(), window=slid(), scale=st.sampled_from([None, -1]), low=st.integers(0, 40), many=st.integers(0, 30)
)
def test_a_task_forms_the_windows_of_a_span_from_slices_and_takes_whole_ones_as_they_are(
    data: st.DataObject, window: Sliding, scale: int | None, low: int, many: int
) -> None:
    """protocol 6.2: a slice counts in every window that contains it, a window in the one equal to it."""
    basis = basis_of(ASKED, scale)
    rows = data.draw(sliced((window,), scale, basis))
    low = window.offset_us + low // window.slide_us * window.slide_us
    wanted = span(window, low, low + many * window.slide_us)
    every = assign_windows(rows, window, basis, RANKS)
    some = every.take((every.start >= wanted.low_us) & (every.start <= wanted.high_us))
    assert_same(windows_in(rows, wanted, basis, RANKS, exact=False), some, largest(rows))
    whole = combine(in_windows(rows, [window]), basis, None, RANKS)
    longer = in_windows(rows, [Sliding(window.length_us + 1, window.slide_us, window.offset_us)])
    assert_same(windows_in(concat([longer, whole]), wanted, basis, RANKS, exact=True), some, largest(rows))


@given(
    data=st.data(),
    window=slid(),
    scale=st.sampled_from([None, -1]),
    exact=st.booleans(),
)
def test_windows_in_pieces_are_the_windows(
    data: st.DataObject, window: Sliding, scale: int | None, exact: bool
) -> None:
    low, many, most = (data.draw(st.integers(*ends)) for ends in ((0, 40), (0, 30), (1, 40)))
    basis = basis_of(ASKED, scale)
    rows = data.draw(sliced((window,), scale, basis))
    low = window.offset_us + low // window.slide_us * window.slide_us
    wanted = span(window, low, low + many * window.slide_us)
    with mock.patch.object(work_rows, "MOST_FORMED", most):
        pieces = [*work_rows.windows_in_pieces(rows, wanted, basis, RANKS, exact=exact)]
    made = concat([piece for piece in pieces if len(piece)]) if any(map(len, pieces)) else NOTHING
    assert len({*zip(made.start.tolist(), made.key.tolist(), strict=True)}) == len(made), "a window is in one piece"
    whole = windows_in(rows, wanted, basis, RANKS, exact=exact)
    assert_same(made.take(np.lexsort((made.key, made.start))), whole, largest(rows))
    if not exact:
        assert max(map(len, pieces), default=0) <= 2 * most


def test_one_frame_of_a_day_that_slides_by_a_second_is_not_formed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred keys in 28 bytes gave 8.6 million rows in the memory of the driver, which ended there at each start."""
    monkeypatch.setattr(work_rows, "MOST_FORMED", 20_000)
    window = Sliding(86_400_000_000, 1_000_000)
    keys, start = np.arange(10), np.full(10, 100_000 * 1_000_000)
    rows = Partials(start, start + 1_000_000, keys, {"count": np.ones(10, np.int64)})
    wanted = span(window, 0, 200_000 * 1_000_000)
    pieces = [*map(len, work_rows.windows_in_pieces(rows, wanted, ("count",), None, exact=False))]
    assert sum(pieces) == 10 * 86_400
    assert max(pieces) <= 2 * 20_000


def test_the_windows_of_one_key_are_formed_some_at_a_time_and_none_between_readings_far_apart() -> None:
    window, far = Sliding(6, 2), 10**15
    start = np.array([10, 12, 20, far, far + 2])
    rows = Partials(start, start + 2, np.zeros(5, np.int64), {"count": np.ones(5, np.int64)})
    wanted = span(window, 0, 2 * far)
    whole = [6, 8, 10, 12, 16, 18, 20, far - 4, far - 2, far, far + 2]
    assert windows_in(rows, wanted, ("count",), None, exact=False).start.tolist() == whole
    for most in range(1, 11):
        with mock.patch.object(work_rows, "MOST_FORMED", most):
            pieces = [
                piece.start.tolist()
                for piece in work_rows.windows_in_pieces(rows, wanted, ("count",), None, exact=False)
            ]
        assert [start for piece in pieces for start in piece] == whole
        assert max(map(len, pieces)) <= 2 * most
        assert len(pieces) <= len(whole)


def test_windows_with_many_values_in_their_cells_are_formed_fewer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of 128 kB may have 40 000 values in one cell, and the cell be in 3 600 windows."""
    monkeypatch.setattr(work_rows, "MOST_FORMED", 10_000)
    window, n = Sliding(600, 1), 1_000
    cell = Multiset(np.arange(n, dtype=np.float64), np.ones(n, np.int64))
    bags = np.empty(2, object)
    bags[:] = cell, cell
    rows = Partials(np.array([1_000, 1_001]), np.array([1_001, 1_002]), np.zeros(2, np.int64), {"bag": bags})
    basis = ("bag",)
    wanted = span(window, 0, 2_000)
    pieces = [*work_rows.windows_in_pieces(rows, wanted, basis, None, exact=False)]
    assert sum(map(len, pieces)) == 601
    assert max(map(len, pieces)) <= 20


def test_values_that_all_rows_have_do_not_make_pieces_of_single_windows() -> None:
    """A median over an hour that slides by a second, of values in steps, took fifty times as long."""
    window, n = Sliding(3_600, 1), 3_700
    bags = np.empty(n, object)
    bags[:] = [Multiset(np.arange(50, dtype=np.float64), np.ones(50, np.int64))] * n
    start = np.arange(4_000, 4_000 + n)
    rows = Partials(start, start + 1, np.zeros(n, np.int64), {"bag": bags})
    pieces = [*work_rows.windows_in_pieces(rows, span(window, 4_000, 4_100), ("bag",), None, exact=False)]
    assert sum(map(len, pieces)) == 101
    assert len(pieces) <= 2


def test_rows_that_are_few_and_large_are_too_many() -> None:
    batch = pa.RecordBatch.from_pydict({"cell": [b"x" * 1_000]})
    assert few(iter([batch] * 4), 100, 5_000) == [batch] * 4
    assert few(iter([batch] * 5), 100, 5_000) is None


def test_a_few_batches_are_a_list_and_more_are_not_computed() -> None:
    batch, asked = pa.RecordBatch.from_pydict({"n": [1, 2, 3]}), list[int]()

    def made() -> Iterator[pa.RecordBatch]:
        for number in range(9):
            asked.append(number)
            yield batch

    assert few(made(), 26) is None
    assert few(made(), 27) == [batch] * 9
    asked.clear()
    assert few(made(), 3) is None
    assert asked == [0, 1]


def test_rows_that_are_repeats_are_not_read() -> None:
    """protocol 1.2: of the frames below a seq, those that begin before the cut."""
    sender, dictionary = Sender("a", Query("q", 1, "s", Tumbling(5), (Aggregate("sum", "sum"),))), EpochDictionary()
    stored = []
    for frame in (sender.birth(), sender.send((0, 5, "", 1.0), (5, 10, "", 2.0)), sender.send((0, 5, "", 4.0))):
        bare, parts = heads.head(frames.envelope(frames.encode(frame)), {})
        assert isinstance(bare, Frame)
        if bare.define is not None:
            dictionary.learn(bare.define)
        stored += [(0, "run", "a", frame.epoch, frame.seq, part.plan, part.late, part.body) for part in parts]
    ((number, (group, plan)),) = dictionary.plans.items()
    names, epoch = {number: identity(group, plan)}, EpochKey("a", sender.outbox.epoch)
    order = ReadRequest(0, names[number], plan.kind, plan.basis, None, None)
    columns = [pa.array(column) for column in zip(*stored, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, names=list(READ))

    def read(repeats: dict[int, Repeats]) -> list[list[int]]:
        view = EpochView(dictionary.keys, dictionary.nodes, names, [(0, 9)], repeats)
        lookup = Lookup({epoch: view}, [(0, "run")], {names[number]: (order,)}, {}, {})
        return [part.rows.start.tolist() for part in counted(lookup, iter([batch]))]

    assert read({}) == [[0, 5], [0]]
    assert read({number: Repeats(Counting(5), 9)}) == [[5]]
    assert read({number: Repeats(Counting(upto_us=5), 9)}) == [[0], [0]]
    assert read({number: Repeats(Counting(5), 2)}) == [[5], [0]], "what comes later cannot be a repeat"


def test_the_checkpoint_of_a_decision_keeps_what_is_a_repeat() -> None:
    state = RootState(RootLimits())
    state.repeats[EpochKey("a", 7)] = {3: Repeats(Counting(5, 9), 4)}
    read = decision_checkpoint.loads(decision_checkpoint.dumps(Decider(1, 1), state, {}), RootLimits(), 1)[1]
    assert read.repeats == state.repeats
