"""Good bytes, damaged: whatever comes of them, the answer is a value or a WireError."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.algebra.frame import Frame, Heartbeat, Receipt
from edge_agent.wire import frames, heads, landing, readings, receipts, snapshot
from tests.support.wire import frame_strategies as any_
from tests.support.wire.hostile_bytes import DECODERS, U8, Tag, settle, wrapped
from tests.support.wire.one_window import START, one_window


def mutated(payload: bytes, random_: random.Random) -> bytes:
    """One of: a flipped bit, another byte, a cut, bytes put in or taken out, a piece of itself."""
    data = bytearray(payload)
    for _ in range(random_.choice([1, 1, 1, 2, 5])):
        at = random_.randrange(len(data) + 1)
        match random_.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << random_.randrange(8)
            case 1 if at < len(data):
                data[at] = random_.choice([0, 0x18, 0x1B, 0x3B, 0x5F, 0x9F, 0xC2, 0xD8, 0xF6, 0xFB, 0xFF])
            case 2:
                del data[at:]
            case 3:
                data[at:at] = random_.randbytes(random_.randrange(1, 9))
            case 4:
                del data[at : at + random_.randrange(1, 9)]
            case _:
                data[at:at] = data[: random_.randrange(20)]
    return bytes(data)


def samples(kind: str) -> tuple[Callable[[bytes], object], list[bytes]]:
    """Good bytes of a kind, and what reads them."""
    match kind:
        case "frame":
            return frames.decode, [*good_frames(), frames.encode(one_window(5))]
        case "head":
            return lambda payload: heads.head(frames.envelope(payload)), good_frames()
        case "heartbeat":
            return frames.decode, [frames.encode_heartbeat(beat) for beat in drawn(any_.heartbeats, 20)]
        case "part":
            return heads.rows, [part.body for each in good_frames() for part in heads.head(frames.envelope(each))[1]]
        case "receipt":
            return receipts.decode, [receipts.encode(receipt) for receipt in drawn(any_.receipts(), 20)]
        case "readings":
            batch = readings.encode(np.arange(5) + START, np.arange(5) / 3)
            return readings.decode, [batch, readings.encode((START, 1_000), np.arange(9))]
        case "landing file":
            return lambda b: list(landing.iterate(b)), [landing.encode("hw/1/up/a/f/b", START, good_frames()[0]) * 3]
    state = {"a": [1, (2.5, "x")], "b": np.arange(4), "c": one_window(2)}
    return snapshot.loads, [snapshot.dumps(state)]


@cache
def good_frames() -> list[bytes]:
    """Frames as bytes, drawn once a process: they take longer to draw than to read."""
    return [frames.encode(frame) for frame in drawn(any_.frames(), 60)]


def drawn(strategy: st.SearchStrategy[Any], n: int) -> list[Any]:
    """Examples of the strategy, at most n; always the same unless the profile is "explore"."""
    out: list[Any] = []

    @settings(max_examples=n)
    @given(strategy)
    def keep(value: Any) -> None:
        out.append(value)

    keep()
    return out


@pytest.mark.parametrize("kind", ["frame", "head", "heartbeat", "part", "receipt", "readings", "landing file", "state"])
def test_damaged_bytes_give_a_value_or_a_wire_error(kind: str) -> None:
    decode, good = samples(kind)
    random_ = random.Random(11)
    refused = 0
    for round_ in range(4_000):
        payload = good[round_ % len(good)]
        refused += not settle(decode, mutated(payload, random_))
    assert refused > 1_000


@given(any_.frames(), st.data())
def test_a_body_with_one_item_replaced_gives_a_value_or_a_wire_error(frame: Frame, data: st.DataObject) -> None:
    """Well-formed CBOR of a wrong shape: what bit flips seldom reach."""
    body = cbor2.loads(frames.envelope(frames.encode(frame)).body)
    places = list(_places(body))
    if not places:
        return
    holder, at = data.draw(st.sampled_from(places))
    holder[at] = data.draw(
        st.sampled_from(
            [None, True, -1, 2**64, -(2**64), 1.5, "x", b"x", [], [1], [[]], U8, Tag(86, bytes(8)), Tag(2, b"")]
        )
    )
    settle(frames.decode, wrapped(cbor2.dumps(body), epoch=frame.epoch, seq=frame.seq))


def _places(item: Any) -> Any:
    if isinstance(item, list):
        for at, inner in enumerate(item):
            yield item, at
            yield from _places(inner)


@given(st.binary(max_size=200))
def test_random_bytes_give_a_value_or_a_wire_error(payload: bytes) -> None:
    for decode in DECODERS.values():
        settle(decode, payload)


@given(any_.frames(), st.integers(0, 10**6))
def test_a_message_cut_short_is_refused(frame: Frame, at: int) -> None:
    payload = frames.encode(frame)
    assert not settle(frames.decode, payload[: at % len(payload)])


@given(st.one_of(any_.frames(), any_.heartbeats, any_.receipts()), st.binary(min_size=1, max_size=3))
def test_bytes_after_the_end_are_refused(value: Frame | Heartbeat | Receipt, more: bytes) -> None:
    if isinstance(value, Receipt):
        assert not settle(receipts.decode, receipts.encode(value) + more)
        return
    payload = frames.encode(value) if isinstance(value, Frame) else frames.encode_heartbeat(value)
    assert not settle(frames.decode, payload + more)
    version, epoch, seq, body = cbor2.loads(payload)
    assert not settle(frames.decode, cbor2.dumps([version, epoch, seq, body + more]))
