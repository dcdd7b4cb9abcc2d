"""The gateway: readings in, frames of closed slices out, everything that is open in the spool.

Rules (docs/protocol.md): what closes below the frontier is in this frame or an earlier one, the frontier never falls
(4.1); late readings leave at once (4.2); after a restart what was open leaves as the last frames of the old epoch, then
comes the next birth (1.3); sources that cannot be read again leave a gap record for the time of the stop (3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from edge_agent.algebra.frame import BEGAN, NEVER_US, Frame, Gap, Leaf, Serving
from edge_agent.algebra.punctuation.markers import Marker, markers_of_changes
from edge_agent.algebra.query.group_cut import PunctuationCut, SessionCut, TimeCut
from edge_agent.algebra.query.query import Group, Query, Sensor
from edge_agent.errors import ConfigError
from edge_agent.machines.checkpoint.codec import group_from_plain, group_to_plain
from edge_agent.machines.events import Action, Configured, Event, Mark, Note, Read, Restored
from edge_agent.machines.gateway.slicer import Slicer
from edge_agent.machines.gateway.slicer_slots import PREFIXES, SlicerSlots
from edge_agent.machines.gateway.source import Source
from edge_agent.machines.node import Node, NodeSettings, refuse
from edge_agent.machines.uplink.step import GroupStep, Hints, Step, StepRows

BATCH_ROWS: Final = 65_536  # readings sliced at once: large enough for numpy, small enough for the cache


class Gateway(Node):
    """A leaf of the tree."""

    def __init__(
        self,
        settings: NodeSettings,
        random: Random,
        restored: Restored | None = None,
        load: Callable[[int, int], Frame] | None = None,
    ) -> None:
        """restored: what the spool holds; None for a new one. load: see Node."""
        restored = restored or Restored({})
        super().__init__(settings, random, restored, load or _no_frames)
        self.sources: dict[str, Source] = {}
        self.slicers: dict[Group, Slicer] = {}
        self._restored = restored.state
        self._texts: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._configured = False
        self._serving: dict[Group, tuple[Serving, ...]] = {}
        self._said: dict[Group, tuple[Serving, ...]] = {}
        self._spent: dict[Group, list[StepRows]] = {}  # released by a change of scale, to leave with the next step
        self._promised: dict[Group, int] = {}
        self._touched: set[Group] = set()
        self._slots = SlicerSlots()
        self._queries: tuple[Query, ...] = ()
        self._gaps: list[Gap] = []  # to leave with the next step
        self._late_markers = 0  # since it was last told
        self._notes: list[Action] = []  # to be said after the commit

    def _ready(self) -> bool:
        return self._configured

    def _handle(self, event: Event, now_us: int) -> list[Action]:
        match event:
            case Read():
                return self._read(event, now_us)
            case Configured():
                return self._configure(event, now_us)
            case Mark(marker):
                for group, slicer in self.slicers.items():
                    if isinstance(group.cut, PunctuationCut) and not group.cut.marker_source:
                        self._mark(group, slicer, (marker,))
                self._dirty = True
                return [Note("marker.commanded", {"time": marker.time_us, "id": marker.id, "kind": marker.role})]
            case _:
                raise refuse(event, self.settings.node)

    def _read(self, read: Read, now_us: int) -> list[Action]:
        source = self.sources.get(read.sensor)
        if source is None:
            return [Note("reading.unknown_sensor", {"sensor": read.sensor})]
        source.take(read, now_us)
        self._wait_for(read.token, now_us)
        if source.buffered >= BATCH_ROWS:
            self._slice(source)
        return []

    def _slice(self, source: Source) -> None:
        batches = source.drain()
        markers, source.markers = source.markers, []
        changes: list[tuple[int, float]] | None = None
        for group, slicer in self.slicers.items():
            cut = group.cut if isinstance(group.cut, PunctuationCut) else None
            if cut is not None and cut.marker_source == source.sensor.id:
                changes = source.changes.of(batches, source.sensor.scale) if changes is None else changes
                self._mark(group, slicer, markers_of_changes(cut, changes))
            if group.source == source.sensor.id and (batches or markers):
                self._touched.add(group)
                if cut is not None and not cut.marker_source:
                    self._mark(group, slicer, markers)
                for batch in batches:
                    slicer.push(batch)

    def _mark(self, group: Group, slicer: Slicer, markers: Sequence[Marker]) -> None:
        if markers:
            self._touched.add(group)
            self._late_markers += slicer.mark(markers)

    # --- configuration ------------------------------------------------------------------------------------------

    def _configure(self, event: Configured, now_us: int) -> list[Action]:
        """Put definitions in force; the next commit says so upward."""
        if not self._configured:
            self._recover(event.sensors, now_us)
        for source in self.sources.values():  # readings so far belong to the plans so far
            self._slice(source)
        self._queries = event.queries
        self._texts = (event.sensor_texts, event.query_texts)
        sensors = {s.id: s for s in event.sensors}
        for name in [n for n in self.sources if n not in sensors]:
            del self.sources[name]
        for sensor in event.sensors:
            known = self.sources.get(sensor.id)
            if known is None:
                known = self.sources[sensor.id] = Source(sensor, now_us)
                state = self._restored.get(f"source/{sensor.id}")
                if isinstance(state, dict):
                    known.restore(state)
            known.sensor = sensor
        by_group: dict[Group, list[Query]] = {}
        for query in event.queries:
            if query.source in sensors:
                by_group.setdefault(query.group_at(self.settings.node), []).append(query)
        moved = self._moved(by_group)
        out: list[Action] = []
        for group in [*self.slicers, *(g for g in by_group if g not in self.slicers)]:
            try:
                self._regroup(group, tuple(by_group.get(group, ())), sensors.get(group.source), moved)
            except ConfigError as err:  # each is right by itself: what was in force of the group goes on
                out.append(Note("query.refused", {"source": group.source, "why": str(err)}))
        self._configured = self._dirty = True
        return out

    def _moved(self, by_group: Mapping[Group, list[Query]]) -> dict[str, int | None]:
        """Queries whose new revision is of another group (another filter, say) -> from when it holds; None: no change.

        The revision before is fed on until its last window ends, as within a group (docs/protocol.md 6.3): so the time
        lies after all that either group has read or promised.
        """
        groups = {query.id: (group, query) for group, queries in by_group.items() for query in queries}
        moved: dict[str, int | None] = dict.fromkeys(groups)
        for before, slicer in self.slicers.items():
            for name in slicer.open_queries & groups.keys():
                group, query = groups[name]
                known = self.slicers.get(group)
                if group == before or (known is not None and known.in_force.get(name) == query):
                    continue
                newest_us = max(slicer.newest_us, self.sources[query.source].newest_us)
                frontier_us = max(slicer.frontier_us, NEVER_US if known is None else known.frontier_us)
                from_us = NEVER_US if query.effective_from_us is None else query.effective_from_us
                after_us = newest_us + 1 if newest_us > NEVER_US else NEVER_US
                moved[name] = max(after_us, frontier_us, from_us, moved[name] or NEVER_US)
        return moved

    def _regroup(
        self, group: Group, queries: tuple[Query, ...], sensor: Sensor | None, moved: Mapping[str, int | None]
    ) -> None:
        slicer = self.slicers.get(group)
        if slicer is None:
            if sensor is None:
                return
            slicer = self.slicers[group] = Slicer(group, sensor.scale, self.settings.node)
            slicer.gone_until(self.sources[group.source].newest_us)
            self._gaps += self._began(group, self.sources[group.source])
        elif sensor is not None and sensor.scale != slicer.scale:
            self._spent.setdefault(group, []).extend(slicer.flush())
            slicer = self.slicers[group] = slicer.rescaled(sensor.scale)
        self._serving[group] = slicer.change(queries, moved)
        self._touched.add(group)

    def _began(self, group: Group, source: Source) -> tuple[Gap, ...]:
        """3.1: readings from before a source was first listened to are in no window, unless it is read from its start.

        Windows of other forms begin at their own readings or markers.
        """
        from_start = source.newest_us > NEVER_US or source.sensor.own_clock
        if from_start or not isinstance(group.cut, TimeCut | SessionCut):
            return ()
        since_us = source.heard_us
        start_us = since_us - 1 - source.sensor.delay_us - group.lateness_us  # those under way come in part
        return (Gap((group,), start_us, since_us, -1, (self.settings.node,), BEGAN),)

    def _recover(self, sensors: tuple[Sensor, ...], now_us: int) -> None:
        """Put the slicers back as the spool holds them. A source is silent from now on, not since it was heard."""
        known = {s.id: s for s in sensors}
        self.slicers.update(SlicerSlots.read(self._restored, self.settings.node))
        frontiers = self._restored.get("frontiers")
        for plain, frontier_us in frontiers if isinstance(frontiers, list) else []:
            group = group_from_plain(plain)
            self._promised[group] = frontier_us
            if group in self.slicers:  # it promised more since its slot was written: nothing closed in between
                self._spent[group] = self.slicers[group].advance(frontier_us)
        for name, sensor in known.items():
            state = self._restored.get(f"source/{name}")
            if isinstance(state, dict):
                self.sources[name] = Source(sensor, now_us)
                self.sources[name].restore(state)

    # --- a commit -----------------------------------------------------------------------------------------------

    def _flush_step(self, now_us: int) -> Step:
        """1.3: all that was open, as the last frames of the epoch that the spool was in."""
        steps = []
        for group, slicer in self.slicers.items():
            releases = (*self._spent.pop(group, ()), *slicer.flush())
            self._touched.add(group)
            promised_us = self._promised.get(group, NEVER_US)
            steps.append(GroupStep(group, None, releases, promised_us=promised_us, hints=self._hints(group, slicer)))
        return Step(tuple(steps), gaps=self._stop_gaps(now_us))

    def _stop_gaps(self, now_us: int) -> tuple[Gap, ...]:
        """3.1: what sources that cannot be read again said during the stop is lost."""
        out = []
        committed = self._restored.get("committed_us")
        for name, source in self.sources.items():
            groups = tuple(g for g in self.slicers if g.source == name)
            if groups and not source.sensor.rereadable and isinstance(committed, int) and committed < now_us:
                out.append(Gap(groups, committed, now_us, -1, (self.settings.node,), "stopped"))
        return tuple(out)

    def _birth_step(self, now_us: int) -> Step:
        leaf = Leaf(self.settings.node, self.outbox.epoch)
        steps = []
        for group in self.slicers:
            serving = self._said[group] = self._serving.get(group, ())
            frontier_us = self._promised.get(group, NEVER_US)
            promised = frontier_us if frontier_us > NEVER_US else None
            hints = self._hints(group, self.slicers[group])
            steps.append(
                GroupStep(group, promised, leaves=(leaf,), serving=serving, promised_us=frontier_us, hints=hints)
            )
        return Step(tuple(steps), self._texts[1], self._texts[0])

    def _step(self, now_us: int) -> Step:
        """What closed. A frame that goes anyway carries every frontier that moved; else heartbeats do."""
        for source in self.sources.values():
            self._slice(source)
        if self._late_markers:
            self._notes.append(Note("marker.late", {"markers": self._late_markers}))
            self._late_markers = 0
        steps = []
        for group, slicer in self.slicers.items():
            before = self._promised.get(group, NEVER_US)
            frontier_us = self._promised[group] = self._frontier(group, slicer, now_us)
            slicer.horizon_us = self.horizon_us
            releases = (*self._spent.pop(group, ()), *slicer.advance(frontier_us))
            if releases:
                self._touched.add(group)
            serving = self._serving.get(group, ())
            said = frozenset(self._said.get(group, ()))
            news = tuple(s for s in serving if s not in said)
            leaves = () if group in self._said else (Leaf(self.settings.node, self.outbox.epoch),)
            self._said[group] = serving
            promise = frontier_us if frontier_us > before else None
            hints = self._hints(group, slicer)
            steps.append(GroupStep(group, promise, releases, None, leaves, (), news, frontier_us, hints))
        self._drop_drained(steps)
        gaps, self._gaps = tuple(self._gaps), []
        return Step(tuple(steps), self._texts[1], self._texts[0], gaps)

    def _hints(self, group: Group, slicer: Slicer) -> Hints | None:
        """What is open, unless it can never end: after the last marker of a source that has ended nothing closes."""
        hints, source = slicer.hints(), self.sources.get(group.source)
        if hints is None or not isinstance(group.cut, PunctuationCut) or source is None or not source.ended:
            return hints
        return replace(hints, codes=hints.codes[:0], starts=hints.starts[:0])

    def _drop_drained(self, steps: list[GroupStep]) -> None:
        """A group whose last query is gone leaves once its frontier has passed the removal."""
        for i, step in enumerate(steps):
            slicer = self.slicers[step.group]
            if slicer.drained:
                steps[i] = replace(step, frontier_us=slicer.frontier_us, dropped=(self.settings.node,), leaves=())
                del self.slicers[step.group]
                for known in (self._said, self._serving, self._promised):
                    known.pop(step.group, None)

    def _after_commit(self) -> list[Action]:
        notes, self._notes = self._notes, []
        return [*super()._after_commit(), *notes]

    def _frontier(self, group: Group, slicer: Slicer, now_us: int) -> int:
        source = self.sources.get(group.source)
        before = max(slicer.frontier_us, self._promised.get(group, NEVER_US))
        reached_us = source.reached_us(now_us) if source is not None else now_us
        marking = self.sources.get(group.cut.marker_source) if isinstance(group.cut, PunctuationCut) else None
        if marking is not None:  # the least of its sources (4.1): a marker may still be on its way
            reached_us = min(reached_us, marking.reached_us(now_us))
        if reached_us <= NEVER_US:
            return before
        frontier_us = reached_us - group.lateness_us
        step_us = self.settings.frontier_step_us
        if slicer.unit_us % step_us == 0:
            frontier_us -= frontier_us % step_us
        return max(before, frontier_us)

    def _state(self, now_us: int) -> Mapping[str, object]:
        frontiers = [[group_to_plain(g), f] for g, f in self._promised.items()]
        state: dict[str, object] = {"committed_us": now_us, "frontiers": frontiers}
        for name, source in self.sources.items():
            state[f"source/{name}"] = source.snapshot()
        state.update(dict.fromkeys(slot for slot in self._restored if slot.startswith(PREFIXES)))
        self._restored = {}
        for group in self._touched:
            state.update(self._slots.changes(group, self.slicers.get(group)))
        self._touched.clear()
        return state

    def _stepped_back(self, now_us: int) -> None:
        for source in self.sources.values():
            source.heard_us = min(source.heard_us, now_us)

    def _frontiers(self) -> Mapping[Group, int]:
        return self._promised

    def counters(self) -> dict[str, Any]:
        """Numbers for `status`: readings by sensor, spooled frames, the slicers' own counters."""
        return {
            "readings": {name: source.readings for name, source in self.sources.items()},
            "spooled": self.outbox.spooled,
            "groups": {str(group_to_plain(g)): dict(s.counters) for g, s in self.slicers.items()},
        }


def _no_frames(epoch: int, seq: int) -> Frame:
    raise KeyError((epoch, seq))
