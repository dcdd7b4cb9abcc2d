"""Who is expected below a parent, how far each has promised, who is left out, and what a result therefore contains.

Rules (docs/protocol.md): the frontier is the minimum over expected members that are not left out, never falls, and
stays when all are left out (4.4); a member is left out when silent for the grace time, when the others' minimum was
past its present frontier one grace time ago, or when its frontier lies more than 5 minutes ahead of the receipt (4.4);
of an empty set it is minus infinity (4.5); members left out travel upward as exceptions (4.6).
One `Family` is one group's view; `Household` holds the families of a parent and what is known of each child.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from edge_agent.algebra.frame import LATEST_US, NEVER_US, Exception_, Leaf, Members, Serving
from edge_agent.algebra.markers import is_ordered, skips_of
from edge_agent.algebra.query import Group

AHEAD_US: Final = 300_000_000  # 5 minutes: more than any clock that is called synchronised is off (4.3, 4.4)


@dataclass(slots=True)
class Child:
    """What is known of one child, whatever the group. heard_us: when it was last heard."""

    heard_us: int
    online: bool = True


@dataclass(slots=True)
class Member:
    """One child in one group. exceptions: leaf -> (frontier, bound) below it that are behind `frontier_us`."""

    frontier_us: int = NEVER_US
    leaves: dict[str, Leaf] = field(default_factory=dict)
    exceptions: dict[str, tuple[int, int]] = field(default_factory=dict)
    begins: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)  # leaves that serve a query later
    serving: dict[tuple[str, int], Serving] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)  # key -> earliest start of a session not sent yet (5.2)
    held: dict[str, int] = field(default_factory=dict)  # those of the epoch before, until the new one promises (1.2)
    out: bool = False
    fresh: bool = True  # not weighed yet: one that comes behind the published frontier starts left out
    ahead: bool = False  # its frontier was more than AHEAD_US after its receipt

    def hint(self, key: str) -> int:
        """The lesser of its register and its frontier: nothing of the key starts before it (5.1)."""
        return min(self.frontier_us, self.hints.get(key, self.frontier_us), self.held.get(key, self.frontier_us))

    @property
    def lowest_us(self) -> int:
        """The least bound of any key."""
        return min(self.frontier_us, *self.hints.values(), *self.held.values(), 2**62)


class Family:
    """The members of one group at one parent."""

    def __init__(self, grace_us: int) -> None:
        """grace_us: silence or lag after which a member no longer holds the others back."""
        self.grace_us = grace_us
        self.members: dict[str, Member] = {}
        self.published_us = NEVER_US
        self.moved_us = 0  # when it rose last
        # (now, lowest, whose, second lowest) frontier, newest last: what rule 4.4 means by "a grace time ago"
        self._history: deque[tuple[int, int, str, int]] = deque()
        self._since: dict[tuple[str, int], int] = {}  # when the first member was seen to serve a query
        self._told: dict[tuple[str, int], int | None] = {}  # queries told of, and from when: that no longer moves

    def member(self, node: str) -> Member:
        """The member of that name, made when it is new."""
        return self.members.setdefault(node, Member())

    def set_frontier(self, node: str, frontier_us: int, received_us: int, *, anew: bool) -> None:
        """A frame or heartbeat moved a member's frontier. It never falls (4.1), unless an epoch begins anew (1.2)."""
        member = self.member(node)
        member.frontier_us = frontier_us if anew else max(member.frontier_us, frontier_us)
        member.ahead = member.frontier_us > received_us + AHEAD_US

    def change_members(self, node: str, change: Members) -> None:
        """A definition section set or dropped leaves and servings."""
        member = self.member(node)
        for leaf in change.leaves:
            member.leaves[leaf.node] = leaf
        for name in change.dropped:
            member.leaves.pop(name, None)
            member.exceptions.pop(name, None)
        for serving in change.serving:
            key = (serving.query, serving.revision)
            if not serving.node:
                member.serving[key] = serving
            elif serving.start_from_us is None:
                member.begins.get(key, {}).pop(serving.node, None)
            else:
                member.begins.setdefault(key, {})[serving.node] = serving.start_from_us

    def set_exceptions(self, node: str, exceptions: Iterable[Exception_]) -> None:
        """The whole new list of a member's exceptions."""
        self.member(node).exceptions = {e.node: (e.frontier_us, e.bound_us) for e in exceptions}

    def registers(self) -> dict[str, dict[str, int]]:
        """Leaf -> the registers of its member, left out or not: what coverage looks at (4.7)."""
        out = {}
        for member in self.expected().values():
            if member.hints or member.held:
                own = {key: member.hint(key) for key in (*member.hints, *member.held)}
                out.update(dict.fromkeys(member.leaves, own))
        return out

    def hints(self) -> dict[str, int]:
        """Key -> the least register of the members that count: those left out hold no session back (5.2)."""
        out: dict[str, int] = {}
        for member in self.expected().values():
            if not member.out:
                for registers in (member.hints, member.held):
                    for key, start_us in registers.items():
                        out[key] = min(start_us, out.get(key, start_us))
        return out

    def expected(self) -> dict[str, Member]:
        """Members that list leaves; a child that lists none is not counted (4.6)."""
        return {n: m for n, m in self.members.items() if m.leaves}

    @property
    def gone(self) -> bool:
        """Whether all who were here have left: their last query of the group is removed, and no row can change."""
        return any(m.frontier_us > NEVER_US for m in self.members.values()) and not self.expected()

    def weigh(self, now_us: int, silent: Mapping[str, bool]) -> int:
        """Decide who is left out and the frontier that follows. silent: child -> heard of in the grace time or not."""
        members = self.expected()
        past = self._past(now_us, members)
        for node, member in members.items():
            quiet = silent.get(node, True)
            behind = False
            if past is not None:
                lowest, whose, second = past
                others = second if whose == node else lowest
                behind = others > member.frontier_us
            if member.fresh:
                member.out, member.fresh = member.frontier_us < self.published_us, False
            elif quiet or behind or member.ahead:
                member.out = True
            elif member.out:
                member.out = False  # none of the reasons holds: it counts again, and the frontier waits for it
        counted = [m.frontier_us for m in members.values() if not m.out]
        if counted and min(counted) > self.published_us:
            self.published_us, self.moved_us = min(counted), now_us
        return self.published_us

    def _past(self, now_us: int, members: Mapping[str, Member]) -> tuple[int, str, int] | None:
        """The two lowest frontiers one grace time ago; remembers the present ones."""
        low, whose, second = 2**62, "", 2**62
        for node, member in members.items():
            if member.out:
                continue
            if member.frontier_us < low:
                low, whose, second = member.frontier_us, node, low
            elif member.frontier_us < second:
                second = member.frontier_us
        if low == 2**62:
            low = NEVER_US
        if second == 2**62:
            second = NEVER_US
        if not self._history or self._history[-1][1:] != (low, whose, second):
            self._history.append((now_us, low, whose, second))
        while len(self._history) > 1 and self._history[1][0] <= now_us - self.grace_us:
            self._history.popleft()
        if now_us - self._history[0][0] < self.grace_us:
            return None
        return self._history[0][1:]

    def forget_history(self) -> None:
        """After a restart of the parent: no lag from before counts."""
        self._history.clear()

    def leaf_frontiers(self) -> dict[str, tuple[int, int]]:
        """Every expected leaf -> (frontier, session bound) as its member's frames say."""
        out: dict[str, tuple[int, int]] = {}
        for member in self.expected().values():
            for leaf in member.leaves:
                frontier, bound = member.exceptions.get(leaf, (member.frontier_us, member.frontier_us))
                frontier = min(frontier, member.frontier_us)
                out[leaf] = (frontier, min(bound, frontier))
        return out

    def exceptions_at(self, frontier_us: int) -> tuple[Exception_, ...]:
        """Leaves behind a published frontier, or listed so by their member, in order of name (4.6)."""
        out = []
        for member in self.expected().values():
            low = member.out or member.frontier_us < frontier_us
            for leaf in member.leaves:
                frontier, bound = member.exceptions.get(leaf, (member.frontier_us, member.frontier_us))
                frontier = min(frontier, member.frontier_us)
                if frontier < frontier_us and (low or leaf in member.exceptions):
                    out.append(Exception_(leaf, frontier, min(bound, frontier, member.lowest_us if low else bound)))
        return tuple(sorted(out, key=lambda e: e.node))

    def serving(self, now_us: int) -> dict[tuple[str, int], Serving]:
        """The ranges in which the members together feed each query (6.3).

        A query is told once all members that count serve it, or a grace time after the first did: so its first window
        starts where the last of them begins, and a query meant for some nodes only does not wait for ever. A revision
        ends for all where it ends for one, left out or not; a removal ends a query when every member that served it has
        removed it.
        """
        by_query: dict[tuple[str, int], list[Serving]] = {}
        members = self.expected().values()
        counted = [m for m in members if not m.out] or list(members)
        for member in counted:
            for key, serving in member.serving.items():
                by_query.setdefault(key, []).append(serving)
        every: dict[tuple[str, int], list[Serving]] = {}
        for member in members:
            for key, serving in member.serving.items():
                every.setdefault(key, []).append(serving)
        narrowed = {key: _narrowest(key, servings, every[key]) for key, servings in by_query.items()}
        for key, servings in by_query.items():
            since_us = self._since.setdefault(key, now_us)
            if key not in self._told and (len(servings) == len(counted) or now_us - since_us >= self.grace_us):
                self._told[key] = narrowed[key].start_from_us
        return {
            key: replace(serving, start_from_us=self._told[key])
            for key, serving in narrowed.items()
            if key in self._told
        }

    def begins(self) -> dict[tuple[str, int], dict[str, int]]:
        """Leaves that serve a query from later than it was told for all, or not at all (LATEST_US): (4.5)."""
        out: dict[tuple[str, int], dict[str, int]] = {}
        for key, told_us in self._told.items():
            since_us = NEVER_US if told_us is None else told_us
            later = {}
            for member in self.expected().values():
                serving, own = member.serving.get(key), member.begins.get(key, {})
                start_us = LATEST_US if serving is None else _or_never(serving.start_from_us)
                for leaf in member.leaves:
                    begin_us = max(start_us, own.get(leaf, NEVER_US))
                    if begin_us > since_us:
                        later[leaf] = begin_us
            if later:
                out[key] = later
        return out

    def snapshot(self) -> dict[str, object]:
        """Plain values."""
        return {
            "published": self.published_us,
            "moved": self.moved_us,
            "members": {
                node: [
                    m.frontier_us,
                    [[leaf.node, leaf.epoch, leaf.before_move] for leaf in m.leaves.values()],
                    [[leaf, f, b] for leaf, (f, b) in m.exceptions.items()],
                    [serving_to_plain(s) for s in m.serving.values()],
                    m.out,
                    m.fresh,
                    m.ahead,
                    [[*key, leaf, start] for key, leaves in m.begins.items() for leaf, start in leaves.items()],
                    [dict(m.hints), dict(m.held)],
                ]
                for node, m in self.members.items()
            },
            "history": [list(h) for h in self._history],
            "since": [[*key, since] for key, since in self._since.items()],
            "told": [[*key, start_us] for key, start_us in self._told.items()],
        }

    @classmethod
    def restore(cls, grace_us: int, state: Mapping[str, Any]) -> Family:
        """The twin of `snapshot`."""
        family = cls(grace_us)
        family.published_us, family.moved_us = state["published"], state["moved"]
        for node, (frontier, leaves, exceptions, serving, out, fresh, ahead, begins, hints) in state["members"].items():
            member = family.members[node] = Member(
                frontier,
                {name: Leaf(name, epoch, before) for name, epoch, before in leaves},
                {leaf: (f, b) for leaf, f, b in exceptions},
                {},
                {(s[0], s[1]): Serving(*s) for s in serving},
                dict(hints[0]),
                dict(hints[1]),
                out,
                fresh,
                ahead,
            )
            for query, revision, leaf, start in begins:
                member.begins.setdefault((query, revision), {})[leaf] = start
        family._history = deque((h[0], h[1], h[2], h[3]) for h in state["history"])
        family._since = {(query, revision): since for query, revision, since in state["since"]}
        family._told = {(query, revision): start_us for query, revision, start_us in state["told"]}
        return family


def _or_never(time_us: int | None) -> int:
    return NEVER_US if time_us is None else time_us


def _narrowest(key: tuple[str, int], counted: list[Serving], every: list[Serving]) -> Serving:
    """every: those left out too. What they feed after a change is the newer revision's; they may not know of an end."""
    starts = [s.start_from_us for s in counted if s.start_from_us is not None]
    untils = [s.start_until_us for s in every if s.start_until_us is not None]
    ends = [s.end_until_us for s in every if s.end_until_us is not None]
    return Serving(
        *key, max(starts, default=None), min(untils, default=None), max(ends) if len(ends) == len(every) else None
    )


def serving_to_plain(serving: Serving) -> list[object]:
    """A Serving as a list of plain values."""
    return [
        serving.query,
        serving.revision,
        serving.start_from_us,
        serving.start_until_us,
        serving.end_until_us,
    ]


class Household:
    """All children of a parent and the family of every group."""

    def __init__(self, grace_us: int, named: Iterable[str] = ()) -> None:
        """named: children that configuration expects before they have ever been heard (4.5)."""
        self.grace_us = grace_us
        self.children: dict[str, Child] = {}
        self.families: dict[Group, Family] = {}
        self.named = set(named)
        self.retired: set[str] = set()
        self._link_up_us: int | None = 0

    def family(self, group: Group) -> Family:
        """The family of a group, made when it is new."""
        if group not in self.families:
            self.families[group] = Family(self.grace_us)
        return self.families[group]

    def heard(self, node: str, now_us: int) -> None:
        """A frame or heartbeat of a child came."""
        child = self.children.setdefault(node, Child(now_us))
        child.heard_us = max(child.heard_us, now_us)
        child.online = True

    def link(self, now_us: int, *, up: bool) -> None:
        """The connection to the children went up or down: silence counts only while it is up (4.4)."""
        if not up:
            self._link_up_us = None
        elif self._link_up_us is None:
            self._link_up_us = now_us

    def stepped_back(self, now_us: int) -> None:
        """The clock went back: silence and lag are counted anew."""
        for child in self.children.values():
            child.heard_us = min(child.heard_us, now_us)
        if self._link_up_us is not None:
            self._link_up_us = min(self._link_up_us, now_us)
        for family in self.families.values():
            family.forget_history()
            family.moved_us = min(family.moved_us, now_us)

    def stuck(self, group: Group, now_us: int) -> bool:
        """Whether its frontier has not risen for the grace time, as far as this parent could hear."""
        if self._link_up_us is None:
            return False
        return now_us - max(self.families[group].moved_us, self._link_up_us) > self.grace_us

    def silent(self, now_us: int) -> dict[str, bool]:
        """Child -> silent for the grace time, as far as this parent could hear."""
        if self._link_up_us is None:
            return dict.fromkeys(self.children, False)
        since = self._link_up_us
        return {n: now_us - max(c.heard_us, since) > self.grace_us for n, c in self.children.items()}

    def missing_named(self, now_us: int) -> bool:
        """Whether a named child never heard still holds all frontiers back: for a grace time after the link came up."""
        if self._link_up_us is None:
            return bool(self.unheard())
        return bool(self.unheard()) and now_us - self._link_up_us <= self.grace_us

    def unheard(self) -> set[str]:
        """Named children never heard of."""
        return self.named - set(self.children) - self.retired

    def retire(self, node: str) -> None:
        """Configuration says the node will not come back (1.5)."""
        self.retired.add(node)
        self.children.pop(node, None)
        for family in self.families.values():
            family.members.pop(node, None)
            for member in family.members.values():
                member.leaves.pop(node, None)
                member.exceptions.pop(node, None)

    def weigh(self, now_us: int) -> dict[Group, int]:
        """The frontier of every group, now. One of a single node waits for no other child; where windows of all nodes
        merge by their number, it waits until whoever is named has been heard, unless the query skips who is missing.
        """
        silent, missing = self.silent(now_us), self.missing_named(now_us)
        unheard, out = bool(self.unheard()), {}
        for group, family in self.families.items():
            waits = missing and not group.node
            if is_ordered(group):  # its windows are of all nodes, though every node has a group of its own
                waits = missing if skips_of(group) else unheard
            out[group] = family.published_us if waits else family.weigh(now_us, silent)
        return out

    def snapshot(self) -> dict[str, object]:
        """Plain values."""
        return {
            "children": {n: [c.heard_us, c.online] for n, c in self.children.items()},
            "retired": sorted(self.retired),
            "link_up": self._link_up_us,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The twin of `snapshot`; families are restored by the owner."""
        self.children = {n: Child(heard, online) for n, (heard, online) in state["children"].items()}
        self.retired = set(state["retired"])
        self._link_up_us = state["link_up"]
