"""One gateway sends well-formed frames that contradict each other: births, flushes, moves, records, times of any kind.

Every item is valid alone, so that nothing is refused for its form. A sibling's readings all count, whatever leaves the
region can be read by its parent and by the root, and the region begins again from its spool now and then.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from edge_agent.algebra.frame import (
    BEGAN,
    DAMAGED,
    JOURNAL_LOST,
    LATEST_US,
    LOST,
    Birth,
    Define,
    ExcludedLeaf,
    Flush,
    Frame,
    Gap,
    GroupPart,
    Heartbeat,
    Leaf,
    Members,
    Plan,
    Section,
    Serving,
)
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.group_cut import PunctuationCut, SessionCut
from edge_agent.algebra.query.query import Group
from edge_agent.machines.events import Arrived, LowerLink, Restored, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.runtime.region import heard, pack, unpack
from edge_agent.wire import frames, snapshot
from tests.hostile.fed_region import COUNTED, GROUP, Region, S, counted
from tests.support.effort import seeds

SESSIONS = Group("s", "", (), 0, "revise", SessionCut(10 * S, 0))
SHORT = Group("s", "", (), 0, "revise", SessionCut(10 * S, 20 * S))
MARKERS = Group("s", "", (), 0, "revise", PunctuationCut("order"), node="bad")
GROUPS = (GROUP, SESSIONS, SHORT, MARKERS)
PLANS = (
    COUNTED,
    Plan(b"12345679", "session", ("count",), 0, S, (("q", 1),)),
    Plan(b"12345670", "session", ("count",), 0, S, (("q2", 1),)),
    Plan(b"87654321", "marker", ("count",), None, S, (("mq", 1),)),
)
DEFINE = Define(
    keys=(0, ("", "a=1", "|1", "|:start")),
    groups=tuple(enumerate(GROUPS)),
    plans=tuple((n, n, plan) for n, plan in enumerate(PLANS)),
)
EPOCHS = range(7, 14)
REASONS = (BEGAN, JOURNAL_LOST, LOST, DAMAGED, "quota", "a function failed")


class Spooled(Region):
    """A region that keeps waiting frames of its children as bytes."""

    def start(self) -> None:
        restored = Restored(snapshot.loads(snapshot.dumps(self.state)))
        only = self._gateways_only
        self.merger = Merger(
            NodeSettings("m"), self._random, restored, grace_us=60 * S, gateways_only=only, pack=pack, unpack=unpack
        )
        self.feed(LowerLink(up=True))


class Talker:
    """Draws the messages of one gateway."""

    def __init__(self, draw: Random, region: Region) -> None:
        self._draw, self._region = draw, region
        self._next: dict[int, int] = {}
        self._epoch = EPOCHS[0]

    def message(self) -> bytes | None:
        """The next message; None if the one drawn cannot be encoded."""
        draw = self._draw
        if draw.random() < 0.2:
            self._epoch = draw.choice(EPOCHS)
        after = self._next.get(self._epoch, 0)
        if draw.random() < 0.1:
            beats = tuple((n, self._time()) for n in draw.sample(range(4), draw.randrange(4)))
            last = draw.choice([after - 1, after, after + 5, -1, 2**62])
            return _encoded(Heartbeat(self._epoch, last, beats))
        seq = draw.choice([*[after] * 6, after + 1, after + 2, 0, after + 50])
        self._next[self._epoch] = max(after, seq + 1)
        return _encoded(self._frame(self._epoch, seq))

    def _time(self) -> int:
        now_us = self._region.now_us
        ago = (now_us - back * S for back in (0, 1, 5, 30, 100, -1, -200, -400))
        return self._draw.choice([*ago, 0, -1, 2**60, -(2**60), 2**62, -(2**62)])

    def _frame(self, epoch: int, seq: int) -> Frame:
        draw = self._draw
        birth = self._birth(epoch) if seq == 0 else None
        of = draw.sample(range(4), draw.choice([2, 4] if birth else [0, 1, 2]))
        return Frame(
            epoch,
            seq,
            birth,
            DEFINE if birth or draw.random() < 0.1 else None,
            tuple(self._members(epoch, n) for n in of),
            tuple(self._part(n) for n in draw.sample(range(4), draw.choice([0, 1, 1, 2, 4]))),
            tuple(self._gap() for _ in range(draw.choice([0, 0, 0, 1, 2]))),
            Flush(draw.choice([-1, 0, seq - 1]), draw.choice([None, 8, 9])) if seq and draw.random() < 0.1 else None,
            draw.choice([9, 10, epoch]) if draw.random() < 0.1 else None,
        )

    def _birth(self, epoch: int) -> Birth:
        draw, other = self._draw, self._draw.choice(EPOCHS)
        last = draw.choice([self._next.get(other, 0) - 1, self._next.get(other, 0), -1, 2**62])
        held = draw.choice([None, (), tuple(draw.sample(range(5, 20), 5))])
        before = draw.choice([None, LOST, (other, last), (other, last)])
        journal = self._region.merger.journal if draw.random() < 0.9 else 5
        frames_of_it, flush = draw.choice([1, 1, 1, 2, 3, 65_536]), draw.choice([None, None, -1, 0])
        return Birth(epoch << 32, journal, before, "1", frames_of_it, held, flush)

    def _members(self, epoch: int, group: int) -> Members:
        draw = self._draw
        leaf = Leaf("bad", draw.choice([epoch, 9, 10]), draw.choice([None, None, 7, 8, epoch]))
        serving = tuple(
            Serving(
                draw.choice(["q", "q2", "mq", "x"]),
                draw.choice([0, 1, 2, 2**62]),
                draw.choice([None, self._time(), LATEST_US]),
                draw.choice([None, self._time()]),
                draw.choice([None, self._time()]),
                draw.choice(["", "", "bad"]),
            )
            for _ in range(draw.randrange(3))
        )
        return Members(group, draw.choice([(), (leaf,)]), draw.choice([(), (), ("bad",)]), serving)

    def _part(self, group: int) -> GroupPart:
        draw, sections, late = self._draw, list[Section](), list[Section]()
        for _ in range(draw.choice([0, 0, 1, 1, 2])):
            (sections if draw.random() < 0.7 else late).append(self._section(group))
        exceptions = [ExcludedLeaf("bad", self._time(), self._time())]
        return GroupPart(
            group,
            draw.choice([None, self._region.now_us, self._time()]),
            tuple(sections),
            tuple(late),
            draw.choice([None, None, None, (), tuple(exceptions)]),
            tuple((draw.randrange(4), draw.choice([None, self._time()])) for _ in range(draw.choice([0, 0, 2]))),
            draw.choice([(), (), tuple(exceptions)]),
            draw.choice([(), (), (), ("bad",)]),
        )

    def _section(self, group: int) -> Section:
        draw, many = self._draw, self._draw.choice([1, 2, 4])
        number = group if draw.random() < 0.9 else draw.randrange(4)
        bounded = (min(max(self._time(), -(2**60)), 2**60 - 50 * S) // S * S for _ in range(many))
        start = np.array([max(us, -(2**60)) for us in bounded])
        length = np.array([draw.choice([S, S, 5 * S, 40 * S]) for _ in range(many)])
        counts = np.array([draw.choice([1, 1, 3, 1_000, 2**40])] * many)
        sums = np.array([draw.choice([0, 5, 2**100])] * many, object)
        states: dict[str, Array] = {c: counts if c == "count" else sums for c in PLANS[number].basis}
        keys = np.array([draw.randrange(4) for _ in range(many)])
        return Section(number, Partials(start, start + length, keys, states))

    def _gap(self) -> Gap:
        draw = self._draw
        start_us, end_us = sorted((self._time(), self._time()))
        groups = tuple(draw.sample(GROUPS, draw.randrange(3)))
        many, run = draw.choice([-1, 0, 5, 2**62]), draw.choice([0, 0, 1, 2, 5, 2**60])
        nodes, detail = draw.choice([(), ("bad",)]), draw.choice(["", "", "its past is not known"])
        return Gap(groups, start_us, end_us, many, nodes, draw.choice(REASONS), run, detail)


def _encoded(message: Frame | Heartbeat) -> bytes | None:
    try:
        return frames.encode_heartbeat(message) if isinstance(message, Heartbeat) else frames.encode(message)
    except ValueError:
        return None


def upward(below: list[Frame], above: Region | NumpyRoot, now_us: int) -> None:
    """Give what a node has sent to its parent, as bytes."""
    for frame in below:
        if isinstance(above, Region):
            if frame.birth is not None:
                above.merger.parent.inbox.journal = frame.birth.journal
            above.feed(Arrived((("m", heard(frames.encode(frame)), None),)))
        else:
            if frame.birth is not None:
                above.decider.parent.inbox.journal = frame.birth.journal
            above.take("top", frame, now_us)
    below.clear()


def talk(seed: int, messages: int) -> None:
    draw = Random(seed)
    region, above = Spooled(gateways_only=draw.choice([True, None])), Region(gateways_only=False)
    root, talker, good = NumpyRoot(0, grace_us=60 * S), Talker(draw, region), 0
    region.hears("good", region.birth("good", COUNTED))
    for n in range(messages):
        if (payload := talker.message()) is not None:
            region.gives("bad", payload)
        if draw.random() < 0.3:
            good += 1
            (part,) = counted(good, 1).groups
            region.gives("good", frames.encode(Frame(7, good, groups=(replace(part, frontier_us=region.now_us),))))
        if draw.random() < 0.4:
            region.waits(draw.choice([1, 2, 10, 20]))
        if draw.random() < 0.02:
            region.waits()
            region.start()
        region.merger.parent.inbox.check()
        above.now_us = region.now_us
        upward(region.sent, above, above.now_us)
        above.feed(Tick())
        upward(above.sent, root, above.now_us)
        if not n % 20:
            root.step(above.now_us)
    line = region.merger.parent.inbox.lines()["good"]
    assert (line.readings, line.applied.next) == (good, good + 1)
    assert above.quarantined == []


@pytest.mark.seeded
def test_well_formed_frames_that_contradict_each_other_cost_their_sender_only() -> None:
    for seed in seeds(0, 6):
        try:
            talk(seed, 120)
        except Exception as err:
            raise AssertionError(f"seed {seed}") from err
