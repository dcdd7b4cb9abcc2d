"""Remembers when late rows and losses were sent, and their time ranges, in case the parent loses its journal
(docs/protocol.md 3.7).

The tier above the parent knows from which time on rows on time may be missing; late rows may lie anywhere below. Late
rows are declared lost with the journal if the parent may not have passed them on, even after a restart of the sender.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint import slots

LATE_US: Final = 900_000_000  # after this time the parent is assumed to have passed late rows on
MOST: Final = 64  # entries of a group; if there are more, rows sent within one minute share an entry
MINUTE_US: Final = 60_000_000

LateSending = tuple[int, int, int]  # time of sending by the object's own time; event times [start, end)


class LateSendings:
    """Entries of each group, in the order of sending. Rows of a flush and declared losses are noted like late rows.

    Their age is counted in a time of its own, which never steps: it passes only while the node runs, and by at most a
    minute between two events. So a clock that steps forward, or a long standstill, does not make entries old.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        """state: the slots of the spool."""
        self._of: dict[Group, list[LateSending]] = slots.LATE_SENT.read(state) or {}
        self._at_us = max((entry[0] for entries in self._of.values() for entry in entries), default=0)
        self._seen_us: int | None = None
        self._changed = False

    def pass_time(self, now_us: int) -> None:
        """Let the time since the last call pass. now_us: by the node's clock, which may step."""
        if self._seen_us is not None and now_us > self._seen_us:
            self._at_us += min(now_us - self._seen_us, MINUTE_US)
        self._seen_us = now_us

    def note(self, group: Group, start_us: int, end_us: int) -> None:
        """Note that late rows with event times in [start_us, end_us) are sent now."""
        entries = self._of.setdefault(group, [])
        entries.append((self._at_us, start_us, end_us))
        if len(entries) > MOST:
            self._of[group] = _shared(entries)
        self._changed = True

    def recent(self) -> Iterator[tuple[Group, int, int]]:
        """Yields (group, start, end) of late rows that the parent may not have passed on yet."""
        for group, entries in self._of.items():
            yield from (
                (group, start_us, end_us) for sent_us, start_us, end_us in entries if self._at_us - sent_us < LATE_US
            )

    def changes(self) -> dict[str, object]:
        """The slot to commit, if it changed since the last call. Entries older than LATE_US are dropped."""
        if not self._changed:
            return {}
        self._changed = False
        recent = {group: [e for e in entries if self._at_us - e[0] < LATE_US] for group, entries in self._of.items()}
        self._of = {group: entries for group, entries in recent.items() if entries}
        return slots.LATE_SENT.write(self._of)


def _shared(entries: list[LateSending]) -> list[LateSending]:
    """Join entries of the same minute. Returns at most the newest MOST."""
    minutes: dict[int, LateSending] = {}
    for sent_us, start_us, end_us in entries:
        minute = sent_us // MINUTE_US
        _, first_us, last_us = minutes.get(minute, (sent_us, start_us, end_us))
        minutes[minute] = sent_us, min(start_us, first_us), max(end_us, last_us)
    return list(minutes.values())[-MOST:]
