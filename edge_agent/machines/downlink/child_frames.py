"""The half of a merger and of the root that listens to children: order, numbers, membership, frontiers.

One object so that both tiers apply frames by the same code (docs/protocol.md 2, 4). It holds no rows: whoever owns it
takes those from the effects.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from edge_agent.algebra.frame import NEVER_US, Frame, Gap, GroupPart, Heartbeat
from edge_agent.algebra.partials.arrays import distinct
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Group
from edge_agent.errors import WireError
from edge_agent.machines.checkpoint.codec import group_from_plain, group_to_plain
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.inbox import Effect, Inbox
from edge_agent.machines.events import BadFrame

EVIDENCE_BYTES: Final = 4_096  # of a bad message that travel upward; the hash is of the whole


@dataclass(frozen=True, slots=True)
class Applied:
    """An effect with the book that names its numbers. frame None: settled without content (see Effect.why)."""

    effect: Effect
    book: EpochDictionary


class ChildFrames:
    """Children's frames in, applied frames out."""

    def __init__(self, journal: int, grace_us: int, named: Iterable[str] = ()) -> None:
        """journal: id of this parent's durable state. grace_us, named: see Household."""
        self.inbox = Inbox(journal)
        self.household = Children(grace_us, named)
        self.books: dict[EpochKey, EpochDictionary] = {}
        self.dirty_books: set[tuple[str, int]] = set()
        self.predecessor_lost: set[str] = set()
        self._beats: dict[str, tuple[Heartbeat, int]] = {}  # newest of each child that does not hold yet

    def take(self, node: str, message: Frame | Heartbeat | BadFrame, received_us: int) -> list[Applied]:
        """One message of a child; answers the frames that take effect, in order.

        A frame whose definitions contradict the epoch's earlier ones is settled as bad (3.6): its content is ignored.
        """
        if node in self.household.retired:
            return []
        self.household.heard(node, received_us)
        if isinstance(message, Heartbeat):
            self._beats[node] = (message, received_us)
            self._beat(node)
            return []
        out = [self._apply(effect, received_us) for effect in self.inbox.take(node, message)]
        if out and node in self._beats:
            self._beat(node)
        return out

    def _beat(self, node: str) -> None:
        beat, received_us = self._beats[node]
        if not self.inbox.reached(node, beat.epoch, beat.last_seq):
            return
        del self._beats[node]
        book = self.books.get(EpochKey(node, beat.epoch))
        for number, frontier_us in beat.frontiers:
            if book is not None and number in book.groups:
                family = self.household.family(book.groups[number])
                if node in family.members:
                    family.member(node).promise(frontier_us, received_us, anew=False)

    def loss_of(self, node: str, why: str, payload: bytes, now_us: int) -> list[Gap]:
        """What is lost with a message that could not be read, one record a group of its sender (3.6).

        Its rows closed after the frontier that the sender had promised, so windows from there to now are marked: rather
        too wide than too narrow. The bytes travel in the detail so that the root can show them.
        """
        reason, detail = f"quarantined: {why}", evidence(payload)
        out = []
        for group, family in self.household.families.items():
            member = family.members.get(node)
            if member is not None and member.leaves:
                start_us = max(min(member.frontier_us, now_us), 0)
                out.append(Gap((group,), start_us, now_us + 1, -1, tuple(sorted(member.leaves)), reason, 0, detail))
        return out or [Gap((), 0, 0, -1, (node,), reason, 0, detail)]

    def _apply(self, effect: Effect, received_us: int) -> Applied:
        key = (effect.node, effect.epoch)
        book = self.books.setdefault(EpochKey(*key), EpochDictionary())
        frame = effect.frame
        if frame is None:
            return Applied(effect, book)
        try:
            if frame.define is not None:
                book.learn(frame.define)
                self.dirty_books.add(key)
            parts = [(self._group(book, part.group), part) for part in frame.groups]
            changes = [(self._group(book, change.group), change) for change in frame.members]
            for part in frame.groups:
                for section in (*part.sections, *part.late):
                    if section.plan not in book.plans:
                        raise WireError(f"plan number {section.plan} is not defined in epoch {effect.epoch}")
                    group, plan = book.plans[section.plan]
                    section.check(plan, len(book.keys), len(book.nodes))
                    if plan.kind not in group.cut.plan_kinds:
                        raise WireError(
                            f"plan number {section.plan} of kind {plan.kind} in a group of form {group.cut.text!r}"
                        )
                if any(number >= len(book.keys) for number, _ in part.registers):
                    raise WireError(f"a register of a key that is not defined in epoch {effect.epoch}")
        except WireError as err:
            return Applied(replace(effect, frame=None, why=str(err)), book)
        if effect.stale:
            return Applied(effect, book)
        # a successor named in order continues the promise; an epoch without one may begin lower (1.2)
        anew = frame.birth is not None and not isinstance(frame.birth.predecessor, tuple)
        if frame.birth is not None:
            self._born(effect.node, frame, anew=anew)
        for group, change in changes:
            self.household.family(group).member(effect.node).change(change)
        for group, part in parts:
            self._hint(effect.node, group, part, book)
            self._promise(effect.node, group, part, received_us, anew=anew)
        return Applied(effect, book)

    @staticmethod
    def _group(book: EpochDictionary, number: int) -> Group:
        if number not in book.groups:
            raise WireError(f"group number {number} is not defined in its epoch")
        return book.groups[number]

    def _born(self, node: str, frame: Frame, *, anew: bool) -> None:
        """A birth: all that the node was in begins again."""
        for family in self.household.families.values():
            if node in family.members:
                family.members[node].begin(anew=anew)
        if frame.birth is not None and frame.birth.predecessor == "lost":
            self.predecessor_lost.add(node)

    def _hint(self, node: str, group: Group, part: GroupPart, book: EpochDictionary) -> None:
        """What a frame says of open sessions (5.2)."""
        if not group.cut.gap_us:
            return
        member = self.household.family(group).member(node)
        sent = [number for s in (*part.sections, *part.late) for number in distinct(s.pieces()[0]).tolist()]
        said = [(book.keys[number], start_us) for number, start_us in part.registers]
        member.take_hints([book.keys[number] for number in sent], said)
        if part.frontier_us is not None:
            member.held = {}

    def _promise(self, node: str, group: Group, part: GroupPart, received_us: int, *, anew: bool) -> None:
        family = self.household.family(group)
        if part.frontier_us is not None or anew:
            frontier_us = NEVER_US if part.frontier_us is None else part.frontier_us
            family.member(node).promise(frontier_us, received_us, anew=anew)
        if part.exceptions is not None:
            family.member(node).except_leaves(part.exceptions)

    def snapshot_families(self) -> list[object]:
        """Plain values of every group's family."""
        return [[group_to_plain(g), f.snapshot()] for g, f in self.household.families.items()]

    def snapshot(self, pack: Callable[[Frame | BadFrame], object]) -> dict[str, object]:
        """Everything as plain values, for a holder that writes it whole (the root's decision row)."""
        return {
            "household": self.household.snapshot(),
            "families": self.snapshot_families(),
            "lines": [
                [node, epoch, self.inbox.snapshot_line((node, epoch)), [[s, pack(f)] for s, f in line.waiting.items()]]
                for (node, epoch), line in self.inbox.lines.items()
            ],
            "books": [[node, epoch, book.snapshot()] for (node, epoch), book in self.books.items()],
            "beats": [
                [node, beat.epoch, beat.last_seq, beat.frontiers, received_us]
                for node, (beat, received_us) in self._beats.items()
            ],
        }

    def restore(self, state: Mapping[str, Any], unpack: Callable[[Any], Frame | BadFrame]) -> None:
        """The twin of `snapshot`."""
        self.household.restore(state["household"])
        self.restore_families(state["families"])
        for node, epoch, line, waiting in state["lines"]:
            self.inbox.restore_line((node, epoch), line, {s: unpack(f) for s, f in waiting})
        self.books = {EpochKey(node, epoch): EpochDictionary.restore(book) for node, epoch, book in state["books"]}
        self._beats = {
            node: (Heartbeat(epoch, last_seq, frontiers), received_us)
            for node, epoch, last_seq, frontiers, received_us in state["beats"]
        }

    @staticmethod
    def groups_to_plain(by_group: Mapping[Group, int]) -> list[object]:
        """A number a group as plain values."""
        return [[group_to_plain(g), n] for g, n in by_group.items()]

    @staticmethod
    def groups_from_plain(state: Iterable[Any]) -> dict[Group, int]:
        """The twin of `groups_to_plain`."""
        return {group_from_plain(g): n for g, n in state}

    def restore_families(self, state: Iterable[Any]) -> None:
        """The twin of `snapshot_families`."""
        for group, family in state:
            restored = GroupMembership.restore(self.household.grace_us, family)
            self.household.families[group_from_plain(group)] = restored


def evidence(payload: bytes) -> str:
    """A bad message as text: its length, SHA-256 and first bytes in base64."""
    head = base64.b64encode(payload[:EVIDENCE_BYTES]).decode("ascii")
    return f"{len(payload)} bytes, sha256 {hashlib.sha256(payload).hexdigest()}, base64 {head}"
