"""A node's spool in memory, as bytes of the real codec: changed by whole commits, read back at a start.

It stands in for `edge_agent.ports.spool.Spool`, whose own safety on real files tests/ports tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from edge_agent.algebra.frame import Frame
from edge_agent.errors import WireError
from edge_agent.machines.events import Commit, Note, Restored, SpooledFrame
from edge_agent.wire import frames, snapshot


@dataclass(slots=True)
class Stored:
    """What is on the disk. frames: (epoch, seq) -> (payload, marked as sent), in the order of their commits."""

    slots: dict[str, bytes] = field(default_factory=dict)
    frames: dict[tuple[int, int], tuple[bytes, bool]] = field(default_factory=dict)

    def copy(self) -> Stored:
        """Another disk with the same bytes."""
        return Stored(dict(self.slots), dict(self.frames))


class SimulatedSpool:
    """One node's disk."""

    def __init__(self) -> None:
        self.stored = Stored()
        self.notes: list[Note] = []

    def open(self) -> Restored:
        """What a new process finds. Births come decoded, as the runtime hands them over."""
        state = {name: snapshot.loads(value) for name, value in self.stored.slots.items()}
        found = tuple(self._found(key, *row) for key, row in self.stored.frames.items())
        return Restored(state, found)

    @staticmethod
    def _found(key: tuple[int, int], payload: bytes, sent: bool) -> SpooledFrame:
        found = SpooledFrame(*key, sent)
        if key[1]:
            return found
        try:
            birth = frames.decode(payload)
        except WireError as err:
            return replace(found, damaged=str(err))
        return replace(found, frame=birth if isinstance(birth, Frame) else None)

    def commit(self, commit: Commit) -> None:
        """One transaction. Raises: PortError where the disk refuses it."""
        slots, rows = self.stored.slots, self.stored.frames
        encoded = [((each.epoch, each.seq), frames.encode(each)) for each in commit.frames]
        instead = [((each.epoch, each.seq), frames.encode(each)) for each in commit.replace]
        for name, value in commit.state.items():
            if value is None:
                slots.pop(name, None)
            else:
                slots[name] = snapshot.dumps(value)
        for key in commit.forget:
            rows.pop(key, None)
        for key, payload in encoded:
            assert key not in rows, f"seq {key} is used twice"
            rows[key] = (payload, False)
        for key, payload in instead:
            rows[key] = (payload, rows[key][1] if key in rows else False)
        for key in commit.mark_sent:
            if key in rows:
                rows[key] = (rows[key][0], True)

    def payload(self, epoch: int, seq: int) -> bytes:
        """The bytes of a committed frame."""
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
