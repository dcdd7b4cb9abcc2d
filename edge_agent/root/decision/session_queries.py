"""Assigns new pieces of sessions to queries, and turns complete sessions into Islands. Pure.

Rules: docs/protocol.md 5. edge_agent/root/decision/session_tracker.py keeps the state of each query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from edge_agent.algebra.frame import NEVER_US, Gap, Serving
from edge_agent.algebra.query.key import EpochKey, QueryPlace
from edge_agent.algebra.query.query import Group, Query
from edge_agent.machines.downlink.epochs.counting import ALL
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.epochs.renumbering import Renumbering
from edge_agent.root.completeness import Decision
from edge_agent.root.decision.session_coverage import CoverageSources, grid
from edge_agent.root.decision.session_tracker import (
    ClosableSessions,
    OpenSessions,
    Pieces,
    SessionDecisionView,
    behind,
)
from edge_agent.root.decision.window_ranges import CoverageRef
from edge_agent.root.decision.work import Islands, SessionKey

MOST_KEYS: Final = 200_000  # texts of keys and nodes that may stay though their epochs have ended: some 30 MB


@dataclass(slots=True)
class SessionQueries:
    """The open sessions of all queries. tracks: by query, revision and node. numbers: numbers of keys.

    most_keys: with more keys and nodes than that, those in use are counted when an epoch ends, and numbered anew if
    they are few.
    """

    tracks: dict[QueryPlace, OpenSessions] = field(default_factory=dict)
    numbers: Renumbering = field(default_factory=Renumbering)
    most_keys: int = MOST_KEYS

    @property
    def waiting(self) -> bool:
        """Whether rows may have to be revised once a revision is due."""
        return any(track.waiting for track in self.tracks.values())

    def join(
        self,
        decision: Decision,
        dictionaries: Mapping[EpochKey, EpochDictionary],
        floor_us: Callable[[Group, int], int],
        begun: Mapping[Group, int],
    ) -> None:
        """Assign pieces of sessions that took effect to their queries. dictionaries: of the epochs.

        floor_us, begun: see RootState.
        """
        came: dict[QueryPlace, tuple[Group, list[Pieces]]] = {}
        for effect in decision.effects:
            line = EpochKey(effect.node, effect.epoch)
            for part in () if effect.frame is None else effect.frame.groups:
                for section in (*part.sections, *part.late):
                    group, plan = dictionaries[line].plans[section.plan]
                    if plan.kind == "session":
                        key, start, end = effect.counting.get(section.plan, ALL).of_pieces(*section.pieces())
                        pieces = (self.numbers.maps(line, dictionaries[line])[0][key], start, end)
                        for query in plan.keys:
                            came.setdefault(QueryPlace(*query, group.node), (group, []))[1].append(pieces)
        for place, (group, found) in came.items():
            view = decision.groups.get(group)
            track = self.tracks.setdefault(place, OpenSessions())
            horizon_us = NEVER_US if view is None else floor_us(group, view.frontier_us)
            track.add(found, self.numbers.keys, group.cut, horizon_us, begun.get(group, NEVER_US))

    def ended(self, place: QueryPlace, now: SessionDecisionView) -> ClosableSessions | None:
        """The sessions of a query that get rows now; None if there are none."""
        return self.tracks.setdefault(place, OpenSessions()).step(now, self.numbers.keys)

    def stretch(self, place: QueryPlace, longest_us: int) -> None:
        """Note the length [us] of the longest row of a query; sessions tracked here may all be shorter."""
        if place in self.tracks:
            self.tracks[place].stretch(longest_us)

    def islands(
        self,
        query: Query,
        now: SessionDecisionView,
        ended: ClosableSessions,
        *,
        shape: int,
        orders: tuple[int, ...],
        gaps: tuple[Gap, ...],
    ) -> tuple[Islands, tuple[CoverageRef, ...]]:
        """Islands for the complete sessions, and their coverages. shape, orders: see Islands. gaps: all known."""
        serving: Serving = now.serving
        track = self.tracks[QueryPlace(*query.key, now.group.node)]
        registers = behind(now.view, track.shut, track.shut_us)
        since = now.view.since.get(query.key, {})
        known = CoverageSources(now.group, now.view, gaps, now.begins, now.floor_us, registers, now.ends, since)
        cells, covers = grid(known, ended.first, ended.again)
        islands = Islands(
            query=query.id,
            revision=query.revision,
            shape=shape,
            gap_us=now.group.cut.gap_us,
            max_us=now.group.cut.max_us,
            orders=orders,
            bound_us=ended.bound_us,
            shut_us=ended.shut_us,
            low_us=ended.low_us,
            due=now.due,
            touch=ended.touched,
            start_from_us=serving.start_from_us,
            start_until_us=serving.start_until_us,
            end_until_us=serving.end_until_us,
            crossing_us=self.tracks[QueryPlace(*query.key, now.group.node)].crossing_us,
            node=now.group.node,
            meets=False,
            keys=tuple(SessionKey(name, *found) for name, found in ended.keyed.items()),
            cells=cells,
        )
        return islands, covers

    def forget(self, line: EpochKey) -> None:
        """Drop the numbers of an epoch that has ended.

        From time to time also the keys that no open session has, and the nodes.
        """
        self.numbers.forget(line)
        known = self.numbers.many
        if known > self.most_keys:
            self.most_keys = max(MOST_KEYS, 2 * self.numbers.used(*(track.code for track in self.tracks.values())))
        if known > self.most_keys:
            now = self.restore(self.snapshot())
            self.tracks, self.numbers = now.tracks, now.numbers

    def snapshot(self) -> list[object]:
        return [[*place, track.snapshot(self.numbers.keys)] for place, track in self.tracks.items()]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> SessionQueries:
        made = cls()
        for query, revision, node, found in state:
            made.tracks[QueryPlace(query, revision, node)] = OpenSessions.restore(found, made.numbers.keys)
        return made
