"""Raw readings as chunks: what goes into bytes comes out of them, whatever is cut and joined on the way."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cloud_job.ordered.reading_chunks import HELD_WORDS, SCHEMA, WORDS, bodies, met, opened

SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def readings(k: int, words: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.random.default_rng(k).integers(-(2**62), 2**62, (k, words))


@given(SIZES, st.integers(0, 3), st.sampled_from([HELD_WORDS, WORDS]))
def test_chunks_come_back_from_their_bytes_and_from_any_slice(sizes: list[int], cut: int, words: int) -> None:
    made = readings(sum(sizes), words)
    column = bodies(made, np.array(sizes))
    assert len(column) == len(sizes)
    found, many = opened(column[cut:], words)
    assert many.tolist() == sizes[cut:]
    assert np.array_equal(found, made[sum(sizes[:cut]) :])


@given(SIZES, st.integers(0, 5), st.permutations(range(6)))
def test_chunks_of_several_batches_meet_and_part_in_the_order_of_their_frames(
    sizes: list[int], cut: int, seqs: list[int]
) -> None:
    """protocol 7.4: what is equal in time, node and arrival stands in the order of (epoch, seq, row)."""
    made, n = readings(sum(sizes), WORDS), len(sizes)
    keys = [f"k{i % 2}" for i in range(n)]
    columns = [
        *(pa.array(np.arange(n) % 3, pa.int32()), pa.array(keys), pa.array(np.full(n, 7)), pa.array(seqs[:n])),
        *(pa.array(np.zeros(n, np.int64)) for _ in ("row", "kept", "since")),
        *(pa.array([None] * n, pa.int32()), bodies(made, np.array(sizes))),
    ]
    whole = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    raw, held = met([whole.slice(0, cut), whole.slice(cut)])
    assert len(held.number) == 0
    starts = np.cumsum([0, *sizes])
    for number in range(3):
        mine = raw.only(number)
        wanted = sorted((i for i in range(n) if i % 3 == number), key=lambda i: seqs[i])
        assert [mine.keys[code] for code in mine.key.tolist()] == [keys[i] for i in wanted]
        assert mine.spread(mine.seq).tolist() == [seqs[i] for i in wanted for _ in range(sizes[i])]
        parts = [made[starts[i] : starts[i + 1]] for i in wanted]
        assert np.array_equal(mine.readings, np.concatenate([made[:0], *parts]))
