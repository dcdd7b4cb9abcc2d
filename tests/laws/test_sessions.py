"""Laws of joining session pieces (docs/protocol.md 5.3, 5.5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.partials.partial import Partials, concat
from edge_agent.algebra.partials.sessions import SessionStore, join, pieces_of
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Session
from tests.oracle import central_computer

BASIS = ("count", "sum")
readings = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2)), max_size=40)
maxima = st.sampled_from([0, 0, 7, 20])


def pieces(of: list[tuple[int, int]]) -> Partials:
    """A piece a reading, value 1 << key so that sums tell keys apart."""
    time, key = (np.array([r[i] for r in of], np.int64) for i in range(2))
    return Partials(time, time + 1, key, {"count": np.ones(len(of), np.int64), "sum": 2.0**key})


def told(rows: Partials) -> list[tuple[int, int, int, int]]:
    columns = (rows.key, rows.start, rows.end, rows.states["count"] if len(rows) else rows.key)
    return sorted(zip(*(c.tolist() for c in columns), strict=True))


def naive(of: list[tuple[int, int]], gap: int, most: int) -> list[tuple[int, int, int, int]]:
    query = Query("q", 1, "s", Session(gap, most), (Aggregate("count", "count"),), by=("k",))
    found = central_computer.results([query], [central_computer.Reading(t, 1, labels={"k": str(k)}) for t, k in of])
    return sorted(
        (int(key.removeprefix("k=")), start, end - gap + 1, int(values["count"] or 0))
        for (_, key, start, end), values in found.items()
    )


@given(of=readings, gap=st.integers(1, 9), most=maxima, random=st.randoms(use_true_random=False))
def test_any_order_and_any_grouping_give_the_sessions_of_one_central_computer(
    of: list[tuple[int, int]], gap: int, most: int, random: object
) -> None:
    """protocol 5.3, 5.5: pieces within the gap are one session, one piece may join several; cuts hold everywhere."""
    want = naive(of, gap, most)
    assert told(join(pieces(of), BASIS, gap, most)) == want
    shuffled = list(of)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    cut = len(shuffled) // 3
    parts = [join(pieces(part), BASIS, gap, most) for part in (shuffled[:cut], shuffled[cut:])]
    assert told(join(concat(parts), BASIS, gap, most)) == want
    assert told(join(join(concat(parts[::-1]), BASIS, gap, most), BASIS, gap, most)) == want


@given(of=readings, gap=st.integers(1, 9), most=maxima)
def test_lifted_pieces_are_those_of_single_readings_joined(of: list[tuple[int, int]], gap: int, most: int) -> None:
    ordered = sorted(of)
    if not ordered:
        return
    time, key = (np.array([r[i] for r in ordered], np.int64) for i in range(2))
    order, begins = pieces_of(time, key, gap, most)
    sizes = np.diff(begins, append=len(order))
    lifted = sorted(zip(key[order][begins].tolist(), time[order][begins].tolist(), sizes.tolist(), strict=True))
    assert lifted == [(k, start, n) for k, start, _, n in told(join(pieces(of), BASIS, gap, most))]


@given(of=readings, gap=st.integers(1, 9), frontier=st.integers(-5, 80), hint=st.integers(0, 70))
def test_a_session_leaves_when_the_bound_of_its_key_is_past_last_and_gap(
    of: list[tuple[int, int]], gap: int, frontier: int, hint: int
) -> None:
    """protocol 5.1: the bound is the lesser of frontier and hint."""
    store = SessionStore(BASIS, gap)
    store.add(pieces(of))
    done = told(store.close(frontier, {1: hint}))
    left = told(store.flush())
    for key, _, end, _ in done:
        assert (min(frontier, hint) if key == 1 else frontier) > end - 1 + gap
    for key, _, end, _ in left:
        assert (min(frontier, hint) if key == 1 else frontier) <= end - 1 + gap
    assert sorted(done + left) == naive(of, gap, 0)


@given(parts=st.lists(readings, max_size=4), gap=st.integers(1, 9))
def test_sessions_that_are_read_between_pieces_are_those_of_all_pieces_so_far(
    parts: list[list[tuple[int, int]]], gap: int
) -> None:
    """protocol 5.2: the hints of a commit count the pieces that have come since the last one."""
    store, so_far = SessionStore(BASIS, gap), list[tuple[int, int]]()
    for part in parts:
        store.add(pieces(part))
        so_far += part
        want: dict[int, int] = {}
        for key, start, _, _ in naive(so_far, gap, 0):
            want.setdefault(key, start)
        for _ in range(2):
            assert dict(zip(*(column.tolist() for column in store.lows()), strict=True)) == want
            assert not len(store.close(-1))
    assert told(store.flush()) == naive(so_far, gap, 0)
    assert not len(store.lows()[0])


def test_open_sessions_are_joined_once_however_often_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit asks for those that close and for the hints of all others, whether or not a reading has come."""
    joined: list[int] = []

    def counted(rows: Partials, *rest: Any) -> Partials:
        joined.append(len(rows))
        return join(rows, *rest)

    monkeypatch.setattr("edge_agent.algebra.partials.sessions.join", counted)
    store = SessionStore(BASIS, 5)
    store.add(pieces([(0, 0), (3, 0), (40, 1)]))
    for _ in range(3):
        store.close(2)
        store.lows()
    assert joined == [3]
    store.add(pieces([(7, 0)]))
    store.lows()
    store.close(2)
    assert joined == [3, 3]


@pytest.mark.parametrize(("apart", "sessions"), [(99, 1), (100, 1), (101, 2)])
def test_readings_exactly_one_gap_apart_are_one_session(apart: int, sessions: int) -> None:
    """protocol 5.3."""
    assert len(join(pieces([(0, 0), (apart, 0)]), BASIS, 100)) == sessions


def test_keys_far_apart_in_time_do_not_overflow() -> None:
    """The running maximum falls back to one pass a key where all keys together need more than 64 bits."""
    far = 2**61
    of = [(0, 0), (far, 0), (5, 1), (9, 1), (far, 2)]
    assert told(join(pieces(of), BASIS, 10)) == naive(of, 10, 0)
