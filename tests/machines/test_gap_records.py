"""Which frames one gap record may stand for (docs/protocol.md 3.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from edge_agent.algebra.frame import (
    Birth,
    Define,
    ExcludedLeaf,
    Flush,
    Frame,
    Gap,
    GroupPart,
    Leaf,
    Members,
    Plan,
    Serving,
)
from edge_agent.algebra.gap_scope import QUOTA
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.group_cut import SessionCut
from edge_agent.algebra.query.query import Group
from edge_agent.machines.uplink.encoding import promises
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder
from edge_agent.machines.uplink.encoding.stated_exceptions import StatedExceptions
from edge_agent.machines.uplink.gap_records import (
    MOST_BYTES,
    MOST_FRAMES,
    fitting,
    gap_of,
    oldest_run,
    record_of,
    size_bytes,
)
from edge_agent.machines.uplink.step import GroupStep, Step, StepRows
from edge_agent.wire.frames import decode, encode

GROUP = Group("boiler", "", (), 0)
ONE = Frame(7, 1)
RECORD = Gap((), 0, 0, 0, (), QUOTA, 3, "")


def run(*frames: Frame, count: int = 100) -> list[int]:
    """The seqs of the frames that go."""
    known = {(frame.epoch, frame.seq): frame for frame in frames}
    return [frame.seq for frame in oldest_run(known, known.__getitem__, count)]


def seqs(*numbers: int) -> list[Frame]:
    return [replace(ONE, seq=seq) for seq in numbers]


def defining(*firsts: int, text: str = "k") -> Sequence[Frame]:
    """Frames that each define the number of one key."""
    return [replace(ONE, seq=1 + i, define=Define(keys=(first, (text,)))) for i, first in enumerate(firsts)]


@pytest.mark.parametrize(
    "kept",
    [
        Frame(7, 0, Birth(7 << 32, 1, None, "test")),
        Frame(7, 0, flush=Flush(-1, 9)),
        Frame(7, 0, leave=9),
    ],
)
def test_births_flushes_and_leaves_stay(kept: Frame) -> None:
    """protocol 1.2, 1.3, 1.5: they count as a whole, or end a line."""
    assert run(kept, *seqs(1, 2, 3)) == [1, 2, 3]
    assert run(*seqs(1, 2), replace(kept, seq=3), *seqs(4, 5)) == [1, 2]


def test_a_record_stands_for_frames_without_a_hole_of_one_epoch() -> None:
    """protocol 3.5: a frame in a hole would never be sent, and its parent would wait for it or never take it."""
    assert run(*seqs(1, 2, 4, 5)) == [1, 2]
    assert run(Frame(6, 1), *seqs(2, 3)) == [1]
    assert run(replace(ONE, gaps=(RECORD,)), *seqs(4, 5, 7)) == [1, 4, 5]
    record = record_of([replace(ONE, gaps=(RECORD,)), *seqs(4, 5)], {}, ())
    assert (record.seq, [gap.run for gap in record.gaps]) == (1, [5])


def test_a_record_defines_neighbouring_numbers_of_keys_only() -> None:
    """protocol 2.4: numbers that were defined in between again would be lost."""
    assert run(*defining(0, 1, 2)) == [1, 2, 3]
    assert run(*defining(3, 4, 0, 1)) == [1, 2]


@pytest.mark.parametrize("keys", [False, True], ids=["alone", "beside keys"])
def test_a_record_defines_neighbouring_numbers_of_nodes_only(keys: bool) -> None:
    """protocol 2.4, 3.5: a number with another meaning makes the parent refuse the record, and frames behind it."""
    for firsts, gone in (((0, 2, 4), [1, 2, 3]), ((2, 0, 4), [1]), ((0, 3, 5), [1])):  # again; a damaged one between
        frames = [
            replace(ONE, seq=1 + i, define=Define((2 * i, ("k", "k") if keys else ()), (first, ("a", "b"))))
            for i, first in enumerate(firsts)
        ]
        assert run(*frames) == gone
        assert run(frames[0], replace(ONE, seq=2), *(replace(frame, seq=frame.seq + 1) for frame in frames[1:])) == (
            [1, 2] if len(gone) == 1 else [1, 2, 3, 4]
        )


def test_a_record_stands_for_so_many_frames_as_the_node_may_wait_for() -> None:
    """protocol 3.5: each is read and decoded while nothing else is done."""
    many = seqs(*range(1, MOST_FRAMES + 20))
    assert len(run(*many, count=10 * MOST_FRAMES)) == MOST_FRAMES + 1
    assert len(run(*many, count=7)) == 8


def test_a_record_is_far_smaller_than_a_frame() -> None:
    """protocol 2.1, 3.5"""
    frames = defining(*range(10), text="k" * (MOST_BYTES // 4))
    assert run(*frames) == [1, 2, 3]


def test_what_a_dropped_frame_declared_is_declared_by_its_record_too() -> None:
    """protocol 3.5: of a loss nobody else knows."""
    poison = Gap((GROUP,), 5, 9, 3, ("a",), "poison", 1)
    record = record_of([replace(ONE, gaps=(poison,)), *seqs(2)], {}, ())
    assert record.gaps[0].run == 2
    assert record.gaps[1:] == (replace(poison, run=0),)


def test_a_record_in_place_of_records_joins_their_times_and_does_not_guess_how_many_readings_they_lost() -> None:
    """protocol 3.5, 9.1"""
    for first, second, both in ((3, 4, 7), (-1, 4, -1), (4, -1, -1)):
        gaps = Gap((GROUP,), 20, 30, first, (), QUOTA, 2), Gap((GROUP,), 10, 15, second, (), QUOTA, 1)
        record = record_of([replace(ONE, seq=seq, gaps=(gap,)) for seq, gap in zip((1, 3), gaps, strict=True)], {}, ())
        assert record.gaps == (Gap((GROUP,), 10, 30, both, (), QUOTA, 3),)


def test_a_record_states_the_exceptions_that_are_left_at_its_end() -> None:
    """protocol 4.6"""
    one, two = (ExcludedLeaf(name, 1, 1) for name in ("one", "two"))
    parts = (GroupPart(0, 4, more=(one,)), GroupPart(0, exceptions=(two,)), GroupPart(0, 5, ended=("three",)))
    record = record_of([Frame(7, 1 + i, groups=(part,)) for i, part in enumerate(parts)], {0: GROUP}, ())
    assert record.groups == (GroupPart(0, 5, exceptions=(two,), ended=("three",)),)


def test_a_record_clears_the_registers_of_the_sessions_whose_pieces_it_replaces() -> None:
    """protocol 5.2: the parent would wait for them, and the key would get no row."""
    group = replace(GROUP, cut=SessionCut(10))
    plan = Plan(b"12345678", "session", ("count",), None, 1, (("q", 1),), 10)
    one = np.ones(1, np.int64)
    rows = StepRows(plan, False, Partials(5 * one, 7 * one, 0 * one, {"count": one}), ["x"], ["a"])
    frames = EpochEncoder().encode_step(7, 1, Step((GroupStep(group, 9, (rows,)),)))
    found = [decode(encode(frame)) for frame in frames]
    record = record_of([frame for frame in found if isinstance(frame, Frame)], {0: group}, ())
    assert [(part.frontier_us, part.registers) for part in record.groups] == [(9, ((0, None),))]
    assert [(gap.groups, gap.start_us, gap.end_us, gap.readings) for gap in record.gaps] == [((group,), 5, 7, 1)]


def test_a_record_says_what_the_frames_before_defined_and_whom_they_listed() -> None:
    """protocol 3.5, 2.4: the frames behind it use these numbers, texts and leaves."""
    defines = (
        Define(keys=(4, ("x",)), queries=("one",)),
        Define(nodes=(7, ("n",)), queries=("two",), sensors=("s",)),
        Define(keys=(5, ("y",)), nodes=(8, ("m",)), groups=((1, GROUP),)),
    )
    members = Members(0, (Leaf("a", 1),)), Members(0, (), ("b",)), Members(1, (), (), (Serving("q", 1),))
    frames = [Frame(7, 1 + i, define=define, members=(members[i],)) for i, define in enumerate(defines)]
    record = record_of(frames, {}, ())
    assert record.define == Define((4, ("x", "y")), (7, ("n", "m")), ((1, GROUP),), (), ("one", "two"), ("s",))
    assert record.members == members
    before = replace(frames[0], define=Define(queries=("none",)), seq=0)  # it begins no numbers
    assert record_of([before, *frames], {}, ()).define == replace(record.define, queries=("none", "one", "two"))


def test_a_record_declares_late_rows_apart_and_rows_of_an_unknown_group_for_all() -> None:
    """protocol 3.5, 4.2: one range over both would mark all windows between them."""
    plan, one = Plan(b"12345678", "slice", ("count",), None, 1, (("q", 1),)), np.ones(1, np.int64)

    def rows(start_us: int, late: bool) -> StepRows:
        return StepRows(plan, late, Partials(start_us * one, (start_us + 2) * one, 0 * one, {"count": one}), ["x"], [])

    step = Step((GroupStep(GROUP, rows=(rows(900, late=False), rows(5, late=True))),))
    decoded = [decode(encode(frame)) for frame in EpochEncoder().encode_step(7, 1, step)]
    found = [frame for frame in decoded if isinstance(frame, Frame)]
    other = replace(GROUP, source="door")
    for known, groups in (({0: GROUP}, (GROUP,)), ({1: other}, (GROUP, other)), (None, (GROUP, other))):
        gaps = record_of(found, known, (GROUP, other)).gaps
        assert {(gap.groups, gap.start_us, gap.end_us, gap.readings) for gap in gaps} == {
            (groups, 900, 902, 1),
            (groups, 5, 7, 1),
        }


def test_the_gap_of_a_frame_covers_its_late_rows_too_and_names_their_groups() -> None:
    """protocol 3.5, 3.6"""
    plan, one = Plan(b"12345678", "slice", ("count",), None, 1, (("q", 1),)), np.ones(1, np.int64)
    other, encoder = replace(GROUP, source="door"), EpochEncoder()

    def rows(start_us: int, late: bool) -> StepRows:
        return StepRows(plan, late, Partials(start_us * one, (start_us + 2) * one, 0 * one, {"count": one}), ["x"], [])

    steps = GroupStep(GROUP, rows=(rows(900, late=False),)), GroupStep(other, rows=(rows(5, late=True),))
    (frame,) = encoder.encode_step(7, 1, Step((*steps, GroupStep(replace(GROUP, source="empty"), 7))))
    gap = gap_of(frame, encoder, "poison")
    assert (gap.groups, gap.start_us, gap.end_us, gap.readings) == ((GROUP, other), 5, 902, 2)


def test_of_a_record_that_is_larger_than_a_frame_one_piece_stands_for_frames_and_readings() -> None:
    """protocol 3.5, 2.1: else its parent would pass over frames that were sent."""
    many = tuple(f"gateway-{n}" for n in range(40))
    gap = Gap((GROUP,), 5, 9, 12, many, QUOTA, 3, "why")
    found = promises.pages(Step(gaps=(gap,)), {}, {}, StatedExceptions(), 200)
    pieces = [piece for page in found for piece in page.gaps]
    assert len(pieces) > 3
    assert tuple(node for piece in pieces for node in piece.nodes) == many
    assert [(piece.run, piece.readings, piece.detail) for piece in pieces] == [(3, 12, "why")] + [(0, 0, "")] * (
        len(pieces) - 1
    )
    unknown = promises.pages(Step(gaps=(replace(gap, readings=-1),)), {}, {}, StatedExceptions(), 200)
    assert {piece.readings for page in unknown for piece in page.gaps} == {-1}


def test_a_record_keeps_the_last_frontier_and_registers_though_later_frames_state_none() -> None:
    """protocol 3.5, 5.2: without a register its open session would be none, and the session before it complete."""
    exception = ExcludedLeaf("b", 1, 1)
    frames = [
        Frame(7, 1, groups=(GroupPart(0, 5, registers=((0, 7), (1, 3))),)),
        Frame(7, 2, groups=(GroupPart(0, more=(exception,)),)),
        Frame(7, 3, groups=(GroupPart(0, registers=((1, None),)),)),
    ]
    (part,) = record_of(frames, {0: GROUP}, (GROUP,)).groups
    assert (part.frontier_us, part.registers, part.more) == (5, ((0, 7), (1, None)), (exception,))


def test_a_record_that_its_exceptions_make_too_large_states_its_losses_for_all_its_groups_together() -> None:
    """protocol 2.1, 3.5: a frame is never split. What is no loss of the record itself stays as it is."""
    groups = [replace(GROUP, source=f"sensor-{n}") for n in range(20)]
    lost = [Gap((group,), 10 * n, 10 * n + 5, 1, (), QUOTA, 3 * (not n)) for n, group in enumerate(groups)]
    began = Gap((groups[0],), 7, 9, -1, (), "began")
    small = Frame(7, 1, gaps=(*reversed(lost), began))
    listed = GroupPart(0, exceptions=tuple(ExcludedLeaf(f"leaf-{n}", 5, 5) for n in range(500)))
    large = replace(small, groups=(listed,))
    most_bytes = size_bytes(large)  # without its exceptions
    assert fitting(small, most_bytes) == small
    found = fitting(large, most_bytes)
    whole = Gap((), 0, 195, 20, (), QUOTA, 3)
    assert [gap if gap == began else replace(gap, groups=()) for gap in found.gaps] == [whole, began]
