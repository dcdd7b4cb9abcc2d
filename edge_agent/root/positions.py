"""Puts the readings of all nodes in one order and forms the windows that depend on it.

Rules (docs/protocol.md 7.4): readings with event times below the deciding frontier get positions by (time, origin node,
arrival at that node, order of the rows). A position once given is final. A new revision continues from the next
position. The deciding frontier is the least frontier of all expected leaves, including those left out, unless the query
sets on_missing = "skip".

Pure, the same for the numpy root and Spark: `advance` takes the state of some keys as plain columns and returns the
next state. It handles all keys at once, without a loop over readings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import Lowered, Readings, basis_of
from edge_agent.algebra.aggregates.families.weighted import labels_of
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.partials.arrays import NO_INTS, Array, Ints
from edge_agent.algebra.partials.segments import Segments, begins_run
from edge_agent.algebra.partials.units import as_floats, rescaling
from edge_agent.algebra.query.key import key_labels, label_number
from edge_agent.algebra.windows.ordered import OrderedReadings

if TYPE_CHECKING:
    from edge_agent.algebra.query.query import Query
    from edge_agent.algebra.windows.ordered import RowWindows
    from edge_agent.root.completeness import GroupView

SKIP: Final = "skip"  # Query.on_missing: positions do not wait for nodes that are left out
_BLOCK: Final = 2**21  # readings lifted at once; a reading counts once in each window that contains it


@dataclass(frozen=True, slots=True)
class KeyPositions:
    """The state of a query's keys between two steps: plain columns, one row per key, with m readings in total.

    key: shape (k,), int64, increasing, codes of the caller's table. revision: shape (k,), the query revision of the
    state. base: shape (k,), the position from which its windows count. position: shape (k,), the next position to give.
    held: shape (k,), number of readings before `position` that later windows need. time_us, value: shape (m,), these
    readings, key after key, in order. scale: of the values, None for floats.
    """

    key: Ints = field(default_factory=lambda: NO_INTS)
    revision: Ints = field(default_factory=lambda: NO_INTS)
    base: Ints = field(default_factory=lambda: NO_INTS)
    position: Ints = field(default_factory=lambda: NO_INTS)
    held: Ints = field(default_factory=lambda: NO_INTS)
    time_us: Ints = field(default_factory=lambda: NO_INTS)
    value: Array = field(default_factory=lambda: NO_INTS)
    scale: int | None = 0

    def __len__(self) -> int:
        return len(self.key)

    def take(self, which: NDArray[np.bool_]) -> KeyPositions:
        """The state of the keys that a mask of shape (k,) selects."""
        rows = np.repeat(which, self.held)
        return KeyPositions(
            self.key[which],
            self.revision[which],
            self.base[which],
            self.position[which],
            self.held[which],
            self.time_us[rows],
            self.value[rows],
            self.scale,
        )

    def joined(self, other: KeyPositions) -> KeyPositions:
        """Adds the keys of another state, which must be other keys. Values get the finer of the two scales."""
        scale, *values = _met(self, other)
        both = (self, other)
        key = np.concatenate([each.key for each in both])
        order = np.argsort(key, kind="stable")
        held = np.concatenate([each.held for each in both])
        rows = _spread(np.cumsum(held)[order] - held[order], held[order])
        revision, base, position = (
            np.concatenate([getattr(each, name) for each in both])[order] for name in ("revision", "base", "position")
        )
        time_us = np.concatenate([each.time_us for each in both])[rows]
        value = np.concatenate([each.astype(_dtype(scale)) for each in values])[rows]
        return KeyPositions(key[order], revision, base, position, held[order], time_us, value, scale)

    def snapshot(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in KeyPositions.__dataclass_fields__}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> KeyPositions:
        return cls(**state)


@dataclass(frozen=True, slots=True)
class UnorderedReadings:
    """Readings that get positions now: all below the deciding frontier, none with a position; n may be 0.

    key: shape (n,), int64, codes of the caller's table. time_us: shape (n,), int64. value: shape (n,), at `scale`.
    node: shape (n,), int64, ranks of the node ids. order: shape (n,), int64, arrival at the node. Readings that are
    equal in all these columns keep their order here, which must be the order of (epoch, seq, row).
    """

    key: Ints
    time_us: Ints
    value: Array
    node: Ints
    order: Ints
    scale: int | None


@dataclass(frozen=True, slots=True)
class OrderedWindows:
    """One row per window, in the order of key and start. w may be 0.

    key: shape (w,), int64. start, end: shape (w,), positions; for state windows, us. first_us, last_us: shape (w,),
    times of the first and the last reading; of a state window, of the one before it (if known) and the one that ends
    it. readings: shape (w,), their number. answers: aggregate name -> results.
    """

    key: Ints
    start: Ints
    end: Ints
    first_us: Ints
    last_us: Ints
    readings: Ints
    answers: Mapping[str, Lowered]


def decided_us(query: Query, view: GroupView) -> int:
    """The deciding frontier: readings below it get their positions. NEVER_US while no leaf is expected."""
    if query.on_missing == SKIP:
        return view.frontier_us
    return min(view.leaves.distinct(), default=NEVER_US)


def waits(query: Query, views: Sequence[tuple[Query, GroupView]]) -> bool:
    """Whether readings of an older revision must get their positions first.

    views: every revision of the query with the view of its group. A revision with a different filter, key or lateness
    is in a different group, whose frontier may be behind.
    """
    for other, view in views:
        serving = view.serving.get(other.key)
        if other.revision < query.revision and serving is not None and view.leaves:
            until_us = serving.start_until_us if serving.start_until_us is not None else serving.end_until_us
            if until_us is not None and decided_us(other, view) < until_us:
                return True
    return False


def finer(one: int | None, other: int | None) -> int | None:
    """The common scale of two: the finer scale, or None (floats) if either is None (docs/protocol.md 7.1)."""
    return None if one is None or other is None else min(one, other)


def at_scale(value: Array, scale: int | None, to: int | None) -> Array:
    """Values at a finer scale, or as floats. Raises: ValueError if there is no exact conversion."""
    if scale == to:
        return value
    if not len(value):
        return value.astype(_dtype(to))
    if scale is None or (to is not None and to > scale):
        raise ValueError(f"scale {scale} cannot be converted to {to} exactly")
    return rescaling(scale, to)(value)


def meet(values: Sequence[tuple[Array, int | None]], scale: int | None) -> tuple[list[Array], int | None]:
    """Converts (values, own scale) to `scale`, or to floats if 64 bits are too few. Returns (arrays, scale used)."""
    found = [at_scale(value, own, scale) for value, own in values]
    if any(value.dtype == object for value in found):
        scale, found = None, [at_scale(value, own, None) for value, own in values]
    return found, scale


def _met(before: KeyPositions, raw: UnorderedReadings | KeyPositions) -> tuple[int | None, Array, Array]:
    """(scale, values of before, values of raw) at the common scale: as floats if the finer one exceeds 64 bits."""
    if not len(before.value):
        return raw.scale if len(raw.value) else before.scale, before.value, raw.value
    if not len(raw.value):
        return before.scale, before.value, raw.value
    values, scale = meet([(each.value, each.scale) for each in (before, raw)], finer(before.scale, raw.scale))
    return scale, values[0], values[1]


def advance(
    query: Query, before: KeyPositions, raw: UnorderedReadings, texts: Sequence[str]
) -> tuple[KeyPositions, OrderedWindows]:
    """Give positions to more readings. Returns the next state of all keys of `before` and `raw`, and the windows now
    complete.

    before: states of any keys, which include all states of the keys of `raw`. texts: the caller's table of key texts. A
    state of an older revision continues from its position, but drops its readings. A state of a newer revision stays
    unchanged, and readings of its key are skipped, because they would need earlier positions.
    """
    newer = before.revision > query.revision
    if newer.any():
        after, made = advance(query, before.take(~newer), _without(raw, before.key[newer]), texts)
        return after.joined(before.take(newer)), made
    before = _succeeded(before, query.revision)
    scale, was, came_value = _met(before, raw)
    key = np.union1d(before.key, raw.key)
    place = np.searchsorted(key, before.key)
    held, base, position = (np.zeros(len(key), np.int64) for _ in range(3))
    revision = np.full(len(key), query.revision, np.int64)
    held[place], base[place] = before.held, before.base
    position[place], revision[place] = before.position, before.revision
    order = np.lexsort((raw.order, raw.node, raw.time_us, raw.key))
    came = np.bincount(np.searchsorted(key, raw.key), minlength=len(key))
    many = held + came
    first = np.cumsum(many) - many
    time_us, value = np.empty(int(many.sum()), np.int64), np.empty(int(many.sum()), _dtype(scale))
    for rows, times_, values in (
        (_spread(first, held), before.time_us, was),
        (_spread(first + held, came), raw.time_us[order], came_value[order]),
    ):
        time_us[rows], value[rows] = times_, values
    wanted = query.central.labels or labels_of(basis_of(query.aggregates, scale))  # texts are parsed only if needed
    labels = [tuple(sorted(key_labels(texts[code]).items())) for code in key.tolist()] if wanted else []
    floats = as_floats(value, scale).astype(np.float64)  # in the sensor's unit
    exact = None if scale is None else (value, scale)
    line = OrderedReadings(first, first + many, position - held, base, time_us, floats, labels, exact)
    cut, made = _made(query, key, line, value, scale)
    kept = line.until - cut.keep
    rows = _spread(cut.keep, kept)
    after = KeyPositions(key, revision, base, position + came, kept, time_us[rows], value[rows], scale)
    return after, made


def _succeeded(before: KeyPositions, revision: int) -> KeyPositions:
    """Turns states of older revisions into states of `revision`. Positions continue; their readings are dropped."""
    old = before.revision < revision
    if not old.any():
        return before
    rows = ~np.repeat(old, before.held)
    return KeyPositions(
        before.key,
        np.where(old, revision, before.revision),
        np.where(old, before.position, before.base),
        before.position,
        np.where(old, 0, before.held),
        before.time_us[rows],
        before.value[rows],
        before.scale,
    )


def _without(raw: UnorderedReadings, keys: Ints) -> UnorderedReadings:
    """The readings of all keys except these."""
    mine = ~np.isin(raw.key, keys)
    return UnorderedReadings(
        raw.key[mine], raw.time_us[mine], raw.value[mine], raw.node[mine], raw.order[mine], raw.scale
    )


def _made(
    query: Query, key: Ints, line: OrderedReadings, value: Array, scale: int | None
) -> tuple[RowWindows, OrderedWindows]:
    """Form windows and compute their results, in blocks that fit in memory. value: of line's readings, at `scale`."""
    cut = query.central.cut(line)
    readings = cut.high - cut.low
    basis = basis_of(query.aggregates, scale)
    weights = {
        label: np.array([label_number(dict(labels).get(label, "")) for labels in line.labels])
        for label in labels_of(basis)
    }
    parts: dict[str, list[Lowered]] = {aggregate.name: [] for aggregate in query.aggregates}
    for some in _blocks(readings):
        rows = _spread(cut.low[some], readings[some])
        groups = Segments.runs(np.cumsum(readings[some]) - readings[some], len(rows))
        numbers = {label: by_key[np.repeat(cut.key[some], readings[some])] for label, by_key in weights.items()}
        taken = Readings(line.time_us[rows], value[rows], np.arange(len(rows)), 0, numbers)
        states = aggregates.lift(taken, groups, basis, scale)
        for aggregate in query.aggregates:
            parts[aggregate.name].append(aggregates.lower(aggregate, states, scale))
    return cut, OrderedWindows(
        key[cut.key],
        cut.start,
        cut.end,
        line.time_us[cut.low if cut.since is None else cut.since],
        line.time_us[cut.high - 1] if query.central.positions else cut.end,
        readings,
        {name: _joined(lowered) for name, lowered in parts.items()},
    )


def _blocks(readings: Ints) -> Iterator[slice]:
    """Yields slices of the windows with about _BLOCK readings each. readings: of each window."""
    if not len(readings):
        return
    block = (np.cumsum(readings) - readings) // _BLOCK
    firsts = np.flatnonzero(begins_run(block)).tolist()
    yield from (slice(first, last) for first, last in zip(firsts, [*firsts[1:], len(readings)], strict=True))


def _joined(parts: Sequence[Lowered]) -> Lowered:
    """Joins the results of several blocks."""
    details: list[str | None] | None = None
    if any(part.details is not None for part in parts):
        details = [text for part in parts for text in (part.details or [None] * len(part.value))]
    value = np.concatenate([np.zeros(0), *(part.value for part in parts)])
    return Lowered(value, np.concatenate([np.zeros(0, np.bool_), *(part.null for part in parts)]), details)


def _spread(first: Ints, many: Ints) -> Ints:
    """For each i, many[i] consecutive numbers that begin with first[i]; all in one array."""
    before = np.cumsum(many) - many
    spread: Ints = np.repeat(first - before, many) + np.arange(int(many.sum()))
    return spread


def _dtype(scale: int | None) -> type[np.generic]:
    return np.float64 if scale is None else np.int64
