"""One child in one group: its frontier, the leaves below it, its open sessions and the queries that it serves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from edge_agent.algebra.frame import LATEST_US, NEVER_US, ExcludedLeaf, Leaf, Members, Serving
from edge_agent.algebra.query.key import QueryKey
from edge_agent.machines.checkpoint.slots import MemberDefinitions, MemberState

AHEAD_US: Final = 300_000_000  # 5 minutes: a synchronised clock is never so far off (4.3, 4.4)

Starts = dict[QueryKey, dict[str, int]]  # query -> leaf -> start or end
Stated = tuple[dict[QueryKey, Serving], Starts, Starts, dict[str, tuple[int, int]]]


@dataclass(slots=True)
class Member:
    """One child in one group. Bounds are session bounds (5.1).

    exceptions: leaf -> (frontier, bound), for leaves below the child that are behind `frontier_us`.
    """

    frontier_us: int = NEVER_US
    leaves: dict[str, Leaf] = field(default_factory=dict)
    exceptions: dict[str, tuple[int, int]] = field(default_factory=dict)
    begins: dict[QueryKey, dict[str, int]] = field(default_factory=dict)  # query -> leaf -> its later start
    ends: dict[QueryKey, dict[str, int]] = field(default_factory=dict, kw_only=True)  # query -> leaf -> its earlier end
    serving: dict[QueryKey, Serving] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)  # key -> earliest start of a session not sent yet (5.2)
    held: dict[str, int] = field(default_factory=dict)  # hints of the epoch before, until the new one promises (1.2)
    out: bool = False  # left out of the frontier (4.4)
    fresh: bool = True  # not judged yet: a new member behind the published frontier starts left out
    reached: dict[str, tuple[int, int]] = field(default_factory=dict)  # leaf -> (frontier, bound) before a lost journal
    # leaf in `reached` that is not back yet -> whether it is listed again, but without a new promise (3.7)
    unlisted: dict[str, bool] = field(default_factory=dict)
    ahead: bool = False  # its frontier was more than AHEAD_US after its receipt
    reach_us: int = NEVER_US  # the latest end of its rows, and of what a gateway had sent to a lost journal (3.7)
    again_us: int = NEVER_US  # rows that begin before this may repeat rows of a line that the child has forgotten (1.3)
    since_us: int = NEVER_US  # rows of the present line count from here on; see repeats.py
    older: dict[int, tuple[int, int]] = field(default_factory=dict)  # epoch of an older line -> range of counted rows
    live: bool = False  # its source cannot be read again
    past_us: int = NEVER_US  # the end of all rows from before its journal was lost
    # leaf -> its epoch when the journal was lost, until the leaf states that it knows its past
    unsaid: dict[str, int] = field(default_factory=dict)
    # leaves that lost their spool, and may read again: by a record of a tier below, or in `unsaid` and another epoch
    anew: set[str] = field(default_factory=set)
    began_us: int = NEVER_US  # when listening began, while it is undecided whether the gateway lived before (1.2)
    # query -> from when a line that the child has forgotten served it; before former_us it served no other query
    former: dict[QueryKey, int] = field(default_factory=dict)
    former_us: int = NEVER_US
    moved: set[str] = field(default_factory=set)  # leaves that name an epoch before a move (1.5)
    unheeded: set[QueryKey] = field(default_factory=set)  # queries whose serving ranges do not count (6.5)
    # a new object after each change of its leaves or of what they serve: results that depend on nothing else are kept
    version: object = field(default_factory=object, compare=False, repr=False, kw_only=True)
    _definitions: MemberDefinitions | None = None  # cache for `snapshot`
    _roster: tuple[str, ...] | None = None
    # serving, begins, ends and exceptions before the present birth, whose frames take effect together
    _before: Stated = field(default=({}, {}, {}, {}), repr=False)

    def promise(self, frontier_us: int, received_us: int) -> None:
        """Take the frontier of a frame. Within an epoch it never falls; a new epoch may begin lower (1.2, 4.1).

        A frontier too far after the time of receipt comes from a wrong clock: it is ignored, and the last one stays in
        force.
        """
        self.ahead = frontier_us > received_us + AHEAD_US
        if not self.ahead:
            self.frontier_us = frontier_us
            if any(self.unlisted.values()):
                self.unlisted = {leaf: listed for leaf, listed in self.unlisted.items() if not listed}
                self.version = object()

    def beat(self, frontier_us: int, received_us: int) -> None:
        """Take the frontier of a heartbeat. Heartbeats may arrive in another order, so a lower one is ignored."""
        self.promise(max(self.frontier_us, frontier_us), received_us)

    def change(self, change: Members) -> None:
        """Apply a definition section, which sets or drops leaves and serving ranges."""
        self._changed()
        if change.leaves:
            self._roster = None
        for leaf in change.leaves:
            self.leaves[leaf.node] = leaf
            (self.moved.discard if leaf.before_move is None else self.moved.add)(leaf.node)
            if leaf.node in self.unlisted:
                self.unlisted[leaf.node] = True
        for name in change.dropped:
            self.drop(name)
        for serving in change.serving:
            key = serving.key
            if not serving.node:
                if serving.start_from_us == LATEST_US:  # no leaf below the child serves the query any more
                    self.serving.pop(key, None)
                else:
                    since_us = max(self.former.get(key, self.former_us), serving.from_us)
                    later = since_us > serving.from_us
                    self.serving[key] = replace(serving, start_from_us=since_us) if later else serving
            elif serving.start_from_us is None:
                for of in (self.begins, self.ends):
                    of.get(key, {}).pop(serving.node, None)
                    if key in of and not of[key]:
                        del of[key]
            else:
                self.begins.setdefault(key, {})[serving.node] = serving.start_from_us
                if serving.end_until_us is not None:
                    self.ends.setdefault(key, {})[serving.node] = serving.end_until_us

    def _changed(self) -> None:
        self._definitions, self.version = None, object()

    def heed_all_but(self, queries: set[QueryKey]) -> None:
        """Note for which queries its serving ranges do not count at present (6.5)."""
        if queries != self.unheeded:
            self.unheeded, self.version = queries, object()

    def forget_line(self) -> None:
        """Note which queries the present line serves, before a line of a gateway that has forgotten it (6.3)."""
        self.former = {key: serving.from_us for key, serving in self.serving.items()}
        self.former_us, self.version = self.since_us, object()

    def forget(self, key: QueryKey) -> None:
        """Forget all statements about a query that ended long ago."""
        if key in self.serving or key in self.begins or key in self.ends:
            self._changed()
            for known in (self.serving, self.begins, self.ends):
                known.pop(key, None)
            self.unheeded.discard(key)
            self.former.pop(key, None)

    def except_leaves(self, exceptions: Iterable[ExcludedLeaf]) -> None:
        """Replace the list of its exceptions (4.6)."""
        self.exceptions = {e.node: (e.frontier_us, e.bound_us) for e in exceptions}

    def change_exceptions(self, more: Iterable[ExcludedLeaf], ended: Iterable[str]) -> None:
        """Change the list of its exceptions, if it is too long to be replaced by one frame (2.3)."""
        self.exceptions.update((e.node, (e.frontier_us, e.bound_us)) for e in more)
        for leaf in ended:
            self.exceptions.pop(leaf, None)

    def served_by(self, leaf: str) -> dict[QueryKey, Serving]:
        """Query -> serving range of one of its leaves, for queries that the leaf does not serve for all time."""
        out = {}
        for key, serving in self.serving.items():
            from_us, _, end_us = serving.bounds_us
            from_us = max(from_us, self.begins.get(key, {}).get(leaf, NEVER_US))
            end_us = min(end_us, self.ends.get(key, {}).get(leaf, -NEVER_US))
            if from_us > NEVER_US or end_us < -NEVER_US:
                start_us, last_us = (None if abs(us) == -NEVER_US else us for us in (from_us, end_us))
                out[key] = Serving(*key, start_us, serving.start_until_us, last_us, leaf)
        return out

    def drop(self, leaf: str) -> None:
        """Remove a leaf."""
        self._changed()
        self._roster = None
        self.leaves.pop(leaf, None)
        self.moved.discard(leaf)
        self.exceptions.pop(leaf, None)
        self.reached.pop(leaf, None)
        self.unlisted.pop(leaf, None)
        self.unsaid.pop(leaf, None)
        self.anew.discard(leaf)

    def lose(self, node: str, until_us: int) -> None:
        """Note that the child `node` has lost its journal: each leaf below is an exception until listed again (3.7).

        until_us: see Children.rows_until.
        """
        self.past_us = max(self.past_us, self.frontier_us, min(self.reach_us, until_us))
        older = {leaf: epoch for leaf, epoch in self.unsaid.items() if leaf not in self.leaves}  # see late_listings.py
        self.unsaid = {leaf: each.epoch for leaf, each in self.leaves.items() if leaf != node} | older
        bounds = {leaf: (us, min(bound_us, self.lowest_us)) for leaf, (us, bound_us) in self.leaf_frontiers().items()}
        self.reached = {leaf: bounds[leaf] for leaf in self.leaves if leaf != node}
        self.reached |= dict.fromkeys(older, (NEVER_US, NEVER_US))
        self.unlisted = dict.fromkeys(self.reached, False)

    def begin(self, *, anew: bool) -> None:
        """Take a birth. It ends exceptions and serving ranges; leaves stay until a frame reports their leave (1.5).

        anew: nothing of the epoch before continues; else its registers stay until the new epoch promises (1.2).
        """
        self._before = dict(self.serving), dict(self.begins), dict(self.ends), dict(self.exceptions)
        self.exceptions.clear()
        self.forget_ranges()
        self.held = {} if anew else {**self.held, **self.hints}
        self.hints = {}

    def keep_earlier(self) -> None:
        """Keep what was stated before the present birth: a frame of the birth is lost, and may have stated it again.

        Else the leaves would count as not serving their queries, or as having caught up. Thousands of frames of one
        birth may be lost: the first says it for all.
        """
        (serving, begins, ends, exceptions), self._before = self._before, ({}, {}, {}, {})
        self.serving = {**serving, **self.serving}
        self.begins, self.ends = {**begins, **self.begins}, {**ends, **self.ends}
        self.exceptions = {**exceptions, **self.exceptions}
        self._changed()

    def forget_ranges(self) -> None:
        """Forget all serving ranges."""
        self._changed()
        self.serving.clear()
        self.begins.clear()
        self.ends.clear()

    def take_hints(self, keys: Iterable[str], registers: Iterable[tuple[str, int | None]]) -> None:
        """Update registers by a frame (5.2). keys: those of its partials, whose registers are cleared first.

        registers: (key, earliest start; None: clear it).
        """
        for key in keys:
            self.hints.pop(key, None)
            self.held.pop(key, None)
        for key, start_us in registers:
            if start_us is None:
                self.hints.pop(key, None)
            else:
                self.hints[key] = start_us

    def hint(self, key: str) -> int:
        """The bound of a key: no later session of the key starts before the frontier or its register (5.1)."""
        return min(self.frontier_us, self.hints.get(key, self.frontier_us), self.held.get(key, self.frontier_us))

    @property
    def lowest_us(self) -> int:
        """The least bound of all keys."""
        return min(self.frontier_us, *self.hints.values(), *self.held.values(), 2**62)

    @property
    def roster(self) -> tuple[str, ...]:
        """The names of its leaves; a new object after each change of a leaf."""
        if self._roster is None:
            self._roster = tuple(self.leaves)
        return self._roster

    def times_of(self, leaf: str) -> tuple[int, int]:
        """Returns (frontier, session bound) of one of its leaves, as stated by its frames."""
        frontier, bound = self.exceptions.get(leaf, (self.frontier_us, self.frontier_us))
        frontier = min(frontier, self.frontier_us)
        bound = min(bound, frontier)
        if leaf in self.reached:  # rows from before the loss of the journal were applied here
            before = self.reached[leaf]
            return before if leaf in self.unlisted else (max(frontier, before[0]), max(bound, before[1]))
        return frontier, bound

    @property
    def apart(self) -> list[str]:
        """The leaves whose frontier may differ from that of the child."""
        if not (self.exceptions or self.reached):
            return []
        return [leaf for leaf in {**self.exceptions, **self.reached} if leaf in self.leaves]

    def leaf_frontiers(self) -> dict[str, tuple[int, int]]:
        """Leaf -> (frontier, session bound), as stated by its frames."""
        out = dict.fromkeys(self.leaves, (self.frontier_us, self.frontier_us))
        out.update((leaf, self.times_of(leaf)) for leaf in self.apart)
        return out

    def exceptions_at(self, frontier_us: int) -> list[ExcludedLeaf]:
        """Its leaves behind a published frontier (4.6): all if the child is left out or behind, else its exceptions."""
        low, out, least_us = self.out or self.frontier_us < frontier_us, list[ExcludedLeaf](), self.lowest_us
        for leaf in self.leaves if low else self.apart:
            own_us, bound_us = self.times_of(leaf)
            lowest_us = min(bound_us, least_us) if low else bound_us
            behind = own_us < frontier_us and (low or leaf in self.unlisted)
            # an exception also states unsent sessions (5.2): registers of a member left out do not count
            if behind or ((self.out or leaf in self.exceptions) and lowest_us < frontier_us):
                out.append(ExcludedLeaf(leaf, own_us, lowest_us))
        return out

    def snapshot(self) -> MemberState:
        fixed = self._definitions
        if fixed is None:
            begins, ends = (
                [(*key, leaf, us) for key, leaves in of.items() for leaf, us in leaves.items()]
                for of in (self.begins, self.ends)
            )
            fixed = MemberDefinitions(list(self.leaves.values()), list(self.serving.values()), begins, ends)
            self._definitions = fixed
        return MemberState(
            self.frontier_us,
            fixed.leaves,
            [(leaf, frontier_us, bound_us) for leaf, (frontier_us, bound_us) in self.exceptions.items()],
            fixed.serving,
            self.out,
            self.fresh,
            self.ahead,
            fixed.begins,
            (dict(self.hints), dict(self.held)),
            self.reach_us,
            self.again_us,
            [(leaf, *bounds, self.unlisted.get(leaf)) for leaf, bounds in self.reached.items()],
            fixed.ends,
            self.since_us,
            dict(self.older),
            self.live,
            self.past_us,
            dict(self.unsaid),
            sorted(self.anew),
            self.began_us,
            [(*key, us) for key, us in self.former.items()],
            self.former_us,
        )

    @classmethod
    def restore(cls, state: MemberState) -> Member:
        member = cls(
            state.frontier_us,
            {leaf.node: leaf for leaf in state.leaves or ()},
            {leaf: (frontier_us, bound_us) for leaf, frontier_us, bound_us in state.exceptions},
            {},
            {serving.key: serving for serving in state.serving or ()},
            *state.hints,
            state.out,
            state.fresh,
            {leaf: (frontier_us, bound_us) for leaf, frontier_us, bound_us, _ in state.reached},
            {leaf: listed for leaf, _, _, listed in state.reached if listed is not None},
            state.ahead,
            state.reach_us,
            state.again_us,
            state.since_us,
            dict(state.older),
            state.live,
            state.past_us,
            dict(state.unsaid),
            set(state.anew),
            state.began_us,
            {QueryKey(query, revision): us for query, revision, us in state.former},
            state.former_us,
        )
        member.moved = {leaf.node for leaf in state.leaves or () if leaf.before_move is not None}
        for query, revision, leaf, start_us in state.begins or ():
            member.begins.setdefault(QueryKey(query, revision), {})[leaf] = start_us
        for query, revision, leaf, end_us in state.ends or ():
            member.ends.setdefault(QueryKey(query, revision), {})[leaf] = end_us
        return member
