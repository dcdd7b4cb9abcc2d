"""The event time for which each query revision is fed, when definitions change (docs/protocol.md 6.3).

Event time is cut where the set of fed queries changes; between two cuts one plan is in force. A query that stays is fed
by both plans, by event time. A window belongs to the revision in force at its start; the older revision is fed until
the last window that started before the switch has ended.
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
    """One (query, revision) and its share of event time.

    Window starts in [start_from, start_until), ends <= end_until; readings in [start_from, fed_until) are for it.
    NEVER_US and FAR_US: unbounded.
    """

    query: Query
    start_from_us: int = NEVER_US
    start_until_us: int = FAR_US
    end_until_us: int = FAR_US

    @property
    def current(self) -> bool:
        """Whether no change has ended it."""
        return self.start_until_us == FAR_US and self.end_until_us == FAR_US

    @property
    def fed_until_us(self) -> int:
        """Event time from which readings are no longer for it."""
        if self.start_until_us == FAR_US:
            return self.end_until_us
        if not isinstance(self.query.group.cut, TimeCut):  # cut where it changes (6.3)
            return min(self.start_until_us, self.end_until_us)
        cut = self.query.time_window
        last, _ = cut.edge_sets[0].around(np.array([self.start_until_us - 1]))
        last_end_us = self.start_until_us if last[0] == NO_EDGE else int(cut.ends(last)[0])
        return min(max(last_end_us, self.start_until_us), self.end_until_us)

    @property
    def serving(self) -> Serving:
        """The range as frames carry it."""
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
    """The validities when these queries come into force at event time at_us (NEVER_US: from the beginning).

    moved: queries whose new revision belongs to another group than the one before -> the event time of that change: a
    query that comes begins there, one that goes ends there as if a revision of this group followed. None: it moved
    before and has not changed since.
    """
    wanted = {query.id: query for query in queries}
    before = in_force(validities)
    out: list[QueryValidity] = []
    for each in validities:
        successor = wanted.get(each.query.id)
        ended = each
        if successor is None:
            if each.query.id not in moved:
                ended = replace(each, end_until_us=min(each.end_until_us, at_us))
            elif (from_us := moved[each.query.id]) is not None:
                ended = replace(each, start_until_us=min(each.start_until_us, max(at_us, from_us)))
        elif successor != each.query:  # also one that a revision not yet begun, and now replaced, was to end later
            until_us = _start(successor, at_us)
            ended = replace(each, start_until_us=min(each.start_until_us, until_us))
            if isinstance(each.query.window, Punctuation):  # the open window would hold only a part of its readings
                ended = replace(ended, end_until_us=min(each.end_until_us, until_us))
        if ended.start_from_us < min(ended.start_until_us, ended.fed_until_us):
            out.append(ended)
    fresh = (query for query in queries if before.get(query.id) != query)
    return (
        *out,
        *(QueryValidity(query, max(_start(query, at_us), moved.get(query.id) or NEVER_US)) for query in fresh),
    )


def begun_by(validities: tuple[QueryValidity, ...], at_us: int) -> tuple[QueryValidity, ...]:
    """The validities when changes after event time at_us hold from there on, or from their `effective_from`.

    A query that moved to another group keeps its end: the windows of that group replace its rows.
    """
    out: list[QueryValidity] = []
    followed: dict[str, tuple[int, int]] = {}  # query -> where its next revision began, and where it begins now
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
    """Event time from from_us on, cut where the set of fed queries changes: (from, until, queries), in order."""
    cuts = {from_us, FAR_US}
    for each in validities:
        cuts.update(cut for cut in (each.start_from_us, each.fed_until_us) if from_us < cut < FAR_US)
    edges = sorted(cuts)
    return [
        (low, high, tuple(v.query for v in validities if v.start_from_us <= low and v.fed_until_us >= high))
        for low, high in pairwise(edges)
    ]
