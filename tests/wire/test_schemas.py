"""schemas/*.cddl are normative, schemas/vectors hold bytes beside their meaning: both hold for what the code writes.

`python -m tests.wire.test_schemas` writes the bytes of vectors that have none yet; those that exist stay as they are.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import cbor2
import numpy as np
import pytest
from cddl_verifier import Validator
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import Frame, Heartbeat, ParentTime, Receipt
from edge_agent.errors import WireError
from edge_agent.wire import frames, heads, landing, readings, receipts
from edge_agent.wire.fields import NODE_ID
from tests.support.effort import examples
from tests.support.wire import frame_strategies as any_
from tests.support.wire import meaning
from tests.support.wire.hostile_bytes import BODIES, wrapped

SCHEMAS: Final = Path(__file__).resolve().parents[2] / "schemas"
VECTORS: Final = SCHEMAS / "vectors"
FRAME, RECEIPT, READINGS, LANDING = (
    Validator((SCHEMAS / f"{name}.cddl").read_text()) for name in ("frame", "receipt", "readings", "landing")
)


def conforms(schema: Any, payload: bytes, rule: str | None = None) -> bool:
    """Whether the schema allows these bytes."""
    return bool(schema.validate(payload, rule).valid)


# --- the schema and the code agree ------------------------------------------------------------------------------------


@examples(60)
@given(any_.frames())
def test_every_frame_conforms_to_the_schema(frame: Frame) -> None:
    assert conforms(FRAME, frames.encode(frame), "frame")


@examples(60)
@given(any_.frames())
def test_every_part_of_the_frame_table_conforms_to_the_schema(frame: Frame) -> None:
    for part in heads.head(frames.envelope(frames.encode(replace(frame, define=None))))[1]:
        assert conforms(FRAME, part.body, "part")


@given(any_.heartbeats)
def test_every_heartbeat_conforms_to_the_schema(heartbeat: Heartbeat) -> None:
    assert conforms(FRAME, frames.encode_heartbeat(heartbeat), "heartbeat")


@given(any_.receipts())
def test_every_receipt_conforms_to_the_schema(receipt: Receipt) -> None:
    assert conforms(RECEIPT, receipts.encode(receipt))
    assert conforms(RECEIPT, receipts.encode(receipt, ParentTime(1_800_000_000_000_000, None, 42)))


@given(st.lists(st.floats()), st.booleans())
def test_every_batch_of_readings_conforms_to_the_schema(values: list[float], spaced: bool) -> None:
    times = (5, 1_000) if spaced else np.arange(len(values))
    assert conforms(READINGS, readings.encode(times, np.array(values, np.float64)))


@given(st.text(), st.integers(-(2**62), 2**62), st.binary())
def test_every_landing_record_conforms_to_the_schema(topic: str, received_us: int, payload: bytes) -> None:
    assert conforms(LANDING, landing.encode(topic, received_us, payload))


# What the schema allows by its shapes and the code refuses by a rule CDDL cannot say: sums, order, which extra it is.
RULES_BEYOND_SHAPE: Final = {
    "a group twice", "a frontier beyond 2^62", "a frontier below -2^62", "a section with 65 columns",
    "a range beyond all time", "a range that overflows 64 bits", "a length of 0", "a negative length",
    "a length beyond all time", "lengths of which one is 0", "no keys", "keys that run beyond 65535", "half a key",
    "a column of another size", "an integer beyond 128 bits", "integers beyond 128 bits",
    "a base and differences beyond 64 bits", "an infinity in a column", "a NaN in a column",
    "extras that announce nothing", "extras that lack an item", "extras with one item too many",
    "a key of a megabyte", "a plan with a column twice", "a plan with a unit of 0", "a leaf with a line end",
    "a gap that ends before it begins", "exceptions of a group that is not there", "exceptions of a group twice",
    "changed exceptions of a group that is not there", "changed exceptions of a group twice",
    "changed exceptions of no group", "registers of a wrong number", "registers without a column",
    "registers with a column for none", "a register of key 65536", "a leave beyond 32 bits", "exceptions of no group",
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_the_schema_refuses_bodies_of_a_wrong_shape(name: str) -> None:
    allowed = conforms(FRAME, wrapped(cbor2.dumps(BODIES[name]), seq=0), "frame")
    assert not allowed or name in RULES_BEYOND_SHAPE


@given(any_.frames(), st.data())
def test_what_the_code_reads_the_schema_allows(frame: Frame, data: st.DataObject) -> None:
    """Bytes that were changed and still decode are frames by the schema too: the code is nowhere wider."""
    payload = bytearray(frames.encode(frame))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    try:
        frames.decode(bytes(payload))
    except WireError:
        return
    assert conforms(FRAME, bytes(payload), "message")


RECEIVED: Final = st.lists(st.tuples(st.from_regex(NODE_ID, fullmatch=True), any_.receipts()), max_size=4)


@given(st.integers(-(2**62), 2**62), st.integers(0, 2**64 - 1), st.booleans(), st.lists(st.binary()), RECEIVED)
def test_the_landers_own_record_comes_back_and_conforms(
    received_us: int, journal: int, connected: bool, others: list[bytes], received: list[tuple[str, Receipt]]
) -> None:
    known = tuple(
        (node, Receipt(r.epoch, journal, r.upto, r.above, earliest_us=r.upto if r.upto % 2 else None))
        for node, r in received
    )
    checks = tuple(map(zlib.crc32, others))
    for wanted, record in (
        (
            landing.LanderTick(journal, connected, checks, known, sealed=True),
            landing.encode_tick(received_us, journal, others, known, connected=connected),
        ),
        (landing.LanderTick(journal, connected), landing.encode_tick(received_us, journal, connected=connected)),
    ):
        (topic, time, payload) = next(landing.iterate(record))
        assert (topic, time) == (landing.TICK_TOPIC, received_us)
        assert landing.tick(payload) == wanted
        assert conforms(LANDING, record)
        assert conforms(LANDING, payload, "tick")


# --- vectors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind of vector, the first word of its name, is written and read."""

    schema: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    rule: str | None = None


def _readings(said: Any) -> bytes:
    time = said["time"]
    times = (time["start"], time["step"]) if isinstance(time, dict) else np.array(time, np.int64)
    return readings.encode(times, np.array(said["value"]))


def _said_of_readings(payload: bytes) -> Any:
    time, value = readings.decode(payload)
    return {"time": time.tolist(), "value": value.tolist()}


KINDS: Final = {
    "frame": Kind(
        FRAME,
        lambda said: frames.encode(meaning.value(Frame, said)),
        lambda payload: meaning.of(frames.decode(payload)),
        "frame",
    ),
    "heartbeat": Kind(
        FRAME,
        lambda said: frames.encode_heartbeat(meaning.value(Heartbeat, said)),
        lambda payload: meaning.of(frames.decode(payload)),
        "heartbeat",
    ),
    "receipt": Kind(
        RECEIPT,
        lambda said: receipts.encode(meaning.value(Receipt, said)),
        lambda payload: meaning.of(receipts.decode(payload)),
    ),
    "readings": Kind(READINGS, _readings, _said_of_readings),
    "landing": Kind(
        LANDING,
        lambda said: landing.encode(said["topic"], said["received_us"], bytes.fromhex(said["payload"])),
        lambda payload: next(
            {"topic": topic, "received_us": received_us, "payload": content.hex()}
            for topic, received_us, content in landing.iterate(payload)
        ),
    ),
}
NAMES: Final = sorted(path.stem for path in VECTORS.glob("*.json"))


def load(name: str) -> tuple[Kind, Any, Path]:
    """The kind of a vector, its JSON, and the file of its bytes."""
    said = json.loads((VECTORS / f"{name}.json").read_text())
    return KINDS[name.partition("-")[0]], said, VECTORS / f"{name}.cbor.hex"


def test_there_are_vectors_of_every_kind() -> None:
    assert {name.partition("-")[0] for name in NAMES} == set(KINDS)
    assert {path.name.removesuffix(".cbor.hex") for path in VECTORS.glob("*.hex")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_of_a_vector_mean_what_stands_beside_them(name: str) -> None:
    kind, said, file = load(name)
    payload = bytes.fromhex(file.read_text())
    assert kind.decode(payload) == said.get("decoded", said["meaning"])
    assert conforms(kind.schema, payload, kind.rule)


@pytest.mark.parametrize("name", NAMES)
def test_the_meaning_of_a_vector_gives_its_bytes(name: str) -> None:
    """`foreign` vectors are bytes that others may write in another way than we do."""
    kind, said, file = load(name)
    if not said.get("foreign"):
        assert kind.encode(said["meaning"]).hex() == "".join(file.read_text().split())


def main() -> None:
    """Write the bytes of vectors that have none yet."""
    for name in NAMES:
        kind, said, file = load(name)
        if not file.exists():
            digits = kind.encode(said["meaning"]).hex()
            file.write_text("\n".join(digits[i : i + 96] for i in range(0, len(digits), 96)) + "\n")


if __name__ == "__main__":
    main()
