"""The gateway turns readings into frames of closed slices, and keeps open rows in its spool.

Rules (docs/protocol.md): a frame with a frontier completes the rows below it, and the frontier never falls (4.1). Late
readings leave at once (4.2). After a restart the open rows leave as the last frames of the old epoch, then the next
birth follows (1.3). For sources that cannot be read again a gap record covers the time of the stop (3.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from edge_agent.algebra.frame import NEVER_US, Frame, Gap, Leaf
from edge_agent.algebra.partials.partial import readings_in
from edge_agent.algebra.punctuation.markers import Marker, markers_of_changes
from edge_agent.algebra.query.group_cut import PunctuationCut, SessionCut, TimeCut
from edge_agent.algebra.query.query import Group, Query, Sensor
from edge_agent.algebra.span import FAR_US
from edge_agent.errors import ConfigError
from edge_agent.machines.checkpoint.slots import (
    COMMITTED,
    ENDED_BOOK,
    FRONTIERS,
    OF_GROUPS,
    SOURCE,
    GroupSlots,
    slot_name,
)
from edge_agent.machines.events import (
    Action,
    ClockChanged,
    Configured,
    Event,
    Mark,
    Note,
    Quarantine,
    Read,
    Restored,
    Unheard,
)
from edge_agent.machines.gateway.group_frontier import advanced_us, promise_anew, sensors_of
from edge_agent.machines.gateway.group_state import GroupState, moved_queries
from edge_agent.machines.gateway.held_readings import HeldReadings
from edge_agent.machines.gateway.silent_keys import SilentKeys
from edge_agent.machines.gateway.source import Source, heard_by, shift, stood_still
from edge_agent.machines.gateway.undated import UndatedRecords
from edge_agent.machines.node import Node, refuse
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.slicing.slicer import Slicer, off
from edge_agent.machines.uplink.step import GroupStep, Hints, Step

# reasons of gap records
NEVER_KNOWN: Final = "clock never known"  # readings without a time were quarantined
WRONG_CLOCK: Final = "clock was wrong"  # readings got wrong times
BATCH_ROWS: Final = 65_536  # readings buffered before slicing: large enough for numpy, small enough for the CPU cache


class Gateway(Node):
    """A leaf of the tree."""

    def __init__(
        self,
        settings: NodeSettings,
        random: Random,
        restored: Restored | None = None,
        load: Callable[[int, int], Frame] | None = None,
    ) -> None:
        """restored: the content of the spool; None: a new spool. load: see Node."""
        restored = restored or Restored({})
        super().__init__(settings, random, restored, load or _no_frames)
        self.sources: dict[str, Source] = {}
        self.groups: dict[Group, GroupState] = {}
        self._restored = restored.state
        self._texts: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._configured = False
        # sum of the books of dropped groups; `undated`: readings in no window because their time was never known
        self._ended_book = Counter(ENDED_BOOK.read(restored.state) or {})
        self._gone: dict[str, object] = {}  # slots of dropped groups and removed sensors: the next commit deletes them
        self._queries: tuple[Query, ...] = ()
        self._gaps: list[Gap] = []  # gap records for the next step
        self._late_markers = 0  # markers below the frontier since the last commit
        self._notes: list[Action] = []  # returned after the commit
        self.held, self.undated = HeldReadings(), UndatedRecords()
        self._committed_before_us: int | None = None  # time of the previous process's last commit
        self._anew = True  # the next birth may promise less than the epoch before
        self.silent_keys = SilentKeys()

    def _ready(self) -> bool:
        return self._configured

    def _handle(self, event: Event, now_us: int) -> list[Action]:
        match event:
            case Read():
                return self._read(event, now_us)
            case Configured():
                return self._configure(event, now_us)
            case Unheard(names):
                heard = [(self._of_source(name), self.sources[name]) for name in names if name in self.sources]
                self.undated.unheard(heard, event, now_us, self.clock)
                self._dirty = True
                return []
            case Mark(marker):
                for group, state in self.groups.items():
                    if isinstance(group.cut, PunctuationCut) and not group.cut.marker_source:
                        self._mark(state, (marker,))
                self._dirty = True
                return [Note("marker.commanded", {"time": marker.time_us, "id": marker.id, "kind": marker.role})]
            case _:
                raise refuse(event, self.settings.node)

    def _read(self, read: Read, now_us: int) -> list[Action]:
        source = self.sources.get(read.sensor)
        if source is None:
            return [Note("reading.unknown_sensor", {"sensor": read.sensor})]
        self._wait_for(read.token, now_us)
        if read.since_boot:
            return self._hold(source, read, now_us)
        source.take(read, now_us)
        if source.buffered >= BATCH_ROWS:
            self._slice(source)
        return []

    # --- a clock that is not known (4.3) ------------------------------------------------------------------------

    def _hold(self, source: Source, read: Read, now_us: int) -> list[Action]:
        """Keep readings until their times are known; beyond the bound the oldest are dropped."""
        before = self.held.dropped
        self.held.add(read.sensor, self.clock.boot, read.batch)
        source.position = source.position if read.position is None else read.position
        source.heard_us = now_us
        many = self.held.dropped - before
        self._ended_book["undated"] += many
        return [Note("reading.dropped", {"readings": many, "why": "the clock is not known"})] if many else []

    def _wants_epoch(self) -> bool:
        return self.silent_keys.wants_epoch(len(self.outbox.encoder.keys), self.groups.values(), self.outbox.spooled)

    def _stepped(self, by_us: int) -> None:
        shift(self.sources.values(), by_us)

    def _stood(self, us: int) -> None:
        stood_still(self.sources.values(), us)

    def _clock_changed(self, event: ClockChanged) -> None:
        """Once the clock is known, give their times to readings of this boot and to gap records that waited."""
        if not (event.known and self._configured):
            return
        for name, batch in self.held.release(event.boot, event.offset_us):
            source = self.sources.get(name)
            if source is None:
                self._notes.append(Note("reading.unknown_sensor", {"sensor": name, "readings": len(batch.time_us)}))
            else:
                source.take(Read(name, batch), source.heard_us)
        self._never_known(event.offset_us)
        self._gaps += self.undated.gaps(event, self.settings.node, self.sources)
        for name, from_us, upto_us, many in self.held.lost(event.boot, event.offset_us):
            self._gaps.append(
                Gap(self._of_source(name), from_us, upto_us, many, (self.settings.node,), "clock unknown")
            )
        if event.wrong is not None:
            groups = tuple(group for group in self.groups if self._by_clock(group))
            self._gaps.append(Gap(groups, *event.wrong, -1, (self.settings.node,), WRONG_CLOCK))

    def _of_source(self, name: str) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group.source == name)

    def _by_clock(self, group: Group) -> bool:
        """Whether the readings of a group get their times from the node's clock."""
        source = self.sources.get(group.source)
        return source is not None and not source.sensor.own_clock and not source.sensor.option("time")

    def _never_known(self, booted_us: int) -> None:
        """Quarantine and declare readings of earlier boots whose clock was never known."""
        start_us = min(self._committed_before_us or booted_us, booted_us)
        for name, (many, pages) in self.held.never_known(self.clock.boot).items():
            why, node = f"sensor {name}: {NEVER_KNOWN}", self.settings.node
            self._notes += [Quarantine(node, why, page) for page in pages]
            self._ended_book["undated"] += many
            self._gaps.append(Gap(self._of_source(name), start_us, booted_us + 1, many, (node,), NEVER_KNOWN))

    def _slice(self, source: Source) -> None:
        if not (source.batches or source.markers):
            return
        name = source.sensor.id
        fed = [(group, state) for group, state in self.groups.items() if name in sensors_of(group)]
        if not fed:  # no query uses this sensor
            source.forget()
            return
        batches = source.drain()
        markers, source.markers = source.markers, []
        changes: list[tuple[int, float]] | None = None
        for group, state in fed:
            cut = group.cut if isinstance(group.cut, PunctuationCut) else None
            if cut is not None and cut.marker_source == name:
                changes = source.changes.of(batches, source.sensor.scale) if changes is None else changes
                self._mark(state, markers_of_changes(cut, changes))
            if group.source == name and (batches or markers):
                state.changed = True
                if cut is not None and not cut.marker_source:
                    self._mark(state, markers)
                for batch in batches:
                    state.slicer.push(batch)

    def _mark(self, state: GroupState, markers: Sequence[Marker]) -> None:
        if markers:
            state.changed = True
            self._late_markers += state.slicer.mark(markers)

    # --- configuration ------------------------------------------------------------------------------------------

    def _configure(self, event: Configured, now_us: int) -> list[Action]:
        """Put definitions in force; the next commit reports them upward."""
        if not self._configured:
            self._recover(event.sensors, now_us)
        for source in self.sources.values():  # readings so far belong to the plans so far
            self._slice(source)
        self._queries = event.queries
        self._texts = (event.sensor_texts, event.query_texts)
        sensors = {s.id: s for s in event.sensors}
        fresh = sensors.keys() - self.sources.keys()
        for name in [n for n in self.sources if n not in sensors]:
            gone, self._gone = self.sources.pop(name), self._gone | SOURCE.write(None, name)
            self._gaps += self.undated.removed(self._of_source(name), gone, now_us, self.clock, self.settings.node)
        for sensor in event.sensors:
            known = self.sources.get(sensor.id)
            if known is None:
                known = self.sources[sensor.id] = Source(sensor, now_us, began_us=now_us)
                state = SOURCE.read(self._restored, sensor.id)
                if state is not None:
                    known.restore(state)
            known.sensor = sensor
        by_group: dict[Group, list[Query]] = {}
        for query in event.queries:
            if query.source in sensors:
                by_group.setdefault(query.group_at(self.settings.node), []).append(query)
        moved = moved_queries(by_group, self.groups, self.sources)
        for group in [each for each in self.groups if each.source in fresh]:  # of an earlier time with the sensor
            self._gaps += self._began(group, self.sources[group.source], self.groups[group].next_begin_us)
        out: list[Action] = []
        for group in [*self.groups, *(g for g in by_group if g not in self.groups)]:
            try:
                self._regroup(group, tuple(by_group.get(group, ())), sensors.get(group.source), moved)
            except ConfigError as err:  # valid alone, but not together: the group's earlier queries stay in force
                out.append(Note("query.refused", {"source": group.source, "why": str(err)}))
        first, self._configured = not self._configured, True
        self._dirty = True
        if first:  # readings restored from the spool may have waited for a clock that is known already
            self._clock_changed(self.clock)
        return out

    def _regroup(
        self, group: Group, queries: tuple[Query, ...], sensor: Sensor | None, moved: Mapping[str, int | None]
    ) -> None:
        state = self.groups.get(group)
        if state is None:
            if sensor is None:
                return
            slicer = Slicer(group, sensor.scale, self.settings.node)
            slicer.gone_until(self.sources[group.source].newest_us)
            state = self.groups[group] = GroupState(slicer, GroupSlots(group))
            self._gaps += self._began(group, self.sources[group.source])
        elif sensor is not None and sensor.scale != state.slicer.scale:
            state.rows += state.slicer.flush()
            state.slicer = state.slicer.rescaled(sensor.scale)
        state.serves(state.slicer.change(queries, moved))
        state.changed = True

    def _began(self, group: Group, source: Source, from_us: int = FAR_US) -> tuple[Gap, ...]:
        """The gap record for windows that began before the source was first heard; none if it is read from its start.

        Only windows of time and sessions need the record (3.1): others begin at their own readings or markers. from_us:
        event time from which readings are missing, if listening had ended.
        """
        from_start = source.newest_us > NEVER_US or source.sensor.own_clock
        if from_start or not isinstance(group.cut, TimeCut | SessionCut):
            return ()
        return self.undated.listening(group, source, self.clock, self.settings.node, from_us)

    def _recover(self, sensors: tuple[Sensor, ...], now_us: int) -> None:
        """Restore groups and sources. A source counts as silent from now on, not since it was last heard."""
        self._committed_before_us = COMMITTED.read(self._restored)
        self.held.restore(self._restored)
        self.undated.restore(self._restored, self.clock.boot, now_us - self.clock.offset_us)
        for found in GroupSlots.each(self._restored):
            slicer = Slicer.restore(*found, self.settings.node)
            self.groups[slicer.group] = GroupState(slicer, GroupSlots(slicer.group))
        for group, frontier_us in (FRONTIERS.read(self._restored) or {}).items():
            # the promise may be newer than the group's slot: then nothing closed between the two commits
            if group in self.groups:
                state = self.groups[group]
                state.frontier_us, state.rows = frontier_us, state.slicer.advance(frontier_us)
        for sensor in sensors:
            source = SOURCE.read(self._restored, sensor.id)
            if source is not None:
                self.sources[sensor.id] = Source(sensor, now_us)
                self.sources[sensor.id].restore(source)

    # --- a commit -----------------------------------------------------------------------------------------------

    def _flush_step(self, now_us: int) -> Step:
        """All open rows, for the last frames of the epoch in the spool (1.3).

        Buffered readings are included: the birth may lower the promise, and readings taken before it leave first (4.1).
        """
        for source in self.sources.values():
            self._slice(source)
        steps = []
        for group, state in self.groups.items():
            rows = (*state.take_rows(), *state.slicer.flush())
            state.changed = True
            hints = self._hints(group, state.slicer)
            steps.append(GroupStep(group, None, rows, promised_us=state.frontier_us, hints=hints))
        return Step(tuple(steps), gaps=self._stop_gaps(now_us))

    def _stop_gaps(self, now_us: int) -> tuple[Gap, ...]:
        """Gap records for sources that cannot be read again: their readings during the stop are lost (3.1).

        If the clock is behind the last commit, the length of the stop is unknown: the record then covers all times from
        now to that commit.
        """
        out: list[Gap] = []
        stop = (COMMITTED.read(self._restored), now_us, self.clock)
        for name, source in self.sources.items():
            groups = tuple(g for g in self.groups if g.source == name)
            if groups and not source.sensor.rereadable:
                out += self.undated.stopped(groups, source, *stop, node=self.settings.node)
        self.undated.halts = []  # those of this start
        return tuple(out)

    def _promise_anew(self, now_us: int) -> None:
        """Lower promises that lie ahead of the clock, because they were made while the clock was wrong (4.1)."""
        self._anew = False
        for source in self.sources.values():
            if not source.sensor.own_clock:
                source.newest_us = min(source.newest_us, now_us)
        reached = self._reached()
        for group, state in self.groups.items():
            before_us = state.frontier_us
            promise_anew(group, state, self.sources, now_us, step_us=self.settings.frontier_step_us)
            if state.frontier_us < before_us:  # rows that have left lie above what is promised now (3.7)
                self._late.note(group, state.frontier_us, reached[group])

    def _unstated(self) -> bool:
        return any(state.sent != state.serving for state in self.groups.values())

    def _birth_step(self, now_us: int, *, goes_on: bool = False) -> Step:
        del goes_on
        if self._anew:
            self._promise_anew(now_us)
        steps = []
        for group, state in self.groups.items():
            state.sent = state.serving
            promised = state.frontier_us if state.frontier_us > NEVER_US else None
            hints = self._hints(group, state.slicer)
            steps.append(
                GroupStep(
                    group,
                    promised,
                    leaves=(self._leaf(group),),
                    serving=state.serving,
                    promised_us=state.frontier_us,
                    hints=hints,
                )
            )
        return Step(tuple(steps), self._texts[1], self._texts[0])

    def _in_no_slot(self) -> Step:
        for source in self.sources.values():
            self._slice(source)
        waiting = ((group, state) for group, state in self.groups.items() if state.rows)
        steps = tuple(GroupStep(group, rows=tuple(state.take_rows())) for group, state in waiting)
        return Step(steps, gaps=self._losses())

    def _losses(self) -> tuple[Gap, ...]:
        self._gaps += self.undated.take_unheard(self.clock, self.settings.node)
        gaps, self._gaps = tuple(self._gaps), []
        return gaps

    def _step(self, now_us: int) -> Step:
        """The rows that closed, and all frontiers that moved. Without rows to send, heartbeats carry the frontiers."""
        for source in self.sources.values():
            self._slice(source)
        if self._late_markers:
            self._notes.append(Note("marker.late", {"markers": self._late_markers}))
            self._late_markers = 0
        self.silent_keys.forget(self.groups.values(), now_us)
        steps = []
        for group, state in self.groups.items():
            before, state.frontier_us = state.frontier_us, self._frontier(group, state, now_us)
            state.slicer.horizon_us = self.horizon_us
            rows = (*state.take_rows(), *state.slicer.advance(state.frontier_us))
            state.changed = state.changed or bool(rows)
            sent = frozenset(state.sent or ())
            news = tuple(each for each in state.serving if each not in sent)
            leaves = () if state.sent is not None else (self._leaf(group),)
            state.sent = state.serving
            promise = state.frontier_us if state.frontier_us > before else None
            hints = self._hints(group, state.slicer)
            steps.append(GroupStep(group, promise, rows, None, leaves, (), news, state.frontier_us, hints))
        self._drop_drained(steps)
        return Step(tuple(steps), self._texts[1], self._texts[0], self._losses())

    def _hints(self, group: Group, slicer: Slicer) -> Hints | None:
        """The open sessions that can still end. Windows between markers cannot once their source has ended."""
        hints, source = slicer.hints(), self.sources.get(group.source)
        if hints is None or not isinstance(group.cut, PunctuationCut) or source is None or not source.ended:
            return hints
        return replace(hints, codes=hints.codes[:0], starts=hints.starts[:0])

    def _drop_drained(self, steps: list[GroupStep]) -> None:
        """Drop groups without queries once their frontier has passed the removal."""
        for i, step in enumerate(steps):
            state = self.groups[step.group]
            if state.slicer.drained:
                frontier_us = state.slicer.frontier_us
                steps[i] = replace(step, frontier_us=frontier_us, dropped=(self.settings.node,), leaves=())
                self._ended_book.update(state.slicer.book())
                del self.groups[step.group]
                self._gone |= state.slots.gone()

    def _after_commit(self) -> list[Action]:
        notes, self._notes = self._notes, []
        return [*super()._after_commit(), *notes]

    def _frontier(self, group: Group, state: GroupState, now_us: int) -> int:
        step_us, known = self.settings.frontier_step_us, self.clock.known
        return advanced_us(group, state, self.sources, now_us, clock_known=known, step_us=step_us)

    def _state(self, now_us: int) -> Mapping[str, object]:
        self.silent_keys.tidy(self.outbox.encoder)
        rows: dict[str, object] = {
            **self.held.changes(),
            **self.undated.changes(),
            **FRONTIERS.write(dict(self._frontiers())),
        }
        if self.clock.known:  # else the next start declares everything since the last commit with a known clock
            rows |= COMMITTED.write(self._read_until_us(now_us))
        if self._ended_book:
            rows |= ENDED_BOOK.write(dict(self._ended_book))
        rows |= dict.fromkeys(row for row in self._restored if row.startswith(OF_GROUPS)) | self._gone
        self._restored, self._gone = {}, {}
        for name, source in self.sources.items():
            if (changed := source.changed()) is not None:
                rows |= SOURCE.write(changed, name)
        for state in self.groups.values():
            if state.changed:
                slicer, state.changed = state.slicer, False
                rows |= state.slots.changes(slicer.snapshot(), slicer.definitions(), slicer.keys)
        return rows

    def _stepped_back(self, now_us: int) -> None:
        heard_by(self.sources.values(), now_us)
        self._anew = True

    def _reached(self) -> Mapping[Group, int]:
        return {of: max(state.frontier_us, state.slicer.newest_us + 1) for of, state in self.groups.items()}

    def _leaf(self, group: Group) -> Leaf:
        """This gateway as a leaf of a group, with its epoch before the last move if it had the group then (1.5)."""
        epoch, leaves = self.outbox.moved_from
        return Leaf(self.settings.node, self.outbox.epoch, epoch if group in leaves else None)

    def _listed(self) -> Mapping[Group, Sequence[Leaf]]:
        return {group: (self._leaf(group),) for group in self.groups}

    def _leaf_names(self) -> Mapping[Group, tuple[str, ...]]:
        return dict.fromkeys(self.groups, (self.settings.node,))

    def _frontiers(self) -> Mapping[Group, int]:
        return {group: state.frontier_us for group, state in self.groups.items()}

    def book(self) -> dict[str, Any]:
        """The node's counts: sums of `Slicer.book` over all groups.

        waiting: readings in closed rows that are not sent yet. off: group -> imbalance of its book, see `off`.
        """
        books = {group: state.slicer.book() for group, state in self.groups.items()}
        kinds = ("taken", "added", "left", "open", "outside", "dropped", "undated")
        total = Counter(dict.fromkeys(kinds, 0))
        for book in (self._ended_book, *books.values()):
            total.update(book)
        waiting = sum(readings_in(rows.partials) for state in self.groups.values() for rows in state.rows)
        wrong = {f"{group.source} {group.where}".strip(): by for group, book in books.items() if (by := off(book))}
        return {**super().book(), **total, "waiting": waiting, "off": wrong}

    def counters(self) -> dict[str, Any]:
        """Numbers for `status`: readings by sensor, spooled frames, readings without a time, counters of slicers."""
        return {
            "readings": {name: source.readings for name, source in self.sources.items()},
            "spooled": self.outbox.spooled,
            "undated": {"held": len(self.held), "dropped": self.held.dropped},
            "groups": {slot_name(group): dict(state.slicer.counters) for group, state in self.groups.items()},
        }


def _no_frames(epoch: int, seq: int) -> Frame:
    raise KeyError((epoch, seq))
