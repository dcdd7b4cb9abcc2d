"""Remembers what a merger last stated to its parent about each group, and the promises of groups that ended."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from edge_agent.algebra.frame import NEVER_US, ExcludedLeaf, Gap, Leaf, Serving
from edge_agent.algebra.gap_scope import RETIRED
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.group_membership import GroupMembership, Memberships
from edge_agent.machines.downlink.member import AHEAD_US
from edge_agent.machines.region.stated_ranges import StatedRanges

MOST_ENDED: Final = 20_000  # most groups without members whose promise is remembered; many are never served again


@dataclass(slots=True)
class SentGroup:
    """The last statements sent upward about one group. frontier_us: the promise of the last commit.

    retired: leaves that the next step drops, in order.
    """

    frontier_us: int = NEVER_US
    leaves: dict[str, Leaf] = field(default_factory=dict)
    serving: StatedRanges = field(default_factory=StatedRanges)
    exceptions: tuple[ExcludedLeaf, ...] = ()
    excepted: tuple[ExcludedLeaf, ...] = ()  # the exceptions until the last frame of the step under way (2.3)
    settled: bool = False  # leaves and ranges were made of no leaf that moves or that several members list
    retired: dict[str, None] = field(default_factory=dict)

    def stays(self, membership: GroupMembership, stated: Mapping[QueryKey, Serving], frontier_us: int) -> bool:
        """Whether all but the frontier is sure to be as in the last step.

        Without leaves that move, all of it follows from the members, whose leaves and ranges are the same if `stated`
        is the same object (ServingAgreement.serving).
        """
        return (
            self.settled
            and stated is self.serving.of_all
            and not (self.serving.kept or self.exceptions or self.excepted)
            and membership.level_at(frontier_us)
        )

    def never_stated(self, replaced: Iterable[Leaf], listed: Container[str]) -> tuple[Leaf, ...]:
        """Of the entries that others replaced since the last step, those that the parent never heard of (1.5).

        listed: the leaves that this step lists or reports.
        """
        return tuple(leaf for leaf in replaced if leaf.node in listed and leaf != self.leaves.get(leaf.node))


class SentUpward:
    """The last statements about all groups.

    ended: group without members -> its promise, which stays in force. forgotten: number of ended groups dropped because
    of the bound, since the process started. unstated: retired nodes that the next frames name.
    """

    def __init__(self) -> None:
        self.groups: dict[Group, SentGroup] = {}
        self.ended: dict[Group, int] = {}
        self.forgotten = 0
        self.unstated: set[str] = set()

    def retire(self, node: str, memberships: Memberships) -> None:
        """Note that configuration retires a node, before the memberships forget it (1.5).

        After a restart no birth lists its leaves, so the next step of their groups must drop them.
        """
        self.unstated.add(node)
        for group, membership in memberships.items():
            if node in membership.members:
                self.of(group).retired.update(dict.fromkeys(sorted(membership.members[node].leaves)))

    def take_retired(self) -> tuple[Gap, ...]:
        """The record that names the nodes retired since the last call; () if there are none.

        It concerns all groups of this node, also those that only an earlier journal knew (3.7).
        """
        names, self.unstated = tuple(sorted(self.unstated)), set()
        return (Gap((), 0, 0, 0, names, RETIRED),) if names else ()

    def of(self, group: Group) -> SentGroup:
        """The last statements about a group; for a new group an empty SentGroup, which is stored."""
        return self.groups.setdefault(group, SentGroup())

    def end(self, group: Group, frontier_us: int) -> None:
        """Keep only the promise of a group that has no members any more. Beyond the bound the oldest is forgotten."""
        self.groups.pop(group, None)
        self.ended[group] = frontier_us
        if len(self.ended) > MOST_ENDED:
            del self.ended[next(iter(self.ended))]
            self.forgotten += 1

    def begin_again(self, memberships: Memberships) -> None:
        """Begin ended groups that have members again. The old promise stays in force, ahead of the members (4.4)."""
        for group in self.ended.keys() & memberships.keys():
            promised_us = self.ended.pop(group)
            memberships[group].published_us = promised_us
            self.of(group).frontier_us = promised_us

    def frontiers(self) -> Mapping[Group, int]:
        """The promise of each group that has members."""
        return {group: sent.frontier_us for group, sent in self.groups.items()}

    def promised(self) -> dict[Group, int]:
        """All promises in force, also those of ended groups."""
        return {**self.ended, **self.frontiers()}

    def reached(self, memberships: Memberships) -> dict[Group, int]:
        """How far rows may reach that were sent or are on their way: what was promised, or any member has promised."""
        expected = {group: each.expected().values() for group, each in memberships.items()}
        return {of: max([self.of(of).frontier_us, *(m.frontier_us for m in each)]) for of, each in expected.items()}

    def restore(self, group: Group, promised_us: int, *, ended: bool) -> None:
        """Restore one promise that `promised` returned. ended: the group has no members."""
        if ended:
            self.end(group, promised_us)
        else:
            self.groups[group] = SentGroup(promised_us)

    def settle(self) -> None:
        """Note that the step under way is complete: its last frame states the new exceptions (2.3)."""
        for sent in self.groups.values():
            sent.excepted = sent.exceptions

    def stepped_back(self, now_us: int, memberships: Memberships) -> list[tuple[Group, int, int]]:
        """The clock stepped back: lower the promises that were made while it was ahead.

        Returns (group, its promise now, its promise before) of those.
        """
        before = self.promised()
        self.ended = {group: us if us <= now_us + AHEAD_US else now_us for group, us in self.ended.items()}
        for group, membership in memberships.items():
            sent = self.of(group)
            sent.frontier_us = min(sent.frontier_us, membership.published_us)
        return [(of, us, before[of]) for of, us in self.promised().items() if us < before.get(of, us)]


def known_leaves(sent: SentUpward, memberships: Memberships, group: Group) -> int:
    """How many gateways the parent knows below this node in a group, at least; after a start, those of the slots."""
    stated = sent.groups[group].leaves if group in sent.groups else {}
    return len(stated) or (len(memberships[group].leaves()) if group in memberships else 0)


def until_the_last_frame(
    before: tuple[ExcludedLeaf, ...],
    leaves: Mapping[str, Leaf],
    known: Mapping[str, Leaf],
    skipped: Container[str] = (),
) -> tuple[ExcludedLeaf, ...]:
    """The exceptions that apply until the last frame of a step (2.3).

    All of `before` stay; leaves in `leaves` that are new, or moved since they were listed in `known`, are added, and
    those of which the step lists other entries too (`skipped`).
    """
    new = {
        name: ExcludedLeaf(name, NEVER_US, NEVER_US)
        for name, leaf in leaves.items()
        if name not in known or leaf.before_move != known[name].before_move or name in skipped
    }
    rest = (each for each in before if each.node not in new)
    return tuple(sorted((*rest, *new.values()), key=lambda each: each.node)) if new else before
