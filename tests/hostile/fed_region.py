"""A merger of gateways in the test's hands: bytes in, and what it sends read as its parent reads it."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from edge_agent.algebra.frame import Birth, Define, Frame, Gap, GroupPart, Leaf, Members, Plan, Section, Serving
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.query import Group
from edge_agent.machines.events import Arrived, Commit, Committed, LowerLink, Quarantine, Restored, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.runtime.region import heard
from edge_agent.wire import frames

S = 1_000_000
NOW_US = 1_790_000_000 * S
GROUP = Group("s", "", (), 0, "revise")


class Region:
    """A merger of gateways, fed with bytes; what it sends is read as its parent reads it."""

    def __init__(self, *, gateways_only: bool | None = True) -> None:
        self.sent: list[Frame] = []
        self.quarantined: list[str] = []
        self.now_us = NOW_US
        self.state: dict[str, object] = {}  # the slots of the spool
        self._gateways_only, self._random = gateways_only, Random(1)
        self.start()

    def start(self) -> None:
        """Begin a process with the slots of the one before."""
        restored = Restored(dict(self.state))
        settings = NodeSettings("m")
        self.merger = Merger(settings, self._random, restored, grace_us=60 * S, gateways_only=self._gateways_only)
        self.feed(LowerLink(up=True))

    def feed(self, event: Any) -> None:
        events = [event]
        while events:
            for action in self.merger.handle(events.pop(0), self.now_us):
                if isinstance(action, Commit):
                    kept = {**self.state, **action.state}
                    self.state = {row: value for row, value in kept.items() if value is not None}
                    for frame in action.frames:
                        decoded = frames.decode(frames.encode(frame))
                        assert isinstance(decoded, Frame)
                        self.sent.append(decoded)
                    events.append(Committed())
                if isinstance(action, Quarantine):
                    self.quarantined.append(action.reason)

    def hears(self, child: str, *of: Frame) -> None:
        for frame in of:
            self.feed(Arrived(((child, heard(frames.encode(frame)), None),)))
        self.now_us += 2 * S
        self.feed(Tick())

    def goes_on(self, child: str, seq: int = 2) -> None:
        """A child promises time for longer than the grace time; those whose frames are refused are left out."""
        for n in range(seq, seq + 6):
            self.now_us += 20 * S
            self.hears(child, Frame(7, n, groups=(GroupPart(0, self.now_us),)))

    def gives(self, child: str, payload: bytes) -> None:
        self.feed(Arrived(((child, heard(payload), None),)))

    def waits(self, seconds: int = 2) -> None:
        self.now_us += seconds * S
        self.feed(Tick())

    def losses(self) -> list[Gap]:
        return [gap for frame in self.sent for gap in frame.gaps]

    def readings(self) -> int:
        return sum(frame.readings for frame in self.sent)

    def birth(self, node: str, plan: Plan, **more: Any) -> Frame:
        define = Define(keys=(0, ("",)), groups=((0, GROUP),), plans=((0, 0, plan),))
        members = (Members(0, (Leaf(node, 1),), (), (Serving("q", 1),)),)
        fields: dict[str, Any] = {"define": define, "members": members}
        fields |= {"groups": (GroupPart(0, NOW_US - 10 * S),), **more}
        return Frame(7, 0, Birth(7 << 32, self.merger.journal, None, "1"), **fields)


def rows(seq: int, plan: Plan, states: dict[str, Array]) -> Frame:
    """One row, final at once."""
    one = np.array([NOW_US - 5 * S])
    partials = Partials(one, one + S, np.zeros(1, np.int64), states)
    part = GroupPart(0, NOW_US, (Section.of(0, plan, partials),))
    return Frame(7, seq, groups=(part,))


COUNTED = Plan(b"12345678", "slice", ("count", "sum"), 0, S, (("q", 1),))


def counted(seq: int, count: int, total: int = 0) -> Frame:
    return rows(seq, COUNTED, {"count": np.array([count]), "sum": np.array([total], object)})
