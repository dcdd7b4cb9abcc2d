"""The serving ranges that a merger states upward about one group, compared with those that it stated before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from edge_agent.algebra.frame import LATEST_US, Serving
from edge_agent.algebra.query.key import QueryKey, QueryPlace
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.serving_agreement import Times


@dataclass(frozen=True, slots=True)
class StatedRanges:
    """The range of each query for all leaves below together, and of single leaves if it differs.

    of_all: query -> its range for all leaves. begins, ends: see GroupMembership. kept: ranges for all leaves that were
    stated before and do not count at present (docs/protocol.md 6.5). Nothing is changed in these mappings afterwards:
    those that are the same objects as before are not compared. A range of a single leaf is made only to be stated,
    because thousands of queries of one child have one for each of its siblings.
    """

    of_all: Mapping[QueryKey, Serving] = field(default_factory=dict)
    begins: Times = field(default_factory=dict)
    ends: Times = field(default_factory=dict)
    kept: Mapping[QueryKey, Serving] = field(default_factory=dict)

    @classmethod
    def of(cls, membership: GroupMembership, stated: Mapping[QueryKey, Serving]) -> StatedRanges:
        """stated: query -> its range for all leaves below together."""
        return cls(stated, membership.begins(), membership.ends())

    def __bool__(self) -> bool:
        return bool(self.of_all or self.begins or self.ends or self.kept)

    def _of_all(self, key: QueryKey) -> Serving | None:
        return self.of_all.get(key) or self.kept.get(key)

    def _leaves(self, key: QueryKey) -> dict[str, Serving]:
        """Leaf -> its range of a query, for leaves whose range differs from that of all."""
        first, last, of_all = self.begins.get(key, {}), self.ends.get(key, {}), self.of_all.get(key)
        start_us = None if of_all is None else of_all.start_from_us
        out = {}
        for leaf in {**first, **last}:
            from_us = first.get(leaf, start_us)
            out[leaf] = Serving(*key, 0 if from_us is None else from_us, None, last.get(leaf), node=leaf)
        return out

    def _same_leaves(self, key: QueryKey, before: StatedRanges) -> bool:
        """Whether the ranges of single leaves are as before."""
        if self.begins.get(key) != before.begins.get(key) or self.ends.get(key) != before.ends.get(key):
            return False
        now, then = self.of_all.get(key), before.of_all.get(key)  # a leaf that only ends has their start
        starts = [None if each is None else each.start_from_us for each in (now, then)]
        return key not in self.ends or starts[0] == starts[1]

    def _as(self, before: StatedRanges) -> bool:
        same = self.of_all is before.of_all and self.begins is before.begins and self.ends is before.ends
        return same and self.kept == before.kept

    def all(self) -> tuple[Serving, ...]:
        """All ranges."""
        return tuple(self.since(StatedRanges()))

    def since(self, before: StatedRanges) -> Iterator[Serving]:
        """Yields the ranges that are not as they were stated before."""
        if self._as(before):
            return
        yield from (each for key, each in self.of_all.items() if before._of_all(key) != each)
        for key in {**self.begins, **self.ends}:
            if not self._same_leaves(key, before):
                known = before._leaves(key)
                yield from (each for leaf, each in self._leaves(key).items() if known.get(leaf) != each)

    def without(self, before: StatedRanges, membership: GroupMembership) -> tuple[StatedRanges, list[Serving]]:
        """Returns (these ranges with those to keep of `before`, updates that withdraw others which are not in these).

        Without the updates the parent would believe that a query continues here although all leaves that served it have
        left.
        """
        if self._as(before):
            return self, []
        gone = [QueryPlace(*key, "") for key in {**before.of_all, **before.kept} if self._of_all(key) is None]
        for key in {**before.begins, **before.ends}:
            if not self._same_leaves(key, before):
                now = {**self.begins.get(key, {}), **self.ends.get(key, {})}
                then = {**before.begins.get(key, {}), **before.ends.get(key, {})}
                gone += [QueryPlace(*key, leaf) for leaf in then if leaf not in now]
        out, kept = list[Serving](), dict(self.kept)
        for place in sorted(gone):
            if place.node:
                out.append(Serving(*place.key, node=place.node))
            elif not membership.serves(place.key):
                out.append(Serving(*place.key, LATEST_US))
            else:  # it is served below, but its definition does not count at present (6.5)
                known = before._of_all(place.key)
                kept |= {} if known is None else {place.key: known}
        return (replace(self, kept=kept) if kept else self), out
