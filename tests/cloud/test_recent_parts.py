"""Parts kept on the driver answer only where no other stored part can have rows (docs/protocol.md 8.1; no Spark)."""

from __future__ import annotations

from itertools import count

import pyarrow as pa
import pytest

from cloud_job.delta import driver_rows
from cloud_job.delta.tables import MESSAGES
from cloud_job.ingest.decode import READ
from cloud_job.spark import recent_parts
from cloud_job.spark.recent_parts import RecentParts, no_parts, stored_end_us
from edge_agent.algebra.frame import NEVER_US
from edge_agent.wire.heads import Part

FAR_US = 10**9
_seq = count()


def stored(*ranges: tuple[int | None, int | None], size: int = 0) -> pa.Table:
    """Rows of one batch: parts with these (start, end), or heads without any."""
    row = {"batch": 1, "owner": "a", "node": "gw", "epoch": 1, "plan": 0, "late": False, "payload": bytes(size)}
    rows = [{**row, "seq": next(_seq), "start": start, "end": end} for start, end in ranges]
    return pa.Table.from_pylist(rows, schema=driver_rows.arrow_schema(MESSAGES))


def kept(older_end_us: int, *batches: pa.Table) -> RecentParts:
    recent = RecentParts(older_end_us)
    for batch in batches:
        recent.add(batch)
    return recent


def seqs(found: pa.Table | None) -> list[int] | None:
    """None: the table has to be read."""
    return None if found is None else found["seq"].to_pylist()


def test_the_parts_that_overlap_a_range_are_found_in_all_batches_and_heads_are_none() -> None:
    first, second = stored((0, 10), (10, 20), (None, None)), stored((20, 30), (5, 25))
    recent = kept(NEVER_US, first, second)
    a, b, _ = first["seq"].to_pylist()
    c, d = second["seq"].to_pylist()
    assert seqs(recent.within([(0, 5)])) == [a], "a range ends before its end"
    assert seqs(recent.within([(10, 20)])) == [b, d], "and so does a part"
    assert seqs(recent.within([(24, 25)])) == [c, d]
    assert seqs(recent.within([(0, 1), (29, 30)])) == [a, c]
    assert seqs(recent.within([(30, 40)])) == []
    assert recent.within([(30, 40)]).schema == no_parts().schema  # type: ignore[union-attr]
    assert recent.within([(0, 40)]).column_names == list(READ)  # type: ignore[union-attr]
    assert recent.within([]) is None


def test_where_parts_from_before_may_have_rows_the_table_is_read() -> None:
    """protocol 8.2: a run that began has none of them, and a row of the others alone would lack readings."""
    recent = kept(100, stored((90, 110)))
    assert recent.within([(99, 200)]) is None
    assert recent.within([(150, 200), (99, 100)]) is None
    assert len(recent.within([(100, 200)]) or ()) == 1, "those before end by then"


def test_where_parts_were_dropped_the_table_is_read() -> None:
    old, new = stored((0, 40), (30, 50)), stored((45, 60))
    recent = kept(NEVER_US, old, new)
    recent.forget(49)
    assert len(recent.within([(0, FAR_US)]) or ()) == 3, "one of its parts ends later"
    recent.forget(50)
    assert recent.within([(49, 60)]) is None
    assert seqs(recent.within([(50, 60)])) == new["seq"].to_pylist()
    recent.add(stored((0, 10)))
    recent.forget(20)
    assert recent.within([(49, 60)]) is None, "what goes later may end earlier"


def test_the_oldest_batches_go_when_there_are_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_parts, "MOST_BYTES", 2_500)
    batches = [stored((10 * n, 10 * n + 10), size=900) for n in range(4)]
    recent = kept(NEVER_US, *batches)
    assert recent.within([(19, 40)]) is None
    assert seqs(recent.within([(20, 40)])) == [batch["seq"][0].as_py() for batch in batches[2:]]


def test_an_answer_of_too_many_bytes_is_read_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    recent = kept(NEVER_US, *(stored((10 * n, 10 * n + 10), size=900) for n in range(3)))
    monkeypatch.setattr(recent_parts, "MOST_ASKED_BYTES", 2_500)
    assert recent.within([(0, 30)]) is None
    assert len(recent.within([(0, 20)]) or ()) == 2


def test_what_is_stored_ends_with_the_last_part_also_of_frames_that_wait() -> None:
    def part(end_us: int) -> Part:
        return Part(1, 0, 0, False, 1, 0, 0, end_us, end_us, b"")

    assert stored_end_us([], {}) == NEVER_US
    assert stored_end_us([(0, 5), (-3, 9)], {}) == 9
    assert stored_end_us([(0, 5)], {("gw", 1, 2): (part(3), part(12)), ("gw", 1, 3): (part(4),)}) == 12
