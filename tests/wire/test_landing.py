"""Landing files: what was written before a damage is read, and the damage is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.errors import WireError
from edge_agent.wire import landing

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


@pytest.mark.parametrize(
    "bad", [b"\x00", b"\x82\x61a\x00", b"\x83\x41a\x00\x40", b"\x83\x61\xff\x00\x40", b"\xff", b"{}"]
)
def test_a_damaged_record_is_named_by_its_offset(bad: bytes) -> None:
    good = landing.encode("hw/1/up/a/f/b", 5, b"payload")
    got, why = read(good + bad + good)
    assert got == [("hw/1/up/a/f/b", 5, b"payload")]
    assert f"damaged at byte {len(good)}" in why
