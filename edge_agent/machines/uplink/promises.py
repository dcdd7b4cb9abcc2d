"""The statements at the end of a step: gap records, leaves dropped, frontiers, exceptions and registers.

Rules (docs/protocol.md): a group's frontier, and what goes with it, follows all rows of the group and all leaves that
left, but groups need not share a frame; gap records leave no later than the frontiers (2.3); a frame is built to its
limit (2.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from edge_agent.algebra.frame import Gap, GroupPart, Members
from edge_agent.algebra.query.query import Group
from edge_agent.machines.uplink import size_bounds
from edge_agent.machines.uplink.session_hints import Registers
from edge_agent.machines.uplink.step import GroupStep, Step

T = TypeVar("T")
GROUP_BYTES: Final = 24  # number and frontier of a group, and the heads of its exceptions and registers
EXCEPTION_BYTES: Final = 22  # of an exception beside its name
REGISTER_BYTES: Final = 12  # a key and a start at their longest
BEAT_BYTES: Final = 16  # of a group in a heartbeat, at most
LEFT_BYTES: Final = 96  # of a leaf that left, its name twice
GAP_BYTES: Final = 48  # of a gap record without its texts


@dataclass(slots=True)
class Promises:
    """What one frame states. size_bytes: an upper estimate."""

    gaps: list[Gap] = field(default_factory=list)
    parts: list[GroupPart] = field(default_factory=list)
    members: list[Members] = field(default_factory=list)
    size_bytes: int = 0


def size_of(step: Step) -> int:
    """How many bytes the promises of a step take, without registers: an upper estimate."""
    parts = sum(_part_bytes(each) for each in step.groups if _states(each) or each.hints is not None)
    names = sum(_names_bytes(each.dropped) + LEFT_BYTES * 3 * len(each.left) for each in step.groups)
    return parts + sum(map(_gap_bytes, step.gaps)) + names


def pages(
    step: Step, numbers: Mapping[Group, int], registers: Mapping[int, Registers], most_bytes: int
) -> list[Promises]:
    """The promises of a step, at least one page. numbers: of the groups. registers: by these numbers.

    most_bytes: of a page. Only the exceptions of one group may exceed it: they are one list.
    """
    out = [Promises()]

    def page(size_bytes: int) -> Promises:
        if out[-1].size_bytes and out[-1].size_bytes + size_bytes > most_bytes:
            out.append(Promises())
        out[-1].size_bytes += size_bytes
        return out[-1]

    for gap in step.gaps:
        for piece in _cut(gap, most_bytes):
            page(_gap_bytes(piece)).gaps.append(piece)
    for each in step.groups:
        number = numbers[each.group]
        own = registers.get(number, ())
        stay = {leaf.node: Members(number, (leaf,)) for leaf in each.stay}
        for listed, leaf in each.left:
            left = [] if listed is None else [Members(number, (listed,))]
            left.append(Members(number, (leaf,), (leaf.node,)))
            # in one frame: behind one that drops the last leaf of a group the group would be over
            left += [stay[leaf.node]] if leaf.node in stay else []
            page(len(left) * LEFT_BYTES).members += left
        # exceptions end in one frame with the last leaf that goes: until then each of these is behind (2.3)
        own_bytes = _part_bytes(each) + REGISTER_BYTES * len(own) if _states(each) or own else 0
        chunks = list(_chunks(each.dropped, max(most_bytes - own_bytes, 1)))
        for some in chunks[:-1]:
            page(_names_bytes(some)).members.append(Members(number, (), some))
        last = chunks[-1] if chunks else ()
        if own_bytes or last:
            with_it = page(own_bytes + _names_bytes(last))
            if own_bytes:
                with_it.parts.append(GroupPart(number, each.frontier_us, exceptions=each.exceptions, registers=own))
            if last:
                with_it.members.append(Members(number, (), last))
    return out


def turn(known: Sequence[T], frame_bytes: int, now_us: int, interval_us: int) -> tuple[T, ...]:
    """The frontiers for a heartbeat: all if they fit; else others in each interval, in turn."""
    most = max(frame_bytes // BEAT_BYTES, 1)
    turns = max(-(-len(known) // most), 1)
    first = now_us // max(interval_us, 1) % turns * most
    return tuple(known[first : first + most])


def _states(step: GroupStep) -> bool:
    return step.frontier_us is not None or step.exceptions is not None


def _part_bytes(step: GroupStep) -> int:
    exceptions = step.exceptions or ()
    return GROUP_BYTES + sum(len(each.node) + EXCEPTION_BYTES for each in exceptions)


def _names_bytes(names: tuple[str, ...]) -> int:
    return sum(len(name) + 3 for name in names)


def _gap_bytes(gap: Gap) -> int:
    groups = sum(map(size_bounds.of_group, gap.groups))
    return GAP_BYTES + groups + _names_bytes(gap.nodes) + size_bounds.of_texts((gap.reason, gap.detail))


def _cut(gap: Gap, most_bytes: int) -> Iterator[Gap]:
    """A gap record in pieces of fewer nodes and fewer groups; the first piece has its readings and its detail."""
    if _gap_bytes(gap) <= most_bytes or len(gap.nodes) + len(gap.groups) <= 2:
        yield gap
        return
    at, of = len(gap.nodes) // 2, len(gap.groups) // 2
    if len(gap.nodes) >= len(gap.groups):
        first, second = replace(gap, nodes=gap.nodes[:at]), replace(gap, nodes=gap.nodes[at:])
    else:
        first, second = replace(gap, groups=gap.groups[:of]), replace(gap, groups=gap.groups[of:])
    yield from _cut(first, most_bytes)
    yield from _cut(replace(second, readings=min(gap.readings, 0), run=0, detail=""), most_bytes)


def _chunks(names: tuple[str, ...], most_bytes: int) -> Iterator[tuple[str, ...]]:
    """Names in runs of at most so many bytes."""
    some: list[str] = []
    size_bytes = 0
    for name in names:
        if some and size_bytes + len(name) + 3 > most_bytes:
            yield tuple(some)
            some, size_bytes = [], 0
        some.append(name)
        size_bytes += len(name) + 3
    if some:
        yield tuple(some)
