"""Hypothesis strategies for every frame, heartbeat and receipt that a node may send."""

from __future__ import annotations

import string
from typing import Any

import numpy as np
from hypothesis import strategies as st

from edge_agent.algebra.frame import (
    HORIZON_US,
    KINDS,
    LOST,
    MAX_HORIZON_US,
    NEVER_US,
    Birth,
    Define,
    ExcludedLeaf,
    Flush,
    Frame,
    Gap,
    GroupPart,
    Heartbeat,
    Leaf,
    Members,
    Plan,
    Receipt,
    Section,
    Serving,
)
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.multisets import Multiset
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.series import Series
from edge_agent.algebra.query.group_cut import INTERPRETATIONS, OrderedCut, PunctuationCut, SessionCut, TimeCut
from edge_agent.algebra.query.query import COARSEST, FINEST, LATE_POLICIES, Group
from edge_agent.algebra.sketches import hll, kll, theta
from edge_agent.wire.fields import MAX_SEQ
from edge_agent.wire.sections import TICKS_US

NOW_US = 1_790_000_000_000_000
times = st.one_of(
    st.integers(NOW_US - 10**12, NOW_US + 10**12),
    st.integers(0, 4_000_000).map(lambda s: NOW_US + s * 1_000),
    st.integers(-(2**60), 2**60),
)
frontiers = st.one_of(times, st.just(NEVER_US))
node_ids = st.text(string.ascii_lowercase + string.digits + "-", min_size=1, max_size=32)
texts = st.text(max_size=20)
epochs = st.integers(0, 2**32 - 1)
ids = st.integers(0, 2**64 - 1)
indexes = st.integers(0, 2**16 - 1)
seqs = st.one_of(st.integers(0, 70_000), st.integers(0, 2**62))
revisions = st.integers(0, 2**40)


def arrays(elements: st.SearchStrategy[Any], n: int, dtype: Any) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """A column of n elements."""
    return st.lists(elements, min_size=n, max_size=n).map(lambda items: np.array(items, dtype))


int_ranges = st.sampled_from(
    [(0, 255), (0, 40_000), (-100, 100), (0, 2**32 - 1), (-(2**31), 2**31), (-(2**63), 2**63 - 1)]
)
floats = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def columns(draw: st.DrawFn, n: int) -> Array:
    """Any column that travels: equal values, small and large integers, near a large base, wide ones, floats."""
    kind = draw(st.sampled_from(["equal", "ints", "based", "wide", "floats", "halves", "singles", "zeros"]))
    if kind == "equal":
        return np.array([draw(st.one_of(st.integers(-(2**63), 2**63 - 1), floats))] * n)
    if kind == "ints":
        return draw(arrays(st.integers(*draw(int_ranges)), n, np.int64))
    if kind == "based":
        base = draw(st.integers(-(2**62), 2**62))
        most = draw(st.sampled_from([3, 300, 70_000]))
        return draw(arrays(st.integers(base, base + most), n, np.int64))
    if kind == "wide":
        values = draw(arrays(st.integers(-(2**127), 2**127 - 1), n, object))
        fits = all(-(2**63) <= v < 2**63 for v in values)
        return values.astype(np.int64) if fits else values
    if kind == "zeros":
        return draw(arrays(st.sampled_from([0.0, -0.0]), n, np.float64))
    elements = {
        "halves": st.floats(allow_nan=False, allow_infinity=False, width=16),
        "singles": st.floats(allow_nan=False, allow_infinity=False, width=32),
    }.get(kind, floats)
    return draw(arrays(elements, n, np.float64))


@st.composite
def bags(draw: st.DrawFn, n: int) -> Array:
    """A column of bags: of small, large and far apart integers, of decimals, of any floats; often one value a row."""
    of = {
        "small": st.integers(-20, 20),
        "far": st.integers(-(2**53), 2**53),
        "decimals": st.integers(-500, 500).map(lambda units: units / 10),
        "floats": floats.map(lambda value: value + 0.0),
    }
    elements = of[draw(st.sampled_from(sorted(of)))]
    most = draw(st.sampled_from([1, 12]))
    column = np.empty(n, object)
    for row in range(n):
        values = sorted(draw(st.sets(elements, min_size=1, max_size=most)))
        counts = draw(
            st.just([1] * len(values)) | st.lists(st.integers(1, 2**40), min_size=len(values), max_size=len(values))
        )
        column[row] = Multiset(np.array(values), np.array(counts, np.int64))
    return column


@st.composite
def series(draw: st.DrawFn, n: int) -> Array:
    """A column of series: slow and jumping values of each type, even and uneven times, one node and several.

    From a seed: drawn one by one, readings would take longer than all else of a frame.
    """
    kind, most = draw(st.sampled_from(["slow", "far", "decimals", "floats"])), draw(st.sampled_from([1, 12]))
    tick, origin = draw(st.sampled_from([1, 1_000, 10**6])), draw(st.sampled_from([0, -(10**9), NOW_US]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    column = np.empty(n, object)
    for row in range(n):
        k = int(random.integers(1, most + 1))
        order = random.choice(2**16, k, replace=False) * 2**24  # a permutation of all took a third of a frame's time
        time, node = random.integers(0, 10, k), random.integers(0, 3, k)
        at = np.lexsort((order, node, time))
        values = {
            "slow": random.integers(1_000, 1_004, k),
            "far": random.integers(-(2**53), 2**53, k),
            "decimals": random.integers(-500, 500, k) / 10,
            "floats": random.normal(0, 10.0 ** random.integers(-300, 300), k),
        }
        column[row] = Series(origin // tick * tick + time[at] * tick, values[kind], node[at], order[at])
    return column


@st.composite
def sketches(draw: st.DrawFn, n: int, most: int = 9) -> Array:
    """A column of sketches of one kind: of one value, of few, of up to `most`."""
    made = draw(st.sampled_from([hll, theta, kll]))
    sizes = draw(st.lists(st.sampled_from([1, 2, 7, 8, most]), min_size=n, max_size=n))
    values = np.random.default_rng(draw(st.integers(0, 3))).normal(size=sum(sizes))
    column: Array = made.lift(values, Segments.runs(np.cumsum([0, *sizes[:-1]]), len(values)))
    return column


@st.composite
def partials(draw: st.DrawFn) -> Partials:
    """Rows as machines release them: one range, windows of one length, or spans of late readings."""
    n = draw(st.integers(1, 12))
    tick = draw(st.sampled_from(TICKS_US))
    shape = draw(st.sampled_from(["one", "one start", "equal", "ticks", "any"]))
    origin = draw(st.sampled_from([0, NOW_US // tick, -(2**40) // tick]))
    if shape == "one":
        start = np.full(n, origin * tick)
        end = start + draw(st.integers(1, 10)) * tick
    elif shape == "one start":
        start = np.full(n, origin * tick)
        end = start + draw(arrays(st.integers(1, 9), n, np.int64)) * tick
    elif shape == "any":
        start = origin * tick + draw(arrays(st.integers(-(10**9), 10**9), n, np.int64))
        end = start + draw(arrays(st.integers(1, 10**9), n, np.int64))
    else:
        start = (origin + draw(arrays(st.integers(-50, 50), n, np.int64))) * tick
        end = start + (tick if shape == "equal" else draw(arrays(st.integers(1, 9), n, np.int64)) * tick)
    first = draw(st.integers(0, 2**16 - 20))
    key = first + (np.arange(n) if draw(st.booleans()) else draw(arrays(st.integers(0, 19), n, np.int64)))
    states = {f"c{i}": draw(columns(n) | bags(n) | series(n) | sketches(n)) for i in range(draw(st.integers(0, 4)))}
    return Partials(start, end, key, states)


sections = st.builds(Section, indexes, partials())
registers = st.tuples(
    st.lists(st.tuples(indexes, times), max_size=4), st.lists(st.tuples(indexes, st.none()), max_size=3)
).map(lambda both: (*both[0], *both[1]))
exceptions = st.builds(ExcludedLeaf, node_ids, frontiers, frontiers)
group_parts = st.lists(
    st.builds(
        GroupPart,
        indexes,
        st.none() | frontiers,
        st.lists(sections, max_size=2).map(tuple),
        st.lists(sections, max_size=1).map(tuple),
        st.none() | st.lists(exceptions, max_size=2).map(tuple),
        registers,
        st.lists(exceptions, max_size=2).map(tuple),
        st.lists(node_ids, max_size=2).map(tuple),
    ),
    max_size=3,
    unique_by=lambda part: part.group,
).map(tuple)
cuts = st.one_of(
    st.sampled_from([TimeCut(), SessionCut(1), SessionCut(30_000_000, 86_400_000_000), OrderedCut()]),
    st.builds(
        PunctuationCut,
        st.sampled_from(INTERPRETATIONS),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["", "door"]),
        st.sampled_from(["", "7", "shift change"]),
    ),
)
groups = st.builds(
    Group,
    *(texts, texts, st.lists(texts, max_size=2).map(tuple), st.integers(0, 2**50), st.sampled_from(LATE_POLICIES)),
    cuts,
    st.sampled_from(["", "gw-1"]),
)
plans = st.builds(
    Plan,
    st.binary(min_size=8, max_size=8),
    st.sampled_from(KINDS),
    st.lists(texts, max_size=4, unique=True).map(tuple),
    st.none() | st.integers(FINEST, COARSEST),
    st.integers(1, 2**50),
    st.lists(st.tuples(texts, revisions), max_size=2).map(tuple),
    st.none() | st.integers(0, 2**50),
)
numbered_texts = st.tuples(st.integers(0, 60_000), st.lists(texts, max_size=3).map(tuple))
defines = st.builds(
    Define,
    numbered_texts,
    numbered_texts,
    st.lists(st.tuples(indexes, groups), max_size=2).map(tuple),
    st.lists(st.tuples(indexes, indexes, plans), max_size=2).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
)
servings = st.builds(Serving, texts, revisions, *(st.none() | times for _ in range(3)), st.just("") | node_ids)
members = st.builds(
    Members,
    indexes,
    st.lists(st.builds(Leaf, node_ids, epochs, st.none() | epochs), max_size=2).map(tuple),
    st.lists(node_ids, max_size=2).map(tuple),
    st.lists(servings, max_size=2).map(tuple),
)
gaps = st.builds(
    lambda start, length, *rest: Gap(rest[0], start, start + length, *rest[1:]),
    times,
    st.integers(0, 10**12),
    st.lists(groups, max_size=2).map(tuple),
    st.integers(-1, 2**40),
    st.lists(node_ids, max_size=2).map(tuple),
    texts,
    st.integers(0, 2**40),
    texts,
)
predecessors = st.one_of(st.none(), st.just(LOST), st.tuples(epochs, st.integers(-1, 2**40)))


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """Any frame; a birth is frame 0 of the epoch that begins its id, and all frames of a run have numbers."""
    epoch, declared = draw(epochs), draw(st.lists(gaps, max_size=2).map(tuple))
    seq = min(draw(seqs), MAX_SEQ - sum(max(gap.run - 1, 0) for gap in declared))
    birth = None
    if draw(st.booleans()):
        seq = 0
        birth = Birth(
            epoch << 32 | draw(epochs),
            draw(ids),
            draw(predecessors),
            draw(texts),
            flush=draw(st.none() | st.integers(-1, 2**40)),
        )
    return Frame(
        epoch,
        seq,
        birth,
        draw(st.none() | defines),
        draw(st.lists(members, max_size=2).map(tuple)),
        draw(group_parts),
        declared,
        draw(st.none() | st.builds(Flush, st.integers(-1, 2**40), st.none() | epochs)),
        draw(st.none() | epochs),
    )


heartbeats = st.builds(
    Heartbeat,
    epochs,
    st.integers(-1, 2**62),
    st.lists(st.tuples(indexes, frontiers), max_size=4, unique_by=lambda pair: pair[0]).map(tuple),
)


@st.composite
def receipts(draw: st.DrawFn) -> Receipt:
    """Ranges above are ascending and apart; the seq `upto` itself is missing."""
    upto = draw(st.integers(0, 2**40))
    edges = sorted(draw(st.lists(st.integers(upto + 1, upto + 10**6), max_size=8, unique=True)))
    above = tuple((a, b) for a, b in zip(edges[::2], edges[1::2], strict=False))
    horizon_us = draw(st.sampled_from((HORIZON_US, 0, MAX_HORIZON_US)))
    return Receipt(draw(epochs), draw(ids), upto, above, tuple(draw(st.lists(seqs, max_size=3))), horizon_us)
