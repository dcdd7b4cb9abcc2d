"""Births, definitions, members, gap records, exceptions, registers <-> CBOR items; positions: schemas/frame.cddl."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from edge_agent.algebra.frame import (
    KINDS,
    LOST,
    MAX_KEYS,
    Birth,
    Define,
    Exception_,
    Gap,
    GroupPart,
    Leaf,
    Members,
    Plan,
    Serving,
)
from edge_agent.algebra.query import LATE_POLICIES, Group
from edge_agent.errors import WireError
from edge_agent.wire import columns
from edge_agent.wire.cbor import a_text, an_array, an_int, shown
from edge_agent.wire.sections import MAX_COLUMNS, MAX_PLANS, TIME_LIMIT_US

MAX_GROUPS: Final = 2**16
MAX_NODES: Final = 2**20  # a merger names every gateway below it
MAX_SEQ: Final = 2**62
MAX_REVISION: Final = 2**62
EPOCH_LIMIT: Final = 2**32 - 1  # frames carry the first 32 bits of an epoch's id
ID_LIMIT: Final = 2**64 - 1
NAME: Final = 256  # characters of an id, a column or a label name; ids are 64 at most
TEXT: Final = 65_536  # characters of a key, a filter or a definition
NODE_ID: Final = re.compile(r"[a-z0-9-]{1,32}")

T = TypeVar("T")


def a_time(value: object, what: str) -> int:
    """Microseconds within +-2^62, minus infinity (-2^62) included. Raises: WireError."""
    return an_int(value, -TIME_LIMIT_US, TIME_LIMIT_US, what)


def a_node(value: object, what: str) -> str:
    """A node id. Raises: WireError."""
    if type(value) is str and NODE_ID.fullmatch(value):
        return value
    raise WireError(f"{what}: wanted a node id [a-z0-9-]{{1,32}}, got {shown(value)}")


def maybe(read: Callable[..., T], value: object, *rest: Any) -> T | None:
    """`read`, or None for null."""
    return None if value is None else read(value, *rest)


def each(read: Callable[[object], T], value: object, what: str) -> tuple[T, ...]:
    """`read` over an array. Raises: WireError."""
    return tuple(read(item) for item in an_array(value, what, 0))


def _names(value: object, what: str, longest: int = NAME) -> tuple[str, ...]:
    return each(lambda item: a_text(item, what, longest), value, what)


# --- birth --------------------------------------------------------------------------------------------------------


def birth_item(birth: Birth) -> object:
    """[epoch id, journal, predecessor, version]."""
    before = list(birth.predecessor) if isinstance(birth.predecessor, tuple) else birth.predecessor
    return [birth.epoch_id, birth.journal, before, birth.version]


def birth(value: object) -> Birth:
    """The twin of `birth_item`. Raises: WireError."""
    epoch_id, journal, before, version = an_array(value, "birth", 4, 4)
    predecessor: tuple[int, int] | str | None = LOST
    if before != LOST:
        predecessor = maybe(_predecessor, before)
    return Birth(
        an_int(epoch_id, 0, ID_LIMIT, "epoch id"),
        an_int(journal, 0, ID_LIMIT, "journal"),
        predecessor,
        a_text(version, "software version", NAME),
    )


def _predecessor(value: object) -> tuple[int, int]:
    epoch, last = an_array(value, "predecessor", 2, 2)
    return an_int(epoch, 0, EPOCH_LIMIT, "predecessor"), an_int(last, -1, MAX_SEQ, "predecessor's last seq")


# --- definitions --------------------------------------------------------------------------------------------------


def define_item(define: Define) -> object:
    """[[first key, texts], [first node, texts], groups, plans, queries, sensors]."""
    return [
        [define.keys[0], list(define.keys[1])],
        [define.nodes[0], list(define.nodes[1])],
        [[number, *group_item(group)] for number, group in define.groups],
        [[number, group, *_plan_item(plan)] for number, group, plan in define.plans],
        list(define.queries),
        list(define.sensors),
    ]


def define(value: object) -> Define:
    """The twin of `define_item`. Raises: WireError."""
    keys, nodes, groups, plans, queries, sensors = an_array(value, "definitions", 6, 6)
    return Define(
        _numbered(keys, "keys", MAX_KEYS, TEXT),
        _numbered(nodes, "nodes", MAX_NODES, NAME),
        each(_numbered_group, groups, "groups"),
        each(_numbered_plan, plans, "plans"),
        _names(queries, "queries", TEXT),
        _names(sensors, "sensors", TEXT),
    )


def _numbered(value: object, what: str, most: int, longest: int) -> tuple[int, tuple[str, ...]]:
    first, items = an_array(value, what, 2, 2)
    texts = _names(items, what, longest)
    return an_int(first, 0, most - len(texts), f"first of {what}"), texts


def _numbered_group(value: object) -> tuple[int, Group]:
    number, *rest = an_array(value, "group", 6, 6)
    return an_int(number, 0, MAX_GROUPS - 1, "group"), group(rest)


def group_item(group: Group) -> list[object]:
    """[source, where, by, lateness, late]."""
    return [group.source, group.where, list(group.by), group.lateness_us, group.late]


def group(value: object) -> Group:
    """The twin of `group_item`. Raises: WireError."""
    source, where, by, lateness_us, late = an_array(value, "group", 5, 5)
    if late not in LATE_POLICIES:
        raise WireError(f"late policy: wanted one of {', '.join(LATE_POLICIES)}, got {shown(late)}")
    return Group(
        a_text(source, "source", NAME),
        a_text(where, "where", TEXT),
        _names(by, "by"),
        an_int(lateness_us, 0, TIME_LIMIT_US, "lateness"),
        late,
    )


def _plan_item(plan: Plan) -> list[object]:
    queries = [list(pair) for pair in plan.queries]
    return [plan.hash, plan.kind, list(plan.basis), plan.scale, plan.unit_us, queries, plan.gap_us]


def _numbered_plan(value: object) -> tuple[int, int, Plan]:
    number, group_number, digest, kind, basis, scale, unit_us, queries, gap_us = an_array(value, "plan", 9, 9)
    if type(digest) is not bytes or len(digest) != 8:
        raise WireError("plan hash: wanted 8 bytes")
    if kind not in KINDS:
        raise WireError(f"kind of plan: wanted one of {', '.join(KINDS)}, got {shown(kind)}")
    names = _names(basis, "basis")
    if len(set(names)) != len(names) or len(names) > MAX_COLUMNS:
        raise WireError(f"basis: wanted at most {MAX_COLUMNS} names, each once")
    return (
        an_int(number, 0, MAX_PLANS - 1, "plan"),
        an_int(group_number, 0, MAX_GROUPS - 1, "group"),
        Plan(
            digest,
            kind,
            names,
            maybe(an_int, scale, -30, 30, "scale"),
            an_int(unit_us, 1, TIME_LIMIT_US, "unit"),
            each(_revision, queries, "queries of a plan"),
            maybe(an_int, gap_us, 0, TIME_LIMIT_US, "gap"),
        ),
    )


def _revision(value: object) -> tuple[str, int]:
    query, revision = an_array(value, "query of a plan", 2, 2)
    return a_text(query, "query", NAME), an_int(revision, 0, MAX_REVISION, "revision")


# --- members ------------------------------------------------------------------------------------------------------


def members_item(members: Sequence[Members]) -> object:
    """[[group, leaves, dropped, serving], ...]."""
    return [
        [
            m.group,
            [[leaf.node, leaf.epoch, leaf.before_move] for leaf in m.leaves],
            list(m.dropped),
            [[s.query, s.revision, s.start_from_us, s.start_until_us, s.end_until_us] for s in m.serving],
        ]
        for m in members
    ]


def members(value: object) -> tuple[Members, ...]:
    """The twin of `members_item`. Raises: WireError."""
    return each(_members, value, "members")


def _members(value: object) -> Members:
    number, leaves, dropped, serving = an_array(value, "members of a group", 4, 4)
    return Members(
        an_int(number, 0, MAX_GROUPS - 1, "group"),
        each(_leaf, leaves, "leaves"),
        each(lambda node: a_node(node, "dropped leaf"), dropped, "dropped leaves"),
        each(_serving, serving, "serving"),
    )


def _leaf(value: object) -> Leaf:
    node, epoch, before = an_array(value, "leaf", 3, 3)
    return Leaf(
        a_node(node, "leaf"),
        an_int(epoch, 0, EPOCH_LIMIT, "epoch of a leaf"),
        maybe(an_int, before, 0, EPOCH_LIMIT, "epoch before the move"),
    )


def _serving(value: object) -> Serving:
    query, revision, start_from, start_until, end_until = an_array(value, "serving", 5, 5)
    return Serving(
        a_text(query, "query", NAME),
        an_int(revision, 0, MAX_REVISION, "revision"),
        maybe(a_time, start_from, "start of serving"),
        maybe(a_time, start_until, "end of serving"),
        maybe(a_time, end_until, "last end served"),
    )


# --- gap records --------------------------------------------------------------------------------------------------


def gaps_item(gaps: Sequence[Gap]) -> object:
    """[[groups, start, end, readings, nodes, reason, run, detail], ...]."""
    return [
        [
            [group_item(g) for g in gap.groups],
            gap.start_us,
            gap.end_us,
            gap.readings,
            list(gap.nodes),
            gap.reason,
            gap.run,
            gap.detail,
        ]
        for gap in gaps
    ]


def gaps(value: object) -> tuple[Gap, ...]:
    """The twin of `gaps_item`. Raises: WireError."""
    return each(_gap, value, "gap records")


def _gap(value: object) -> Gap:
    groups, start, end, readings, nodes, reason, run, detail = an_array(value, "gap record", 8, 8)
    start_us, end_us = a_time(start, "start of a gap"), a_time(end, "end of a gap")
    if end_us < start_us:
        raise WireError(f"a gap record ends at {end_us}, before it begins at {start_us}")
    return Gap(
        each(group, groups, "groups of a gap"),
        start_us,
        end_us,
        an_int(readings, -1, MAX_SEQ, "readings lost"),
        each(lambda node: a_node(node, "node of a gap"), nodes, "nodes of a gap"),
        a_text(reason, "reason of a gap", NAME),
        an_int(run, 0, MAX_SEQ, "frames replaced"),
        a_text(detail, "detail of a gap", TEXT),
    )


# --- exceptions and registers of a group ---------------------------------------------------------------------------


def exceptions_item(parts: Sequence[GroupPart]) -> object:
    """[[group, [node, frontier, bound], ...], ...] of the parts that state their exceptions anew."""
    return [
        [part.group, *([e.node, e.frontier_us, e.bound_us] for e in part.exceptions)]
        for part in parts
        if part.exceptions is not None
    ]


def exceptions(value: object) -> dict[int, tuple[Exception_, ...]]:
    """The twin of `exceptions_item`, by group number. Raises: WireError."""
    return _by_group(value, "exceptions", lambda items: tuple(_exception(item) for item in items))


def _exception(value: object) -> Exception_:
    node, frontier, bound = an_array(value, "exception", 3, 3)
    return Exception_(a_node(node, "exception"), a_time(frontier, "its frontier"), a_time(bound, "its bound"))


def registers_item(parts: Sequence[GroupPart]) -> object:
    """[[group, set, keys, starts, cleared, keys], ...]: how many are set, then how many cleared; null for no column."""
    items: list[object] = []
    for part in parts:
        if part.registers:
            held = [(key, start) for key, start in part.registers if start is not None]
            cleared = [key for key, start in part.registers if start is None]
            keys, starts = _ints([key for key, _ in held]), _ints([start for _, start in held])
            items.append([part.group, len(held), keys, starts, len(cleared), _ints(cleared)])
    return items


def _ints(values: list[int]) -> object:
    return columns.encode_ints(np.array(values, np.int64)) if values else None


def registers(value: object) -> dict[int, tuple[tuple[int, int | None], ...]]:
    """The twin of `registers_item`, by group number. Raises: WireError."""
    return _by_group(value, "registers", _registers)


def _registers(items: list[Any]) -> tuple[tuple[int, int | None], ...]:
    n_set, keys, starts, n_cleared, cleared = an_array(items, "registers of a group", 5, 5)
    n_set = an_int(n_set, 0, MAX_KEYS, "registers set")
    n_cleared = an_int(n_cleared, 0, MAX_KEYS, "registers cleared")
    out: list[tuple[int, int | None]] = [
        *zip(_back(keys, n_set, "key of a register"), _back(starts, n_set, "start of a register"), strict=True),
        *((key, None) for key in _back(cleared, n_cleared, "key of a cleared register")),
    ]
    for key, start in out:
        an_int(key, 0, MAX_KEYS - 1, "key of a register")
        maybe(a_time, start, "start of a register")
    return tuple(out)


def _back(item: object, n: int, what: str) -> list[int]:
    if n == 0:
        if item is not None:
            raise WireError(f"{what}: wanted null for none")
        return []
    values: list[int] = columns.decode_ints(item, n, what).tolist()
    return values


def _by_group(value: object, what: str, read: Callable[[list[Any]], T]) -> dict[int, T]:
    out: dict[int, T] = {}
    for item in an_array(value, what, 1):
        number, *rest = an_array(item, what, 1)
        number = an_int(number, 0, MAX_GROUPS - 1, "group")
        if number in out:
            raise WireError(f"{what} of group {number} stand twice")
        out[number] = read(rest)
    return out
