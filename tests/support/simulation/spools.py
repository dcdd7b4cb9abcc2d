"""A node's spool in memory, as bytes of the real codec: changed by whole commits, read back at a start.

It stands in for `edge_agent.ports.spool.Spool`, whose own safety on real files tests/ports tests. Its faults: a disk
that is full for some seconds, one bit that changes, an older copy, nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from edge_agent.algebra.frame import Frame
from edge_agent.errors import PortError, WireError
from edge_agent.machines.checkpoint.damage import remains
from edge_agent.machines.events import Commit, Note, Restored, SpooledFrame
from edge_agent.ports.spool import DamagedError
from edge_agent.wire import frames, snapshot
from tests.support.simulation.failpoints import SECOND, Faults

decoded = lru_cache(4_096)(frames.decode)  # a birth is read at every start; nobody changes it
number = lru_cache(4_096)(snapshot.dumps)  # every commit has some numbers, which mostly stay
FULL_US: Final = 4 * SECOND
COPY_EVERY: Final = 8  # commits between copies that may come back


@dataclass(slots=True)
class Stored:
    """What is on the disk. frames: (epoch, seq) -> (payload, marked as sent), in the order of their commits.

    bad: frames and slots that fail their checksum.
    """

    slots: dict[str, bytes] = field(default_factory=dict)
    frames: dict[tuple[int, int], tuple[bytes, bool]] = field(default_factory=dict)
    bad: set[tuple[int, int] | str] = field(default_factory=set)

    def copy(self) -> Stored:
        """Another disk with the same bytes."""
        return Stored(dict(self.slots), dict(self.frames), set(self.bad))


class SimulatedSpool:
    """One node's disk."""

    def __init__(self, faults: Faults, now: Callable[[], int], committed: Callable[[], None]) -> None:
        """now: the time of the world. committed: called after each commit."""
        self.stored = Stored()
        self.notes: list[Note] = []
        self.commits = 0  # that succeeded
        self.found_empty = True  # at the last start
        self.suffered = False  # at the last start
        self._lost = False  # the slots that the last start found count for nothing
        self._faults, self._now, self._committed = faults, now, committed
        self._full_until_us = 0
        self._copies: list[Stored] = []
        self._obsolete: set[str] = set()  # slots to delete with the next commit

    # --- a start ----------------------------------------------------------------------------------------------------

    def open(self) -> Restored:
        """What a new process finds. Births come decoded, as the runtime hands them over."""
        before, bad_before = self.stored, len(self.stored.bad)
        if self.stored.slots:
            self._suffer()
        self.suffered = self.stored is not before or len(self.stored.bad) > bad_before
        self.found_empty = not self.stored.slots
        bad = {each for each in self.stored.bad if isinstance(each, str)}
        good = {name: snapshot.loads(value) for name, value in self.stored.slots.items() if name not in bad}
        left = remains(good, bad)
        self._obsolete, self._lost = set(left.obsolete), left.lost
        found = tuple(self._found(key, *row) for key, row in self.stored.frames.items())
        return Restored(left.state, found, left.lost)

    def _suffer(self) -> None:
        faults, stored = self._faults, self.stored
        if stored.frames and faults.happens("disk.flip_frame"):
            stored.bad.add(faults.stream("disk.flip_frame").choice(list(stored.frames)))
        if faults.happens("disk.flip_slot"):
            stored.bad.add(faults.stream("disk.flip_slot").choice(list(stored.slots)))
        if self._copies and faults.happens("disk.older"):
            self.stored = faults.stream("disk.older").choice(self._copies).copy()
        if faults.happens("disk.wiped"):
            self.stored = Stored()

    def _found(self, key: tuple[int, int], payload: bytes, sent: bool) -> SpooledFrame:
        found = SpooledFrame(*key, sent)
        if key in self.stored.bad:
            return replace(found, damaged="fails its checksum")
        if key[1]:
            return found
        try:
            birth = decoded(payload)
        except WireError as err:
            return replace(found, damaged=str(err))
        return replace(found, frame=birth if isinstance(birth, Frame) else None)

    # --- a process --------------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        """One transaction. Raises: PortError where the disk is full."""
        if self._faults.happens("disk.full"):
            self._full_until_us = self._now() + FULL_US
        if self._now() < self._full_until_us:
            raise PortError("the disk is full")
        slots, rows = self.stored.slots, self.stored.frames
        encoded = [((each.epoch, each.seq), frames.encode(each)) for each in commit.frames]
        instead = [((each.epoch, each.seq), frames.encode(each)) for each in commit.replace]
        for name in self._obsolete - commit.state.keys():
            slots.pop(name, None)
            self.stored.bad.discard(name)
        self._obsolete = set()
        for name, value in commit.state.items():
            self.stored.bad.discard(name)
            if value is None:
                slots.pop(name, None)
            else:
                slots[name] = number(value) if type(value) is int else snapshot.dumps(value)
        for key in commit.forget:
            rows.pop(key, None)
        for key, payload in encoded:
            assert key not in rows, f"seq {key} is used twice"
            rows[key] = (payload, False)
        for key, payload in instead:
            rows[key] = (payload, rows[key][1] if key in rows else False)
            self.stored.bad.discard(key)
        for key in commit.mark_sent:
            if key in rows:
                rows[key] = (rows[key][0], True)
        self.commits += 1
        if commit.state:  # else it only makes room
            self._committed()
        if self._faults.on("disk.older") and self.commits % COPY_EVERY == 0:
            self._copies = [*self._copies[-4:], self.stored.copy()]

    def readable(self) -> list[bytes]:
        """What the last start could use: slots, unless they count for nothing, and frames."""
        stored = self.stored
        slots = [value for name, value in stored.slots.items() if name not in stored.bad and not self._lost]
        return slots + [payload for key, (payload, _) in stored.frames.items() if key not in stored.bad]

    @property
    def used_bytes(self) -> int:
        """What slots and frames take."""
        slots = sum(map(len, self.stored.slots.values()))
        return slots + sum(len(payload) for payload, _ in self.stored.frames.values())

    def heal(self) -> None:
        """There is room again."""
        self._full_until_us = 0

    def payload(self, epoch: int, seq: int) -> bytes:
        """The bytes of a committed frame. Raises: DamagedError."""
        if (epoch, seq) in self.stored.bad:
            raise DamagedError(f"frame ({epoch}, {seq}) fails its checksum")
        return self.stored.frames[epoch, seq][0]

    def raw(self, epoch: int, seq: int) -> bytes | None:
        """The stored bytes even if damaged."""
        row = self.stored.frames.get((epoch, seq))
        return None if row is None else row[0]

    def load(self, epoch: int, seq: int) -> Frame:
        """A spooled frame, decoded: what the machine asks for when it gives one up."""
        frame = frames.decode(self.payload(epoch, seq))
        assert isinstance(frame, Frame)
        return frame
