"""Which rows repeat those of an older line, at a parent whose clock was not set since 1970 (protocol 1.2, 4.3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.algebra.frame import LOST, Frame, Leaf
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.epochs.counting import Counting
from edge_agent.machines.downlink.member import AHEAD_US
from tests.support.machines.scripted_child import GRACE, JOURNAL, SUM, Sender
from tests.support.machines.simulated_host import S

QUERY = Query("q", 1, "s", Tumbling(5 * S), SUM, lateness_us=0)
UNSET, NOW = 10 * S, 1_000 * S  # what such a clock shows, and the right time


def parent(*, known: bool) -> ChildFrames:
    """A parent whose clock shows UNSET."""
    out = ChildFrames(JOURNAL, GRACE)
    out.children.pass_time(UNSET, UNSET, known=known)
    return out


def lines(leaf: str) -> tuple[Sender, Sender]:
    """The older and the newer line of the child `a`, with this leaf below it."""
    old, new = Sender("a", QUERY, leaves=(leaf,)), Sender("a", QUERY, leaves=(leaf,))
    new.outbox.random.seed(2)
    return old, new


def lost(new: Sender, old: Sender) -> Frame:
    """A birth that names no past, with the leaf in a new epoch."""
    frame = new.birth()
    assert frame.birth is not None
    members = tuple(replace(m, leaves=tuple(Leaf(leaf.node, 2) for leaf in m.leaves)) for m in frame.members)
    held = (old.outbox.epoch,)
    return replace(frame, birth=replace(frame.birth, predecessor=LOST, held=held), members=members)


def rows(sender: Sender, *starts_us: int) -> Frame:
    """A frame with a reading in each window that starts there."""
    return sender.send(*((us, us + 5 * S, "", 1.0) for us in starts_us))


def counted(of: ChildFrames, frame: Frame) -> list[Counting]:
    """Which rows of a frame count, if not all."""
    (applied,) = of.take("a", frame, UNSET)
    return list(applied.effect.counting.values())


@pytest.mark.parametrize("leaf", ["a", "x"])
@pytest.mark.parametrize("known", [False, True])
def test_what_reads_again_repeats_all_rows_that_came_if_its_parent_does_not_know_its_time(
    leaf: str, *, known: bool
) -> None:
    """Found by seed 87843 of the simulation: rows of the right time lie 50 years ahead of such a clock."""
    region, (old, new) = parent(known=known), lines(leaf)
    for frame in (old.birth(), rows(old, NOW, NOW + 5 * S), lost(new, old)):
        region.take("a", frame, UNSET)
    from_us = UNSET + AHEAD_US if known else NOW + 10 * S
    found = counted(region, rows(new, NOW, NOW + 5 * S, NOW + 10 * S))
    assert found == ([Counting(from_us)] if leaf == "a" or not known else [])


def test_what_waited_of_a_merger_without_its_journal_is_repeated_too_though_its_parent_does_not_know_its_time() -> None:
    region, (old, new) = parent(known=False), lines("x")
    birth, late = old.birth(), rows(old, NOW, NOW + 5 * S)
    for frame in (birth, lost(new, old), late):
        region.take("a", frame, UNSET)
    assert counted(region, rows(new, NOW, NOW + 5 * S, NOW + 10 * S)) == [Counting(NOW + 10 * S)]
