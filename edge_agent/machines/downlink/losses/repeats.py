"""Finds rows of a child that may repeat rows of its older lines (docs/protocol.md 1.2, 1.3).

A child that does not know its past reads its sources again. A cut in event time divides the lines: rows of an older
line count if they end by the cut, rows of the newer line if they begin there or later. A row across the cut does not
count in either line and is declared lost. So no reading counts twice, in whatever order rows come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from edge_agent.algebra.frame import BEGAN, JOURNAL_LOST, NEVER_US, Gap, Leaf, Plan
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.downlink.epochs.counting import ALL, NONE, Counting
from edge_agent.machines.downlink.epochs.epoch_frames import Effect
from edge_agent.machines.downlink.group_membership import GroupParts, MemberChanges, Memberships
from edge_agent.machines.downlink.losses.loss_records import PAST_LOST, PAST_UNKNOWN
from edge_agent.machines.downlink.member import Member


def cut(member: Member, lost: Iterable[int], copies: Collection[int], until_us: int) -> None:
    """Set the cut for a new line of a child that does not know its past.

    lost: epochs of older lines of which a frame took effect. copies: see ChildEpochs. until_us: see
    Children.rows_until; older rows may lie far ahead if a clock was wrong.
    """
    at_us = max(member.since_us, member.frontier_us, min(member.reach_us, until_us))
    before = {epoch: range_us for epoch, range_us in member.older.items() if epoch in copies}
    _divide(member, lost, at_us, max(at_us, member.reach_us))
    member.older |= {epoch: before.get(epoch, (at_us, FAR_US)) for epoch in copies}


def _divide(member: Member, lost: Iterable[int], at_us: int, upto_us: int) -> None:
    """Let rows of the present line count from at_us on, and those of the line before up to upto_us.

    lost: all epochs of older lines, because rows of an omitted epoch would count as rows of the present line.
    """
    present = member.since_us, upto_us
    member.older = {epoch: member.older.get(epoch, present) for epoch in lost}
    member.since_us, member.live = at_us, False


def take_pasts(node: str, gaps: Iterable[Gap], of: Memberships) -> None:
    """Take what the gap records of a child say of the past of leaves below it.

    A leaf that knows its past declares what a lost journal had of it before it sends rows, and a gateway that cannot
    read again reports when it began to listen (3.1, 3.7). A record by the tier that lost sight of a leaf says that the
    leaf may read again, and that tier knows which of its rows are repeats. If it loses its journal, nobody does: what
    the leaf says then is of its new life only. What a gateway itself had sent to a lost journal counts as its rows
    here, because the tiers above may have it: behind them it may read again.
    """
    for gap in gaps:
        knows = gap.reason in (JOURNAL_LOST, BEGAN) and not gap.detail
        if knows or gap.reason == PAST_LOST or gap.detail == PAST_UNKNOWN:
            for group in gap.groups:
                if (member := _member(of, group, node)) is None:
                    continue
                if not knows:  # of a leaf in `unsaid` its next listing decides
                    member.anew |= (member.leaves.keys() & gap.nodes) - {node} - member.unsaid.keys()
                    continue
                if member.unsaid or member.anew:
                    _knows_its_past(member, gap.nodes)
                if gap.reason == JOURNAL_LOST and node in member.leaves:
                    member.reach_us = max(member.reach_us, gap.end_us)  # only this parent can tell what it reads again


def began_below(effect: Effect, changes: MemberChanges, of: Memberships) -> Iterator[Gap]:
    """Yields losses of leaves that lost their spools, below a child whose journal was lost (1.2).

    Such a leaf states when it began, and nothing of the lost journal (see `take_pasts`). Only here it is known that it
    lived before, in another epoch, which the child may not have listed yet. What it read since it last came is lost.
    """
    gaps = () if effect.frame is None else [gap for gap in effect.frame.gaps if not gap.detail]
    said = {(group, leaf) for gap in gaps if gap.reason == JOURNAL_LOST for group in gap.groups for leaf in gap.nodes}
    listed = {(group, leaf.node): leaf for group, change in changes for leaf in change.leaves}
    for began in (gap for gap in gaps if gap.reason == BEGAN):
        found: dict[tuple[int, tuple[str, ...]], list[Group]] = {}  # a child may name thousands of leaves and groups
        for group in began.groups:
            starts = dict[int, list[str]]()
            if (member := _member(of, group, effect.node)) is None:
                continue
            for name in began.nodes:
                start_us = None if (group, name) in said else _lost_from(member, name, listed.get((group, name)))
                if start_us is not None and start_us < began.end_us:
                    starts.setdefault(start_us, []).append(name)
            for start_us, names in starts.items():
                found.setdefault((start_us, tuple(names)), []).append(group)
        for (start_us, leaves), groups in found.items():
            yield Gap(tuple(groups), start_us, began.end_us, -1, leaves, PAST_LOST)


def _lost_from(member: Member, name: str, listed: Leaf | None) -> int | None:
    """From where on a leaf that begins has lost what it read; None: nothing, as far as is known here.

    listed: its entry in the same frame.
    """
    entry = member.leaves.get(name) if listed is None else listed
    if name not in member.unsaid or (entry is not None and entry.before_move is not None):
        return None
    if entry is None:
        return 0  # only an older line of its merger has listed it
    reached = member.reached.get(name, (NEVER_US, NEVER_US))
    if member.times_of(name)[0] > reached[0]:
        return None  # it has promised since: another sensor began, or it hears one again
    again = listed is not None or member.unlisted.get(name, True)
    if again and entry.epoch == member.unsaid[name]:
        return None  # it is still in the epoch that the lost journal knew
    return max(min(reached), 0)


def look_below(
    effect: Effect, changes: MemberChanges, parts: GroupParts, of: Memberships, lost: Collection[int]
) -> bool:
    """Take a frame's statements about leaves below a child whose journal was lost. Returns whether rows may be repeats.

    A leaf that is listed in another epoch and does not state that it knows its past (`take_pasts`) has lost its spool
    too, and reads its source again. If the frame may contain rows of it, a cut divides the lines of the child. lost:
    epochs of older lines of the child.
    """
    node = effect.node
    for group, change in changes:
        if (member := _member(of, group, node)) is not None and member.unsaid:
            for leaf in change.leaves:
                if leaf.before_move is not None or leaf.epoch == member.unsaid.get(leaf.node):  # it knows its epochs
                    _knows_its_past(member, (leaf.node,))
                elif leaf.node in member.unsaid:
                    member.anew.add(leaf.node)
    repeats = False
    for group, part in parts:
        member, sections = _member(of, group, node), (*part.sections, *part.late)
        if member is None or not sections or not member.anew & member.unsaid.keys():
            continue
        if member.past_us == NEVER_US:  # whatever still comes of the older lines would be repeats
            repeats = end_older_lines(member, lost) or repeats
        elif member.since_us < member.past_us > min(section.span_us[0] for section in sections):
            _divide(member, lost, member.past_us, member.past_us)
            repeats = True
    return repeats


def end_older_lines(member: Member, lost: Collection[int]) -> bool:
    """Let no further row of older lines count, unless a cut divides the lines. lost: their epochs.

    Returns whether one may come.
    """
    if member.since_us == NEVER_US:
        _divide(member, lost, NEVER_US, NEVER_US)
    return bool(member.older)


def _member(of: Memberships, group: Group, node: str) -> Member | None:
    return of[group].members.get(node) if group in of else None


def _knows_its_past(member: Member, leaves: Iterable[str]) -> None:
    for leaf in leaves:
        member.unsaid.pop(leaf, None)
        member.anew.discard(leaf)


def never_read_again(member: Member, copies: Collection[int]) -> None:
    """Note that the source of a member cannot be read again, so only rows of a copy of its spool can be repeats."""
    member.since_us, member.again_us, member.live = NEVER_US, NEVER_US, True
    member.older = {epoch: range_us for epoch, range_us in member.older.items() if epoch in copies}


def counting(
    epoch: EpochKey, plans: Mapping[int, tuple[Group, Plan]], of: Memberships, *, unheard: bool
) -> dict[int, Counting]:
    """Returns plan number -> which rows count, for plans of which some rows of a frame do not count.

    epoch: of the frame. plans: those in the frame, by number. unheard: see EpochFrames. Marker rows always count,
    because repeats of them are harmless.
    """
    out = {}
    for number, (group, plan) in plans.items():
        member = of[group].members.get(epoch.node) if group in of else None
        if member is not None and plan.kind != "marker":
            found = _counting(epoch, member, unheard=unheard)
            if found != ALL:
                out[number] = found
    return out


def _counting(epoch: EpochKey, member: Member, *, unheard: bool) -> Counting:
    older = member.older.get(epoch.epoch)
    if unheard and epoch.node in member.leaves and not member.live:
        return NONE  # a gateway that reads its source again sends all these readings in its newer line
    if unheard and older is None:
        return ALL
    return Counting(member.since_us) if older is None else Counting(*older)
