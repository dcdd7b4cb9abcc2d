"""Windows between markers: the windows of single nodes of which they consist, and their coverage. Pure.

root/punctuation_state.py decides which windows get rows now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from edge_agent.algebra.coverage import Coverage, session_coverage, window_coverage
from edge_agent.algebra.frame import LOST, Gap
from edge_agent.algebra.punctuation.markers import MARKER_KEY
from edge_agent.algebra.query.group_cut import PunctuationCut
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.root.completeness import Decision, GroupView

Place = tuple[str, int, int]  # node of the rows, start, end
Pick = tuple[str, int, int]  # node of a group, start, end
Complete = tuple[Place, tuple[Pick, ...], tuple[Place, ...]]  # window, its parts, shown windows that it replaces
Members = Mapping[str, tuple[Group, GroupView]]  # the groups that serve a query, by node


@dataclass(frozen=True, slots=True)
class JointWindow:
    """One window of a query. picks: ranges of its rows. within: rows inside a pick count; else only equal ones."""

    place: Place
    picks: tuple[Pick, ...]
    coverage: Coverage
    within: bool


@dataclass(frozen=True, slots=True)
class WindowChanges:
    """closing: windows that get their first rows. revising: windows whose rows are computed again. gone: withdrawn."""

    closing: tuple[JointWindow, ...] = ()
    revising: tuple[JointWindow, ...] = ()
    gone: tuple[Place, ...] = ()


def coverage_of(
    key: QueryKey,
    whole: tuple[Place, Sequence[Pick]],
    members: Members,
    gaps: Sequence[Gap],
    lost: Collection[str] = (),
) -> Coverage:
    """The coverage of a window and its parts. lost: nodes whose part will not come, though they have gone on."""
    place, picks = whole
    expected: set[str] = set()
    missing: set[tuple[str, str]] = set()
    here = {node for node, _, _ in picks}
    for node, (group, view) in members.items():
        if group.cut.numbered:  # leaves that are left out of the window with this number
            lacking = {*view.unheard} if node in here else {*view.leaves, *view.unheard}
            expected |= lacking
            missing |= {(leaf, LOST if node in lost and leaf in view.leaves else "behind") for leaf in lacking}
    for node, start_us, end_us in picks:
        if node not in members:
            continue
        group, view = members[node]
        begins, ends, since = (each.get(key, {}) for each in (view.begins, view.ends, view.since))
        if group.cut.gap_us:
            bounds = {leaf: view.leaf_bound_us(leaf, MARKER_KEY) for leaf in view.leaves}
            last_us = place[2] - group.cut.gap_us
            found = session_coverage(bounds, gaps, group, place[1], last_us, begins=begins, ends=ends, since=since)
        else:
            found = window_coverage(view.leaves, gaps, group, start_us, end_us, begins=begins, ends=ends, since=since)
        expected |= set(found.expected)
        missing |= set(found.missing)
    return Coverage(tuple(sorted(expected)), tuple(sorted(missing)))


def interpretations(members: Members) -> set[str]:
    """The interpretations of markers in the groups that serve a query."""
    return {group.cut.interpretation for group, _ in members.values() if isinstance(group.cut, PunctuationCut)}


def reached_us(group: Group, view: GroupView) -> int:
    """The event time up to which windows may close: the frontier; the least one of all leaves if they wait for each."""
    if group.cut.central and not group.cut.skips:
        return min(view.frontier_us, *view.leaves.distinct())
    return view.frontier_us


def members_of(decision: Decision) -> dict[QueryKey, dict[str, tuple[Group, GroupView]]]:
    """For each query of windows between markers: the groups that serve it and expect a leaf, by node."""
    out: dict[QueryKey, dict[str, tuple[Group, GroupView]]] = {}
    for group, view in decision.groups.items():
        for key in view.serving if isinstance(group.cut, PunctuationCut) and view.leaves else ():
            out.setdefault(key, {})[group.node] = (group, view)
    return out


def joined(windows: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Windows in order of start, joined where they overlap or touch."""
    out: list[tuple[int, int]] = []
    for start_us, end_us in windows:
        if out and start_us <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end_us))
        else:
            out.append((start_us, end_us))
    return out
