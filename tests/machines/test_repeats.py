"""Which rows of a child count that does not know its past (protocol 1.2, 1.3): each reading once, and no more lost than
it must be.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.algebra.frame import BEGAN, JOURNAL_LOST, LOST, NEVER_US, Frame, Gap, Leaf, Members
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.span import FAR_US
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.losses import loss_records
from edge_agent.machines.downlink.losses.lost_pasts import READ_AGAIN
from edge_agent.machines.downlink.losses.repeats import cut
from edge_agent.machines.downlink.member import AHEAD_US, Member
from edge_agent.machines.uplink.step import Step
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.machines.scripted_child import GRACE, JOURNAL, Sender, leaving
from tests.support.machines.simulated_host import S

QUERY = Query("q", 1, "s", Tumbling(5 * S), (Aggregate("count", "count"),), lateness_us=0)


def lost(sender: Sender, *held: int) -> Frame:
    """A birth that names no past. held: epochs of which the node still has frames."""
    frame = sender.birth()
    assert frame.birth is not None
    return replace(frame, birth=replace(frame.birth, predecessor=LOST, held=held))


def rows(sender: Sender, *starts: int, upto: int) -> Frame:
    """A frame with a reading in each window that starts there. upto: its frontier."""
    return sender.send(*((s * S, (s + 5) * S, "", 1.0) for s in starts), frontier_us=upto * S)


class Tree:
    """A root and its one gateway, which begins anew now and then."""

    def __init__(self) -> None:
        self.root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0)
        self.found: dict[int, tuple[int, bool]] = {}

    def hear(self, *frames: Frame, now: int, node: str = "a") -> None:
        for frame in frames:
            self.root.take(node, frame, now * S)
        for row in self.root.step(now * S):
            self.found[row.start // S] = (row.readings, row.complete)

    def counts(self) -> dict[int, int]:
        return {start: readings for start, (readings, _) in self.found.items()}


def test_a_line_that_reads_again_counts_from_where_the_older_one_had_come() -> None:
    tree, old, new = Tree(), Sender("a", QUERY), Sender("a", QUERY)
    new.outbox.random.seed(2)
    tree.hear(old.birth(), rows(old, 0, 5, upto=10), now=10)
    tree.hear(lost(new), rows(new, 0, 5, 10, upto=15), now=15)
    assert tree.counts() == {0: 1, 5: 1, 10: 1}
    tree.hear(rows(new, 20, upto=25), now=60)
    assert tree.found[20] == (1, True)


def test_frames_of_the_older_line_that_come_late_count_up_to_the_cut() -> None:
    """What they have beyond it, the newer line has read again."""
    tree, old, new = Tree(), Sender("a", QUERY), Sender("a", QUERY)
    new.outbox.random.seed(2)
    first, second, third = old.birth(), rows(old, 0, upto=10), rows(old, 5, upto=10)
    fourth = rows(old, 10, upto=15)
    tree.hear(first, second, now=10)
    tree.hear(lost(new, first.epoch), now=15)
    tree.hear(rows(new, 0, 5, 10, upto=15), third, fourth, now=16)
    assert tree.counts() == {0: 1, 5: 1, 10: 1}


@pytest.mark.parametrize("birth_first", [False, True])
def test_an_older_line_that_nobody_had_heard_is_left_to_the_newer_one(birth_first: bool) -> None:
    tree, old, new = Tree(), Sender("a", QUERY), Sender("a", QUERY)
    new.outbox.random.seed(2)
    before = [old.birth(), rows(old, 0, 5, upto=10)]
    after = [lost(new, before[0].epoch), rows(new, 0, 5, 10, upto=15)]
    tree.hear(*([*after, *before] if birth_first else [*after[:1], *before, *after[1:]]), now=16)
    assert tree.counts() == {0: 1, 5: 1, 10: 1}
    tree.hear(rows(new, 20, upto=25), now=60)
    assert tree.found[20] == (1, True), "the older birth begins no line"


def bare(birth: Frame) -> Frame:
    """A birth before its node knows a group: it lists no leaf, and promises nothing."""
    return replace(birth, members=(), groups=())


@pytest.mark.parametrize("listed", ["with the rows", "behind the rows", "in a lost frame"])
def test_rows_that_come_before_their_leaves_are_known_here_are_not_repeated_by_a_copy(listed: str) -> None:
    """protocol 1.3 (seeds 66412, 70823): a merger's first rows come with its first leaf, or without it.

    The copy begins after the birth, lists the same leaf and sends the same rows.
    """
    tree, old, new = Tree(), Sender("a", QUERY, leaves=("x",)), Sender("a", QUERY, leaves=("x",))
    new.outbox.random.seed(2)
    birth, nothing, lists = old.birth(), old.lose(0, 0), old.lose(0, 0)
    sent = old.send((0, 5 * S, "", 1.0))
    if listed == "with the rows":
        frames = [lists, replace(sent, members=birth.members)]
    elif listed == "behind the rows":
        frames = [lists, sent, replace(old.lose(0, 0), members=birth.members)]
    else:
        frames = [sent]  # it waits, and is taken when the birth of the copy ends its line
    tree.hear(bare(birth), nothing, *frames, now=6)
    copy = new.birth()
    assert copy.birth is not None
    begun = replace(bare(copy), birth=replace(copy.birth, predecessor=(birth.epoch, 0)))
    tree.hear(begun, now=7)
    tree.hear(begun, replace(rows(new, 0, upto=5), members=copy.members), rows(new, 5, upto=10), now=100)
    tree.hear(rows(new, 10, upto=15), now=101)
    assert tree.counts() == {0: 1, 5: 1, 10: 1}


def test_rows_of_a_gateway_that_come_before_it_is_listed_are_not_repeated_by_its_next_line() -> None:
    """protocol 1.2 (seed 70823): its birth was damaged, so the next one of the same spool lists it."""
    tree, old, new = Tree(), Sender("a", QUERY), Sender("a", QUERY)
    new.outbox.random.seed(2)
    birth = old.birth()
    tree.hear(bare(birth), old.send((0, 5 * S, "", 1.0)), now=6)
    tree.hear(replace(old.send((5 * S, 10 * S, "", 1.0)), members=birth.members), now=11)
    tree.hear(lost(new), rows(new, 0, 5, 10, upto=15), now=16)
    tree.hear(rows(new, 15, upto=20), now=21)
    assert tree.counts() == {0: 1, 5: 1, 10: 1, 15: 1}


def test_three_lines_count_each_for_its_own_time() -> None:
    tree, lines = Tree(), [Sender("a", QUERY) for _ in range(3)]
    for seed, line in enumerate(lines):
        line.outbox.random.seed(seed)
    births = [lines[0].birth(), lost(lines[1]), lost(lines[2])]
    late = []
    for n, (line, birth) in enumerate(zip(lines, births, strict=True)):
        tree.hear(birth, rows(line, *range(0, 10 * n + 10, 5), upto=10 * n + 10), now=10 * n + 12)
        late.append(rows(line, 0, 10, 20, upto=10 * n + 10))
    assert tree.counts() == dict.fromkeys(range(0, 30, 5), 1)
    tree.hear(*late, now=40)
    assert tree.counts() == {0: 2, 5: 1, 10: 2, 15: 1, 20: 2, 25: 1}, "late readings of each line, in its own time only"


@pytest.mark.parametrize(("said", "began"), [("before", False), ("before", True), ("after", False)])
def test_what_a_gateway_sent_to_a_lost_journal_is_not_read_again_below_it(said: str, *, began: bool) -> None:
    """protocol 1.2, 3.7 (seed 69300): the tiers above may have it, and hear that the leaf knows its past.

    said: whether the gateway's record of that journal comes before its new birth; else the tiers above see that the
    leaf lost its spool. began: its sensors cannot be read again, so that nothing is a repeat.
    """
    tree, old, new = Tree(), Sender("a", QUERY), Sender("a", QUERY)
    new.outbox.random.seed(2)
    sent = Gap((QUERY.group,), 0, 10 * S, -1, ("a",), JOURNAL_LOST)
    first, record = old.birth(), *old.outbox.put(Step(gaps=(sent,)))
    birth = lost(new, first.epoch)
    tree.hear(first, *((record, birth) if said == "before" else (birth, record)), now=11)
    if began:
        tree.hear(*new.outbox.put(Step(gaps=(replace(sent, start_us=2 * S, end_us=3 * S, reason=BEGAN),))), now=12)
    tree.hear(rows(new, 0, 5, 10, upto=15), now=15)
    cut = said == "before" and not began
    assert tree.counts() == ({10: 1} if cut else {0: 1, 5: 1, 10: 1})
    assert not tree.found.get(0, (0, False))[1]
    again = [gap for _, gap in tree.root.decider.gaps if gap.reason == READ_AGAIN]
    assert bool(again) == cut


def test_what_a_leaf_sent_to_a_lost_journal_does_not_divide_the_lines_of_its_merger() -> None:
    """protocol 1.2: the merger sent on nothing up to there, or this parent has it and its rows say how far it came."""
    tree, old, new = Tree(), Sender("a", QUERY, leaves=("x",)), Sender("a", QUERY, leaves=("x",))
    new.outbox.random.seed(2)
    sent = Gap((QUERY.group,), 0, 10 * S, -1, ("x",), JOURNAL_LOST)
    tree.hear(old.birth(), *old.outbox.put(Step(gaps=(sent,))), rows(old, 0, upto=5), now=10)
    tree.hear(below(lost(new), 2), rows(new, 0, 5, 10, upto=15), now=15)
    assert tree.counts() == {0: 1, 5: 1, 10: 1}


@pytest.mark.parametrize("heard", [False, True])
def test_of_however_many_older_lines_each_counts_for_its_own_time_only(heard: bool) -> None:
    """A gateway that starts again and again with damaged slots. heard: whether its parent hears the lines in between.

    Rows of the first one, beyond the cut, were read again: they come when all the others are known.
    """
    tree, lines = Tree(), [Sender("a", QUERY) for _ in range(150)]
    for seed, line in enumerate(lines):
        line.outbox.random.seed(seed)
    births = [lines[0].birth(), *(lost(line) for line in lines[1:-1])]
    tree.hear(births[0], rows(lines[0], 0, upto=5), *(births[1:] if heard else ()), now=6)
    tree.hear(lost(lines[-1], *(birth.epoch for birth in births)), rows(lines[-1], 5, 10, upto=15), now=15)
    tree.hear(rows(lines[0], 0, 5, upto=10), *(() if heard else births[1:]), now=16)
    assert tree.counts() == {0: 2, 5: 1, 10: 1}


def test_rows_of_a_merger_that_lost_its_journal_may_be_repeats_up_to_where_the_older_ones_reached() -> None:
    """protocol 1.2, 1.3: these may reach beyond what it had promised."""
    frames = ChildFrames(JOURNAL, GRACE)
    old, new = Sender("m", QUERY, leaves=("x",)), Sender("m", QUERY, leaves=("x",))
    new.outbox.random.seed(2)
    for frame in (old.birth(0), old.send((10 * S, 15 * S, "", 1.0)), lost(new)):
        frames.take("m", frame, 20 * S)
    (applied,) = frames.take("m", new.send((10 * S, 15 * S, "", 1.0), (20 * S, 25 * S, "", 1.0)), 30 * S)
    assert [(gap.start_us, gap.end_us) for gap in applied.losses if gap.reason == READ_AGAIN] == [(10 * S, 15 * S)]


def test_what_may_be_lost_with_the_past_of_a_child_ends_where_its_rows_had_reached() -> None:
    """protocol 1.2: a row may end after the time of receipt."""
    frames, old, new = ChildFrames(JOURNAL, GRACE), Sender("a", QUERY), Sender("a", QUERY)
    new.outbox.random.seed(2)
    for frame in (old.birth(5 * S), old.send((10 * S, 15 * S, "", 1.0))):
        frames.take("a", frame, 11 * S)
    (applied,) = frames.take("a", lost(new), 12 * S)
    found = [(gap.start_us, gap.end_us) for gap in applied.losses if gap.reason == loss_records.PAST_LOST]
    assert found == [(5 * S, 15 * S + 1)]


def test_a_source_that_could_not_be_read_again_is_a_new_one_in_the_next_line_that_knows_no_past() -> None:
    """protocol 1.2: until a record says from when on that line has heard it, it may read again."""
    member = Member(live=True)
    cut(member, [], [], 10 * S)
    assert not member.live


def test_a_leaf_that_has_moved_knows_its_past_though_its_merger_has_lost_its_own() -> None:
    """protocol 1.2, 1.5: it is listed in another epoch, and repeats nothing."""
    frames = ChildFrames(JOURNAL, GRACE)
    old, new = Sender("a", QUERY, leaves=("x",)), Sender("a", QUERY, leaves=("x",))
    new.outbox.random.seed(2)
    birth = below(lost(new), 2)
    moved = tuple(replace(each, leaves=(Leaf("x", 2, 1),)) for each in birth.members)
    for frame in (old.birth(), rows(old, 0, 5, upto=10), replace(birth, members=moved)):
        frames.take("a", frame, 12 * S)
    (applied,) = frames.take("a", rows(new, 0, 5, 10, upto=15), 15 * S)
    assert applied.effect.counting == {}


def test_rows_of_a_copy_count_from_the_first_cut_on_however_often_its_child_begins_anew() -> None:
    """protocol 1.3: what the copy has read beyond it, no other line has."""
    member = Member()
    for second in (10, 20):
        member.promise(second * S, second * S)
        cut(member, [], [5], second * S)
    assert member.older == {5: (10 * S, FAR_US)}
    assert member.since_us == 20 * S


def test_a_source_that_is_heard_from_its_beginning_only_repeats_nothing() -> None:
    """protocol 3.1: its gap record says so."""
    tree, old, new = Tree(), Sender("a", QUERY), Sender("a", QUERY)
    new.outbox.random.seed(2)
    tree.hear(old.birth(), rows(old, 0, upto=5), rows(old, 5, upto=7), now=8)
    birth = lost(new)
    (began,) = new.outbox.put(Step(gaps=(Gap((QUERY.group,), 8 * S, 9 * S, -1, ("a",), BEGAN),)))
    tree.hear(birth, began, rows(new, 5, upto=10), now=12)
    assert tree.found[5] == (2, False)
    tree.hear(rows(new, 10, upto=15), now=16)
    tree.hear(rows(new, 15, upto=20), now=60)
    assert tree.found[15] == (1, True)


@pytest.mark.parametrize(("last", "birth_first", "counted"), [(1, True, 1), (2, True, 2), (1, False, 1), (2, False, 1)])
def test_what_a_copy_of_a_spool_had_open_counts_once_if_that_copy_was_damaged(
    last: int, birth_first: bool, counted: int
) -> None:
    """protocol 1.2, 1.3: a source that cannot be read again repeats nothing, but its copy does.

    Nobody knows which it is while no birth is there; then what may be a repeat is declared.
    """
    tree, old, copy, new = Tree(), Sender("a", QUERY), Sender("a", QUERY), Sender("a", QUERY)
    copy.outbox.random.seed(2)
    new.outbox.random.seed(3)
    first, birth = old.birth(), copy.birth()
    assert birth.birth is not None
    named = replace(birth.birth, predecessor=(first.epoch, last))
    late = rows(copy, 5, upto=10)
    tree.hear(first, rows(old, 0, upto=5), rows(old, 5, upto=10), now=11)
    begun = [lost(new, copy.outbox.epoch)]
    begun += new.outbox.put(Step(gaps=(Gap((QUERY.group,), 11 * S, 12 * S, -1, ("a",), BEGAN),)))
    if last == 2 and birth_first:
        named = replace(named, frames=2)  # else it would take effect at once
    birth = replace(birth, birth=named)
    held = [birth, *begun] if birth_first else [*begun, birth]
    tree.hear(*held, late, rows(new, 15, upto=20), now=20)
    assert tree.counts() == {0: 1, 5: counted, 15: 1}
    assert tree.found[5] == (counted, counted == 2)


def test_a_merger_without_a_past_repeats_nothing() -> None:
    """protocol 3.7: what its children never published to the lost journal comes now, below what had been promised."""
    tree, old, new = Tree(), Sender("a", QUERY, leaves=("x", "y")), Sender("a", QUERY, leaves=("x", "y"))
    new.outbox.random.seed(2)
    tree.hear(old.birth(), rows(old, 0, 5, upto=10), now=10)
    tree.hear(lost(new), rows(new, 0, 5, 10, upto=15), now=15)
    assert tree.counts() == {0: 2, 5: 2, 10: 1}


def below(frame: Frame, epoch: int) -> Frame:
    """A birth that lists its leaves in that epoch."""
    listed = (replace(m, leaves=tuple(replace(leaf, epoch=epoch) for leaf in m.leaves)) for m in frame.members)
    return replace(frame, members=tuple(listed))


@pytest.mark.parametrize("listed", [False, True])
def test_leaves_of_a_lost_journal_are_expected_before_the_new_one_says_what_they_serve(listed: bool) -> None:
    """protocol 3.7 (a tree of real processes): rows of the other region were complete without them.

    listed: the new journal has listed the leaf, and the ranges follow in the next frame.
    """
    tree, other = Tree(), Sender("b", QUERY, leaves=("z",))
    old, new = Sender("a", QUERY, leaves=("x",)), Sender("a", QUERY, leaves=("x",))
    new.outbox.random.seed(2)
    tree.hear(old.birth(), rows(old, 0, upto=10), now=10)
    tree.hear(other.birth(), rows(other, 0, upto=10), now=10, node="b")
    assert tree.found[0] == (2, True)
    birth = lost(new)
    birth = replace(birth, members=tuple(replace(each, serving=()) for each in birth.members if listed and each.leaves))
    tree.hear(birth, now=12)
    tree.hear(rows(other, 10, upto=20), now=20, node="b")
    tree.hear(rows(other, 20, upto=90), now=90, node="b")  # the other one is left out by now
    assert tree.found[10] == (1, False)
    ((_, root),) = tree.root.decider.parent.children.memberships.items()
    assert not root.begins()


@pytest.mark.parametrize("reason", [JOURNAL_LOST, BEGAN])
def test_what_an_older_line_said_of_its_past_is_not_passed_on_as_said_by_the_present_one(reason: str) -> None:
    """protocol 1.2, 3.7: the tier above would take what the leaf reads again for readings that nobody has."""
    parent, old, new = ChildFrames(JOURNAL, GRACE), Sender("a", QUERY), Sender("a", QUERY)
    new.outbox.random.seed(2)
    birth = old.birth()
    (said,) = old.outbox.put(Step(gaps=(Gap((QUERY.group,), 0, 10 * S, -1, ("a",), reason),)))
    parent.take("a", birth, 11 * S)
    parent.take("a", lost(new, birth.epoch), 12 * S)
    (applied,) = parent.take("a", said, 13 * S)
    assert applied.effect.frame is not None
    assert [gap.detail for gap in applied.effect.frame.gaps] == [loss_records.OLDER_LINE]


@pytest.mark.parametrize("says", ["nothing", "its journal lost what I sent", "I hear my sensors from now on"])
def test_a_leaf_that_lost_its_spool_with_the_journal_of_its_merger_reads_again_what_counts_once(says: str) -> None:
    """protocol 1.2, 3.7: the merger does not know it any more; the tier above sees that the leaf does not either."""
    tree, old, new = Tree(), Sender("a", QUERY, leaves=("x", "y")), Sender("a", QUERY, leaves=("x", "y"))
    new.outbox.random.seed(2)
    tree.hear(old.birth(), rows(old, 0, 5, upto=10), now=10)
    own = [
        Gap((QUERY.group,), 0, 10 * S, -1, ("y",), JOURNAL_LOST),
        loss_records.of_past(QUERY.group, ("x",), 12 * S),  # by its merger, of whatever it may have had
    ]
    if says != "nothing":
        own.append(Gap((QUERY.group,), 0, 10 * S, -1, ("x",), JOURNAL_LOST if "journal" in says else BEGAN))
    tree.hear(below(lost(new), 2), *new.outbox.put(Step(gaps=tuple(own))), now=12)
    tree.root.decider.restore(tree.root.decider.snapshot(lambda f: f), lambda f: f)
    tree.hear(rows(new, 0, 5, 10, upto=15), now=15)
    again = 1 if says == "nothing" else 2
    assert tree.counts() == {0: again, 5: again, 10: 1}
    tree.hear(rows(new, 15, upto=20), now=60)
    assert [tree.found[start][1] for start in (0, 5, 15)] == [False, False, True]


@pytest.mark.parametrize(
    ("says", "listed", "promised", "lost_from"),
    [
        ([BEGAN], Leaf("x", 2), None, 0),
        ([BEGAN], Leaf("x", 2), 5, 5),
        ([BEGAN], Leaf("x", 2), 11, None),
        ([BEGAN, JOURNAL_LOST], Leaf("x", 2), None, None),
        ([BEGAN], Leaf("x", 1), None, None),
        ([BEGAN], Leaf("x", 2, 7), None, None),
        ([], Leaf("x", 2), None, None),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_what_a_leaf_had_read_before_it_began_without_a_spool_is_lost_if_its_merger_lost_its_journal_too(
    says: list[str], listed: Leaf, promised: int | None, lost_from: int | None, *, together: bool
) -> None:
    """Found by seed 61911 of the simulation: only the tier above had heard that the leaf lived before.

    together: the leaf is listed by the frame with its record.
    """
    tree, old, new = Tree(), Sender("a", QUERY, leaves=("x", "y")), Sender("a", QUERY, leaves=("x", "y"))
    new.outbox.random.seed(2)
    tree.hear(old.birth(), now=5)
    if promised is not None:
        tree.hear(rows(old, upto=promised), now=promised)
    birth = lost(new)
    members = (replace(birth.members[0], leaves=(listed,)),)
    own = [Gap((QUERY.group,), 8 * S, 11 * S, -1, ("x",), reason) for reason in says]
    (record,) = new.outbox.put(Step(gaps=tuple(own) or (Gap((), 0, 0, 0, ("x",), "nothing"),)))
    if together:
        tree.hear(replace(birth, members=()), replace(record, members=members), now=12)
    else:
        tree.hear(replace(birth, members=members), record, now=12)
    found = [
        (gap.start_us, gap.end_us)
        for _, gap in tree.root.decider.gaps
        if gap.reason == loss_records.PAST_LOST and gap.nodes == ("x",)
    ]
    assert found == ([] if lost_from is None else [(lost_from * S, 11 * S)])


def test_a_leaf_that_only_begins_after_its_merger_lost_the_journal_has_lost_its_spool_though_nobody_lists_it() -> None:
    """protocol 1.2 (seed 59930): its merger never heard that it was there before."""
    tree, old, new = Tree(), Sender("a", QUERY, leaves=("x", "y")), Sender("a", QUERY, leaves=("x", "y"))
    new.outbox.random.seed(2)
    tree.hear(old.birth(), rows(old, 0, 5, upto=10), now=10)
    tree.hear(replace(lost(new), members=()), now=12)
    known = len(tree.root.decider.gaps)
    began = Gap((QUERY.group,), 28 * S, 30 * S, -1, ("x",), BEGAN)
    tree.hear(*new.outbox.put(Step(gaps=(began,))), now=31)
    found = [gap for _, gap in tree.root.decider.gaps[known:] if gap.reason != BEGAN]
    assert found == [Gap((QUERY.group,), 10 * S, 30 * S, -1, ("x",), loss_records.PAST_LOST)]


def test_a_leaf_that_begins_to_listen_once_more_after_it_has_promised_has_lost_nothing_before() -> None:
    """protocol 3.1: a sensor was removed and added; its group had had no rows, so no lost journal had any."""
    tree, old, new = Tree(), Sender("a", QUERY, leaves=("x",)), Sender("a", QUERY, leaves=("x",))
    new.outbox.random.seed(2)
    tree.hear(old.birth(), rows(old, upto=5), now=5)
    tree.hear(below(lost(new), 2), rows(new, upto=7), now=8)
    said = len(tree.root.decider.gaps)
    (record,) = new.outbox.put(Step(gaps=(Gap((QUERY.group,), 8 * S, 11 * S, -1, ("x",), BEGAN),)))
    tree.hear(record, now=12)
    assert [gap.reason for _, gap in tree.root.decider.gaps[said:]] == [BEGAN]


@pytest.mark.parametrize("of", ["a gateway", "a leaf of a merger"])
def test_rows_that_are_read_again_count_once_though_the_parent_was_started_in_between(of: str) -> None:
    leaves = ("a",) if of == "a gateway" else ("x",)
    old, new = Sender("a", QUERY, leaves=leaves), Sender("a", QUERY, leaves=leaves)
    new.outbox.random.seed(2)
    birth = lost(new) if of == "a gateway" else below(lost(new), 2)
    before, after = ChildFrames(JOURNAL, GRACE), ChildFrames(JOURNAL, GRACE)
    for frame in (old.birth(), rows(old, 0, 5, upto=10), birth):
        before.take("a", frame, 12 * S)
    after.restore(before.snapshot(lambda frame: frame), lambda frame: frame)
    frame = rows(new, 0, 5, 10, upto=15)
    for each in (before, after):
        (applied,) = each.take("a", frame, 15 * S)
        assert [counting.from_us for counting in applied.effect.counting.values()] == [10 * S]


def test_a_merger_that_lost_its_journal_twice_still_has_a_leaf_that_reads_again() -> None:
    """protocol 1.2, 3.7: what the leaf says of the second journal is no word about what came before the first."""
    tree = Tree()
    lines = [Sender("a", QUERY, leaves=("x",)) for _ in range(3)]
    for number, line in enumerate(lines):
        line.outbox.random.seed(number)
    tree.hear(lines[0].birth(), rows(lines[0], 0, 5, upto=10), now=10)
    tree.hear(below(lost(lines[1]), 2), now=12)
    birth = below(lost(lines[2]), 3)
    said = lines[2].outbox.put(Step(gaps=(Gap((QUERY.group,), 0, 10 * S, -1, ("x",), JOURNAL_LOST),)))
    tree.hear(birth, *said, rows(lines[2], 0, 5, 10, upto=15), now=15)
    assert tree.counts() == {0: 1, 5: 1, 10: 1}


@pytest.mark.parametrize("says_more", [False, True])
@pytest.mark.parametrize("reason", [JOURNAL_LOST, loss_records.PAST_LOST])
def test_a_leaf_that_lost_its_spool_before_the_journal_of_its_merger_was_lost_counts_once(
    reason: str, says_more: bool
) -> None:
    """protocol 1.2, 3.7: only that journal knew which of its rows are repeats; the leaf knows its new spool only.

    says_more: it had stated what a journal below had of it, so that the record was of that journal, not of its spool.
    """
    tree, old, new = Tree(), Sender("a", QUERY, leaves=("x", "y")), Sender("a", QUERY, leaves=("x", "y"))
    new.outbox.random.seed(2)
    said = Gap((QUERY.group,), 0, 10 * S, -1, ("x",), JOURNAL_LOST)
    tree.hear(old.birth(), rows(old, 0, 5, upto=10), now=10)
    tree.hear(*old.outbox.put(Step(gaps=(loss_records.of_past(QUERY.group, ("x",), 11 * S, reason),))), now=11)
    tree.root.decider.restore(tree.root.decider.snapshot(lambda f: f), lambda f: f)
    if says_more:
        tree.hear(*old.outbox.put(Step(gaps=(said,))), now=11)
    others = replace(said, nodes=("y",))
    tree.hear(below(lost(new), 3), *new.outbox.put(Step(gaps=(said, others))), now=12)
    tree.hear(rows(new, 0, 5, 10, upto=15), now=15)
    again = 2 if says_more else 1
    assert tree.counts() == {0: again, 5: again, 10: 1}
    assert not tree.found[0][1]


def test_the_loss_of_one_leaf_divides_no_line_of_a_merger_that_lost_its_journal_before() -> None:
    """protocol 1.2: the merger that passes the record on knows which rows of the leaf are repeats."""
    tree, old, new = Tree(), Sender("a", QUERY, leaves=("x", "y")), Sender("a", QUERY, leaves=("x", "y"))
    new.outbox.random.seed(2)
    said = Gap((QUERY.group,), 0, 10 * S, -1, ("x", "y"), JOURNAL_LOST)
    tree.hear(old.birth(), rows(old, 0, 5, upto=10), now=10)
    tree.hear(below(lost(new), 3), *new.outbox.put(Step(gaps=(said,))), now=12)
    of_past = loss_records.of_past(QUERY.group, ("x",), 13 * S, loss_records.PAST_LOST)
    tree.hear(*new.outbox.put(Step(gaps=(of_past,))), rows(new, 5, 10, upto=15), now=15)
    assert tree.counts() == {0: 1, 5: 2, 10: 1}


def test_what_a_merger_may_repeat_is_declared_also_for_a_leaf_that_the_same_frame_lists() -> None:
    """protocol 1.3, 1.4: rows of the past that are not counted may hold readings of that leaf too."""
    tree, old, new = Tree(), Sender("a", QUERY, leaves=("x",)), Sender("a", QUERY, leaves=("x",))
    new.outbox.random.seed(2)
    tree.hear(old.birth(), rows(old, 0, 5, upto=10), now=10)
    birth = new.birth()
    listing = replace(rows(new, 0, upto=15), members=(Members(0, leaves=(Leaf("y", 3),)),))
    tree.hear(birth, listing, now=15)
    tree.hear(rows(new, 20, upto=25), now=100)
    again = [gap for _, gap in tree.root.decider.gaps if gap.reason == READ_AGAIN]
    assert [(gap.nodes, gap.start_us, gap.end_us) for gap in again] == [(("x", "y"), 0, 5 * S)]


@pytest.mark.parametrize("started_again", [False, True])
@pytest.mark.parametrize("with_rows", [False, True])
@pytest.mark.parametrize("directly", [False, True])
def test_rows_that_a_gateway_reads_again_below_another_parent_are_not_complete(
    directly: bool, with_rows: bool, started_again: bool
) -> None:
    """protocol 1.2: it lost its spool, and the new parent does not know what the former one has of it."""
    tree, old = Tree(), Sender("m", QUERY, leaves=("x", "y"))
    new = Sender("x", QUERY) if directly else Sender("n", QUERY, leaves=("z",))
    listing = Members(0, leaves=(Leaf("x", 2),))
    tree.hear(old.birth(), rows(old, 0, 5, upto=10), now=10, node="m")
    if directly:
        tree.hear(below(new.birth(), 2), now=11, node="x")
        again = rows(new, 0, upto=5)
    else:
        tree.hear(new.birth(), rows(new, 5, upto=10), now=10, node="n")
        if not with_rows:
            tree.hear(replace(rows(new, 10, upto=15), members=(listing,)), now=11, node="n")
        again = rows(new, 0, upto=10)
        if with_rows:
            again = replace(again, members=(listing,))
    assert tree.found[0] == (1, True)
    if started_again:
        tree.root.decider.restore(tree.root.decider.snapshot(lambda f: f), lambda f: f)
    tree.hear(again, now=12, node=new.node)
    assert tree.found[0] == (2, False)
    assert [(gap.start_us, gap.end_us, gap.nodes) for _, gap in tree.root.decider.gaps if gap.start_us == 0] == [
        (0, 5 * S, ("x",))
    ]
    tree.hear(rows(new, 15, upto=20), now=20, node=new.node)
    tree.hear(old.send(frontier_us=20 * S), now=20, node="m")
    tree.hear(rows(new, 20, upto=25), now=100, node=new.node)
    assert tree.found[15] == (1, True)
    assert [gap.reason for _, gap in tree.root.decider.gaps if gap.end_us > 15 * S] == []


@pytest.mark.parametrize("reported_first", [False, True])
@pytest.mark.parametrize("started_again", [False, True])
def test_a_gateway_that_lost_its_spool_on_the_way_to_another_parent_is_not_awaited_for_ever(
    reported_first: bool, started_again: bool
) -> None:
    """protocol 1.2, 1.5: the epoch that its leave names never comes. What was in it may be lost, the rest a repeat."""
    tree, old, new = Tree(), Sender("m", QUERY, leaves=("x", "y")), Sender("n", QUERY, leaves=("z",))
    tree.hear(old.birth(), rows(old, 0, 5, upto=10), now=10, node="m")
    tree.hear(new.birth(), rows(new, 5, upto=10), now=10, node="n")
    reports = Members(0, leaves=(Leaf("x", 7, 1),), dropped=("x",))
    lists = Members(0, leaves=(Leaf("x", 2),))
    left, again = replace(rows(old, 10, upto=15), members=(reports,)), replace(rows(new, 0, upto=15), members=(lists,))
    tree.hear(*((left,) if reported_first else (again,)), now=16, node="m" if reported_first else "n")
    if started_again:
        tree.root.decider.restore(tree.root.decider.snapshot(lambda f: f), lambda f: f)
    tree.hear(*((again,) if reported_first else (left,)), now=17, node="n" if reported_first else "m")
    tree.hear(old.send(frontier_us=40 * S), now=40, node="m")
    tree.hear(rows(new, 10, 20, 30, upto=40), now=40, node="n")
    assert tree.found[0] == (2, False)
    assert not tree.found[10][1]
    assert tree.found[20] == tree.found[30] == (1, True)
    lost = [(gap.nodes, gap.end_us) for _, gap in tree.root.decider.gaps if gap.reason == loss_records.PAST_LOST]
    assert lost == [(("x",), 17 * S + 1)]


@pytest.mark.parametrize("left_first", [False, True])
def test_a_gateway_that_lost_its_spool_behind_its_own_leave_is_not_awaited_for_ever(left_first: bool) -> None:
    """protocol 1.2, 1.5: its `leave` waits here for a frame before it, until another parent has listed the gateway."""
    tree, old, new = Tree(), Sender("x", QUERY), Sender("n", QUERY, leaves=("z",))
    tree.hear(old.birth(), rows(old, 0, 5, upto=10), now=10, node="x")
    tree.hear(new.birth(), rows(new, 5, upto=10), now=10, node="n")
    leave = replace(leaving(old), members=(Members(0, leaves=(Leaf("x", 1),)),))
    again = replace(rows(new, 0, upto=15), members=(Members(0, leaves=(Leaf("x", 2),)),))
    for frame, node in ((leave, "x"), (again, "n")) if left_first else ((again, "n"), (leave, "x")):
        tree.hear(frame, now=16, node=node)
    tree.hear(rows(new, 10, 20, 30, upto=40), now=40, node="n")
    assert not tree.found[10][1]
    assert tree.found[20] == tree.found[30] == (1, True)


def test_what_a_gateway_that_lost_its_spool_on_the_way_reads_again_is_not_complete_however_old_it_is() -> None:
    """protocol 1.2: the record of the loss begins 15 minutes before the place where the leaf stood."""
    tree, old, new = Tree(), Sender("m", QUERY, leaves=("x", "y")), Sender("n", QUERY, leaves=("z",))
    tree.hear(old.birth(), rows(old, 0, 2_000, upto=2_005), now=2_005, node="m")
    tree.hear(new.birth(), rows(new, 2_000, upto=2_005), now=2_005, node="n")
    assert tree.found[0] == (1, True)
    reports = Members(0, leaves=(Leaf("x", 7, 1),), dropped=("x",))
    tree.hear(replace(rows(old, 2_005, upto=2_010), members=(reports,)), now=2_010, node="m")
    lists = Members(0, leaves=(Leaf("x", 2),))
    tree.hear(replace(rows(new, 0, upto=2_010), members=(lists,)), now=2_011, node="n")
    assert tree.found[0] == (2, False)


def test_a_leaf_in_transit_is_lost_on_the_way_only_if_no_line_that_is_under_way_explains_its_entry() -> None:
    """protocol 1.5"""
    group = GroupMembership(GRACE)
    group.change("b", Members(0, (Leaf("x", 3, 2),)))
    group.change("b", Members(0, (Leaf("x", 5, 3),), ("x",)))
    assert not group.moves.strays(Leaf("x", 1)), "2 may have followed it at a, whose report is under way"
    group.change("a", Members(0, (Leaf("x", 3, 2),), ("x",)))
    assert [epoch for epoch in (2, 3, 5, 9) if group.moves.strays(Leaf("x", epoch))] == [9]
    assert not group.moves.strays(Leaf("x", 9, 3)), "it knows its past"
    assert not group.moves.strays(Leaf("y", 9))


@pytest.mark.parametrize("moved", ["from the other", "to the other", "with its merger", "from elsewhere"])
def test_a_leaf_that_two_parents_list_in_one_line_repeats_nothing(moved: str) -> None:
    """protocol 1.5"""
    there, here = {
        "from the other": (Leaf("x", 1), Leaf("x", 2, 1)),
        "to the other": (Leaf("x", 2, 5), Leaf("x", 5)),
        "with its merger": (Leaf("x", 1), Leaf("x", 1)),
        "from elsewhere": (Leaf("x", 2, 7), Leaf("x", 5)),
    }[moved]
    group = GroupMembership(GRACE)
    group.change("m", Members(0, (there,)))
    assert not group.lives_elsewhere("n", here)
    assert group.lives_elsewhere("n", Leaf("x", 9)) == (moved in ("from the other", "with its merger"))
    group.retire("m")
    assert not group.lives_elsewhere("n", Leaf("x", 9))


def test_a_leaf_whose_leave_elsewhere_is_awaited_may_be_in_one_line_with_every_other_entry() -> None:
    """protocol 1.5: it came to b from a parent that was not heard, and went on to c."""
    group = GroupMembership(GRACE)
    group.change("b", Members(0, (Leaf("x", 3, 2),)))
    group.change("c", Members(0, (Leaf("x", 5, 4),)))
    group.change("b", Members(0, (Leaf("x", 5, 4),), ("x",)))
    assert not group.lives_elsewhere("a", Leaf("x", 1))
    group.change("a", Members(0, (Leaf("x", 3, 2),), ("x",)))
    assert group.lives_elsewhere("d", Leaf("x", 9))


def test_a_clock_that_was_wrong_makes_no_later_reading_a_repeat() -> None:
    """Rows far ahead had come: what is read at the right time counts."""
    tree, old, new = Tree(), Sender("a", QUERY), Sender("a", QUERY)
    new.outbox.random.seed(2)
    far = 100_000
    tree.hear(old.birth(), old.send((far * S, (far + 5) * S, "", 1.0)), rows(old, 0, upto=5), now=10)
    tree.hear(lost(new), rows(new, 0, upto=5), now=11)
    tree.hear(rows(new, 400, upto=405), now=406)
    assert tree.counts() == {0: 1, 400: 1}


@pytest.mark.parametrize("heard", [False, True])
def test_of_a_gateway_with_a_past_that_nobody_knows_all_until_now_may_be_lost(heard: bool) -> None:
    """protocol 1.2: there is no frontier from which on it could be declared."""
    tree, old, new = Tree(), Sender("a", QUERY), Sender("a", QUERY)
    new.outbox.random.seed(2)
    if heard:
        tree.hear(old.birth(), rows(old, 0, upto=10), now=10)
    tree.hear(lost(new), rows(new, 10, 20, upto=25), now=18)
    gaps = [(gap.start_us, gap.end_us, gap.nodes) for _, gap in tree.root.decider.gaps]
    assert gaps == [(10 * S if heard else 0, 18 * S + 1, ("a",))]
    tree.hear(rows(new, 25, upto=30), now=60)
    assert [tree.found[start][1] for start in (10, 20, 25)] == [False, True, True]


def test_rows_of_an_older_line_count_up_to_where_they_reached_however_far_ahead_of_the_clock() -> None:
    """protocol 1.2, 1.3: the cut is not there, because the next line would count nothing until then."""
    member = Member(reach_us=10 * S + 2 * AHEAD_US)
    cut(member, [1], [], 10 * S + AHEAD_US)
    assert member.since_us == 10 * S + AHEAD_US
    assert member.older == {1: (NEVER_US, 10 * S + 2 * AHEAD_US)}
