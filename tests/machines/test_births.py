"""Births, flushes and definitions of many frames and many epochs, from a gateway through a merger to the root."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from edge_agent.algebra.frame import Birth, Frame, Heartbeat, Leaf
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Session, Tumbling
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.machines.downlink.epochs import epoch_frames
from edge_agent.machines.downlink.epochs.epoch_frames import Effect, EpochFrames
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.events import Arrived, BadFrame, Beat, Configured, Damaged, LowerLink, Note, Read, Retire, Tick
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.uplink.step import GroupStep, Step, only_leaves, without_rows_and_leaves
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from edge_agent.wire.frames import decode, encode
from tests.support.machines.simulated_host import JOURNAL, SENSOR, T0, Disk, S, SimulatedHost, read

LABELS = [(("k", str(n)),) for n in range(10_000)]
FEW = LABELS[:30]
SUMS = Query("sums", 1, "s", Tumbling(10 * S), (Aggregate("sum", "sum"),), by=("k",), lateness_us=0)
VISITS = Query("visits", 1, "s", Session(5 * S), (Aggregate("sum", "sum"),), by=("k",), lateness_us=0)


def started(
    disk: Disk | None, now_us: int, query: Query, journal: int, *, node: str = "a", **limits: Any
) -> SimulatedHost[Gateway]:
    """A process of the gateway that has heard its parent."""
    settings = NodeSettings(node, **limits)
    disk = disk or Disk()
    host = SimulatedHost(Gateway(settings, Random(now_us), disk.restored(), disk.load), disk)
    host.do(Configured((SENSOR,), (query,), (), (canonical_query(query),)), now_us)
    host.accepted(now_us, journal)
    return host


def push(host: SimulatedHost[Gateway], time_us: int, keys: Sequence[int]) -> None:
    """A reading of 1 for each key."""
    series = np.array(keys, np.int64)
    labels = LABELS if len(keys) > len(FEW) else FEW
    batch = Batch(np.full(len(series), time_us, np.int64), np.ones(len(series), np.int64), series, labels)
    host.do(Read("s", batch, position=time_us), time_us)


def spooled(host: SimulatedHost[Any]) -> list[Frame]:
    """All frames of a node so far: it never has a receipt."""
    return crossed(frame for frame, _ in host.disk.frames.values())


def heard(root: NumpyRoot, node: str, host: SimulatedHost[Any], now_us: int) -> None:
    """The root hears all of a node, the last heartbeat too."""
    beats = [action.heartbeat for action in host.done if isinstance(action, Beat)]
    messages: list[Frame | Heartbeat] = [*spooled(host), *beats[-1:]]
    for message in messages:
        root.take(node, message, now_us)


def crossed(frames: Iterable[Frame]) -> list[Frame]:
    """As they arrive: decoded from their bytes."""
    out = [decode(encode(frame)) for frame in frames]
    return [frame for frame in out if isinstance(frame, Frame)]


def region(disk: Disk | None, now_us: int, *, grace_us: int = 600 * S, **limits: Any) -> SimulatedHost[Merger]:
    """A process of the merger."""
    disk = disk or Disk()
    merger = Merger(NodeSettings("m", **limits), Random(now_us), disk.restored(), disk.load, grace_us=grace_us)
    host = SimulatedHost(merger, disk)
    host.accepted(now_us)
    host.do(LowerLink(up=True), now_us)
    return host


def newest(rows: Iterable[Row]) -> dict[tuple[str, int], tuple[float | None, bool]]:
    """(key, start) -> (sum, complete) of what stands."""
    return {(row.key, row.start): (row.values["sum"], row.complete) for row in rows if not row.withdrawn}


@pytest.mark.parametrize("restart_merger", [False, True])
def test_ten_thousand_open_keys_and_many_restarts_lose_nothing(restart_merger: bool) -> None:
    """protocol 1.3: every flush is of several frames; the parent restarts in the middle of each."""
    below, root = region(None, T0), NumpyRoot(JOURNAL, grace_us=600 * S)
    journal, disk, keys = below.machine.journal, Disk(), range(10_000)
    for start in range(5):
        now_us = T0 + start * 2 * S
        host = started(disk, now_us, SUMS, journal)
        push(host, now_us, keys)
        host.do(Tick(), now_us + S)
        flush = [frame for frame in host.frames if frame.flush is not None]
        assert (len(flush) > 1) == (start > 0)
        for frame in spooled(host):
            below.do(Arrived((("a", frame, None),)), now_us)
            below.do(Tick(), now_us)
            if restart_merger and frame.flush is not None and frame.seq % 2:
                below = region(below.disk, now_us)
    host.do(Tick(), T0 + 60 * S)
    for frame in spooled(host):
        below.do(Arrived((("a", frame, None),)), T0 + 60 * S)
    below.do(Tick(), T0 + 62 * S)
    for sent in spooled(below):
        root.take("m", sent, T0 + 62 * S)
    found = newest(root.step(T0 + 63 * S, flush=True))
    assert found == {(f"k={n}", T0): (5.0, True) for n in keys}


@pytest.mark.parametrize("query", [SUMS, VISITS], ids=lambda query: str(query.id))
@pytest.mark.parametrize("max_keys", [1, 7, 20])
def test_more_open_keys_than_an_epoch_numbers_leave_in_several_epochs(query: Query, max_keys: int) -> None:
    """protocol 2.4, 1.3: at an orderly stop and start, at once and after a second one."""
    root, disk, keys = NumpyRoot(JOURNAL, grace_us=600 * S), Disk(), range(23)
    for start in range(3):
        now_us = T0 + start * 2 * S
        host = started(disk, now_us, query, JOURNAL, max_keys=max_keys, frame_bytes=400)
        push(host, now_us, keys)
        host.do(Tick(), now_us + S)
        assert all(len(frame.define.keys[1]) <= max_keys for frame in host.frames if frame.define is not None)
        for frame in spooled(host):
            root.take("a", frame, now_us)
    host.do(Tick(), T0 + 60 * S)
    host.do(Tick(), T0 + 62 * S)
    heard(root, "a", host, T0 + 62 * S)
    found = newest(root.step(T0 + 63 * S, flush=True))
    assert found == {(f"k={n}", T0): (3.0, True) for n in keys}
    assert host.machine.outbox.withheld == frozenset()


def test_all_frames_of_a_flush_name_the_last_one_before_it_in_their_own_epoch() -> None:
    """protocol 1.3: also in the further epochs of a flush with more keys than one numbers."""
    host = started(None, T0, SUMS, JOURNAL, max_keys=5)
    for second in range(0, 50, 10):  # the epoch has more frames than those of its birth
        push(host, T0 + second * S, [0])
        host.do(Tick(), T0 + second * S)
    push(host, T0 + 50 * S, range(9))
    host.do(Tick(), T0 + 51 * S)
    host = started(host.disk, T0 + 52 * S, SUMS, JOURNAL, max_keys=5)
    host.do(Tick(), T0 + 53 * S)
    frames, last = spooled(host), dict[int, int]()
    for frame in frames:
        if frame.flush is None:
            last[frame.epoch] = frame.seq
        else:
            assert frame.flush.after == last[frame.epoch]
    assert len({frame.epoch for frame in frames if frame.flush is not None and frame.readings}) > 1


def test_a_group_with_more_open_sessions_than_an_epoch_numbers_promises_nothing_until_there_are_fewer() -> None:
    """protocol 2.4, 5.2: each needs a register; a promise without would end them."""
    host = started(None, T0, VISITS, JOURNAL, max_keys=5)
    root = NumpyRoot(JOURNAL, grace_us=600 * S)
    for second in range(4):  # every second's readings keep all sessions open
        push(host, T0 + second * S, range(9))
        host.do(Tick(), T0 + (second + 1) * S)
    notes = [action.name for action in host.done if isinstance(action, Note)]
    assert notes.count("sessions.too_many") == 1
    for frame in spooled(host):
        root.take("a", frame, T0 + 5 * S)
    assert root.step(T0 + 5 * S) == []
    (view,) = root.decider.decide(T0 + 5 * S).groups.values()
    assert view.frontier_us <= T0
    host.do(Tick(), T0 + 60 * S)
    host.do(Tick(), T0 + 62 * S)
    heard(root, "a", host, T0 + 62 * S)
    assert newest(root.step(T0 + 63 * S, flush=True)) == {(f"k={n}", T0): (4.0, True) for n in range(9)}


def test_no_row_precedes_the_list_of_its_leaf_where_a_step_takes_several_epochs() -> None:
    """protocol 1.5, 2.4 (seeds 59781, 63663): else a window has a row of the leaf's readings that never expects it."""
    below, root = region(None, T0, grace_us=2 * S, max_keys=3), NumpyRoot(JOURNAL, grace_us=600 * S)
    for node, now_us, keys in (("a", T0 + 60 * S, [0]), ("b", T0 + 70 * S, [0, 1, 2, 3])):
        host = started(None, T0, SUMS, below.machine.journal, node=node)
        push(host, T0, keys)
        host.do(Tick(), T0 + 12 * S)
        host.do(Tick(), now_us)
        beats = [action.heartbeat for action in host.done if isinstance(action, Beat)]
        messages: list[Frame | Heartbeat] = [*spooled(host), *beats[-1:]]
        below.do(Arrived(tuple((node, message, None) for message in messages)), now_us)
        below.do(Tick(), now_us + 2 * S)
    rows = list[Row]()
    for frame in spooled(below):  # the root decides after each of them
        root.take("m", frame, T0 + 72 * S)
        rows += root.step(T0 + 72 * S, flush=True)
    assert newest(rows) == {("k=0", T0): (2.0, True)} | {(f"k={n}", T0): (1.0, True) for n in (1, 2, 3)}
    assert {row.coverage.expected for row in rows if row.key != "k=0"} == {("a", "b")}


def test_a_leaf_that_left_is_missing_until_its_rows_are_here_where_a_step_takes_several_epochs() -> None:
    """protocol 1.5 (seed 71822): the births between the rows end its exception, and did not list it any more."""
    below, root = region(None, T0, grace_us=2 * S, max_keys=3), NumpyRoot(JOURNAL, grace_us=600 * S)
    hosts = {node: started(None, T0, SUMS, below.machine.journal, node=node) for node in ("a", "b")}

    def left(host: SimulatedHost[Gateway]) -> Frame:
        return Frame(host.machine.outbox.epoch, host.machine.outbox.seq, leave=99)

    def pass_on(node: str, frames: Sequence[Frame], now_us: int) -> list[Row]:
        beats = [action.heartbeat for action in hosts[node].done if isinstance(action, Beat)]
        messages: list[Frame | Heartbeat] = [*frames, *beats[-1:]]
        below.do(Arrived(tuple((node, message, None) for message in messages)), now_us)
        below.do(Tick(), now_us + 3 * S)
        rows = list[Row]()
        for frame in spooled(below):  # the root decides after each of them
            root.take("m", frame, now_us + 3 * S)
            rows += root.step(now_us + 3 * S, flush=True)
        return rows

    hosts["b"].do(Tick(), T0 + S)
    pass_on("b", births := spooled(hosts["b"]), T0 + S)
    push(hosts["a"], T0 + 10 * S, [1, 2, 3])
    hosts["a"].do(Tick(), T0 + 22 * S)
    hosts["a"].do(Tick(), T0 + 60 * S)
    rows = pass_on("a", [*spooled(hosts["a"])], T0 + 60 * S)
    assert newest(rows) == {(f"k={n}", T0 + 10 * S): (1.0, False) for n in (1, 2, 3)}
    pass_on("a", [left(hosts["a"])], T0 + 60 * S)  # b is the last leaf: there is nothing else that a birth lists
    push(hosts["b"], T0 + 10 * S, [0, 1, 2, 3])
    hosts["b"].do(Tick(), T0 + 22 * S)
    hosts["b"].do(Tick(), T0 + 62 * S)
    rows = pass_on("b", [*spooled(hosts["b"])[len(births) :], left(hosts["b"])], T0 + 62 * S)
    found = [(row.values["sum"], "b" in dict(row.coverage.missing)) for row in rows if row.key == "k=3"]
    assert found == [(2.0, False)]


def test_a_leaf_that_is_back_counts_once_its_registers_can_be_sent() -> None:
    """protocol 4.6, 5.2: until then it is an exception still, or rows would be complete without its open sessions."""
    below, root = region(None, T0, grace_us=10 * S, max_keys=3), NumpyRoot(JOURNAL, grace_us=600 * S)
    hosts = {node: started(None, T0, VISITS, below.machine.journal, node=node) for node in ("a", "b")}
    seen = dict.fromkeys(hosts, 0)

    def pass_on(now_us: int, *nodes: str) -> dict[tuple[str, int], tuple[float | None, bool]]:
        for node in nodes:
            hosts[node].do(Tick(), now_us)
            frames = spooled(hosts[node])
            below.do(Arrived(tuple((node, frame, None) for frame in frames[seen[node] :])), now_us)
            seen[node] = len(frames)
            beats = [action.heartbeat for action in hosts[node].done if isinstance(action, Beat)]
            below.do(Arrived(tuple((node, beat, None) for beat in beats[-1:])), now_us)
        below.do(Tick(), now_us)
        heard(root, "m", below, now_us)
        return newest(root.step(now_us, flush=True))

    push(hosts["b"], T0, [1])
    push(hosts["a"], T0 + 2 * S, [1])
    pass_on(T0 + 2 * S, "a", "b")
    found: dict[tuple[str, int], tuple[float | None, bool]] = {}
    for second in range(3, 30):  # b goes on reading, but nobody hears it
        now_us = T0 + second * S
        push(hosts["a"], now_us, [0])
        push(hosts["b"], now_us, [1, 2, 3, 4, 5])
        found |= pass_on(now_us, *(("a",) if second < 25 else ("a", "b")))
    assert [note.name for note in below.done if isinstance(note, Note)].count("sessions.too_many") == 1
    assert found == {("k=1", T0 + 2 * S): (1.0, False)}
    for second in range(30, 50):
        found |= pass_on(T0 + second * S, "a", "b")
    assert found["k=1", T0] == (29.0, True)


def test_between_the_frames_of_a_birth_no_group_ends_and_nobody_is_missing() -> None:
    """protocol 1.2, 1.5: texts of definitions go first, and the list of leaves stands in a later frame."""
    below, disk = region(None, T0), Disk()
    for start in range(3):
        now_us = T0 + start * 2 * S
        host = started(disk, now_us, SUMS, below.machine.journal, frame_bytes=300)
        read(host, now_us, 1, now_us)
        host.do(Tick(), now_us + S)
        birth = next(frame.birth for frame in host.frames if frame.birth is not None)
        assert birth.frames > 1
        for frame in spooled(host):
            below.do(Arrived((("a", frame, None),)), now_us)
            below.do(Tick(), now_us)
            if start:
                (membership,) = below.machine.parent.children.memberships.values()
                assert list(membership.expected()) == ["a"]
                assert list(membership.serving(now_us)) == [SUMS.key]
    dropped = [name for frame in below.frames for change in frame.members for name in change.dropped]
    assert dropped == []


def test_a_leaf_that_a_birth_does_not_list_is_expected_until_it_leaves_or_is_retired() -> None:
    """protocol 1.5; a merger that starts without a retired one says so."""
    below = region(None, T0)
    host = started(None, T0, SUMS, below.machine.journal)
    host.do(Tick(), T0 + S)
    for frame in spooled(host):
        below.do(Arrived((("a", frame, None),)), T0 + S)
    below.do(Tick(), T0 + 2 * S)
    above = NumpyRoot(JOURNAL, grace_us=600 * S)
    for frame in spooled(below):
        above.take("m", frame, T0 + 2 * S)
    (members,) = above.decider.parent.children.memberships.values()
    assert list(members.members["m"].leaves) == ["a"]
    host.machine.outbox.draw()
    (silent,) = crossed(host.machine.outbox.open(Step()))
    below.do(Arrived((("a", silent, None),)), T0 + 3 * S)
    (membership,) = below.machine.parent.children.memberships.values()
    assert list(membership.expected()) == ["a"]
    again = SimulatedHost(Merger(NodeSettings("m"), Random(5), below.disk.restored(), grace_us=600 * S), below.disk)
    again.do(Retire("a"), T0 + 4 * S)
    for frame in spooled(again):
        above.take("m", frame, T0 + 5 * S)
    (members,) = above.decider.parent.children.memberships.values()
    assert not members.expected()


@pytest.mark.parametrize("damaged", range(6))
def test_a_damaged_frame_that_held_definitions_costs_what_it_held_and_no_more(damaged: int) -> None:
    """protocol 2.4, 3.6: the gap record in its place says what the numbers mean, and a new epoch says the rest."""
    host = started(None, T0, SUMS, JOURNAL, frame_bytes=300)
    for window in range(4):
        push(host, T0 + window * 10 * S, [window, window + 1])
        host.do(Tick(), T0 + window * 10 * S + 1)
    host.do(Tick(), T0 + 60 * S)
    lost = list(host.disk.frames)[damaged]
    host.do(Damaged(*lost), T0 + 61 * S)
    host.do(Tick(), T0 + 63 * S)
    root = NumpyRoot(JOURNAL, grace_us=600 * S)
    for frame in spooled(host):
        root.take("a", frame, T0 + 63 * S)
    push(host, T0 + 70 * S, [3])
    host.do(Tick(), T0 + 100 * S)
    host.do(Tick(), T0 + 102 * S)
    heard(root, "a", host, T0 + 102 * S)
    found = newest(root.step(T0 + 103 * S, flush=True))
    wanted = {(f"k={key}", T0 + n * 10 * S) for n in range(4) for key in (n, n + 1)} | {("k=3", T0 + 70 * S)}
    assert found.keys() <= wanted
    assert len(wanted - found.keys()) <= 2, wanted - found.keys()
    assert {value for value, _ in found.values()} == {1.0}
    assert not root.decider.parent.inbox.epochs.keys() - {EpochKey("a", host.machine.outbox.epoch)}


@pytest.mark.parametrize("seed", range(20))
def test_a_birth_is_here_if_no_frame_of_it_is_missing_whatever_came_and_went(seed: int) -> None:
    """protocol 1.2, 3.5: one message may stand for several frames."""
    random, known = Random(seed), EpochFrames(birth_frames=12)
    for _ in range(200):
        seq = random.randrange(14)
        if random.random() < 0.2:
            known.waiting.pop(seq, None)
        else:
            known.waiting[seq] = BadFrame(1, seq, "lost", b"", random.choice((1, 1, 2, 5)))
        known._touched(seq)
        assert known.birth_is_here == (not any(known.missing(known.birth_frames - 1)))


def test_each_frame_of_a_long_birth_is_counted_once_and_lets_nothing_else_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """protocol 1.2, 2.2: a hostile child may say that its birth has 65 536 frames, and send most of them."""
    counted, looks = list[int](), list[str]()
    real, advance = epoch_frames.run_of, Inbox._advance

    def run_of(message: Frame | BadFrame) -> int:
        counted.append(message.seq)
        return real(message)

    def look(self: Inbox, node: str, now_us: int) -> Iterator[Effect]:
        looks.append(node)
        return advance(self, node, now_us)

    monkeypatch.setattr(epoch_frames, "run_of", run_of)
    monkeypatch.setattr(Inbox, "_advance", look)
    inbox = Inbox(7)
    inbox.take("a", Frame(1, 0, Birth(1 << 32, 7, None, "1", 500)))
    for seq in range(1, 499):
        assert inbox.take("a", Frame(1, seq)) == []
    assert (len(counted), looks) == (499, [])
    assert len(inbox.take("a", Frame(1, 499))) == 500


def test_an_entry_that_was_replaced_is_listed_ahead_of_the_newer_one_where_a_step_takes_several_epochs() -> None:
    """protocol 1.5, 2.4: behind it, the parent would take the older entry for the one in force."""
    older, newer = Leaf("g", 1), Leaf("g", 3, 2)
    step = Step((GroupStep(SUMS.group, T0, leaves=(newer,), skipped=(older,)),))
    (listing,) = only_leaves(step).groups
    assert (listing.skipped, listing.leaves) == ((older,), (newer,))
    (rest,) = without_rows_and_leaves(step).groups
    assert (rest.skipped, rest.leaves, rest.frontier_us) == ((), (), T0)
