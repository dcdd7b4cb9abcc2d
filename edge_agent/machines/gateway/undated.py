"""Gap records of a beginning or a stop, which wait until the node's clock is known (docs/protocol.md 3.1, 4.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_agent.algebra.frame import BEGAN, Gap
from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.slots import UNDATED, UndatedState
from edge_agent.machines.events import ClockChanged
from edge_agent.machines.gateway.source import Source


class UndatedRecords:
    """Starts of listening, which are committed, and a stop, which the next start finds again in its own slot."""

    def __init__(self) -> None:
        self._boot = ""
        self._began: list[tuple[Group, int]] = []  # (group, time since boot)
        self._stopped: list[tuple[tuple[Group, ...], int, int]] = []  # groups, last commit, time since boot
        self._changed = False

    def listening(self, group: Group, source: Source, clock: ClockChanged, node: str) -> tuple[Gap, ...]:
        """The record for a group whose source is listened to from now on, unless it has to wait for its time."""
        since_us = source.heard_us
        if not clock.known:
            self._boot, self._changed = clock.boot, True
            self._began.append((group, since_us - clock.offset_us))
            return ()
        start_us = since_us - 1 - source.sensor.delay_us - group.lateness_us  # those under way come in part
        return (Gap((group,), start_us, since_us, -1, (node,), BEGAN),)

    def stopped(
        self, groups: tuple[Group, ...], committed_us: int, now_us: int, clock: ClockChanged, node: str
    ) -> tuple[Gap, ...]:
        """The record for groups whose process stood still from a commit until now, unless it has to wait as well."""
        if not clock.known:
            self._stopped.append((groups, committed_us, now_us - clock.offset_us))
            return ()
        return (_stopped(groups, committed_us, now_us, node),)

    def gaps(self, offset_us: int, node: str) -> list[Gap]:
        """All records with their times. offset_us: of the node's time from the time since boot."""
        out = []
        for group, since_us in self._began:
            at_us = offset_us + since_us
            out.append(Gap((group,), at_us - 1 - group.lateness_us, at_us, -1, (node,), BEGAN))
        for groups, committed_us, since_us in self._stopped:
            out.append(_stopped(groups, committed_us, offset_us + since_us, node))
        self._changed = self._changed or bool(self._began)
        self._began, self._stopped = [], []
        return out

    def changes(self) -> dict[str, object]:
        """The row to commit."""
        if not self._changed:
            return {}
        self._changed = False
        return UNDATED.write(UndatedState(boot=self._boot, began=self._began) if self._began else None)

    def restore(self, state: Mapping[str, Any], boot: str, since_us: int) -> None:
        """From a spool. The time of a record of another boot is never known: then listening begins now, that long after
        this boot.
        """
        found = UNDATED.read(state)
        if found is not None:
            same = found.boot == boot
            self._boot, self._changed = boot, True
            self._began = [(group, us if same else since_us) for group, us in found.began]


def _stopped(groups: tuple[Group, ...], committed_us: int, now_us: int, node: str) -> Gap:
    start_us, end_us = sorted((committed_us, now_us))
    return Gap(groups, start_us, end_us + 1, -1, (node,), "stopped")
