"""Splitting PUBLISH packets off a stream: whatever the pieces, the same messages come out."""

from __future__ import annotations

import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.ports.mqtt.packets import DUP, LONGEST_CACHED, MAX_TOPICS, RETAIN, Splitter, acknowledgements
from edge_agent.ports.mqtt.socket_stream import MESSAGES_A_TURN, READ_BYTES, SocketStream

GENERATION = 3
TOPICS = st.text(st.characters(codec="utf-8", exclude_characters="+#\0"), min_size=1, max_size=30)
OTHERS = st.sampled_from([b"\xd0\x00", b"\x40\x02\x00\x07", b"\x90\x03\x00\x01\x01", b"\x20\x03\x00\x00\x00"])


def length(value: int) -> bytes:
    out = b""
    while True:
        value, low = value >> 7, value & 127
        out += bytes([low | (128 if value else 0)])
        if not value:
            return out


def publish(topic: bytes, payload: bytes, mid: int, flags: int, properties: bytes | None) -> bytes:
    body = struct.pack("!H", len(topic)) + topic + (struct.pack("!H", mid) if mid else b"")
    body += (length(len(properties)) + properties if properties is not None else b"") + payload
    return bytes([0x30 | flags | (2 if mid else 0)]) + length(len(body)) + body


@st.composite
def messages(draw: st.DrawFn) -> tuple[str, bytes, int, int, bytes]:
    topic, payload = draw(TOPICS), draw(st.binary(max_size=400))
    mid = draw(st.sampled_from([0, 1, 255, 65535]))
    flags = draw(st.sampled_from([0, RETAIN, DUP, RETAIN | DUP]))
    return topic, payload, mid, flags, draw(st.sampled_from([b"", b"\x01\x01", b"\x26\x00\x01a\x00\x01b" * 20]))


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    out = []
    for size in sizes:
        out.append(data[:size])
        data = data[size:]
    return [*out, data]


@given(st.lists(st.one_of(messages(), OTHERS), max_size=20), st.lists(st.integers(1, 90), max_size=40), st.booleans())
def test_messages_do_not_depend_on_how_the_stream_is_cut(
    packets: list[bytes | tuple[str, bytes, int, int, bytes]], sizes: list[int], modern: bool
) -> None:
    stream, wanted, others = b"", [], b""
    for packet in packets:
        if isinstance(packet, bytes):
            stream, others = stream + packet, others + packet
        else:
            topic, payload, mid, flags, properties = packet
            stream += publish(topic.encode(), payload, mid, flags, properties if modern else None)
            wanted.append((topic, payload, GENERATION << 16 | mid if mid else 0, flags))
    splitter = Splitter(modern, GENERATION, 1 << 20)
    left = b"".join(splitter.feed(piece) for piece in pieces(stream, sizes))
    assert splitter.messages == wanted
    assert left == others
    assert not splitter.refused


@given(st.integers(70_000, 300_000), st.lists(st.integers(1, 70_000), max_size=10), st.booleans(), st.booleans())
def test_a_message_larger_than_the_limit_streams_by_and_its_neighbours_arrive(
    size: int, sizes: list[int], modern: bool, acknowledged: bool
) -> None:
    mid = 77 if acknowledged else 0
    extra = b"" if modern else None
    small = publish(b"s", b"21.5", 0, 0, extra)
    stream = small + publish(b"huge", bytes(size), mid, 0, extra) + small + b"\xd0\x00" + small
    splitter = Splitter(modern, GENERATION, 66_000)
    left = b"".join(splitter.feed(piece) for piece in pieces(stream, sizes))
    assert splitter.messages == [("s", b"21.5", 0, 0)] * 3
    assert left == b"\xd0\x00"
    (refused,) = splitter.refused
    assert (refused.topic, refused.token) == ("huge", GENERATION << 16 | mid if mid else 0)
    assert "larger than 66000" in refused.why


@pytest.mark.parametrize(
    ("packet", "modern"),
    [
        (b"\x30\x00", False),  # no topic at all
        (b"\x30\x01\x00", False),
        (b"\x30\x04\x00\x09ab", False),  # topic longer than the packet
        (b"\x32\x03\x00\x01a", False),  # QoS 1 without a packet id
        (b"\x32\x05\x00\x01a\x00\x00", False),  # packet id 0
        (b"\x34\x05\x00\x01a\x00\x01", False),  # QoS 2 was never asked for
        (b"\x30\x03\x00\x01a", True),  # no property length
        (b"\x30\x05\x00\x01a\x09\x01", True),  # properties longer than the packet
        (b"\x30\x07\x00\x01a\xff\xff\xff\xff", True),  # a length without end
    ],
)
def test_a_malformed_message_is_refused_and_the_next_one_read(packet: bytes, modern: bool) -> None:
    good = publish(b"a", b"1", 0, 0, b"" if modern else None)
    splitter = Splitter(modern, GENERATION, 1 << 20)
    assert splitter.feed(packet + good) == b""
    assert splitter.messages == [("a", b"1", 0, 0)]
    assert len(splitter.refused) == 1


@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_make_it_raise(data: bytes, modern: bool) -> None:
    splitter = Splitter(modern, GENERATION, 66_000)
    splitter.feed(data)
    splitter.feed(data)


def test_many_long_topics_are_read_and_not_kept() -> None:
    """A topic may have 65 535 bytes, so a cache of a few thousand could fill the memory of a small machine."""
    splitter, many = Splitter(False, GENERATION, 1 << 20), 300
    for n in range(many):
        splitter.feed(publish(b"%d" % n * LONGEST_CACHED, b"1", 0, 0, None) + publish(b"%d" % n, b"1", 0, 0, None))
    assert [len(topic) for topic, *_ in splitter.messages[:2]] == [LONGEST_CACHED, 1]
    assert splitter.messages[-2][0] == "299" * LONGEST_CACHED
    assert sum(map(len, splitter._topics)) <= many * 3 + 10 * LONGEST_CACHED


def test_topics_without_end_are_not_kept() -> None:
    splitter = Splitter(False, GENERATION, 1 << 20)
    for n in range(MAX_TOPICS + 10):
        splitter.feed(publish(b"%d" % n, b"1", 0, 0, None))
    assert len(splitter.messages) == MAX_TOPICS + 10
    assert len(splitter._topics) <= MAX_TOPICS


def test_a_topic_that_is_no_text_still_has_a_name() -> None:
    splitter = Splitter(False, GENERATION, 1 << 20)
    splitter.feed(publish(b"a/\xff", b"1", 0, 0, None))
    assert splitter.messages[0][0] == "a/\\xff"


def test_acknowledgements_are_puback_packets_with_the_ids_of_the_tokens() -> None:
    tokens = [GENERATION << 16 | 1, GENERATION << 16 | 65535, GENERATION << 16 | 258]
    assert acknowledgements(tokens) == b"\x40\x02\x00\x01" + b"\x40\x02\xff\xff" + b"\x40\x02\x01\x02"


def test_a_burst_of_small_messages_is_read_in_portions_and_no_byte_is_left() -> None:
    """All at once took 7 MB of small objects, whose memory is hardly ever returned to the system."""
    packet = publish(b"plant/machine-1/temp", b"20.5", 0, 0, None)
    total, sizes = 20 * MESSAGES_A_TURN, list[int]()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    stream = SocketStream(ours, Splitter(False, GENERATION, 1 << 20), bytearray(READ_BYTES))
    sender = threading.Thread(target=theirs.sendall, args=(packet * total,), daemon=True)
    sender.start()
    while sum(sizes) < total:
        stream.read()
        sizes.append(len(stream.splitter.messages))
        stream.splitter.messages.clear()
    sender.join()
    assert max(sizes) < MESSAGES_A_TURN + READ_BYTES // len(packet) + 2
    stream.splitter.forget_topics()
    theirs.sendall(packet)
    stream.read()
    assert [message[0] for message in stream.splitter.messages] == ["plant/machine-1/temp"]
    ours.close()
    theirs.close()
