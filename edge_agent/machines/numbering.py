"""Turns a step into the frames of an epoch: gives numbers at first use, splits to the frame limit.

Rules (docs/protocol.md): numbers belong to an epoch, first use defines them, they are never reused (2.4); a frame is at
most 128 kB by construction and never split after numbering (2.1); of several frames of one step only the last carries
the new frontier and exceptions (2.3). What a node serves may come in earlier ones: nothing closes before that frontier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from edge_agent.algebra import bags, cuts, series, sketches
from edge_agent.algebra.aggregates import COLUMNS, OF_NODES, renumbered
from edge_agent.algebra.frame import (
    MAX_FRAME_BYTES,
    MAX_KEYS,
    Birth,
    Define,
    Frame,
    GroupPart,
    Members,
    Plan,
    Section,
)
from edge_agent.algebra.partial import NO_INTS, Column, Ints, Partials
from edge_agent.algebra.query import Group
from edge_agent.algebra.sessions import NO_HINT
from edge_agent.machines.plain_values import group_from_plain, group_to_plain, plan_from_plain, plan_to_plain
from edge_agent.machines.release import GroupStep, Release, Step

BUDGET_BYTES: Final = MAX_FRAME_BYTES * 3 // 4  # estimates below are upper bounds of the parts; the rest is headers
ROW_BYTES: Final = 8 + 8 + 4 + 4  # range, key and run lengths of one row at their longest
# a bignum of 128 bits with its tag and head; first values and size of a bag or series; every other kind is 9 at most
COLUMN_BYTES: Final = {"wide": 20, "bag": 24, "series": 40}
LEAVES_A_FRAME: Final = 1_000  # about 50 bytes each
SERVINGS_A_FRAME: Final = 500
SERVING_BYTES: Final = 40  # revision and three times at their longest


class KeysExhausted(Exception):  # noqa: N818 - not an error: the holder opens a new epoch and composes again
    """The epoch has too few numbers left for the keys of a step."""


@dataclass(slots=True)
class _Draft:
    """A frame in the making; size_bytes is an upper estimate."""

    keys: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    groups: list[tuple[int, Group]] = field(default_factory=list)
    plans: list[tuple[int, int, Plan]] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    sensors: list[str] = field(default_factory=list)
    parts: dict[int, tuple[list[Section], list[Section]]] = field(default_factory=dict)
    members: list[Members] = field(default_factory=list)
    size_bytes: int = 0


class Numbering:
    """The numbers of one epoch and the definitions it has said."""

    def __init__(self) -> None:
        self.keys: dict[str, int] = {}
        self.nodes: dict[str, int] = {}
        self.groups: dict[Group, int] = {}
        self.plans: dict[tuple[Group, bytes], int] = {}
        self.plan_of: dict[int, Plan] = {}
        self.said: set[str] = set()
        # id(table) -> (table, its numbers, -1 = none yet); one entry a kind since keys and nodes count apart
        self._maps: dict[tuple[str, int], tuple[Sequence[str], Ints]] = {}
        # hints of this epoch as the parent has them, by group number: key number -> start, NO_HINT = none (5.2)
        self._registers: dict[int, Ints] = {}
        self._wanted: dict[int, Ints] = {}
        self.registers_said = 0  # how many times a frame stated any: what a spool has of them is old then

    def compose(self, epoch: int, seq: int, step: Step, birth: Birth | None = None) -> list[Frame]:
        """The frames of a step, numbered from seq. Nothing to say gives no frame, except a birth.

        Raises: KeysExhausted before anything was numbered.
        """
        self._check_room(step)
        drafts = [_Draft()]
        for texts, kind in ((step.queries, "queries"), (step.sensors, "sensors")):
            for text in texts:
                if text not in self.said:
                    self.said.add(text)
                    getattr(_fit(drafts, len(text.encode()) + 5), kind).append(text)
        for group_step in step.groups:
            number = self._group(drafts, group_step.group)
            for start in range(0, len(group_step.leaves), LEAVES_A_FRAME):
                leaves = group_step.leaves[start : start + LEAVES_A_FRAME]
                _fit(drafts, sum(len(leaf.node) + 16 for leaf in leaves)).members.append(Members(number, leaves))
            for release in group_step.releases:
                self._release(drafts, group_step.group, number, release)
            for start in range(0, len(group_step.serving), SERVINGS_A_FRAME):
                serving = group_step.serving[start : start + SERVINGS_A_FRAME]
                size = sum(len(each.query) + SERVING_BYTES for each in serving)
                _fit(drafts, size).members.append(Members(number, (), (), serving))
        for (
            group_step
        ) in step.groups:  # first all texts: they may need one more frame, and the registers go into the last
            self._hint_keys(drafts, group_step)
        said = [self._hinted(drafts, group_step) for group_step in step.groups]
        frames = self._freeze(drafts, epoch, seq, step, birth)
        frames = [self._restated(frame) for frame in frames[:-1]] + frames[-1:]
        frames[-1] = self._promise(frames[-1], step, {n: registers for n, registers in said if registers})
        if any(registers for _, registers in said):
            self.registers_said += 1
        self._registers.update(self._wanted)
        return [] if len(frames) == 1 and _silent(frames[0]) else frames

    def restate(self, epoch: int, seq: int) -> list[Frame]:
        """Frames that repeat every number given so far (`cmd rebirth`), for a parent that lost them (2.4)."""
        drafts = [_Draft()]
        for kind, known in (("keys", self.keys), ("nodes", self.nodes)):
            for name in known:
                getattr(_fit(drafts, len(name.encode()) + 3), kind).append(name)
        of_plan = {number: group for (group, _), number in self.plans.items()}
        for group, number in self.groups.items():
            text = [group.source, group.where, *group.by, group.late]
            _fit(drafts, 24 + sum(len(t.encode()) + 3 for t in text)).groups.append((number, group))
        for number, plan in self.plan_of.items():
            size = 48 + sum(len(c) + 2 for c in plan.basis) + sum(len(q) + 8 for q, _ in plan.queries)
            _fit(drafts, size).plans.append((number, self.groups[of_plan[number]], plan))
        self.said.clear()  # the next step says the definitions again
        return self._freeze(drafts, epoch, seq, Step(), None)

    def _check_room(self, step: Step) -> None:
        texts: set[str] = set()
        for group_step in step.groups:
            for release in group_step.releases:
                numbers = self._map("keys", release.keys)
                codes = release.partials.key
                fresh = np.unique(codes[numbers[codes] < 0])
                texts.update(release.keys[code] for code in fresh.tolist())
            if group_step.hints is not None:
                hints = group_step.hints
                fresh = hints.codes[self._map("keys", hints.keys)[hints.codes] < 0]
                texts.update(hints.keys[code] for code in np.unique(fresh).tolist())
        if len(self.keys) + len(texts - self.keys.keys()) > MAX_KEYS:
            raise KeysExhausted

    def _map(self, kind: str, table: Sequence[str]) -> Ints:
        known = self._maps.get((kind, id(table)))
        numbers = known[1] if known is not None else np.zeros(0, np.int64)
        if len(numbers) < len(table):
            numbers = np.concatenate([numbers, np.full(len(table) - len(numbers), -1, np.int64)])
            self._maps[kind, id(table)] = (table, numbers)
        return numbers

    def _group(self, drafts: list[_Draft], group: Group) -> int:
        number = self.groups.get(group)
        if number is None:
            number = self.groups[group] = len(self.groups)
            text = [group.source, group.where, *group.by, group.late]
            _fit(drafts, 24 + sum(len(t.encode()) + 3 for t in text)).groups.append((number, group))
        return number

    def _plan(self, drafts: list[_Draft], group: Group, group_number: int, plan: Plan) -> int:
        number = self.plans.get((group, plan.hash))
        if number is None:
            number = self.plans[group, plan.hash] = len(self.plans)
            self.plan_of[number] = plan
            size = 48 + sum(len(c) + 2 for c in plan.basis) + sum(len(q) + 8 for q, _ in plan.queries)
            _fit(drafts, size).plans.append((number, group_number, plan))
        return number

    def _release(self, drafts: list[_Draft], group: Group, number: int, release: Release) -> None:
        if not len(release.partials):
            return
        plan_number = self._plan(drafts, group, number, release.plan)
        columns = [COLUMNS[name] for name in release.plan.basis]
        row_bytes = ROW_BYTES + sum(COLUMN_BYTES.get(c.kind, 9) for c in columns)
        rows = self._numbered(drafts, release)
        if cuts.is_cut(release.plan.basis):
            value_bytes = _value_bytes(rows)
            rows = cuts.cut(rows, release.plan.basis, release.plan.scale, BUDGET_BYTES // 2 // value_bytes)
            upto = np.cumsum(row_bytes + value_bytes * cuts.sizes(rows))
        else:
            upto = np.arange(row_bytes, row_bytes * (len(rows) + 1), row_bytes)
        upto += np.cumsum(_approximate_bytes(rows))
        done, done_bytes = 0, 0
        while done < len(rows):
            room = BUDGET_BYTES - drafts[-1].size_bytes
            last = int(np.searchsorted(upto, done_bytes + room, side="right"))
            if last <= done and drafts[-1].size_bytes:
                drafts.append(_Draft())
                continue
            last = max(last, done + 1)  # a row as large as that has a frame of its own: sizes are upper estimates
            chunk = rows if last - done == len(rows) else rows.take(slice(done, last))
            drafts[-1].size_bytes += int(upto[last - 1]) - done_bytes + 16
            done, done_bytes = last, int(upto[last - 1])
            on_time, late = drafts[-1].parts.setdefault(number, ([], []))
            (late if release.late else on_time).append(Section.of(plan_number, release.plan, chunk))

    def _numbered(self, drafts: list[_Draft], release: Release) -> Partials:
        keys = self._numbers(drafts, "keys", release.keys, release.partials.key)
        states = release.partials.states
        if any(COLUMNS[name].kind in OF_NODES for name in release.plan.basis):
            states = renumbered(
                states, release.plan.basis, lambda codes: self._numbers(drafts, "nodes", release.nodes, codes)
            )
        return Partials(release.partials.start, release.partials.end, keys, states)

    def _numbers(self, drafts: list[_Draft], kind: str, table: Sequence[str], codes: Ints) -> Ints:
        """Codes of a table as numbers of the epoch; defines those used for the first time."""
        numbers = self._map(kind, table)
        mapped = numbers[codes]
        if not len(mapped) or mapped.min() >= 0:
            return mapped
        known = self.keys if kind == "keys" else self.nodes
        for code in np.unique(codes[mapped < 0]).tolist():
            text = table[code]
            if text not in known:
                known[text] = len(known)
                getattr(_fit(drafts, len(text.encode()) + 3), kind).append(text)
            numbers[code] = known[text]
        return numbers[codes]

    def _freeze(self, drafts: list[_Draft], epoch: int, seq: int, step: Step, birth: Birth | None) -> list[Frame]:
        frames = []
        for i, draft in enumerate(drafts):
            define = Define(
                (self._first(self.keys, draft.keys), tuple(draft.keys)),
                (self._first(self.nodes, draft.nodes), tuple(draft.nodes)),
                tuple(draft.groups),
                tuple(draft.plans),
                tuple(draft.queries),
                tuple(draft.sensors),
            )
            parts = tuple(GroupPart(n, None, tuple(rows), tuple(late)) for n, (rows, late) in draft.parts.items())
            frames.append(
                Frame(
                    epoch,
                    seq + i,
                    birth if i == 0 else None,
                    None if define == Define() else define,
                    tuple(draft.members),
                    parts,
                    flush=step.flush,
                )
            )
        return frames

    @staticmethod
    def _first(known: Mapping[str, int], texts: list[str]) -> int:
        return known[texts[0]] if texts else 0

    def _hinted(self, drafts: list[_Draft], step: GroupStep) -> tuple[int, tuple[tuple[int, int | None], ...]]:
        """(group number, the registers that the last frame of the step states or clears) (5.2)."""
        number = self.groups[step.group]
        if step.hints is None:
            return number, ()
        codes, starts_us = self._hint_keys(drafts, step)
        want = np.full(len(self.keys), NO_HINT, np.int64)
        np.minimum.at(want, codes, starts_us)
        have = _grown(self._registers.get(number), len(self.keys))
        on_time, late = drafts[-1].parts.get(number, ([], []))
        for section in (*on_time, *late):  # a partial clears the register of its key, here and at the parent
            have[section.partials.key] = NO_HINT
        changed = np.flatnonzero(want != have)
        self._wanted[number] = want
        starts = want[changed].tolist()
        return number, tuple((k, None if s == NO_HINT else s) for k, s in zip(changed.tolist(), starts, strict=True))

    def _hint_keys(self, drafts: list[_Draft], step: GroupStep) -> tuple[Ints, Ints]:
        """Numbers of the keys whose earliest open session starts before the promise, and those starts."""
        if step.hints is None:
            return NO_INTS, NO_INTS
        below = step.hints.starts < step.promised_us
        codes = self._numbers(drafts, "keys", step.hints.keys, step.hints.codes[below])
        return codes, step.hints.starts[below]

    def _restated(self, frame: Frame) -> Frame:
        """A frame before the last of its step: the registers that its own partials clear stay as they were (2.3)."""
        parts = []
        for part in frame.groups:
            have = self._registers.get(part.group)
            sections = (*part.sections, *part.late)
            if have is not None and sections:
                keys = np.unique(np.concatenate([section.partials.key for section in sections]))
                keys = keys[keys < len(have)]
                keys = keys[have[keys] < NO_HINT]
                held = tuple(zip(keys.tolist(), have[keys].tolist(), strict=True))
                part = replace(part, registers=held)
            parts.append(part)
        return replace(frame, groups=tuple(parts))

    def _promise(self, frame: Frame, step: Step, registers: Mapping[int, tuple[tuple[int, int | None], ...]]) -> Frame:
        parts = {part.group: part for part in frame.groups}
        members = list(frame.members)
        for group_step in step.groups:
            number = self.groups[group_step.group]
            said = registers.get(number, ())
            if group_step.frontier_us is not None or group_step.exceptions is not None or said:
                part = parts.get(number, GroupPart(number))
                parts[number] = replace(
                    part, frontier_us=group_step.frontier_us, exceptions=group_step.exceptions, registers=said
                )
            if group_step.dropped:
                members.append(Members(number, (), group_step.dropped))
        return replace(frame, groups=tuple(parts.values()), members=tuple(members), gaps=step.gaps, leave=step.leave)

    def snapshot(self) -> dict[str, object]:
        """Plain values: all of what a commit writes in parts."""
        registers = [[number, told] for number, told in self.snapshot_registers().items()]
        return {**self.snapshot_settled(), "keys": list(self.keys), "registers": registers}

    def snapshot_settled(self) -> dict[str, object]:
        """What definitions and members made; groups and plans in the order of their numbers."""
        return {
            "nodes": list(self.nodes),
            "groups": [group_to_plain(g) for g in self.groups],
            "plans": [[group_to_plain(g), plan_to_plain(self.plan_of[n])] for (g, _), n in self.plans.items()],
            "said": sorted(self.said),
        }

    def snapshot_registers(self) -> dict[int, list[int]]:
        """The registers as they were said, of the number of each group of sessions, by the number of the key."""
        return {number: registers.tolist() for number, registers in self._registers.items()}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Numbering:
        """The twin of `snapshot`."""
        numbering = cls()
        numbering.keys = {text: n for n, text in enumerate(state["keys"])}
        numbering.nodes = {text: n for n, text in enumerate(state["nodes"])}
        numbering.groups = {group_from_plain(g): n for n, g in enumerate(state["groups"])}
        for number, (group, plain) in enumerate(state["plans"]):
            plan = plan_from_plain(plain)
            numbering.plans[group_from_plain(group), plan.hash] = number
            numbering.plan_of[number] = plan
        numbering.said = set(state["said"])
        numbering._registers = {number: np.array(registers, np.int64) for number, registers in state["registers"]}
        return numbering


def _value_bytes(rows: Partials) -> int:
    """Bytes that what `cuts.sizes` counts takes at most, when nothing is deflated: with both, a reading and a value."""
    held = (_series_bytes(rows.states["series"]),) if "series" in rows.states else ()
    return sum(held) + (_bag_bytes(rows.states["bag"]) if "bag" in rows.states else 0)


def _approximate_bytes(rows: Partials) -> Ints:
    """What the cells of bounded size take in each row: sketches and most frequent values."""
    total = np.zeros(len(rows), np.int64)
    for name, column in rows.states.items():
        if sketches.is_sketches(column):
            total += np.fromiter(map(len, column.tolist()), np.int64, len(rows))
        elif name == "frequent":
            total += _bag_bytes(column) * bags.flat(column).sizes
    return total


def _series_bytes(column: Column) -> int:
    """Of a reading: its value, and the widest step of time and arrival, and node."""
    found = series.flat(column)
    inner = found.inner()[1:]
    spans = [_span(np.diff(numbers)[inner]) for numbers in (found.time_us, found.order)]
    value = 8 if found.value.dtype.kind == "f" else _span(found.value)
    return value + sum(spans) + _span(found.node)


def _span(numbers: Ints) -> int:
    return _width(int(numbers.max()) - int(numbers.min())) if len(numbers) else 1


def _bag_bytes(column: Column) -> int:
    """Of a value of a bag and its count."""
    found = bags.flat(column)
    counts = _width(int(found.counts.max()))
    if found.values.dtype.kind == "f":
        return 8 + counts
    steps = np.diff(found.values)[np.diff(found.rows) == 0]
    return _width(int(steps.max(initial=0))) + counts


def _width(most: int) -> int:
    return next(size for size in (1, 2, 4, 8) if most < 1 << (8 * size))


def _fit(drafts: list[_Draft], size_bytes: int) -> _Draft:
    """The draft that takes size_bytes more: the last one, or a new one after it."""
    if drafts[-1].size_bytes and drafts[-1].size_bytes + size_bytes > BUDGET_BYTES:
        drafts.append(_Draft())
    drafts[-1].size_bytes += size_bytes
    return drafts[-1]


def _silent(frame: Frame) -> bool:
    """Whether a frame says nothing but frontiers: then a heartbeat does (2.5)."""
    bare = tuple(replace(part, frontier_us=None) for part in frame.groups)
    return all(part == GroupPart(part.group) for part in bare) and (
        replace(frame, epoch=0, seq=0, groups=(), flush=None) == Frame(0, 0)
    )


def _grown(registers: Ints | None, size: int) -> Ints:
    """A copy with room for all keys."""
    have = np.full(size, NO_HINT, np.int64)
    if registers is not None:
        have[: len(registers)] = registers
    return have
