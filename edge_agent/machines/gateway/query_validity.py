"""From when until when each (query, revision) is fed: what docs/protocol.md 6.3 makes of changes of definitions.

Event time is cut where the set of fed queries changes; between two cuts one plan is in force. A query that stays is fed
by both plans, by event time. A window belongs to the revision in force at its start; the older revision is fed until
the last window that started before the switch has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from edge_agent.algebra.frame import NEVER_US, Serving
from edge_agent.algebra.query.group_cut import TimeCut
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.span import FAR_US, NO_EDGE
from edge_agent.algebra.windows import ALL, Punctuation


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
        """As frames say it."""
        return Serving(
            self.query.id,
            self.query.revision,
            None if self.start_from_us == NEVER_US else self.start_from_us,
            None if self.start_until_us == FAR_US else self.start_until_us,
            None if self.end_until_us == FAR_US else self.end_until_us,
        )


def current(tenures: Iterable[QueryValidity]) -> dict[str, Query]:
    """The queries in force, by id."""
    return {tenure.query.id: tenure.query for tenure in tenures if tenure.current}


def changed(
    tenures: tuple[QueryValidity, ...], queries: tuple[Query, ...], at_us: int, moved: Mapping[str, int | None]
) -> tuple[QueryValidity, ...]:
    """The tenures once the queries in force become these, from event time at_us on (NEVER_US: from the beginning).

    moved: queries whose new revision belongs to another group than the one before -> the event time of that change:
    those that come begin there, those that go are succeeded there, as if by a revision of this group. None: of those
    that went before and have not changed since.
    """
    wanted = {query.id: query for query in queries}
    before = current(tenures)
    out: list[QueryValidity] = []
    for tenure in tenures:
        successor = wanted.get(tenure.query.id)
        ended = tenure
        if successor is None:
            if tenure.query.id not in moved:
                ended = replace(tenure, end_until_us=min(tenure.end_until_us, at_us))
            elif (from_us := moved[tenure.query.id]) is not None:
                ended = replace(tenure, start_until_us=min(tenure.start_until_us, max(at_us, from_us)))
        elif successor != tenure.query:  # also one that a revision not yet begun, and now replaced, was to end later
            until_us = _start(successor, at_us)
            ended = replace(tenure, start_until_us=min(tenure.start_until_us, until_us))
            if isinstance(tenure.query.window, Punctuation):  # what is open then would hold but a part of its readings
                ended = replace(ended, end_until_us=min(tenure.end_until_us, until_us))
        if ended.start_from_us < min(ended.start_until_us, ended.fed_until_us):
            out.append(ended)
    fresh = (query for query in queries if before.get(query.id) != query)
    return (
        *out,
        *(QueryValidity(query, max(_start(query, at_us), moved.get(query.id) or NEVER_US)) for query in fresh),
    )


def _start(query: Query, at_us: int) -> int:
    return at_us if query.effective_from_us is None else max(at_us, query.effective_from_us)


def eras(tenures: tuple[QueryValidity, ...], from_us: int) -> list[tuple[int, int, tuple[Query, ...]]]:
    """Event time from from_us on, cut where the set of fed queries changes: (from, until, queries), in order."""
    cuts = {from_us, FAR_US}
    for tenure in tenures:
        cuts.update(cut for cut in (tenure.start_from_us, tenure.fed_until_us) if from_us < cut < FAR_US)
    edges = sorted(cuts)
    return [
        (low, high, tuple(t.query for t in tenures if t.start_from_us <= low and t.fed_until_us >= high))
        for low, high in pairwise(edges)
    ]


def to_plain(tenure: QueryValidity) -> dict[str, object]:
    """Plain values for the spool."""
    query = tenure.query
    plain = asdict(query)
    plain["window"] = {"type": query.window.type, **plain["window"]}
    return {"query": plain, "start": [tenure.start_from_us, tenure.start_until_us], "end": tenure.end_until_us}


def from_plain(plain: Mapping[str, Any]) -> QueryValidity:
    """The twin of `to_plain`; lists come back where tuples went."""
    fields = dict(plain["query"])
    window = dict(fields["window"])
    fields["window"] = ALL[window.pop("type")](**window)
    fields["by"] = tuple(fields["by"])
    fields["aggregates"] = tuple(
        Aggregate(each["fn"], each["name"], tuple((name, value) for name, value in each["params"]))
        for each in fields["aggregates"]
    )
    return QueryValidity(Query(**fields), plain["start"][0], plain["start"][1], plain["end"])
