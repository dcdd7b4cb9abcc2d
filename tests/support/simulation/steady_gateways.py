"""Gateways by the thousand: stand-ins that send real frames of windows that numpy made, and never die.

A stand-in has the custody of a gateway: it asks for the journal, is born, keeps each frame until it is receipted and
sends it again. What its frames say is taken from a real gateway of the same definitions. It slices nothing: its rows,
one a minute, are sums of a table of readings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from edge_agent.algebra.frame import Frame, GroupPart, Heartbeat, Leaf, Plan, Section
from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.config import topics
from edge_agent.wire import frames, receipts
from tests.support.simulation.fleets import LABELS, GatewayHost
from tests.support.simulation.network import Message
from tests.support.simulation.world import SECOND, World

WINDOW_US: Final = 60 * SECOND
AGAIN_US: Final = 30 * SECOND  # without a receipt for so long a frame is sent again


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a gateway of these definitions sends: its birth, its first frame with rows, and the plan of these."""

    birth: Frame
    first: Frame
    plan: Plan

    @classmethod
    def of(cls, host: GatewayHost) -> Pattern:
        """From the spool of a real gateway that nobody receipted."""
        found = [frames.decode(payload) for payload, _ in host.disk.stored.frames.values()]
        births = [f for f in found if isinstance(f, Frame) and f.birth is not None]
        first = next(f for f in found if isinstance(f, Frame) and f.define is not None and f.define.plans)
        assert first.define is not None
        return cls(births[0], first, first.define.plans[0][2])


class Windows:
    """Rows of every gateway: columns of the plan by name, shape (gateways, windows). values: [gateway, second]."""

    def __init__(self, values: Array, basis: Sequence[str], first_us: int) -> None:
        per = values.reshape(len(values), -1, WINDOW_US // SECOND)
        made: dict[str, Callable[[], Array]] = {
            "count": lambda: np.full(per.shape[:2], per.shape[2], np.int64),
            "sum": lambda: np.asarray(per.sum(axis=2, dtype=np.int64)),
            "max": lambda: np.asarray(per.max(axis=2), np.int64),
        }
        self.columns = {name: made[name]() for name in basis}
        self.starts: Ints = first_us + WINDOW_US * np.arange(per.shape[1], dtype=np.int64)


class SteadyGateway:
    """One stand-in."""

    def __init__(self, world: World, parent: str, number: int, windows: Windows, pattern: Pattern) -> None:
        """number: its place in the tables of readings and windows."""
        self.world, self.name, self.number = world, f"g{number}", number
        self.windows, self.pattern = windows, pattern
        self.epoch_id = (number + 1) << 32 | 7
        self.spool: dict[int, tuple[bytes, int]] = {}  # seq -> (payload, sent at)
        self._to = topics.frames(self.name, parent)
        self._journal: int | None = None
        self._seq = self._next = 0

    @property
    def done(self) -> bool:
        """Whether all of it is receipted."""
        return self._next == len(self.windows.starts) and not self.spool

    def deliver(self, message: Message) -> None:
        """A receipt."""
        receipt = receipts.decode(message.payload)
        if self._journal is None:
            self._journal = receipt.journal
            self._born()
        assert receipt.journal == self._journal, "a merger has lost its journal"
        if receipt.epoch == self.epoch_id >> 32:
            above = receipt.above
            gone = [s for s in self.spool if s < receipt.upto or any(low <= s <= high for low, high in above)]
            for seq in gone:
                del self.spool[seq]

    def tick(self, now_us: int) -> None:
        """Send what has closed, and again what is not receipted."""
        if self._journal is None:
            self._publish(frames.encode_heartbeat(Heartbeat(self.epoch_id >> 32, -1, ())), now_us)
            return
        for seq, (payload, sent_us) in list(self.spool.items()):
            if now_us - sent_us >= AGAIN_US:
                self.spool[seq] = payload, now_us
                self._publish(payload, now_us)
        starts = self.windows.starts
        while self._next < len(starts) and starts[self._next] + WINDOW_US <= now_us:
            self._send(self._row(self._next), now_us)
            self._next += 1

    def _born(self) -> None:
        birth, (members,) = self.pattern.birth.birth, self.pattern.birth.members[:1]
        assert birth is not None
        assert self._journal is not None
        epoch = self.epoch_id >> 32
        named = replace(members, leaves=(Leaf(self.name, epoch),))
        own = replace(birth, epoch_id=self.epoch_id, journal=self._journal, predecessor=None, frames=1, held=())
        self._send(
            replace(
                self.pattern.birth, epoch=epoch, birth=own, members=(named, *self.pattern.birth.members[1:]), groups=()
            ),
            self.world.now_us,
        )

    def _row(self, at: int) -> Frame:
        start_us = int(self.windows.starts[at])
        states = {name: column[self.number, at : at + 1] for name, column in self.windows.columns.items()}
        one = np.array([start_us], np.int64)
        rows = Partials(one, one + WINDOW_US, np.zeros(1, np.int64), states)
        part = GroupPart(0, start_us + WINDOW_US, (Section.of(0, self.pattern.plan, rows),))
        if at:
            return Frame(0, 0, groups=(part,))
        define = self.pattern.first.define
        assert define is not None
        key = f"machine={LABELS[self.number % len(LABELS)][0][1]}"
        return Frame(0, 0, define=replace(define, keys=(0, (key,))), groups=(part,))

    def _send(self, frame: Frame, now_us: int) -> None:
        payload = frames.encode(replace(frame, epoch=self.epoch_id >> 32, seq=self._seq))
        self.spool[self._seq] = payload, now_us
        self._seq += 1
        self._publish(payload, now_us)

    def _publish(self, payload: bytes, now_us: int) -> None:
        self.world.network.publish(self._to, payload, now_us)
