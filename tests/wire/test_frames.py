"""Frames, heartbeats and receipts come back as they were sent, and stay small."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import (
    MAX_FRAME_BYTES,
    MAX_HORIZON_US,
    NEVER_US,
    Birth,
    Define,
    Frame,
    Gap,
    GroupPart,
    Heartbeat,
    ParentTime,
    Plan,
    Receipt,
    Section,
)
from edge_agent.algebra.partials import multisets
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.partials.units import HUGE
from edge_agent.algebra.query.query import COARSEST, FINEST, Group
from edge_agent.algebra.sketches import hll, kll
from edge_agent.errors import WireError
from edge_agent.wire import frames, receipts
from edge_agent.wire.fields import MAX_SEQ
from tests.support.wire import frame_strategies as any_
from tests.support.wire.one_window import START, one_window
from tests.support.wire.same import same

SECOND = 1_000_000
PLAN = Plan(b"12345678", "slice", ("count", "sum"), None, SECOND, (("q", 1),))


@given(any_.frames())
def test_a_frame_comes_back_as_it_was_sent(frame: Frame) -> None:
    assert same(frames.decode(frames.encode(frame)), frame)


@given(any_.frames())
def test_a_decoded_frame_encodes_to_the_same_bytes(frame: Frame) -> None:
    """What waits in an inbox and is kept there as a value loses nothing."""
    payload = frames.encode(frame)
    decoded = frames.decode(payload)
    assert isinstance(decoded, Frame)
    assert frames.encode(decoded) == payload


@given(any_.heartbeats)
def test_a_heartbeat_comes_back_as_it_was_sent(heartbeat: Heartbeat) -> None:
    """protocol 2.5: a frame whose seq is null, with the last seq and the frontiers."""
    payload = frames.encode_heartbeat(heartbeat)
    assert frames.envelope(payload).seq is None
    assert frames.decode(payload) == heartbeat


@given(any_.receipts())
def test_a_receipt_comes_back_as_it_was_sent(receipt: Receipt) -> None:
    """protocol 3.2"""
    assert receipts.decode(receipts.encode(receipt)) == receipt


@given(any_.receipts(), st.sampled_from([None, 0, 2**40]))
def test_a_receipt_may_carry_the_parents_time(receipt: Receipt, error_us: int | None) -> None:
    """protocol 4.3: for a child that asked; it says the same about frames as one without."""
    time = ParentTime(1_800_000_000_000_000, error_us, 42)
    payload = receipts.encode(receipt, time)
    assert (receipts.decode(payload), receipts.time_in(payload)) == (receipt, time)
    assert receipts.time_in(receipts.encode(receipt)) is None


def test_a_receipt_is_cut_short_rather_than_too_long() -> None:
    """protocol 3.2: safe to cut short, because it lists what was received and never what is missing."""
    receipt = Receipt(1, 2, 3, tuple((5 + 2 * i, 5 + 2 * i) for i in range(50_000)))
    decoded = receipts.decode(receipts.encode(receipt))
    assert decoded.upto == 3
    assert decoded.above == receipt.above[: receipts.MAX_RANGES]


@pytest.mark.parametrize(
    "fields",
    [
        [1, 1, 2, 5, [[5, 6]], []],  # seq 5 is the first that is missing
        [1, 1, 2, 5, [[8, 7]], []],
        [1, 1, 2, 5, [[7, 9], [9, 10]], []],
        [1, 1, 2, 5, [[7]], []],
        [1, 1, 2, -1, [], []],
        [1, 2**32, 2, 5, [], []],
        [2, 1, 2, 5, [], []],
        [1, 1, 2, 5, []],
        [1, 1, 2, 5, [], [], -1],
        [1, 1, 2, 5, [], [], MAX_HORIZON_US + 1],
        [1, 1, 2, 5, [], [], 0, 0],
        [1, 1, 2, 5, [], [], 0, [1, 2]],
        [1, 1, 2, 5, [], [], 0, [-1, None, 0]],
    ],
)
def test_a_receipt_that_contradicts_itself_is_refused(fields: list[object]) -> None:
    with pytest.raises(WireError):
        receipts.decode(cbor2.dumps(fields))


def test_one_window_of_a_known_key_takes_at_most_40_bytes() -> None:
    for seed in range(20):
        assert len(frames.encode(one_window(1, seed=seed))) <= 40


def test_a_hundred_keys_take_at_most_11_bytes_each() -> None:
    assert len(frames.encode(one_window(100))) <= 11 * 100


def test_the_envelope_reads_apart_from_a_body_of_another_version() -> None:
    """protocol 2.1, 3.6: a frame of an unknown version can still be settled by its number."""
    payload = cbor2.dumps([7, 5, 9, b"\xff\xff anything"])
    envelope = frames.envelope(payload)
    assert (envelope.version, envelope.epoch, envelope.seq) == (7, 5, 9)
    with pytest.raises(WireError, match="version 7: this node reads version 1"):
        frames.decode(payload)


def test_a_birth_is_frame_0_and_its_id_begins_with_the_epoch() -> None:
    """protocol 1.1, 1.2"""
    with pytest.raises(ValueError, match="birth"):
        frames.encode(Frame(1, 1, Birth(1 << 32, 1, None, "1")))
    with pytest.raises(ValueError, match="birth"):
        frames.encode(Frame(2, 0, Birth(1 << 32, 1, None, "1")))
    good = cbor2.loads(frames.encode(Frame(1, 0, Birth(1 << 32, 1, None, "1"))))
    for wrong in ([1, 2, 0, good[3]], [1, 1, 4, good[3]]):
        with pytest.raises(WireError, match="birth"):
            frames.decode(cbor2.dumps(wrong))


def test_a_frame_beyond_the_limit_is_our_own_bug() -> None:
    """protocol 2.1: at most 128 kB by construction."""
    assert len(frames.encode(one_window(10_000))) < MAX_FRAME_BYTES
    with pytest.raises(ValueError, match="at most 131072 are allowed"):
        frames.encode(one_window(20_000))


def test_the_limits_of_a_frame_are_the_largest_that_pass() -> None:
    """protocol 2.1"""
    frame = one_window(100)
    size = len(frames.encode(frame))
    assert len(frames.encode(frame, size)) == size
    with pytest.raises(ValueError, match=f"at most {size - 1} are allowed"):
        frames.encode(frame, size - 1)
    with pytest.raises(WireError, match="a body of 131073 bytes"):
        frames.decode(cbor2.dumps([1, 1, 1, bytes(MAX_FRAME_BYTES + 1)]))
    with pytest.raises(WireError, match="body") as refused:
        frames.decode(cbor2.dumps([1, 1, 1, bytes(MAX_FRAME_BYTES)]))
    assert "bytes, at most" not in str(refused.value)


def test_the_last_frame_of_an_epoch_may_be_a_gap_record() -> None:
    gap = Gap((Group("s", "", (), 0, "revise"),), 0, 1, 9, (), "evicted", 3)
    last = Frame(1, MAX_SEQ - 2, gaps=(gap,))
    assert frames.decode(frames.encode(last)) == last
    with pytest.raises(WireError, match="more frames than there are numbers"):
        frames.decode(frames.encode(replace(last, seq=MAX_SEQ - 1)))


@pytest.mark.parametrize("bit", [frames.EXCEPTIONS, frames.REGISTERS, frames.CHANGES])
def test_what_is_said_of_a_group_stands_in_a_frame_with_the_group(bit: int) -> None:
    said = {frames.EXCEPTIONS: [4], frames.REGISTERS: [4, 0, None, None, 1, 7], frames.CHANGES: [4, [], ["a"]]}[bit]
    with_it, without = ([[bit, [said]], 3, None, *rest] for rest in ([4, None], []))
    frames.decode(cbor2.dumps([1, 1, 1, cbor2.dumps(with_it)]))
    with pytest.raises(WireError, match="of a group that is not in the frame"):
        frames.decode(cbor2.dumps([1, 1, 1, cbor2.dumps(without)]))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_state_that_is_not_finite_travels_as_the_largest_and_never_as_it_is(value: float) -> None:
    """protocol 7.1: overflow is never an exception."""
    start = np.array([START])
    section = Section(0, Partials(start, start + 1, np.array([0]), {"sum": np.array([value])}))
    sent = frames.decode(frames.encode(Frame(1, 1, groups=(GroupPart(0, None, (section,)),))))
    assert isinstance(sent, Frame)
    assert abs(float(sent.groups[0].sections[0].partials.states["0"][0])) == HUGE
    body = cbor2.dumps([0, None, [0, 7, 0, 0, value]])
    with pytest.raises(WireError, match="finite"):
        frames.decode(cbor2.dumps([1, 1, 1, body]))


def test_a_section_without_rows_does_not_travel() -> None:
    """What a root keeps of a frame (its head) cannot be sent on by mistake: it would lose the rows."""
    none = np.zeros(0, np.int64)
    section = Section(0, Partials(none, none, none, {}))
    with pytest.raises(ValueError, match="without rows"):
        frames.encode(Frame(1, 1, groups=(GroupPart(0, None, (section,)),)))


def test_a_group_stands_once_in_a_frame() -> None:
    with pytest.raises(ValueError, match="twice"):
        frames.encode(Frame(1, 1, groups=(GroupPart(0), GroupPart(0))))


def test_ranges_that_no_tick_fits_are_kept_to_the_microsecond() -> None:
    """protocol 4.2: late partials carry the span of their own readings."""
    start = np.array([START + 17, START - 123_456_789, START])
    rows = Partials(start, start + np.array([1, 999_983, 86_400 * SECOND]), np.array([5, 3, 5]), {})
    for frontier in (None, NEVER_US, START - 5, START + 2**40):
        frame = Frame(1, 1, groups=(GroupPart(3, frontier, (), (Section(2, rows),)),))
        assert same(frames.decode(frames.encode(frame)), frame)


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [None, FINEST, -2, COARSEST])
def test_a_plan_has_a_scale_that_a_sensor_can_have(scale: int | None) -> None:
    frame = Frame(1, 1, define=Define(plans=((0, 0, replace(PLAN, scale=scale)),)))
    assert frames.decode(frames.encode(frame)) == frame


@pytest.mark.parametrize("scale", [-30, FINEST - 1, COARSEST + 1, 30])
def test_a_plan_with_a_scale_of_no_sensor_is_refused(scale: int) -> None:
    """protocol 7.1: the root takes the finest scale of all, at which the exact sums of others would leave 128 bits."""
    frame = Frame(1, 1, define=Define(plans=((0, 0, replace(PLAN, scale=scale)),)))
    with pytest.raises(WireError, match="scale"):
        frames.decode(frames.encode(frame))


# --- names come with the plan -----------------------------------------------------------------------------------------


def test_a_section_gets_its_names_from_the_plan() -> None:
    """protocol 2.4: a frame may come before the one that defines its plan."""
    decoded = frames.decode(frames.encode(one_window(3)))
    assert isinstance(decoded, Frame)
    named = decoded.groups[0].sections[0].named(PLAN)
    assert list(named.partials.states) == ["count", "sum"]
    assert named.partials.states["sum"].dtype == np.float64


def test_columns_travel_in_the_order_of_the_basis() -> None:
    rows = one_window(3).groups[0].sections[0].partials
    turned = Partials(
        rows.start, rows.end, rows.key, {name: rows.states.get(name, rows.start) for name in ("m2", "sum", "count")}
    )
    assert list(Section.of(0, PLAN, turned).partials.states) == ["count", "sum"]


def lifted(made: Any, k: int) -> Array:
    """One bag or sketch of k different values."""
    column: Array = made.lift(np.arange(k) * 0.5, Segments.runs(np.zeros(1, np.int64), k))
    return column


@pytest.mark.parametrize(
    ("basis", "scale", "states", "why"),
    [
        (("count",), None, [np.array([3]), np.array([1.0])], "has 1 columns"),
        (("count", "sum"), None, [np.array([0]), np.array([1.0])], "count: 0"),
        (("count", "sum"), None, [np.array([-2]), np.array([1.0])], "count: -2"),
        (("count", "sum"), None, [np.array([3]), np.array([1])], "got integers of 64 bits"),
        (("count", "sum"), -1, [np.array([3]), np.array([1.0])], "got floats"),
        (("count", "min"), -1, [np.array([3]), np.array([2**70], object)], "got integers of up to 128 bits"),
        (("count", "min", "max"), None, [np.array([3]), np.array([2.0]), np.array([1.0])], "minimum above its maximum"),
        (("count", "m2"), None, [np.array([3]), np.array([1.5])], "not a basis: sum"),
        (("count", "median"), None, [np.array([3]), np.array([2.0])], "not know: median"),
        (("count", "hll"), None, [np.array([3]), lifted(kll, 3)], "got KLL sketches"),
        (("count", "sum"), None, [np.array([3]), lifted(hll, 3)], "got HLL sketches"),
        (("count", "theta"), None, [np.array([3]), np.array([1.0])], "got floats"),
        (("count", "kll"), None, [np.array([4]), lifted(kll, 3)], "the number of readings in"),
        (("count", "frequent"), None, [np.array([2]), lifted(multisets, 3)], "sum to more than the row has readings"),
    ],
)
def test_rows_that_are_not_what_the_plan_says_are_refused(
    basis: tuple[str, ...],
    scale: int | None,
    states: list[np.ndarray],
    why: str,
) -> None:
    """A plan's column kinds are checked when the plan is known; the frame is settled as bad then (protocol 3.6)."""
    rows = Partials(np.array([0]), np.array([1]), np.array([0]), {str(i): s for i, s in enumerate(states)})
    with pytest.raises(WireError, match=why):
        Section(0, rows).named(Plan(b"12345678", "slice", basis, scale, 1, ()))


def test_exact_sums_beyond_64_bits_pass_as_the_plan_says() -> None:
    """protocol 7.1: sums of scaled integers have up to 128 bits."""
    rows = Partials(np.array([0]), np.array([1]), np.array([0]), {"0": np.array([9]), "1": np.array([2**100], object)})
    named = Section(0, rows).named(Plan(b"12345678", "slice", ("count", "sum"), -1, 1, ()))
    assert named.partials.states["sum"][0] == 2**100


def test_a_heartbeat_before_the_first_frame_says_minus_one() -> None:
    """The last seq of an epoch that has sent nothing is -1, and no smaller number is one."""
    first = Heartbeat(1, -1, ())
    assert frames.decode(frames.encode_heartbeat(first)) == first
    with pytest.raises(WireError, match="last seq"):
        frames.decode(frames.encode_heartbeat(replace(first, last_seq=-2)))
