"""Decides which frames took effect and how far every group is. Both roots use it.

Input: heads of frames (sections need no rows) in the order in which they were stored. Output: a `Decision`, with the
frames that took effect, and the frontier and members of each group. Pure. The Spark job keeps the whole state as a
plain value in its decision row (docs/protocol.md 8.1, 8.2).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edge_agent.algebra.frame import NEVER_US, Frame, Gap, Heartbeat, Receipt, Serving
from edge_agent.algebra.leaf_times import LeafTimes
from edge_agent.algebra.query.group_cut import OrderedCut, SessionCut, TimeCut
from edge_agent.algebra.query.key import QueryKey, QueryPlace
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.text_shares import TextShares
from edge_agent.config.in_force.known_definitions import KnownDefinitions, Publication
from edge_agent.machines.checkpoint.codec import decode, encode
from edge_agent.machines.downlink.child_frames import Applied, ChildFrames
from edge_agent.machines.downlink.clock_steps import STILL_US, ClockSteps
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.epochs.epoch_frames import Effect
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.line_watch import alarms_of
from edge_agent.machines.downlink.losses import loss_records
from edge_agent.machines.downlink.losses.let_go import LET_GO
from edge_agent.machines.events import BadFrame
from edge_agent.root import bounds, revision_handover
from edge_agent.root.agreed_servings import AgreedServings
from edge_agent.root.elapsed_time import ElapsedTime
from edge_agent.root.leaves_behind import CaughtUp, LeavesBehind
from edge_agent.root.lost_frames import LostFrames
from edge_agent.root.served_before import ServedBefore

ALARM_US: Final = 86_400_000_000  # an alarm of a child is shown for a day


@dataclass(frozen=True, slots=True)
class GroupView:
    """How complete a group is: its frontier, the frontier of each expected leaf, and the windows each query may show.

    serving: (query, revision) -> window starts and ends that may give rows (docs/protocol.md 6.3). Once agreed, the
    first start no longer moves, even if members join. begins: (query, revision) -> leaf that serves the query only from
    a later start -> that start (LATEST_US: never); the leaf is not expected in windows that start earlier. ends:
    (query, revision) -> leaf that has stopped serving the query -> the latest window end that it serves. since:
    (query, revision) -> leaf that served the query from an earlier start -> that start (served_before.py). why: leaf ->
    the reason, as text, why it is behind. stuck: the frontier has not risen for the grace time. unheard: children that
    the settings name and that have never sent a message.

    Only for groups of count and state windows: joined: leaves that were not listed at the last decision.

    Only for groups of sessions: hints: key -> least register of all members that are not left out; bounds: leaf -> its
    bound for any key; registers: leaf -> the registers of its member by key.
    """

    frontier_us: int
    leaves: LeafTimes
    serving: Mapping[QueryKey, Serving]
    begins: Mapping[QueryKey, Mapping[str, int]]
    ends: Mapping[QueryKey, Mapping[str, int]] = field(default_factory=dict, kw_only=True)
    since: Mapping[QueryKey, Mapping[str, int]] = field(default_factory=dict, kw_only=True)
    why: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    hints: Mapping[str, int] = field(default_factory=dict)
    bounds: LeafTimes = field(default_factory=lambda: LeafTimes((), (), {}))
    registers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    stuck: bool = False
    unheard: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()

    def bound_us(self, key: str) -> int:
        """The bound of a key: no new session of the key starts earlier, except at members that are left out (5.1)."""
        return min(self.frontier_us, self.hints.get(key, self.frontier_us))

    def leaf_bound_us(self, leaf: str, key: str) -> int:
        """The bound of a key at one leaf, even if the leaf is left out (4.7)."""
        bound_us = self.bounds[leaf]
        return min(bound_us, self.registers.get(leaf, {}).get(key, bound_us))


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of one step of the root.

    effects: frames that took effect since the last decision, in order (Effect.frame None = settled without content).
    caught_up: (group, leaf) -> (old, new) frontier of leaves that were behind: rows with an end in (old, new] now have
    a different coverage (4.7). gaps: (node, gap) declared by those frames. queries, sensors: definition texts seen for
    the first time. ended: groups without members whose rows can no longer change; later decisions do not contain them.
    narrowed: see revision_handover.narrowed. corrected: texts published by the operator for revisions that frames had
    defined differently.
    """

    now_us: int
    effects: tuple[Effect, ...]
    groups: Mapping[Group, GroupView]
    caught_up: CaughtUp
    gaps: tuple[tuple[str, Gap], ...]
    queries: tuple[str, ...]
    sensors: tuple[str, ...]
    ended: tuple[Group, ...] = ()
    narrowed: Mapping[tuple[Group, QueryKey], int] = field(default_factory=dict)
    corrected: tuple[str, ...] = ()


class Decider:
    """Decides what may close. `take` adds messages, `decide` returns the next decision."""

    def __init__(self, journal: int, grace_us: int, named: Iterable[str] = (), overlap: int | None = None) -> None:
        """journal: the lander's journal id. grace_us: on receive times of the lander. named: children expected.
        overlap: see KnownDefinitions.
        """
        # not bounded: the lander has sent receipts
        self.parent = ChildFrames(journal, grace_us, named, bounded=False, gateways_only=None)
        self.gaps: list[tuple[str, Gap]] = []  # all known gap records that end within the horizon
        self._new_gaps: list[tuple[str, Gap]] = []
        self._effects: list[Effect] = []
        self.alarms: dict[str, tuple[str, int]] = {}  # child -> text for the operator, and when it was noticed
        self.behind = LeavesBehind()
        self._listed: dict[Group, tuple[str, ...]] = {}  # groups of count and state windows -> leaves, since decided
        self.lost_frames = LostFrames(self.parent.inbox)
        self._clock_steps = ClockSteps()  # of the lander
        self._elapsed = ElapsedTime()
        self.parent.known = self._texts = KnownDefinitions(overlap=overlap)
        self.servings, self.served_before = AgreedServings(self.parent, self._texts), ServedBefore()
        self._sensor_texts = TextShares(bounds.MOST_SENSORS)
        self.parent.defined = self._defined
        self._new_queries: list[str] = []
        self._corrected: list[str] = []
        self._new_sensors: list[str] = []
        self.beyond_bounds = dict.fromkeys(("sensors", "gaps"), 0)  # since the process started
        self._reported_beyond: dict[str, int] = {}

    def take(self, node: str, message: Frame | Heartbeat | BadFrame, received_us: int) -> bool:
        """Take one message, in the order of the landing files. Returns whether frames took effect or were settled.

        received_us: the lander's time.
        """
        before = len(self._effects)
        self._note(node, self.parent.take(node, message, received_us))
        self._new_gaps += self.parent.lives.take_found()
        self._raise_alarms(received_us)
        return len(self._effects) > before

    def _raise_alarms(self, received_us: int) -> None:
        """Turn what the inbox noticed about children (`rivals`, `restored`) into alarms."""
        inbox = self.parent.inbox
        if inbox.rivals or inbox.restored:
            self.alarms.update((child, (text, received_us)) for child, text in alarms_of(inbox).items())
            inbox.rivals.clear()
            inbox.restored.clear()

    def _note(self, node: str, effects: Iterable[Applied]) -> None:
        for applied in effects:
            self._effects.append(applied.effect)
            frame = applied.effect.frame
            self._new_gaps += [(node, gap) for gap in applied.losses]
            if frame is None:
                continue
            self._new_gaps += [(node, gap) for gap in frame.gaps]
            if frame.define is not None:
                gateways = self.parent.gateways_below(node) if frame.define.sensors else 1
                new = [text for text in dict.fromkeys(frame.define.sensors) if text not in self._sensor_texts]
                taken = [text for text in new if self._sensor_texts.add(text, node, gateways)]
                self.beyond_bounds["sensors"] += len(new) - len(taken)
                self._new_sensors += taken

    def _defined(self, child: str, texts: Iterable[str]) -> None:
        """Take the definitions of queries in a frame, before its rows are looked at."""
        gateways = self.parent.gateways_below(child)
        self._new_queries += [taken for text in texts if (taken := self._texts.add(text, child, gateways))]

    def published(self, found: Iterable[Publication]) -> None:
        """Take definitions that the operator published, as the lander received them (docs/protocol.md 6.5)."""
        for each in found:
            self._texts.publish(each)
        self._new_queries += self._texts.released
        self._corrected += self._texts.corrected
        self._texts.released, self._texts.corrected = [], []

    def learn_again(self, known: Container[QueryKey]) -> None:
        """Let the next decision take definitions that came to a version or packages which could not read them.

        known: the revisions that decisions have taken. Call it at a start, after `restore`.
        """
        self._new_queries += self._texts.readable(known)

    def change_journal(self, journal: int) -> None:
        """Take the lander's journal. What waits for births of another one may never take effect: it is declared.

        A `leave` among it will not come again, so a leaf that another child lists as moved from there has left (1.5).
        """
        inbox = self.parent.inbox
        if journal != inbox.journal:
            memberships = self.parent.children.memberships
            for node in sorted({key.node for key, frames in inbox.epochs.items() if frames.waiting}):
                lines = inbox.lines_of(node).values()
                found = loss_records.waiting_for_a_journal(memberships, node, lines)
                self._new_gaps += [(node, gap) for gap in found]
                heard = self.parent.children.known.get(node)
                if heard is None:  # retired
                    continue
                for epoch, seq in loss_records.waiting_leaves(lines):
                    effect = Effect(node, epoch, seq, None, stale=True, why=LET_GO)
                    settled = self.parent.settled(effect, EpochDictionary(), None, heard.heard_us)
                    self._new_gaps += [(node, gap) for gap in settled.losses]
        inbox.change_journal(journal)

    def stated(self, received: Iterable[tuple[str, Receipt]], received_us: int) -> None:
        """Take the lander's statement of what it has received, after the records of the file that contains it
        (docs/protocol.md 3.2).
        """
        self.lost_frames.stated(received, self.parent.speaking(), received_us)

    def tick(self, now_us: int, before_us: int | None, *, connected: bool) -> None:
        """Take a tick of the lander, in the order in which ticks were written. before_us: of the last tick, if any.

        A running lander writes a tick every second. A step of its clock, or a time in which it did not run, does not
        count as silence of its children: silence and lag continue from their values before it (4.4, 8.1).
        """
        children = self.parent.children
        if before_us is not None and not 0 <= now_us - before_us <= STILL_US:
            children.shift(now_us - before_us)
            self.parent.inbox.shift(now_us - before_us)
            self.lost_frames.shift(now_us - before_us)
        if before_us is not None:
            self.parent.ahead_us = self._clock_steps.look(before_us, now_us)
        children.link(now_us, up=connected)
        self._elapsed.look(now_us)

    @property
    def elapsed_us(self) -> int:
        """The lander's time without errors of its clock: ages of stored rows are measured by it (8.4)."""
        return self._elapsed.us

    def retire(self, nodes: Iterable[str], now_us: int) -> None:
        """Retire these nodes and no others, as the settings of this run say (docs/protocol.md 1.5).

        now_us: the lander's time at the last decision.
        """
        self.parent.children.retired.clear()
        for node in nodes:
            self._new_gaps += [(node, gap) for gap in self.parent.retire(node, now_us)]

    def decide(self, now_us: int) -> Decision:
        """Decide what may close now. now_us: time of the lander's last tick (8.1), not of the driver; may step back."""
        self._settle(now_us)
        children, families = self.parent.children, self.parent.children.memberships
        passed = {group: family.published_us for group, family in families.items()}
        for family in families.values():
            family.list_last()  # what the frontiers of leaves that have gone close is decided before the group ends
        children.advance_frontiers(now_us)
        unheard = tuple(sorted(children.unheard()))
        frontiers = {group: family.published_us for group, family in families.items()}
        before = self.servings.of
        self.servings.agree(passed, now_us)
        groups = {
            group: self._view(group, family, frontiers[group], unheard, now_us, served=before.get(group, {}))
            for group, family in families.items()
        }
        self._new_gaps += [
            (child, Gap((), 0, 0, -1, (child,), f"quarantined: {why}")) for child, why in self._texts.overdue(now_us)
        ]
        decision = Decision(
            now_us,
            tuple(self._effects),
            groups,
            self.behind.take_caught_up(),
            tuple(self._new_gaps),
            tuple(self._new_queries),
            tuple(self._new_sensors),
            tuple(group for group, family in families.items() if family.gone),
            revision_handover.narrowed(before, self.servings.of, frontiers),
            tuple(self._corrected),
        )
        self._begin_next(decision)
        return decision

    def _settle(self, now_us: int) -> None:
        """Settle frames that are lost or have waited too long, and raise the alarms of their children."""
        self._elapsed.look(now_us)
        for node, lost in self.lost_frames.due(now_us, self.parent.children.grace_us, self.parent.speaking()):
            self._note(node, self.parent.settle(node, lost, now_us))
        for node, applied in self.parent.look(now_us):
            self._note(node, (applied,))
        self._raise_alarms(now_us)

    def _view(
        self,
        group: Group,
        family: GroupMembership,
        frontier_us: int,
        unheard: tuple[str, ...],
        now_us: int,
        *,
        served: Container[QueryKey],
    ) -> GroupView:
        """How complete a group is now. unheard: as in GroupView. served: queries that it served before."""
        leaves, least = family.leaf_times()
        begins = family.begins()
        since = self.served_before.look(group, begins, leaves.names, served)
        if unheard and not group.node:
            leaves, least = (times.also(dict.fromkeys(unheard, NEVER_US)) for times in (leaves, least))
        behind = leaves.below(frontier_us)
        self.behind.look(group, leaves, behind)
        return GroupView(
            frontier_us,
            leaves,
            dict(self.servings.of[group]),
            begins,
            family.hints(),
            least,
            family.registers(),
            self.parent.children.stuck(group, now_us),
            unheard,
            ends=family.ends(),
            since=since,
            why=self._why(family, behind, [n for n in unheard if n in leaves], frontier_us, now_us),
            joined=self._joined(group, leaves.names) if isinstance(group.cut, OrderedCut) else (),
        )

    def _joined(self, group: Group, leaves: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the leaves of a group that were not listed at the last decision."""
        before = self._listed.get(group, ())
        return () if leaves == before else tuple(sorted({*leaves}.difference(before)))

    def _list(self) -> None:
        """Note which leaves the next decision knows from this one."""
        families = self.parent.children.memberships.items()
        self._listed = {
            group: family.leaf_times()[0].names for group, family in families if isinstance(group.cut, OrderedCut)
        }

    def _begin_next(self, decision: Decision) -> None:
        """Clear what the decision contains, and forget the groups that ended with it."""
        families = self.parent.children.memberships
        for family in families.values():
            family.moves.reports.clear()  # the root has no parent to send them to
            family.moves.skipped.clear()
            family.drop_last()
        for group in decision.ended:
            del families[group]
            self.servings.forget_group(group)
            self.served_before.forget_group(group)
            self.behind.forget_group(group)
        self._list()
        self.gaps += self._new_gaps
        self._effects, self._new_gaps, self._new_queries, self._new_sensors = [], [], [], []
        self._corrected = []
        inbox = self.parent.inbox
        for noted in (inbox.changed, inbox.ended.changed, inbox.waiting.changed, self.parent.changed_dictionaries):
            noted.clear()  # for a spool with slots, which the root does not have

    def let_go(
        self, decision: Decision, horizon_us: int, waits: Callable[[QueryPlace, int], bool]
    ) -> list[tuple[Group, QueryKey]]:
        """Forgets servings that ended two horizons ago, because none of their rows can change. Returns them.

        waits: whether rows of a query, whose serving ended at that time, are still to be written.
        """
        frontiers = {group: view.frontier_us for group, view in decision.groups.items()}
        gone = self.servings.let_go(frontiers, horizon_us, waits)
        for group, key in gone:
            self.served_before.forget(group, key)
        return gone

    def forget_texts(self, known: Iterable[QueryKey]) -> list[QueryKey]:
        """Forget those of the given definitions that no child and no future row can name. Returns their keys."""
        served = set().union(*(held.keys() for held in self.servings.of.values()))
        return self.parent.forget_texts(key for key in known if key not in served)

    def serves(self, group: Group, key: QueryKey) -> bool | None:
        """Whether a group serves a query's revision; None: not yet agreed, but a member states it."""
        return self.servings.serves(group, key)

    def start_us(self, group: Group, key: QueryKey) -> int | None:
        """The first window start that may give a row of a query that the group serves; None: any start."""
        return self.servings.of[group][key].start_from_us

    def _why(
        self,
        family: GroupMembership,
        behind: Mapping[str, int],
        unheard: Iterable[str],
        frontier_us: int,
        now_us: int,
    ) -> dict[str, str]:
        """Leaf -> why it is behind the frontier of its group, or left out. behind: all leaves below the frontier."""
        children, out = self.parent.children, dict[str, str]()
        for child, member in family.expected().items():
            why = children.why_out(child, member, now_us)
            some: Iterable[str] = ()
            if why or member.frontier_us < frontier_us:
                some = member.leaves
            elif member.exceptions:
                some = [*member.apart, *(behind.keys() & member.leaves.keys())]
            for leaf in some:
                if leaf != child and leaf in member.exceptions:
                    out[leaf] = f"left out by {child}"
                elif why:
                    out[leaf] = why if leaf == child else f"{child}: {why}"
                elif leaf in behind:
                    out[leaf] = "behind, counted again once it has caught up"
        for child in [child for child, (_, us) in self.alarms.items() if now_us - us < ALARM_US]:
            for leaf in family.members[child].leaves if child in family.members else ():
                text = self.alarms[child][0] if leaf == child else f"{child}: {self.alarms[child][0]}"
                out[leaf] = f"{text}; {out[leaf]}" if leaf in out else text
        return out | dict.fromkeys(unheard, "named in the settings, never heard")

    def release(self, decision: Decision, horizon_us: int, reach: Callable[[QueryKey], int | None]) -> None:
        """Forget gap records that no future row can touch, because the time they cover ended before the horizon.

        Records without a time range, such as that of a frame damaged on disk, stay. reach: longest time from a reading
        to the end of a row that contains it, for a query's revision; None: not known.
        """
        if not self.gaps:
            return
        before: dict[Group, int] = {}
        long_ago_us = (
            min(decision.now_us, self.elapsed_us) - 2 * horizon_us
        )  # for groups without members, which may get members again
        for group, view in decision.groups.items():
            longest = [reach(key) for key in view.serving]
            # windows between markers and windows of positions have no greatest length
            if isinstance(group.cut, TimeCut | SessionCut) and None not in longest:
                before[group] = view.frontier_us - horizon_us - max((us for us in longest if us is not None), default=0)
            else:
                before[group] = NEVER_US
        self.gaps = [
            (node, gap)
            for node, gap in self.gaps
            if gap.end_us <= gap.start_us or any(gap.end_us > before.get(group, long_ago_us) for group in gap.groups)
        ]
        known, self.gaps = len(self.gaps), bounds.bounded_gaps(self.gaps)
        self.beyond_bounds["gaps"] += known - len(self.gaps)

    def take_beyond(self) -> dict[str, int]:
        """Counts of what exceeded a bound since the last call, by kind of bound."""
        own = {"servings": self.servings.surplus, "leaves": self.behind.dropped, "epochs": self.parent.inbox.forgotten}
        counts = {**self.beyond_bounds, **self.parent.children.forgotten(), **own}
        new = {what: many - self._reported_beyond.get(what, 0) for what, many in counts.items()}
        self._reported_beyond = counts
        return {what: many for what, many in new.items() if many}

    def snapshot(self, pack: Callable[[Frame | BadFrame], object]) -> dict[str, object]:
        """The state that the next decision needs, as plain values. Call it right after `decide`."""
        return {
            "parent": self.parent.snapshot(pack),
            "gaps": encode(self.gaps),
            **self.servings.snapshot(),
            "since": self.served_before.snapshot(),
            "behind": self.behind.snapshot(),
            "texts": list(self._texts.texts),
            "held": list(self._texts.held),
            "unnamed": encode(sorted(self._texts.unnamed)),
            "published": [each.plain() for each in self._texts.publications()],
            "claims": self._texts.claims(),
            "sensor_texts": list(self._sensor_texts),
            "senders": [list(texts.of.values()) for texts in (*self._texts.shares, self._sensor_texts)],
            "lost_frames": self.lost_frames.snapshot(),
            "clock_steps": self._clock_steps.snapshot(),
            "elapsed": self._elapsed.snapshot(),
            "alarms": [[node, *alarm] for node, alarm in self.alarms.items()],
        }

    def restore(self, state: Mapping[str, Any], unpack: Callable[[Any], Frame | BadFrame]) -> None:
        """Continue from the result of `snapshot`. Call it on a new Decider."""
        self.parent.restore(state["parent"], unpack)
        self._list()
        self.gaps = decode(list[tuple[str, Gap]], state["gaps"])
        self.behind.restore(state["behind"])
        published = map(Publication.of_plain, state.get("published", ()))  # not in states of older versions
        texts, overlap = [*state["texts"], *state.get("held", ())], self._texts.overlap
        self.parent.known = self._texts = KnownDefinitions(texts, published, overlap)
        self.servings = AgreedServings(self.parent, self._texts)
        self.servings.restore(state)
        self.served_before.restore(state.get("since", []))  # not in states of older versions
        for group, family in self.parent.children.memberships.items():
            self.served_before.note(group, family.begins(), family.leaf_times()[0].names)
        self._texts.unnamed = set(decode(list[QueryKey], state.get("unnamed", [])))
        self._texts.claimed(state.get("claims", ()))  # not in states of older versions
        sensors = state.get("sensor_texts", state["texts"])  # older versions kept both in "texts"
        self._sensor_texts = TextShares(bounds.MOST_SENSORS, sensors)
        of = (state["texts"], state.get("held", ()), sensors)
        for number, senders in enumerate(state.get("senders", ())):  # not in states of older versions
            (*self._texts.shares, self._sensor_texts)[number].assign(zip(of[number], senders, strict=True))
        for each in self._texts.publications():  # in states of older versions a published text may be that of a child
            self._texts.texts.release(each.text or "")
        self.lost_frames.restore(state.get("lost_frames", ()))  # not in states of older versions
        self._clock_steps.restore(state.get("clock_steps", ()))  # likewise
        self.parent.ahead_us = self._clock_steps.ahead_us
        self._elapsed = ElapsedTime.restore(state.get("elapsed", ()))  # likewise
        self.alarms = {node: (text, us) for node, text, us in state.get("alarms", ())}
