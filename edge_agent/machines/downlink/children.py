"""All children of a parent: when each was heard, which are named or retired, and the membership of every group.

Rules (docs/protocol.md): silence counts only while the parent is connected (4.4). A child named by configuration is
expected before it is first heard (4.5). A retired child is no longer expected (1.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from edge_agent.algebra.frame import LATEST_US, NEVER_US, Frame, Leaf, Members
from edge_agent.algebra.gap_scope import names_retired
from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.slots import ChildrenState, ChildState, RetiredState
from edge_agent.machines.downlink.group_membership import GroupMembership, MemberChanges
from edge_agent.machines.downlink.losses.retired_leaves import RetiredLeaf, RetiredLeaves, retired_leaves
from edge_agent.machines.downlink.losses.unlisted import LostListing, Unlisted
from edge_agent.machines.downlink.member import AHEAD_US, Member


@dataclass(slots=True)
class Child:
    """The state of one child, for all groups. heard_us: time of its last frame or heartbeat."""

    heard_us: int
    online: bool = True


class Children:
    """All children of a parent and the membership of every group. known: child -> its state, once it was heard."""

    def __init__(self, grace_us: int, named: Iterable[str] = ()) -> None:
        """grace_us: a child that is silent for longer is left out. named: children that configuration names (4.5)."""
        self.grace_us = grace_us
        self.known: dict[str, Child] = {}
        self.memberships: dict[Group, GroupMembership] = {}
        self.named = set(named)
        self.retired: set[str] = set()
        self.unlisted = Unlisted()
        self.retired_leaves = RetiredLeaves()
        self._link_up_us: int | None = 0
        self._knows_time = True
        self._showed_us = NEVER_US  # the latest time that the clock showed before a step back

    def membership(self, group: Group) -> GroupMembership:
        """The membership of a group; a new group gets an empty one."""
        found = self.memberships.get(group)
        if found is None:
            found = self.memberships[group] = GroupMembership(self.grace_us)
        return found

    def report_again(self, reports: Mapping[Group, Iterable[tuple[Leaf | None, Leaf]]]) -> None:
        """Take back reports of leaves that moved, because no tier has heard them: see `Moves.reports`."""
        for group, each in reports.items():
            moves = self.membership(group).moves  # a group that had ended with its last report begins again
            moves.reports = [*each, *moves.reports]

    def heard(self, node: str, now_us: int) -> None:
        """Note that a frame or heartbeat of a child has arrived."""
        child = self.known.get(node)
        if child is None:
            child = self.known[node] = Child(now_us)
        child.heard_us = max(child.heard_us, now_us)
        child.online = True

    def pass_time(self, before_us: int, now_us: int, *, known: bool) -> None:
        """Note two successive readings of the clock. known: whether it is known to be right (4.3)."""
        self._knows_time = known
        if now_us < before_us:  # of a long step it was the time before that was wrong
            self._showed_us = max(self._showed_us, before_us) if before_us <= now_us + AHEAD_US else NEVER_US

    def losses_until(self, now_us: int) -> int:
        """The end of losses that last until now: of two clocks, before and after a step back, either may be right.

        LATEST_US if this parent does not know its time: the tier above ends the record, see `loss_records.undated`.
        """
        return max(now_us, self._showed_us) if self._knows_time else LATEST_US

    def rows_until(self, now_us: int) -> int:
        """The latest end of rows that are believed: those of a wrong clock may lie further ahead.

        LATEST_US if this parent does not know its time: then no row is known to be of a wrong clock.
        """
        return now_us + AHEAD_US if self._knows_time else LATEST_US

    def link(self, now_us: int, *, up: bool) -> None:
        """Note that the connection to the children went up or down: silence counts only while it is up (4.4)."""
        if not up:
            self._link_up_us = None
        elif self._link_up_us is None:
            self._link_up_us = now_us

    def stepped_back(self, now_us: int) -> None:
        """The clock stepped back: limit remembered times to now_us, and lower promises that lie ahead of it."""
        for child in self.known.values():
            child.heard_us = min(child.heard_us, now_us)
        if self._link_up_us is not None:
            self._link_up_us = min(self._link_up_us, now_us)
        for membership in self.memberships.values():
            membership.stepped_back(now_us)

    def promises(self) -> Iterator[int]:
        """The frontiers of all members of all groups."""
        return (member.frontier_us for each in self.memberships.values() for member in each.members.values())

    def heard_for_long(self, now_us: int) -> bool:
        """Whether this parent could hear its children for the whole grace time, so that silence counts (4.4, 1.4)."""
        return self._link_up_us is not None and now_us - self._link_up_us > self.grace_us

    def shift(self, by_us: int) -> None:
        """Shift remembered times by a step of the clock, or by a time without a lander, which is not silence or lag."""
        for child in self.known.values():
            child.heard_us += by_us
        if self._link_up_us is not None:
            self._link_up_us += by_us
        for membership in self.memberships.values():
            membership.shift(by_us)

    def stuck(self, group: Group, now_us: int) -> bool:
        """Whether the frontier of a group has not risen for the grace time while the parent was connected."""
        if self._link_up_us is None:
            return False
        return now_us - max(self.memberships[group].moved_us, self._link_up_us) > self.grace_us

    def silent(self, now_us: int) -> dict[str, bool]:
        """Child -> whether it has been silent for the grace time while the parent was connected."""
        return {node: self._is_silent(child, now_us) for node, child in self.known.items()}

    def hears(self, node: str, now_us: int) -> bool:
        """Whether a child was heard and has not been silent for the grace time."""
        child = self.known.get(node)
        return child is not None and not self._is_silent(child, now_us)

    def _is_silent(self, child: Child, now_us: int) -> bool:
        since = self._link_up_us
        return since is not None and now_us - max(child.heard_us, since) > self.grace_us

    def why_out(self, node: str, member: Member, now_us: int) -> str:
        """The reason, as text, why a child is left out of the frontier of a group; '' if it is not left out."""
        if member.ahead:
            return "its frontier is ahead of the clock here: one of the two clocks is wrong"
        if not member.out:
            return ""
        child = self.known.get(node)
        if child is not None and self._is_silent(child, now_us):
            since = datetime.fromtimestamp(child.heard_us // 1_000_000, UTC).isoformat().replace("+00:00", "Z")
            return f"silent since {since}, left out"
        return "left out until it has caught up"

    def forgotten(self) -> dict[str, int]:
        """Counts of GroupMembership.forgotten over all groups, with those of RetiredLeaves as moves."""
        found = [membership.forgotten for membership in self.memberships.values()]
        counts = {what: sum(each[what] for each in found) for what in ("moves", "starts")}
        return {**counts, "moves": counts["moves"] + self.retired_leaves.forgotten}

    def missing_named(self, now_us: int) -> bool:
        """Whether frontiers must wait for a named child that was never heard: only a grace time after connecting."""
        if self._link_up_us is None:
            return bool(self.unheard())
        return bool(self.unheard()) and now_us - self._link_up_us <= self.grace_us

    def unheard(self) -> set[str]:
        """The named children that have never been heard."""
        return self.named - set(self.known) - self.retired

    def change(self, node: str, changes: MemberChanges) -> list[tuple[str, MemberChanges]]:
        """Apply all definition sections of a frame of a child, in order.

        Remembers the leaves that are in no list of the child any more though it reported no leave: something below it
        was retired (1.5). Returns (another child, its entries of such leaves), of those that others list as moved.
        """
        dropped, new = self._dropped(node, changes), dict[Group, set[str]]()
        for group in dict.fromkeys(group for group, change in changes if change.leaves):
            self.membership(group).begin_anew(node)
        for group, change in changes:
            self.membership(group).change(node, change, new.setdefault(group, set()))
        return list(self._listed_elsewhere(node, dropped)) if dropped else []

    def retired_below(self, node: str, frame: Frame) -> tuple[Frame, MemberChanges]:
        """Find the leaves that a child drops in all groups, because they are retired there (1.5).

        Returns (the frame without the records that say so, sections that drop them).
        """
        names = {name for gap in frame.gaps if names_retired(gap) for name in gap.nodes}
        if not names:
            return frame, []
        dropped = []
        for group, membership in self.memberships.items():
            member = membership.members.get(node)
            if member is not None and (own := names & member.leaves.keys()):
                dropped.append((group, Members(0, (), tuple(sorted(own)))))
        return replace(frame, gaps=tuple(gap for gap in frame.gaps if not names_retired(gap))), dropped

    def _dropped(self, node: str, changes: MemberChanges) -> list[tuple[Group, list[RetiredLeaf]]]:
        """The leaves below a child that sections of it drop without a report of their leave."""
        out = []
        for group, change in changes:
            member = self.memberships[group].members.get(node) if group in self.memberships else None
            names = {*change.dropped} - {leaf.node for leaf in change.leaves} - {node}
            if member is not None and (found := sorted(names & member.leaves.keys())):
                out.append((group, retired_leaves(node, member, found)))
        return out

    def _listed_elsewhere(
        self, node: str, dropped: Iterable[tuple[Group, list[RetiredLeaf]]]
    ) -> Iterator[tuple[str, MemberChanges]]:
        """Remember dropped leaves, except those that the child lists in another group: they left only this one.

        Yields the entries of other children that list them as moved, in all groups.
        """
        members, names = [each.members[node] for each in self.memberships.values() if node in each.members], set[str]()
        for group, leaves in dropped:
            gone = [leaf for leaf in leaves if all(leaf.entry.node not in member.leaves for member in members)]
            self.retired_leaves.dropped(group, gone)
            names.update(leaf.entry.node for leaf in gone)
        for group, membership in self.memberships.items() if names else ():
            for of, member in membership.members.items():
                if moved := sorted(names & member.moved):
                    yield of, [(group, Members(0, tuple(member.leaves[name] for name in moved)))]

    def retire(self, node: str) -> None:
        """No longer expect a node, because configuration says that it will not come back (1.5)."""
        self.retired.add(node)
        self.known.pop(node, None)
        self.unlisted.of.pop(node, None)
        self.retired_leaves.gone(node)
        for group, membership in self.memberships.items():
            member = membership.members.get(node)
            if member is not None:
                names = [name for name in member.leaves if name != node]
                self.retired_leaves.remember(group, retired_leaves(node, member, names))
            membership.retire(node)

    def advance_frontiers(self, now_us: int) -> dict[Group, int]:
        """Advance and return the frontier of every group. While a group waits, its frontier stays.

        A group waits for named children that were never heard, up to the grace time. The group of a single node does
        not. A group whose windows of all nodes merge by number waits without a limit, unless its query skips missing
        nodes.
        """
        silent, missing = self.silent(now_us), self.missing_named(now_us)
        unheard, out = bool(self.unheard()), dict[Group, int]()
        for group, membership in self.memberships.items():
            if membership.list_last():  # a root lists them itself, until it has decided what closes
                membership.drop_last()
            waits = missing and not group.node
            if group.cut.numbered:  # every node has its own group, but its windows merge with those of all nodes
                waits = missing if group.cut.skips else unheard
            out[group] = membership.published_us if waits else membership.advance_frontier(now_us, silent)
        return out

    def take_retired(self) -> RetiredState | None:
        """The leaves of retired children for the spool if they have changed since the last call, else None."""
        return self.retired_leaves.take_changed()

    def snapshot(self) -> ChildrenState:
        """The state without the memberships, which the owner stores."""
        return ChildrenState(
            children={node: ChildState(child.heard_us, child.online) for node, child in self.known.items()},
            retired=sorted(self.retired),
            link_up_us=self._link_up_us,
            unlisted=dict(self.unlisted.of),
        )

    def restore(self, state: ChildrenState) -> None:
        """Continue from the result of `snapshot`. No node is retired: configuration says at each start which are."""
        self.known = {node: Child(child.heard_us, child.online) for node, child in state.children.items()}
        self._link_up_us = state.link_up_us
        self.unlisted.of = {node: LostListing(*lost) for node, lost in state.unlisted.items()}
