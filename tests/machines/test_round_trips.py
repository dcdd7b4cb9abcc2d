"""What a state writes for the next process is all that the process knew, field by field (docs/protocol.md 3.1, 8.2)."""

from __future__ import annotations

from dataclasses import fields
from random import Random
from typing import Any

import numpy as np
import pytest

from edge_agent.algebra.coverage import Coverage
from edge_agent.algebra.frame import Flush, Heartbeat, Leaf, Receipt, Serving
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.checkpoint.codec import decode, encode
from edge_agent.machines.checkpoint.slots import EpochFramesState, MemberState, MovesState, OutboxState
from edge_agent.machines.downlink.epochs.epoch_frames import EpochFrames
from edge_agent.machines.downlink.epochs.received_seqs import ReceivedSeqs
from edge_agent.machines.downlink.epochs.renumbering import TextNumbers
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.downlink.moves import Moves
from edge_agent.machines.events import SpooledFrame
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.machines.uplink.step import GroupStep, Step
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.session_tracker import OpenSessions
from edge_agent.root.punctuation_state import PunctuationWindows
from edge_agent.root.window_numbers import WindowNumbers
from edge_agent.wire import snapshot
from tests.support.machines.scripted_child import GRACE, JOURNAL, SUM, S, Sender

KEY, OTHER = QueryKey("q", 1), QueryKey("q", 2)
GROUP = Group("s", "", (), 0)
QUERY = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)


def set_fields(value: object, *, without: tuple[str, ...] = ()) -> dict[str, object]:
    """The fields of a dataclass; each but those of `without` differs from that of a new one, so none is forgotten."""
    found = {each.name: getattr(value, each.name) for each in fields(value)}  # type: ignore[arg-type]
    fresh = type(value)()
    same = [name for name, own in found.items() if name not in without and repr(own) == repr(getattr(fresh, name))]
    assert same == []
    return {name: own for name, own in found.items() if name not in without}


def test_a_child_in_a_group() -> None:
    member = Member(
        1,
        {"x": Leaf("x", 2, 3)},
        {"x": (4, 5)},
        {KEY: {"x": 6}},
        {KEY: Serving("q", 1, 7, 8, 9)},
        {"k": 10},
        {"l": 11},
        True,
        False,
        {"x": (12, 13)},
        {"x": True},
        True,
        14,
        15,
        16,
        {17: (18, 19)},
        True,
        20,
        {"x": 21},
        {"x"},
        22,
        {OTHER: 23},
        24,
        {"x"},
        ends={KEY: {"x": 25}},
    )
    without = ("unheeded", "version", "_definitions", "_roster", "_before")  # computed anew
    known = set_fields(member, without=without)
    again = Member.restore(decode(MemberState, encode(member.snapshot())))
    assert {name: getattr(again, name) for name in known} == known


def test_an_epoch_of_a_child() -> None:
    frames = EpochFrames(
        ReceivedSeqs(4, {6, 7}), {}, (2, 3), True, True, {1}, 5, (8, 9), 3, Flush(2, 10), True, 11, False, True, 12, 13
    )
    without = (
        "waiting",
        "blocked",
        "ahead",
        "counted",
        "flushes",
        "looked",
        "refused_flushes",
    )  # stored apart, or computed anew
    known = set_fields(frames, without=without)
    again = EpochFrames.restore(decode(EpochFramesState, encode(frames.snapshot(current=False))), {})
    assert {name: getattr(again, name) for name in known} == known


def test_leaves_that_move() -> None:
    entry = Leaf("x", 1, 2)
    moves = Moves(
        {"x": [1]},
        {"x": {2: (3, 4, 5)}},
        [(entry, Leaf("x", 3, 1)), (None, entry)],
        {"x": [6]},
        served={"x": {KEY: Serving("q", 1, 7, node="x")}},
        replaced={"x": [("m", entry)]},
        skipped={"x": [entry]},
        again={"x": [2]},
    )
    known = set_fields(moves, without=("forgotten", "_reporters"))  # of the process
    state = moves.snapshot()
    assert state is not None
    again = Moves.restore(decode(MovesState, encode(state)))
    assert {name: getattr(again, name) for name in known} == known
    assert Moves(replaced={"x": [("m", entry)]}).snapshot() is not None
    assert Moves(skipped={"x": [entry]}).snapshot() is not None


def test_open_sessions_of_a_query() -> None:
    names = TextNumbers(["k", "l"])
    track = OpenSessions(
        np.array([0, 1]),
        np.array([2, 3]),
        np.array([4, 5]),
        np.array([True, False]),
        6,
        {"k": 5},
        {"g": 7},
        {"g": 8},
        {"g": {"k": 9}},
        (10, 11),
        12,
        13,
        {"g": 14},
    )
    known = set_fields(track)
    again = OpenSessions.restore(snapshot.loads(snapshot.dumps(track.snapshot(names))), TextNumbers(["k", "l"]))
    for name, own in known.items():
        assert np.array_equal(getattr(again, name), own) if isinstance(own, np.ndarray) else getattr(again, name) == own


def test_windows_between_markers_of_a_query() -> None:
    place = ("", 1, 2)
    marked = PunctuationWindows(
        {"a": {(3, 4): 5}},
        WindowNumbers({"a": 6}, 7, {"a": 8}, {"a": 9}, {"a": 14}, {"a": 15}, {"a": 16}),
        {place: ((("a", 1, 2),), Coverage(("a", "b"), (("b", "behind"),)))},
        {place},
        {place},
        10,
        {"": 1},
        numbered={11: place},
        withdrawn={("", 12, 13)},
        _reach={"a": 2},
    )
    marked.merged.add(1, "start")
    set_fields(marked.numbers)
    known = set_fields(marked, without=("_fresh",))  # of one step
    again = PunctuationWindows.restore(snapshot.loads(snapshot.dumps(marked.snapshot())))
    assert again.merged.snapshot() == marked.merged.snapshot()
    assert {name: getattr(again, name) for name in known if name != "merged"} == {
        name: own for name, own in known.items() if name != "merged"
    }


@pytest.mark.parametrize("parent", ["present", "former"])
def test_the_frames_of_a_node(parent: str) -> None:
    """Of an outbox everything that its slot has a place for."""
    box = Outbox("a", Random(1), version="1")
    box.parent, box.journal, box.several = "region-1", 7, True
    box.draw()
    box.open(Step((GroupStep(GROUP, leaves=(Leaf("a", 1),)),)))
    box.link(up=True)
    box.marks()
    box.committed()
    if parent == "former":
        assert box.end_line("region-2", lambda *key: pytest.fail(f"{key}")) is not None
        box.draw(anew=True)
        box.leave(box.former_lines.lines["region-1"], {GROUP: (Leaf("a", 1),)})
        box.open(Step())
        box.journal = 8
    box.left, box.leaving, box.changes = [5, 6], 3, 4
    box.sent_readings, box.lost_readings, box.lost_frames, box.whole_books = 8, 9, 10, False
    state = box.snapshot()
    again = Outbox("a", Random(2), version="1")
    lines = (box.pending, *(line.pending for line in box.former_lines.lines.values()))
    spooled = tuple(SpooledFrame(*key, sent=key in frames.marked) for frames in lines for key in frames)
    again.restore(decode(OutboxState, encode(state)), box.encoder, spooled)
    unset = {each.name for each in fields(state) if not getattr(state, each.name)}
    present = {"former", "moved_from", "moved"} if parent == "present" else set[str]()
    assert unset <= {"whole", "late", "predecessor"} | present
    assert again.snapshot() == state


def test_what_a_root_knows_of_its_children() -> None:
    decider, child, other = Decider(JOURNAL, GRACE), Sender("a", QUERY), Sender("b", QUERY, leaves=("x",))
    decider.tick(0, None, connected=True)
    frames = [child.birth(0), child.flush((0, 10 * S, "", 1.0)), child.birth(0), child.lose(0, S)]
    missing, waits = child.send(frontier_us=S), child.send(frontier_us=S)
    for frame in (*frames, waits):
        decider.take("a", frame, S)
    decider.take("b", other.birth(0), S)
    for second in (1, 3):
        decider.take("a", Heartbeat(missing.epoch, waits.seq, ((0, S),)), second * S)
    decider.stated([("a", Receipt(missing.epoch, JOURNAL, waits.seq + 1, earliest_us=5))], 3 * S)
    decider.alarms["a"] = "two devices", S
    decider.served_before.of[QUERY.group] = {QUERY.key: {"a": 5}}
    decider.tick(60 * S, 3 * S, connected=True)
    decider.decide(60 * S)
    decider.retire(["b"], 60 * S)
    decider.decide(60 * S)
    state = decider.snapshot(lambda frame: frame)
    again = Decider(JOURNAL, GRACE)
    again.restore(state, lambda frame: frame)
    assert again.snapshot(lambda frame: frame) == state
    assert again.parent.ahead_us == decider.parent.ahead_us > 0
    parent: Any = state["parent"]
    empty = {name for known in (state, parent) for name, value in known.items() if not value}
    assert empty <= {"over", "behind", "sensor_texts", "held", "unnamed", "published", "claims"}
