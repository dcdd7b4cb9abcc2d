"""Decides about spooled frames when the parent has a new journal (docs/protocol.md 3.7).

Epochs without any published frame are addressed to the new journal unchanged. Otherwise a new epoch begins, and frames
that were never published move into it, under its numbers: those of the present epoch, and at a gateway those of earlier
epochs, from before a restart. Frames published and not receipted are in doubt, because the old journal may have counted
them, so a gap record replaces them. Receipted frames may be lost with the old journal. The child cannot know which of
them were passed on, so it declares everything from LONG_AGO_US on, and the tier that knows how far each leaf had come
narrows the record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from edge_agent.algebra.aggregates import renumbered
from edge_agent.algebra.frame import (
    IN_DOUBT,
    JOURNAL_LOST,
    LATEST_US,
    LONG_AGO_US,
    NEVER_US,
    Define,
    Frame,
    Gap,
    Leaf,
    Members,
    Plan,
)
from edge_agent.algebra.gap_scope import names_retired, of_all_groups
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.query import Group
from edge_agent.errors import PortError, WireError
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder
from edge_agent.machines.uplink.step import GroupStep, Step, StepRows

MOST_RECORDS: Final = 100  # most gap records for frames in doubt; if there are more, one wider record replaces them
MOVED_AT_ONCE: Final = 200  # most frames moved to a new journal in one commit; bounds its memory
MOST_LOOKED_AT: Final = 2_000  # most frames in doubt that are decoded to find their time ranges; the oldest

Keys = list[tuple[int, int]]
Load = Callable[[int, int], Frame]
Leaves = Mapping[Group, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Spooled:
    """The spooled frames (epoch, seq) at a change of journal, in order.

    doubtful: to be given up. moving: frames to send in a new epoch. kept: whole epochs that stay.
    """

    doubtful: Keys
    moving: Keys
    kept: Keys


@dataclass(frozen=True, slots=True)
class Joined:
    """What follows from a new journal. begins: whether a new epoch must begin. gaps: the losses to declare in it.

    frames: of an epoch ahead of those that stay, if it has declared the losses; the last ones of those that move.
    """

    begins: bool = False
    gaps: tuple[Gap, ...] = ()
    frames: Sequence[Frame] = ()


def sort_out(
    pending: Iterable[tuple[tuple[int, int], bool]], epoch: int, known: Collection[int] = frozenset()
) -> Spooled:
    """Sort the spooled frames. pending: ((epoch, seq), whether ever published), in order. epoch: the present one.

    known: earlier epochs whose frames can move, because the meaning of their numbers is known.
    """
    found = list(pending)
    published = {key[0] for key, marked in found if marked}
    begun = {key[0] for key, _ in found if key[1] == 0} - published
    last = max((i for i, (key, _) in enumerate(found) if key[0] not in begun), default=-1)
    kept = [key for key, _ in found[last + 1 :]]
    movable = {epoch, *known}
    behind = {key[0] for key, marked in found[: last + 1] if not marked} - {epoch}
    if kept and kept[-1][0] == epoch and not (behind and movable >= {key[0] for key, marked in found if not marked}):
        return Spooled([key for key, _ in found[: last + 1]], [], kept)
    doubtful = [key for key, marked in found if marked or key[0] not in movable]
    return Spooled(doubtful, [key for key, marked in found if not marked and key[0] in movable], [])


@dataclass(frozen=True, slots=True)
class Numbers:
    """The meaning of the numbers in the frames of one epoch. keys, nodes: texts by number; they grow."""

    keys: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    groups: dict[int, Group] = field(default_factory=dict)
    plans: dict[int, Plan] = field(default_factory=dict)

    @classmethod
    def of(cls, encoder: EpochEncoder) -> Numbers:
        groups = {number: group for group, number in encoder.groups.items()}
        return cls(list(encoder.keys), list(encoder.nodes), groups, dict(encoder.plan_of))

    def learn(self, define: Define | None) -> None:
        """Take a definition section of a frame. Raises: ValueError if numbers before those in it are not known."""
        for known, (first, texts) in () if define is None else ((self.keys, define.keys), (self.nodes, define.nodes)):
            if texts and first > len(known):
                raise ValueError(f"{len(known)} numbers are known, and {first} comes next")
            known[first : first + len(texts)] = texts
        if define is not None:
            self.groups.update(define.groups)
            self.plans.update((number, plan) for number, _, plan in define.plans)

    def check(self, rows: Partials, basis: tuple[str, ...]) -> None:
        """Raises: KeyError if rows contain a number that is not known."""

        def nodes(codes: Ints) -> Ints:
            return _within(codes, self.nodes)

        _within(rows.key, self.keys)
        renumbered(rows.states, basis, nodes)


def _within(codes: Ints, texts: Sequence[str]) -> Ints:
    if len(codes) and codes.max() >= len(texts):
        raise KeyError(int(codes.max()))
    return codes


def stated_again(epoch: int, last: int, load: Load) -> Numbers | None:
    """The numbers of an ended epoch, which the first frames of its flush define again; None if they do not.

    last: its last seq. See `FrameQueue.define_again`.
    """
    numbers = None
    with suppress(PortError, WireError, ValueError, KeyError):
        flush = load(epoch, last).flush
        for seq in range(last + 1 if flush is None else flush.after + 1, last + 1):
            frame = load(epoch, seq)
            if frame.define is None or frame != Frame(epoch, seq, define=frame.define, flush=flush):
                break
            numbers = Numbers() if numbers is None else numbers
            numbers.learn(frame.define)
    return numbers


@dataclass(frozen=True, slots=True)
class InDoubt:
    """Frames that are given up. gaps: their gap records, with the records in these frames.

    readings: in the frames that were decoded. unread: number of the other frames.
    """

    gaps: tuple[Gap, ...]
    readings: int
    unread: int


def in_doubt(
    keys: Keys, encoder: EpochEncoder, epoch: int, leaves: Leaves, load: Load, *, span_us: tuple[int, int]
) -> InDoubt:
    """Declare frames that are given up.

    keys: in order. encoder, epoch: the present epoch. leaves: for every group those below this node. The records name
    these, those that the frames list (they may have left), and all groups if the numbers are of another epoch.
    span_us: (earliest start of late rows in the frames, latest end of all rows sent), to date the frames that are not
    decoded. Their other rows lie above what the first frame states or contains.
    """
    named = {name for names in leaves.values() for name in names}
    by_number = {number: group for group, number in encoder.groups.items()}
    everything = tuple(dict.fromkeys((*encoder.groups, *leaves)))
    spans: dict[tuple[Group, ...], list[tuple[int, int, int]]] = {}
    carried: list[Gap] = []
    unread, lost, start_us = max(len(keys) - MOST_LOOKED_AT, 0), 0, span_us[0]
    for i, key in enumerate(keys[:MOST_LOOKED_AT]):
        try:
            frame = load(*key)
        except (PortError, WireError, ValueError, KeyError):
            unread += 1
            start_us = start_us if i else LONG_AGO_US  # nothing says how far the frames before had come
            continue
        start_us = min(start_us, _earliest(frame))
        carried += _apart(frame.gaps, everything)
        lost += frame.readings
        named.update(leaf.node for change in frame.members for leaf in change.leaves)
        for part in frame.groups:
            of = (by_number[part.group],) if key[0] == epoch and part.group in by_number else everything
            for section in (*part.sections, *part.late):
                rows = section.partials
                if len(rows):
                    readings = int(next(iter(rows.states.values())).sum())  # the first column of a basis is the count
                    spans.setdefault(of, []).append((int(rows.start.min()), int(rows.end.max()), readings))
    nodes = tuple(sorted(named))
    records = [
        Gap(of, start_us, end_us, readings, nodes, IN_DOUBT)
        for of, found in spans.items()
        for start_us, end_us, readings in _joined(found)
    ]
    if len(records) > MOST_RECORDS:
        start_us, end_us = min(r.start_us for r in records), max(r.end_us for r in records)
        records = [Gap(everything, start_us, end_us, sum(r.readings for r in records), nodes, IN_DOUBT)]
    if unread:
        start_us = max(start_us, LONG_AGO_US)
        end_us = max([span_us[1], start_us + 1, *(each.end_us for each in records)])
        records.append(Gap(everything, start_us, end_us, -1, nodes, IN_DOUBT))
    return InDoubt((*carried, *records), lost, unread)


def _earliest(frame: Frame) -> int:
    """The earliest time [us] that a frame states or contains: of a row, a frontier or an open session."""
    times_us = [LATEST_US]
    for part in frame.groups:
        times_us += [section.span_us[0] for section in (*part.sections, *part.late)]
        times_us += [start_us for _, start_us in part.registers if start_us is not None]
        times_us += [part.frontier_us] if part.frontier_us is not None and part.frontier_us > NEVER_US else []
    return min(times_us)


def _joined(spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Join ranges (start, end, readings) that touch."""
    out: list[tuple[int, int, int]] = []
    for start_us, end_us, readings in sorted(spans):
        if out and start_us <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end_us), out[-1][2] + readings)
        else:
            out.append((start_us, end_us, readings))
    return out


def lost_with_journal(reached: Mapping[Group, int], nodes: Mapping[Group, tuple[str, ...]]) -> tuple[Gap, ...]:
    """Gap records for the possible content of the old journal, per group. reached: latest end of receipted rows."""
    return tuple(
        Gap((group,), LONG_AGO_US, end_us, -1, nodes[group], JOURNAL_LOST)
        for group, end_us in reached.items()
        if end_us > LONG_AGO_US and nodes.get(group)
    )


def listing(birth: Frame, node: str, load: Load) -> list[GroupStep]:
    """The groups in which a birth lists the node itself, with the ranges it serves; none if a frame is damaged.

    birth: its first frame, which is in the spool with the others.
    """
    out, groups, frames = dict[Group, GroupStep](), dict[int, Group](), [birth]
    with suppress(PortError, WireError, ValueError, KeyError):
        frames += [load(birth.epoch, seq) for seq in range(1, 1 if birth.birth is None else birth.birth.frames)]
        for frame in frames:
            groups.update(() if frame.define is None else frame.define.groups)
            for change in frame.members:
                group = groups[change.group]
                before = out.get(group, GroupStep(group))
                leaves = (*before.leaves, *(leaf for leaf in change.leaves if leaf.node == node))
                out[group] = replace(before, leaves=leaves, serving=(*before.serving, *change.serving))
        return [each for each in out.values() if each.leaves]
    return []


def moved(frame: Frame, numbers: Numbers) -> Step:
    """Turn the rows, texts and gap records of a frame into a step. numbers: of its epoch, up to the frame before.

    Frontiers, members and registers are omitted, because the new epoch states them after all moved rows. Raises:
    KeyError or ValueError if numbers in it are not known.
    """
    numbers.learn(frame.define)
    steps = []
    for part in frame.groups:
        rows = [
            StepRows(plan, late, replace(section.partials, states=section.rows(plan.basis).states), *texts)
            for late, sections in ((False, part.sections), (True, part.late))
            for section in sections
            for plan, texts in ((numbers.plans[section.plan], (numbers.keys, numbers.nodes)),)
        ]
        for each in rows:
            numbers.check(each.partials, each.plan.basis)
        if rows:
            steps.append(GroupStep(numbers.groups[part.group], None, tuple(rows)))
    define = frame.define
    texts = ((), ()) if define is None else (define.queries, define.sensors)
    return Step(tuple(steps), *texts, gaps=tuple(_apart(frame.gaps, numbers.groups.values())))


def _apart(gaps: Iterable[Gap], groups: Iterable[Group]) -> Iterator[Gap]:
    """Gap records to state in another frame, whose parent may know other groups. groups: of the node.

    Births name those that are retired now (1.5).
    """
    for gap in (gap for gap in gaps if not names_retired(gap)):
        yield replace(gap, run=0, groups=tuple(groups) if of_all_groups(gap) else gap.groups)


def reports_in(frame: Frame) -> Iterator[tuple[int, Leaf | None, Leaf]]:
    """Yields (group number, entry as listed before, report) of leaves that moved: see GroupStep.left."""
    for before, change in pairwise((Members(-1), *frame.members)):
        for leaf in change.leaves:
            if leaf.node in change.dropped and leaf.before_move is not None:
                listed = before.leaves if before.group == change.group and not before.dropped else ()
                yield change.group, next((each for each in listed if each.node == leaf.node), None), leaf


def first_frontiers(frame: Frame, groups: Mapping[int, Group], known: dict[Group, int]) -> None:
    """Note a frame's frontier for each group that is not in `known` yet. groups: by their number in the frame."""
    for part in frame.groups:
        if part.frontier_us is not None and part.group in groups:
            known.setdefault(groups[part.group], part.frontier_us)
