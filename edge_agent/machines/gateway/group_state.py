"""The state of one group at a gateway, and queries whose new revision belongs to another group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from edge_agent.algebra.frame import NEVER_US, Serving
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.checkpoint.slots import GroupSlots
from edge_agent.machines.gateway.source import Source
from edge_agent.machines.slicing.slicer import Slicer
from edge_agent.machines.uplink.step import StepRows


@dataclass(slots=True)
class GroupState:
    """One group at this gateway.

    frontier_us: the promise of the last commit. serving: serving ranges of its queries. sent: the ranges last sent
    upward; None: neither ranges nor the leaf were sent. rows: rows for the next step that a restart, a change of scale
    or a new key table closed. changed: whether the state changed since the last commit.
    """

    slicer: Slicer
    slots: GroupSlots
    frontier_us: int = NEVER_US
    serving: tuple[Serving, ...] = ()
    sent: tuple[Serving, ...] | None = None
    rows: list[StepRows] = field(default_factory=list)
    changed: bool = True

    def serves(self, serving: tuple[Serving, ...]) -> None:
        """Set the serving ranges from now on."""
        self.serving = (*serving, *withdrawn(self.sent or (), serving, self.slicer.frontier_us))

    @property
    def next_begin_us(self) -> int:
        """The earliest event time at which a query may begin to be served anew here; FAR_US: nothing is known.

        It is behind the windows that were served before, so that what is declared from it on concerns none of them.
        """
        newest_us, frontier_us, ended_us = self.slicer.newest_us, self.slicer.frontier_us, self.slicer.ended_us
        begin_us = min((us for us in (newest_us + 1, frontier_us) if us > NEVER_US + 1), default=FAR_US)
        return begin_us if ended_us == FAR_US else max(begin_us, ended_us + 1)

    def take_rows(self) -> list[StepRows]:
        rows, self.rows = self.rows, []
        return rows


def withdrawn(sent: Sequence[Serving], serving: Sequence[Serving], frontier_us: int) -> tuple[Serving, ...]:
    """Ranges already sent upward, of queries that are no longer served, that do not end by the frontier.

    Each now ends at its own start, so that it contains no window (6.3). Those that end by the frontier are over.
    """
    known = {each.key for each in serving}
    ended = (each for each in sent if each.key not in known and _until_us(each) > frontier_us)
    return tuple(replace(each, end_until_us=max(each.from_us, 0)) for each in ended)


def _until_us(serving: Serving) -> int:
    return min((us for us in (serving.start_until_us, serving.end_until_us) if us is not None), default=FAR_US)


def moved_queries(
    by_group: Mapping[Group, Sequence[Query]], states: Mapping[Group, GroupState], sources: Mapping[str, Source]
) -> dict[str, int | None]:
    """Query id -> event time from which its new revision, in another group, is in force; None: no such change.

    A query changes its group with its filter, key, lateness or gap. The old revision gets readings until its last
    window ends, as within a group (docs/protocol.md 6.3), so the time lies after all readings and promises of both
    groups.
    """
    groups = {query.id: (group, query) for group, queries in by_group.items() for query in queries}
    moved: dict[str, int | None] = dict.fromkeys(groups)
    for before, state in states.items():
        for name in state.slicer.open_queries & groups.keys():
            group, query = groups[name]
            known = states.get(group)
            if group == before or (known is not None and known.slicer.in_force.get(name) == query):
                continue
            newest_us = max(state.slicer.newest_us, sources[query.source].newest_us)
            frontier_us = max(state.slicer.frontier_us, NEVER_US if known is None else known.slicer.frontier_us)
            from_us = NEVER_US if query.effective_from_us is None else query.effective_from_us
            after_us = newest_us + 1 if newest_us > NEVER_US else NEVER_US
            moved[name] = max(after_us, frontier_us, from_us, moved[name] or NEVER_US)
    return moved
