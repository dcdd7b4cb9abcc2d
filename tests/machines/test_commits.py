"""What a commit writes grows with what changed since the last one, not with what is known: flash wears (3.1)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from edge_agent.algebra.frame import Receipt
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Session, Tumbling, Window
from edge_agent.machines.checkpoint.append_only import SLOT_TEXTS, AppendOnlyTable
from edge_agent.machines.events import (
    Action,
    Arrived,
    Commit,
    Committed,
    Configured,
    Event,
    LinkUp,
    Read,
    Receipted,
    Restored,
    Tick,
)
from edge_agent.machines.node import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.wire import snapshot
from tests.machines.test_node import SENSOR, T0, Rim, S

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


def asking(queries: tuple[Query, ...], journal: int = 7) -> Rim:
    rim = Rim()
    rim.do(LinkUp(), T0)
    rim.do(Receipted(Receipt(rim.gateway.outbox.epoch, journal, -1, (), ())), T0)
    rim.do(Configured((SENSOR,), queries), T0 + S)
    return rim


def push(rim: Rim, time_us: int, series: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    times = np.full(len(series), time_us, np.int64)
    rim.do(Read("s", Batch(times, series % 50, series, LABELS), position=1), time_us)


def query(name: str, window: Window | Session, by: tuple[str, ...] = ()) -> Query:
    return Query(name, 1, "s", window, (Aggregate("sum", "sum"),), by=by, lateness_us=0)


def test_two_thousand_queries_are_written_when_they_change_and_not_with_every_commit() -> None:
    """protocol 3.1: readings, windows that close: what definitions made is not written again."""
    queries = tuple(query(f"q{n}", Tumbling((n % 20 + 1) * S)) for n in range(2_000))
    rim = asking(queries)
    flash = Flash(rim.done)
    assert flash.written() > 400_000
    for step in range(2, 8):  # the plan gets its number with the first rows that leave
        push(rim, T0 + step * S, np.zeros(1, np.int64))
        rim.do(Tick(), T0 + (step + 1) * S)
        assert 0 < flash.written() < (5_000 if step > 3 else 50_000)
    rim.do(Configured((SENSOR,), queries[1:]), T0 + 9 * S)
    assert flash.written() > 400_000


@pytest.mark.parametrize("window", [Tumbling(S), Session(S // 2)])
def test_keys_are_written_once_however_many_are_known(window: Window | Session) -> None:
    """protocol 2.4, 3.1: a commit holds the keys that came and the rows that are open."""
    rim = asking((query("q", window, ("k",)),))
    flash = Flash(rim.done)
    push(rim, T0 + 2 * S, np.arange(MANY_KEYS))
    rim.do(Tick(), T0 + 3 * S)
    rim.do(Tick(), T0 + 9 * S)
    assert flash.written() > MANY_KEYS * 40
    push(rim, T0 + 10 * S, np.arange(5))
    rim.do(Tick(), T0 + 11 * S)
    assert 0 < flash.written() < 5_000
    push(rim, T0 + 12 * S, np.arange(MANY_KEYS, MANY_KEYS + 5))
    rim.do(Tick(), T0 + 13 * S)
    # the last slots of two tables of keys: of the slicer, and of the epoch
    assert 0 < flash.written() < 5_000 + 2 * 40 * SLOT_TEXTS


def test_a_gateway_goes_on_from_the_parts_that_its_commits_wrote() -> None:
    """protocol 1.3: tenures, keys and what is open come back together; nothing of a group that left stays."""
    rim = asking((query("q", Tumbling(10 * S), ("k",)),))
    push(rim, T0 + 2 * S, np.arange(3 * SLOT_TEXTS))
    rim.do(Tick(), T0 + 3 * S)
    push(rim, T0 + 4 * S, np.arange(3 * SLOT_TEXTS, 4 * SLOT_TEXTS + 7))
    rim.do(Tick(), T0 + 5 * S)
    (slicer,) = (state.slicer for state in rim.gateway.groups.values() if state.slicer.group.by)
    again = Rim(Restored({slot: value for slot, value in rim.state.items() if value is not None}), T0 + 6 * S)
    (twin,) = (state.slicer for group, state in again.gateway.groups.items() if group == slicer.group)
    assert list(twin.keys) == list(slicer.keys)
    assert twin.servings[0].start_from_us == slicer.servings[0].start_from_us
    flushed = [section for frame in again.frames for part in frame.groups for section in part.sections]
    assert sum(int(section.partials.states["count"].sum()) for section in flushed if "count" in section.partials.states)


@pytest.mark.parametrize("window", [Tumbling(3_600 * S), Session(3_600 * S)])
def test_of_many_open_rows_those_of_keys_that_changed_are_written(window: Window | Session) -> None:
    """protocol 3.1: an hour of many keys is open; a second of few of them does not write it again."""
    rim = asking((query("q", window, ("k",)),))
    flash = Flash(rim.done)
    push(rim, T0 + 2 * S, np.arange(MANY_KEYS))
    rim.do(Tick(), T0 + 3 * S)
    every = flash.written()
    assert every > MANY_KEYS * 30
    push(rim, T0 + 4 * S, np.array([7, 9, 5_000]))
    rim.do(Tick(), T0 + 5 * S)  # it tells where sessions are open, with keys and all
    flash.written()
    push(rim, T0 + 6 * S, np.array([7, 9, 5_000]))
    rim.do(Tick(), T0 + 7 * S)
    assert 0 < flash.written() < 20_000
    again = Rim(Restored({slot: value for slot, value in rim.state.items() if value is not None}), T0 + 8 * S)
    flushed = [section for frame in again.frames for part in frame.groups for section in part.sections]
    pushed = int((np.arange(MANY_KEYS) % 50).sum()) + 2 * (7 + 9)
    assert sum(int(section.partials.states["sum"].sum()) for section in flushed) == pushed
    assert not [slot for slot, value in again.state.items() if slot.startswith("rows/") and value is not None]


def test_a_merger_writes_what_is_below_it_when_that_changes() -> None:
    """protocol 3.1, 4.5: leaves, queries and keys of a child once; a second without news writes frontiers."""
    merger = Merger(NodeSettings("m"), Random(3), grace_us=60 * S)
    done: list[Action] = []
    flash, kept = Flash(done), dict[str, object]()

    def hand(event: Event, now_us: int) -> None:
        for action in merger.handle(event, now_us):
            done.append(action)
            if isinstance(action, Commit):
                kept.update(action.state)
                hand(Committed(), now_us)

    rim = asking(tuple(query(f"q{n}", Tumbling(S), ("k",)) for n in range(1_000)), merger.journal)
    push(rim, T0 + 2 * S, np.arange(5_000))
    rim.do(Tick(), T0 + 3 * S)
    rim.do(Tick(), T0 + 9 * S)
    hand(LinkUp(), T0 + 9 * S)
    hand(Receipted(Receipt(merger.outbox.epoch, 7, -1, (), ())), T0 + 9 * S)
    births = {frame.seq: frame for action in rim.done if isinstance(action, Commit) for frame in action.replace}
    hand(Arrived(tuple(("a", births.get(frame.seq, frame), None) for frame in rim.frames)), T0 + 10 * S)
    hand(Tick(), T0 + 11 * S)
    hand(Tick(), T0 + 13 * S)
    assert flash.written() > 100_000
    for second in (12, 18, 24):  # what leaves the merger gets its numbers the first time
        flash.written()
        before = len(rim.frames)
        for step in (second, second + 2):
            push(rim, T0 + step * S, np.arange(3))
            rim.do(Tick(), T0 + (step + 1) * S)
        assert rim.frames[before:]
        hand(Arrived(tuple(("a", frame, None) for frame in rim.frames[before:])), T0 + (second + 3) * S)
        hand(Tick(), T0 + (second + 5) * S)
    assert 0 < flash.written() < 10_000
    state = {slot: value for slot, value in kept.items() if value is not None}
    again = Merger(NodeSettings("m"), Random(4), Restored(state), grace_us=60 * S)
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
