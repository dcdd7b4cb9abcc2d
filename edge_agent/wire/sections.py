"""Converts sections, the rows of one plan, to [plan, tick, where, keys, *columns] and back (schemas/frame.cddl).

A section is decoded without its plan. Ranges are multiples of a tick from a fixed table, counted from the frontier's
tick. Columns are in the order of the plan's basis, and get their names later (Section.named).
"""

from __future__ import annotations

from math import gcd
from typing import Any, Final, NamedTuple

import numpy as np
from cbor2 import CBORTag

from edge_agent.algebra.frame import MAX_COLUMNS, MAX_KEYS, NEVER_US, ROW_LIMIT_US, Section, Seen
from edge_agent.algebra.partials.arrays import Array, Ints, repeated
from edge_agent.algebra.partials.partial import Partials
from edge_agent.errors import WireError
from edge_agent.wire.cbor import an_array, an_int
from edge_agent.wire.columns import forms, numeric
from edge_agent.wire.fields import MAX_PLANS

SECOND_US: Final = 1_000_000
# Usual window lengths. The largest that divides all ranges is used, so that a range is one small number.
TICKS_US: Final = (
    *(1, 1_000, 10_000, 100_000, 200_000, 250_000, 500_000),
    *(SECOND_US * s for s in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 86_400)),
)
MAX_ROWS: Final = 2**16  # rows of one frame; limits the memory that a few bytes may decode to
# Of one frame: rows times state columns, or the values and readings that their cells hold. Nodes count 9 bytes for a
# cell and 2 for a value, so that three quarters of a frame hold at most 49 000.
MAX_CELLS: Final = 2**18


class Decoded(NamedTuple):
    """A decoded section. item: its CBOR item. anchor: the tick from which the item's ranges count.

    size: what counts towards MAX_ROWS: the greater of rows, values of multisets and readings of series. cells:
    what counts towards MAX_CELLS.
    """

    section: Section
    late: bool
    item: list[Any]
    anchor: int
    size: int
    cells: int


def anchor(frontier_us: int | None, tick_us: int) -> int:
    """The tick from which ranges count: the frontier's tick; 0 if there is no frontier."""
    return 0 if frontier_us is None or frontier_us == NEVER_US else frontier_us // tick_us


def encode(section: Section, frontier_us: int | None, *, late: bool) -> list[object]:
    """Encode a section to a CBOR item. Raises: ValueError for a section without rows, or with unsupported values."""
    rows = section.partials
    n = len(rows)
    if not n:
        raise ValueError("a section without rows cannot be encoded")
    if not 0 <= section.plan < MAX_PLANS:
        raise ValueError(f"plan number {section.plan}, wanted 0..{MAX_PLANS - 1}")
    code, start, length = _ticks(rows.start, rows.end)
    base = anchor(frontier_us, TICKS_US[code])
    first = start - base if isinstance(start, int) else numeric.encode_ints(start - base)
    size = length if isinstance(length, int) else numeric.encode_ints(length)
    where = first if isinstance(first, int) and size == 1 else [first, size]
    plan = -1 - section.plan if late else section.plan
    states = (forms.encode(column, rows.start) for column in rows.states.values())
    return [plan, code, where, _encode_keys(rows.key), *states]


def _ticks(start: Ints, end: Ints) -> tuple[int, int | Ints, int | Ints]:
    """(code of the tick, starts, lengths) in ticks; starts and lengths are integers if all rows have the same."""
    low, high = int(start.min()), int(start.max())
    length = end - start
    shortest, longest = int(length.min()), int(length.max())
    beyond = high + longest > ROW_LIMIT_US and int(end.max()) > ROW_LIMIT_US  # the first is cheap, and mostly false
    if shortest <= 0 or low < -ROW_LIMIT_US or beyond:
        raise ValueError(f"a range ends before it begins, or is outside +-{ROW_LIMIT_US} us")
    if low == high:
        step = gcd(low, shortest if shortest == longest else int(np.gcd.reduce(length)))
    elif shortest == longest and not (start % shortest).any():
        step = shortest
    else:
        step = gcd(int(np.gcd.reduce(start)), int(np.gcd.reduce(length)))
    code = next(c for c in reversed(range(len(TICKS_US))) if step % TICKS_US[c] == 0)
    tick = TICKS_US[code]
    return (
        code,
        low // tick if low == high else start // tick,
        shortest // tick if shortest == longest else length // tick,
    )


def _encode_keys(key: Ints) -> object:
    n, first, low, high = len(key), int(key[0]), int(key.min()), int(key.max())
    if low < 0 or high >= MAX_KEYS:
        raise ValueError(f"key numbers {low}..{high}, wanted 0..{MAX_KEYS - 1}")
    if n == 1:
        return first
    if high - low == n - 1 and bool((key[1:] - key[:-1] == 1).all()):
        return [first, n]
    tag, dtype = (64, "u1") if high < 1 << 8 else (69, "<u2")
    return CBORTag(tag, key.astype(dtype).tobytes())


def decode(item: object, frontier_us: int | None, room: int, cells: int = MAX_CELLS) -> Decoded:
    """Inverse of `encode`, with columns named by position ('0', '1', ...). room: highest allowed `Decoded.size`.

    cells: highest allowed `Decoded.cells`. Raises: WireError.
    """
    fields = an_array(item, "section", 4, 4 + MAX_COLUMNS)
    number = an_int(fields[0], -MAX_PLANS, MAX_PLANS - 1, "plan")
    late = number < 0
    tick = TICKS_US[an_int(fields[1], 0, len(TICKS_US) - 1, "tick")]
    key, highest = _decode_keys(fields[3], room)
    n = len(key)
    if n * (len(fields) - 4) > cells:
        raise WireError(f"{n} rows of {len(fields) - 4} columns, {cells} cells are left of {MAX_CELLS} in a frame")
    base = anchor(frontier_us, tick)
    start, end, one_range = _decode_where(fields[2], base, tick, n)
    states: dict[str, Array] = {}
    size, used = n, 0
    for i, column in enumerate(fields[4:]):
        states[str(i)], held = forms.decode(column, n, room, f"column {i}", start)
        size, used = max(size, held), used + max(n, held)
        if used > cells:
            raise WireError(f"columns up to {i} hold {used} values, {cells} are left of {MAX_CELLS} in a frame")
    column = fields[4] if len(fields) > 4 else None
    first = column if type(column) is int and numeric.INT64_LOW <= column <= numeric.INT64_HIGH else None
    seen = Seen(highest, (int(start[0]), int(end[0])) if one_range else None, first)
    section = Section(-1 - number if late else number, Partials(start, end, key, states), seen=seen)
    return Decoded(section, late, fields, base, size, used)


def first_start(item: object, frontier_us: int | None, room: int) -> tuple[int, int]:
    """(lowest start of the rows of a section, how many they are). Does not decode its columns.

    room: most rows. Raises: WireError.
    """
    fields = an_array(item, "section", 4, 4 + MAX_COLUMNS)
    tick = TICKS_US[an_int(fields[1], 0, len(TICKS_US) - 1, "tick")]
    key, _ = _decode_keys(fields[3], room)
    start, _, _ = _decode_where(fields[2], anchor(frontier_us, tick), tick, len(key))
    return int(start.min()), len(key)


def is_late(item: object) -> bool:
    """Whether the rows of a section are late."""
    return type(item) is list and bool(item) and type(item[0]) is int and item[0] < 0


def _decode_keys(item: object, room: int) -> tuple[Ints, int]:
    """(key numbers, the highest one)."""
    if type(item) is int and room:
        return np.array([an_int(item, 0, MAX_KEYS - 1, "key")], np.int64), item
    if type(item) is list:
        first, n = an_array(item, "keys", 2, 2)
        an_int(n, 1, min(room, MAX_KEYS), "number of keys")
        an_int(first, 0, MAX_KEYS - n, "first key")
        return np.arange(first, first + n, dtype=np.int64), first + n - 1
    if type(item) is CBORTag and item.tag in (64, 69) and type(item.value) is bytes:
        dtype = np.dtype("u1" if item.tag == 64 else "<u2")
        if 0 < len(item.value) <= room * dtype.itemsize and len(item.value) % dtype.itemsize == 0:
            numbers = np.frombuffer(item.value, dtype).astype(np.int64)
            return numbers, int(numbers.max())
    raise WireError(f"keys: wanted a number, [first, count] or 1..{room} numbers (tags 64, 69)")


def _decode_where(item: object, base: int, tick: int, n: int) -> tuple[Ints, Ints, bool]:
    """(starts, ends, whether all rows have the same range), in us."""
    limit = ROW_LIMIT_US // tick
    if type(item) is int:  # all rows have the same range of one tick
        start = an_int(item + base, -limit, limit - 1, "range") * tick
        return repeated(start, n), repeated(start + tick, n), True
    first, length = an_array(item, "ranges", 2, 2)
    if type(first) is int and type(length) is int:  # all rows have the same range
        start = an_int(first + base, -limit, limit - 1, "range start")
        end = start + an_int(length, 1, limit - start, "range length")
        return repeated(start * tick, n), repeated(end * tick, n), True
    starts = numeric.decode_ints(first, n, "range start")
    lengths = numeric.decode_ints(length, n, "range length")
    low, high = int(starts.min()) + base, int(starts.max()) + base
    longest = int(lengths.max())
    if low < -limit or high > limit or int(lengths.min()) < 1 or longest > 2 * limit:
        raise WireError(f"a range ends before it begins, or is outside +-{ROW_LIMIT_US} us")
    if high + longest > limit and int((starts + base + lengths).max()) > limit:
        raise WireError(f"a range ends after {ROW_LIMIT_US} us")
    begin = (starts + base) * tick
    return begin, begin + lengths * tick, False
