"""The lines to parents that a node has left: what stays with them, and for how long (docs/protocol.md 1.5)."""

from __future__ import annotations

from random import Random

from edge_agent.machines.events import Publish
from edge_agent.machines.uplink.former_lines import MARK_AHEAD, FormerLines

S = 1_000_000


def left(*frames: tuple[tuple[int, int], bool], up: bool = True) -> FormerLines:
    """Parent A, left at 100 s; its line ends with frame 4 of epoch 1."""
    lines = FormerLines()
    lines.leave("A", 7, (1, 4), frames, up=up, now_us=100 * S)
    return lines


def published(lines: FormerLines, now_us: int, in_flight: int = 20) -> list[Publish]:
    return lines.publish(now_us, in_flight, frozenset(), Random(1))


def test_a_parent_that_is_left_a_second_time_is_still_owed_what_it_had_not_receipted() -> None:
    """protocol 1.5: those frames stay with it, and the operator sees for how long they have waited."""
    lines = left(((1, 2), True), ((1, 3), False))
    again = lines.leave("A", 7, (5, 2), [((5, 1), True)], up=True, now_us=200 * S)
    assert set(again.pending) == {(1, 2), (1, 3), (5, 1)}
    assert (again.end, again.left_us) == ((5, 2), 100 * S)
    for key in list(again.pending):
        del again.pending[key]
    assert lines.leave("A", 7, (6, 0), [((6, 0), True)], up=True, now_us=300 * S).left_us == 300 * S


def test_a_line_in_which_nothing_new_was_sent_ends_where_it_ended_before() -> None:
    """protocol 1.2, 1.5: the next birth at that parent names that end."""
    lines = left(((1, 4), True))
    line = lines.leave("A", None, None, [], up=True, now_us=200 * S)
    assert (line.journal, line.end) == (7, (1, 4))


def test_no_more_frames_of_a_line_are_marked_as_sent_than_may_have_to_be_sent_again() -> None:
    """protocol 3.3"""
    lines = left(*(((1, seq), False) for seq in range(2 * MARK_AHEAD)))
    assert len(lines.marks()) == MARK_AHEAD
    assert lines.marks() == []
    del lines.lines["A"].pending[1, 0]
    assert lines.marks() == [(1, MARK_AHEAD)]


def test_the_leave_stays_with_its_parent_over_a_restart_and_what_follows_it_is_for_the_next() -> None:
    """protocol 1.5"""
    lines, again = left(((1, 3), True), ((1, 4), False), ((9, 0), True)), FormerLines()
    again.restore(lines.snapshot())
    assert again.home(1, 3) is again.home(1, 4) is again.home(9, 0) is again.lines["A"].pending
    assert again.home(1, 5) is again.home(2, 0) is None


def test_what_was_on_its_way_to_a_former_parent_is_sent_again_as_soon_as_its_line_is_back() -> None:
    """protocol 3.3"""
    lines = left(((1, 3), True), ((1, 4), True))
    assert published(lines, 101 * S, in_flight=1) == [Publish(1, 3, to="A")]
    assert published(lines, 101 * S, in_flight=1) == []
    lines.sent((1, 3))
    assert published(lines, 101 * S, in_flight=1) == [Publish(1, 4, to="A")]
    lines.link("B", up=False)
    assert published(lines, 102 * S) == []
    lines.link("A", up=False)
    assert published(lines, 102 * S) == []
    lines.link("A", up=True)
    assert published(lines, 102 * S) == [Publish(1, 3, to="A"), Publish(1, 4, to="A")]


def test_a_journal_is_that_of_a_former_parent_also_while_another_is_in_use() -> None:
    """protocol 1.5, 3.7: a parent to which the node returned may have lost the journal that its line names."""
    lines = left(((1, 4), True))
    assert lines.knows(7, "B")
    assert not lines.knows(7, "A")
    assert not lines.knows(8, "B")
