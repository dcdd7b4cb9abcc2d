"""The meaning of the numbers of a child's epoch: keys, nodes, groups and plans (docs/protocol.md 2.4)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Final

from edge_agent.algebra.frame import MAX_KEYS, Define, Plan
from edge_agent.algebra.query.key import has_label_twice
from edge_agent.algebra.query.planner import hashed_kind, plan_hash
from edge_agent.algebra.query.query import Group
from edge_agent.errors import WireError
from edge_agent.machines.checkpoint.codec import decode, encode
from edge_agent.machines.checkpoint.slots import DictionaryState


@lru_cache(maxsize=4096)
def _shared_group(group: Group) -> Group:
    """Returns one object for equal groups of all children, so that a dict finds it without comparing fields."""
    return group


@lru_cache(maxsize=4096)
def _shared_plan(plan: Plan) -> Plan:
    """Like `_shared_group`, for plans, which list the queries that they serve."""
    return plan


@lru_cache(maxsize=4096)
def _own_plan(group: Group, plan: Plan) -> Plan:
    """The plan, with a hash of its own if its hash is not that of its content.

    Rows of plans with one hash are merged: a child could give the hash of another plan to other columns or another
    scale, and change the rows of its siblings.
    """
    if plan.hash == plan_hash(hashed_kind(group.cut, plan.kind), plan.basis, plan.scale, plan.queries):
        return _shared_plan(plan)
    content = (plan.hash.hex(), plan.kind, plan.basis, plan.scale, plan.unit_us, plan.queries, plan.gap_us)
    return replace(plan, hash=sha256(repr(content).encode()).digest()[: len(plan.hash)])


TEXT_BYTES: Final = 16  # of a text beside its characters; equal names of columns are one object in most plans
MOST_BYTES: Final = 32 << 20  # limit of one epoch's definitions; 65 536 keys of the longest labels take half of it


@dataclass(slots=True)
class EpochDictionary:
    """The numbers of one epoch of a child. A number never changes its meaning."""

    keys: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    groups: dict[int, Group] = field(default_factory=dict)
    plans: dict[int, tuple[Group, Plan]] = field(default_factory=dict)
    # plan number -> Definitions.version at which the plan was found to agree with the definitions
    agreed: dict[int, int] = field(default_factory=dict, compare=False)
    size_bytes: int = 0  # estimated size of the definitions learnt since the process started

    def learn(self, define: Define) -> None:
        """Take a definition section. It may repeat known definitions, as after the command `rebirth`.

        Raises: WireError if it contradicts an earlier definition, leaves a hole in the numbers or exceeds a limit; then
        nothing changes.
        """
        if (size_bytes := self.size_bytes + _size_bytes(define)) > MOST_BYTES:
            raise WireError(f"the definitions of an epoch take {size_bytes} bytes, at most {MOST_BYTES} are kept")
        for text in define.keys[1]:
            if has_label_twice(text):
                raise WireError(f"a label occurs twice in the key {text[:80]!r}")
        keys = _extended("key", self.keys, define.keys)
        nodes = _extended("node", self.nodes, define.nodes)
        if len(keys) > MAX_KEYS:
            raise WireError(f"at most {MAX_KEYS} keys in an epoch, got {len(keys)}")
        groups = dict(self.groups)
        for number, group in define.groups:
            if groups.setdefault(number, _shared_group(group)) != group:
                raise WireError(f"group number {number} is defined already with other content")
        plans = dict(self.plans)
        for number, group_number, plan in define.plans:
            if group_number not in groups:
                raise WireError(f"plan number {number} is of group number {group_number}, which is not defined")
            own = groups[group_number], _own_plan(groups[group_number], plan)
            if plans.setdefault(number, own) != own:
                raise WireError(f"plan number {number} is defined already with other content")
        grown = len(keys) + len(nodes) + len(groups) + len(plans) > self._count()
        self.keys, self.nodes, self.groups, self.plans = keys, nodes, groups, plans
        self.size_bytes = size_bytes if grown else self.size_bytes  # repeated definitions take no memory

    def lacks_before(self, define: Define) -> bool:
        """Whether numbers of keys, nodes or groups before those of a definition section are not known yet."""
        if define.keys[1] and define.keys[0] > len(self.keys):
            return True
        if define.nodes[1] and define.nodes[0] > len(self.nodes):
            return True
        groups = self.groups.keys() | {number for number, _ in define.groups}
        return any(group not in groups for _, group, _ in define.plans)

    def _count(self) -> int:
        return len(self.keys) + len(self.nodes) + len(self.groups) + len(self.plans)

    def snapshot(self, *, keys: bool = True) -> DictionaryState:
        """The state. keys: False if the spool stores the keys in a table of their own."""
        return DictionaryState(
            keys=list(self.keys) if keys else [],
            nodes=list(self.nodes),
            groups=[[number, *encode(group)] for number, group in self.groups.items()],
            plans=[(number, *of) for number, of in self.plans.items()],
        )

    @classmethod
    def restore(cls, state: DictionaryState) -> EpochDictionary:
        return cls(
            list(state.keys),
            list(state.nodes),
            {number: _shared_group(decode(Group, plain)) for number, *plain in state.groups},
            {number: (_shared_group(group), _shared_plan(plan)) for number, group, plan in state.plans},
        )


def _size_bytes(define: Define) -> int:
    """Estimated size of a definition section in bytes, without its texts of queries and sensors."""
    size = sum(map(len, define.keys[1])) + sum(map(len, define.nodes[1])) + 200 * len(define.groups)
    for _, group in define.groups:
        texts = (group.source, group.where, *group.by, group.node, group.cut.text)
        size += sum(map(len, texts)) + TEXT_BYTES * len(group.by)
    for _, _, plan in define.plans:
        size += 200 + sum(len(query) + TEXT_BYTES for query, _ in plan.queries)
        size += sum(len(name) + TEXT_BYTES for name in plan.basis)
    return size


def _extended(what: str, known: list[str], more: tuple[int, tuple[str, ...]]) -> list[str]:
    first, texts = more
    if not texts:
        return known
    if first > len(known):
        raise WireError(f"{what} numbers leave a hole: {len(known)} known, {first} comes next")
    overlap = known[first : first + len(texts)]
    if tuple(overlap) != texts[: len(overlap)]:
        raise WireError(f"{what} numbers from {first} on are already assigned to other texts")
    return known + list(texts[len(overlap) :])
