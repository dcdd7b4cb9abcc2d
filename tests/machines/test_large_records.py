"""Gap records in the place of frames of a node with thousands of groups: one frame has no room for all their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from edge_agent.algebra.frame import (
    DAMAGED,
    MAX_FRAME_BYTES,
    Define,
    Frame,
    Gap,
    Leaf,
    Members,
    Plan,
    Receipt,
)
from edge_agent.algebra.gap_scope import POISON, QUOTA
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.query import Group
from edge_agent.errors import PortError
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.uplink.gap_records import oldest_run, record_of
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.machines.uplink.step import GroupStep, Step, StepRows
from edge_agent.wire import late_starts
from edge_agent.wire.frames import decode, encode, envelope

JOURNAL, S = 77, 1_000_000
T0 = 1_000 * S
MANY = [Group("s", "", ("k",), 0, node=f"gw-{n:05}") for n in range(6_000)]
SLICES = Plan(b"12345678", "slice", ("count",), None, S, (("q", 1),))


def box_of(groups: list[Group]) -> tuple[Outbox, list[Frame]]:
    """A merger's outbox, and the frames of its birth."""
    box = Outbox("m", Random(1), version="1")
    box.journal = JOURNAL
    box.draw()
    leaves = tuple(GroupStep(each, T0, leaves=(Leaf(each.node or "m", 1),), promised_us=T0) for each in groups)
    return box, box.open(Step(leaves))


def rows(*, late: bool = False, key: int = 0, start_us: int = T0) -> StepRows:
    one = np.ones(1, np.int64)
    return StepRows(SLICES, late, Partials(start_us * one, (start_us + S) * one, key * one, {"count": one}), ["x"], [])


def unreadable(*_: int) -> Frame:
    raise PortError("fails its checksum")


def heard(record: Frame, birth: list[Frame]) -> list[Gap]:
    """The gap records that a parent passes on, after the bytes of the record were on the wire."""
    parent, out = ChildFrames(JOURNAL, 60 * S), list[Gap]()
    for frame in (*birth, replace(record, seq=len(birth))):
        payload = encode(frame)
        assert len(payload) <= MAX_FRAME_BYTES
        message = decode(payload)
        assert isinstance(message, Frame)
        for applied in parent.take("m", message, T0 + 9 * S):
            assert applied.effect.frame is not None, applied.effect.why
            out += applied.effect.frame.gaps
    return out


def touched(gaps: list[Gap]) -> dict[Group, tuple[int, int]]:
    return {group: (gap.start_us, gap.end_us) for gap in gaps if gap.end_us > gap.start_us for group in gap.groups}


def test_a_damaged_frame_of_a_node_with_thousands_of_groups_is_a_loss_of_all_of_them() -> None:
    """protocol 3.5, 3.6: with all their names the record was larger than a frame, and the process ended."""
    box, birth = box_of(MANY)
    (frame,) = box.put(Step((GroupStep(MANY[5], rows=(rows(late=True, start_us=9 * S),)),)))
    box.link(up=True)
    box.marks()
    box.damaged(frame.epoch, frame.seq)
    (record,) = box.take_replaced()
    found = [gap for gap in heard(record, birth) if gap.reason == DAMAGED]
    assert touched([gap for gap in found if gap.start_us >= T0]) == dict.fromkeys(MANY, (T0, T0 + 9 * S + 1))
    assert {gap.nodes for gap in found if gap.groups == (MANY[7],)} == {(MANY[7].node,)}
    assert (9 * S, 10 * S) in {(gap.start_us, gap.end_us) for gap in found if MANY[5] in gap.groups}


def test_what_a_full_spool_drops_of_thousands_of_groups_is_declared_for_all_of_them() -> None:
    """protocol 3.5: a record for each of them was larger than a frame."""
    groups = [replace(each, where="x" * 300) for each in MANY[:1_500]]
    box, birth = box_of(groups)
    frames = box.put(Step(tuple(GroupStep(each, rows=(rows(),)) for each in groups)))
    known: Mapping[tuple[int, int], Frame] = {(frame.epoch, frame.seq): frame for frame in frames}
    for key in list(box.pending):
        if key not in known:
            del box.pending[key]
    box.drop(1, lambda *key: known[key])
    (record,) = box.take_replaced()
    dropped = {groups[part.group] for frame in frames[: max(gap.run for gap in record.gaps)] for part in frame.groups}
    assert len(dropped) > 500
    found = [gap for gap in heard(record, birth) if gap.reason == QUOTA]
    assert {us for group, us in touched(found).items() if group in dropped} == {(T0, T0 + S)}
    assert dropped <= touched(found).keys()
    assert sum(gap.readings for gap in found) == len(dropped)


def test_a_frame_of_an_earlier_epoch_that_is_given_up_is_a_loss_of_thousands_of_groups() -> None:
    """protocol 3.6: of which epoch the numbers are, is not known any more."""
    box, birth = box_of(MANY)
    (frame,) = box.put(Step((GroupStep(MANY[5], rows=(rows(),)),)))
    box.link(up=True)
    for key in list(box.pending):
        if key != (frame.epoch, frame.seq):
            del box.pending[key]
    box.marks()
    box.draw()
    box.open(Step(tuple(GroupStep(each) for each in MANY)))
    for _ in range(30):
        box.pending.marked[frame.epoch, frame.seq].tries += 1
        box.receipt(Receipt(frame.epoch, JOURNAL, 0, ((frame.seq + 1, frame.seq + 1),)), lambda *_: frame)
        if box.replaced:
            break
    (record,) = box.take_replaced()
    found = [gap for gap in heard(record, birth) if gap.reason == POISON]
    assert touched(found) == dict.fromkeys(MANY, (T0, T0 + S))


def test_groups_whose_names_fit_are_named_in_the_record_of_a_frame() -> None:
    """protocol 3.5: the losses of one group say nothing about another one."""
    box, birth = box_of(MANY[:10])
    frames = box.put(Step(tuple(GroupStep(each, rows=(rows(),)) for each in MANY[:3])))
    record = record_of(frames, dict(enumerate(MANY)), ())
    assert touched(heard(record, birth)) == dict.fromkeys(MANY[:3], (T0, T0 + S))


def test_a_record_in_the_place_of_frames_with_large_records_or_many_names_fits_into_one() -> None:
    """protocol 2.1, 3.5: what a frame drops and what it declares was not counted."""
    nodes = tuple(f"gateway-{n:05}" for n in range(4_000))
    large = (
        Frame(7, 1, gaps=(Gap((MANY[0],), 1, 2, -1, nodes, "in doubt"),)),
        Frame(7, 1, members=(Members(0, (), nodes),)),
        Frame(7, 1, define=Define(groups=tuple((n, replace(MANY[n], where="x" * 2_000)) for n in range(30)))),
    )
    for first in large:
        known = {(7, seq): replace(first, seq=seq) for seq in range(1, 5)}
        run = oldest_run(known, known.__getitem__, 100)
        assert len(encode(record_of(run, dict(enumerate(MANY)), ()))) <= MAX_FRAME_BYTES


def test_the_late_rows_of_a_damaged_frame_in_groups_with_long_filters_fit_into_its_record() -> None:
    """protocol 2.1, 3.6: 64 groups may have so long a text each that a frame has no room for all."""
    groups = [Group("s", f"{n}" * 4_000, (), 0) for n in range(10, 50)]
    box, birth = box_of(groups)
    late = tuple(GroupStep(each, rows=(rows(late=True, start_us=(9 + n) * S),)) for n, each in enumerate(groups))
    frames = box.put(Step(late))
    box.link(up=True)
    box.marks()
    box.damaged(frames[-1].epoch, frames[-1].seq)
    (record,) = box.take_replaced()
    assert {*groups} == touched(heard(record, birth)).keys()


def test_where_the_loss_of_all_groups_begins_is_known_without_its_frame() -> None:
    """protocol 3.2: the lander states it, so that a frame that is lost behind the receipt is declared from there."""
    frame = Frame(7, 1, gaps=(Gap((), 5, 9, 3, (), QUOTA, 2),))
    assert late_starts.earliest_of(envelope(encode(frame))) == 5
    silent = Frame(7, 1, gaps=(Gap((), 5, 9, 0, ("m",), "a function failed"),))
    assert late_starts.earliest_of(envelope(encode(silent))) is None


@pytest.mark.parametrize("many", [2, 3])
def test_a_record_of_two_large_groups_leaves_in_two_frames(many: int) -> None:
    """protocol 2.1: a group may take 100 kB."""
    groups = tuple(Group("s", f"{n}" * 99_000, (), 0) for n in range(many))
    box, _ = box_of([MANY[0]])
    frames = box.put(Step(gaps=(Gap(groups, 1, 2, -1, (), "lost"),)))
    assert all(len(encode(frame)) <= MAX_FRAME_BYTES for frame in frames)
    assert {group for frame in frames for gap in frame.gaps for group in gap.groups} == {*groups}
