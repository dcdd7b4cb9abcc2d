"""Makes the gap records that replace frames (docs/protocol.md 3.5, 3.6).

The record for a run of frames that a full spool drops keeps what these stated besides their rows: definitions, members,
the last frontier and exceptions of each group, and the last register of each key with a piece or a register in them.
Their rows are replaced by a time range and a number of readings. The gap for a single frame that is given up (`gap_of`)
has only that range and number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from edge_agent.algebra.frame import DAMAGED, NEVER_US, Define, ExcludedLeaf, Frame, Gap, GroupPart, Members, Section
from edge_agent.algebra.gap_scope import IN_PLACE, POISON, QUOTA, has_times
from edge_agent.algebra.query.query import Group
from edge_agent.machines.uplink.encoding import promises, size_bounds
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder

MOST_FRAMES: Final = 500  # most frames of one run, because each is read and decoded while the node waits
MOST_BYTES: Final = 32_000  # limit of the estimated size of a record without exceptions; far below the frame limit
MOST_LISTED: Final = 64_000  # limit of the exceptions in a record: the last list of each group, and its changes since
PART_BYTES, REGISTER_BYTES = 32, 14  # of a group's part or members without their content; of a register


def may_go(frame: Frame) -> bool:
    """Whether a gap record may replace the frame: births and flushes count whole or not at all (1.2, 1.3)."""
    return frame.birth is None and frame.flush is None and frame.leave is None


def size_bytes(frame: Frame) -> int:
    """Estimated size of the part of a frame that its record keeps, without exceptions."""
    define = frame.define or Define()
    texts = (*define.keys[1], *define.nodes[1], *define.queries, *define.sensors)
    registers = sum(len(part.registers) for part in frame.groups)
    keys = sum(len(section.partials) for part in frame.groups for section in (*part.sections, *part.late))
    return (
        sum(len(text.encode()) + 5 for text in texts)
        + sum(size_bounds.of_plan(plan) for _, _, plan in define.plans)
        + sum(size_bounds.of_group(group) for _, group in define.groups)
        + sum(map(_members_bytes, frame.members))
        + PART_BYTES * len(frame.groups)
        + REGISTER_BYTES * (registers + keys)
        + sum(map(promises.gap_bytes, frame.gaps))
    )


def _members_bytes(of: Members) -> int:
    leaves = sum(size_bounds.of_leaf(leaf.node, excepted=False) for leaf in of.leaves)
    return PART_BYTES + leaves + size_bounds.of_texts(of.dropped) + sum(map(size_bounds.of_serving, of.serving))


def _listed(frame: Frame, known: Mapping[int, int]) -> dict[int, int]:
    """Group number -> size of the exceptions that a record keeps. known: the sizes before `frame` is added."""
    out = dict(known)
    for part in frame.groups:
        if part.exceptions is not None:
            out[part.group] = promises.exception_bytes(part.exceptions)
        more = promises.exception_bytes(part.more) + sum(len(name) + 3 for name in part.ended)
        if more:
            out[part.group] = out.get(part.group, 0) + more
    return out


def covers(frame: Frame) -> int:
    """How many frames a frame replaces: more than one if it is a gap record for a run; else 1, itself."""
    return max([1, *(gap.run for gap in frame.gaps)])


def oldest_run(keys: Iterable[tuple[int, int]], read: Callable[[tuple[int, int]], Frame], count: int) -> list[Frame]:
    """The first run of consecutive frames, about `count`, that one record may replace; [] if there is none.

    keys: (epoch, seq) of frames never published, oldest first. read: returns a frame. A run of a single frame that is a
    gap record already does not count, because replacing it gains nothing.
    """
    run: list[Frame] = []
    total_bytes, next_key, next_node, listed = 0, -1, -1, dict[int, int]()
    for epoch, seq in keys:
        frame = read((epoch, seq))
        define = frame.define or Define()
        goes_on = (
            may_go(frame)
            and bool(run)
            and (epoch, seq) == (run[0].epoch, run[-1].seq + covers(run[-1]))
            and _follows(define.keys, next_key)  # a record defines consecutive numbers only
            and _follows(define.nodes, next_node)
            and total_bytes + size_bytes(frame) <= MOST_BYTES
            and sum(_listed(frame, listed).values()) <= MOST_LISTED
        )
        if not goes_on:
            if _gains(run):
                break
            run, total_bytes, next_key, next_node, listed = [], 0, -1, -1, {}
        if may_go(frame):
            run.append(frame)
            total_bytes += size_bytes(frame)
            listed = _listed(frame, listed)
            next_key, next_node = _next(define.keys, next_key), _next(define.nodes, next_node)
        if len(run) > min(count, MOST_FRAMES):
            break
    return run if _gains(run) else []


def _follows(texts: tuple[int, tuple[str, ...]], number: int) -> bool:
    """Whether these definitions (first number, texts) go on from a number; -1: there are none before them."""
    return not texts[1] or number in (-1, texts[0])


def _next(texts: tuple[int, tuple[str, ...]], number: int) -> int:
    return texts[0] + len(texts[1]) if texts[1] else number


def _gains(run: Sequence[Frame]) -> bool:
    """Whether a record for these frames frees any space."""
    return len(run) > 1 or (len(run) == 1 and not any(gap.run for gap in run[0].gaps))


@dataclass(slots=True)
class _Loss:
    """The time range and number of readings of dropped rows, on time or late. readings: -1: not known."""

    start_us: int
    end_us: int
    readings: int

    def add(self, start_us: int, end_us: int, readings: int) -> None:
        self.start_us, self.end_us = min(self.start_us, start_us), max(self.end_us, end_us)
        self.readings = -1 if min(self.readings, readings) < 0 else self.readings + readings


@dataclass(slots=True)
class _Part:
    """The statements of dropped frames about one group. last: the last frontier and list of exceptions."""

    last: GroupPart
    registers: dict[int, int | None] = field(default_factory=dict)
    changes: dict[str, ExcludedLeaf | None] = field(default_factory=dict)  # of exceptions since that list; None: ended

    def stated(self) -> GroupPart:
        """All statements as one part of a frame."""
        changes = self.changes.items()
        return replace(
            self.last,
            registers=tuple(sorted(self.registers.items())),
            more=tuple(each for _, each in changes if each is not None),
            ended=tuple(name for name, each in changes if each is None),
        )


def defining(record: Frame, define: Define | None, most_bytes: int) -> Frame:
    """The record with all numbers of its epoch, if they are known and fit. define: without definition texts."""
    if define is None:
        return record
    own = record.define or Define()
    whole = replace(record, define=replace(define, queries=own.queries, sensors=own.sensors))
    return whole if _whole_bytes(whole) <= most_bytes else record


def fitting(record: Frame, most_bytes: int) -> Frame:
    """The record, with its losses for all its groups together, or for all groups of the node, if else it is too large.

    A frame is never split once it has its number (2.1), so what has no room in it is stated more widely.
    """
    if _whole_bytes(record) <= most_bytes:
        return record
    whole = [gap for gap in record.gaps if gap.reason not in IN_PLACE or gap.nodes]
    wide = dict[tuple[str, bool], Gap]()
    for gap in record.gaps:
        if gap.reason in IN_PLACE and not gap.nodes:
            of = gap.reason, gap.end_us > gap.start_us
            wide[of] = _joined(wide[of], gap) if of in wide else gap
    named = replace(record, gaps=(*wide.values(), *whole))
    if _whole_bytes(named) <= most_bytes:
        return named
    return replace(named, gaps=(*(replace(gap, groups=()) for gap in wide.values()), *whole))


def _joined(one: Gap, other: Gap) -> Gap:
    return replace(
        one,
        groups=tuple(dict.fromkeys((*one.groups, *other.groups))),
        start_us=min(one.start_us, other.start_us),
        end_us=max(one.end_us, other.end_us),
        readings=-1 if min(one.readings, other.readings) < 0 else one.readings + other.readings,
        run=max(one.run, other.run),
    )


def _whole_bytes(record: Frame) -> int:
    return size_bytes(record) + sum(_listed(record, {}).values())


def record_of(frames: Sequence[Frame], groups: Mapping[int, Group] | None, all_groups: Collection[Group]) -> Frame:
    """The gap record for consecutive frames of an epoch that `may_go` allows, with the seq of the first.

    groups: by their numbers in that epoch; None: no longer known, so the loss is declared for all_groups.
    """
    parts: dict[int, _Part] = {}
    losses: dict[tuple[tuple[Group, ...], bool], _Loss] = {}
    kept: list[Gap] = []
    for frame in frames:
        for part in frame.groups:
            _note_statements(parts, part, groups)
            named = tuple(all_groups) if groups is None or part.group not in groups else (groups[part.group],)
            for late, sections in ((False, part.sections), (True, part.late)):
                for section in sections:
                    _note_loss(losses, (named, late), section)
        for gap in frame.gaps:
            if gap.reason == QUOTA and has_times(gap):
                _add(losses, (gap.groups, False), gap.start_us, gap.end_us, gap.readings)
            elif gap.reason != QUOTA and not (gap.readings < 0 and replace(gap, run=0) in kept):
                kept.append(replace(gap, run=0))  # of damaged frames each names all groups
    run = sum(map(covers, frames))
    lost = [
        Gap(of, loss.start_us, loss.end_us, loss.readings, (), QUOTA, 0, "") for (of, _), loss in losses.items()
    ] or [Gap((), 0, 0, 0, (), QUOTA, 0, "")]
    return Frame(
        frames[0].epoch,
        frames[0].seq,
        define=_defined(frame.define for frame in frames if frame.define is not None),
        members=tuple(member for frame in frames for member in frame.members),
        groups=tuple(part.stated() for part in parts.values()),
        gaps=(replace(lost[0], run=run), *lost[1:], *kept),
    )


def _note_statements(parts: dict[int, _Part], part: GroupPart, groups: Mapping[int, Group] | None) -> None:
    known = parts.setdefault(part.group, _Part(GroupPart(part.group)))
    frontier_us = known.last.frontier_us if part.frontier_us is None else part.frontier_us
    exceptions, known.changes = (
        (known.last.exceptions, known.changes) if part.exceptions is None else (part.exceptions, {})
    )
    known.changes.update({each.node: each for each in part.more} | dict.fromkeys(part.ended))
    known.last = GroupPart(part.group, frontier_us, exceptions=exceptions)
    if groups is not None and part.group in groups and groups[part.group].cut.gap_us:
        for section in (*part.sections, *part.late):  # a piece clears the register of its key (5.2)
            known.registers.update(dict.fromkeys(section.pieces()[0].tolist()))
    known.registers.update(part.registers)


def _note_loss(
    losses: dict[tuple[tuple[Group, ...], bool], _Loss], of: tuple[tuple[Group, ...], bool], rows: Section
) -> None:
    partials = rows.partials
    if len(partials):
        _add(losses, of, int(partials.start.min()), int(partials.end.max()), rows.readings)


def _add(
    losses: dict[tuple[tuple[Group, ...], bool], _Loss],
    of: tuple[tuple[Group, ...], bool],
    start_us: int,
    end_us: int,
    readings: int,
) -> None:
    known = losses.get(of)
    if known is None:
        losses[of] = _Loss(start_us, end_us, readings)
    else:
        known.add(start_us, end_us, readings)


def _defined(sections: Iterable[Define]) -> Define | None:
    found = list(sections)
    if not found:
        return None
    keys = [define.keys for define in found if define.keys[1]]
    nodes = [define.nodes for define in found if define.nodes[1]]
    return Define(
        (keys[0][0] if keys else 0, tuple(text for _, texts in keys for text in texts)),
        (nodes[0][0] if nodes else 0, tuple(text for _, texts in nodes for text in texts)),
        tuple(group for define in found for group in define.groups),
        tuple(plan for define in found for plan in define.plans),
        tuple(text for define in found for text in define.queries),
        tuple(text for define in found for text in define.sensors),
    )


def promises_of(frame: Frame) -> tuple[GroupPart, ...]:
    """The parts of a frame without their rows, but with frontiers, exceptions and registers."""
    return tuple(replace(part, sections=(), late=()) for part in frame.groups)


def in_place_of_damaged(at: Frame, encoder: EpochEncoder, known: EpochEncoder | None, late: Iterable[Gap]) -> Frame:
    """The gap record for a damaged frame (3.6): a loss of all groups. at: the frame with only its birth, if it had one.

    encoder: of the present epoch. known: of the frame's epoch, if the record is to state its numbers. late: records of
    its late rows.
    """
    stated = [] if known is None else known.definitions(at.epoch, at.seq)
    gap = Gap(tuple(encoder.groups), 0, 0, -1, (), DAMAGED, 1, "sha256")
    return replace(at, define=stated[0].define if len(stated) == 1 else None, gaps=(gap, *late))


def in_place_of_refused(frame: Frame, encoder: EpochEncoder, *, present: bool) -> Frame:
    """The gap record for a frame that the parent never receipted (3.6); it keeps everything but the frame's rows.

    present: whether the frame is of the epoch of `encoder`; else the numbers of its groups are not known, so the loss
    is declared for all groups.
    """
    if any(gap.reason == POISON and gap.run for gap in frame.gaps):  # given up before; records of others have no run
        return frame
    gap = gap_of(frame, encoder, POISON)
    gap = gap if present else replace(gap, groups=tuple(encoder.groups))
    return replace(frame, groups=promises_of(frame), gaps=(*frame.gaps, gap))


def gap_of(frame: Frame, encoder: EpochEncoder, reason: str) -> Gap:
    """The gap for a frame's rows (3.5). The runtime replaces its detail 'sha256' by the hash of the frame's bytes."""
    by_number = {n: g for g, n in encoder.groups.items()}
    groups, start, end, readings = [], 2**62, NEVER_US, 0
    for part in frame.groups:
        for section in (*part.sections, *part.late):
            rows = section.partials
            if len(rows):
                start, end = min(start, int(rows.start.min())), max(end, int(rows.end.max()))
                counts = next(iter(rows.states.values()))  # the first column of a basis is the count
                readings += int(counts.sum())
        if part.group in by_number and (part.sections or part.late):
            groups.append(by_number[part.group])
    if end < start:
        start = end = 0
    return Gap(tuple(groups), start, end, readings, (), reason, 1, "sha256")
