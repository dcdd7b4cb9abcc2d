"""What a commit writes grows with what changed since the last one, not with what is known: flash wears (3.1)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from edge_agent.algebra.partials.partial import Batch, Partials
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Session, Tumbling, Window
from edge_agent.machines.checkpoint.append_only import SLOT_TEXTS, AppendOnlyTable
from edge_agent.machines.checkpoint.codec import decode
from edge_agent.machines.checkpoint.paged_rows import MANY_ROWS, PAGE_KEYS, PagedRows
from edge_agent.machines.events import (
    Ack,
    Action,
    Arrived,
    Commit,
    Committed,
    Configured,
    Read,
    SendReceipt,
    Tick,
)
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.wire import snapshot
from tests.support.machines.scripted_child import Sender
from tests.support.machines.simulated_host import JOURNAL, SENSOR, T0, S, SimulatedHost, gateway_host

MANY_KEYS = 20_000
LABELS = [(("k", f"a-key-of-some-length-{n}"),) for n in range(MANY_KEYS + 5)]


class Flash:
    """What a gateway wrote, as the spool does: slots whose bytes changed."""

    def __init__(self, done: list[Action]) -> None:
        """done: grows by what is done."""
        self.done, self.slots, self.seen = done, dict[str, bytes](), 0

    def written(self) -> int:
        """Bytes since the last call."""
        total = 0
        for action in self.done[self.seen :]:
            for slot, value in action.state.items() if isinstance(action, Commit) else ():
                content = b"" if value is None else snapshot.dumps(value)
                if self.slots.get(slot, b"") != content:
                    total += len(content)
                    self.slots[slot] = content
        self.seen = len(self.done)
        return total


def asking(queries: tuple[Query, ...], journal: int = JOURNAL) -> SimulatedHost[Gateway]:
    host = gateway_host()
    host.accepted(T0, journal)
    host.do(Configured((SENSOR,), queries), T0 + S)
    return host


def push(host: SimulatedHost[Gateway], time_us: int, series: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    times = np.full(len(series), time_us, np.int64)
    host.do(Read("s", Batch(times, series % 50, series, LABELS), position=1), time_us)


def query(name: str, window: Window | Session, by: tuple[str, ...] = ()) -> Query:
    return Query(name, 1, "s", window, (Aggregate("sum", "sum"),), by=by, lateness_us=0)


def test_two_thousand_queries_are_written_when_they_change_and_not_with_every_commit() -> None:
    """protocol 3.1: readings, windows that close: what definitions made is not written again."""
    queries = tuple(query(f"q{n}", Tumbling((n % 20 + 1) * S)) for n in range(2_000))
    host = asking(queries)
    flash = Flash(host.done)
    assert flash.written() > 400_000
    for step in range(2, 8):  # the plan gets its number with the first rows that leave
        push(host, T0 + step * S, np.zeros(1, np.int64))
        host.do(Tick(), T0 + (step + 1) * S)
        assert 0 < flash.written() < (5_000 if step > 3 else 50_000)
    host.do(Configured((SENSOR,), queries[1:]), T0 + 9 * S)
    assert flash.written() > 400_000


@pytest.mark.parametrize("window", [Tumbling(S), Session(S // 2)])
def test_keys_are_written_once_however_many_are_known(window: Window | Session) -> None:
    """protocol 2.4, 3.1: a commit holds the keys that came and the rows that are open."""
    host = asking((query("q", window, ("k",)),))
    flash = Flash(host.done)
    push(host, T0 + 2 * S, np.arange(MANY_KEYS))
    host.do(Tick(), T0 + 3 * S)
    host.do(Tick(), T0 + 9 * S)
    assert flash.written() > MANY_KEYS * 40
    push(host, T0 + 10 * S, np.arange(5))
    host.do(Tick(), T0 + 11 * S)
    assert 0 < flash.written() < 5_000
    push(host, T0 + 12 * S, np.arange(MANY_KEYS, MANY_KEYS + 5))
    host.do(Tick(), T0 + 13 * S)
    # the last slots of two tables of keys: of the slicer, and of the epoch
    assert 0 < flash.written() < 5_000 + 2 * 40 * SLOT_TEXTS


def test_a_gateway_goes_on_from_the_parts_that_its_commits_wrote() -> None:
    """protocol 1.3: tenures, keys and what is open come back together; nothing of a group that left stays."""
    host = asking((query("q", Tumbling(10 * S), ("k",)),))
    push(host, T0 + 2 * S, np.arange(3 * SLOT_TEXTS))
    host.do(Tick(), T0 + 3 * S)
    push(host, T0 + 4 * S, np.arange(3 * SLOT_TEXTS, 4 * SLOT_TEXTS + 7))
    host.do(Tick(), T0 + 5 * S)
    (slicer,) = (state.slicer for state in host.machine.groups.values() if state.slicer.group.by)
    again = gateway_host(host.disk, T0 + 6 * S)
    (twin,) = (state.slicer for group, state in again.machine.groups.items() if group == slicer.group)
    assert list(twin.keys) == list(slicer.keys)
    assert twin.servings[0].start_from_us == slicer.servings[0].start_from_us
    flushed = [section for frame in again.frames for part in frame.groups for section in part.sections]
    assert sum(int(section.partials.states["count"].sum()) for section in flushed if "count" in section.partials.states)


@pytest.mark.parametrize("window", [Tumbling(3_600 * S), Session(3_600 * S)])
def test_of_many_open_rows_those_of_keys_that_changed_are_written(window: Window | Session) -> None:
    """protocol 3.1: an hour of many keys is open; a second of few of them does not write it again."""
    host = asking((query("q", window, ("k",)),))
    flash = Flash(host.done)
    push(host, T0 + 2 * S, np.arange(MANY_KEYS))
    host.do(Tick(), T0 + 3 * S)
    every = flash.written()
    assert every > MANY_KEYS * 30
    push(host, T0 + 4 * S, np.array([7, 9, 5_000]))
    host.do(Tick(), T0 + 5 * S)  # it tells where sessions are open, with keys and all
    flash.written()
    push(host, T0 + 6 * S, np.array([7, 9, 5_000]))
    host.do(Tick(), T0 + 7 * S)
    assert 0 < flash.written() < 20_000
    again = gateway_host(host.disk, T0 + 8 * S)
    flushed = [section for frame in again.frames for part in frame.groups for section in part.sections]
    pushed = int((np.arange(MANY_KEYS) % 50).sum()) + 2 * (7 + 9)
    assert sum(int(section.partials.states["sum"].sum()) for section in flushed) == pushed
    assert not [slot for slot in again.disk.slots if slot.startswith("rows/")]


def test_a_merger_writes_what_is_below_it_when_that_changes() -> None:
    """protocol 3.1, 4.5: leaves, queries and keys of a child once; a second without news writes frontiers."""
    region = SimulatedHost(Merger(NodeSettings("m"), Random(3), grace_us=60 * S))
    flash, merger = Flash(region.done), region.machine
    host = asking(tuple(query(f"q{n}", Tumbling(S), ("k",)) for n in range(1_000)), merger.journal)
    push(host, T0 + 2 * S, np.arange(5_000))
    host.do(Tick(), T0 + 3 * S)
    host.do(Tick(), T0 + 9 * S)
    region.accepted(T0 + 9 * S)
    region.do(Arrived(tuple(("a", frame, None) for frame, _sent in host.disk.frames.values())), T0 + 10 * S)
    region.do(Tick(), T0 + 11 * S)
    region.do(Tick(), T0 + 13 * S)
    assert flash.written() > 100_000
    for second in (12, 18, 24):  # what leaves the merger gets its numbers the first time
        flash.written()
        before = len(host.frames)
        for step in (second, second + 2):
            push(host, T0 + step * S, np.arange(3))
            host.do(Tick(), T0 + (step + 1) * S)
        assert host.frames[before:]
        region.do(Arrived(tuple(("a", frame, None) for frame in host.frames[before:])), T0 + (second + 3) * S)
        region.do(Tick(), T0 + (second + 5) * S)
    assert 0 < flash.written() < 10_000
    again = Merger(NodeSettings("m"), Random(4), region.disk.restored(), grace_us=60 * S)
    for family in merger.parent.children.memberships.values():
        family.forget_history()  # no lag from before a restart counts
    assert len(merger.parent.snapshot_memberships()) > 1
    assert again.parent.snapshot_memberships() == merger.parent.snapshot_memberships()
    assert {line: book.keys for line, book in again.parent.dictionaries.items()} == {
        line: book.keys for line, book in merger.parent.dictionaries.items()
    }


def test_a_growing_table_is_read_back_whatever_was_written_when() -> None:
    table, state = AppendOnlyTable("t"), dict[str, object]()
    for many in (0, 3, 3, SLOT_TEXTS, SLOT_TEXTS + 1, 5 * SLOT_TEXTS):
        texts = [f"text {n}" for n in range(many)]
        state |= table.changes(texts)
        assert AppendOnlyTable.read("t", state) == texts
    assert not table.changes([f"text {n}" for n in range(5 * SLOT_TEXTS)])
    state |= AppendOnlyTable("t", state).changes(["another"], anew=True)
    assert AppendOnlyTable.read("t", state) == ["another"]
    assert sum(value is not None for value in state.values()) == 1


def reading(token: int) -> Read:
    one = np.ones(1, np.int64)
    return Read("s", Batch(one * T0, one, one * 0, [()]), token=token)


def test_a_message_that_comes_while_a_commit_waits_for_its_disk_is_acknowledged_after_the_next_one() -> None:
    """protocol 3.1: what came after the transaction was made is not in it."""
    machine = gateway_host().machine
    machine.handle(reading(1), T0)
    (first,) = (a for a in machine.handle(Tick(), T0 + 2 * S) if isinstance(a, Commit))
    assert first.state
    machine.handle(reading(2), T0 + 3 * S)
    done = machine.handle(Committed(), T0 + 4 * S)
    assert Ack((1,)) in done
    assert any(isinstance(action, Commit) for action in done)
    assert Ack((2,)) in machine.handle(Committed(), T0 + 5 * S)


def test_a_receipt_says_no_more_than_the_commit_that_it_follows_holds() -> None:
    """protocol 3.2: a frame that comes while a merger's commit waits for its disk is receipted after the next one."""
    child = Sender("a", query("q", Tumbling(S)))
    merger = Merger(NodeSettings("m"), Random(1), grace_us=20 * S)
    child.outbox.journal = merger.journal
    merger.handle(Tick(), T0)
    merger.handle(Committed(), T0)
    done = merger.handle(Arrived((("a", child.birth(), None),)), T0 + S)
    assert any(isinstance(action, Commit) for action in done)
    merger.handle(Arrived((("a", child.send(frontier_us=T0), None),)), T0 + 2 * S)
    receipts = [a.receipt for a in merger.handle(Committed(), T0 + 4 * S) if isinstance(a, SendReceipt)]
    assert [receipt.upto for receipt in receipts] == [1]
    receipts = [a.receipt for a in merger.handle(Committed(), T0 + 5 * S) if isinstance(a, SendReceipt)]
    assert [receipt.upto for receipt in receipts] == [2]


def test_a_table_that_is_another_one_is_written_whole_though_it_has_as_many_entries() -> None:
    """protocol 3.1"""
    table = AppendOnlyTable("t")
    state = table.changes(["a", "b"])
    assert AppendOnlyTable.read("t", state | table.changes(["c", "d"], anew=True)) == ["c", "d"]


def test_rows_in_pages_are_read_back_in_their_order_and_pages_of_rows_that_left_are_deleted() -> None:
    """protocol 3.1"""
    pages, many = PagedRows("rows"), 2 * MANY_ROWS
    start = np.arange(many)
    rows = Partials(start, start + 1, (start * 7) % (4 * PAGE_KEYS), {"count": start})
    plain, slots = pages.changes(rows)
    found = decode(Partials, plain, PagedRows.reader(slots))
    for name in ("start", "end", "key"):
        assert np.array_equal(getattr(found, name), getattr(rows, name))
    assert np.array_equal(found.states["count"], start)
    assert len(slots) == 4
    _, later = pages.changes(rows.take(rows.key < PAGE_KEYS))
    assert later == dict.fromkeys(slots)
