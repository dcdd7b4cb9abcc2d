"""A step: everything that one commit sends upward."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_agent.algebra.frame import NEVER_US, ExcludedLeaf, Flush, Gap, Leaf, Plan, Serving
from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.query import Group

Report = tuple[Leaf | None, Leaf]  # of a leaf that moved: see GroupStep.left


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of one plan. partials.key are indices into `keys`; columns of kind node are indices into `nodes`.

    keys, nodes: append-only tables of the sender; the same list object in every step. late: rows of late readings.
    """

    plan: Plan
    late: bool
    partials: Partials
    keys: Sequence[str]
    nodes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Hints:
    """Earliest starts of sessions not sent yet (docs/protocol.md 5.2).

    keys: the sender's key table. codes: indices into `keys`, shape (n,), int64. starts: shape (n,), int64, us. If a key
    occurs several times, its least start counts.
    """

    keys: Sequence[str]
    codes: Ints
    starts: Ints


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One group's part of a step: its rows, and its state once they are sent. None: unchanged.

    promised_us: the frontier in force after the step, even if no frame carries it. hints: all hints of a group of
    sessions; None: other groups. excepted: the exceptions that apply from the first frame that lists a leaf to the last
    frame of the step. left: reports of leaves that moved to another parent, (entry as listed before, entry with the
    next epoch and the one left); a frame lists and drops the second in one section (docs/protocol.md 1.5). stay: leaves
    in `left` that remain listed. skipped: entries that others replaced before a frame listed them; each is listed ahead
    of `leaves` in a section of its own.
    """

    group: Group
    frontier_us: int | None = None
    rows: tuple[StepRows, ...] = ()
    exceptions: tuple[ExcludedLeaf, ...] | None = None
    leaves: tuple[Leaf, ...] = ()
    dropped: tuple[str, ...] = ()
    serving: tuple[Serving, ...] = ()
    promised_us: int = NEVER_US
    hints: Hints | None = None
    excepted: tuple[ExcludedLeaf, ...] = ()
    left: tuple[Report, ...] = ()
    stay: tuple[Leaf, ...] = ()
    skipped: tuple[Leaf, ...] = ()

    @property
    def drops(self) -> bool:
        """Whether the step drops leaves."""
        return bool(self.left or self.dropped)

    @property
    def only_promises(self) -> bool:
        """Whether the step states nothing but a frontier and registers, or not even that."""
        return self.exceptions is None and not (self.rows or self.leaves or self.skipped or self.serving or self.drops)


@dataclass(frozen=True, slots=True)
class Step:
    """All that one commit sends upward. queries, sensors: canonical texts of definitions. flush, leave: see Frame."""

    groups: tuple[GroupStep, ...] = ()
    queries: tuple[str, ...] = ()
    sensors: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    flush: Flush | None = None
    leave: int | None = None

    def with_gaps(self, gaps: Collection[Gap]) -> Step:
        """The step with further gap records."""
        return replace(self, gaps=(*self.gaps, *gaps)) if gaps else self


def without_promise(step: Step) -> Step:
    """The step without frontiers and hints. Those of the epoch before stay in force until a frame has others (1.2)."""
    return replace(step, groups=tuple(replace(g, frontier_us=None, hints=None) for g in step.groups))


def only_leaves(step: Step) -> Step:
    """A step with only the leaves it lists, for frames before their rows; new ones stay exceptions after it (2.3)."""
    return Step(
        tuple(
            GroupStep(
                each.group,
                leaves=each.leaves,
                exceptions=each.excepted or None,
                excepted=each.excepted,
                skipped=each.skipped,
            )
            for each in step.groups
            if each.leaves
        )
    )


def only_rows(step: Step) -> Step:
    """A step with only the rows, for frames before the last frame of a step (2.3)."""
    return Step(tuple(GroupStep(group.group, rows=group.rows) for group in step.groups if group.rows))


def without_rows_and_leaves(step: Step) -> Step:
    """The step without its rows and the leaves it lists."""
    return replace(step, groups=tuple(replace(group, rows=(), leaves=(), skipped=()) for group in step.groups))


def with_leaving(birth: Step, step: Step) -> Step:
    """A birth within a step, with the leaves of which that step reports the `leave`: they stay exceptions until then.

    Else the parent would take them for leaves of which no row is missing, as a birth ends all exceptions (1.5).
    """
    groups = {each.group: each for each in birth.groups}
    for each in step.groups:
        of = groups.get(each.group, GroupStep(each.group))
        listed = {leaf.node for leaf in of.leaves}
        leaves = tuple({e.node: e for e, _ in each.left if e is not None and e.node not in listed}.values())
        if leaves:
            behind = tuple(ExcludedLeaf(leaf.node, NEVER_US, NEVER_US) for leaf in leaves)
            stated = of.exceptions or ()
            groups[each.group] = replace(of, leaves=(*of.leaves, *leaves), exceptions=(*stated, *behind))
    return replace(birth, groups=tuple(groups.values()))


def halves(step: Step) -> tuple[Step, Step]:
    """Split a step of rows with at least two keys into two steps with about half of the keys each."""
    items = [(group.group, rows) for group in step.groups for rows in group.rows]
    cut = [(group, *_cut(rows)) for group, rows in items]
    first, second = [(group, low) for group, low, _ in cut], [(group, high) for group, _, high in cut]
    if not any(len(low.partials) for _, low in first):  # one key each
        first, second = items[: len(items) // 2], items[len(items) // 2 :]
    return _of_rows(first), _of_rows(second)


def halves_of_plans(step: Step) -> tuple[Step, Step]:
    """Split a step of rows of at least two plans into two steps with half of the plans each."""
    items: dict[tuple[Group, bytes], list[StepRows]] = {}
    for group in step.groups:
        for rows in group.rows:  # those on time and the late ones of a plan stay together
            items.setdefault((group.group, rows.plan.hash), []).append(rows)
    each = [[(group, rows) for rows in found] for (group, _), found in items.items()]
    first, second = each[: len(each) // 2], each[len(each) // 2 :]
    return _of_rows([one for some in first for one in some]), _of_rows([one for some in second for one in some])


def _of_rows(items: Sequence[tuple[Group, StepRows]]) -> Step:
    groups: dict[Group, list[StepRows]] = {}
    for group, rows in items:
        groups.setdefault(group, []).append(rows)
    return Step(tuple(GroupStep(group, rows=tuple(rows)) for group, rows in groups.items()))


def _cut(rows: StepRows) -> tuple[StepRows, StepRows]:
    keys = rows.partials.key
    low = keys <= (int(np.median(keys)) if len(keys) else 0)
    if low.all() and len(keys):
        low = keys < keys.max()
    return (
        replace(rows, partials=rows.partials.take(low)),
        replace(rows, partials=rows.partials.take(~low)),
    )
