"""Applies the frames of children, at a merger and at the root: order, numbers, membership, frontiers.

See docs/protocol.md 2 and 4. Rows are not stored here: the owner takes them from the returned effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from edge_agent.algebra.frame import (
    FRAMES_LOST,
    JOURNAL_LOST,
    LEAF_READINGS,
    NEVER_US,
    Birth,
    Flush,
    Frame,
    Gap,
    GroupPart,
    Heartbeat,
    Leaf,
    Plan,
    Serving,
)
from edge_agent.algebra.partials.arrays import distinct
from edge_agent.algebra.query.key import EpochKey, QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.errors import WireError
from edge_agent.machines.checkpoint.codec import decode, encode
from edge_agent.machines.checkpoint.slots import (
    ChildrenState,
    DictionaryState,
    EpochFramesState,
    MembershipState,
    RetiredState,
)
from edge_agent.machines.downlink.awaited_servers import AwaitedServers
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.definitions import Definitions, HeardDefinitions
from edge_agent.machines.downlink.epochs.definitions_ahead import DefinitionsAhead
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.epochs.epoch_frames import SECOND_LINE, Effect, earliest
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.downlink.losses import loss_records
from edge_agent.machines.downlink.losses.earlier_lives import EarlierLives
from edge_agent.machines.downlink.losses.let_go import LET_GO, LetGo
from edge_agent.machines.downlink.losses.lost_moves import left_unreported
from edge_agent.machines.downlink.losses.lost_pasts import LostPasts
from edge_agent.machines.downlink.losses.slow_clocks import found_behind
from edge_agent.machines.downlink.losses.unlisted import Unseen
from edge_agent.machines.downlink.room import check_markers, check_room, check_together, most_lost
from edge_agent.machines.downlink.senders import Senders
from edge_agent.machines.events import BadFrame


class Applied(NamedTuple):
    """An effect with the dictionary that explains its numbers. effect.frame None: settled without content; see `why`.

    losses: gap records for what may be lost with the frame (3.6), or may be repeats of a node that lost its past (1.3).
    """

    effect: Effect
    dictionary: EpochDictionary
    losses: tuple[Gap, ...] = ()


class ChildFrames:
    """Takes frames and heartbeats of children, and returns the frames that take effect."""

    def __init__(
        self,
        journal: int,
        grace_us: int,
        named: Iterable[str] = (),
        *,
        bounded: bool = True,
        gateways_only: bool | None = False,
    ) -> None:
        """journal: id of this parent's durable state. grace_us, named: see Children. bounded: see Inbox.

        gateways_only: all children are gateways, which may send only for themselves; None: children that list
        themselves are.
        """
        self.senders = Senders(gateways_only)
        self.known: Definitions = HeardDefinitions()
        # called with the child and the definition texts of each frame
        self.defined: Callable[[str, Iterable[str]], None] = self._defined
        self.inbox = Inbox(journal, silence_us=grace_us, bounded=bounded, explains=self._explains)
        self.children = Children(grace_us, named)
        self.inbox.most_lost = partial(most_lost, self.children.memberships)
        self.dictionaries: dict[EpochKey, EpochDictionary] = {}
        self.changed_dictionaries: set[EpochKey] = set()
        self.received = 0  # readings in all frames that took effect
        self.ahead_us = 0  # how far the time of receipt may be ahead of the true time
        self.let_go = LetGo(self.inbox)
        self.pasts = LostPasts(self.children, self.inbox)
        self.lives = EarlierLives(self.inbox)
        # child -> (newest heartbeat, time of receipt), while frames that the heartbeat names have not taken effect
        self._beats: dict[str, tuple[Heartbeat, int]] = {}

    def take(self, node: str, message: Frame | Heartbeat | BadFrame, received_us: int) -> list[Applied]:
        """Take one message of a child. Returns the frames that take effect, in order.

        A frame that contradicts earlier definitions of its epoch is settled as bad (3.6): its content is ignored.
        """
        if node in self.children.retired:
            return []
        self.children.heard(node, received_us)
        if isinstance(message, Heartbeat):
            self._beats[node] = (message, received_us)
            self.inbox.spoke(node, message.epoch, received_us)
            self._beat(node, received_us)
            self.lives.heard(node, message, self.children, received_us)
            out = [self._apply(effect, message, received_us) for effect in self.inbox.look(node, received_us)]
        else:
            refused = self.inbox.refused
            out = self.settle(node, message, received_us)
            if self.inbox.refused > refused:
                self.let_go.refused(node, message.epoch, message.seq)
            self.let_go.came(node, message.epoch, message.seq)
        beat = self._beats.get(node)
        for lost in self.let_go.heard(node, message.epoch, None if beat is None else beat[0], received_us):
            out += self.settle(node, lost, received_us)
        return out

    def look(self, now_us: int) -> Iterator[tuple[str, Applied]]:
        """Apply frames whose waiting time is over, even if their child is silent: it may have another parent (1.4)."""
        waiting = self.inbox.unborn_of if self.children.heard_for_long(now_us) else ()
        for node in (node for node in waiting if node not in self.children.retired):
            effects = self.inbox.look(node, now_us)
            yield from ((node, self._apply(effect, None, now_us)) for effect in effects)
            if effects and node in self._beats:
                self._beat(node, now_us)

    def retire(self, node: str, now_us: int) -> list[Gap]:
        """No longer expect a node (1.5). Returns losses of leaves that have moved away from it."""
        of, until_us = self.children.memberships, self.children.losses_until(now_us)
        losses = list(self._left_unseen(loss_records.retired(of, node, until_us)))
        self.children.retire(node)
        return losses

    def settle(self, node: str, message: Frame | BadFrame, received_us: int) -> list[Applied]:
        """Take a frame, or a declared loss of frames, without noting that the child was heard."""
        out = [self._apply(effect, message, received_us) for effect in self.inbox.take(node, message, received_us)]
        if out and node in self._beats:
            self._beat(node, received_us)
        return out

    def _beat(self, node: str, now_us: int) -> None:
        beat, received_us = self._beats[node]
        received_us = min(received_us, now_us)  # the clock may have been ahead at the receipt
        if not self.inbox.reached(node, beat.epoch, beat.last_seq):
            return
        del self._beats[node]
        if self.inbox.ended_before(node, beat.epoch, beat.last_seq):
            return
        dictionary = self.dictionaries.get(EpochKey(node, beat.epoch))
        for number, frontier_us in beat.frontiers:
            if dictionary is not None and number in dictionary.groups:
                membership = self.children.memberships.get(dictionary.groups[number])
                if membership is not None and node in membership.members:
                    membership.member(node).beat(frontier_us, received_us - self.ahead_us)

    def _answered(self, node: str, birth: Birth) -> None:
        """Forget the question for the journal that came before a birth: the child no longer waits for the answer (3.7).

        A question of another birth stays: it shows that the child has begun again since.
        """
        beat, _ = self._beats.get(node, (None, 0))
        if beat is not None and beat.last_seq < 0 and birth.follows_question(beat.epoch):
            del self._beats[node]

    def speaking(self) -> dict[str, int]:
        """Child -> epoch of its last heartbeat, if frames that this heartbeat names have not taken effect."""
        over = self.inbox.is_over
        return {node: beat.epoch for node, (beat, us) in self._beats.items() if not over(node, beat.epoch, us)}

    def settled(self, effect: Effect, dictionary: EpochDictionary, message: object, received_us: int) -> Applied:
        """Settle a frame without content when its turn comes. Declares what is lost with it, before later frontiers."""
        if not effect.stale:
            self.inbox.count(effect.node, None)
            self._lack_of_birth(effect)
        of, until_us = self.children.memberships, self.children.losses_until(received_us)
        flushed = self.inbox.flush_at(effect.node, effect.epoch, effect.seq)
        if effect.why == SECOND_LINE and isinstance(message, Frame) and message.epoch == effect.epoch:
            return Applied(effect, dictionary, tuple(loss_records.unheard(of, effect.node, message, flushed=flushed)))
        payload = message.payload if isinstance(message, BadFrame) and message.seq == effect.seq else b""
        losses = loss_records.of_refused(of, effect, payload, until_us, flushed=flushed)
        unlisted, gone = self.children.unlisted, effect.why.startswith((LET_GO, FRAMES_LOST))
        if gone or effect.node in unlisted.of:
            start_us = 0 if effect.why == LET_GO else min(gap.start_us for gap in losses)
            unlisted.lost(effect, start_us, max(until_us + 1, losses[0].end_us), losses[0].reason)
            losses += tuple(self._left_unseen(unlisted.left_behind(effect, self.children.memberships)))
        return Applied(effect, dictionary, losses)

    def _lack_of_birth(self, effect: Effect) -> None:
        """Keep what a child stated before its birth if a frame of the birth is lost or refused (1.2)."""
        frames = self.inbox.epochs.get(EpochKey(effect.node, effect.epoch))
        if frames is not None and 0 < effect.seq < frames.birth_frames:
            for membership in self.children.memberships.values():
                if effect.node in membership.members:
                    membership.members[effect.node].keep_earlier()

    def _apply(self, effect: Effect, message: object, received_us: int) -> Applied:
        key, frame = EpochKey(effect.node, effect.epoch), effect.frame
        if frame is None:  # its epoch may have ended, or be one too many: then nothing is kept of it
            return self.settled(effect, self.dictionaries.get(key) or EpochDictionary(), message, received_us)
        dictionary, until_us = self._dictionary(key), self.children.losses_until(received_us)
        frame, retired = self.children.retired_below(effect.node, frame)
        came = frame = loss_records.spread(self.children.memberships, effect.node, frame)
        if frame.gaps:
            gaps = self.senders.gaps(self.children.memberships, effect.node, frame)
            frame = replace(frame, gaps=tuple(loss_records.dated(self.children, effect.node, gaps, until_us)))
            if effect.stale:
                frame = replace(frame, gaps=tuple(map(loss_records.of_older_line, frame.gaps)))
        effect = effect._replace(frame=frame)
        try:
            if frame.define is not None:
                self._learn(key, frame)
                if frame.define.queries:
                    self.defined(effect.node, frame.define.queries)
                self.known.name(key for _, _, plan in frame.define.plans for key in plan.keys)
            self.known.name(serving.key for change in frame.members for serving in change.serving)
            parts = [(self._group(dictionary, part.group), part) for part in frame.groups]
            changes = [*retired, *((self._group(dictionary, change.group), change) for change in frame.members)]
            used = (group for group, _ in (*parts, *changes))
            self.senders.check(self.children.memberships, effect.node, frame, used)
            check_room(self.children.memberships, effect.node, changes, parts, numbered=self.inbox.bounded)
            readings = frame.readings
            self._check_rows(effect, frame, dictionary, readings)
        except WireError as err:
            # its rows may lie below what the child promised here, also if a birth had lowered that and was lost (4.1)
            refused = effect._replace(frame=None, why=str(err), since_us=earliest(frame))
            return self.settled(refused, dictionary, message, received_us)
        self.received += readings
        # an epoch continues the promise of the predecessor that it names; without one it may begin lower (1.2)
        anew = effect.forgot
        effect = self.pasts.repeats(effect, changes, parts, dictionary.plans, received_us)
        losses = tuple(self.pasts.losses(effect, changes, parts, received_us))
        if effect.stale:
            return Applied(effect, dictionary, losses)
        if frame.birth is not None:
            self._answered(effect.node, frame.birth)
        speaks_in = self._beats[effect.node][0].epoch if effect.node in self._beats else None
        losses += tuple(self.lives.losses(effect.node, frame, self.children, speaks_in, received_us))
        self.inbox.count(effect.node, readings)
        if frame.gaps and any(gap.reason == JOURNAL_LOST for gap in frame.gaps):
            gaps = tuple(
                narrowed
                for gap in frame.gaps
                for narrowed in loss_records.narrowed(self.children.memberships, effect.node, gap)
            )
            effect = effect._replace(frame=replace(frame, gaps=gaps))
        if frame.birth is not None:
            self._born(effect.node, anew=anew)
        memberships, unlisted = self.children.memberships, self.children.unlisted
        losses += tuple(unlisted.listed(effect, came, changes, memberships, self.inbox.epochs.get(key)))
        unlisted.damaged(effect, came, frame.gaps)
        losses += tuple(found_behind(effect.node, parts, self.children, received_us - self.ahead_us))
        elsewhere = self.children.change(effect.node, changes)
        losses += tuple(self._left_unseen(left_unreported(effect, changes, self.children, until_us)))
        for child, own in ((effect.node, changes), *elsewhere):
            losses += tuple(loss_records.left_retired(self.children, child, own, until_us))
        for group, part in parts:
            self._hint(effect.node, group, part, dictionary)
            self._promise(effect.node, group, part, received_us, anew=anew)
        if frame.leave is not None:
            self._left(effect, frame.leave)
        losses += tuple(loss_records.strayed(memberships, changes, until_us))
        return Applied(effect, dictionary, losses)

    def _dictionary(self, key: EpochKey) -> EpochDictionary:
        if key not in self.dictionaries:
            self.dictionaries[key] = EpochDictionary()
        return self.dictionaries[key]

    def _left(self, effect: Effect, successor: int) -> None:
        """Note that a child has left for another parent, with all nodes below it (1.5)."""
        for membership in self.children.memberships.values():
            member = membership.members.get(effect.node)
            for leaf in () if member is None else tuple(member.leaves.values()):
                # leaves below a merger keep their epochs
                epoch = successor if leaf.node == effect.node else leaf.epoch
                membership.leave(effect.node, Leaf(leaf.node, epoch, effect.epoch))
            if member is not None:  # its open sessions continue at another parent
                member.hints, member.held = {}, {}

    @staticmethod
    def _left_unseen(found: Iterable[Unseen]) -> Iterator[Gap]:
        """Treat leaves as moved whose report was in a lost frame, because another child lists them as moved (1.5)."""
        for each in list(found):
            each.membership.leave(each.child, each.report)
            if each.loss is not None:
                yield each.loss

    def _defined(self, child: str, texts: Iterable[str]) -> None:
        gateways = self.gateways_below(child)
        for text in texts:
            self.known.add(text, child, gateways)

    def gateways_below(self, child: str) -> int:
        """For how many gateways a child has a share of definition texts (2.2).

        1 for a gateway. A merger may send the texts of one more than it lists, because they go ahead of the list.
        """
        found = (each.members.get(child) for each in self.children.memberships.values())
        leaves = (member.leaves for member in found if member is not None)
        return max((len(each) + (child not in each) for each in leaves), default=1)

    def forget_texts(self, unnamed: Iterable[QueryKey]) -> list[QueryKey]:
        """Forget definitions of these queries unless a known epoch or child names them. Returns the forgotten ones."""
        wanted = set(unnamed)
        for dictionary in self.dictionaries.values() if wanted else ():
            for _group, plan in dictionary.plans.values():
                wanted.difference_update(plan.keys)
        for membership in self.children.memberships.values() if wanted else ():
            wanted = {key for key in wanted if not membership.serves(key)}
        return self.known.forget(wanted) if wanted else []

    def name_known(self) -> None:
        """Note which definitions are named by epochs and children, after a start has added all of them anew."""
        for dictionary in self.dictionaries.values():
            self.known.name(key for _group, plan in dictionary.plans.values() for key in plan.keys)
        for membership in self.children.memberships.values():
            for member in membership.members.values():
                self.known.name(member.serving)

    def servings(self, now_us: int) -> dict[Group, dict[QueryKey, Serving]]:
        """Group -> query -> its common serving range. Statements that do not count are ignored (6.3, 6.5)."""
        memberships = self.children.memberships
        awaited = AwaitedServers(memberships)
        return {
            group: each.serving(now_us, self.known.serves, partial(awaited.of, group))
            for group, each in memberships.items()
        }

    def _learn(self, key: EpochKey, frame: Frame) -> None:
        if frame.define is not None:
            self.dictionaries.setdefault(key, EpochDictionary()).learn(frame.define)
            self.changed_dictionaries.add(key)

    def _explains(self, key: EpochKey, frame: Frame, ahead: DefinitionsAhead) -> bool:
        """Whether all numbers of a frame are known, also from definitions in waiting frames after it (2.4)."""
        if frame.define is not None:
            try:
                self._learn(key, frame)
            except WireError:  # `_apply` will refuse the frame, unless one of an older line may still come before it
                return not (self.inbox.epochs[key].lost and self._dictionary(key).lacks_before(frame.define))
        if self._knows(key, frame):
            return True
        if not ahead.learn(self._dictionary(key)):
            return False
        self.changed_dictionaries.add(key)
        return self._knows(key, frame)

    def _knows(self, key: EpochKey, frame: Frame) -> bool:
        dictionary = self._dictionary(key)
        groups, plans, keys = dictionary.groups, dictionary.plans, len(dictionary.keys)
        for part in frame.groups:
            if part.group not in groups:
                return False
            for section in (*part.sections, *part.late):
                if section.plan not in plans or section.highest_key >= keys:
                    return False
                if section.highest_node(plans[section.plan][1]) >= len(dictionary.nodes):
                    return False
            for number, _ in part.registers:
                if number >= keys:
                    return False
        return not frame.members or all(change.group in groups for change in frame.members)

    def _check_rows(self, effect: Effect, frame: Frame, dictionary: EpochDictionary, readings: int) -> None:
        """Refuse rows that contradict their definitions. readings: number in all rows. Raises: WireError."""
        few = readings <= LEAF_READINGS  # a single gateway may have so many in one row
        for part in frame.groups:
            for section in (*part.sections, *part.late):
                if section.plan not in dictionary.plans:
                    raise WireError(f"plan number {section.plan} is not defined in epoch {effect.epoch}")
                group, plan = dictionary.plans[section.plan]
                leaves = 1 if few else self._leaves(effect.node, group, frame)
                section.check(plan, len(dictionary.keys), len(dictionary.nodes), leaves)
                check_markers(section, plan, dictionary.keys)
                if not few:
                    check_together(section, plan, leaves)
                if dictionary.agreed.get(section.plan) != self.known.version:
                    self._check_plan(section.plan, group, plan)
                    dictionary.agreed[section.plan] = self.known.version
            if any(number >= len(dictionary.keys) for number, _ in part.registers):
                raise WireError(f"register of a key number that is not defined in epoch {effect.epoch}")

    def _check_plan(self, number: int, group: Group, plan: Plan) -> None:
        """Refuse a plan that contradicts the definitions. Raises: WireError."""
        if why := self.known.contradicts(group, plan):
            raise WireError(f"plan number {number}: {why}")
        if plan.kind not in group.cut.plan_kinds:
            wanted = ", ".join(group.cut.plan_kinds)
            raise WireError(f"plan number {number}: kind {plan.kind}, wanted one of {wanted} in this group")

    def _leaves(self, node: str, group: Group, frame: Frame) -> int:
        """How many gateways may have readings in a frame's rows: those below its sender or listed by the frame."""
        membership = self.children.memberships.get(group)
        member = None if membership is None else membership.members.get(node)
        listed = sum(len(change.leaves) for change in frame.members)
        return max(1, listed + (0 if member is None else len(member.leaves)))

    @staticmethod
    def _group(dictionary: EpochDictionary, number: int) -> Group:
        if number not in dictionary.groups:
            raise WireError(f"group number {number} is not defined in its epoch")
        return dictionary.groups[number]

    def _born(self, node: str, *, anew: bool) -> None:
        """Take a birth, which ends all statements of the epoch before except the list of leaves (1.5)."""
        for membership in self.children.memberships.values():
            if node in membership.members:
                membership.members[node].begin(anew=anew)

    def _hint(self, node: str, group: Group, part: GroupPart, dictionary: EpochDictionary) -> None:
        """Update the registers of open sessions (5.2)."""
        if not group.cut.gap_us:
            return
        member = self.children.membership(group).member(node)
        sent = [number for s in (*part.sections, *part.late) for number in distinct(s.pieces()[0]).tolist()]
        registers = [(dictionary.keys[number], start_us) for number, start_us in part.registers]
        member.take_hints([dictionary.keys[number] for number in sent], registers)
        if part.frontier_us is not None:
            member.held = {}

    def _promise(self, node: str, group: Group, part: GroupPart, received_us: int, *, anew: bool) -> None:
        membership = self.children.membership(group)
        if part.frontier_us is not None or anew:
            frontier_us = NEVER_US if part.frontier_us is None else part.frontier_us
            membership.member(node).promise(frontier_us, received_us - self.ahead_us)
        if part.exceptions is not None:
            membership.member(node).except_leaves(part.exceptions)
        if part.more or part.ended:
            membership.member(node).change_exceptions(part.more, part.ended)

    def snapshot_memberships(self, *, history: bool = True) -> dict[Group, MembershipState]:
        """The state of every group's membership. history: see GroupMembership.snapshot."""
        return {group: each.snapshot(history=history) for group, each in self.children.memberships.items()}

    def restore_memberships(self, state: Mapping[Group, MembershipState], retired: RetiredState) -> None:
        """Continue from the result of `snapshot_memberships`. retired: see RetiredLeaves."""
        self.children.retired_leaves.restore(retired)
        for group, each in state.items():
            membership = self.children.memberships[group] = GroupMembership.restore(self.children.grace_us, each)
            self.pasts.restored(membership)
        self.lives.restore(self.children.memberships)

    def snapshot(self, pack: Callable[[Frame | BadFrame], object]) -> dict[str, object]:
        """The whole state as plain values, for the root's decision row."""
        epochs, ended = self.inbox.epochs.items(), self.inbox.ended
        return {
            "household": encode(self.children.snapshot()),
            "retired_leaves": encode(self.children.retired_leaves.snapshot()),
            "gateways": sorted(self.senders.known),
            "families": encode([(group, each) for group, each in self.snapshot_memberships().items()]),
            "lines": [
                [*key, encode(self.inbox.snapshot(key)), [[s, pack(f)] for s, f in frames.waiting.items()]]
                for key, frames in epochs
            ],
            "ended": [[node, list(map(list, epochs.items()))] for node, epochs in ended.of.items()],
            "ended_flushes": encode({node: ended.snapshot_flushes(node) for node in ended.flushes}),
            "spoke": [[node, us] for node, us in self.inbox.spoke_us.items()],
            "books": [[*key, encode(dictionary.snapshot())] for key, dictionary in self.dictionaries.items()],
            "beats": [
                [node, beat.epoch, beat.last_seq, beat.frontiers, received_us]
                for node, (beat, received_us) in self._beats.items()
            ],
            "let_go": self.let_go.snapshot(),
        }

    def restore(self, state: Mapping[str, Any], unpack: Callable[[Any], Frame | BadFrame]) -> None:
        children = decode(ChildrenState, state["household"])
        self.children.restore(children)
        self.children.retired = set(children.retired)  # the batches of this run are decided again as they were
        retired = decode(RetiredState, state.get("retired_leaves", {}))
        self.senders.known = set(state.get("gateways", ()))  # not in states of older versions
        self.restore_memberships(decode(dict[Group, MembershipState], state["families"]), retired)
        self.inbox.spoke_us.update((node, us) for node, us in state.get("spoke", ()))
        flushes = decode(dict[str, dict[int, tuple[Flush, list[int]]]], state.get("ended_flushes", {}))
        self.inbox.ended.restore(((node, dict(epochs)) for node, epochs in state.get("ended", ())), flushes.items())
        for node, epoch, plain, waiting in state["lines"]:
            frames = decode(EpochFramesState, plain)
            self.inbox.restore(EpochKey(node, epoch), frames, {s: unpack(f) for s, f in waiting})
        self.dictionaries = {
            EpochKey(node, epoch): EpochDictionary.restore(decode(DictionaryState, plain))
            for node, epoch, plain in state["books"]
        }
        self._beats = {
            node: (Heartbeat(epoch, last_seq, frontiers), received_us)
            for node, epoch, last_seq, frontiers, received_us in state["beats"]
        }
        self.let_go.restore(state.get("let_go", ()))
