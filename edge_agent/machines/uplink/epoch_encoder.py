"""Turns a step into the frames of an epoch: gives numbers at first use.

Rules (docs/protocol.md): numbers belong to an epoch, first use defines them, they are never reused (2.4); a frame is at
most 128 kB by construction and never split after numbering (2.1); of several frames of one step only the last carries
the new frontier and exceptions (2.3). What a node serves may come in earlier ones: nothing closes before that frontier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from edge_agent.algebra.aggregates import COLUMNS, renumbered
from edge_agent.algebra.columns import OF_NODES
from edge_agent.algebra.frame import MAX_KEYS, Birth, Frame, GroupPart, Members, Plan
from edge_agent.algebra.partials.arrays import NO_INTS, Ints, distinct
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.sessions import NO_HINT
from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.codec import group_from_plain, group_to_plain, plan_from_plain, plan_to_plain
from edge_agent.machines.uplink.frame_packer import FramePacker
from edge_agent.machines.uplink.session_hints import SessionHints, Stated
from edge_agent.machines.uplink.step import GroupStep, Step, StepRows


class KeysExhausted(Exception):  # noqa: N818 - not an error: the holder opens a new epoch and composes again
    """The epoch has too few numbers left for the keys of a step."""


class EpochEncoder:
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
        self.registers = SessionHints()

    def compose(self, epoch: int, seq: int, step: Step, birth: Birth | None = None) -> list[Frame]:
        """The frames of a step, numbered from seq. Nothing to say gives no frame, except a birth.

        Raises: KeysExhausted before anything was numbered.
        """
        self._check_room(step)
        drafts = FramePacker()
        for text in step.queries:
            self._say(drafts, "queries", text)
        for text in step.sensors:
            self._say(drafts, "sensors", text)
        for group_step in step.groups:
            number = self._group(drafts, group_step.group)
            drafts.list_leaves(number, group_step.leaves)
            for release in group_step.releases:
                self._release(drafts, group_step.group, number, release)
            drafts.list_serving(number, group_step.serving)
        for group_step in step.groups:  # all texts first: they may need one more frame, and registers go into the last
            self._hint_keys(drafts, group_step)
        stated = {self.groups[each.group]: self._hinted(drafts, each) for each in step.groups}
        frames = drafts.frames(epoch, seq, self.keys, self.nodes, birth=birth, flush=step.flush)
        frames = [self.registers.restated(frame) for frame in frames[:-1]] + frames[-1:]
        frames[-1] = self._promise(frames[-1], step, stated)
        self.registers.said(stated)
        return [] if len(frames) == 1 and _silent(frames[0]) else frames

    def restate(self, epoch: int, seq: int) -> list[Frame]:
        """Frames that repeat every number given so far (`cmd rebirth`), for a parent that lost them (2.4)."""
        drafts = FramePacker()
        for key in self.keys:
            drafts.define_key(key)
        for node in self.nodes:
            drafts.define_node(node)
        of_plan = {number: self.groups[group] for (group, _), number in self.plans.items()}
        for group, number in self.groups.items():
            drafts.define_group(number, group)
        for number, plan in self.plan_of.items():
            drafts.define_plan(number, of_plan[number], plan)
        self.said.clear()  # the next step says the definitions again
        return drafts.frames(epoch, seq, self.keys, self.nodes)

    def _check_room(self, step: Step) -> None:
        texts: set[str] = set()
        for group_step in step.groups:
            for release in group_step.releases:
                numbers = self._map("keys", release.keys)
                codes = release.partials.key
                fresh = distinct(codes[numbers[codes] < 0])
                texts.update(release.keys[code] for code in fresh.tolist())
            if group_step.hints is not None:
                hints = group_step.hints
                fresh = hints.codes[self._map("keys", hints.keys)[hints.codes] < 0]
                texts.update(hints.keys[code] for code in distinct(fresh).tolist())
        if len(self.keys) + len(texts - self.keys.keys()) > MAX_KEYS:
            raise KeysExhausted

    def _map(self, kind: str, table: Sequence[str]) -> Ints:
        known = self._maps.get((kind, id(table)))
        numbers = known[1] if known is not None else np.zeros(0, np.int64)
        if len(numbers) < len(table):
            numbers = np.concatenate([numbers, np.full(len(table) - len(numbers), -1, np.int64)])
            self._maps[kind, id(table)] = (table, numbers)
        return numbers

    def _say(self, drafts: FramePacker, kind: Literal["queries", "sensors"], text: str) -> None:
        if text not in self.said:
            self.said.add(text)
            drafts.say(kind, text)

    def _group(self, drafts: FramePacker, group: Group) -> int:
        number = self.groups.get(group)
        if number is None:
            number = self.groups[group] = len(self.groups)
            drafts.define_group(number, group)
        return number

    def _plan(self, drafts: FramePacker, group: Group, group_number: int, plan: Plan) -> int:
        number = self.plans.get((group, plan.hash))
        if number is None:
            number = self.plans[group, plan.hash] = len(self.plans)
            self.plan_of[number] = plan
            drafts.define_plan(number, group_number, plan)
        return number

    def _release(self, drafts: FramePacker, group: Group, number: int, release: StepRows) -> None:
        if len(release.partials):
            plan_number = self._plan(drafts, group, number, release.plan)
            rows = self._numbered(drafts, release)
            drafts.add_rows(number, plan_number, release.plan, rows, late=release.late)

    def _numbered(self, drafts: FramePacker, release: StepRows) -> Partials:
        keys = self._numbers(drafts, "keys", release.keys, release.partials.key)
        states = release.partials.states
        if any(COLUMNS[name].kind in OF_NODES for name in release.plan.basis):
            states = renumbered(
                states, release.plan.basis, lambda codes: self._numbers(drafts, "nodes", release.nodes, codes)
            )
        return Partials(release.partials.start, release.partials.end, keys, states)

    def _numbers(self, drafts: FramePacker, kind: str, table: Sequence[str], codes: Ints) -> Ints:
        """Codes of a table as numbers of the epoch; defines those used for the first time."""
        numbers = self._map(kind, table)
        mapped = numbers[codes]
        if not len(mapped) or mapped.min() >= 0:
            return mapped
        known, define = (self.keys, drafts.define_key) if kind == "keys" else (self.nodes, drafts.define_node)
        for code in distinct(codes[mapped < 0]).tolist():
            text = table[code]
            if text not in known:
                known[text] = len(known)
                define(text)
            numbers[code] = known[text]
        return numbers[codes]

    def _hinted(self, drafts: FramePacker, step: GroupStep) -> Stated:
        """The registers that the last frame of the step states or clears (5.2)."""
        if step.hints is None:
            return ()
        codes, starts_us = self._hint_keys(drafts, step)
        wanted = np.full(len(self.keys), NO_HINT, np.int64)
        np.minimum.at(wanted, codes, starts_us)
        number = self.groups[step.group]
        return self.registers.changed(number, wanted, drafts.last_sections(number))

    def _hint_keys(self, drafts: FramePacker, step: GroupStep) -> tuple[Ints, Ints]:
        """Numbers of the keys whose earliest open session starts before the promise, and those starts."""
        if step.hints is None:
            return NO_INTS, NO_INTS
        below = step.hints.starts < step.promised_us
        codes = self._numbers(drafts, "keys", step.hints.keys, step.hints.codes[below])
        return codes, step.hints.starts[below]

    def _promise(self, frame: Frame, step: Step, stated: Mapping[int, Stated]) -> Frame:
        parts = {part.group: part for part in frame.groups}
        members = list(frame.members)
        for group_step in step.groups:
            number = self.groups[group_step.group]
            said = stated[number]
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
        registers = [[number, said] for number, said in self.registers.snapshot().items()]
        return {**self.snapshot_settled(), "keys": list(self.keys), "registers": registers}

    def snapshot_settled(self) -> dict[str, object]:
        """What definitions and members made; groups and plans in the order of their numbers."""
        return {
            "nodes": list(self.nodes),
            "groups": [group_to_plain(g) for g in self.groups],
            "plans": [[group_to_plain(g), plan_to_plain(self.plan_of[n])] for (g, _), n in self.plans.items()],
            "said": sorted(self.said),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> EpochEncoder:
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
        numbering.registers = SessionHints(state["registers"])
        return numbering


def _silent(frame: Frame) -> bool:
    """Whether a frame says nothing but frontiers: then a heartbeat does (2.5)."""
    bare = tuple(replace(part, frontier_us=None) for part in frame.groups)
    return all(part == GroupPart(part.group) for part in bare) and (
        replace(frame, epoch=0, seq=0, groups=(), flush=None) == Frame(0, 0)
    )
