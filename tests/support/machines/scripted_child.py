"""A child with frames that a test chooses: real bytes, without a slicer or a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np

from edge_agent.algebra.aggregates import Readings, lift
from edge_agent.algebra.frame import HORIZON_US, ExcludedLeaf, Frame, Gap, GroupPart, Leaf, Plan, Serving
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.segments import Segments
from edge_agent.algebra.query.planner import plan, plan_hash
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.machines.uplink.step import GroupStep, Step, StepRows
from edge_agent.root.numpy.executor import NumpyRoot

JOURNAL = 77
S = 1_000_000
Piece = tuple[int, int, str, float]  # start, end in us, key text, value


class Sender:
    """One child of a root (or of a merger). All its queries are of one group."""

    def __init__(self, node: str, *queries: Query, scale: int | None = None, leaves: Sequence[str] = ()) -> None:
        """leaves: whom it serves for; itself if not given. scale: of its values."""
        self.node, self.queries, self.scale = node, queries, scale
        self.leaves = tuple(leaves) or (node,)
        self.outbox = Outbox(node, Random(node), version="test")
        self.outbox.journal = JOURNAL
        self._keys: list[str] = []
        self._arrivals = 0

    def birth(self, frontier_us: int | None = None, servings: Sequence[Serving] | None = None) -> Frame:
        """The first frame. servings: unbounded for every query if not given."""
        if servings is None:
            servings = [Serving(q.id, q.revision) for q in self.queries]
        leaves = tuple(Leaf(leaf, 1) for leaf in self.leaves)
        step = GroupStep(self.queries[0].group, frontier_us, leaves=leaves, serving=tuple(servings))
        self.outbox.draw()
        return self._one(self.outbox.open(Step((step,), tuple(canonical_query(q) for q in self.queries))))

    def send(
        self,
        *pieces: Piece,
        frontier_us: int | None = None,
        late: bool = False,
        kind: str | None = None,
        exceptions: tuple[ExcludedLeaf, ...] | None = None,
    ) -> Frame:
        """A frame with one row a piece. kind: of the rows, the plan's own if not given."""
        releases = (self._release(pieces, late, kind),) if pieces else ()
        if frontier_us is not None and not releases and exceptions is None:
            return self._promised(frontier_us)
        return self._put(GroupStep(self.queries[0].group, frontier_us, releases, exceptions))

    def flush(self, *pieces: Piece) -> Frame:
        """The last frame of its epoch, with all that it had open."""
        rows = (self._release(pieces, late=False, kind=None),)
        return self._one(self.outbox.flush(Step((GroupStep(self.queries[0].group, None, rows),))))

    def _promised(self, frontier_us: int) -> Frame:
        """A frame with a frontier and nothing else: a node says that in a heartbeat (2.5), a parent takes both."""
        box = self.outbox
        part = GroupPart(box.encoder.groups[self.queries[0].group], frontier_us)
        box.seq += 1
        return Frame(box.epoch, box.seq - 1, groups=(part,))

    def tell(self, *servings: Serving, queries: Sequence[Query] = ()) -> Frame:
        """A frame with new servings, and definitions in force from here on."""
        self.queries = tuple(queries) or self.queries
        step = GroupStep(self.queries[0].group, serving=servings)
        return self._put(step, tuple(canonical_query(q) for q in self.queries))

    def lose(self, start_us: int, end_us: int) -> Frame:
        """A frame with a gap record."""
        gap = Gap((self.queries[0].group,), start_us, end_us, 1, self.leaves, "poison")
        return self._one(self.outbox.put(Step(gaps=(gap,))))

    def _put(self, step: GroupStep, texts: tuple[str, ...] = ()) -> Frame:
        return self._one(self.outbox.put(Step((step,), texts)))

    @staticmethod
    def _one(frames: list[Frame]) -> Frame:
        (frame,) = frames
        return frame

    def _release(self, pieces: Sequence[Piece], late: bool, kind: str | None) -> StepRows:
        made: Plan = plan(self.queries, self.scale)[0].plan
        if kind is not None and made.kind != kind:
            made = replace(made, kind=kind, hash=plan_hash(kind, made.basis, made.scale, made.queries))
        start, end, keys, values = zip(*pieces, strict=True)
        self._keys += [key for key in dict.fromkeys(keys) if key not in self._keys]
        order = np.arange(self._arrivals, self._arrivals + len(pieces))
        self._arrivals += len(pieces)
        value = np.array(values, np.float64 if self.scale is None else np.int64)
        readings = Readings(np.array(start, np.int64), value, order)
        states = lift(readings, Segments.runs(np.arange(len(pieces)), len(pieces)), made.basis, self.scale)
        codes = np.array([self._keys.index(key) for key in keys], np.int64)
        rows = Partials(np.array(start, np.int64), np.array(end, np.int64), codes, states)
        return StepRows(made, late, rows, self._keys, [self.node])


SUM = (Aggregate("sum", "sum"),)
GRACE = 60 * S


def root_of(
    *senders: Sender, grace_us: int = GRACE, revise_every_us: int = 0, horizon_us: int = HORIZON_US
) -> NumpyRoot:
    """A root that has heard the birth of each."""
    root = NumpyRoot(JOURNAL, grace_us=grace_us, revise_every_us=revise_every_us, horizon_us=horizon_us)
    for sender in senders:
        root.take(sender.node, sender.birth(), 0)
    assert root.step(0) == []
    return root


def leaving(sender: Sender) -> Frame:
    """The frame that ends its line."""
    box = sender.outbox
    box.seq += 1
    return Frame(box.epoch, box.seq - 1, leave=99)


def journalled(birth: Frame, merger: Merger) -> Frame:
    """The birth for the journal of this merger."""
    assert birth.birth is not None
    return replace(birth, birth=replace(birth.birth, journal=merger.journal))
