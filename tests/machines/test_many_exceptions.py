"""More leaves left out at once than one frame can name (protocol 2.1, 2.3, 4.6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from edge_agent.algebra.frame import (
    MAX_FRAME_BYTES,
    NEVER_US,
    ExcludedLeaf,
    Frame,
    GroupPart,
    Heartbeat,
    Leaf,
    Members,
    Plan,
)
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Session, Tumbling
from edge_agent.machines.downlink import room
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.events import Arrived, Beat, LowerLink, Receipted, SendReceipt, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.uplink import gap_records
from edge_agent.machines.uplink.encoding.stated_exceptions import StatedExceptions
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.machines.uplink.step import GroupStep, Hints, Step, StepRows
from edge_agent.wire.frames import decode, encode
from tests.support.machines.scripted_child import SUM, Sender
from tests.support.machines.simulated_host import JOURNAL, T0, Disk, S, SimulatedHost

GRACE = 10 * S
SUMS = Query("sums", 1, "door", Tumbling(S), SUM)
VISITS = Query("visits", 1, "door", Session(5 * S), SUM)
GROUP = SUMS.group
MANY = 10_000


def region(node: str, disk: Disk, now_us: int, parent: int, limit: int) -> SimulatedHost[Merger]:
    """A process of a merger that has heard its parent."""
    settings = NodeSettings(node, frame_bytes=limit)
    host = SimulatedHost(Merger(settings, Random(now_us), disk.restored(), disk.load, grace_us=GRACE), disk)
    host.accepted(now_us, parent)
    host.do(LowerLink(up=True), now_us)
    return host


def crossed(frames: Iterable[Frame], limit: int) -> list[Frame]:
    """As they arrive: decoded from their bytes, none of which are above the limit."""
    out = []
    for frame in frames:
        payload = encode(frame)
        assert len(payload) <= limit or (limit < 1_000 and frame.define), frame  # a definition is larger by itself
        heard = decode(payload)
        assert isinstance(heard, Frame)
        out.append(heard)
    return out


def told(parent: ChildFrames, child: str) -> Member:
    return parent.children.membership(GROUP).member(child)


def wanted(below: SimulatedHost[Merger]) -> dict[str, tuple[int, int]]:
    membership = below.machine.parent.children.membership(GROUP)
    found = membership.exceptions_at(below.machine.sent.groups[GROUP].frontier_us)
    return {each.node: (each.frontier_us, each.bound_us) for each in found}


def test_half_of_ten_thousand_leaves_fall_silent_and_come_back() -> None:
    """protocol 2.1, 4.6: no frame is above the limit, and at no frame does the parent believe a leaf to be further."""
    below = region("m", Disk(), T0, JOURNAL, MAX_FRAME_BYTES)
    halls = {f"hall-{n}": [f"gateway-in-hall-{n}-{m:06}" for m in range(MANY // 4)] for n in range(4)}
    one = Sender("one", SUMS)
    one.outbox.journal = below.machine.journal
    birth, reached = one.birth(T0), dict.fromkeys((leaf for leaves in halls.values() for leaf in leaves), T0)
    _, serves = birth.members
    lists = {hall: Members(0, tuple(Leaf(leaf, 1) for leaf in leaves)) for hall, leaves in halls.items()}
    births = ((hall, replace(birth, members=(lists[hall], serves)), None) for hall in halls)
    above, passed, many = ChildFrames(JOURNAL, 600 * S), 0, 0

    def beat(frontier_us: int, some: list[str], now_us: int) -> None:
        heartbeat = Heartbeat(birth.epoch, 0, ((0, frontier_us),))
        for hall in some:
            reached.update(dict.fromkeys(halls[hall], frontier_us))
        below.do(Arrived(tuple((hall, heartbeat, None) for hall in some)), now_us)

    def pass_on(now_us: int) -> None:
        nonlocal passed, many
        below.do(Tick(), now_us)
        beats = [action.heartbeat for action in below.done if isinstance(action, Beat)]
        frames = crossed([frame for frame, _ in below.disk.frames.values()][passed:], MAX_FRAME_BYTES)
        passed += len(frames)
        many += sum(bool(part.more or part.ended) for frame in frames for part in frame.groups)
        messages: list[Frame | Heartbeat] = [*frames, *beats[-1:]]
        for message in messages:
            above.take("m", message, now_us)
            stated = told(above, "m").leaf_frontiers()
            assert all(us <= reached[leaf] for leaf, (us, _) in stated.items())
        below.done.clear()

    below.do(Arrived(tuple(births)), T0)
    pass_on(T0 + S)
    assert len(told(above, "m").leaves) == MANY
    dead, alive = MANY // 2, ["hall-0", "hall-2"]
    for second in range(2, 20, 4):
        beat(T0 + second * S, alive, T0 + second * S)
        pass_on(T0 + second * S + 1)
    assert len(told(above, "m").exceptions) == dead
    assert told(above, "m").exceptions == wanted(below)
    assert told(above, "m").frontier_us == T0 + 18 * S, "the others go on"
    assert many > 1
    again = region("m", below.disk, T0 + 19 * S, JOURNAL, MAX_FRAME_BYTES)  # its birth has the same list
    below = again
    pass_on(T0 + 20 * S)
    (born,) = [frame.birth for frame, _ in below.disk.frames.values() if frame.birth and frame.seq < passed][1:]
    assert born.frames > 2
    assert told(above, "m").exceptions == wanted(below)
    assert len(wanted(below)) == dead
    for second in range(22, 32, 4):
        beat(T0 + second * S, list(halls), T0 + second * S)
        pass_on(T0 + second * S + 1)
    assert told(above, "m").exceptions == wanted(below) == {}


@pytest.mark.parametrize("seed", range(12))
def test_two_tiers_with_tiny_frames_and_kills_between_them(seed: int) -> None:
    """protocol 2.3: whatever frame is the last that a tier holds, it believes no leaf to be further than it is."""
    random, limit, journals = Random(seed), random_limit(seed), dict[str, int]()
    disks = {name: Disk() for name in ("m", "t")}
    hosts: dict[str, SimulatedHost[Merger]] = {}
    for name in ("t", "m"):
        hosts[name] = region(name, disks[name], T0, journals.get("t", JOURNAL), limit)
        journals[name] = hosts[name].machine.journal
    children = [Sender(f"gw-{n}", SUMS) for n in range(14)]
    reached, root = dict[str, int](), ChildFrames(JOURNAL, 600 * S)
    known = told(root, "t")

    def start(name: str, now_us: int) -> None:
        hosts[name] = region(name, disks[name], now_us, journals["t"] if name == "m" else JOURNAL, limit)
        assert hosts[name].machine.journal == journals[name]

    def spooled(name: str, now_us: int) -> list[Frame | Heartbeat]:
        done = hosts[name].do(Tick(), now_us)
        beats = [action.heartbeat for action in done if isinstance(action, Beat)]
        return [*crossed([frame for frame, _ in disks[name].frames.values()], limit), *beats]

    def up(now_us: int, *, kills: bool) -> None:
        for message in spooled("m", now_us):
            hosts["t"].do(Arrived((("m", message, None),)), now_us)
            if kills and random.random() < 0.2:
                hosts["t"].do(Tick(), now_us + random.choice((0, 2 * S)))
                start("t", now_us)
        for receipt in [
            action.receipt for action in hosts["t"].do(Tick(), now_us + S) if isinstance(action, SendReceipt)
        ]:
            hosts["m"].do(Receipted(receipt), now_us + S)
        for message in spooled("t", now_us + S):
            root.take("t", message, now_us + S)
            stated = known.leaf_frontiers()
            assert all(us <= reached[leaf] for leaf, (us, _) in stated.items()), stated
            if random.random() < 0.7:
                hosts["t"].do(Receipted(root.inbox.receipt("t", message.epoch)), now_us + S)
        for name in ("m", "t"):
            if kills and random.random() < 0.1:
                hosts[name].do(Tick(), now_us + S)  # births come once
                start(name, now_us + S)

    now_us, silent = T0, set[str]()
    for child in children:
        child.outbox.journal = journals["m"]
    for step in range(60):
        now_us += (random.choice((2, 5, 12)) if step < 50 else 2) * S
        if random.random() < 0.4:
            silent = {child.node for child in children if random.random() < random.choice((0.0, 0.5, 0.9))}
        for child in children if step < 50 else [child for child in children if child.outbox.epoch]:
            if not child.outbox.epoch and random.random() < 0.3:
                reached[child.node] = now_us
                hosts["m"].do(Arrived(((child.node, child.birth(now_us), None),)), now_us)
            elif child.outbox.epoch and (child.node not in silent or step >= 50):
                behind_us = random.choice((0, 0, 1, 7)) * S if step < 50 else 0
                reached[child.node] = max(reached[child.node], now_us - behind_us)
                beat = Heartbeat(child.outbox.epoch, 0, ((0, reached[child.node]),))
                hosts["m"].do(Arrived(((child.node, beat, None),)), now_us)
        up(now_us, kills=step < 50)
    assert known.exceptions == wanted(hosts["t"]), "as it says"
    assert not known.exceptions
    assert known.frontier_us > T0 + 60 * S
    assert known.leaves.keys() == reached.keys()


def random_limit(seed: int) -> int:
    return (250, 300, 400)[seed % 3]


class Pair:
    """A merger's outbox and its parent, which knows some leaves."""

    def __init__(self, limit: int, leaves: Iterable[str], query: Query = SUMS) -> None:
        self.limit, self.group, self.parent = limit, query.group, ChildFrames(JOURNAL, 600 * S)
        self.box = Outbox("m", Random(1), version="1", frame_bytes=limit)
        self.box.journal = JOURNAL
        self.box.draw()
        listed = tuple(Leaf(leaf, 1) for leaf in leaves)
        self.hear(self.box.open(Step((GroupStep(self.group, T0, leaves=listed, promised_us=T0),))))

    def hear(self, frames: Iterable[Frame]) -> None:
        for frame in crossed(frames, self.limit):
            self.parent.take("m", frame, T0)

    @property
    def member(self) -> Member:
        return self.parent.children.membership(self.group).member("m")

    def put(self, **step: Any) -> list[Frame]:
        frames = self.box.put(Step((GroupStep(self.group, **step),)))
        assert [frame.epoch for frame in frames] == [self.box.epoch] * len(frames)
        return frames


def excluded(reached: dict[str, int], frontier_us: int) -> tuple[ExcludedLeaf, ...]:
    return tuple(ExcludedLeaf(leaf, us, us - S) for leaf, us in sorted(reached.items()) if us < frontier_us)


@pytest.mark.parametrize("seed", range(10))
def test_frames_of_a_step_bring_the_parent_from_one_list_to_the_next_and_never_past_it(seed: int) -> None:
    """protocol 2.3: leaves come, fall behind, catch up, are retired, leave and are back, in frames of every size."""
    random = Random(seed)
    reached = {f"leaf-{n}": T0 + random.randrange(20) * S for n in range(20)}
    pair, frontier_us, changed = Pair(random.choice((150, 250, 600)), reached), T0, 0
    for step in range(40):
        frontier_us += random.choice((0, 0, 5, 20)) * S
        known = dict(pair.member.leaf_frontiers())
        gone = tuple(leaf for leaf in reached if random.random() < 0.03)
        back = [leaf for leaf in reached if leaf not in gone and random.random() < 0.05]
        left = tuple((Leaf(leaf, 1), Leaf(leaf, 2, 1)) for leaf in back)
        new = [f"leaf-{step}-{n}" for n in range(random.choice((0, 0, 1, 9)))]
        for leaf in reached:
            reached[leaf] += random.choice((0, 0, 3, 30)) * S
        for leaf in gone:
            del reached[leaf]
        stated = {each.node: each for each in pair.member.exceptions_at(pair.member.frontier_us)}
        until = (*stated.values(), *(ExcludedLeaf(leaf, NEVER_US, NEVER_US) for leaf in new))
        reached.update((leaf, T0 + random.randrange(400) * S) for leaf in new)
        frames = pair.put(
            frontier_us=frontier_us,
            exceptions=excluded(reached, frontier_us),
            leaves=tuple(Leaf(leaf, 1) for leaf in new),
            dropped=gone,
            promised_us=frontier_us,
            excepted=until,
            left=left,
            stay=tuple(Leaf(leaf, 1) for leaf in back),
        )
        after = {leaf: min(us, frontier_us) for leaf, us in reached.items()}
        changed += sum(bool(part.more or part.ended) for frame in frames for part in frame.groups)
        for frame in frames:
            pair.hear([frame])
            for leaf, (us, _) in pair.member.leaf_frontiers().items():
                if leaf in after and leaf not in back:
                    assert us <= max(after[leaf], known.get(leaf, (NEVER_US, 0))[0]), (leaf, frame)
        wanted = excluded(reached, frontier_us)
        assert pair.member.exceptions == {each.node: (each.frontier_us, each.bound_us) for each in wanted}
        assert pair.member.leaves.keys() == reached.keys()
    assert changed > 10


def test_what_ends_comes_behind_the_frontier_and_the_registers() -> None:
    """protocol 2.3, 5.2: a leaf counts again no earlier than the register of its open session."""
    leaves = {f"leaf-{n:03}": T0 - 9 * S for n in range(60)}
    pair = Pair(400, leaves, VISITS)
    pair.hear(pair.put(frontier_us=T0, exceptions=excluded(leaves, T0), promised_us=T0))
    assert len(pair.member.exceptions) == 60
    keys = [f"key-{n}" for n in range(3)]
    hints = Hints(keys, np.arange(3), np.full(3, T0 - 5 * S))
    still = dict(list(leaves.items())[:40])
    frames = pair.put(frontier_us=T0 + S, exceptions=excluded(still, T0), promised_us=T0 + S, hints=hints)
    assert len(frames) > 1
    for frame in frames:
        pair.hear([frame])
        if len(pair.member.exceptions) < 60:
            assert pair.member.hints == dict.fromkeys(keys, T0 - 5 * S)
            assert pair.member.frontier_us == T0 + S
    assert pair.member.exceptions.keys() == still.keys()


def test_ten_thousand_new_leaves_in_one_step_are_exceptions_until_its_last_frame() -> None:
    """protocol 2.1, 2.3: their list of exceptions is no frame's."""
    pair, leaves = Pair(MAX_FRAME_BYTES, ["first"]), [f"gateway-in-some-other-hall-{n:05}" for n in range(MANY)]
    new = tuple(ExcludedLeaf(leaf, NEVER_US, NEVER_US) for leaf in leaves)
    frames = pair.put(
        frontier_us=T0 + S,
        exceptions=(),
        leaves=tuple(Leaf(leaf, 1) for leaf in leaves),
        promised_us=T0 + S,
        excepted=new,
    )
    for frame in frames:
        if pair.member.frontier_us == T0:
            assert pair.member.exceptions.keys() == pair.member.leaves.keys() - {"first"}
        pair.hear([frame])
    assert pair.member.exceptions == {}
    assert len(pair.member.leaves) == MANY + 1


@pytest.mark.parametrize("seed", range(5))
def test_a_gap_record_for_dropped_frames_says_what_they_said_of_exceptions(seed: int) -> None:
    """protocol 3.5: of a list in several frames what changed in it, within what a frame holds."""
    random, reached = Random(seed), {f"leaf-{n:04}": T0 for n in range(2_000)}
    pair, other = Pair(20_000, reached), Pair(20_000, reached)
    frames: list[Frame] = []
    for step in range(1, 12):
        for leaf in random.sample(sorted(reached), 1_500):
            reached[leaf] += random.choice((1, 20)) * S
        at_us = T0 + step * 10 * S
        frames += pair.put(frontier_us=at_us, exceptions=excluded(reached, at_us), promised_us=at_us)
    pair.hear(frames)
    rest, spool = 0, {(frame.epoch, frame.seq): frame for frame in frames}
    while spool:
        run = gap_records.oldest_run(spool, spool.__getitem__, 1_000) or list(spool.values())[:1]
        record = gap_records.record_of(run, {0: GROUP}, [GROUP])
        for _ in run:
            del spool[next(iter(spool))]
        (heard,) = crossed([record], MAX_FRAME_BYTES)
        other.parent.take("m", heard, T0)
        rest += 1
    assert 1 < rest < len(frames)
    assert other.member.exceptions == pair.member.exceptions
    assert other.member.frontier_us == pair.member.frontier_us


def test_exceptions_of_one_child_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 2.2: changes could name ever more leaves."""
    monkeypatch.setattr(room, "MOST_LEAVES", 5)
    pair = Pair(MAX_FRAME_BYTES, ["a"])
    for n in range(9):
        more = tuple(ExcludedLeaf(f"leaf-{n}-{m}", T0, T0) for m in range(2))
        pair.hear([Frame(pair.box.epoch, n + 1, groups=(GroupPart(0, None, more=more),))])
    assert len(pair.member.exceptions) == 4
    assert pair.parent.inbox.lines()["m"].refused == 7


def test_a_frame_without_a_promise_states_the_registers_that_its_rows_clear_beside_exceptions() -> None:
    """protocol 2.3: a group that may promise nothing still says who is left out (5.2)."""
    pair = Pair(MAX_FRAME_BYTES, ["a", "b"], VISITS)
    one = np.ones(1, np.int64)
    plan = Plan(b"87654321", "session", ("count", "sum"), None, 1, (("visits", 1),), 5 * S)
    rows = Partials(one * T0, one * (T0 + S), one * 0, {"count": one, "sum": one.astype(np.float64)})
    hints = Hints(["key"], one * 0, one * (T0 - S))
    pair.hear(pair.put(frontier_us=T0, promised_us=T0, hints=hints))
    released = (StepRows(plan, False, rows, ["key"], []),)
    pair.hear(pair.put(rows=released, exceptions=(ExcludedLeaf("b", T0 - S, T0 - S),), promised_us=T0))
    assert pair.member.hints == {"key": T0 - S}


def test_what_raises_an_exception_comes_with_the_frontier_and_what_lowers_it_before() -> None:
    """protocol 2.3: an exception that is too low is safe."""
    stated = StatedExceptions()
    stated.sent([Frame(1, 1, groups=(GroupPart(0, exceptions=(ExcludedLeaf("x", 10, 10), ExcludedLeaf("y", 9, 9))),))])
    mixed = ExcludedLeaf("x", 20, 5)
    found = stated.changes(0, [mixed], (), ())
    assert found == ((ExcludedLeaf("x", 10, 5),), (mixed,), ("y",))


def test_a_leaf_that_was_dropped_is_stated_as_an_exception_again() -> None:
    """protocol 2.3, 4.6: the parent has dropped the exception with the leaf."""
    stated, excepted = StatedExceptions(), ExcludedLeaf("x", 10, 10)
    stated.sent([Frame(1, 1, groups=(GroupPart(0, exceptions=(excepted,)),))])
    assert stated.changes(0, [excepted], (), ()).ahead == ()
    stated.sent([Frame(1, 2, members=(Members(0, (), ("x",)),))])
    assert stated.changes(0, [excepted], (), ()).ahead == (excepted,)
