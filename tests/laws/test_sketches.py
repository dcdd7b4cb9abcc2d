"""Sketches: what they promise, also deep in a tree; and that they are the sketches that other tools read."""

from __future__ import annotations

from random import Random
from types import ModuleType

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.algebra import sketches
from edge_agent.algebra.aggregates import Readings, combine, lift, lower
from edge_agent.algebra.aggregates.families import approximate
from edge_agent.algebra.frame import MAX_FRAME_BYTES
from edge_agent.algebra.partials import multisets
from edge_agent.algebra.partials.arrays import NO_INTS, Array
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.planner import plan
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.sketches import hll, kll, theta
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.region import overfull
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder
from edge_agent.machines.uplink.step import GroupStep, Step, StepRows
from edge_agent.wire import frames
from tests.support.effort import examples

EXACT: list[ModuleType] = [hll, theta]
EVERY: list[ModuleType] = [hll, theta, kll]
NAMES = [made.__name__.rpartition(".")[2] for made in EVERY]


def one(k: int) -> Segments:
    return Segments.runs(np.zeros(1, np.int64), k)


def heavy(height: int, value: float) -> bytes:
    """A KLL sketch of one value that represents 2**height readings."""
    return kll._cell(2**height, value, value, [np.empty(0)] * height + [np.array([value])])


@pytest.mark.parametrize("number", [2, 31, 32])
def test_merged_quantile_sketches_of_many_gateways_decode_or_are_taken_out(number: int) -> None:
    """protocol 7.1: each is within the bound of one gateway; a format of 2^45 readings holds those of 32."""
    basis = ("count", "kll")
    cells = np.empty(number + 1, object)
    cells[:] = [heavy(40, float(n)) for n in range(number + 1)]
    for k in (number, number + 1):
        merged = kll.combine(cells[:k], Segments.runs(np.zeros(1, np.int64), k))
        states: dict[str, Array] = {"count": np.array([k << 40]), "kll": merged}
        rows = Partials(np.zeros(1, np.int64), np.ones(1, np.int64), np.zeros(1, np.int64), states)
        kept, taken = overfull.split(rows, basis, lambda: 1_000)
        assert (taken is None) == (k <= 32)
        for cell in kept.states["kll"].tolist():
            kll.check(cell)


def sketch(made: ModuleType, values: Array) -> Array:
    """Of all values, k >= 1, one cell."""
    column: Array = made.lift(values, one(len(values)))
    return column


def merged(made: ModuleType, cells: list[Array], random: Random) -> Array:
    """Merged in any order and grouping."""
    cells = random.sample(cells, len(cells))
    while len(cells) > 1:
        taken = [cells.pop() for _ in range(random.randint(2, len(cells)))]
        cells.insert(random.randint(0, len(cells)), made.combine(np.concatenate(taken), one(len(taken))))
    return cells[0]


# stretches of whole numbers: few enough for lists, around where they become tables, and far beyond
stretches = st.lists(
    st.tuples(st.integers(0, 9_000), st.sampled_from([1, 2, 7, 8, 150, 384, 385, 4_096, 4_097, 9_000])),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("made", EXACT, ids=NAMES[:2])
@examples(60)
@example(parts=[(0, 384), (100, 1)], random=Random(1))
@example(parts=[(0, 384), (384, 1)], random=Random(1))
@example(parts=[(0, 4_096), (4_096, 1)], random=Random(1))
@given(parts=stretches, random=st.randoms(use_true_random=False))
def test_sketches_of_distinct_values_are_the_same_bytes_whatever_the_order_grouping_and_repetition(
    made: ModuleType, parts: list[tuple[int, int]], random: Random
) -> None:
    values = [np.arange(first, first + k) * 0.5 for first, k in parts]
    (cell,) = merged(made, [sketch(made, part) for part in [*values, values[0]]], random).tolist()
    (whole,) = sketch(made, np.concatenate(values)).tolist()
    assert cell == whole
    sketches.check([cell])


@pytest.mark.parametrize("made", EVERY, ids=NAMES)
@examples(30)
@given(sizes=st.lists(st.sampled_from([1, 3, 199, 201, 5_000]), min_size=1, max_size=6), spread=st.booleans())
def test_lifting_many_groups_at_once_gives_the_sketch_of_each(made: ModuleType, sizes: list[int], spread: bool) -> None:
    owner = np.repeat(np.arange(len(sizes)), sizes)
    values = np.random.default_rng(5).normal(size=len(owner))
    if spread:
        owner = np.random.default_rng(6).permutation(owner)
    got = made.lift(values, Segments.coded(owner, len(sizes)))
    assert got.tolist() == [sketch(made, values[owner == group])[0] for group in range(len(sizes))]


@pytest.mark.parametrize("made", EVERY, ids=NAMES)
def test_combining_many_groups_at_once_gives_what_each_gives_alone(made: ModuleType) -> None:
    random = np.random.default_rng(7)
    sizes = [1, 1, 3, 100, 150, 150, 500, 3_000, 5_000, 2, 1]
    cells = np.concatenate([sketch(made, random.normal(size=k)) for k in sizes])
    owner = np.array([0, 1, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    got = made.combine(cells, Segments.coded(owner, 5))
    want = [made.combine(cells[owner == group], one(int((owner == group).sum())))[0] for group in range(5)]
    assert got.tolist() == want
    sketches.check(got.tolist())


def test_distinct_counts_are_exact_for_few_values_and_within_their_error_for_many() -> None:
    for made, most in ((hll, hll.MOST_COUPONS), (theta, theta.MOST)):
        assert made.estimates(sketch(made, np.arange(most) * 1.5)).tolist() == [most]
    for k in (385, 1_000, 5_000, 20_000, 200_000):
        for made in EXACT:
            off = [
                float(made.estimates(sketch(made, np.random.default_rng(seed).normal(size=k)))[0]) / k - 1
                for seed in range(16)
            ]
            assert abs(np.mean(off)) < 3 * 0.01625 / 4, (made, k)
            assert np.sqrt(np.mean(np.square(off))) < 2 * 0.01625, (made, k)


def test_zeros_that_are_as_many_as_can_be_counted_do_not_break_the_estimate() -> None:
    registers = np.full(hll.PLACES, 63, np.uint8)
    assert hll.estimates(np.array([bytes(7) + b"\x0a" + bytes(32) + registers.tobytes()], object))[0] > 1e20


def rank_error(cell: Array, ordered: Array) -> float:
    """The greatest distance of a rank asked for from the ranks that the answer has."""
    worst = 0.0
    for q in np.linspace(0.0, 1.0, 41):
        (value,) = kll.quantiles(cell, float(q))
        low, high = (np.searchsorted(ordered, value, side) / len(ordered) for side in ("left", "right"))
        worst = max(worst, low - q, q - high)
    return worst


@pytest.mark.parametrize("shape", ["normal", "equal parts", "few values", "ascending"])
def test_quantiles_are_within_the_stated_rank_error_at_the_top_of_a_deep_tree(shape: str) -> None:
    for seed in range(5):
        normal = np.random.default_rng(seed).normal(size=60_000)
        values: Array = {
            "normal": normal,
            "equal parts": np.tile(normal[:1_000], 60),
            "few values": np.round(normal, 1),
            "ascending": np.sort(normal),
        }[shape]
        cell = merged(kll, [sketch(kll, part) for part in np.array_split(values, 60)], Random(seed))
        assert kll.readings(cell).tolist() == [60_000]
        assert rank_error(cell, np.sort(values)) < kll.ERROR
        assert len(cell[0]) < 5_000
        assert kll.quantiles(cell, 0.0) == values.min()
        assert kll.quantiles(cell, 1.0) == values.max()


def test_a_quantile_sketch_is_the_same_in_any_order_of_what_is_merged_at_once_and_exact_while_it_is_small() -> None:
    random = np.random.default_rng(3)
    cells = [sketch(kll, random.normal(size=k)) for k in (1, 40, 700, 9_000)]
    whole = kll.combine(np.concatenate(cells), one(4))
    assert kll.combine(np.concatenate(cells[::-1]), one(4)).tolist() == whole.tolist()
    values = random.normal(size=kll.K)
    cell = merged(kll, [sketch(kll, part) for part in np.array_split(values, 9)], Random(1))
    assert cell.tolist() == sketch(kll, values).tolist()
    want = np.quantile(values, [0.1, 0.5, 0.995], method="inverted_cdf")
    assert [kll.quantiles(cell, q)[0] for q in (0.1, 0.5, 0.995)] == want.tolist()


def test_a_quantile_sketch_of_counted_values_is_one_of_all_their_readings() -> None:
    """What a row is cut into when its bag is larger than a frame."""
    random = np.random.default_rng(9)
    values, counts = np.sort(random.normal(size=3_000)), random.integers(1, 60, 3_000)
    cell = kll.of_bags(values, counts, np.zeros(1, np.int64))
    sketches.check(cell.tolist())
    assert kll.readings(cell).tolist() == [counts.sum()]
    assert rank_error(cell, np.repeat(values, counts)) < kll.ERROR
    few = kll.of_bags(values[:3], np.array([1, 2**40, 5]), np.zeros(1, np.int64))
    sketches.check(few.tolist())
    assert kll.quantiles(few, 0.5).tolist() == [values[1]]
    both = kll.of_bags(values[[0, 1, 0]], np.array([2, 3, 1]), np.array([0, 2]))
    assert both.tolist() == kll.lift(values[[0, 0, 1, 1, 1, 0]], Segments.runs(np.array([0, 5]), 6)).tolist()


@examples(40)
@given(
    sizes=st.lists(st.integers(1, 3_000), min_size=1, max_size=6),
    skew=st.sampled_from([1.1, 1.5, 3.0]),
    random=st.randoms(use_true_random=False),
)
def test_frequent_values_are_never_counted_too_high_and_too_low_by_a_256th_of_the_readings_at_most(
    sizes: list[int], skew: float, random: Random
) -> None:
    draw = np.random.default_rng(sum(sizes))
    parts = [draw.zipf(skew, k) % 100_000 * 1.0 for k in sizes]
    rows = [approximate._thinned(multisets.lift(part, one(len(part)))) for part in parts]
    random.shuffle(rows)
    while len(rows) > 1:
        both = {"frequent": np.concatenate([rows.pop(), rows.pop()]), "count": np.ones(2, np.int64)}
        rows.insert(0, combine(both, one(2), ("count", "frequent"))["frequent"])
    (bag,) = rows[0].tolist()
    assert len(bag.values) <= approximate.MOST_FREQUENT
    values, counts = np.unique(np.concatenate(parts), return_counts=True)
    true = counts[np.searchsorted(values, bag.values)]
    least = sum(sizes) // 256
    assert bool((bag.counts <= true).all())
    assert bool((true - bag.counts <= least).all())
    assert bool((counts[~np.isin(values, bag.values)] <= least).all())


def test_the_most_frequent_values_are_listed_with_their_counts() -> None:
    values = np.array([3.5, 1.0, 3.5, 2.0, 2.0, 7.0])
    states = {"frequent": approximate._thinned(multisets.lift(values, one(6)))}
    answer = lower(Aggregate("top_k", "t", (("k", 5),)), states, None)
    assert (answer.value.tolist(), answer.details) == ([2.0], ["[[2.0, 2], [3.5, 2], [1.0, 1], [7.0, 1]]"])
    units = {"frequent": multisets.lift(np.array([35, 10, 35]), one(3))}
    assert lower(Aggregate("top_k", "t", (("k", 1),)), units, -1).details == ["[[3.5, 2]]"]


@pytest.mark.parametrize("made", EVERY, ids=NAMES)
@pytest.mark.parametrize("k", [1, 2, 7, 8, 24, 25, 200, 201, 384, 385, 5_000])
def test_what_is_made_is_let_in_and_nothing_that_differs_in_a_byte_does_harm(made: ModuleType, k: int) -> None:
    values = np.random.default_rng(k).normal(size=k)
    (cell,) = sketch(made, values).tolist()
    sketches.check([cell])
    random = np.random.default_rng(k + 1)
    places = {*range(min(len(cell), 48)), *random.integers(0, len(cell), 60).tolist()}
    for place in sorted(places):
        for flip in (1, 0x10, 0x80, 0xFF):
            harmless(cell[:place] + bytes([cell[place] ^ flip]) + cell[place + 1 :])
    for cut in (0, 1, 7, 8, 15, 16, 20, 39, 40, len(cell) - 8, len(cell) - 1):
        harmless(cell[: max(cut, 0)])
        harmless(cell + cell[: max(cut, 0)])


@given(
    start=st.sampled_from([b"", b"\x02\x01\x07\x0c", b"\x0a\x01\x07\x0c\0\x18", b"\x03\x03\x03\0\0\x1a\xcc\x93"])
    | st.sampled_from([b"\x05\x01\x0f\x02\xc8\0\x08\0", b"\x02\x02\x0f\x06\xc8\0\x08\0"]),
    rest=st.binary(max_size=200),
)
def test_random_bytes_do_no_harm(start: bytes, rest: bytes) -> None:
    harmless(start + rest)


def harmless(cell: bytes) -> None:
    """Refused with a reason, or a sketch like any other: it merges with itself and answers."""
    try:
        sketches.check([cell])
    except ValueError:
        return
    column = np.array([cell, cell], object)
    made = {"H": hll, "T": theta, "K": kll}[sketches.kind_of(column)]
    both = made.combine(column, one(2))
    sketches.check(both.tolist())
    if made is kll:
        assert np.isfinite(kll.quantiles(both, 0.5)).all()
    else:
        assert both[0] == cell
        assert made.estimates(both)[0] >= 1


@pytest.mark.parametrize("frame_bytes", [MAX_FRAME_BYTES, 13_000])
def test_rows_of_large_sketches_are_spread_over_frames_and_one_alone_is_never_too_large(
    frame_bytes: int,
) -> None:
    """protocol 2.1: at most 128 kB by construction, whatever a row holds."""
    query = Query("q", 1, "s", Tumbling(10**6), tuple(Aggregate(fn, fn) for fn in ("theta_distinct", "approx_median")))
    made = plan((query,), None)[0].plan
    values = np.random.default_rng(1).normal(size=7 * 9_000)
    groups = Segments.runs(np.arange(0, len(values), 9_000), len(values))
    states = lift(Readings(np.arange(len(values)), values, NO_INTS), groups, made.basis, None)
    start = np.arange(7) * 10**6
    rows = Partials(start, start + 10**6, np.zeros(7, np.int64), states)
    step = Step(groups=(GroupStep(query.group, 7 * 10**6, (StepRows(made, False, rows, [""], [""]),)),))
    sent = EpochEncoder(frame_bytes=frame_bytes).encode_step(7, 0, step)
    assert max(len(frames.encode(frame)) for frame in sent) <= MAX_FRAME_BYTES
    held = [len(s.partials) for frame in sent for part in frame.groups for s in part.sections]
    assert held == ([2, 2, 2, 1] if frame_bytes == MAX_FRAME_BYTES else [1] * 7)


# --- the library that other tools read them with ---------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 7, 8, 24, 25, 300, 384, 385, 4_096, 4_097, 30_000])
def test_the_library_makes_the_same_sketches_of_the_same_values(k: int) -> None:
    library = pytest.importorskip("datasketches")
    values = np.concatenate([np.random.default_rng(k).normal(size=k - 1), [-0.0]])
    other = library.hll_sketch(hll.LG_K, library.tgt_hll_type.HLL_8)
    union = library.theta_union(12)
    updated = library.update_theta_sketch(12)
    for value in values.tolist():
        other.update(value)
        updated.update(value)
    union.update(updated)
    (cell,) = sketch(hll, values).tolist()
    theirs = other.serialize_compact()
    if k > hll.MOST_COUPONS:
        assert cell[16:] == theirs[16:]  # before it: flags, and an estimate from the order of filling
    else:
        start = 8 if k <= hll.MOST_LISTED else 12
        assert cell[:start] == theirs[:start]
        assert sorted(np.frombuffer(cell, "<u4", offset=start)) == sorted(np.frombuffer(theirs, "<u4", offset=start))
    assert library.hll_sketch.deserialize(cell).get_estimate() == pytest.approx(k, rel=0.05)
    assert sketch(theta, values)[0] == union.get_result().serialize()
    compressed = np.array([union.get_result().serialize(compress=True)], object)  # as Spark writes them
    assert theta.texts(compressed) == theta.texts(sketch(theta, values))
    assert theta.estimates(compressed) == theta.estimates(sketch(theta, values))


@pytest.mark.parametrize("k", [1, 2, 200, 201, 5_000, 200_000])
def test_the_library_reads_quantile_sketches_and_merges_them(k: int) -> None:
    library = pytest.importorskip("datasketches")
    values = np.random.default_rng(k).normal(size=k)
    column = sketch(kll, values)
    read = library.kll_doubles_sketch.deserialize(column[0])
    assert read.n == k
    for q in (0.1, 0.5, 0.99):
        assert kll.quantiles(column, q)[0] == read.get_quantile(q, True)
    assert (read.get_min_value(), read.get_max_value()) == (values.min(), values.max())
    assert read.normalized_rank_error(False) == pytest.approx(kll.ERROR, rel=0.01)
    read.merge(library.kll_doubles_sketch.deserialize(column[0]))
    assert read.n == 2 * k
