"""Keeps decoded slices on the driver, so that a small batch costs its new rows plus a few rows per window.

A window of an hour that slides by a second contains 3 600 slices of every child, and a batch adds two. Each slice is
decoded once, when its frame takes effect, and kept in blocks with sums (edge_agent/algebra/sliding/prefix_blocks.py).
Windows that close or are revised are computed from these blocks (docs/protocol.md 8.6).

This is a cache: for each plan it contains every row that took effect and starts at or after `from_us`, exactly as
decoding bronze.messages returns them. After a restart, or after a batch too large to be decoded here, the executors
read the rows from the table when a window needs them. A plan too large for the cache is read there for every batch. A
table of sums would instead cost one more commit and query per batch.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cloud_job.delta.driver_rows import arrow
from cloud_job.ingest.decode import (
    MOST_ROW_BYTES,
    MOST_ROWS,
    READ,
    Counted,
    Lookup,
    Reader,
    batch_of,
    counted,
    few,
    same,
)
from cloud_job.spark.recent_parts import MOST_ASKED_BYTES
from cloud_job.spark.slice_cache_plan import CachedPlan
from edge_agent import packages
from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import renumbered
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.store import Store
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.sliding.prefix_blocks import Blocks, kept_columns
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.checkpoint.codec import rows_to_plain
from edge_agent.machines.downlink.epochs.renumbering import Renumbering
from edge_agent.root.decision.work import ReadRequest, WindowRange
from edge_agent.root.work_rows import windows_in_pieces
from edge_agent.wire import snapshot
from edge_agent.wire.heads import Part

log = logging.getLogger("headwater.root")
MOST_BYTES: Final = 256 * 1024 * 1024  # of all plans: avg and max of 1 400 keys over an hour that slides by a second
MOST_KEYS: Final = 200_000  # texts of keys and nodes that may stay though their epochs have ended: some 30 MB
MOST_PIECE_BYTES: Final = MOST_BYTES // 8  # that one task of an executor may return: more would not fit the cache
READ_BACK: Final = {"order": "int", "late": "boolean", "content": "binary"}  # content null: more than MOST_PIECE_BYTES
_ARROW: Final = arrow(", ".join(map(" ".join, READ_BACK.items())))

Sending = tuple[str, int, int]  # a frame: node, epoch, seq
Applied = Mapping[Sending, tuple[Part, ...]]


@dataclass(slots=True)
class _Held:
    """The cached rows of one plan that start at from_us or later. blocks: by whether the rows came late.

    again_us: rows are not read from the table for windows that start before this time.
    """

    kept: CachedPlan
    blocks: dict[bool, Blocks]
    from_us: int
    again_us: int = NEVER_US

    @property
    def bytes(self) -> int:
        return sum(blocks.bytes for blocks in self.blocks.values())


def _kept(part: Counted, numbers: Renumbering) -> Partials:
    """The rows of a part with the cache's numbers for keys and nodes, and only with the columns that are kept."""
    rows, basis = part.rows, kept_columns(part.orders[0].basis)
    cut = Partials(rows.start, rows.end, rows.key, {name: rows.states[name] for name in basis})
    return numbers.rows(EpochKey(part.sent.node, part.sent.epoch), part.page, cut)


class SliceCache:
    """The cached rows of all plans."""

    def __init__(self, passed: Iterable[bytes] = ()) -> None:
        """passed: identities of plans with stored rows that this cache has not seen."""
        self._held: dict[bytes, _Held] = {}
        self._passed = set(passed)
        self._waiting: list[pa.Table] = []  # parts of frames that have not taken effect
        self.numbers = Renumbering()
        self._most_keys = MOST_KEYS
        self._large = False  # the last batch was too large to be decoded here

    def keep(self, kept: Mapping[bytes, CachedPlan], plans: Iterable[bytes]) -> bool:
        """Cache exactly these plans after a decision. Returns whether there are any. plans: identities of all plans."""
        for identity in self._held.keys() - kept.keys():
            del self._held[identity]
        for identity, plan in kept.items():
            held = self._held.get(identity)
            if held is None or held.kept.longest_us < plan.longest_us:
                unseen = held is not None or identity in self._passed
                self._held[identity] = self._empty(plan, FAR_US if unseen else NEVER_US)
            else:
                held.kept = plan
        self._passed = set(plans) - kept.keys()
        if not kept:
            self._waiting = []
        return bool(kept)

    def take(self, stored: pa.Table | None, applied: Applied, waiting: Container[Sending], known: Lookup) -> None:
        """Add the frames that took effect with a decision. Call it after `keep`, before the windows are computed.

        stored: the batch's rows of bronze.messages; None: no rows. applied: settled frames -> heads of their parts.
        waiting: stored frames that are not settled. known: a lookup with the epochs of `applied`.
        """
        touched = _touched(applied, known)
        came = [] if stored is None else [stored.filter(pc.greater_equal(stored["plan"], 0)).select(READ)]
        now, later, found = [], [], set()
        for table in (*self._waiting, *came):
            frames = list(zip(*(table[name].to_pylist() for name in ("node", "epoch", "seq")), strict=True))
            found.update(frames)
            now.append(table.filter(pa.array([frame in applied for frame in frames], pa.bool_())))
            later.append(table.filter(pa.array([frame in waiting for frame in frames], pa.bool_())))
        self._waiting = [table for table in later if table.num_rows]
        if sum(table.nbytes for table in self._waiting) > MOST_ASKED_BYTES:
            self._waiting = []
        self._large = sum(table.nbytes for table in now) > MOST_ASKED_BYTES
        for identity in touched.keys() & self._held.keys():
            if self._large or touched[identity] - found:
                self._lose(identity)
        if not self._large:
            self._decode(now, known)

    def forget(self) -> None:
        """After a batch, drop rows that no future window needs."""
        for held in self._held.values():
            for blocks in held.blocks.values():
                blocks.forget(held.kept.from_us)
            held.from_us = max(held.from_us, held.kept.from_us)
        if self.numbers.many > self._most_keys:
            self._renumber()

    def _renumber(self) -> None:
        """Drop the keys and nodes of ended epochs: a label may be new every day. Windows read their rows back once."""
        cached = (blocks.keys() for held in self._held.values() for blocks in held.blocks.values())
        self._most_keys = max(MOST_KEYS, 2 * self.numbers.used(*cached))
        if self.numbers.many > self._most_keys:
            self.numbers = Renumbering()
            for identity in self._held:
                self._lose(identity)

    def missing(self, lookup: Lookup) -> dict[bytes, int]:
        """Plans whose rows must be read from the table for lookup.spans -> the event time from which on.

        Empty after a batch too large to be decoded here, because more such batches probably follow. Windows that closed
        long ago need no plan.
        """
        found: dict[bytes, int] = {}
        for span in () if self._large else lookup.spans:
            for identity in self._plans(span, lookup):
                held = self._held[identity]
                if max(held.kept.from_us, held.again_us) <= span.low_us < held.from_us:
                    found[identity] = held.kept.from_us
        return found

    def wanted(self, missing: Mapping[bytes, int], known: Lookup) -> Lookup:
        """The Lookup with which `slices_of` reads these plans. known: a lookup with all epochs in their ranges."""
        orders = {i: (replace(self._held[i].kept.order, number=n),) for n, i in enumerate(missing)}
        return replace(known, orders=orders, ranges={n: [(us, FAR_US)] for n, us in enumerate(missing.values())})

    def fill(self, missing: Mapping[bytes, int], rows: Iterable[tuple[int, bool, bytes | None]]) -> None:
        """Cache rows that were read from the table. missing: see `missing`. rows: from `slices_of(wanted(...))`."""
        plans = list(missing)
        for identity in plans:
            self._lose(identity)
        lost: set[bytes] = set()
        for number, late, content in rows:
            held = self._held[plans[number]]
            if content is None or held.bytes > MOST_BYTES:
                lost.add(plans[number])
            elif plans[number] not in lost:
                held.blocks[late].add(self._unpacked(snapshot.loads(bytes(content))))
        for identity, from_us in missing.items():
            self._held[identity].from_us = from_us
            if identity in lost:
                self._too_many(identity)
        self._fit()

    def windows(self, lookup: Lookup) -> tuple[set[int], list[pa.RecordBatch]]:
        """Returns (indices of the lookup.spans that can be computed from the cache, their rows: lookup.windows).

        A span of too many rows is not among them: the executors compute it, piece by piece.
        """
        formed: set[int] = set()
        made: list[pa.RecordBatch] = []
        left, left_bytes = MOST_ROWS, MOST_ROW_BYTES
        for number, span in enumerate(lookup.spans):
            plans = self._plans(span, lookup)
            if plans and all(self._held[i].from_us <= span.low_us for i in plans):
                every = chain.from_iterable(
                    self._formed(number, span, order, self._held[identity], lookup) for identity, order in plans.items()
                )
                rows = few(every, left, left_bytes)
                if rows is not None:
                    formed.add(number)
                    made += rows
                    left -= sum(batch.num_rows for batch in rows)
                    left_bytes -= sum(batch.nbytes for batch in rows)
        return formed, made

    def _formed(
        self, number: int, span: WindowRange, order: ReadRequest, held: _Held, lookup: Lookup
    ) -> Iterator[pa.RecordBatch]:
        basis, whole = lookup.bases[span.shape], order.kind == "window"
        shared = (FAR_US, NEVER_US) if whole else (span.high_us, span.low_us + span.length_us)
        for late, blocks in held.blocks.items():
            rows = blocks.within(span.low_us, span.high_us + span.length_us, shared)
            if not len(rows):
                continue
            states = aggregates.convert(rows.states, order.scale, order.target)
            needed = Partials(rows.start, rows.end, rows.key, {name: states[name] for name in basis})
            texts = (self.numbers.keys.texts, self.numbers.nodes.texts)
            for found in windows_in_pieces(needed, span, basis, blocks.ranks(), exact=whole):
                if len(found):
                    about = {"span": same(number, found)}
                    yield batch_of(about, late, found, order.target, columns=lookup.columns, texts=texts)

    def _plans(self, span: WindowRange, lookup: Lookup) -> dict[bytes, ReadRequest]:
        """The plans of a span's rows -> their read requests; empty if the span cannot be computed from cached rows.

        Of windows between markers no plan is kept.
        """
        orders = {order.number: order for found in lookup.orders.values() for order in found}
        plans = {orders[number].plan: orders[number] for number in span.orders}
        basis = lookup.bases[span.shape]
        fits = kept_columns(basis) == tuple(basis) and plans.keys() <= self._held.keys()
        return plans if fits else {}

    def _empty(self, plan: CachedPlan, from_us: int, again_us: int = NEVER_US) -> _Held:
        columns, nodes = kept_columns(plan.order.basis), self.numbers.nodes.texts
        blocks = {late: Blocks(columns, plan.longest_us, nodes) for late in (False, True)}
        return _Held(plan, blocks, from_us, again_us)

    def _lose(self, identity: bytes) -> None:
        """Discard the rows of a plan because they are incomplete."""
        held = self._held[identity]
        self._held[identity] = self._empty(held.kept, FAR_US, held.again_us)

    def _too_many(self, identity: bytes) -> None:
        """Discard the rows of a plan that is too large. Rows are cached again when all open windows have closed."""
        held = self._held[identity]
        log.info("slices.too_many", extra={"plan": identity.hex(), "bytes": held.bytes})
        self._held[identity] = self._empty(held.kept, FAR_US, held.kept.from_us + 2 * held.kept.longest_us)

    def _fit(self) -> None:
        while sum(held.bytes for held in self._held.values()) > MOST_BYTES:
            self._too_many(max(self._held, key=lambda identity: self._held[identity].bytes))

    def _decode(self, tables: Sequence[pa.Table], known: Lookup) -> None:
        orders = {i: (held.kept.order,) for i, held in self._held.items() if held.from_us < FAR_US}
        for part in counted(replace(known, orders=orders), (b for table in tables for b in table.to_batches())):
            self._held[part.orders[0].plan].blocks[part.sent.late].add(_kept(part, self.numbers))
        self._fit()

    def _unpacked(self, plain: dict[str, Any]) -> Partials:
        keys, nodes = self.numbers.keys.of(plain["keys"]), self.numbers.nodes.of(plain["nodes"])
        states = renumbered(plain["states"], tuple(plain["states"]), nodes.__getitem__)
        return Partials(plain["start"], plain["end"], keys[plain["key"]], states)


def slices_of(lookup: Lookup) -> Reader:
    """For mapInArrow: batches with the columns READ to batches with READ_BACK. content: rows in lookup.ranges."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packages.install()
        numbers = Renumbering()
        stores: dict[tuple[int, bool], Store] = {}
        for part in counted(lookup, batches):
            order, rows = part.orders[0], _kept(part, numbers)
            ((low_us, _high_us),) = lookup.ranges[order.number]
            store = stores.setdefault(
                (order.number, part.sent.late), Store(kept_columns(order.basis), None, numbers.nodes.texts)
            )
            store.add(rows.take(rows.start >= low_us))
        for (number, late), store in stores.items():
            plain: dict[str, object] = {
                **rows_to_plain(store.view()),
                "keys": numbers.keys.texts,
                "nodes": numbers.nodes.texts,
            }
            packed = snapshot.dumps(plain)
            content = packed if len(packed) <= MOST_PIECE_BYTES else None
            yield pa.RecordBatch.from_pydict({"order": [number], "late": [late], "content": [content]}, schema=_ARROW)

    return read


def _touched(applied: Applied, known: Lookup) -> dict[bytes, set[Sending]]:
    """Identity of each plan -> frames with rows of the plan that took effect."""
    found: dict[bytes, set[Sending]] = {}
    for frame, parts in applied.items():
        page = known.pages.get(EpochKey(*frame[:2]))
        if page is not None and page.took_effect(frame[2]):
            for part in parts:
                found.setdefault(page.plans[part.plan], set()).add(frame)
    return found
