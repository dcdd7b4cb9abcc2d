"""Encodes a step as frames of an epoch; keys, nodes, groups and plans are numbered at first use.

Rules (docs/protocol.md): numbers belong to an epoch, are defined at first use and never reused (2.4). A frame has at
most 128 kB by construction and is never split after numbering (2.1). Of several frames of one step, only the last frame
of a group carries its new frontier, and exceptions end no earlier (2.3). Serving ranges may be in earlier frames,
because nothing closes before that frontier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from edge_agent.algebra.aggregates import COLUMNS, renumbered
from edge_agent.algebra.columns import OF_NODES
from edge_agent.algebra.frame import MAX_FRAME_BYTES, MAX_KEYS, NEVER_US, Birth, Frame, GroupPart, Plan
from edge_agent.algebra.partials.arrays import NO_INTS, Ints, distinct
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.sessions import NO_HINT
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.checkpoint.slots import NumbersState
from edge_agent.machines.uplink.encoding import promises
from edge_agent.machines.uplink.encoding.frame_packer import FramePacker
from edge_agent.machines.uplink.encoding.promises import REGISTER_BYTES
from edge_agent.machines.uplink.encoding.session_hints import Registers, SessionHints
from edge_agent.machines.uplink.encoding.stated_exceptions import StatedExceptions, with_exceptions
from edge_agent.machines.uplink.step import GroupStep, Hints, Step, StepRows

MAX_PLANS: Final = 2**16  # of an epoch, as of its keys; a child may have named so many (docs/protocol.md 2.4)
MAX_GROUPS: Final = 2**16


class KeysExhausted(Exception):  # noqa: N818 - not an error: the owner opens a new epoch and encodes again
    """The epoch has too few numbers left for the keys, plans or groups of a step."""


class EpochEncoder:
    """Encodes the steps of one epoch. Knows its numbers and the definition texts sent in it."""

    def __init__(
        self, *, frame_bytes: int = MAX_FRAME_BYTES, max_keys: int = MAX_KEYS, before: EpochEncoder | None = None
    ) -> None:
        """frame_bytes: the size limit of a frame. max_keys: most keys of an epoch. before: the encoder of the epoch
        before, if its registers stay in force at the parent.
        """
        self.frame_bytes, self.max_keys = frame_bytes, max_keys
        self.keys: dict[str, int] = {}
        self.nodes: dict[str, int] = {}
        self.groups: dict[Group, int] = {}
        self.plans: dict[tuple[Group, bytes], int] = {}
        self.plan_of: dict[int, Plan] = {}
        self.texts_sent: set[str] = set()
        self.unsaved = True  # whether numbers or texts other than keys changed since the owner last reset this
        # ("keys" or "nodes", id(table)) -> (table, number of each entry, -1: none yet)
        self._maps: dict[tuple[str, int], tuple[Sequence[str], Ints]] = {}
        self.hints = SessionHints()
        self.exceptions = StatedExceptions()
        # registers of the epoch before: group -> key -> start; in force until this epoch states a frontier (1.2)
        self.held = {} if before is None else before.registers_known()

    def registers_known(self) -> dict[Group, dict[str, int]]:
        """The registers that the parent has: group -> key -> earliest start [us]."""
        keys, groups = list(self.keys), list(self.groups)
        known = {group: dict(starts) for group, starts in self.held.items()}
        for number, starts in self.hints.snapshot().items():
            own = {keys[key]: start_us for key, start_us in enumerate(starts) if start_us < NO_HINT}
            known.setdefault(groups[number], {}).update(own)
        return known

    def encode_step(self, epoch: int, seq: int, step: Step, birth: Birth | None = None) -> list[Frame]:
        """Make the frames of a step, numbered from seq; [] if a heartbeat suffices instead, which is never for a birth.

        Raises: KeysExhausted, before anything is numbered.
        """
        if birth is None and self._is_silent(step):
            return []
        self._check_room(step)
        step, over = self._ending(step)
        packer = FramePacker(self.frame_bytes)
        for text in step.queries:
            self._send_text(packer, "queries", text)
        for text in step.sensors:
            self._send_text(packer, "sensors", text)
        for group_step in step.groups:
            number = self._group(packer, group_step.group)
            for listed in (*((each,) for each in group_step.skipped), group_step.leaves):
                packer.list_leaves(number, listed, excepted=bool(group_step.excepted))
            for rows in group_step.rows:
                self._add_rows(packer, group_step.group, number, rows)
            packer.list_serving(number, () if group_step.drops else group_step.serving)
        # define all keys first: they may need one more frame, and registers belong in the last
        for group_step in step.groups:
            self._hint_keys(packer, group_step)
        apart = packer.exceeds(promises.size_of(step))
        registers = self._registers(packer, step, apart=apart)
        if not apart and sum(map(len, registers.values())) > self._most_registers:
            apart, registers = True, self._registers(packer, step, apart=True)
        frames = packer.frames(epoch, seq, self.keys, self.nodes, birth=birth, flush=step.flush)
        if any(len(own) > self._most_registers for own in registers.values()):
            frames, registers = self._spread(frames, registers)
        excepted = {self.groups[each.group]: each.excepted for each in step.groups if each.excepted}
        whole = (
            sum(map(promises.exception_bytes, excepted.values())) <= self.frame_bytes // 8
        )  # half of the room for headers
        frames[:-1] = [with_exceptions(self._unchanged(frame, ()), excepted, whole=whole) for frame in frames[:-1]]
        frames[-1] = self._unchanged(frames[-1], step.groups)
        self.exceptions.sent(frames)
        last = list(self._promise(frames.pop(), step, registers, apart=apart))
        self.exceptions.sent(last)
        frames += last
        if birth is not None:
            frames[0] = replace(frames[0], birth=replace(birth, frames=len(frames)))
        self.hints.sent(registers)
        for group in over:
            del self.held[group]
        self.unsaved = self.unsaved or bool(over)
        return [] if all(map(_silent, frames)) and not over else frames

    def _is_silent(self, step: Step) -> bool:
        """Whether the frames of a step would contain nothing but frontiers, as most steps between closing windows."""
        if step.gaps or step.leave is not None:
            return False
        if not (self.texts_sent.issuperset(step.queries) and self.texts_sent.issuperset(step.sensors)):
            return False
        for each in step.groups:
            if each.group not in self.groups or not each.only_promises:
                return False
            if each.hints is not None and not self._registers_stay(each, each.hints):
                return False
        return True

    def _registers_stay(self, step: GroupStep, hints: Hints) -> bool:
        """Whether the parent has the registers of a group as they are after the step."""
        if not len(hints.codes):  # as at most steps: no session is open
            return step.group not in self.held and self.hints.has_none(self.groups[step.group], len(self.keys))
        below = hints.starts < step.promised_us
        numbers = self._map("keys", hints.keys)[hints.codes[below]]
        if step.group in self.held or (len(numbers) and numbers.min() < 0):
            return False
        return self.hints.has(self.groups[step.group], self._wanted(numbers, hints.starts[below]))

    def _wanted(self, numbers: Ints, starts_us: Ints) -> Ints:
        """Earliest start by key number; NO_HINT: none."""
        wanted = np.full(len(self.keys), NO_HINT, np.int64)
        np.minimum.at(wanted, numbers, starts_us)
        return wanted

    def _ending(self, step: Step) -> tuple[Step, list[Group]]:
        """Find the groups whose registers of the epoch before end, because the step promises a frontier for them.

        Returns (the step with the frontiers of these groups, these groups).
        """
        over = [
            each.group
            for each in step.groups
            if each.group in self.held and each.hints is not None and each.promised_us > NEVER_US
        ]
        if not over:
            return step, []
        groups = (replace(each, frontier_us=each.promised_us) if each.group in over else each for each in step.groups)
        return replace(step, groups=tuple(groups)), over

    def _held(self, group: Group) -> dict[int, int]:
        """Registers of the epoch before, by key number; only keys that have a number in this epoch."""
        return {self.keys[text]: us for text, us in self.held.get(group, {}).items() if text in self.keys}

    def _unchanged(self, frame: Frame, promised: Iterable[GroupStep]) -> Frame:
        """Add to a frame the registers that its rows clear although they continue (2.3).

        promised: the groups with a promise in this frame, to which nothing is added.
        """
        if not frame.groups:
            return frame
        new = {self.groups[each.group] for each in promised if each.hints is not None}
        groups = {number: group for group, number in self.groups.items()} if self.held else {}
        parts = []
        for part in frame.groups:
            if part.group not in new:
                part = self.hints.unchanged(part, self._held(groups[part.group]) if groups else {})
            parts.append(part)
        return replace(frame, groups=tuple(parts))

    def restate(self, epoch: int, seq: int) -> list[Frame]:
        """Make frames that define all numbers again, for a parent that lost them (2.4; command `rebirth`)."""
        self.unsaved = True
        self.texts_sent.clear()  # the next step sends the definition texts again
        return self.definitions(epoch, seq)

    def definitions(self, epoch: int, seq: int) -> list[Frame]:
        """Make frames, from seq on, that define all numbers given so far."""
        packer = FramePacker(self.frame_bytes)
        for key in self.keys:
            packer.define_key(key)
        for node in self.nodes:
            packer.define_node(node)
        of_plan = {number: self.groups[group] for (group, _), number in self.plans.items()}
        for group, number in self.groups.items():
            packer.define_group(number, group)
        for number, plan in self.plan_of.items():
            packer.define_plan(number, of_plan[number], plan)
        return packer.frames(epoch, seq, self.keys, self.nodes)

    @property
    def _most_registers(self) -> int:
        """Most registers in one frame."""
        return max(self.frame_bytes // 2 // REGISTER_BYTES, 1)

    def _spread(
        self, frames: list[Frame], registers: Mapping[int, Registers]
    ) -> tuple[list[Frame], dict[int, Registers]]:
        """Split registers that exceed one frame. Those that lower a bound go first, in frames of their own (2.3).

        Of the others, as many as fit go into the last frame. Further ones wait for the next step, which is safe because
        the bounds known to the parent are then too low. Returns (all frames, registers of the last frame).
        """
        early: list[tuple[int, int, int | None]] = []
        last: dict[int, Registers] = {}
        room = self._most_registers
        for number in registers:
            lowered, raised = self.hints.split(number, room)
            early += [(number, *register) for register in lowered]
            last[number] = raised
            room -= len(raised)
        for at in range(0, len(early), self._most_registers):
            groups: dict[int, list[tuple[int, int | None]]] = {}
            for number, key, start_us in early[at : at + self._most_registers]:
                groups.setdefault(number, []).append((key, start_us))
            parts = tuple(GroupPart(number, registers=tuple(some)) for number, some in groups.items())
            frames.append(Frame(frames[-1].epoch, frames[-1].seq + 1, groups=parts, flush=frames[-1].flush))
        frames.append(Frame(frames[-1].epoch, frames[-1].seq + 1, flush=frames[-1].flush))
        return frames, last

    def _check_room(self, step: Step) -> None:
        texts: set[str] = set()
        for table, codes in (*_row_keys(step), *_hinted_keys(step)):
            fresh = distinct(codes[self._map("keys", table)[codes] < 0])
            texts.update(table[code] for code in fresh.tolist())
        if len(self.keys) + len(texts - self.keys.keys()) > self.max_keys:
            raise KeysExhausted
        groups, plans = step.groups, sum(len(each.rows) for each in step.groups)  # more than the new ones
        crowded = len(self.groups) + len(groups) > MAX_GROUPS
        if crowded and len(self.groups.keys() | {each.group for each in groups}) > MAX_GROUPS:
            raise KeysExhausted
        if len(self.plans) + plans > MAX_PLANS and len(self.plans.keys() | _plans_of(step)) > MAX_PLANS:
            raise KeysExhausted

    def _map(self, kind: str, table: Sequence[str]) -> Ints:
        known = self._maps.get((kind, id(table)))
        numbers = known[1] if known is not None else np.zeros(0, np.int64)
        if len(numbers) < len(table):
            numbers = np.concatenate([numbers, np.full(len(table) - len(numbers), -1, np.int64)])
            self._maps[kind, id(table)] = (table, numbers)
        return numbers

    def forget_tables(self) -> None:
        """Release references to key and node tables of steps. Tables that are still used are looked up again."""
        self._maps.clear()

    def _send_text(self, packer: FramePacker, kind: Literal["queries", "sensors"], text: str) -> None:
        if text not in self.texts_sent:
            self.texts_sent.add(text)
            self.unsaved = True
            packer.add_text(kind, text)

    def _group(self, packer: FramePacker, group: Group) -> int:
        number = self.groups.get(group)
        if number is None:
            number = self.groups[group] = len(self.groups)
            self.unsaved = True
            packer.define_group(number, group)
        return number

    def _plan(self, packer: FramePacker, group: Group, group_number: int, plan: Plan) -> int:
        number = self.plans.get((group, plan.hash))
        if number is None:
            number = self.plans[group, plan.hash] = len(self.plans)
            self.plan_of[number] = plan
            self.unsaved = True
            packer.define_plan(number, group_number, plan)
        return number

    def _add_rows(self, packer: FramePacker, group: Group, number: int, rows: StepRows) -> None:
        if len(rows.partials):
            plan_number = self._plan(packer, group, number, rows.plan)
            packer.add_rows(number, plan_number, rows.plan, self._numbered(packer, rows), late=rows.late)

    def _numbered(self, packer: FramePacker, rows: StepRows) -> Partials:
        keys = self._numbers(packer, "keys", rows.keys, rows.partials.key)
        states = rows.partials.states
        if any(COLUMNS[name].kind in OF_NODES for name in rows.plan.basis):
            states = renumbered(
                states, rows.plan.basis, lambda codes: self._numbers(packer, "nodes", rows.nodes, codes)
            )
        return Partials(rows.partials.start, rows.partials.end, keys, states)

    def _numbers(self, packer: FramePacker, kind: str, table: Sequence[str], codes: Ints) -> Ints:
        """Turn codes of a table into numbers of the epoch, and define texts used for the first time."""
        numbers = self._map(kind, table)
        mapped = numbers[codes]
        if not len(mapped) or mapped.min() >= 0:
            return mapped
        known, define = (self.keys, packer.define_key) if kind == "keys" else (self.nodes, packer.define_node)
        for code in distinct(codes[mapped < 0]).tolist():
            text = table[code]
            if text not in known:
                known[text] = len(known)
                self.unsaved = self.unsaved or kind == "nodes"
                define(text)
            numbers[code] = known[text]
        return numbers[codes]

    def _registers(self, packer: FramePacker, step: Step, *, apart: bool) -> dict[int, Registers]:
        """The registers to state, by group number. apart: in a frame after those with rows, which then clear none."""
        if apart:
            packer.end_frame()
        return {self.groups[each.group]: self._hinted(packer, each) for each in step.groups}

    def _hinted(self, packer: FramePacker, step: GroupStep) -> Registers:
        """The registers that the last frame of a group's step states or clears (5.2)."""
        if step.hints is None:
            return ()
        wanted = self._wanted(*self._hint_keys(packer, step))
        number = self.groups[step.group]
        return self.hints.updates(number, wanted, packer.last_sections(number), self._held(step.group))

    def _hint_keys(self, packer: FramePacker, step: GroupStep) -> tuple[Ints, Ints]:
        """Returns (numbers of the keys whose earliest open session starts before the promise, those starts)."""
        if step.hints is None:
            return NO_INTS, NO_INTS
        below = step.hints.starts < step.promised_us
        codes = self._numbers(packer, "keys", step.hints.keys, step.hints.codes[below])
        return codes, step.hints.starts[below]

    def _promise(self, frame: Frame, step: Step, registers: Mapping[int, Registers], *, apart: bool) -> Iterator[Frame]:
        """Add the promises of a step to its last frame. apart: yield as many further frames as the promises need."""
        most_bytes = self.frame_bytes * 3 // 4 if apart else FAR_US
        pages = promises.pages(step, self.groups, registers, self.exceptions, most_bytes)
        for number, page in enumerate(pages):
            parts = {part.group: part for part in frame.groups}
            for own in page.parts.values():
                part = parts.get(own.group, own)
                stay = own.registers or part.registers  # without a promise: the registers that `_unchanged` added
                parts[own.group] = replace(own, sections=part.sections, late=part.late, registers=stay)
            last = number == len(pages) - 1
            members, gaps = (*frame.members, *page.members), tuple(page.gaps)
            leave = step.leave if last else None
            yield replace(frame, groups=tuple(parts.values()), members=members, gaps=gaps, leave=leave)
            frame = Frame(frame.epoch, frame.seq + 1, flush=frame.flush)

    def snapshot(self) -> NumbersState:
        """The state for the spool; nodes, groups and plans in the order of their numbers.

        Keys and registers are in tables of their own.
        """
        return NumbersState(
            nodes=list(self.nodes),
            groups=list(self.groups),
            plans=[(group, self.plan_of[number]) for (group, _), number in self.plans.items()],
            texts=sorted(self.texts_sent),
            held=[(group, dict(starts)) for group, starts in self.held.items()],
        )

    @classmethod
    def restore(
        cls,
        state: NumbersState,
        keys: Sequence[str],
        registers: Iterable[tuple[int, Sequence[int]]],
        *,
        frame_bytes: int = MAX_FRAME_BYTES,
        max_keys: int = MAX_KEYS,
    ) -> EpochEncoder:
        """Continue from the result of `snapshot`. keys: in the order of their numbers. registers: see SessionHints."""
        numbering = cls(frame_bytes=frame_bytes, max_keys=max_keys)
        numbering.keys = {text: n for n, text in enumerate(keys)}
        numbering.nodes = {text: n for n, text in enumerate(state.nodes)}
        numbering.groups = {group: n for n, group in enumerate(state.groups)}
        for number, (group, plan) in enumerate(state.plans):
            numbering.plans[group, plan.hash] = number
            numbering.plan_of[number] = plan
        numbering.texts_sent = set(state.texts)
        numbering.hints = SessionHints(registers)
        numbering.held = dict(state.held)
        return numbering


def exceeds(step: Step, most: int, *, hints_only: bool = False) -> bool:
    """Whether a step has more keys than `most`. hints_only: count only keys of registers; they need the same epoch."""
    many = 0
    for each in step.groups:
        many += _rows(each) if each.rows else 0
        many += len(each.hints.codes) if each.hints is not None else 0
    if many <= most:
        return False
    found = list(_hinted_keys(step)) if hints_only else [*_row_keys(step), *_hinted_keys(step)]
    if sum(len(codes) for _, codes in found) <= most:
        return False
    texts: set[str] = set()
    for table, codes in found:
        texts.update(table[code] for code in distinct(codes).tolist())
    return len(texts) > most


def _plans_of(step: Step) -> set[tuple[Group, bytes]]:
    return {(each.group, rows.plan.hash) for each in step.groups for rows in each.rows}


def exceeds_plans(step: Step) -> bool:
    """Whether a step has rows of more plans than an epoch numbers."""
    return sum(len(each.rows) for each in step.groups) > MAX_PLANS and len(_plans_of(step)) > MAX_PLANS


def _rows(step: GroupStep) -> int:
    return sum(len(rows.partials) for rows in step.rows)


def _row_keys(step: Step) -> Iterator[tuple[Sequence[str], Ints]]:
    for group_step in step.groups:
        for rows in group_step.rows:
            yield rows.keys, rows.partials.key


def _hinted_keys(step: Step) -> Iterator[tuple[Sequence[str], Ints]]:
    """Keys whose earliest open session starts before the step's promise."""
    for group_step in step.groups:
        hints = group_step.hints
        if hints is not None:
            yield hints.keys, hints.codes[hints.starts < group_step.promised_us]


def _silent(frame: Frame) -> bool:
    """Whether a frame contains nothing but frontiers, so that a heartbeat suffices (2.5)."""
    parts = frame.groups
    if any(part.sections or part.late or part.registers or part.more or part.ended for part in parts):
        return False
    return all(part.exceptions is None for part in parts) and frame == Frame(
        frame.epoch, frame.seq, groups=parts, flush=frame.flush
    )
