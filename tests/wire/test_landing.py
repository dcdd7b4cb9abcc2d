"""Landing files: what was written before a damage is read, and the damage is named."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import Receipt
from edge_agent.errors import WireError
from edge_agent.wire import landing, receipts

Record = tuple[str, int, bytes]
records: st.SearchStrategy[list[Record]] = st.lists(
    st.tuples(st.text(max_size=40), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=300)), max_size=6
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
        7, True, tuple(zlib.crc32(landing.encode(*record)) for record in written)
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


@given(records.filter(bool), st.data())
def test_a_bit_that_flips_on_the_disk_costs_its_record_and_is_named(written: list[Record], data: st.DataObject) -> None:
    content = bytearray(whole(written))
    at = data.draw(st.integers(0, 8 * len(content) - 1))
    content[at // 8] ^= 1 << at % 8
    got, why = read(bytes(content))
    first = len(content) - len(b"".join(landing.encode(*record) for record in written))
    if at // 8 >= first:
        assert why
        assert {*got[1:]} <= {*written}


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
