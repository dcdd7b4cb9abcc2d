"""Distributes the statements at the end of a step (the promises) over frames.

These are gap records, dropped leaves, frontiers, exceptions and registers. Rules (docs/protocol.md 2.1, 2.3): gap
records leave no later than the frontiers. Serving ranges of a step that drops leaves follow these, because until then
the leaves serve what they served. A group's frontier, with its registers, follows all rows of the group and all reports
of leaves that moved; different groups may be in different frames. From a long list of exceptions, new ones go before
the frontier, and ended ones may go after it. No frame exceeds its size limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from edge_agent.algebra.frame import ExcludedLeaf, Gap, GroupPart, Members, Serving
from edge_agent.algebra.query.query import Group
from edge_agent.machines.uplink.encoding import size_bounds
from edge_agent.machines.uplink.encoding.session_hints import Registers
from edge_agent.machines.uplink.encoding.stated_exceptions import ExceptionChanges, StatedExceptions
from edge_agent.machines.uplink.step import GroupStep, Step

T = TypeVar("T")
GROUP_BYTES: Final = 24  # number and frontier of a group, and the heads of its exceptions and registers
REGISTER_BYTES: Final = 12  # largest size of a key number and a start
BEAT_BYTES: Final = 16  # largest size of a group in a heartbeat
WHOLE: Final = 4  # a list of exceptions larger than 1/WHOLE of a frame is sent as changes
LEFT_BYTES: Final = 96  # size of an entry of a leaf that moved, with its name twice
GAP_BYTES: Final = 48  # size of a gap record without its texts


@dataclass(slots=True)
class Promises:
    """The promises in one frame. size_bytes: an upper estimate."""

    gaps: list[Gap] = field(default_factory=list)
    parts: dict[int, GroupPart] = field(default_factory=dict)  # by group number
    members: list[Members] = field(default_factory=list)
    size_bytes: int = 0

    def part(self, number: int) -> GroupPart:
        """The statements about a group so far."""
        return self.parts.get(number, GroupPart(number))


def size_of(step: Step) -> int:
    """Upper estimate of the size of a step's promises in bytes, without registers."""
    parts = sum(
        GROUP_BYTES + exception_bytes(each.exceptions or ())
        for each in step.groups
        if _states(each) or each.hints is not None
    )
    names = sum(_names_bytes(each.dropped) + LEFT_BYTES * 3 * len(each.left) for each in step.groups)
    ranges = sum(sum(map(size_bounds.of_serving, each.serving)) for each in step.groups if each.drops)
    return parts + sum(map(gap_bytes, step.gaps)) + names + ranges


def pages(
    step: Step,
    numbers: Mapping[Group, int],
    registers: Mapping[int, Registers],
    stated: StatedExceptions,
    most_bytes: int,
) -> list[Promises]:
    """Distribute the promises of a step over pages, one per frame; at least one page.

    numbers: of the groups. registers: by group number. stated: the exceptions that the parent has. most_bytes: size
    limit of a page.
    """
    out = [Promises()]

    def page(size_bytes: int) -> Promises:
        if out[-1].size_bytes and out[-1].size_bytes + size_bytes > most_bytes:
            out.append(Promises())
        out[-1].size_bytes += size_bytes
        return out[-1]

    for gap in step.gaps:
        for piece in _cut(gap, most_bytes):
            page(gap_bytes(piece)).gaps.append(piece)
    for each in step.groups:
        number = numbers[each.group]
        own = registers.get(number, ())
        for left in _reports(each, number):
            page(len(left) * LEFT_BYTES).members += left
        # exceptions end no earlier than the last dropped leaf, because until then these leaves are behind (2.3)
        whole, changes = each.exceptions, ExceptionChanges((), (), ())
        if whole is not None and exception_bytes(whole) > most_bytes // WHOLE:
            changes = stated.changes(number, whole, each.left, each.dropped)
            whole = None
        own_bytes = GROUP_BYTES + exception_bytes(whole or ()) + REGISTER_BYTES * len(own)
        own_bytes = own_bytes if _states(each) or own else 0
        ranges: Sequence[Serving] = each.serving if each.drops else ()
        chunks = list(size_bounds.chunks(each.dropped, _name_bytes, max(most_bytes - own_bytes, 1)))
        chunks += [()] if ranges else []
        for some in chunks[:-1]:
            page(_names_bytes(some)).members.append(Members(number, (), some))
        for few in size_bounds.chunks(ranges, size_bounds.of_serving, most_bytes):
            page(sum(map(size_bounds.of_serving, few))).members.append(Members(number, (), (), few))
        room = most_bytes - GROUP_BYTES
        for more in size_bounds.chunks(changes.ahead, _exception_bytes, room):
            before = page(GROUP_BYTES + exception_bytes(more))
            before.parts[number] = replace(before.part(number), more=more)
        last = chunks[-1] if chunks else ()
        if own_bytes or last:
            with_it = page(own_bytes + _names_bytes(last))
            if own_bytes:
                part = with_it.part(number)
                with_it.parts[number] = replace(part, frontier_us=each.frontier_us, exceptions=whole, registers=own)
            if last:
                with_it.members.append(Members(number, (), last))
        for more in size_bounds.chunks(changes.risen, _exception_bytes, room):
            after = page(GROUP_BYTES + exception_bytes(more))
            part = after.part(number)
            after.parts[number] = replace(part, more=_joined(part.more, more))
        for ended in size_bounds.chunks(changes.ended, _name_bytes, room):
            after = page(GROUP_BYTES + _names_bytes(ended))
            after.parts[number] = replace(after.part(number), ended=ended)
    return out


def _reports(step: GroupStep, number: int) -> list[list[Members]]:
    """The reports of leaves that left, each with what one frame must hold.

    A frame that drops the last leaf of a group ends the group. So it lists a leaf again that stays, or of which another
    report follows.
    """
    behind, out = {leaf.node: leaf for leaf in step.stay}, list[list[Members]]()
    for listed, leaf in reversed(step.left):
        report = [Members(number, (leaf,), (leaf.node,))]
        if leaf.node in behind:
            report.append(Members(number, (behind[leaf.node],)))
        if listed is not None:
            report.insert(0, Members(number, (listed,)))
            behind[leaf.node] = listed
        out.append(report)
    return out[::-1]


def turn(known: Sequence[T], frame_bytes: int, now_us: int, interval_us: int) -> tuple[T, ...]:
    """The frontiers for a heartbeat: all if they fit, else a different part in each interval, in turn."""
    most = max(frame_bytes // BEAT_BYTES, 1)
    turns = max(-(-len(known) // most), 1)
    first = now_us // max(interval_us, 1) % turns * most
    return tuple(known[first : first + most])


def _states(step: GroupStep) -> bool:
    return step.frontier_us is not None or step.exceptions is not None


def exception_bytes(exceptions: Iterable[ExcludedLeaf]) -> int:
    """Upper estimate of the size of exceptions in bytes."""
    return sum(map(_exception_bytes, exceptions))


def _exception_bytes(exception: ExcludedLeaf) -> int:
    return size_bounds.of_exception(exception.node)


def _joined(before: tuple[ExcludedLeaf, ...], after: tuple[ExcludedLeaf, ...]) -> tuple[ExcludedLeaf, ...]:
    """Join two lists of exceptions. If both contain a leaf, the entry in `after` counts."""
    return tuple({each.node: each for each in (*before, *after)}.values())


def _name_bytes(name: str) -> int:
    return len(name) + 3


def _names_bytes(names: Iterable[str]) -> int:
    return sum(map(_name_bytes, names))


def gap_bytes(gap: Gap) -> int:
    """Upper estimate of the size of a gap record in bytes."""
    groups = sum(map(size_bounds.of_group, gap.groups))
    return GAP_BYTES + groups + _names_bytes(gap.nodes) + size_bounds.of_texts((gap.reason, gap.detail))


def _cut(gap: Gap, most_bytes: int) -> Iterator[Gap]:
    """Split a large gap record by nodes and groups. Only the first piece has its number of readings and its detail."""
    if gap_bytes(gap) <= most_bytes or max(len(gap.nodes), len(gap.groups)) <= 1:
        yield gap
        return
    at, of = len(gap.nodes) // 2, len(gap.groups) // 2
    if len(gap.nodes) >= len(gap.groups):
        first, second = replace(gap, nodes=gap.nodes[:at]), replace(gap, nodes=gap.nodes[at:])
    else:
        first, second = replace(gap, groups=gap.groups[:of]), replace(gap, groups=gap.groups[of:])
    yield from _cut(first, most_bytes)
    yield from _cut(replace(second, readings=min(gap.readings, 0), run=0, detail=""), most_bytes)
