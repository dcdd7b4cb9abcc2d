"""Agrees on the start from which all members of a group serve a query. The start is announced once and never moves."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, KeysView, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final

from edge_agent.algebra.frame import LATEST_US, NEVER_US, Serving
from edge_agent.algebra.query.key import QueryKey
from edge_agent.machines.checkpoint.slots import AgreementState
from edge_agent.machines.downlink.member import Member

MOST_AGREED: Final = 20_000  # most query revisions of a group kept although no member serves them: members may return


Awaited = Callable[[QueryKey], Sequence[Member]]
Times = Mapping[QueryKey, Mapping[str, int]]  # query -> leaf -> time


class ServingAgreement:
    """The queries of one group that its parent has announced upward, with their agreed starts."""

    def __init__(self, grace_us: int) -> None:
        """grace_us: how long to wait for other members after the first member serves a query."""
        self.grace_us = grace_us
        self._since: dict[QueryKey, int] = {}  # when the first member was seen to serve a query
        self._start_us: dict[QueryKey, int | None] = {}  # of announced queries; None: from the beginning
        self.forgotten = 0  # number of starts dropped because of the bound, since the process started
        self._version = object()  # a new one after each change of `_start_us`
        # the last results, each with what it was made of; (None, {}): make it again
        self._served: tuple[object, dict[QueryKey, Serving]] = None, {}
        self._begins: tuple[object, Times] = None, {}
        self._ends: tuple[object, Times] = None, {}

    def serving(
        self, counted: Sequence[Member], every: Sequence[Member], now_us: int, awaited: Awaited
    ) -> dict[QueryKey, Serving]:
        """The common serving range of each announced query (docs/protocol.md 6.3).

        A query is announced once all counted and awaited members serve it, or a grace time after the first did. So its
        first window starts where the last of them begins, and a query for some nodes only does not wait for ever. A
        revision ends for all members where it ends for any member, left out or not; so it does if all that serve it are
        left out. A query is removed when every member that served it has removed it.

        counted: members not left out. every: all. awaited: query -> what is known here of children that are to serve it
        because of their other groups, left out here or not (see awaited_servers.py). The caller does not change the
        result.
        """
        versions = _versions(counted), _versions(every)
        if self._served[0] == versions:
            return self._served[1]
        by_query = _by_query(counted)
        by_any = by_query if len(counted) == len(every) else _by_query(every)
        narrowed = {
            key: _narrowest(key, by_query.get(key, []), servings)
            for key, servings in by_any.items()
            if key in by_query or key in self._start_us
        }
        for key, servings in by_query.items():
            since_us = self._since.setdefault(key, now_us)
            if key not in self._start_us:
                others = awaited(key)
                joined = [each.serving[key] for each in others if key in each.serving and key not in each.unheeded]
                all_serve = len(servings) == len(counted) and len(joined) == len(others)
                if all_serve or now_us - since_us >= self.grace_us:
                    self._start_us[key] = _latest_start([*servings, *joined])
                    self._version = object()
        if len(self._since) - len(by_any) > MOST_AGREED:
            self._forget(by_any)
        out = {key: _from(self._start_us[key], serving) for key, serving in narrowed.items() if key in self._start_us}
        # a query that is not announced yet may be with time, although no member states anything
        self._served = (versions, out) if by_query.keys() <= self._start_us.keys() else (None, {})
        return out

    @property
    def announced(self) -> KeysView[QueryKey]:
        """The queries that were announced upward."""
        return self._start_us.keys()

    def _forget(self, served: Container[QueryKey]) -> None:
        """Forget the oldest queries that no member serves, until 7/8 of MOST_AGREED are left."""
        unserved = [key for key in self._since if key not in served]
        for key in unserved[: len(unserved) - MOST_AGREED * 7 // 8]:
            del self._since[key]
            self._start_us.pop(key, None)
            self.forgotten += 1
        self._version = object()

    def forget(self, key: QueryKey) -> None:
        """Forget a query that ended long ago."""
        self._since.pop(key, None)
        self._start_us.pop(key, None)
        self._version, self._served = object(), (None, {})

    def shift(self, by_us: int) -> None:
        """Shift the times at which queries were first seen, by a step of the clock."""
        self._since = {key: us + by_us for key, us in self._since.items()}

    def begins(self, every: Sequence[Member], on_way: Sequence[Serving] = ()) -> Times:
        """Query -> leaf -> start, for leaves that begin after the agreed start, or never (LATEST_US) (4.5).

        every: all members. on_way: ranges served by leaves in transit to another parent. If several members list a
        leaf, because it moves, the earliest start counts: the new one may state its ranges after it has listed it.
        Queries may share their starts; the caller changes nothing in the result.
        """
        made_of = self._version, _versions(every), tuple(on_way)
        if self._begins[0] != made_of:
            self._begins = made_of, self._later_starts(every, on_way)
        return self._begins[1]

    def _later_starts(self, every: Sequence[Member], on_way: Sequence[Serving]) -> Times:
        """See `begins`. Thousands of queries of one member are the same for the others, so they share their starts."""
        out: dict[QueryKey, dict[str, int]] = {}
        moved = {leaf for member in every for leaf in member.moved}
        stated: dict[QueryKey, dict[int, int]] = {}  # query -> place of a member in `every` -> its start
        for place, member in enumerate(every):
            for key, serving in member.serving.items():
                stated.setdefault(key, {})[place] = serving.from_us
            for key, former_us in member.former.items():
                stated.setdefault(key, {}).setdefault(place, former_us)
        away = _by_key(on_way)
        apart = {key for member in every for key in member.begins} | away.keys()
        shared: dict[object, dict[str, int]] = {}
        for key, start_us in self._start_us.items():
            agreed_us, own = NEVER_US if start_us is None else start_us, stated.get(key, {})
            alike = agreed_us < LATEST_US, tuple((place, us if us > agreed_us else None) for place, us in own.items())
            if key in apart or alike not in shared:
                later = _later(key, agreed_us, every, moved)
                later.update((each.node, each.from_us) for each in away.get(key, ()) if each.from_us > agreed_us)
                if key not in apart:
                    shared[alike] = later
            else:
                later = shared[alike]
            if later:
                out[key] = later
        return out

    def ends(self, every: Sequence[Member], on_way: Sequence[Serving] = ()) -> Times:
        """Query -> leaf -> latest window end that it serves, for leaves that stopped before others (6.3).

        every, on_way: see `begins`; if several members list a leaf, the latest end counts. The caller changes nothing
        in the result.
        """
        made_of = self._version, _versions(every), tuple(on_way)
        if self._ends[0] != made_of:
            self._ends = made_of, self._earlier_ends(every, on_way)
        return self._ends[1]

    def _earlier_ends(self, every: Sequence[Member], on_way: Sequence[Serving]) -> Times:
        out: dict[QueryKey, dict[str, int]] = {}
        moved = {leaf for member in every for leaf in member.moved}
        stated: dict[QueryKey, list[tuple[Member, Serving]]] = {}
        for member in every:
            for key, serving in member.serving.items():
                stated.setdefault(key, []).append((member, serving))
        for member in every:  # a line that the child has forgotten served it, the present one does not
            for key in member.former.keys() - member.serving.keys():
                stated.setdefault(key, []).append((member, Serving(*key, end_until_us=member.former_us)))
        ways = _by_key(on_way)
        apart = {key for member in every for key in member.ends} | ways.keys()
        for key in self._start_us:
            members = stated.get(key, [])
            if key not in apart and len({serving.end_until_us for _, serving in members}) <= 1:
                continue  # nobody stopped before the others
            away = [each for each in ways.get(key, ()) if each.from_us < LATEST_US]
            known = (*(serving for _, serving in members), *away)
            # without members the range for all leaves is of before, and may reach beyond those of leaves on their way
            last_us = max(serving.bounds_us[2] for serving in known) if members else -NEVER_US
            earlier = {each.node: each.bounds_us[2] for each in away if each.bounds_us[2] < last_us}
            for member, serving in members:
                own_us = serving.bounds_us[2]
                if own_us < last_us:
                    earlier.update(dict.fromkeys(member.leaves, own_us))
                own = member.ends.get(key, {})
                earlier.update((leaf, us) for leaf, us in own.items() if us < own_us and leaf in member.leaves)
            for leaf in earlier.keys() & moved:
                earlier[leaf] = max(
                    min(serving.bounds_us[2], member.ends.get(key, {}).get(leaf, -NEVER_US))
                    for member, serving in members
                    if leaf in member.leaves
                )
                if earlier[leaf] >= last_us:
                    del earlier[leaf]
            if earlier:
                out[key] = earlier
        return out

    def snapshot(self) -> AgreementState:
        return AgreementState(dict(self._since), dict(self._start_us))

    @classmethod
    def restore(cls, grace_us: int, state: AgreementState) -> ServingAgreement:
        agreement = cls(grace_us)
        agreement._since, agreement._start_us = dict(state.since), dict(state.starts)
        return agreement


def _by_key(servings: Iterable[Serving]) -> dict[QueryKey, list[Serving]]:
    out: dict[QueryKey, list[Serving]] = {}
    for serving in servings:
        out.setdefault(serving.key, []).append(serving)
    return out


def _versions(members: Iterable[Member]) -> list[object]:
    return [member.version for member in members]


def _later(key: QueryKey, agreed_us: int, every: Sequence[Member], moved: Set[str]) -> dict[str, int]:
    """Leaf -> start of a query, for leaves that members list and that begin after the agreed start.

    moved: leaves that several members may list. A leaf that is not back after a lost journal serves what it did (3.7):
    the new journal states ranges for it once it has listed it.
    """
    later: dict[str, int] = {}
    for member in every:
        serving = member.serving.get(key)
        own_us = member.former.get(key, LATEST_US) if serving is None else serving.from_us
        if own_us > agreed_us:
            later.update(dict.fromkeys(member.leaves.keys() - member.unlisted.keys(), own_us))
        least_us = max(own_us, agreed_us)
        own = member.begins.get(key, {})
        later.update((leaf, us) for leaf, us in own.items() if us > least_us and leaf in member.leaves)
    for leaf in later.keys() & moved:
        later[leaf] = min(_start_us(member, key, leaf) for member in every if leaf in member.leaves)
        if later[leaf] <= agreed_us:
            del later[leaf]
    return later


def _start_us(member: Member, key: QueryKey, leaf: str) -> int:
    """The start from which a leaf of a member serves a query; LATEST_US: never."""
    if leaf in member.unlisted:
        return NEVER_US
    serving = member.serving.get(key)
    own_us = member.former.get(key, LATEST_US) if serving is None else serving.from_us
    return max(own_us, member.begins.get(key, {}).get(leaf, own_us))


def _by_query(members: Iterable[Member]) -> dict[QueryKey, list[Serving]]:
    out: dict[QueryKey, list[Serving]] = {}
    for member in members:
        for key, serving in member.serving.items():
            if key not in member.unheeded:
                out.setdefault(key, []).append(serving)
    return out


def _narrowest(key: QueryKey, counted: list[Serving], every: list[Serving]) -> Serving:
    """The range that all members serve. key: of the query.

    counted: ranges of members not left out; only their starts count. every: ranges of all members, whose ends count,
    because a member left out may have begun the next revision, and may not have removed the query yet.
    """
    untils = [s.start_until_us for s in every if s.start_until_us is not None]
    ends = [s.end_until_us for s in every if s.end_until_us is not None]
    return Serving(
        *key, _latest_start(counted), min(untils, default=None), max(ends) if len(ends) == len(every) else None
    )


def _from(start_us: int | None, serving: Serving) -> Serving:
    """The range with another start."""
    return serving if serving.start_from_us == start_us else replace(serving, start_from_us=start_us)


def _latest_start(servings: Iterable[Serving]) -> int | None:
    return max((each.start_from_us for each in servings if each.start_from_us is not None), default=None)
