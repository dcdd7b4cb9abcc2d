"""The region: children's partials in, merged partials out, one tier up. Any depth; both sides may be one broker.

Rules (docs/protocol.md): dedupe marks, merged state and outgoing frames are one transaction, receipts come after it
(3.1, 3.2); a receipt is repeated for every duplicate and when a child comes online (3.2); a slice leaves when the
frontier over the expected children passes its end (4.4); frames upward carry the leaves left out and every change of
who is below (4.6); gap records and definitions are passed on unchanged (3.5, 6.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from edge_agent.algebra.frame import NEVER_US, ExcludedLeaf, Frame, Gap, Leaf, Serving
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.append_only import AppendOnlyTable
from edge_agent.machines.checkpoint.membership_slots import MembershipSlots
from edge_agent.machines.downlink.child_frames import Applied, ChildFrames
from edge_agent.machines.downlink.epoch_dictionary import EpochDictionary
from edge_agent.machines.events import (
    Action,
    Arrived,
    BadEnvelope,
    BadFrame,
    ChildStatus,
    Event,
    LowerLink,
    Note,
    Quarantine,
    Restored,
    Retire,
    SendReceipt,
)
from edge_agent.machines.node import Node, NodeSettings, refuse
from edge_agent.machines.region.partial_store import PartialStore
from edge_agent.machines.uplink.step import GroupStep, Step


class Merger(Node):
    """An inner node of the tree."""

    def __init__(
        self,
        settings: NodeSettings,
        random: Random,
        restored: Restored | None = None,
        load: Callable[[int, int], Frame] | None = None,
        *,
        grace_us: int,
        named: Iterable[str] = (),
        pack: Callable[[Frame | BadFrame], object] = lambda f: f,
        unpack: Callable[[Any], Frame | BadFrame] = lambda f: f,
    ) -> None:
        """named: children expected before they are heard. pack, unpack: a waiting frame to a plain value and back."""
        restored = restored or Restored({})
        super().__init__(settings, random, restored, load or _no_frames)
        state = restored.state
        journal = state.get("journal")
        self.journal = journal if isinstance(journal, int) else random.getrandbits(63) | 1
        self.parent = ChildFrames(self.journal, grace_us, named)
        self.parent.household.link(0, up=False)  # silence counts only from LowerLink(up) on (4.4)
        self.pool = PartialStore()
        self._pack = pack
        self._owed: set[tuple[str, int]] = set()  # receipts to send after the next commit
        self._gaps: list[Gap] = []
        self._texts: tuple[dict[str, None], dict[str, None]] = ({}, {})  # queries, sensors in order of arrival
        self._said_leaves: dict[Group, dict[str, Leaf]] = {}
        self._said_serving: dict[Group, dict[tuple[str, int, str], Serving]] = {}
        self._said_out: dict[Group, tuple[ExcludedLeaf, ...]] = {}
        self._promised: dict[Group, int] = {}
        self._new = not state
        self._settled = MembershipSlots(state)
        self._names: dict[tuple[str, int], AppendOnlyTable] = {}  # keys of each child's epoch, as they are spooled
        if state:
            self._recover(state, unpack)

    def _ready(self) -> bool:
        return True

    def _handle(self, event: Event, now_us: int) -> list[Action]:
        out: list[Action] = []
        match event:
            case Arrived(messages):
                for child, message, token in messages:
                    self._wait_for(token, now_us)
                    if isinstance(message, BadEnvelope):
                        out += self._quarantine(child, message.reason, message.payload, now_us)
                        continue
                    self._owe(child, message)
                    for applied in self.parent.take(child, message, now_us):
                        out += self._apply(child, applied, message, now_us)
                for node, epochs in self.parent.inbox.rivals.items():
                    out.append(Note("node.two_with_one_id", {"node": node, "epochs": list(epochs)}))
                self.parent.inbox.rivals.clear()
            case ChildStatus(node, online):
                if online:
                    self._owed.add((node, self.parent.inbox.current.get(node, 0)))
            case LowerLink(up):
                self.parent.household.link(now_us, up=up)
            case Retire(node):
                self.parent.household.retire(node)
            case _:
                raise refuse(event, self.settings.node)
        return out

    def _owe(self, child: str, message: Any) -> None:
        """Frames always get a receipt; a heartbeat only when it shows that the child knows less than it could."""
        beat = not isinstance(message, (Frame, BadFrame))
        if not beat or message.last_seq < 0 or not self.parent.inbox.known(child, message.epoch):
            self._owed.add((child, message.epoch))

    def _quarantine(self, child: str, why: str, payload: bytes, now_us: int) -> list[Action]:
        """Keep the bytes here and tell the tiers above what is lost with them."""
        if child not in self.parent.household.retired:
            self._gaps += self.parent.loss_of(child, why, payload, now_us)
        return [Quarantine(child, why, payload)]

    def _apply(self, child: str, applied: Applied, message: Any, now_us: int) -> list[Action]:
        effect, frame = applied.effect, applied.effect.frame
        if frame is None:
            payload = message.payload if isinstance(message, BadFrame) else b""
            return self._quarantine(child, effect.why, payload, now_us)
        for part in frame.groups:
            for section in part.sections:
                self.pool.add(child, effect.epoch, applied.book, section, late=effect.stale)
            for section in part.late:
                self.pool.add(child, effect.epoch, applied.book, section, late=True)
        self._gaps += frame.gaps
        if frame.define is not None:
            self._texts[0].update(dict.fromkeys(frame.define.queries))
            self._texts[1].update(dict.fromkeys(frame.define.sensors))
        return []

    # --- a commit -----------------------------------------------------------------------------------------------

    def _flush_step(self, now_us: int) -> Step:
        del now_us
        self.pool.absorb(self._promised)
        families = self.parent.household.families
        steps = []
        for group in self.pool.groups():
            releases = self.pool.flush(group)
            below = families[group].hints() if group in families else {}
            hints = self.pool.hints(group, below)  # what children hold of a key stays stated (5.2)
            promised_us = self._promised.get(group, NEVER_US)
            steps.append(GroupStep(group, None, releases, promised_us=promised_us, hints=hints))
        return Step(tuple(steps))

    def _birth_step(self, now_us: int) -> Step:
        steps = []
        for group, family in self.parent.household.families.items():
            frontier_us = self._promised.get(group, NEVER_US)
            self._said_out[group] = family.exceptions_at(frontier_us)
            leaves = self._said_leaves[group] = self._leaves(group)
            serving = self._said_serving[group] = self._servings(group, now_us)
            steps.append(
                GroupStep(
                    group,
                    frontier_us if frontier_us > NEVER_US else None,
                    exceptions=self._said_out[group] or None,
                    leaves=tuple(leaves.values()),
                    serving=tuple(serving.values()),
                    promised_us=frontier_us,
                    hints=self.pool.hints(group, family.hints()),
                )
            )
        return Step(tuple(steps), tuple(self._texts[0]), tuple(self._texts[1]))

    def _leaves(self, group: Group) -> dict[str, Leaf]:
        members = self.parent.household.families[group].expected().values()
        return {name: leaf for member in members for name, leaf in member.leaves.items()}

    def _servings(self, group: Group, now_us: int) -> dict[tuple[str, int, str], Serving]:
        """What is told of each query: for all below, and for each leaf that begins later."""
        family = self.parent.household.families[group]
        told = {(q, r, ""): serving for (q, r), serving in family.serving(now_us).items()}
        for (query, revision), leaves in family.begins().items():
            for leaf, start_us in leaves.items():
                told[query, revision, leaf] = Serving(query, revision, start_us, node=leaf)
        return told

    def _step(self, now_us: int) -> Step:
        self.pool.absorb(self._promised)
        frontiers = self.parent.household.weigh(now_us)
        steps = []
        for group, frontier_us in frontiers.items():
            steps.append(self._group_step(group, frontier_us, now_us))
            self._promised[group] = frontier_us
            if self.parent.household.families[group].gone and not self.pool.holds(group):  # said with this step
                del self.parent.household.families[group]
                for known in (self._promised, self._said_leaves, self._said_serving, self._said_out):
                    known.pop(group, None)
        gaps, self._gaps = tuple(self._gaps), []
        return Step(tuple(steps), tuple(self._texts[0]), tuple(self._texts[1]), gaps)

    def _group_step(self, group: Group, frontier_us: int, now_us: int) -> GroupStep:
        family = self.parent.household.families[group]
        said = self._said_leaves.get(group, {})
        leaves = self._said_leaves[group] = self._leaves(group)
        said_serving = self._said_serving.get(group, {})
        serving = self._said_serving[group] = self._servings(group, now_us)
        over = [Serving(*key[:2], node=key[2]) for key in said_serving if key[2] and key not in serving]
        below = family.hints() if group.cut.gap_us else {}
        out = family.exceptions_at(frontier_us)
        exceptions = None if out == self._said_out.get(group, ()) else out
        self._said_out[group] = out
        releases = self.pool.release(group, frontier_us, below)  # hints are of what stays
        return GroupStep(
            group,
            frontier_us if frontier_us > self._promised.get(group, NEVER_US) else None,
            releases,
            exceptions,
            tuple(leaf for name, leaf in leaves.items() if said.get(name) != leaf),
            tuple(name for name in said if name not in leaves),
            (*(s for key, s in serving.items() if said_serving.get(key) != s), *over),
            frontier_us,
            self.pool.hints(group, below),
        )

    def _after_commit(self) -> list[Action]:
        out = super()._after_commit()
        owed, self._owed = sorted(self._owed), set()
        for node, epoch in owed:
            receipt = self.parent.inbox.receipt(node, epoch)
            out.append(SendReceipt(node, replace(receipt, horizon_us=self.horizon_us)))
        return out

    def _state(self, now_us: int) -> Mapping[str, object]:
        parent = self.parent
        families, settled = self._settled.changes(parent.snapshot_families())
        state: dict[str, object] = {
            "household": parent.household.snapshot(),
            "families": families,
            "promised": parent.groups_to_plain(self._promised),
            **settled,
        }
        if self._new:
            state["journal"], self._new = self.journal, False
        for key in parent.inbox.changed:
            node, epoch = key
            line = parent.inbox.snapshot_line(key)
            state[f"line/{node}/{epoch}"] = line and {
                **line,
                "waiting": [[s, self._pack(f)] for s, f in parent.inbox.lines[key].waiting.items()],
            }
            if line is None:
                parent.books.pop(EpochKey(*key), None)
                self.pool.forget(node, epoch)
                state[f"book/{node}/{epoch}"] = None
                names = self._names.pop(key, None)
                state.update({} if names is None else names.changes((), anew=True))
        parent.inbox.changed.clear()
        for key in parent.dirty_books & parent.books.keys():
            book, name = parent.books[EpochKey(*key)], f"{key[0]}/{key[1]}"
            state[f"book/{name}"] = {**book.snapshot(), "keys": []}
            state.update(self._names.setdefault(key, AppendOnlyTable(f"names/{name}")).changes(book.keys))
            state["texts"] = [list(self._texts[0]), list(self._texts[1])]
        parent.dirty_books.clear()
        state.update(self.pool.snapshot())
        return state

    def _recover(self, state: Mapping[str, Any], unpack: Callable[[Any], Frame | BadFrame]) -> None:
        parent = self.parent
        parent.household.restore(state["household"])
        parent.household.link(0, up=False)
        parent.restore_families(MembershipSlots.read(state["families"], state))
        for family in parent.household.families.values():
            family.forget_history()
        self._promised = parent.groups_from_plain(state["promised"])
        for slot, value in state.items():
            kind, _, rest = slot.partition("/")
            if kind not in ("line", "book"):
                continue
            node, _, epoch = rest.partition("/")
            if kind == "book":
                self._names[node, int(epoch)] = AppendOnlyTable(f"names/{rest}", state)
                keys = AppendOnlyTable.read(f"names/{rest}", state)
                parent.books[EpochKey(node, int(epoch))] = EpochDictionary.restore({**value, "keys": keys})
            else:
                parent.inbox.restore_line((node, int(epoch)), value, {s: unpack(f) for s, f in value["waiting"]})
        queries, sensors = state.get("texts", ([], []))
        self._texts = (dict.fromkeys(queries), dict.fromkeys(sensors))
        self.pool.restore(state)

    def _stepped_back(self, now_us: int) -> None:
        self.parent.household.stepped_back(now_us)

    def _frontiers(self) -> Mapping[Group, int]:
        return self._promised

    def counters(self) -> dict[str, Any]:
        """Numbers for `status`."""
        silent = self.parent.household.silent(self._committed_us or 0)
        return {"spooled": self.outbox.spooled, "children": {n: not quiet for n, quiet in silent.items()}}


def _no_frames(epoch: int, seq: int) -> Frame:
    raise KeyError((epoch, seq))
