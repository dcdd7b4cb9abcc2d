"""Decodes parts of frames to rows of windows or pieces of sessions, on the executors: once per batch of messages, never
once per row.

Rows are assigned to their windows and combined here, with the edge's algebra, before they go to Spark: most partials of
a window lie in one file, and every row that leaves Python is expensive. Pieces of a session are joined in the same way;
its start and end are known only when all its pieces are together (cloud_job/spark/islands.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from cloud_job.spark.native import plan
from cloud_job.spark.native.column_types import FORMS, blocks, form_of
from edge_agent import packages
from edge_agent.algebra import aggregates
from edge_agent.algebra.partials.arrays import NO_INTS, Ints
from edge_agent.algebra.partials.partial import Partials, combine
from edge_agent.algebra.partials.sessions import join
from edge_agent.algebra.partials.store import Store
from edge_agent.algebra.query.key import EpochKey
from edge_agent.errors import WireError
from edge_agent.machines.downlink.epochs.counting import Repeats
from edge_agent.machines.downlink.epochs.renumbering import Renumbering
from edge_agent.root.decision.root_state import LateRows
from edge_agent.root.decision.work import ReadRequest, TooLate, WindowRange
from edge_agent.root.instant_slices import slices_of
from edge_agent.root.work_rows import windows_in_pieces
from edge_agent.wire import heads

READ: Final = ("batch", "owner", "node", "epoch", "seq", "plan", "late", "payload")  # columns of bronze.messages
WINDOWS: Final = {"span": "int", "start": "bigint", "key": "string", "late": "boolean"}
PIECES: Final = {"order": "int", "start": "bigint", "end": "bigint", "key": "string", "late": "boolean"}
MOST_ROWS: Final = 1_000_000  # of windows that the driver computes: 150 MB in the JVM; more are left to the executors
MOST_ROW_BYTES: Final = 128 * 1024 * 1024  # of these rows in Arrow: their cells may be large
ARROW: Final = {form.spark: form.arrow for form in FORMS.values()}
Reader = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class EpochView:
    """The keys, nodes and plans of one (node, epoch) by their numbers, and which of its frames and rows count.

    plans: number -> identity. applied: seqs that took effect, as sorted inclusive ranges. repeats: plan number -> which
    rows are repeats, if some are. too_late: see RootState.
    """

    keys: Sequence[str]
    nodes: Sequence[str]
    plans: Mapping[int, bytes]
    applied: Sequence[tuple[int, int]]
    repeats: Mapping[int, Repeats] = field(default_factory=dict)
    too_late: Mapping[LateRows, TooLate] = field(default_factory=dict)

    def took_effect(self, seq: int) -> bool:
        """Whether the frame with this seq took effect."""
        i = bisect_right(self.applied, (seq, 2**63))
        return i > 0 and self.applied[i - 1][1] >= seq

    def counting(self, rows: Partials, seq: int, plan: int) -> Partials:
        """The rows of a frame without repeats."""
        return self.repeats[plan].of(rows, seq) if plan in self.repeats else rows

    def in_time(self, rows: Partials, seq: int, plan: int, *, late: bool) -> Partials:
        """The rows of a part without those that came too late for any result."""
        beyond = self.too_late.get((seq, self.plans[plan], late))
        return rows if beyond is None else rows.take(~beyond.concerns(rows.start, rows.end))


@dataclass(frozen=True, slots=True)
class Lookup:
    """Everything that decoding needs besides the bytes.

    owners: (first batch, owner) in order. orders: identity of a plan -> its read requests. ranges: number of a read
    request -> ranges [low, high) of event time in which its rows are wanted. columns: state columns of the result, name
    -> Spark type. spans: the wanted windows in the order of their numbers, empty for sessions. bases: state columns of
    each shape. nodes: the ids of all nodes of the pages, in bytewise order; a node's index here is its number in all
    tasks (docs/protocol.md 7.3).
    """

    pages: Mapping[EpochKey, EpochView]
    owners: Sequence[tuple[int, str]]
    orders: Mapping[bytes, tuple[ReadRequest, ...]]
    ranges: Mapping[int, Sequence[tuple[int, int]]]
    columns: Mapping[str, str]
    spans: Sequence[WindowRange] = ()
    bases: Sequence[tuple[str, ...]] = ()
    nodes: Sequence[str] = ()

    @property
    def windows(self) -> dict[str, str]:
        """Columns of the rows that `windows_of` returns: name -> Spark type."""
        return {**WINDOWS, **self.columns}

    @property
    def pieces(self) -> dict[str, str]:
        """Columns of the rows that `pieces_of` returns: name -> Spark type."""
        return {**PIECES, **self.columns}

    def owned(self, batch: int, owner: str) -> bool:
        """Whether a row of bronze.messages was stored by the run that decided its batch."""
        i = bisect_right(self.owners, (batch, "\U0010ffff"))
        return i > 0 and self.owners[i - 1][1] == owner


def few(batches: Iterable[pa.RecordBatch], most: int, most_bytes: int = MOST_ROW_BYTES) -> list[pa.RecordBatch] | None:
    """The batches as a list; None if they have more rows or bytes than these, found out without computing all of
    them.
    """
    found: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
        if rows > most or size_bytes > most_bytes:
            return None
        found.append(batch)
    return found


def windows_of(lookup: Lookup) -> Reader:
    """For mapInArrow: batches with the columns READ to batches with lookup.windows."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packages.install()
        yield from _decoded(lookup, batches).windows()

    return read


def pieces_of(lookup: Lookup) -> Reader:
    """For mapInArrow: batches with the columns READ to batches with lookup.pieces."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packages.install()
        yield from _decoded(lookup, batches).pieces()

    return read


def counted(lookup: Lookup, batches: Iterator[pa.RecordBatch]) -> Iterator[Counted]:
    """Yields the parts that took effect and are wanted. batches: columns READ.

    Other parts are skipped before their bytes are read.
    """
    for batch in batches:
        for row in zip(*(batch.column(name).to_pylist() for name in READ), strict=True):
            sent = MessageRow(*row)
            page = lookup.pages.get(EpochKey(sent.node, sent.epoch))
            if page is None or sent.payload is None:
                continue
            if not page.took_effect(sent.seq) or not lookup.owned(sent.batch, sent.owner):
                continue
            orders = lookup.orders.get(page.plans.get(sent.plan, b""), ())
            if not orders:
                continue
            try:
                rows = _named(heads.rows(sent.payload), orders[0])
            except WireError:  # contradicts a plan that was defined later: none of its rows can be trusted
                continue
            rows = page.in_time(page.counting(rows, sent.seq, sent.plan), sent.seq, sent.plan, late=sent.late)
            if len(rows):
                yield Counted(sent, page, orders, rows)


def _decoded(lookup: Lookup, batches: Iterator[pa.RecordBatch]) -> _Decoding:
    decoding = _Decoding(lookup)
    for part in counted(lookup, batches):
        decoding.take(part)
    return decoding


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A row of bronze.messages: the columns READ."""

    batch: int
    owner: str
    node: str
    epoch: int
    seq: int
    plan: int
    late: bool
    payload: bytes | None


@dataclass(frozen=True, slots=True)
class Counted:
    """A part that took effect. page: the view of its epoch; `rows` use the numbers of this epoch. orders: the read
    requests for its plan, at least one.
    """

    sent: MessageRow
    page: EpochView
    orders: tuple[ReadRequest, ...]
    rows: Partials


class _Decoding:
    """Open partials of one task."""

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self.numbers = Renumbering()
        self.numbers.nodes.of(lookup.nodes)
        self._stores: dict[tuple[ReadRequest, bool], Store] = {}

    def take(self, part: Counted) -> None:
        """Add the rows of a part that the read requests ask for."""
        epoch = EpochKey(part.sent.node, part.sent.epoch)
        for order in part.orders:
            rows = part.rows
            if order.lifted:
                rows = self.numbers.rows(epoch, part.page, rows)
                texts = self.numbers.keys.texts
                rows = slices_of(rows, order.lifted, order.scale, texts, reaching=order.reaching)
            wanted = self._wanted(rows, order)
            if wanted is None or len(wanted):
                chosen = rows if wanted is None else rows.take(wanted)
                chosen = chosen if order.lifted else self.numbers.rows(epoch, part.page, chosen)
                self._store(order, part.sent.late).add(chosen)

    def _wanted(self, rows: Partials, order: ReadRequest) -> Ints | None:
        """Indices of the rows in the ranges of a read request; None for all rows."""
        mask = np.zeros(len(rows), np.bool_)
        whole = order.kind != "session"  # for sessions an overlap with a range is enough
        for low, high in self.lookup.ranges[order.number]:
            mask |= (rows.start >= low) & (rows.end <= high) if whole else (rows.start < high) & (rows.end > low)
        return None if mask.all() else np.flatnonzero(mask)

    def _store(self, order: ReadRequest, late: bool) -> Store:
        store = self._stores.get((order, late))
        if store is None:
            store = self._stores[order, late] = Store(order.lifted or order.basis, None, self.numbers.nodes.texts)
        return store

    def windows(self) -> Iterator[pa.RecordBatch]:
        """The windows of every span, combined."""
        fed: dict[int, list[tuple[int, WindowRange]]] = {}
        for number, span in enumerate(self.lookup.spans):
            for order_number in span.orders:
                fed.setdefault(order_number, []).append((number, span))
        for (order, late), store in self._stores.items():
            rows = store.flush()
            states = aggregates.convert(rows.states, order.scale, order.target)
            for number, span in fed.get(order.number, ()):
                basis = self.lookup.bases[span.shape]
                needed = Partials(rows.start, rows.end, rows.key, {name: states[name] for name in basis})
                found: Iterable[Partials]
                if span.picks:
                    found = (combine(_picked(needed, span, order.number), basis, None, store.ranks()),)
                else:
                    found = windows_in_pieces(needed, span, basis, store.ranks(), exact=order.kind == "window")
                for made in found:
                    if len(made):
                        yield from self._batches({"span": same(number, made)}, late, made, order.target)

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """The pieces of every read request, joined as far as they are in this task."""
        for (order, late), store in self._stores.items():
            rows = join(store.flush(), order.basis, order.gap_us, order.max_us, store.ranks())
            states = aggregates.convert(rows.states, order.scale, order.target)
            made = Partials(rows.start, rows.end, rows.key, dict(states))
            if len(made):
                about = {"order": same(order.number, made), "end": pa.array(made.end)}
                yield from self._batches(about, late, made, order.target)

    def _batches(
        self, about: Mapping[str, pa.Array], late: bool, rows: Partials, scale: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Splits rows into batches, because the cells of all windows may take many megabytes. Spark consumes one batch
        while the next is computed.
        """
        texts = (self.numbers.keys.texts, self.numbers.nodes.texts)
        for first, last in blocks(rows):
            here = {name: column.slice(first, last - first) for name, column in about.items()}
            part = rows.take(slice(first, last))
            yield batch_of(here, late, part, scale, columns=self.lookup.columns, texts=texts)


def batch_of(
    about: Mapping[str, pa.Array],
    late: bool,
    rows: Partials,
    scale: int | None,
    *,
    columns: Mapping[str, str],
    texts: tuple[Sequence[str], Sequence[str]],
) -> pa.RecordBatch:
    """Rows as an Arrow batch for Spark. A state column that the rows do not have is null.

    about: the columns `span`, or `order` and `end`. scale: of the states. columns: all state columns, name -> Spark
    type. texts: (keys by number, node ids by number).
    """
    keys, nodes = texts
    n = len(rows)
    found = {
        **about,
        "start": pa.array(rows.start),
        "key": pa.array(keys, pa.string()).take(pa.array(rows.key)),
        "late": pa.array(np.full(n, late)),
    }
    arrays: dict[str, pa.Array] = {name: found[name] for name in (PIECES if "order" in about else WINDOWS)}
    named = {plan.spark_name(column, scale): column for column in rows.states}
    for name, kind in columns.items():
        column = named.get(name)
        if column is None:
            arrays[name] = pa.nulls(n, ARROW[kind])
        else:
            arrays[name] = form_of(column, scale).to_arrow(rows.states[column], nodes)
    return pa.RecordBatch.from_pydict(arrays)


def same(number: int, rows: Partials) -> pa.Array:
    """A column with the same number in each row."""
    return pa.array(np.full(len(rows), number, np.int32))


def _picked(rows: Partials, span: WindowRange, order: int) -> Partials:
    """The rows of a read request that lie in a window between markers, with the bounds of this window.

    rows: sorted by start. order: number of the read request. A binary search is used instead of a mask, because there
    may be many windows and many rows.
    """
    wanted = [NO_INTS]
    for number, low, high in span.picks:
        if number == order:
            first, last = np.searchsorted(rows.start, (low, high if span.within else low + 1)).tolist()
            end = rows.end[first:last]
            wanted.append(first + np.flatnonzero(end <= high if span.within else end == high))
    chosen = rows.take(np.unique(np.concatenate(wanted)))
    start, end = (np.full(len(chosen), us) for us in (span.low_us, span.low_us + span.length_us))
    return Partials(start, end, chosen.key, chosen.states)


def _named(rows: Partials, order: ReadRequest) -> Partials:
    if len(rows.states) != len(order.basis):
        raise WireError(f"a part has {len(rows.states)} columns, its plan {len(order.basis)}")
    return Partials(rows.start, rows.end, rows.key, dict(zip(order.basis, rows.states.values(), strict=True)))
