"""Remembers when late rows were sent, and where they lie, in case the parent loses its journal (docs/protocol.md 3.7).

Rows on time lie above what the tier above the parent knows of the sender; late rows lie anywhere below it. They count
as lost with the journal for as long as the parent may hold them, and also if the sender was started again meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint import slots

LATE_US: Final = 900_000_000  # late rows sent this long ago are taken to have left the parent
MOST: Final = 64  # entries of a group; if there are more, those sent within one minute share an entry
MINUTE_US: Final = 60_000_000

LateSending = tuple[int, int, int]  # when, and the range of event time


class LateSendings:
    """Entries of each group, in the order of sending."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        """state: the slots of the spool."""
        self._of: dict[Group, list[LateSending]] = slots.LATE_SENT.read(state) or {}
        self._changed = False

    def note(self, now_us: int, group: Group, start_us: int, end_us: int) -> None:
        """Note that late rows of a range are sent now."""
        entries = self._of.setdefault(group, [])
        entries.append((now_us, start_us, end_us))
        if len(entries) > MOST:
            self._of[group] = _shared(entries)
        self._changed = True

    def recent(self, now_us: int) -> Iterator[tuple[Group, int, int]]:
        """(group, start, end) of the rows that the parent may hold."""
        for group, entries in self._of.items():
            yield from (
                (group, start_us, end_us) for sent_us, start_us, end_us in entries if now_us - sent_us < LATE_US
            )

    def shift(self, by_us: int) -> None:
        """The clock stepped: no time has passed."""
        if by_us and self._of:
            for group, entries in self._of.items():
                self._of[group] = [(us + by_us, start_us, end_us) for us, start_us, end_us in entries]
            self._changed = True

    def changes(self, now_us: int) -> dict[str, object]:
        """The slot, if it changed since the last call; without what has left the parent by now."""
        if not self._changed:
            return {}
        self._changed = False
        recent = {group: [e for e in entries if now_us - e[0] < LATE_US] for group, entries in self._of.items()}
        self._of = {group: entries for group, entries in recent.items() if entries}
        return slots.LATE_SENT.write(self._of)


def _shared(entries: list[LateSending]) -> list[LateSending]:
    """One entry for all that were sent within one minute; no more than MOST of the newest."""
    minutes: dict[int, LateSending] = {}
    for sent_us, start_us, end_us in entries:
        minute = sent_us // MINUTE_US
        _, first_us, last_us = minutes.get(minute, (sent_us, start_us, end_us))
        minutes[minute] = sent_us, min(start_us, first_us), max(end_us, last_us)
    return list(minutes.values())[-MOST:]
