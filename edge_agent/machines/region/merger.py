"""The merger receives partials of its children and sends merged partials to its parent, at any depth of the tree.

The children and the parent may use the same broker. Rules (docs/protocol.md): one transaction stores duplicate marks,
merged state and outgoing frames, and receipts follow it; a receipt is repeated for every duplicate and when a child
comes online (3.1, 3.2). A slice leaves when the frontier over the expected children passes its end (4.4). Frames upward
state which leaves are left out, and every change of the leaves below (4.6). Gap records and definitions are passed on
unchanged (3.5, 6.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from edge_agent.algebra.frame import LOST, NEVER_US, Frame, Gap, Leaf, Serving
from edge_agent.algebra.query.key import EpochKey, QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.text_shares import TextShares
from edge_agent.machines.checkpoint.append_only import AppendOnlyTable
from edge_agent.machines.checkpoint.damage import journal_of
from edge_agent.machines.checkpoint.membership_slots import MembershipSlots
from edge_agent.machines.checkpoint.slots import (
    CHILD_KEYS,
    CHILDREN,
    DICTIONARY,
    ENDED,
    ENDED_FLUSHES,
    EPOCH,
    JOURNAL,
    JOURNAL_AGAIN,
    PROMISED,
    RECEIVED,
    TEXTS,
    UNNAMED,
    WAITING,
    epoch_key,
)
from edge_agent.machines.downlink.child_frames import Applied, ChildFrames
from edge_agent.machines.downlink.clock_steps import ClockSteps
from edge_agent.machines.downlink.definitions import MOST_TEXTS, Definitions
from edge_agent.machines.downlink.epochs.counting import ALL
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.losses.bad_messages import unreadable
from edge_agent.machines.downlink.losses.loss_records import undated
from edge_agent.machines.downlink.member import AHEAD_US
from edge_agent.machines.events import (
    Action,
    Arrived,
    BadEnvelope,
    BadFrame,
    ChildStatus,
    Event,
    LowerLink,
    Quarantine,
    Restored,
    Retire,
    SendReceipt,
)
from edge_agent.machines.node import Node, refuse
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.child_alarms import ChildAlarms
from edge_agent.machines.region.partial_store import PartialStore
from edge_agent.machines.region.sent_upward import SentGroup, SentUpward, known_leaves, until_the_last_frame
from edge_agent.machines.region.stated_ranges import StatedRanges
from edge_agent.machines.uplink.step import GroupStep, Report, Step


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
        gateways_only: bool | None = False,
        definitions: Definitions | None = None,
        pack: Callable[[Frame | BadFrame], object] = lambda f: f,
        unpack: Callable[[Any], Frame | BadFrame] = lambda f: f,
    ) -> None:
        """grace_us: see Children. named: children expected before they are heard. gateways_only: see ChildFrames.

        definitions: those that the operator published; None: the definitions in children's frames count. pack, unpack:
        convert a waiting frame to a plain value and back.
        """
        restored = restored or Restored({})
        super().__init__(settings, random, restored, load or _no_frames)
        state, known = restored.state, journal_of(restored.state)
        self.journal = known or random.getrandbits(63) | 1
        if known is None:  # new, or without its spool: the parent may know leaves of an earlier journal (3.7)
            self.outbox.predecessor = LOST
        self.parent = ChildFrames(self.journal, grace_us, named, gateways_only=gateways_only)
        self.parent.children.link(0, up=False)  # silence counts only from LowerLink(up) on (4.4)
        self.store = PartialStore(lambda of: known_leaves(self.sent, self.parent.children.memberships, of))
        self._pack = pack
        self._owed: set[EpochKey] = set()  # epochs to receipt after the next commit
        self._receipts: list[Action] = []  # receipts to send after the commit under way
        self._unnamed = True  # some definition may no longer be named by any frame
        self._after: list[Action] = []  # notes and bad bytes to return after the commit under way
        self._gaps: list[Gap] = []  # gap records for the next step
        self._alarms = ChildAlarms()
        self._sensors = TextShares(MOST_TEXTS)  # definition texts of sensors
        if definitions is not None:
            self.parent.known = definitions
        self.sent = SentUpward()
        self._clock_steps = ClockSteps()
        self._membership_slots = MembershipSlots(state)
        self._child_keys: dict[EpochKey, AppendOnlyTable] = {}  # the key table of each child's epoch
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
                    if isinstance(message, BadEnvelope):  # if it was a frame, the child sends or declares it (3.6)
                        if child not in self.parent.children.retired:
                            self._gaps.append(unreadable(child, message.reason, message.payload))
                        out.append(Quarantine(child, message.reason, message.payload))
                        continue
                    self._owe(child, message)
                    for applied in self.parent.take(child, message, now_us):
                        out += self._apply(child, applied, message, now_us)
                self._gaps += (gap for _, gap in self.parent.lives.take_found())
                self.sent.begin_again(self.parent.children.memberships)
                self._dirty |= self.store.full
                out += self._alarms.look(self.parent.inbox)
            case ChildStatus(node, online):
                if online:
                    self._owed.add(EpochKey(node, self.parent.inbox.current.get(node, 0)))
            case LowerLink(up):
                self.parent.children.link(now_us, up=up)
            case Retire(node):
                self.sent.retire(node, self.parent.children.memberships)
                self._gaps += self.parent.retire(node, now_us)
            case _:
                raise refuse(event, self.settings.node)
        return out

    @property
    def alarms(self) -> Mapping[str, str]:
        return self._alarms.alarmed

    @property
    def _retired(self) -> set[str]:
        return self.parent.children.retired

    def _owe(self, child: str, message: Any) -> None:
        """Owe a receipt: always for a frame; for a heartbeat only if it asks, or its epoch or birth is unknown here."""
        beat = not isinstance(message, (Frame, BadFrame))
        inbox = self.parent.inbox
        if (
            not beat
            or message.last_seq < 0
            or not inbox.known(child, message.epoch)
            or inbox.unborn(child, message.epoch)
        ):
            self._owed.add(EpochKey(child, message.epoch))

    def _apply(self, child: str, applied: Applied, message: Any, now_us: int) -> list[Action]:
        effect, frame = applied.effect, applied.effect.frame
        self._gaps += applied.losses
        if frame is None:
            self._owed.add(EpochKey(child, effect.epoch))  # the child may have to state its numbers again (2.4)
            return [Quarantine(child, effect.why, message.payload if isinstance(message, BadFrame) else b"")]
        of = EpochKey(child, effect.epoch)
        for part in frame.groups:
            for late, sections in ((effect.stale, part.sections), (True, part.late)):
                for section in sections:
                    counting = effect.counting.get(section.plan, ALL)
                    repeated = self.store.add(of, applied.dictionary, section, late=late, counting=counting)
                    self.parent.received -= repeated
        self._gaps += (replace(gap, run=0) for gap in frame.gaps)  # run=0: they replace no frame of this node
        if frame.define is not None:
            gateways = self.parent.gateways_below(child) if frame.define.sensors else 1
            taken = [self._sensors.add(text, child, gateways) for text in frame.define.sensors]
            self.parent.known.not_taken += taken.count(False)
        return []

    # --- a commit -----------------------------------------------------------------------------------------------

    def _flush_step(self, now_us: int) -> Step:
        del now_us
        self.store.absorb(self._frontiers())
        memberships = self.parent.children.memberships
        steps = []
        for group in self.store.groups():
            rows = self.store.flush(group)
            # with the children's registers, which stay stated (5.2)
            hints = self.store.hints(group, memberships[group].hints() if group in memberships else {})
            steps.append(GroupStep(group, None, rows, promised_us=self.sent.of(group).frontier_us, hints=hints))
        return Step(tuple(steps))

    def _birth_step(self, now_us: int, *, goes_on: bool = False) -> Step:
        steps, stated = [], self.parent.servings(now_us)
        for group, membership in self.parent.children.memberships.items():
            sent = self.sent.of(group)
            leaves = self._leaves(group)
            exceptions = membership.exceptions_at(sent.frontier_us)
            if goes_on:
                exceptions = until_the_last_frame(sent.excepted, leaves, sent.leaves)
            if not goes_on or exceptions != sent.excepted:
                sent.exceptions = sent.excepted = exceptions
            sent.leaves, sent.serving, sent.settled = leaves, StatedRanges.of(membership, stated[group]), False
            steps.append(
                GroupStep(
                    group,
                    sent.frontier_us if sent.frontier_us > NEVER_US else None,
                    exceptions=exceptions or None,
                    leaves=tuple(sent.leaves.values()),
                    serving=sent.serving.all(),
                    promised_us=sent.frontier_us,
                    hints=self.store.hints(group, membership.hints()),
                )
            )
        self.sent.unstated.update(self.parent.children.retired)
        return Step(tuple(steps), tuple(self.parent.known.texts), tuple(self._sensors), self.sent.take_retired())

    def _leaves(self, group: Group) -> dict[str, Leaf]:
        found = self.parent.children.memberships[group].leaves()
        if not self.outbox.moved_from[1]:
            return found
        return {name: self.outbox.as_moved(group, leaf) for name, leaf in found.items()}

    def _unstated(self) -> bool:
        return any(self._leaves(group) != self.sent.of(group).leaves for group in self.parent.children.memberships)

    def _step(self, now_us: int) -> Step:
        for child, applied in self.parent.look(now_us):
            self._after += self._apply(child, applied, None, now_us)
        self._after += self._alarms.look(self.parent.inbox)
        self.store.absorb(self._frontiers())
        memberships, steps, crowded = self.parent.children.memberships, [], self.store.crowded()
        frontiers, stated = self.parent.children.advance_frontiers(now_us), self.parent.servings(now_us)
        for group, frontier_us in frontiers.items():
            steps.append(self._group_step(group, frontier_us, stated[group], early=group in crowded))
            over = memberships[group].gone and not self.sent.groups[group].serving  # this step drops its last leaves
            if over and not self.store.holds(group):
                self.sent.end(group, frontier_us)
                del memberships[group]
                self._unnamed = True
        gaps = self._losses()
        self._after += [Quarantine(child, why, b"") for child, why in self.parent.known.overdue(now_us)]
        return Step(tuple(steps), tuple(self.parent.known.texts), tuple(self._sensors), gaps)

    def _group_step(
        self, group: Group, frontier_us: int, stated: Mapping[QueryKey, Serving], *, early: bool
    ) -> GroupStep:
        membership, before = self.parent.children.memberships[group], self.sent.of(group)
        below = membership.hints() if group.cut.gap_us else {}
        changes = bool(before.retired) or group in self.outbox.moved_from[1]
        if not changes and before.stays(membership, stated, frontier_us):  # as nearly always: nothing is made anew
            rows = self.store.flush(group) if early else self.store.release(group, frontier_us, below)
            rose_to_us = frontier_us if frontier_us > before.frontier_us else None
            before.frontier_us = frontier_us
            return GroupStep(group, rose_to_us, rows, promised_us=frontier_us, hints=self.store.hints(group, below))
        leaves = self._leaves(group)
        replaced = (self.outbox.as_moved(group, each) for each in membership.moves.take_skipped())
        skipped = before.never_stated(replaced, {*leaves, *membership.moves.ended})
        again = {leaf.node for leaf in skipped}  # listed again behind these entries
        after = self.sent.groups[group] = SentGroup(
            frontier_us,
            leaves,
            StatedRanges.of(membership, stated) if leaves else StatedRanges(),  # the last leaf takes them along (6.3)
            membership.exceptions_at(frontier_us),
            until_the_last_frame(before.exceptions, leaves, before.leaves, again),
            settled=not changes and membership.settled,
        )
        after.serving, over = after.serving.without(before.serving, membership) if leaves else (after.serving, [])
        reports = membership.moves.passed_on()
        left = tuple((each and self.outbox.as_moved(group, each), report) for each, report in reports)
        gone = {leaf.node: None for _, leaf in left}
        known = {} if before.leaves == leaves else before.leaves
        # open rows must leave no later than the report of a `leave` (1.5)
        rows = self.store.flush(group) if left or early else self.store.release(group, frontier_us, below)
        return GroupStep(
            group,
            frontier_us if frontier_us > before.frontier_us else None,
            rows,
            None if before.exceptions == after.exceptions == after.excepted and not left else after.exceptions,
            tuple(leaf for name, leaf in leaves.items() if name in again or before.leaves.get(name) != leaf),
            tuple(n for n in {**known, **before.retired} if n not in leaves and n not in gone),
            (*after.serving.since(before.serving), *over),
            frontier_us,
            self.store.hints(group, below),
            after.excepted,
            left=left,
            stay=tuple(after.leaves[name] for name in gone if name in after.leaves),
            skipped=skipped,
        )

    def _in_no_slot(self) -> Step:
        self.store.absorb(self._frontiers())
        late = ((group, self.store.late(group)) for group in self.store.groups())
        return Step(tuple(GroupStep(group, rows=rows) for group, rows in late if rows), gaps=self._losses())

    def _losses(self) -> tuple[Gap, ...]:
        gaps, self._gaps, self.store.lost = (*self._gaps, *self.store.lost), [], []
        return (*self.sent.take_retired(), *map(undated, gaps))

    def _withhold(self, step: Step) -> Step:
        """Keep the exceptions sent last. Without its registers a leaf that is back would count up to the promise."""
        groups = []
        for each in super()._withhold(step).groups:
            sent = self.sent.groups.get(each.group)
            if sent is not None and each.exceptions is not None:
                kept = tuple(one for one in sent.excepted if one.node in sent.leaves)
                sent.exceptions = sent.excepted = kept
                each = replace(each, exceptions=kept)
            groups.append(each)
        return replace(step, groups=tuple(groups))

    def _after_commit(self) -> list[Action]:
        receipts, after, self._receipts, self._after = self._receipts, self._after, [], []
        return [*super()._after_commit(), *receipts, *after]

    def _owed_receipts(self) -> list[Action]:
        """Make the receipts owed. They are sent after the commit under way, which stores all that they name (3.2)."""
        owed, self._owed = sorted(self._owed), set()
        found = ((node, self.parent.inbox.receipt(node, epoch)) for node, epoch in owed)
        return [SendReceipt(node, replace(receipt, horizon_us=self.horizon_us)) for node, receipt in found]

    def _state(self, now_us: int) -> Mapping[str, object]:
        parent, inbox, children = self.parent, self.parent.inbox, self.parent.children
        self.sent.settle()
        self._receipts = self._owed_receipts()
        rows: dict[str, object] = {
            **self._slots.changes(JOURNAL, self.journal),
            **self._slots.changes(JOURNAL_AGAIN, self.journal),
            **self._slots.changes(RECEIVED, parent.received),
            **self._slots.changes(CHILDREN, children.snapshot()),
            **self._membership_slots.changes(parent.snapshot_memberships(history=False), children.take_retired()),
            **self._slots.changes(PROMISED, self.sent.promised()),
        }
        for key, seq in inbox.waiting.take_changed():
            message = inbox.epochs[key].waiting.get(seq) if key in inbox.epochs else None
            packed: Any = None if message is None else self._pack(message)
            rows |= WAITING.write(packed, *key, seq)
        for node in sorted(inbox.ended.changed):  # in order, so that a commit does not depend on hashes
            rows |= ENDED.write(inbox.ended.of[node], node)
            rows |= ENDED_FLUSHES.write(inbox.ended.snapshot_flushes(node), node)
        inbox.ended.changed.clear()
        for key in sorted(inbox.changed):
            state = inbox.snapshot(key)
            rows |= EPOCH.write(state, *key)
            if state is None:
                parent.dictionaries.pop(key, None)
                self._unnamed = True
                self.store.forget(key)
                rows |= DICTIONARY.write(None, *key)
                spooled = self._child_keys.pop(key, None)
                rows |= {} if spooled is None else spooled.changes((), anew=True)
        inbox.changed.clear()
        for key in sorted(parent.changed_dictionaries & parent.dictionaries.keys()):
            dictionary = parent.dictionaries[key]
            spooled = self._child_keys.setdefault(key, AppendOnlyTable(f"{CHILD_KEYS}/{key.node}/{key.epoch}"))
            rows |= DICTIONARY.write(dictionary.snapshot(keys=False), *key) | spooled.changes(dictionary.keys)
        if self._forget_texts() or parent.changed_dictionaries:
            rows |= TEXTS.write(([*parent.known.texts, *parent.known.held], list(self._sensors)))
            rows |= UNNAMED.write(sorted(parent.known.unnamed))
        parent.changed_dictionaries.clear()
        tidied, open_rows = self.store.tidied, self.store.snapshot()
        if self.store.tidied != tidied:
            self.outbox.encoder.forget_tables()
        return rows | open_rows

    def _forget_texts(self) -> bool:
        """Forget queries that no child and no row names, so that births do not state them. Returns whether any were."""
        unnamed, self._unnamed = self._unnamed, False
        if not unnamed:
            return False
        gone = self.parent.forget_texts(self.parent.known.revisions() - self.store.named())
        for membership in self.parent.children.memberships.values():
            for key in gone:
                membership.forget(key)
        return bool(gone)

    def _recover(self, state: Mapping[str, Any], unpack: Callable[[Any], Frame | BadFrame]) -> None:
        parent = self.parent
        if (children := CHILDREN.read(state)) is not None:
            parent.children.restore(children)
        parent.children.link(0, up=False)
        parent.restore_memberships(MembershipSlots.read(state), MembershipSlots.retired(state))
        for membership in parent.children.memberships.values():
            membership.forget_history()  # in a spool of an earlier version
        for group, us in (PROMISED.read(state) or {}).items():
            self.sent.restore(group, us, ended=group not in parent.children.memberships)
        parent.inbox.ended.restore(ENDED.each(state), ENDED_FLUSHES.each(state))
        waiting: dict[EpochKey, dict[int, Frame | BadFrame]] = {}
        for name, packed in WAITING.each(state):
            of, _, seq = name.rpartition("/")
            waiting.setdefault(epoch_key(of), {})[int(seq)] = unpack(packed)
        for name, epoch in EPOCH.each(state):
            key = epoch_key(name)
            former = {seq: unpack(message) for seq, message in epoch.waiting or ()}
            parent.inbox.restore(key, epoch, former or waiting.get(key, {}))
            if former:
                parent.inbox.changed.add(key)  # the next commit writes each frame to a row of its own
        if not any(epoch.waiting for _, epoch in EPOCH.each(state)):
            parent.inbox.waiting.take_changed()
        for name, dictionary in DICTIONARY.each(state):
            key, table = epoch_key(name), f"{CHILD_KEYS}/{name}"
            self._child_keys[key] = AppendOnlyTable(table, state)
            found = replace(dictionary, keys=AppendOnlyTable.read(table, state))
            parent.dictionaries[key] = EpochDictionary.restore(found)
        queries, sensors = TEXTS.read(state) or ([], [])
        for text in queries:
            parent.known.add(text)
        parent.known.unnamed = set(UNNAMED.read(state) or ())
        parent.name_known()
        self._sensors = TextShares(MOST_TEXTS, sensors)
        self.store.restore(state)
        parent.received = self.store.readings if (received := RECEIVED.read(state)) is None else received

    def _elapsed(self, before_us: int, now_us: int) -> None:
        self.parent.ahead_us = self._clock_steps.look(before_us, now_us)
        self.parent.children.pass_time(before_us, now_us, known=self.clock.known)

    def _stepped(self, by_us: int) -> None:
        self.parent.children.shift(by_us)
        self.parent.inbox.shift(by_us)

    def _clock_found(self, now_us: int) -> None:
        promises = (*self.sent.promised().values(), *self.parent.children.promises())
        if max(promises, default=now_us) > now_us + AHEAD_US:
            self._reborn = self._dirty = True  # the clock of the previous process was ahead
            self._stepped_back(now_us)

    def _stepped_back(self, now_us: int) -> None:
        self.parent.children.stepped_back(now_us)
        self.parent.inbox.stepped_back(now_us)
        for lowered in self.sent.stepped_back(now_us, self.parent.children.memberships):
            self._late.note(*lowered)  # rows that have left lie above what is promised now (3.7)

    def _reached(self) -> Mapping[Group, int]:
        return self.sent.reached(self.parent.children.memberships)

    def _report_again(self, reports: Mapping[Group, Sequence[Report]]) -> None:
        self.parent.children.report_again(reports)
        self.sent.begin_again(self.parent.children.memberships)

    def _listed(self) -> Mapping[Group, Sequence[Leaf]]:
        """Also leaves whose leave is not passed on yet, because the parent expects them below this node until then."""
        memberships = self.parent.children.memberships.items()
        return {group: tuple({**each.moves.ended, **each.leaves()}.values()) for group, each in memberships}

    def _leaf_names(self) -> Mapping[Group, tuple[str, ...]]:
        return {group: tuple(sorted(self._leaves(group))) for group in self.parent.children.memberships}

    def _frontiers(self) -> Mapping[Group, int]:
        return self.sent.frontiers()

    def book(self) -> dict[str, Any]:
        """The node's counts (see Node.book), with readings received and open, and counts of each child.

        children: child -> [epoch in force, next seq, readings that took effect since the first epoch of its line (None:
        not known), refused frames of the epoch].
        """
        children = {
            node: [self.parent.inbox.current[node], line.applied.next, line.readings, line.refused]
            for node, line in self.parent.inbox.lines().items()
        }
        return {
            **super().book(),
            "received": self.parent.received,
            "open": self.store.readings,
            "children": children,
        }

    def counters(self) -> dict[str, Any]:
        silent = self.parent.children.silent(self._committed_us or 0)
        inbox = self.parent.inbox
        return {
            "spooled": self.outbox.spooled,
            "children": {n: not quiet for n, quiet in silent.items()},
            "turned_away": inbox.refused,
            "beyond_bounds": {
                "epochs": inbox.forgotten,
                "definitions": self.parent.known.not_taken,
                "groups": self.sent.forgotten,
                "open rows": self.store.left_early,
                **self.parent.children.forgotten(),
            },
            **self._alarms.counters(),
        }


def _no_frames(epoch: int, seq: int) -> Frame:
    raise KeyError((epoch, seq))
