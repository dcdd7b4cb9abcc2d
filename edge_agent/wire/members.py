"""Converts members, gap records, exceptions and registers to CBOR items and back. Source: schemas/frame.cddl.

`members_item` encodes, `members` decodes; the others are named likewise. Decoders raise WireError. Exceptions, their
changes and registers are decoded to dictionaries by group number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from edge_agent.algebra.frame import MAX_KEYS, ExcludedLeaf, Gap, GroupPart, Leaf, Members, Serving
from edge_agent.errors import WireError
from edge_agent.wire.cbor import a_text, an_array, an_int
from edge_agent.wire.columns import numeric
from edge_agent.wire.definitions import group, group_item
from edge_agent.wire.fields import (
    EPOCH_LIMIT,
    MAX_GROUPS,
    MAX_REVISION,
    MAX_SEQ,
    NAME,
    TEXT,
    a_node,
    a_time,
    each,
    maybe,
)

MOST_REGISTERS: Final = MAX_KEYS  # of a frame, in all groups; nodes put at most 11 000 into one

T = TypeVar("T")


# --- members ------------------------------------------------------------------------------------------------------


def members_item(members: Sequence[Members]) -> list[list[Any]]:
    """[[group, leaves, dropped, serving], ...]."""
    return [
        [
            m.group,
            [[leaf.node, leaf.epoch, leaf.before_move] for leaf in m.leaves],
            list(m.dropped),
            [[s.query, s.revision, s.start_from_us, s.start_until_us, s.end_until_us, s.node] for s in m.serving],
        ]
        for m in members
    ]


def members(value: object) -> tuple[Members, ...]:
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
    query, revision, start_from, start_until, end_until, node = an_array(value, "serving", 6, 6)
    return Serving(
        a_text(query, "query", NAME),
        an_int(revision, 0, MAX_REVISION, "revision"),
        maybe(a_time, start_from, "start of serving"),
        maybe(a_time, start_until, "end of serving"),
        maybe(a_time, end_until, "last end served"),
        a_text(node, "node", NAME),
    )


# --- gap records --------------------------------------------------------------------------------------------------


def gaps_item(gaps: Sequence[Gap]) -> list[list[Any]]:
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
    return each(_gap, value, "gap records")


def _gap(value: object) -> Gap:
    groups, start, end, readings, nodes, reason, run, detail = an_array(value, "gap record", 8, 8)
    start_us, end_us = a_time(start, "start of a gap"), a_time(end, "end of a gap")
    if end_us < start_us:
        raise WireError(f"a gap record ends at {end_us}, before its start {start_us}")
    return Gap(
        each(group, groups, "groups of a gap"),
        start_us,
        end_us,
        an_int(readings, -1, MAX_SEQ, "readings lost"),
        each(lambda node: a_node(node, "node of a gap"), nodes, "nodes of a gap"),
        a_text(reason, "reason of a gap", TEXT),
        an_int(run, 0, MAX_SEQ, "frames replaced"),
        a_text(detail, "detail of a gap", TEXT),
    )


# --- exceptions and registers of a group ---------------------------------------------------------------------------


def exceptions_item(parts: Sequence[GroupPart]) -> object:
    """[[group, [node, frontier, bound], ...], ...] for groups whose whole list of exceptions is sent."""
    return [
        [part.group, *([e.node, e.frontier_us, e.bound_us] for e in part.exceptions)]
        for part in parts
        if part.exceptions is not None
    ]


def exceptions(value: object) -> dict[int, tuple[ExcludedLeaf, ...]]:
    return _by_group(value, "exceptions", lambda items: tuple(_exception(item) for item in items))


Changes = tuple[tuple[ExcludedLeaf, ...], tuple[str, ...]]  # exceptions added or replaced, leaves removed from the list


def exception_changes_item(parts: Sequence[GroupPart]) -> object:
    """[[group, [[node, frontier, bound], ...], [node, ...]], ...] for groups whose exceptions are sent as changes."""
    return [
        [part.group, [[e.node, e.frontier_us, e.bound_us] for e in part.more], list(part.ended)]
        for part in parts
        if part.more or part.ended
    ]


def exception_changes(value: object) -> dict[int, Changes]:
    return _by_group(value, "changed exceptions", _exception_changes)


def _exception_changes(items: list[Any]) -> Changes:
    more, ended = an_array(items, "changed exceptions of a group", 2, 2)
    names = each(lambda node: a_node(node, "leaf that is no exception"), ended, "ended exceptions")
    return each(_exception, more, "exceptions"), names


def _exception(value: object) -> ExcludedLeaf:
    node, frontier, bound = an_array(value, "exception", 3, 3)
    return ExcludedLeaf(a_node(node, "exception"), a_time(frontier, "its frontier"), a_time(bound, "its bound"))


def registers_item(parts: Sequence[GroupPart]) -> object:
    """[[group, number set, their keys, their starts, number cleared, their keys], ...]; null for an empty column."""
    items: list[object] = []
    for part in parts:
        if part.registers:
            present = [(key, start) for key, start in part.registers if start is not None]
            cleared = [key for key, start in part.registers if start is None]
            keys, starts = _encode_ints([key for key, _ in present]), _encode_ints([start for _, start in present])
            items.append([part.group, len(present), keys, starts, len(cleared), _encode_ints(cleared)])
    return items


def _encode_ints(values: list[int]) -> object:
    return numeric.encode_ints(np.array(values, np.int64)) if values else None


def registers(value: object) -> dict[int, tuple[tuple[int, int | None], ...]]:
    found = 0

    def read(items: list[Any]) -> tuple[tuple[int, int | None], ...]:
        nonlocal found
        n_set, keys, starts, n_cleared, cleared = an_array(items, "registers of a group", 5, 5)
        n_set = an_int(n_set, 0, MOST_REGISTERS, "registers set")
        n_cleared = an_int(n_cleared, 0, MOST_REGISTERS, "registers cleared")
        found += n_set + n_cleared  # counted before they are made: a column of equal numbers takes a few bytes
        if found > MOST_REGISTERS:
            raise WireError(f"more than {MOST_REGISTERS} registers")
        return _registers(n_set, keys, starts, n_cleared, cleared)

    return _by_group(value, "registers", read)


def _registers(
    n_set: int, keys: object, starts: object, n_cleared: int, cleared: object
) -> tuple[tuple[int, int | None], ...]:
    out: list[tuple[int, int | None]] = [
        *zip(
            _decode_ints(keys, n_set, "key of a register"),
            _decode_ints(starts, n_set, "start of a register"),
            strict=True,
        ),
        *((key, None) for key in _decode_ints(cleared, n_cleared, "key of a cleared register")),
    ]
    for key, start in out:
        an_int(key, 0, MAX_KEYS - 1, "key of a register")
        maybe(a_time, start, "start of a register")
    return tuple(out)


def _decode_ints(item: object, n: int, what: str) -> list[int]:
    if n == 0:
        if item is not None:
            raise WireError(f"{what}: wanted null for an empty column")
        return []
    values: list[int] = numeric.decode_ints(item, n, what).tolist()
    return values


def _by_group(value: object, what: str, read: Callable[[list[Any]], T]) -> dict[int, T]:
    out: dict[int, T] = {}
    for item in an_array(value, what, 1):
        number, *rest = an_array(item, what, 1)
        number = an_int(number, 0, MAX_GROUPS - 1, "group")
        if number in out:
            raise WireError(f"{what} of group {number} occur twice")
        out[number] = read(rest)
    return out
