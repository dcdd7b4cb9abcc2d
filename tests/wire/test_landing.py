"""Landing files: what was written before a damage is read, and the damage is named."""

from __future__ import annotations

import zlib

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import Receipt
from edge_agent.errors import WireError
from edge_agent.wire import landing, receipts

Record = tuple[str, int, bytes]
of_children = st.text(max_size=40).filter(lambda topic: topic != landing.TICK_TOPIC)
records: st.SearchStrategy[list[Record]] = st.lists(
    st.tuples(of_children, st.integers(-(2**62), 2**62), st.binary(max_size=300)), max_size=6
)


def read(content: bytes) -> tuple[list[Record], str]:
    """The records before the first damage, and what was said about it."""
    out: list[Record] = []
    try:
        for record in landing.iterate(content):
            out.append(record)  # noqa: PERF402 - the records before the damage are kept
    except WireError as err:
        return out, str(err)
    return out, ""


@given(records)
def test_a_file_is_the_sequence_of_its_records(written: list[Record]) -> None:
    assert read(b"".join(landing.encode(*record) for record in written)) == (written, "")


@given(records, st.data())
def test_a_file_cut_short_gives_the_records_before_the_cut(written: list[Record], data: st.DataObject) -> None:
    pieces = [landing.encode(*record) for record in written]
    content = b"".join(pieces)
    at = data.draw(st.integers(0, len(content)))
    whole, end = 0, 0
    while whole < len(pieces) and end + len(pieces[whole]) <= at:
        end += len(pieces[whole])
        whole += 1
    got, why = read(content[:at])
    assert got == written[:whole]
    assert why.startswith(f"landing file damaged at byte {end} of {at}: ") == (end != at)


def whole(written: list[Record]) -> bytes:
    """A file as the lander writes it."""
    pieces = [landing.encode(*record) for record in written]
    return landing.encode_tick(5, 7, pieces, connected=True) + b"".join(pieces)


@given(records)
def test_a_whole_file_is_read_without_a_word(written: list[Record]) -> None:
    (tick, *got), why = read(whole(written))
    assert (got, why) == (written, "")
    assert landing.tick(tick[2]) == landing.LanderTick(
        7, True, tuple(zlib.crc32(landing.encode(*record)) for record in written), sealed=True
    )


@given(records.filter(bool), st.data())
def test_a_file_that_lacks_records_says_how_many(written: list[Record], data: st.DataObject) -> None:
    """Cut between two records, nothing else tells it."""
    kept = data.draw(st.integers(0, len(written) - 1))
    pieces = [landing.encode(*record) for record in written]
    content = landing.encode_tick(5, 7, pieces, connected=True) + b"".join(pieces[:kept])
    got, why = read(content)
    assert got[1:] == written[:kept]
    assert why == f"landing file cut short: {len(written) - kept} of {len(written) + 1} records are missing"


def flipped(content: bytes, bit: int) -> bytes:
    out = bytearray(content)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


@given(records, st.data())
def test_a_bit_that_flips_on_the_disk_costs_its_record_and_is_named(written: list[Record], data: st.DataObject) -> None:
    content = whole(written)
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    got, why = read(flipped(content, bit))
    good, _ = read(content)
    assert why
    assert all(record in good for record in got)


RECEIVED = (("gw-1", Receipt(3, 7, 5, ((7, 8),), earliest_us=-40)), ("gw-2", Receipt(4, 7, 1)))
PUBLISHED = (("", "q", 3, '{"id":"q"}'),)
WRITTEN: list[Record] = [("hw/1/up/gw-1/f/root", 5 + n, bytes([n]) * 9) for n in range(3)]


def stated(written: list[Record] = WRITTEN) -> tuple[bytes, bytes]:
    """A file with a statement and a published definition: its tick, its other records."""
    pieces = [landing.encode(*record) for record in written]
    return landing.encode_tick(5, 7, pieces, RECEIVED, PUBLISHED, connected=True), b"".join(pieces)


def test_any_bit_of_the_landers_own_record_is_named_and_the_records_behind_it_count() -> None:
    """protocol 3.2: births were refused for a journal with another bit. A checksum's costs its record."""
    tick, others = stated()
    costs = dict[int, int]()
    for bit in range(8 * len(tick)):
        got, why = read(flipped(tick, bit) + others)
        assert why.startswith("landing file damaged"), bit
        assert [record for record in WRITTEN if record in got] == got, bit
        assert landing.tick_us(flipped(tick, bit) + others) is None, bit
        if "damaged at byte" not in why:
            costs[len(WRITTEN) - len(got)] = costs.get(len(WRITTEN) - len(got), 0) + 1
            assert "record 0, the lander's own: " in why
    assert costs[1] == 8 * landing.CHECK_BYTES * len(WRITTEN)
    assert costs[0] > 0.7 * 8 * len(tick)
    assert sum(costs.values()) - costs[0] - costs[1] <= 4, "of a length that is another record's end by chance"


def test_two_damaged_records_are_both_named() -> None:
    tick, others = stated()
    got, why = read(flipped(tick, 100) + flipped(others, 8 * len(others) - 1))
    assert got == WRITTEN[:2]
    assert "record 0, the lander's own" in why
    assert "records [3] fail their checksums (1 in all)" in why
    got, why = read(tick + flipped(others[: -len(others) // 3], 300))
    assert got[1:] == [WRITTEN[0]] or got[1:] == [WRITTEN[1]]
    assert "cut short: 1 of 4 records are missing" in why
    assert "fail their checksums (1 in all)" in why


def older(tick: bytes, fields: int) -> bytes:
    """A tick as an earlier version wrote it."""
    (topic, received_us, payload), _ = landing._record(tick, 0)
    return landing.encode(topic, received_us, cbor2.dumps(cbor2.loads(payload)[:fields], canonical=True))


@pytest.mark.parametrize("fields", [2, 4, 5])
def test_the_landers_own_record_of_an_earlier_version_is_read(fields: int) -> None:
    tick, others = stated()
    (own, *got), why = read(older(tick, fields) + others)
    assert (got, why) == (WRITTEN, "")
    found = landing.tick(own[2])
    assert (found.journal, found.sealed) == (7, False)
    assert found.received == (RECEIVED if fields > 2 else ())
    assert found.published == (PUBLISHED if fields > 4 else ())


@pytest.mark.parametrize("fields", [4, 5])
def test_behind_an_earlier_version_s_record_that_cannot_be_read_only_records_with_a_checksum_count(fields: int) -> None:
    tick, others = stated()
    damaged = flipped(older(tick, fields), 8 * older(tick, fields).index(b"gw-1") + 5)  # no id of a node
    got, why = read(damaged + flipped(others, 8 * len(others) - 1))
    assert got == WRITTEN[:2]
    assert "record 0, the lander's own: child: " in why
    short = landing.encode(landing.TICK_TOPIC, 5, cbor2.dumps([7, 2]))  # of a lander that wrote no checksums
    why = "landing file damaged: record 0, the lander's own: connected: wanted an integer of 0..1, got 2"
    assert read(short + others) == (WRITTEN, why)


@pytest.mark.parametrize(
    "bad", [b"\x00", b"\x82\x61a\x00", b"\x83\x41a\x00\x40", b"\x83\x61\xff\x00\x40", b"\xff", b"{}"]
)
def test_a_damaged_record_is_named_by_its_offset(bad: bytes) -> None:
    good = landing.encode("hw/1/up/a/f/b", 5, b"payload")
    got, why = read(good + bad + good)
    assert got == [("hw/1/up/a/f/b", 5, b"payload")]
    assert f"damaged at byte {len(good)}" in why


def test_a_record_that_the_lander_did_not_write_is_not_read() -> None:
    """protocol 3.2: no checksum of its file is of it."""
    written: list[Record] = [("up/a", 5, b"x")]
    (_, *got), why = read(whole(written) + landing.encode("up/a", 6, b"y"))
    assert got == written
    assert "records [2] fail their checksums" in why


def test_what_a_lander_states_of_received_frames_is_read_as_it_was_stated() -> None:
    """protocol 3.2: the root learns of late rows before it can read them."""
    received = (("a", Receipt(3, 7, 5, ((7, 8),), earliest_us=-40)), ("b", Receipt(4, 7, 1)))
    record = landing.encode_tick(5, 7, (), received, connected=True)
    (tick,), _ = read(record)
    assert landing.tick(tick[2]).received == received


def test_a_receipt_lists_no_more_than_a_child_reads() -> None:
    """protocol 3.2: frames of what is left out are sent again."""
    above = tuple((2 * n, 2 * n) for n in range(1, receipts.MAX_RANGES + 5))
    bad = tuple(range(receipts.MAX_RANGES + 5))
    found = receipts.decode(receipts.encode(Receipt(3, 7, 1, above, bad)))
    assert (found.above, found.quarantined) == (above[: receipts.MAX_RANGES], bad[: receipts.MAX_RANGES])
