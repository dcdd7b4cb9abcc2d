"""Broken bodies by name, and every decoder that may get foreign bytes."""

from __future__ import annotations

from collections.abc import Callable

import cbor2

from edge_agent.algebra.frame import MAX_COLUMNS
from edge_agent.errors import WireError
from edge_agent.wire import frames, heads, readings, receipts, snapshot

Tag = cbor2.CBORTag


def wrapped(body: bytes, *, version: object = 1, epoch: object = 1, seq: object = 1) -> bytes:
    """A body in an envelope."""
    return cbor2.dumps([version, epoch, seq, body])


def settle(decode: Callable[[bytes], object], payload: bytes) -> bool:
    """Whether it decodes; anything but a value or a WireError ends the test."""
    try:
        decode(payload)
    except WireError as err:
        return not str(err)  # without a reason it would count as decoded
    return True


DECODERS: dict[str, Callable[[bytes], object]] = {
    "message": frames.decode,
    "body": lambda payload: frames.decode(wrapped(payload)),
    "heartbeat": lambda payload: frames.decode(wrapped(payload, seq=None)),
    "section": lambda payload: frames.decode(wrapped(b"\x83\x00\xf6" + payload)),
    "column": lambda payload: frames.decode(wrapped(b"\x83\x00\xf6\x86\x00\x00\x00\x00" + payload + payload)),
    "extras": lambda payload: frames.decode(wrapped(b"\x81\x82\x01" + payload)),
    "head": lambda payload: heads.head(frames.envelope(payload)),
    "part": heads.rows,
    "receipt": receipts.decode,
    "readings": readings.decode,
    "state": snapshot.loads,
}

U8 = Tag(64, b"\x01\x02")


BODIES: dict[str, object] = {
    "no array": 5,
    "a map": {},
    "a group without a frontier": [0],
    "a group twice": [0, None, 0, None],
    "a group beyond 65535": [65_536, None],
    "a negative group": [-1, None],
    "true for a group": [True, None],
    "a float for a group": [0.0, None],
    "a text for a frontier": [0, "now"],
    "a frontier as a float": [0, 1.5],
    "a frontier beyond 2^62": [0, 2**62 + 1],
    "a frontier below -2^62": [0, -(2**62) - 1],
    "a section that is a text": [0, None, "x"],
    "a section too short": [0, None, [0, 0, 0]],
    "a section with too many columns": [0, None, [0, 0, 0, 0, *range(MAX_COLUMNS + 1)]],
    "a plan beyond 65535": [0, None, [65_536, 0, 0, 0]],
    "a tick that is not in the table": [0, None, [0, 21, 0, 0]],
    "a negative tick": [0, None, [0, -1, 0, 0]],
    "a range beyond all time": [0, None, [0, 20, 2**61, 0]],
    "a range that overflows 64 bits": [0, 2**62, [0, 20, [Tag(79, b"\xff" * 7 + b"\x7f"), 1], 0]],
    "a length of 0": [0, None, [0, 7, [0, 0], 0]],
    "a negative length": [0, None, [0, 7, [0, -1], 0]],
    "a length beyond all time": [0, None, [0, 7, [0, 2**63 - 1], 0]],
    "lengths of which one is 0": [0, None, [0, 7, [0, Tag(64, b"\x01\x00")], [0, 2]]],
    "fractions as starts": [0, None, [0, 7, [1.5, 1], 0]],
    "a where of three": [0, None, [0, 7, [0, 1, 1], 0]],
    "no keys": [0, None, [0, 7, 0, Tag(64, b"")]],
    "a key beyond 65535": [0, None, [0, 7, 0, 65_536]],
    "keys that run beyond 65535": [0, None, [0, 7, 0, [65_535, 2]]],
    "zero keys": [0, None, [0, 7, 0, [0, 0]]],
    "half a key": [0, None, [0, 7, 0, Tag(69, b"\x01")]],
    "keys of another tag": [0, None, [0, 7, 0, Tag(70, b"\x01\x00\x00\x00")]],
    "a column of another size": [0, None, [0, 7, 0, [0, 3], U8]],
    "a column of another tag": [0, None, [0, 7, 0, [0, 2], Tag(65, bytes(4))]],
    "a typed array of text": [0, None, [0, 7, 0, [0, 2], Tag(64, "ab")]],
    "a typed array of an array": [0, None, [0, 7, 0, [0, 2], Tag(64, [1, 2])]],
    "a column of texts": [0, None, [0, 7, 0, [0, 2], ["a", "b"]]],
    "a column of floats in a plain array": [0, None, [0, 7, 0, [0, 2], [1.5, 2.5]]],
    "a column of booleans": [0, None, [0, 7, 0, [0, 2], [True, False]]],
    "a column that is null": [0, None, [0, 7, 0, 0, None]],
    "a boolean column": [0, None, [0, 7, 0, 0, False]],
    "a column of nested arrays": [0, None, [0, 7, 0, [0, 2], [[1], [2]]]],
    "an integer beyond 128 bits": [0, None, [0, 7, 0, 0, 2**127]],
    "integers beyond 128 bits": [0, None, [0, 7, 0, [0, 2], [2**200, 1]]],
    "a base and fractions": [0, None, [0, 7, 0, [0, 2], [5, Tag(84, bytes(4))]]],
    "a base and differences beyond 64 bits": [0, None, [0, 7, 0, [0, 2], [2**63 - 1, U8]]],
    "an infinity in a column": [0, None, [0, 7, 0, [0, 2], Tag(84, b"\x00\x7c\x00\x00")]],
    "a NaN in a column": [0, None, [0, 7, 0, [0, 2], Tag(86, b"\xff" * 16)]],
    "extras that are empty": [[]],
    "extras that announce nothing": [[0]],
    "extras of an unknown bit": [[512, 1]],
    "extras that lack an item": [[1]],
    "extras with one item too many": [[16, 1, 1]],
    "extras that are not first": [0, None, [16, 1]],
    "a birth too short": [[1, [1, 2, None]]],
    "a birth with a negative journal": [[1, [1, -2, None, "1"]]],
    "a birth with a sentence as predecessor": [[1, [1, 2, "none", "1"]]],
    "a flush of a text": [[16, "1"]],
    "a leave beyond 32 bits": [[32, 2**32]],
    "definitions of a map": [[2, {}]],
    "key numbers beyond 65535": [[2, [[65_536, ["a"]], [0, []], [], [], [], []]]],
    "a key that is a number": [[2, [[0, [5]], [0, []], [], [], [], []]]],
    "a key of a megabyte": [[2, [[0, ["a" * 70_000]], [0, []], [], [], [], []]]],
    "a group with an unknown late policy": [[2, [[0, []], [0, []], [[0, "s", "", [], 1, "keep"]], [], [], []]]],
    "a group with negative lateness": [[2, [[0, []], [0, []], [[0, "s", "", [], -1, "drop"]], [], [], []]]],
    "a plan with a short hash": [
        [2, [[0, []], [0, []], [], [[0, 0, b"1234567", "slice", [], None, 1, [], None]], [], []]]
    ],
    "a plan of an unknown kind": [
        [2, [[0, []], [0, []], [], [[0, 0, b"12345678", "slices", [], None, 1, [], None]], [], []]]
    ],
    "a plan with a column twice": [
        [2, [[0, []], [0, []], [], [[0, 0, b"12345678", "slice", ["a", "a"], None, 1, [], None]], [], []]]
    ],
    "a plan with a unit of 0": [
        [2, [[0, []], [0, []], [], [[0, 0, b"12345678", "slice", [], None, 0, [], None]], [], []]]
    ],
    "a leaf named with a slash": [[4, [[0, [["a/b", 1, None]], [], []]]]],
    "a leaf with a wildcard": [[4, [[0, [["#", 1, None]], [], []]]]],
    "a leaf of 33 characters": [[4, [[0, [["a" * 33, 1, None]], [], []]]]],
    "a leaf with a line end": [[4, [[0, [["a\n", 1, None]], [], []]]]],
    "a gap that ends before it begins": [[8, [[[], 5, 4, 0, [], "quota", 0, ""]]]],
    "a gap of -2 readings": [[8, [[[], 5, 6, -2, [], "quota", 0, ""]]]],
    "exceptions of a group that is not there": [[64, [[0]]]],
    "exceptions of a group twice": [[64, [[0], [0]]], 0, None],
    "exceptions of no group": [[64, []]],
    "changed exceptions of a group that is not there": [[256, [[0, [], ["a"]]]]],
    "changed exceptions of a group twice": [[256, [[0, [], ["a"]], [0, [], ["b"]]]], 0, None],
    "changed exceptions of no group": [[256, []]],
    "changed exceptions without those that ended": [[256, [[0, [["a", 5, 5]]]]], 0, None],
    "a changed exception without a bound": [[256, [[0, [["a", 5]], []]]], 0, None],
    "an exception that ended with a wildcard": [[256, [[0, [], ["#"]]]], 0, None],
    "an exception without a bound": [[64, [[0, ["a", 5]]]], 0, None],
    "registers of a wrong number": [[128, [[0, 2, 5, U8, 0, None]]], 0, None, 1],
    "registers without a column": [[128, [[0, 2, None, None, 0, None]]], 0, None],
    "registers with a column for none": [[128, [[0, 0, 5, None, 0, None]]], 0, None],
    "a register of key 65536": [[128, [[0, 1, 65_536, 5, 0, None]]], 0, None],
}
