"""The range of event time in which each query revision gets readings, when definitions change (docs/protocol.md 6.3).

A query revision is fed while it gets readings. Event time is cut where the set of fed queries changes; between two cuts
one plan is in force. A query that stays gets rows of both plans, divided by event time. A window belongs to the
revision in force at its start; the older revision is fed until the last of its windows has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from edge_agent.algebra.frame import NEVER_US, Serving
from edge_agent.algebra.query.group_cut import TimeCut
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.span import FAR_US, NO_EDGE
from edge_agent.algebra.windows import Punctuation
from edge_agent.machines.checkpoint.slots import ValidityState


@dataclass(frozen=True, slots=True)
class QueryValidity:
    """The windows and readings of one query revision.

    Its windows start in [start_from_us, start_until_us) and end by end_until_us; it is fed readings in [start_from_us,
    fed_until_us). NEVER_US and FAR_US: unbounded.
    """

    query: Query
    start_from_us: int = NEVER_US
    start_until_us: int = FAR_US
    end_until_us: int = FAR_US

    @property
    def current(self) -> bool:
        """Whether no change of definitions has ended this revision."""
        return self.start_until_us == FAR_US and self.end_until_us == FAR_US

    @property
    def fed_until_us(self) -> int:
        """Event time from which this revision gets no more readings."""
        if self.start_until_us == FAR_US:
            return self.end_until_us
        if not isinstance(self.query.group.cut, TimeCut):  # other windows are cut at the change (6.3)
            return min(self.start_until_us, self.end_until_us)
        cut = self.query.time_window
        last, _ = cut.edge_sets[0].around(np.array([self.start_until_us - 1]))
        last_end_us = self.start_until_us if last[0] == NO_EDGE else int(cut.ends(last)[0])
        return min(max(last_end_us, self.start_until_us), self.end_until_us)

    @property
    def serving(self) -> Serving:
        """The range in the form of frames."""
        return Serving(
            self.query.id,
            self.query.revision,
            None if self.start_from_us == NEVER_US else self.start_from_us,
            None if self.start_until_us == FAR_US else self.start_until_us,
            None if self.end_until_us == FAR_US else self.end_until_us,
        )

    def snapshot(self) -> ValidityState:
        start = (self.start_from_us, self.start_until_us)
        return ValidityState(query=self.query, start=start, end_us=self.end_until_us)

    @classmethod
    def restore(cls, state: ValidityState) -> QueryValidity:
        return cls(state.query, *state.start, state.end_us)


def in_force(validities: Iterable[QueryValidity]) -> dict[str, Query]:
    """The queries that no change has ended, by id."""
    return {each.query.id: each.query for each in validities if each.current}


def changed(
    validities: tuple[QueryValidity, ...], queries: tuple[Query, ...], at_us: int, moved: Mapping[str, int | None]
) -> tuple[QueryValidity, ...]:
    """The validities after these queries come into force at event time at_us (NEVER_US: from the beginning).

    moved: id of a query whose revisions belong to different groups -> event time of the change. A query that joins this
    group begins at that time; a query that leaves it ends there, as if its next revision were in this group. None: the
    query moved earlier and has not changed since.
    """
    wanted = {query.id: query for query in queries}
    before = in_force(validities)
    out: list[QueryValidity] = []
    for each in validities:
        successor = wanted.get(each.query.id)
        ended = each
        if successor is None:
            if each.query.id not in moved:
                if each.query.id in before:  # else it keeps its end: at_us may lie before the change that removed it
                    ended = replace(each, end_until_us=min(each.end_until_us, at_us))
            elif (from_us := moved[each.query.id]) is not None:
                ended = replace(each, start_until_us=min(each.start_until_us, max(at_us, from_us)))
        elif successor not in (each.query, before.get(each.query.id)):
            # also if a later revision, now replaced before its begin, was to end this one
            until_us = _start(successor, at_us)
            ended = replace(each, start_until_us=min(each.start_until_us, until_us))
            if isinstance(each.query.window, Punctuation):  # the open window would lack a part of its readings
                ended = replace(ended, end_until_us=min(each.end_until_us, until_us))
        if ended.start_from_us < min(ended.start_until_us, ended.fed_until_us):
            out.append(ended)
    fresh = (query for query in queries if before.get(query.id) != query)
    return (
        *out,
        *(QueryValidity(query, max(_start(query, at_us), moved.get(query.id) or NEVER_US)) for query in fresh),
    )


def begun_by(validities: tuple[QueryValidity, ...], at_us: int) -> tuple[QueryValidity, ...]:
    """The validities with all changes after event time at_us moved to at_us, or to their later `effective_from`.

    A query that moved to another group keeps its end, because windows of that group replace its rows.
    """
    out: list[QueryValidity] = []
    followed: dict[str, tuple[int, int]] = {}  # query -> (old, new) begin of its next revision
    for each in reversed(validities):
        before_us, from_us = followed.get(each.query.id, (FAR_US, FAR_US))
        start_us, until_us, end_us = each.start_from_us, each.start_until_us, each.end_until_us
        start_us = min(start_us, _start(each.query, at_us))
        if until_us == before_us:
            until_us = from_us
        if end_us < FAR_US:
            end_us = from_us if end_us == before_us else min(end_us, at_us)
        followed[each.query.id] = each.start_from_us, start_us
        earlier = replace(each, start_from_us=start_us, start_until_us=until_us, end_until_us=end_us)
        if earlier.start_from_us < min(earlier.start_until_us, earlier.fed_until_us):
            out.append(earlier)
    return tuple(reversed(out))


def _start(query: Query, at_us: int) -> int:
    return at_us if query.effective_from_us is None else max(at_us, query.effective_from_us)


def intervals(validities: tuple[QueryValidity, ...], from_us: int) -> list[tuple[int, int, tuple[Query, ...]]]:
    """Cut event time from from_us on where the set of fed queries changes. Returns (from, until, queries), in order."""
    cuts = {from_us, FAR_US}
    for each in validities:
        cuts.update(cut for cut in (each.start_from_us, each.fed_until_us) if from_us < cut < FAR_US)
    edges = sorted(cuts)
    return [
        (low, high, tuple(v.query for v in validities if v.start_from_us <= low and v.fed_until_us >= high))
        for low, high in pairwise(edges)
    ]
