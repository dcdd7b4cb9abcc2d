"""Decides which readings that took effect are in no result. Pure.

These are listed in ops.late instead (docs/protocol.md): rows all of whose windows ended before the correction horizon
(4.2), or belong to an older revision that their node no longer feeds (6.3); raw readings below a deciding frontier that
has given positions (7.4).

The result to which such readings would have belonged may still be written: for a session longer than the horizon, or a
window whose revision waits. The root therefore remembers them until no such result can follow (`needed_us`), and leaves
them out when it decodes rows.

Rows whose plan contradicts a definition that is published after them are in no result either; they are declared lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from edge_agent.algebra.frame import LOST, NEVER_US, Gap, Plan
from edge_agent.algebra.query.group_cut import PunctuationCut
from edge_agent.algebra.query.key import EpochKey, QueryPlace
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.span import FAR_US
from edge_agent.algebra.windows import Window, evenly, extent_us
from edge_agent.config.in_force.known_definitions import contradiction
from edge_agent.machines.downlink.epochs.counting import ALL
from edge_agent.machines.downlink.epochs.epoch_frames import Effect
from edge_agent.root.completeness import Decider, Decision, GroupView
from edge_agent.root.decision import ops_rows
from edge_agent.root.decision.root_state import RootState
from edge_agent.root.decision.work import TooLate
from edge_agent.wire.heads import Part, Parts

BEFORE: Final = "pieces of sessions that began more than two horizons earlier: their readings are in ops.late"

CONTRADICTED: Final = "rows of a query whose published definition contradicts them: they came before it"


def beyond(
    state: RootState, effect: Effect, part: Part, of: tuple[Group, Plan], view: GroupView | None
) -> Iterator[TooLate]:
    """Yields the readings of a part that are in no result.

    state: before this decision closes anything. of: group and plan of the part. view: of the group.
    """
    group, plan = of
    queries = state.of(plan)
    if plan.kind == "marker" or not queries:
        return
    if view is not None:  # a query that was removed long ago has no rows any more
        queries = [query for query in queries if query.key in view.serving] or queries
    place, source = (effect.node, effect.epoch, effect.seq, part.number), queries[0].source
    closed_us = _closed_us(state, queries, group)
    if plan.kind == "raw" and not isinstance(group.cut, PunctuationCut):
        if part.first_start_us < closed_us:
            yield TooLate(*place, source, closed_us, decided=True)
        return
    if view is None or view.frontier_us == NEVER_US:
        return
    from_us = min(_starts_from_us(state, view, query, part) for query in queries)
    settled_us = min(closed_us, state.floor_us(group, view.frontier_us))
    if plan.kind == "session" or isinstance(group.cut, PunctuationCut):  # rows may begin long before: their ends count
        last_us = _apart_us(state, queries, group, view, settled_us) if plan.kind != "session" else settled_us + 1
        before_us = max(last_us - max(extent_us(query.window) for query in queries), from_us)
        begun_us = state.begun.get(group, NEVER_US)
        early = part.first_start_us < begun_us
        if part.earliest_end_us - 1 < before_us or early:
            until_us = part.latest_end_us if early else NEVER_US
            yield TooLate(*place, source, before_us, lasting=True, begun_us=begun_us, until_us=until_us)
    elif part.first_start_us < max(settled_us, from_us):
        before_us = max(min(_first_open_us(query.time_window, settled_us) for query in queries), from_us)
        if part.first_start_us < before_us:
            yield TooLate(*place, source, before_us)


def _apart_us(state: RootState, queries: list[Query], group: Group, view: GroupView, settled_us: int) -> int:
    """The time by which rows between markers end to be in no result. settled_us: windows that ended by then have left.

    Rows are whole windows, unless the root cuts them: then readings of a window that ends later count.
    """
    starts = [settled_us]
    for query in queries if group.cut.central else ():
        windows = state.markers.windows.get(query.key)
        first_us = None if windows is None else windows.first_us("", state.markers_past_us(query.key, group, view))
        starts += [] if first_us is None else [first_us]
    return min(starts)


def _starts_from_us(state: RootState, view: GroupView, query: Query, part: Part) -> int:
    """The start of the first window of a revision, for late rows; NEVER_US if no older revision has windows before it.

    A node that no longer feeds an older revision sends its late readings in rows of the next revision (6.3).
    """
    serving = view.serving.get(query.key)
    from_us = None if serving is None else serving.start_from_us
    if not part.late or from_us is None or part.first_start_us >= from_us:
        return NEVER_US
    older = any(key.query == query.id and key.revision < query.revision for key in state.queries)
    return from_us if older else NEVER_US


def begun_before(decider: Decider, state: RootState, decision: Decision) -> list[tuple[str, Gap]]:
    """Gap records for pieces of sessions that end within the horizon but began too early, and so are in no result.

    Results that they would have joined may need readings that are already deleted (docs/protocol.md 8.4).
    """
    out = []
    for effect in decision.effects if state.begun else ():
        if effect.frame is None:
            continue
        dictionary = decider.parent.dictionaries[EpochKey(effect.node, effect.epoch)]
        for part in effect.frame.groups:
            for section in (*part.sections, *part.late):
                group, plan = dictionary.plans[section.plan]
                begun_us, view = state.begun.get(group), decision.groups.get(group)
                if plan.kind != "session" or begun_us is None or view is None:
                    continue
                _, start, end = effect.counting.get(section.plan, ALL).of_pieces(*section.pieces())
                early = (start < begun_us) & (end - 1 + group.cut.gap_us > state.floor_us(group, view.frontier_us))
                if early.any():
                    leaves = _leaves(decider, group, effect.node)
                    span = int(start[early].min()), int(end[early].max())
                    out.append((effect.node, Gap((group,), *span, 0, leaves, LOST, detail=BEFORE)))
    return out


def contradicted(
    decider: Decider, decision: Decision, parts: Parts, extent: Mapping[EpochKey, tuple[int, int]]
) -> list[tuple[str, Gap]]:
    """Gap records for rows that took effect before the operator published a definition that contradicts their plan.

    They are in no result any more (docs/protocol.md 6.5). parts, extent: rows of this decision, and those before it.
    """
    corrected = {query.key: query for _, query in ops_rows.queries(decision.corrected, 0) if query is not None}
    out = []
    for line, dictionary in decider.parent.dictionaries.items() if corrected else ():
        bad: dict[Group, set[int]] = {}
        for number, (group, plan) in dictionary.plans.items():
            if any(key in corrected and contradiction(corrected[key], group, plan) for key in plan.keys):
                bad.setdefault(group, set()).add(number)
        new = [part for (node, epoch, _), found in parts.items() if line == (node, epoch) for part in found]
        for group, numbers in bad.items():
            spans = [(part.first_start_us, part.latest_end_us) for part in new if part.plan in numbers]
            spans += [extent[line]] if line in extent else []
            if spans:
                span = min(low for low, _ in spans), max(high for _, high in spans)
                leaves = _leaves(decider, group, line.node)
                out.append((line.node, Gap((group,), *span, -1, leaves, LOST, detail=CONTRADICTED)))
    return out


def _leaves(decider: Decider, group: Group, node: str) -> tuple[str, ...]:
    """The gateways whose readings of a group may be in rows of a child."""
    family = decider.parent.children.memberships.get(group)
    member = None if family is None else family.members.get(node)
    return (() if member is None else tuple(sorted(member.leaves))) or (node,)


def needed_us(state: RootState, group: Group, plan: Plan) -> int:
    """Too-late readings of a plan that end at or before this time may be forgotten; FAR_US: all of them.
    state: of the last decision, with the pieces and markers of this one.
    """
    found = [FAR_US]
    for query in state.of(plan):
        place = QueryPlace(*query.key, group.node)
        track = state.sessions.tracks.get(place)
        if track is not None:  # a row that may change begins at most the longest session before
            latest = (state.floors.get(group, NEVER_US), track.low_us, *(track.touched or ())[:1])
            found.append(min(latest) - track.longest_us)
        elif query.key in state.markers.windows:
            kept_us = state.markers.windows[query.key].kept_us(group.node)
            found += [] if kept_us is None else [kept_us]
        else:
            found += [after_us - extent_us(query.window) for after_us, _ in state.pending.get(place, ())]
    return min(found)


def forget(state: RootState) -> None:
    """Forget readings that came too late, once no row that would contain them can be written any more."""
    needed: dict[bytes, int] = {}
    for line, rows in [*state.too_late.items()]:
        for place, found in [*rows.items()]:
            _seq, digest, _late = place
            if digest not in needed:
                needed[digest] = needed_us(state, *state.plans[digest]) if digest in state.plans else FAR_US
            if max(found.before_us, found.until_us) <= needed[digest]:
                del rows[place]
        if not rows:
            del state.too_late[line]


def _first_open_us(window: Window, settled_us: int) -> int:
    """Start of the first window that ends after `settled_us`: rows that start earlier lie only in windows that have
    ended.
    """
    even = evenly(window)
    if even is not None:
        number = (settled_us - even.length_us - even.offset_us) // even.slide_us + 1
        return even.offset_us + max(number, 0) * even.slide_us
    at = np.array([settled_us])
    starts = window.assign(at, at + 1)[1]
    return int(starts.min(initial=settled_us))


def _closed_us(state: RootState, queries: list[Query], group: Group) -> int:
    """Windows of all these queries that end by this time have had their rows."""
    return min(state.closed_us(QueryPlace(*query.key, group.node)) for query in queries)
