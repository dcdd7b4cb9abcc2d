"""State of machines as bytes of a spool slot."""

from __future__ import annotations

from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import Frame, GroupPart, Section
from edge_agent.algebra.partials import multisets
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments
from edge_agent.errors import WireError
from edge_agent.wire import frames, snapshot
from edge_agent.wire.columns import packed
from tests.support.wire import frame_strategies as any_
from tests.support.wire.same import same

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=10), st.binary(max_size=10)
)
arrays = st.one_of(
    st.integers(0, 9).flatmap(lambda n: any_.arrays(st.integers(-(2**63), 2**63 - 1), n, np.int64)),
    st.integers(0, 9).flatmap(lambda n: any_.arrays(st.integers(), n, object)),
    st.integers(0, 9).flatmap(lambda n: any_.arrays(st.floats(allow_nan=False), n, np.float64)),
    st.integers(0, 9).flatmap(lambda n: any_.arrays(st.booleans(), n, np.bool_)),
    st.sampled_from([np.zeros((0, 3)), np.arange(6, dtype=np.uint8).reshape(2, 3), np.array(["a", "bc"])]),
)
values = st.recursive(
    st.one_of(scalars, arrays, any_.frames()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(values)
def test_a_state_comes_back_as_it_was(value: Any) -> None:
    assert same(snapshot.loads(snapshot.dumps(value)), value)


def test_arrays_of_a_restored_state_can_be_written_to() -> None:
    array = snapshot.loads(snapshot.dumps({"a": np.arange(3)}))["a"]
    array[0] = 7
    assert array.tolist() == [7, 1, 2]


def test_the_order_of_a_dict_is_kept() -> None:
    """Column order is meaning: states travel in it."""
    assert list(snapshot.loads(snapshot.dumps({"sum": 1, "count": 2, "a": 3}))) == ["sum", "count", "a"]


@pytest.mark.parametrize("value", [{1: 2}, {"a": {3}}, object(), np.array([1.5j]), [b"x", bytearray(b"x")]])
def test_what_is_not_plain_is_our_own_bug(value: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot be encoded|keys of a dict"):
        snapshot.dumps(value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "cannot be read"),
        (cbor2.dumps([2, {}]), "version 2: this node reads version 1"),
        (cbor2.dumps(5), "wanted \\[version, value\\]"),
        (cbor2.dumps([1]), "version 1"),
        (cbor2.dumps([1, cbor2.CBORTag(snapshot.ARRAY_TAG, ["O", [1], b"12345678"])]), "array of O"),
        (cbor2.dumps([1, cbor2.CBORTag(snapshot.ARRAY_TAG, ["<i8", [2], b"12345678"])]), "cannot be read"),
        (cbor2.dumps([1, cbor2.CBORTag(4_000, 1)]), "tag 4000"),
    ],
)
def test_a_damaged_state_says_so(content: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        snapshot.loads(content)


def test_a_frame_that_its_sender_deflated_better_than_we_can_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent that could not store the frame for later ended with each of its repetitions, for ever."""
    values = np.cumsum(np.arange(60_000) % 7 * 30_000 + 1)
    bag = multisets.lift(values, Segments.runs(np.zeros(1, np.int64), len(values)))
    part = Partials(np.array([0]), np.array([10]), np.array([0]), {"0": np.array([len(values)]), "1": bag})
    frame = Frame(1, 2, groups=(GroupPart(0, None, (Section(0, part),)),))
    came = frames.decode(frames.encode(frame))
    assert isinstance(came, Frame)
    monkeypatch.setattr(packed, "LEVEL", 0)
    with pytest.raises(ValueError, match="at most 131072 are allowed"):
        frames.encode(came)
    assert same(snapshot.loads(snapshot.dumps({"waits": came})), {"waits": came})
