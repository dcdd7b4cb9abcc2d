"""Tracks the exceptions of each group that the parent has from the frames of an epoch.

Rules (docs/protocol.md): a short list of exceptions is stated whole, a longer one by its changes. Exceptions that are
new or lower go before the frontier; those that rise or end go with it or after it, because an exception too many or too
low is safe, but a missing one is not (2.3). A birth states all exceptions again (1.2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from edge_agent.algebra.frame import ExcludedLeaf, Frame, GroupPart, Leaf


class ExceptionChanges(NamedTuple):
    """Changes to the parent's list. ahead: to send before the frontier. risen, ended: to send with or after it."""

    ahead: tuple[ExcludedLeaf, ...]
    risen: tuple[ExcludedLeaf, ...]
    ended: tuple[str, ...]


class StatedExceptions:
    """The lists by group number. The spool does not store them, because a process starts with a new epoch (1.1)."""

    def __init__(self) -> None:
        self._stated: dict[int, dict[str, ExcludedLeaf]] = {}

    def sent(self, frames: Iterable[Frame]) -> None:
        """Apply the statements of frames, in this order."""
        for frame in frames:
            for change in frame.members:  # a dropped leaf is no longer an exception
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
        """The changes from the list stated for a group to `wanted`.

        number: of the group. left: reports of leaves that moved; the parent removes these from its list itself. gone:
        names of leaves that are dropped.
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
    """An exception with the lesser of each time."""
    return ExcludedLeaf(one.node, min(one.frontier_us, other.frontier_us), min(one.bound_us, other.bound_us))


def with_exceptions(frame: Frame, excepted: Mapping[int, tuple[ExcludedLeaf, ...]], *, whole: bool) -> Frame:
    """Add exceptions to a frame before the last of its step, so that leaves it lists are exceptions at once (2.3).

    excepted: group number -> the exceptions until the last frame. whole: state the whole list; else only exceptions of
    leaves that this frame lists.
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
