"""Leaves that a merger listed before it lost its journal, in frames that come behind its new birth (protocol 1.2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.algebra.frame import BEGAN, JOURNAL_LOST, LOST, Frame, Gap, Leaf, Members
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.losses import late_listings
from edge_agent.machines.downlink.losses.loss_records import PAST_LOST
from edge_agent.machines.uplink.step import Step
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.machines.scripted_child import GRACE, JOURNAL, Sender
from tests.support.machines.simulated_host import S

QUERY = Query("q", 1, "s", Tumbling(5 * S), (Aggregate("count", "count"),), lateness_us=0)
OLD, NEW = 1, 2  # epochs of the leaf


class Region:
    """A root and its merger `a`, before and after it lost its journal: `old` knew a leaf of which the root had not."""

    def __init__(self) -> None:
        self.root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0)
        self.found: dict[int, tuple[int, bool]] = {}
        self.old, self.new = Sender("a", QUERY, leaves=("x",)), Sender("a", QUERY, leaves=("x",))
        self.new.outbox.random.seed(2)
        birth = self.old.birth()
        self.members, self.defined = birth.members, birth.define
        self.hear(replace(birth, members=(), groups=(), define=None), now=4)
        self.listing = replace(self.says(self.old), members=self.members, define=self.defined)

    def hear(self, *frames: Frame, now: int) -> None:
        for frame in frames:
            self.root.take("a", frame, now * S)
        for row in self.root.step(now * S):
            self.found[row.start // S] = (row.readings, row.complete)

    def anew(self) -> Frame:
        """The birth of the new line, which lists nothing yet."""
        birth = self.new.birth()
        assert birth.birth is not None
        born = replace(birth.birth, predecessor=LOST, held=(self.old.outbox.epoch,))
        return replace(birth, birth=born, members=(), groups=())

    def says(self, sender: Sender, *gaps: Gap) -> Frame:
        """A frame with these records only."""
        (frame,) = sender.outbox.put(Step(gaps=gaps or (Gap((), 0, 0, 0, ("x",), "nothing"),)))
        return frame

    def lists(self, epoch: int, before_move: int | None = None) -> Frame:
        """A frame of the new line that lists the leaf, and what it serves."""
        leaf = Leaf("x", epoch, before_move)
        members = tuple(replace(each, leaves=(leaf,) if each.leaves else ()) for each in self.members)
        return replace(self.says(self.new), members=members)

    def losses(self) -> list[tuple[int, int]]:
        """What is declared lost of the leaf with its spool or that of the merger."""
        gaps = [gap for _, gap in self.root.decider.gaps if gap.reason == PAST_LOST and gap.nodes == ("x",)]
        return [(gap.start_us, gap.end_us) for gap in gaps]


def rows(sender: Sender, *starts: int, upto: int | None = None) -> Frame:
    """A frame with a reading in each window that starts there. upto: its frontier."""
    pieces = ((s * S, (s + 5) * S, "", 1.0) for s in starts)
    return sender.send(*pieces, frontier_us=None if upto is None else upto * S)


def test_a_leaf_of_which_only_a_frame_behind_the_new_birth_tells_was_there_before() -> None:
    """Found by seed 60488 of the simulation: it had lost its spool too, and what it had read was lost unsaid."""
    region = Region()
    region.hear(region.anew(), now=12)
    assert region.losses() == []
    region.hear(region.listing, now=13)
    assert region.losses() == [(0, 13 * S + 1)]
    region.root.decider.restore(region.root.decider.snapshot(lambda f: f), lambda f: f)
    region.hear(region.says(region.new, Gap((QUERY.group,), 18 * S, 20 * S, -1, ("x",), BEGAN)), now=20)
    assert region.losses() == [(0, 13 * S + 1), (0, 20 * S)], "it began without a spool later than that"


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("epoch", "before_move", "lost"), [(NEW, None, True), (OLD, None, False), (NEW, 9, False)])
def test_a_list_that_waits_for_lost_definitions_shows_that_a_new_leaf_was_there_before(
    before: bool, epoch: int, before_move: int | None, lost: bool
) -> None:
    """Found by seed 112923: the frame before it never came, and the leaf had lost its spool too.

    before: whether the list came before the new birth.
    """
    region = Region()
    in_vain = replace(region.listing, seq=region.listing.seq + 1, define=None)
    for frame in (in_vain, region.anew()) if before else (region.anew(), in_vain):
        region.hear(frame, now=12)
    region.hear(replace(region.lists(epoch, before_move), define=region.defined), now=13)
    assert region.losses() == [(0, 13 * S + 1)] * lost
    region.hear(region.lists(epoch, before_move), now=14)
    assert region.losses() == [(0, 13 * S + 1)] * lost, "it is known now"


def test_what_is_told_of_a_leaf_once_is_declared_once() -> None:
    region = Region()
    again = replace(region.says(region.old), members=region.members)
    region.hear(region.anew(), region.listing, now=13)
    region.hear(again, now=14)
    assert region.losses() == [(0, 13 * S + 1)]


@pytest.mark.parametrize("dropped", [False, True])
def test_a_frame_of_an_older_line_adds_no_leaf(dropped: bool) -> None:
    """dropped: the frame reports that the leaf has moved, so nothing is lost of it here."""
    region = Region()
    if dropped:
        region.listing = replace(region.listing, members=(replace(region.members[0], dropped=("x",)),))
    region.hear(region.anew(), region.listing, now=13)
    assert region.losses() == ([] if dropped else [(0, 13 * S + 1)])
    assert all(not each.leaves() for each in region.root.decider.parent.children.memberships.values())


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("order", ["told, listed", "listed, told"])
def test_a_leaf_that_lost_its_spool_too_reads_again_what_counts_once(order: str, late: bool) -> None:
    """late: rows of the older line come behind those that the leaf has read again."""
    region = Region()
    before = rows(region.old, 0, 5)
    region.hear(region.anew(), now=12)
    if order == "told, listed":
        region.hear(region.listing, *(() if late else (before,)), now=13)
        region.hear(region.lists(NEW), rows(region.new, 0, 5, 10, upto=15), now=15)
    else:
        region.hear(region.lists(NEW), rows(region.new, 0, 5, 10, upto=15), now=15)
        region.hear(region.listing, *(() if late else (before,)), now=15)
    region.hear(*((before,) if late else ()), now=16)
    region.hear(rows(region.new, 20, upto=25), now=60)
    assert {start: readings for start, (readings, _) in region.found.items()} == {0: 1, 5: 1, 10: 1, 20: 1}
    assert not region.found[0][1]
    assert region.found[20][1]


@pytest.mark.parametrize("said", ["what the journal had of it", "an epoch before its last move"])
def test_of_a_leaf_that_knows_its_past_the_older_line_counts_too(said: str) -> None:
    region = Region()
    before = rows(region.old, 0, 5)
    region.hear(region.anew(), region.listing, now=12)
    if said == "what the journal had of it":
        region.hear(region.says(region.new, Gap((QUERY.group,), 0, 10 * S, -1, ("x",), JOURNAL_LOST)), now=13)
        region.hear(region.lists(NEW), now=13)
    else:
        region.hear(region.lists(NEW, OLD), now=13)
    region.hear(before, rows(region.new, 10, upto=15), now=15)
    assert {start: readings for start, (readings, _) in region.found.items()} == {0: 1, 5: 1, 10: 1}


def test_a_leaf_that_the_new_line_lists_in_the_same_epoch_has_lost_nothing() -> None:
    region = Region()
    region.hear(region.anew(), region.lists(OLD), region.listing, now=13)
    assert region.losses() == []


def test_a_loss_of_the_journal_after_that_does_not_forget_the_leaf() -> None:
    region, third = Region(), Sender("a", QUERY, leaves=("x",))
    third.outbox.random.seed(3)
    region.hear(region.anew(), region.listing, rows(region.old, 0, 5), now=13)
    birth = third.birth()
    assert birth.birth is not None
    region.hear(replace(birth, birth=replace(birth.birth, predecessor=LOST), members=(), groups=()), now=14)
    members = tuple(replace(each, leaves=(Leaf("x", NEW),) if each.leaves else ()) for each in region.members)
    again = replace(rows(third, 0, 5, 10, upto=15), members=members)
    region.hear(again, now=15)
    assert {start: readings for start, (readings, _) in region.found.items()} == {0: 1, 5: 1, 10: 1}


def test_the_leaves_that_older_lines_tell_of_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 2.2."""
    monkeypatch.setattr(late_listings, "MOST_LEAVES", 3)
    region = Region()
    region.hear(region.anew(), region.listing, now=13)
    for name in "bcdef":
        region.hear(replace(region.says(region.old), members=(Members(0, (Leaf(name, OLD),)),)), now=13)
    ((_, membership),) = region.root.decider.parent.children.memberships.items()
    assert sorted(membership.members["a"].unsaid) == ["b", "c", "x"]


def test_rows_whose_numbers_an_earlier_frame_defines_wait_for_it_behind_the_new_birth_too() -> None:
    """protocol 2.4 (seed 60488): they were taken for bad ones, because a plan of theirs had no group yet."""
    region = Region()
    before = rows(region.old, 0, 5)
    region.hear(region.anew(), before, now=12)
    assert region.root.decider.gaps == []
    region.hear(region.listing, region.lists(OLD), rows(region.new, 10, upto=15), now=15)
    assert {start: readings for start, (readings, _) in region.found.items()} == {0: 1, 5: 1, 10: 1}
