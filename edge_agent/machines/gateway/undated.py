"""Keeps gap records of starts and stops until the node's clock is known (docs/protocol.md 3.1, 4.3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from edge_agent.algebra.frame import BEGAN, Gap
from edge_agent.algebra.query.group_cut import SessionCut, TimeCut
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.checkpoint.slots import HELD, UNDATED, UndatedState
from edge_agent.machines.events import ClockChanged, Unheard
from edge_agent.machines.gateway.source import Source

MOST_STARTS: Final = 8  # starts of processes in one boot that are remembered while no commit had a known time


class UndatedRecords:
    """Gap records without times. Records of starts are committed; a stop is found again from the slot COMMITTED.

    halts: the stops [from, upto), since boot, if no commit had a known time; see `restore`.
    """

    def __init__(self) -> None:
        self._boot = ""
        self._began: list[tuple[Group, int]] = []  # (group, time since boot)
        # (groups, time of last commit, time since boot, how old a reading may be that was under way at the commit)
        self._stopped: list[tuple[tuple[Group, ...], int, int, int]] = []
        # groups -> (from, upto), since boot: losses at the local broker. Those until the next commit are one.
        self._unheard: dict[tuple[Group, ...], tuple[int, int]] = {}
        self._starts: list[int] = []  # of later processes in this boot, since boot
        self.halts: list[tuple[int, int]] = []
        self._halted: list[tuple[tuple[Group, ...], int, int]] = []  # (groups, from, upto), since boot
        self._changed = False

    def listening(
        self, group: Group, source: Source, clock: ClockChanged, node: str, from_us: int = FAR_US
    ) -> tuple[Gap, ...]:
        """The record for a group whose source is heard from now on; () while the clock is unknown and it must wait.

        from_us: event time from which readings are missing, if listening had ended.
        """
        since_us = source.heard_us
        if not clock.known:
            self._boot, self._changed = clock.boot, True
            self._began.append((group, since_us - clock.offset_us))
            return ()
        start_us = since_us - _in_transit_us(group, source) if from_us == FAR_US else min(from_us, since_us - 1)
        return (Gap((group,), start_us - clock.error_us, since_us + clock.error_us, -1, (node,), BEGAN),)

    def removed(
        self, groups: Iterable[Group], source: Source, now_us: int, clock: ClockChanged, node: str
    ) -> tuple[Gap, ...]:
        """The records for groups whose source is not heard any more; () if it is read from its beginning.

        While the clock is unknown there is none: the readings wait without a time, and are not counted either.
        """
        if source.sensor.own_clock or not clock.known:
            return ()
        of_time = [group for group in groups if isinstance(group.cut, TimeCut | SessionCut)]
        return tuple(_lost((each,), (now_us, now_us), clock, node, _in_transit_us(each, source)) for each in of_time)

    def stopped(
        self,
        groups: tuple[Group, ...],
        source: Source,
        committed_us: int | None,
        now_us: int,
        clock: ClockChanged,
        *,
        node: str,
    ) -> tuple[Gap, ...]:
        """The records for groups of which readings since the last commit are lost; () while the clock is unknown.

        What was under way at that commit is lost, too. committed_us: None: no commit had a known time. Then there is a
        record for each of `halts`.
        """
        if committed_us is None:
            halted = [(groups, *span) for span in self.halts]
            self._halted += [] if clock.known else halted
            return _dated(halted if clock.known else (), clock, node)
        some = _by_transit(groups, source)
        if not clock.known:
            self._stopped += [(each, committed_us, now_us - clock.offset_us, old_us) for old_us, each in some]
            return ()
        return tuple(_lost(each, (committed_us, now_us), clock, node, old_us) for old_us, each in some)

    def unheard(
        self, heard: Iterable[tuple[tuple[Group, ...], Source]], event: Unheard, now_us: int, clock: ClockChanged
    ) -> None:
        """Note that readings of these sources may be lost. heard: (groups of a source, the source)."""
        for groups, source in heard:
            since_us = now_us - event.for_us if event.since_us is None else event.since_us
            if not groups or max(since_us, source.began_us) == now_us:
                continue  # nobody uses it, or it is heard from its beginning on
            for old_us, each in _by_transit(groups, source):
                if event.since_us is not None and not clock.known:
                    self._stopped.append((each, since_us, now_us - clock.offset_us, old_us))
                    continue
                low_us, high_us = sorted((max(since_us, source.began_us), now_us))
                low_us -= min(old_us, max(0, low_us - source.began_us)) + clock.offset_us
                before_us, upto_us = self._unheard.get(each, (low_us, high_us - clock.offset_us))
                self._unheard[each] = min(before_us, low_us), max(upto_us, high_us - clock.offset_us)

    def take_unheard(self, clock: ClockChanged, node: str) -> tuple[Gap, ...]:
        """Remove and return the records of readings that may be lost at the local broker; () without a known clock."""
        if not clock.known:
            return ()
        spans, self._unheard = self._unheard, {}
        return _dated(((groups, *span) for groups, span in spans.items()), clock, node)

    def gaps(self, clock: ClockChanged, node: str, sources: Mapping[str, Source]) -> list[Gap]:
        """Remove and return all waiting records with their times, by a clock that is known now."""
        out = [*_dated(self._halted, clock, node)]
        for group, since_us in self._began:
            source = sources.get(group.source)  # None: it was removed meanwhile
            old_us = 1 + group.lateness_us if source is None else _in_transit_us(group, source)
            low_us, high_us = (clock.offset_us + since_us + sign * clock.error_us for sign in (-1, 1))
            out.append(Gap((group,), low_us - old_us, high_us, -1, (node,), BEGAN))
        for groups, committed_us, since_us, old_us in self._stopped:
            out.append(_lost(groups, (committed_us, clock.offset_us + since_us), clock, node, old_us))
        self._changed = self._changed or bool(self._began)
        self._began, self._stopped, self._starts, self._halted = [], [], [], []
        return out

    def changes(self) -> dict[str, object]:
        """The row to commit."""
        if not self._changed:
            return {}
        self._changed = False
        again = [(group, us) for us in self._starts for group in dict(self._began)]
        return UNDATED.write(UndatedState(boot=self._boot, began=[*self._began, *again]) if self._began else None)

    def restore(self, state: Mapping[str, Any], boot: str, since_us: int) -> None:
        """Restore the records of a spool. Those of another boot never get a time: they begin at since_us instead.

        In the same boot, what was read between the last reading that waits and a start of a process is lost. So all
        these starts are kept, as further times of the groups; if there are many, all between them counts as lost.

        boot: id of the present boot. since_us: present time since boot.
        """
        found = UNDATED.read(state)
        if found is None:
            return
        self._boot, self._changed = boot, True
        first: dict[Group, int] = {}
        starts = sorted({us for group, us in found.began if us > first.setdefault(group, us)})
        same = found.boot == boot
        self._began = [(group, us if same else since_us) for group, us in first.items()]
        if same:
            self._starts = [*starts[1 - MOST_STARTS :], since_us]
            times = [min(first.values()), *(starts if len(starts) < MOST_STARTS else ()), since_us]
            waiting = [int(us) for _, page in HELD.each(state) if page.boot == boot for us in page.since_us]
            self.halts = [*_halts(times, waiting if len(starts) < MOST_STARTS else ())]


def _halts(times: Sequence[int], waiting: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yields the stop before each start but the first. waiting: when readings came that wait; all since boot."""
    for before_us, start_us in pairwise(times):
        yield max((us for us in waiting if us < start_us), default=before_us), start_us


def _dated(spans: Iterable[tuple[tuple[Group, ...], int, int]], clock: ClockChanged, node: str) -> tuple[Gap, ...]:
    """The records of stops. spans: (groups, from, upto), since boot."""
    at_us = clock.offset_us
    return tuple(_lost(groups, (at_us + from_us, at_us + upto_us), clock, node) for groups, from_us, upto_us in spans)


def _in_transit_us(group: Group, source: Source) -> int:
    """How old a reading may be that is under way: some are missed where listening begins or ends."""
    return 1 + source.sensor.delay_us + group.lateness_us


def _by_transit(groups: Iterable[Group], source: Source) -> list[tuple[int, tuple[Group, ...]]]:
    """(how old a reading may be that is under way, the groups of which it is so)."""
    found: dict[int, tuple[Group, ...]] = {}
    for group in groups:
        old_us = _in_transit_us(group, source) - 1
        found[old_us] = (*found.get(old_us, ()), group)
    return [*found.items()]


def _lost(groups: tuple[Group, ...], span: tuple[int, int], clock: ClockChanged, node: str, old_us: int = 0) -> Gap:
    """The record of readings that came between two times. old_us: their age when they came, at most."""
    start_us, end_us = sorted(span)
    return Gap(groups, start_us - old_us - clock.error_us, end_us + clock.error_us + 1, -1, (node,), "stopped")
