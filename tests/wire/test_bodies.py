"""A good envelope and a body that breaks a rule: refused with a reason, and the frame can be settled."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest

from edge_agent.algebra.frame import Frame
from edge_agent.errors import WireError
from edge_agent.wire import frames, heads
from tests.support.wire.hostile_bytes import BODIES, settle, wrapped


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_breaks_a_rule_is_refused_with_a_reason(name: str) -> None:
    """protocol 3.6: the envelope still says which frame it was, so that it can be settled."""
    payload = wrapped(cbor2.dumps(BODIES[name]), epoch=0 if name.startswith("a birth") else 1, seq=0)
    assert frames.envelope(payload).seq == 0
    assert not settle(frames.decode, payload)
    assert not settle(lambda message: heads.head(frames.envelope(message)), payload)


@pytest.mark.parametrize(
    "body",
    [[], [-2], [5, 0], [5, 0, None], [5, 0, 1, 0, 2], [5, 65_536, 1], [5, 0, 2**62 + 1], [5, [0, 1]], [None], 5],
)
def test_a_heartbeat_that_breaks_a_rule_is_refused(body: object) -> None:
    """protocol 2.5"""
    assert not settle(frames.decode, wrapped(cbor2.dumps(body), seq=None))


@pytest.mark.parametrize(
    "payload",
    [
        cbor2.dumps([1, 1, 1]),
        cbor2.dumps([1, 1, 1, b"\x80", 1]),
        cbor2.dumps([1, 1, 1, "body"]),
        cbor2.dumps([1, 1, -1, b"\x80"]),
        cbor2.dumps([1, 2**32, 1, b"\x80"]),
        cbor2.dumps([1, 1, 2**63, b"\x80"]),
        cbor2.dumps([1, 1, True, b"\x80"]),
        cbor2.dumps(["1", 1, 1, b"\x80"]),
        cbor2.dumps([1, 1, 1, b"\x80"]) + b"\x00",
        cbor2.dumps([1, 1, 1, b"\x80"])[:-1],
        cbor2.dumps({0: 1, 1: 1, 2: 1, 3: b"\x80"}),
        b"\x9f\x01\x01\x01\x41\x80\xff",
        b'{"seq": 1}',
        b"",
    ],
)
def test_what_is_no_envelope_is_refused(payload: bytes) -> None:
    """protocol 3.6: such a message cannot be settled; the sender gives up."""
    with pytest.raises(WireError):
        frames.envelope(payload)


def test_a_few_bytes_do_not_grow_into_many_rows() -> None:
    section: list[Any] = [0, 7, 0, [0, 65_536], 1, 1.5]
    frame = frames.decode(wrapped(cbor2.dumps([0, None, section])))
    assert isinstance(frame, Frame)
    assert not settle(frames.decode, wrapped(cbor2.dumps([0, None, section, section])))
    assert not settle(frames.decode, wrapped(cbor2.dumps([0, None, section, 1, None, [0, 7, 0, 0]])))


def test_a_body_beyond_the_limit_is_refused_and_can_be_settled() -> None:
    payload = wrapped(cbor2.dumps([0, None, [0, 0, 0, 0, *([1] * 8)], *([[0, 0, 0, 0]] * 40_000)]))
    assert frames.envelope(payload).seq == 1
    with pytest.raises(WireError, match="at most 131072"):
        frames.decode(payload)
