"""Encodes the state of the decision as bytes for ops.batches, and decodes it after a restart."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import astuple, fields, replace
from typing import Any, Final

from edge_agent.algebra.frame import MAX_HORIZON_US, NEVER_US, Extent, Frame, GroupPart, Plan, Section
from edge_agent.algebra.partials.partial import NOTHING
from edge_agent.algebra.query.key import EpochKey, QueryKey, QueryPlace
from edge_agent.algebra.query.query import Group
from edge_agent.errors import WireError
from edge_agent.machines.checkpoint.codec import decode, encode
from edge_agent.machines.downlink.epochs.counting import Counting, Repeats
from edge_agent.machines.events import BadFrame
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.punctuation_queries import PunctuationQueries
from edge_agent.root.decision.root_state import LateRows, RootLimits, RootState
from edge_agent.root.decision.session_queries import SessionQueries
from edge_agent.root.decision.work import TooLate, identity
from edge_agent.wire import frames, snapshot
from edge_agent.wire.heads import Part, Parts, bare

VERSION: Final = 1
_PART_FIELDS: Final = 9  # fields of a Part before its body
_TOO_LATE_FIELDS: Final = len(fields(TooLate))


def dumps(decider: Decider, state: RootState, parts: Parts) -> bytes:
    """Encode everything that the next decision needs."""
    plain = {
        "version": VERSION,
        "decider": decider.snapshot(_pack),
        "journal": decider.parent.inbox.journal,
        "ledger": _state(state),
        "parts": [[*key, [_bare_part(part) for part in found]] for key, found in parts.items()],
    }
    return zlib.compress(snapshot.dumps(plain), 1)


def loads(
    content: bytes, limits: RootLimits, grace_us: int, members: Iterable[str] = ()
) -> tuple[Decider, RootState, Parts]:
    """The inverse of `dumps`. members: see JobSettings. Raises: WireError for another version, or damage."""
    plain = unpacked(content)
    if plain["version"] != VERSION:
        raise WireError(
            f"ops.batches has a state of version {plain['version']}; this root reads only version {VERSION}"
        )
    decider = Decider(plain["journal"], grace_us, members, limits.overlap)
    decider.restore(plain["decider"], _unpack)
    parts = {(n, e, s): tuple(_part(part) for part in found) for n, e, s, found in plain["parts"]}
    return decider, _restored(plain["ledger"], limits), parts


def horizon_us(content: bytes) -> int:
    """The correction horizon of the root that wrote a state; of an older version, which does not say it, the longest.

    content: from `dumps`.
    """
    return int(unpacked(content)["ledger"].get("horizon", MAX_HORIZON_US))


def unpacked(content: bytes) -> dict[str, Any]:
    """The values of a row of ops.batches. Raises: WireError if it is damaged."""
    try:
        plain: dict[str, Any] = snapshot.loads(zlib.decompress(content))
    except zlib.error as err:
        raise WireError(f"ops.batches has a row that is damaged: {err}") from err
    return plain


def _bare_part(part: Part) -> list[object]:
    """A part as plain values, without its body, which is in bronze.messages."""
    found = list(astuple(part))
    return [*found[:_PART_FIELDS], *found[_PART_FIELDS + 1 :]]


def _part(plain: list[Any]) -> Part:
    values: list[Any] = [*plain[:_PART_FIELDS], b"", *plain[_PART_FIELDS:]]
    return Part(*values)


def _pack(message: Frame | BadFrame) -> object:
    """A waiting frame as plain values, without its rows, which are in bronze.messages."""
    if isinstance(message, BadFrame):
        return [message.epoch, message.seq, message.reason, message.run, message.since_us]
    heads = [[part.group, _heads(part.sections), _heads(part.late)] for part in message.groups]
    return [frames.encode(bare(message)), heads]


def _heads(sections: tuple[Section, ...]) -> list[object]:
    return [[section.plan, None if section.extent is None else list(astuple(section.extent))] for section in sections]


def _unpack(packed: Any) -> Frame | BadFrame:
    if len(packed) >= 3:
        epoch, seq, reason, *run = packed  # a state of an older root has no run or time
        return BadFrame(epoch, seq, reason, b"", *run)
    payload, heads = packed
    frame = frames.decode(payload)
    assert isinstance(frame, Frame)
    sections = {group: (on_time, late) for group, on_time, late in heads}
    return replace(frame, groups=tuple(_with_sections(part, *sections[part.group]) for part in frame.groups))


def _with_sections(part: GroupPart, on_time: list[Any], late: list[Any]) -> GroupPart:
    return replace(part, sections=_sections(on_time), late=_sections(late))


def _sections(heads: list[Any]) -> tuple[Section, ...]:
    return tuple(Section(plan, NOTHING, None if extent is None else Extent(*extent)) for plan, extent in heads)


def _state(state: RootState) -> dict[str, object]:
    return {
        "horizon": state.limits.horizon_us,
        "number": state.number,
        "decided": state.decided_us,
        "queries": [[*key, text] for key, text in state.queries.items()],
        "scales": [[*key, sorted(scales, key=repr)] for key, scales in state.scales.items()],
        "plans": encode(list(state.plans.values())),
        "ends": [state.ends[digest] for digest in state.plans],
        "closed": [[*key, us] for key, us in state.closed.items()],
        "revised": [[*key, us] for key, us in state.revised.items()],
        "pending": [[*key, [list(r) for r in ranges]] for key, ranges in state.pending.items()],
        "applied": [[*line, [list(r) for r in ranges]] for line, ranges in state.applied.items()],
        "extent": [[*line, low, high] for line, (low, high) in state.extent.items()],
        "owners": [list(owner) for owner in state.owners],
        "covers": [*state.covers_known],
        "sessions": [
            [*key, track.snapshot(state.sessions.numbers.keys)] for key, track in state.sessions.tracks.items()
        ],
        "markers": state.markers.snapshot(),
        "passed": [[*key, leaves] for key, leaves in state.passed.items()],
        "met": [[*place, us] for place, us in state.met.items()],
        "readings": state.readings,
        "floors": encode(list(state.floors.items())),
        "begun": encode(list(state.begun.items())),
        "repeats": [
            [*line, plan, *each.counting, each.below_seq]
            for line, plans in state.repeats.items()
            for plan, each in plans.items()
        ],
        "too_late": [
            [digest, *astuple(found), late]
            for rows in state.too_late.values()
            for (_seq, digest, late), found in rows.items()
        ],
    }


def _restored(plain: Mapping[str, Any], limits: RootLimits) -> RootState:
    plans = decode(list[tuple[Group, Plan]], plain["plans"])
    latest_us = max((high for *_, high in plain["extent"]), default=NEVER_US)
    ends = plain.get("ends", [latest_us] * len(plans))  # a state of an older root has none
    return RootState(
        limits,
        plain["number"],
        plain["decided"],
        {QueryKey(query, revision): text for query, revision, text in plain["queries"]},
        {QueryKey(query, revision): set(scales) for query, revision, scales in plain["scales"]},
        {identity(group, plan): (group, plan) for group, plan in plans},
        {QueryPlace(query, revision, node): us for query, revision, node, us in plain["closed"]},
        {QueryPlace(query, revision, node): us for query, revision, node, us in plain["revised"]},
        {QueryPlace(*place): [(a, b) for a, b in ranges] for *place, ranges in plain["pending"]},
        {EpochKey(node, epoch): [(a, b) for a, b in ranges] for node, epoch, ranges in plain["applied"]},
        {EpochKey(node, epoch): (low, high) for node, epoch, low, high in plain["extent"]},
        [(first, owner) for first, owner in plain["owners"]],
        dict.fromkeys(plain["covers"]),
        sessions=SessionQueries.restore(plain["sessions"]),
        markers=PunctuationQueries.restore(plain["markers"]),
        met={(query, node): us for query, node, us in plain["met"]},
        readings=None if plain.get("readings") is None else dict(plain["readings"]),
        repeats=_repeats(plain.get("repeats", ())),  # a state of an older root has none
        floors=dict(decode(list[tuple[Group, int]], plain["floors"])) if "floors" in plain else {},  # as above
        too_late=_too_late(plain.get("too_late", ())),  # as above
        begun=dict(decode(list[tuple[Group, int]], plain["begun"])) if "begun" in plain else {},
        passed={QueryPlace(*place): dict(leaves) for *place, leaves in plain.get("passed", ())},  # likewise
        ends={identity(*of): us for of, us in zip(plans, ends, strict=True)},
    )


def _repeats(plain: Iterable[Any]) -> dict[EpochKey, dict[int, Repeats]]:
    out: dict[EpochKey, dict[int, Repeats]] = {}
    for node, epoch, plan, from_us, upto_us, below_seq in plain:
        out.setdefault(EpochKey(node, epoch), {})[plan] = Repeats(Counting(from_us, upto_us), below_seq)
    return out


def _too_late(plain: Iterable[Any]) -> dict[EpochKey, dict[LateRows, TooLate]]:
    out: dict[EpochKey, dict[LateRows, TooLate]] = {}
    for digest, *values in plain:
        found = TooLate(*values[:_TOO_LATE_FIELDS])
        rows = out.setdefault(EpochKey(found.node, found.epoch), {})
        for late in values[_TOO_LATE_FIELDS:] or (False, True):  # a state of an older root has one bound for both
            rows[found.seq, bytes(digest), late] = found
    return out
