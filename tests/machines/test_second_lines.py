"""Spools that were lost or restored from an older copy, and two devices with one id: declared, never silently wrong."""

from __future__ import annotations

import copy
from collections.abc import Generator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from edge_agent.algebra.frame import NEVER_US, Birth, Flush, Frame, Heartbeat, Receipt
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.epochs.epoch_frames import Effect, EpochFrames
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.downlink.line_watch import TWO_DEVICES, WENT_BACK
from edge_agent.machines.downlink.losses.loss_records import PAST_LOST
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.events import (
    Arrived,
    Beat,
    Configured,
    LowerLink,
    Note,
    Publish,
    Read,
    Receipted,
    Restored,
    Tick,
)
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from tests.support.machines.scripted_child import Sender, root_of
from tests.support.machines.simulated_host import JOURNAL, SENSOR, T0, Disk, S, SimulatedHost

GRACE = 20 * S
QUERY = Query("q", 1, "s", Tumbling(5 * S), (Aggregate("sum", "sum"),), lateness_us=0)
Rows = dict[int, tuple[float | None, bool]]


class Device:
    """A gateway that reads one value a second from a file, from where its spool says; and what it has published."""

    def __init__(self, parent: Parent, seed: int, value: int = 1) -> None:
        self.parent, self.seed, self.value = parent, seed, value
        self.disk = Disk()
        self.host: SimulatedHost[Gateway] | None = None

    def start(self, now_us: int, *, lost: bool = False) -> None:
        found = self.disk.restored()
        restored = Restored(found.state, found.frames, lost)
        gateway = Gateway(NodeSettings("a"), Random(f"{self.seed} {now_us}"), restored, self.disk.load)
        self.host = SimulatedHost(gateway, self.disk)
        self.host.do(Configured((SENSOR,), (QUERY,), (), (canonical_query(QUERY),)), now_us)
        self.host.accepted(now_us, self.parent.journal)

    def second(self, now_us: int) -> None:
        """One second: it reads what is due, commits, publishes, and hears the receipts."""
        host = self.host
        if host is None:
            return
        position: Any = host.machine.sources["s"].position
        times = np.arange(T0 if position is None else position + S, now_us + 1, S)
        if len(times):
            batch = Batch(times, np.full(len(times), self.value), np.zeros(len(times), np.int64), [()])
            host.do(Read("s", batch, position=int(times[-1])), now_us)
        host.do(Tick(), now_us)
        done, host.done = host.done, []
        for action in done:
            if isinstance(action, Publish):
                self.parent.take("a", self.disk.load(action.epoch, action.seq), now_us)
            elif isinstance(action, Beat):
                self.parent.take("a", action.heartbeat, now_us)
        outbox = host.machine.outbox
        for epoch in sorted(outbox.pending.epochs() | {outbox.epoch}):
            host.do(Receipted(self.parent.receipt(epoch)), now_us)


class Parent:
    """The root, or a merger below it."""

    def __init__(self, *, merger: bool) -> None:
        self.root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0)
        self.merger = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=GRACE)) if merger else None
        self.rows: Rows = {}
        self.notes: list[str] = []  # of the merger
        if self.merger is not None:
            self.merger.accepted(T0)
            self.merger.do(LowerLink(up=True), T0)

    @property
    def journal(self) -> int:
        return JOURNAL if self.merger is None else self.merger.machine.journal

    def take(self, node: str, message: Frame | Heartbeat, now_us: int) -> None:
        if self.merger is None:
            self.root.take(node, message, now_us)
        else:
            self.merger.do(Arrived(((node, message, None),)), now_us)

    def receipt(self, epoch: int) -> Receipt:
        inbox = self.root.decider.parent.inbox if self.merger is None else self.merger.machine.parent.inbox
        return inbox.receipt("a", epoch)

    def second(self, now_us: int) -> None:
        if self.merger is not None:
            self.merger.do(Tick(), now_us)
            done, self.merger.done = self.merger.done, []
            self.notes += [action.name for action in done if isinstance(action, Note)]
            for action in done:
                if isinstance(action, Publish):
                    self.root.take("m", self.merger.disk.load(action.epoch, action.seq), now_us)
                elif isinstance(action, Beat):
                    self.root.take("m", action.heartbeat, now_us)
        for row in self.root.step(now_us):
            self.rows[row.start] = (row.values["sum"], row.complete)


def wrong(rows: Rows, value: int = 1) -> Rows:
    """Rows that are called complete and are not right."""
    return {start: (found, whole) for start, (found, whole) in rows.items() if whole and found != 5 * value}


def twice(rows: Rows) -> Rows:
    """Rows in which a reading counts twice."""
    return {start: (found, whole) for start, (found, whole) in rows.items() if (found or 0) > 5}


@pytest.mark.parametrize("merger", [False, True])
@pytest.mark.parametrize("said", [True, False])
def test_a_node_that_lost_its_spool_and_reads_again_is_believed_nothing(merger: bool, said: bool) -> None:
    """protocol 1.2: `lost`, or nothing at all of a new card: no reading counts twice, a row that lacks some says so."""
    parent = Parent(merger=merger)
    device = Device(parent, 1)
    for second in range(100):
        now_us = T0 + second * S
        if second == 0:
            device.start(now_us)
        if second == 23:
            device.disk = Disk()
            device.start(now_us, lost=said)
        device.second(now_us)
        parent.second(now_us)
    assert wrong(parent.rows) == {}
    assert twice(parent.rows) == {}, "the source was read again"
    assert [start for start, (_, whole) in parent.rows.items() if not whole], "what may be lost is declared"
    right = [start for start, (_, whole) in parent.rows.items() if whole]
    assert [start for start in right if start > T0 + 50 * S], "what comes later is complete"


@pytest.mark.parametrize("merger", [False, True])
@pytest.mark.parametrize("hears", [True, False])
def test_a_line_that_waits_takes_its_place_though_its_node_speaks_elsewhere_by_now(merger: bool, hears: bool) -> None:
    """protocol 1.4, 4.4: time alone tells that the first line is silent. hears: whether it could have been heard."""
    parent = Parent(merger=merger)
    device, newer = Device(parent, 1), 0
    receives = parent.root.decider.parent if parent.merger is None else parent.merger.machine.parent
    for second in range(35 + GRACE // S):
        now_us = T0 + second * S
        if second == 0:
            device.start(now_us)
        if second == 23:
            device.disk = Disk()
            device.start(now_us)
        if second == 28 and device.host is not None:  # all that it sent is receipted, and it gets another parent
            newer, device.host = device.host.machine.outbox.epoch, None
            receives.children.link(now_us, up=hears)
        device.second(now_us)
        parent.second(now_us)
    assert (receives.inbox.current["a"] == newer) == hears
    assert bool(parent.root.decider.gaps) == hears, "what it may have lost"


@pytest.mark.parametrize("merger", [False, True])
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_spool_from_an_older_copy_is_noticed_and_its_windows_are_marked(merger: bool, restarts: int) -> None:
    """protocol 1.3: readings since the copy come twice and count once. restarts: of the first line after it."""
    parent = Parent(merger=merger)
    device, older = Device(parent, 1), Disk()
    for second in range(120):
        now_us = T0 + second * S
        if second == 0:
            device.start(now_us)
        if second == 22:
            older = copy.deepcopy(device.disk)
        if second == 26 and restarts:
            device.start(now_us)
        if second == 33:
            device.disk = older
            device.start(now_us)
        device.second(now_us)
        parent.second(now_us)
    assert wrong(parent.rows) == twice(parent.rows) == {}
    right = [start for start, (_, whole) in parent.rows.items() if whole]
    assert [start for start in right if start >= T0 + 70 * S], "what comes later is complete"
    if parent.merger is not None:
        assert "node.went_back" in parent.notes
        assert parent.merger.machine.counters()["went_back"] == ["a"]
        assert parent.merger.machine.alarms == {"a": WENT_BACK}
    else:
        assert parent.root.decider.alarms["a"][0] == WENT_BACK


@pytest.mark.parametrize("merger", [False, True])
@pytest.mark.parametrize("clone", [False, True])
def test_of_two_devices_with_one_id_the_results_of_the_first_stay_right(merger: bool, clone: bool) -> None:
    """protocol 1.4: the second is a new device with the same id, or has a copy of the card; no row mixes them."""
    parent = Parent(merger=merger)
    first, second_one = Device(parent, 1), Device(parent, 2, value=1_000)
    for second in range(90):
        now_us = T0 + second * S
        if second == 0:
            first.start(now_us)
        if second == 20:
            second_one.disk = copy.deepcopy(first.disk) if clone else Disk()
            second_one.start(now_us)
        if second == 50:
            first.start(now_us)
        first.second(now_us)
        second_one.second(now_us)
        parent.second(now_us)
    complete = [start for start, (found, whole) in parent.rows.items() if whole and found == 5]
    assert wrong(parent.rows) == {}
    assert len(complete) >= 15
    assert not [start for start, (found, _) in parent.rows.items() if (found or 0) >= 1_000]
    if parent.merger is not None:
        assert "node.two_with_one_id" in parent.notes
        assert parent.merger.machine.alarms == {"a": TWO_DEVICES}
    else:
        assert parent.root.decider.alarms["a"][0] == TWO_DEVICES


def test_a_promise_of_a_device_that_goes_on_where_its_twin_has_flushed_is_not_taken() -> None:
    """protocol 1.4, 2.5: what it had read until then is in a frame with the number of that flush."""
    sender = Sender("a", QUERY)
    root = root_of(sender)
    epoch = sender.outbox.epoch
    root.take("a", sender.send(frontier_us=T0), T0)
    root.take("a", Frame(epoch, 2, flush=Flush(1)), T0)
    (number,) = sender.outbox.encoder.groups.values()
    (family,) = root.decider.parent.children.memberships.values()
    for last_seq, promised_us in ((1, T0 + S), (2, T0 + 2 * S)):
        root.take("a", Heartbeat(epoch, last_seq, ((number, promised_us),)), T0 + 3 * S)
        assert family.members["a"].frontier_us == T0 + S


def test_a_promise_of_a_line_that_waited_holds_once_it_is_in_force_though_its_node_is_silent() -> None:
    """protocol 1.4, 2.5: nobody sends it again."""
    frames, first, second = ChildFrames(77, GRACE), Sender("a", QUERY), Sender("a", QUERY)
    second.outbox.random.seed(5)
    frames.take("a", first.birth(T0), T0)
    frames.take("a", second.birth(), T0 + S)
    group = QUERY.group
    number = second.outbox.encoder.groups[group]
    frames.take("a", Heartbeat(second.outbox.epoch, 0, ((number, T0 + 2 * S),)), T0 + 2 * S)
    assert frames.children.memberships[group].members["a"].frontier_us == T0
    assert [applied.effect.epoch for _, applied in frames.look(T0 + 3 * GRACE)] == [second.outbox.epoch]
    assert frames.children.memberships[group].members["a"].frontier_us == T0 + 2 * S


def test_windows_of_a_second_device_are_marked_though_its_frame_waited_when_the_first_one_began_again() -> None:
    """protocol 1.4, 4.7"""
    frames, first = ChildFrames(77, GRACE), Sender("a", QUERY)
    for frame in (first.birth(T0), first.send((T0, T0 + 5 * S, "", 1.0), frontier_us=T0 + 5 * S)):
        frames.take("a", frame, T0 + 5 * S)
    second = copy.deepcopy(first)
    second.send(frontier_us=T0 + 10 * S)
    frames.take("a", second.send((T0 + 10 * S, T0 + 15 * S, "", 9.0)), T0 + 20 * S)
    applied = frames.take("a", first.birth(T0 + 5 * S), T0 + 21 * S)
    assert [each.effect.epoch for each in applied] == [second.outbox.epoch, first.outbox.epoch]
    found = [(gap.start_us, gap.end_us, gap.nodes) for each in applied for gap in each.losses]
    assert found == [(T0 + 5 * S, T0 + 21 * S + 1, ("a",))]


def test_a_refused_frame_of_a_copy_is_declared_lost_from_where_its_rows_begin() -> None:
    """protocol 1.3, 3.6: these may lie below what the line before had promised."""
    frames, first, second = ChildFrames(77, GRACE), Sender("a", QUERY), Sender("a", QUERY)
    second.outbox.random.seed(5)
    frames.take("a", first.birth(T0 + 100 * S), T0)
    frames.take("a", second.birth(T0 + 100 * S), T0 + S)
    assert len(list(frames.look(T0 + 3 * GRACE))) == 1
    frame = second.send((T0 + 5 * S, T0 + 10 * S, "k", 1.0))
    assert frame.define is not None
    define = replace(frame.define, nodes=(7, ("x",)))
    (applied,) = frames.take("a", replace(frame, define=define), T0 + 4 * GRACE)
    assert applied.effect.frame is None
    assert [gap.start_us for gap in applied.losses] == [T0 + 5 * S]


def test_a_merger_that_is_an_older_copy_and_had_promised_nothing_loses_no_row_without_a_record() -> None:
    """protocol 1.3; found by seed 32624 of the simulation: its flush came in the place of frames that are here."""
    first, root = Sender("m", QUERY, leaves=("a",)), root_of(grace_us=GRACE)
    rows = [(T0 + at * S, T0 + (at + 5) * S, "", 1.0) for at in (0, 5, 10)]
    born = first.birth()
    older = copy.deepcopy(first)
    for frame in (born, first.send(rows[0]), first.send(rows[1])):
        root.take("m", frame, T0 + 5 * S)
    for frame in (older.flush(rows[2]), older.birth()):
        root.take("m", frame, T0 + 10 * S)
    for second in range(10, 10 + 2 * GRACE // S):
        root.take("m", Heartbeat(older.outbox.epoch, 0, ()), T0 + second * S)
        root.step(T0 + second * S)
    assert root.decider.alarms["m"][0] == WENT_BACK
    (gap,) = {gap for _, gap in root.decider.gaps if gap.nodes == ("a",)}
    assert (gap.start_us, gap.reason) == (0, PAST_LOST)
    assert gap.end_us > T0 + 10 * S


def test_a_gateway_without_its_past_serves_a_new_query_from_where_its_new_line_begins() -> None:
    """protocol 6.3; found by seed 32992 of the simulation: it says "from the beginning"; its line before did not."""
    added = replace(QUERY, id="added")
    before, root = Sender("a", QUERY), root_of(grace_us=GRACE)
    for frame in (before.birth(), before.send((T0, T0 + 5 * S, "", 1.0), frontier_us=T0 + 7 * S)):
        root.take("a", frame, T0 + 10 * S)
    again = Sender("a", QUERY, added)
    again.outbox.random = Random(7)
    for second in range(11, 14 + 2 * GRACE // S):
        root.take("a", again.birth() if second in (11, 40) else Heartbeat(again.outbox.epoch, 0, ()), T0 + second * S)
        root.step(T0 + second * S)
    (member,) = (each.members["a"] for each in root.decider.parent.children.memberships.values())
    starts = {key.query: serving.from_us for key, serving in member.serving.items()}
    assert starts == {"q": NEVER_US, "added": T0 + 7 * S}
    assert Member.restore(member.snapshot()).snapshot() == member.snapshot()


def test_a_query_that_a_gateway_without_its_past_serves_no_more_ended_with_its_line_before() -> None:
    """protocol 6.3: as when its broker has lost the definition. A row with a part of its readings is not complete."""
    other, cut_us = replace(QUERY, id="other"), T0 + 7 * S
    before, beside, root = Sender("a", QUERY, other), Sender("b", QUERY, other), root_of(grace_us=GRACE)
    slices = [(T0, T0 + 5 * S, "", 1.0), (T0 + 5 * S, T0 + 10 * S, "", 1.0)]
    for sender in (before, beside):
        root.take(sender.node, sender.birth(), T0 + 10 * S)
    root.take("a", before.send(*slices, frontier_us=cut_us), T0 + 10 * S)
    again = Sender("a", QUERY)
    again.outbox.random = Random(7)
    rows: dict[tuple[str, int], Row] = {}
    for second in range(11, 18 + 2 * GRACE // S):
        root.take("a", again.birth() if second in (11, 40) else Heartbeat(again.outbox.epoch, 0, ()), T0 + second * S)
        root.take("b", beside.send(frontier_us=T0 + (second - 1) * S), T0 + second * S)
        rows |= {(row.query, row.start - T0): row for row in root.step(T0 + second * S)}
    (family,) = root.decider.parent.children.memberships.values()
    (ends,) = (leaves for key, leaves in family.ends().items() if key.query == "other")
    assert ends["a"] >= cut_us
    assert [leaves for key, leaves in family.begins().items() if key.query == "other"] == []
    assert ("a", "lost") in rows["other", 5 * S].coverage.missing


@pytest.mark.parametrize("ahead", [False, True])
def test_births_that_wait_for_silence_are_not_looked_at_with_each_frame_of_the_line_in_force(
    ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 1.4, 2.2: there may be a thousand; a birth that names the frame is, and a heartbeat looks at all."""
    looks, real = list[int](), Inbox._may_be_born

    def may_be_born(self: Inbox, key: EpochKey, frames: EpochFrames, now_us: int) -> Generator[Effect, None, bool]:
        looks.append(key.epoch)
        return real(self, key, frames, now_us)

    monkeypatch.setattr(Inbox, "_may_be_born", may_be_born)
    parent = ChildFrames(JOURNAL, GRACE, bounded=False)
    parent.take("g", Frame(1, 0, Birth(1 << 32, JOURNAL, None, "1")), T0)
    for epoch in range(10, 60):
        parent.take("g", Frame(epoch, 0, Birth(epoch << 32, JOURNAL, None, "1")), T0)
    parent.take("g", Frame(60, 0, Birth(60 << 32, JOURNAL, (1, 20), "1")), T0)
    if ahead:
        parent.take("g", Frame(1, 30), T0)
    looks.clear()
    for seq in range(1, 20):
        parent.take("g", Frame(1, seq), T0 + S)
    assert looks == []
    parent.take("g", Heartbeat(1, 19, ()), T0 + S)
    assert looks == [*range(10, 61)]
    born = parent.take("g", Frame(1, 20), T0 + S)[-1]
    assert (born.effect.epoch, born.effect.seq) == (60, 0)
