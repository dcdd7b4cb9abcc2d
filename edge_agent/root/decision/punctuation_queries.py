"""Decides which windows between markers get rows, as window ranges. Pure.

edge_agent/root/punctuation_state.py finds these windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge_agent.algebra.frame import Gap, Plan
from edge_agent.algebra.query.key import EpochKey, QueryKey, QueryPlace
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.root.completeness import Decision, GroupView
from edge_agent.root.decision.window_ranges import CoverageRef
from edge_agent.root.decision.withdrawals import WithdrawnWindow
from edge_agent.root.decision.work import WindowRange
from edge_agent.root.punctuation_state import PunctuationWindows
from edge_agent.root.punctuation_windows import JointWindow, members_of
from edge_agent.wire.heads import Part

PastOf = Callable[[QueryKey, Group, GroupView | None], int]  # RootState.markers_past_us


@dataclass(frozen=True, slots=True)
class RowRecipe:
    """How to compute rows of a query. shape: index into Work.shapes. orders: node -> read requests of its group.

    by_end: whether rows with equal start may differ in their end.
    """

    shape: int
    orders: Callable[[str], tuple[int, ...]]
    by_end: bool


@dataclass(frozen=True, slots=True)
class PunctuationRequests:
    """The windows of all queries that get rows for the first time, get them again, or lose them."""

    closing: list[tuple[WindowRange, CoverageRef]] = field(default_factory=list)
    revising: list[tuple[WindowRange, CoverageRef]] = field(default_factory=list)
    gone: list[WithdrawnWindow] = field(default_factory=list)


@dataclass(slots=True)
class PunctuationQueries:
    """The windows between markers of all queries. windows: by query revision."""

    windows: dict[QueryKey, PunctuationWindows] = field(default_factory=dict)

    @property
    def waiting(self) -> bool:
        """Whether rows may have to be revised once a revision is due."""
        return any(windows.waiting for windows in self.windows.values())

    def stepped_back(self, now_us: int) -> None:
        """Treat no row as revised after now_us, because the lander's clock went back to it."""
        for windows in self.windows.values():
            if windows.revised_us is not None:
                windows.revised_us = min(windows.revised_us, now_us)

    def join(self, decision: Decision, dictionaries: Mapping[EpochKey, EpochDictionary], past_us: PastOf) -> None:
        """Assign marker rows that took effect to their queries. dictionaries: of the epochs. past_us: see PastOf."""
        for effect in decision.effects:
            for part in () if effect.frame is None else effect.frame.groups:
                for section in (*part.sections, *part.late):
                    dictionary = dictionaries[EpochKey(effect.node, effect.epoch)]
                    group, plan = dictionary.plans[section.plan]
                    if plan.kind == "marker":
                        keys, start, end = (column.tolist() for column in section.pieces())
                        names, view = [dictionary.keys[number] for number in keys], decision.groups.get(group)
                        for key in plan.keys:
                            windows = self.windows.setdefault(key, PunctuationWindows())
                            windows.add_markers(group.node, names, start, end, past_us(key, group, view))

    def touch(self, part: Part, plan: Plan, group: Group, view: GroupView | None, past_us: PastOf) -> None:
        """Note windows that a part may have changed. They may be too many: unchanged rows are not written again.

        view: of the group. past_us: see PastOf.
        """
        for key in plan.keys if plan.kind != "marker" else ():
            windows = self.windows.setdefault(key, PunctuationWindows())
            low_us, high_us = np.array([part.first_start_us]), np.array([part.latest_end_us])
            windows.touch(group.node, low_us, high_us, past_us(key, group, view))

    def low_us(self, place: QueryPlace, closed_us: int) -> int:
        """The earliest start of rows that a query still waits for."""
        low_us = self.windows[place.key].low_us(place.node) if place.key in self.windows else None
        return closed_us if low_us is None else min(closed_us, low_us)

    def step(
        self,
        decision: Decision,
        recipe_of: Callable[[QueryKey], RowRecipe | None],
        gaps: Sequence[Gap],
        *,
        due_us: int,
        horizon_us: int,
        past_us: PastOf,
    ) -> PunctuationRequests:
        """The windows that get rows at a decision. recipe_of: None for queries it cannot read. gaps: all known.

        past_us: see PastOf.
        """
        out = PunctuationRequests()
        for key, members in members_of(decision).items():
            recipe = recipe_of(key)
            if recipe is None:
                continue
            windows = self.windows.setdefault(key, PunctuationWindows())
            past = {node: past_us(key, group, view) for node, (group, view) in members.items() if not group.node}
            found = windows.step(key, members, decision, gaps, due_us=due_us, horizon_us=horizon_us, past=past)
            out.closing.extend(_span(key, joint, recipe) for joint in found.closing)
            out.revising.extend(_span(key, joint, recipe) for joint in found.revising)
            out.gone.extend(WithdrawnWindow(key[0], key[1], node, start, end) for node, start, end in found.gone)
        return out

    def snapshot(self) -> list[object]:
        return [[*key, windows.snapshot()] for key, windows in self.windows.items()]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> PunctuationQueries:
        return cls({QueryKey(query, revision): PunctuationWindows.restore(found) for query, revision, found in state})


def _span(key: QueryKey, joint: JointWindow, recipe: RowRecipe) -> tuple[WindowRange, CoverageRef]:
    node, start_us, end_us = joint.place
    cover, length_us = CoverageRef.of(joint.coverage), end_us - start_us
    picks = tuple((order, low, high) for of, low, high in joint.picks for order in recipe.orders(of))
    span = WindowRange(
        *(*key, recipe.shape, end_us - 1, end_us, length_us, length_us, start_us, start_us, start_us),
        orders=tuple(sorted({order for order, _, _ in picks})),
        coverage_id=cover.id,
        expected=len(joint.coverage.expected),
        received=joint.coverage.received,
        complete=joint.coverage.complete,
        node=node,
        picks=picks,
        within=joint.within,
        by_end=recipe.by_end,
    )
    return span, cover
