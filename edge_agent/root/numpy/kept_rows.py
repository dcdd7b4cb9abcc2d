"""Keeps the rows that took effect, by plan, until no window needs them; lists readings that came too late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edge_agent.algebra.frame import NEVER_US, Plan
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.key import EpochKey, QueryPlace
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.windows import extent_us
from edge_agent.machines.downlink.epochs.counting import ALL
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.epochs.epoch_frames import Effect
from edge_agent.machines.downlink.epochs.renumbering import Renumbering
from edge_agent.root.completeness import Decision, GroupView
from edge_agent.root.decision.read_plan import KINDS
from edge_agent.root.decision.root_state import RootState
from edge_agent.root.decision.work import TooLate, identity
from edge_agent.root.instant_slices import basis_of_all, reaches, slices_of
from edge_agent.root.numpy.ordered_rows import RawRows
from edge_agent.root.numpy.partial_index import PartialIndex
from edge_agent.root.numpy.rows import TooLateReadings
from edge_agent.root.numpy.session_rows import SessionRows
from edge_agent.root.work_rows import too_late_rows


@dataclass(slots=True)
class KeptRows:
    """Rows of plans by `identity`. beyond: readings that are in no result.

    numbers: common key and node numbers of all rows. indexes: slices, windows and pieces of sessions. raw: raw readings
    that wait for positions. unlifted: the readings of the slices in `indexes` that were made from raw readings.
    """

    numbers: Renumbering = field(default_factory=Renumbering)
    indexes: dict[bytes, PartialIndex] = field(default_factory=dict)
    raw: dict[bytes, RawRows] = field(default_factory=dict)
    unlifted: dict[bytes, PartialIndex] = field(default_factory=dict)
    beyond: list[TooLateReadings] = field(default_factory=list)

    def take(
        self,
        effect: Effect,
        dictionary: EpochDictionary,
        state: RootState,
        too_late: Mapping[tuple[str, int, int, int], TooLate],
    ) -> None:
        """Keep the rows of a frame that took effect. too_late: by node, epoch, seq and number of the part."""
        assert effect.frame is not None
        epoch, number = EpochKey(effect.node, effect.epoch), 0
        for part in effect.frame.groups:
            for late, sections in ((False, part.sections), (True, part.late)):
                for section in sections:
                    number += 1  # as wire.heads.parts_of counts
                    group, plan = dictionary.plans[section.plan]
                    if plan.kind not in KINDS:
                        continue
                    counted = effect.counting.get(section.plan, ALL).of(section.rows(plan.basis))
                    rows = self.numbers.rows(epoch, dictionary, counted)
                    beyond = too_late.get((*epoch, effect.seq, number))
                    if beyond is not None:
                        rows = self._without(rows, beyond)
                    if len(rows):
                        self._keep(group, plan, rows, state, late=late)

    def _keep(self, group: Group, plan: Plan, rows: Partials, state: RootState, *, late: bool) -> None:
        name = identity(group, plan)
        if plan.kind == "raw" and not group.cut.central:
            self.raw.setdefault(name, RawRows(plan.scale)).parts.append(rows)
            return
        if plan.kind == "raw":
            self.unlifted.setdefault(name, PartialIndex(plan)).add(rows, late=late)
            plan = _lifted(plan, state)
            rows = self._slices(group, plan, rows)
        self.indexes.setdefault(name, PartialIndex(plan)).add(rows, late=late)

    def lift_again(self, state: RootState) -> None:
        """Make the slices of raw readings again if other functions are wanted of them, by definitions that are known or
        corrected since (docs/protocol.md 6.5). Call it before `take`.
        """
        for name, raw in self.unlifted.items():
            if name not in state.plans:
                continue
            group, plan = state.plans[name]
            plan = _lifted(plan, state)
            if plan.basis != self.indexes[name].plan.basis:
                index = self.indexes[name] = PartialIndex(plan)
                for rows, late in raw.within(NEVER_US, -NEVER_US):
                    index.add(self._slices(group, plan, rows), late=late)

    def _slices(self, group: Group, plan: Plan, rows: Partials) -> Partials:
        return slices_of(rows, plan.basis, plan.scale, self.numbers.keys.texts, reaching=reaches(group))

    def _without(self, rows: Partials, beyond: TooLate) -> Partials:
        """Note the readings of a part that are in no result; return the other rows."""
        gone, texts = too_late_rows(rows, beyond), self.numbers.keys.texts
        columns = (gone.key, gone.start, gone.end, gone.states["count"])
        for key, start, end, readings in zip(*(column.tolist() for column in columns), strict=True):
            about = (beyond.node, beyond.source, texts[key], start, end, readings)
            self.beyond.append(TooLateReadings(*about, reason=beyond.reason))
        if beyond.decided:  # a raw row may have readings that get their positions later
            return rows
        return rows.take(~beyond.concerns(rows.start, rows.end))

    def free(self, state: RootState, decision: Decision, sessions: SessionRows) -> None:
        """Drop rows that no window needs any more, and rows of ended groups. sessions: the present session rows."""
        for name in [name for name in (*self.indexes, *self.raw) if name not in state.plans]:
            self.indexes.pop(name, None)
            self.raw.pop(name, None)
            self.unlifted.pop(name, None)
        for name, index in self.indexes.items():
            group, plan = state.plans[name]
            view = decision.groups.get(group)
            if view is None or index.low_us >= view.frontier_us - state.limits.horizon_us:
                continue  # as at nearly every decision: all rows are within the horizon
            below_us = _needed_us(group, plan, state, decision, sessions)
            if below_us is not None:
                index.free(below_us)
                if name in self.unlifted:
                    self.unlifted[name].free(below_us)
        for name, raw in self.raw.items():
            group, plan = state.plans[name]
            view, known = decision.groups.get(group), state.of(plan)
            if view is not None and not known:
                raw.free(view.frontier_us - state.limits.horizon_us)
            elif view is not None and all(query.key in view.serving for query in known):
                raw.free(min(state.closed_us(QueryPlace(*query.key, group.node)) for query in known))


def _lifted(plan: Plan, state: RootState) -> Plan:
    """The plan of slices of 1 us made from the raw readings of a plan."""
    return replace(plan, kind="slice", basis=basis_of_all(state.of(plan), plan.scale))


def _needed_us(group: Group, plan: Plan, state: RootState, decision: Decision, sessions: SessionRows) -> int | None:
    """Rows of the plan that end before this time are no longer needed; None: not known."""
    view: GroupView | None = decision.groups.get(group)
    queries = state.of(plan)
    if view is None or not queries:
        return None
    longest_us = max(extent_us(query.window) for query in queries)
    needed: list[int | None] = [view.frontier_us - state.limits.horizon_us - longest_us]
    for query in queries:
        key = query.key
        if key in view.serving:
            place = QueryPlace(*key, group.node)
            settled_us = state.settled_us(place, view.frontier_us)
            needed += [state.needs(place), settled_us - longest_us]
            track = state.sessions.tracks.get(place)
            if track is not None:
                needed.append(sessions.low_us(place))  # a row that may change is computed again from its first piece on
                start_us = view.serving[key].start_from_us
                if start_us is not None and settled_us <= track.crossing_us:  # pieces show that it gives no row
                    needed.append(start_us - longest_us)
        if key in state.markers.windows:  # to compute a window again, all its rows are needed
            needed.append(state.markers.windows[key].kept_us(group.node))
    return min(us for us in needed if us is not None)
