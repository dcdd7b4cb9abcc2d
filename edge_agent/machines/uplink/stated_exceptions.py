"""The exceptions of each group as the frames of an epoch have stated them: what the parent has of them.

Rules (docs/protocol.md): a list that is short is stated whole, a longer one by what changes in it; exceptions that are
new, or lie lower than before, go ahead of the frontier; those that rise or end come with it or behind it, for one too
many, or too low, is safe and one too few is not (2.3). A birth states all anew (1.2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from edge_agent.algebra.frame import ExcludedLeaf, Frame, GroupPart, Leaf


class ExceptionChanges(NamedTuple):
    """What makes the parent's list the new one. ahead: of the frontier. risen, ended: with it or behind it."""

    ahead: tuple[ExcludedLeaf, ...]
    risen: tuple[ExcludedLeaf, ...]
    ended: tuple[str, ...]


class StatedExceptions:
    """The lists by group number. They need not be kept: a process that starts begins an epoch (1.1)."""

    def __init__(self) -> None:
        self._stated: dict[int, dict[str, ExcludedLeaf]] = {}

    def sent(self, frames: Iterable[Frame]) -> None:
        """Frames state something, in this order."""
        for frame in frames:
            for change in frame.members:  # a leaf that goes is no exception any more
                known = self._stated.get(change.group, {})
                for name in change.dropped:
                    known.pop(name, None)
            for part in frame.groups:
                if part.exceptions is not None:
                    self._stated[part.group] = {each.node: each for each in part.exceptions}
                if part.more or part.ended:
                    known = self._stated.setdefault(part.group, {})
                    known.update((each.node, each) for each in part.more)
                    for name in part.ended:
                        known.pop(name, None)

    def changes(
        self,
        number: int,
        wanted: Iterable[ExcludedLeaf],
        left: Iterable[tuple[Leaf | None, Leaf]],
        gone: Collection[str],
    ) -> ExceptionChanges:
        """From the list that was stated of a group to the one wanted.

        left: reports of leaves that the parent takes from the list, whether they stay or not. gone: leaves that go.
        """
        known, wanted = self._stated.get(number, {}), tuple(wanted)
        reported, excepted = {leaf.node for _, leaf in left}, {each.node for each in wanted}
        ahead, risen = list[ExcludedLeaf](), list[ExcludedLeaf]()
        for each in wanted:
            before = None if each.node in reported else known.get(each.node)
            first = each if before is None else _lower(before, each)
            if first != before:
                ahead.append(first)
            if first != each:
                risen.append(each)
        left_out = set(gone)
        ended = tuple(name for name in known if name not in excepted and name not in left_out)
        return ExceptionChanges(tuple(ahead), tuple(risen), ended)


def _lower(one: ExcludedLeaf, other: ExcludedLeaf) -> ExcludedLeaf:
    """The lesser of each time."""
    return ExcludedLeaf(one.node, min(one.frontier_us, other.frontier_us), min(one.bound_us, other.bound_us))


def with_exceptions(frame: Frame, excepted: Mapping[int, tuple[ExcludedLeaf, ...]], *, whole: bool) -> Frame:
    """A frame before the last of its step: leaves that it lists are behind from the first moment on (2.3).

    excepted: by group number, the list that holds until the last frame. whole: state that; else the leaves listed here.
    """
    listed: dict[int, set[str]] = {}
    for change in frame.members:
        if change.leaves and change.group in excepted:
            listed.setdefault(change.group, set()).update(leaf.node for leaf in change.leaves)
    if not listed:
        return frame
    parts = {part.group: part for part in frame.groups}
    for number, names in listed.items():
        part = parts.get(number, GroupPart(number))
        if whole:
            parts[number] = replace(part, exceptions=excepted[number])
        else:
            parts[number] = replace(part, more=tuple(each for each in excepted[number] if each.node in names))
    return replace(frame, groups=tuple(parts.values()))
