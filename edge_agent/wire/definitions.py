"""Converts births and definitions to CBOR items and back. Source of the positions: schemas/frame.cddl.

`birth_item` encodes, `birth` decodes; the others are named likewise. Decoders raise WireError.
"""

from __future__ import annotations

from typing import Any

from edge_agent.algebra.frame import KINDS, LOST, MAX_COLUMNS, MAX_KEYS, Birth, Define, Plan
from edge_agent.algebra.query.group_cut import cut_from_text
from edge_agent.algebra.query.query import COARSEST, FINEST, LATE_POLICIES, Group
from edge_agent.errors import WireError
from edge_agent.wire.cbor import a_text, an_array, an_int, shown
from edge_agent.wire.fields import (
    EPOCH_LIMIT,
    ID_LIMIT,
    MAX_BIRTH_FRAMES,
    MAX_GROUPS,
    MAX_NODES,
    MAX_PLANS,
    MAX_REVISION,
    MAX_SEQ,
    NAME,
    TEXT,
    TIME_LIMIT_US,
    each,
    maybe,
    names,
)

# --- birth --------------------------------------------------------------------------------------------------------


def birth_item(birth: Birth) -> object:
    """[epoch id, journal, predecessor, version, ? [frames, held epochs, ? last seq before the flush]]; ?: optional."""
    before = list(birth.predecessor) if isinstance(birth.predecessor, tuple) else birth.predecessor
    item: list[object] = [birth.epoch_id, birth.journal, before, birth.version]
    if birth.frames > 1 or birth.held is not None or birth.flush is not None:
        flush = [] if birth.flush is None else [birth.flush]
        item.append([birth.frames, None if birth.held is None else list(birth.held), *flush])
    return item


def birth(value: object) -> Birth:
    epoch_id, journal, before, version, *more = an_array(value, "birth", 4, 5)
    frames, held, *flush = an_array(more[0], "frames and held epochs of a birth", 2, 3) if more else (1, None)
    predecessor: tuple[int, int] | str | None = LOST
    if before != LOST:
        predecessor = maybe(_predecessor, before)
    number = an_int(epoch_id, 0, ID_LIMIT, "epoch id")
    if isinstance(predecessor, tuple) and predecessor[0] == number >> 32:
        raise WireError(f"a birth names itself as the epoch before: {predecessor[0]}")
    return Birth(
        number,
        an_int(journal, 0, ID_LIMIT, "journal"),
        predecessor,
        a_text(version, "software version", NAME),
        an_int(frames, 1, MAX_BIRTH_FRAMES, "frames of a birth"),
        maybe(lambda epochs, what: each(lambda epoch: an_int(epoch, 0, EPOCH_LIMIT, what), epochs, what), held, "held"),
        an_int(flush[0], -1, MAX_SEQ, "last seq before the flush") if flush else None,
    )


def _predecessor(value: object) -> tuple[int, int]:
    epoch, last = an_array(value, "predecessor", 2, 2)
    return an_int(epoch, 0, EPOCH_LIMIT, "predecessor"), an_int(last, -1, MAX_SEQ, "predecessor's last seq")


# --- definitions --------------------------------------------------------------------------------------------------


def define_item(define: Define) -> list[list[Any]]:
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
    keys, nodes, groups, plans, queries, sensors = an_array(value, "definitions", 6, 6)
    return Define(
        _numbered(keys, "keys", MAX_KEYS, TEXT),
        _numbered(nodes, "nodes", MAX_NODES, NAME),
        each(_numbered_group, groups, "groups"),
        each(_numbered_plan, plans, "plans"),
        names(queries, "queries", TEXT),
        names(sensors, "sensors", TEXT),
    )


def _numbered(value: object, what: str, most: int, longest: int) -> tuple[int, tuple[str, ...]]:
    first, items = an_array(value, what, 2, 2)
    texts = names(items, what, longest)
    return an_int(first, 0, most - len(texts), f"first of {what}"), texts


def _numbered_group(value: object) -> tuple[int, Group]:
    number, *rest = an_array(value, "group", 6, 10)
    return an_int(number, 0, MAX_GROUPS - 1, "group"), group(rest)


def group_item(group: Group) -> list[object]:
    """[source, where, by, lateness, late, ? gap, ? max, ? node, ? form]: optional items only if they are needed."""
    fields, cut = [group.source, group.where, list(group.by), group.lateness_us, group.late], group.cut
    if group.node or cut.text:
        return [*fields, cut.gap_us, cut.max_us, group.node, cut.text]
    return [*fields, cut.gap_us, cut.max_us] if cut.gap_us else fields


def group(value: object) -> Group:
    source, where, by, lateness_us, late, *more = an_array(value, "group", 5, 9)
    if late not in LATE_POLICIES:
        raise WireError(f"late policy: wanted one of {', '.join(LATE_POLICIES)}, got {shown(late)}")
    gap_us, max_us = _gap_and_max(more[:2], 0 if len(more) > 2 else 1) if more else (0, 0)
    node, form = _node_and_form(more[2:]) if len(more) > 2 else ("", "")
    try:
        cut = cut_from_text(gap_us, max_us, form)
    except ValueError as err:
        raise WireError(f"{err}: gap {gap_us}, maximum {max_us}, form {shown(form)}") from err
    return Group(
        a_text(source, "source", NAME),
        a_text(where, "where", TEXT),
        names(by, "by"),
        an_int(lateness_us, 0, TIME_LIMIT_US, "lateness"),
        late,
        cut,
        node,
    )


def _gap_and_max(session: object, least: int) -> tuple[int, int]:
    gap_us, max_us = an_array(session, "gap and maximum duration", 2, 2)
    return an_int(gap_us, least, TIME_LIMIT_US, "gap"), an_int(max_us, 0, TIME_LIMIT_US, "maximum duration")


def _node_and_form(value: object) -> tuple[str, str]:
    node, form = an_array(value, "node and form", 2, 2)
    found = a_text(node, "node", NAME), a_text(form, "form", TEXT)
    if not any(found):
        raise WireError("group: node and form are both empty; such a group must leave them out")
    return found


def _plan_item(plan: Plan) -> list[object]:
    queries = [list(pair) for pair in plan.queries]
    return [plan.hash, plan.kind, list(plan.basis), plan.scale, plan.unit_us, queries, plan.gap_us]


def _numbered_plan(value: object) -> tuple[int, int, Plan]:
    number, group_number, digest, kind, basis, scale, unit_us, queries, gap_us = an_array(value, "plan", 9, 9)
    if type(digest) is not bytes or len(digest) != 8:
        raise WireError("plan hash: wanted 8 bytes")
    if kind not in KINDS:
        raise WireError(f"kind of plan: wanted one of {', '.join(KINDS)}, got {shown(kind)}")
    state_columns = names(basis, "basis")
    if len(set(state_columns)) != len(state_columns) or len(state_columns) > MAX_COLUMNS:
        raise WireError(f"basis: wanted at most {MAX_COLUMNS} names, none of them twice")
    return (
        an_int(number, 0, MAX_PLANS - 1, "plan"),
        an_int(group_number, 0, MAX_GROUPS - 1, "group"),
        Plan(
            digest,
            kind,
            state_columns,
            maybe(an_int, scale, FINEST, COARSEST, "scale"),
            an_int(unit_us, 1, TIME_LIMIT_US, "unit"),
            each(_revision, queries, "queries of a plan"),
            maybe(an_int, gap_us, 0, TIME_LIMIT_US, "gap"),
        ),
    )


def _revision(value: object) -> tuple[str, int]:
    query, revision = an_array(value, "query of a plan", 2, 2)
    return a_text(query, "query", NAME), an_int(revision, 0, MAX_REVISION, "revision")
