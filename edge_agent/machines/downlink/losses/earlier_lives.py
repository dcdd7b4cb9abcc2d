"""Finds gateways that lived before they lost their spool, which only their parent can know (docs/protocol.md 1.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from edge_agent.algebra.frame import BEGAN, LATEST_US, NEVER_US, Frame, Gap, Heartbeat
from edge_agent.algebra.gap_scope import has_times
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.span import FAR_US
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.epochs.epoch_frames import EpochFrames
from edge_agent.machines.downlink.group_membership import Memberships
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.downlink.losses import loss_records
from edge_agent.machines.downlink.losses.let_go import WAIT_US
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.events import BadFrame

OVERTAKEN_US: Final = 60_000_000  # births come again: a child repeats all that has no receipt


class Undecided(NamedTuple):
    """A node of which it is undecided whether it lived before."""

    since_us: int  # time of receipt of the first frame in this state, LATEST_US if none came since the start
    began_us: int  # the latest end of its `began` records
    until_us: int  # the end of losses until the last of them came, LATEST_US if the parent does not know that time


class EarlierLives:
    """Compares the time when a gateway began to listen with waiting frames of earlier epochs of it."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._undecided: dict[str, Undecided] = {}  # node whose Member.began_us is set in some group
        self._spoke: set[str] = set()  # nodes that have sent this process a heartbeat
        self._asked: dict[str, tuple[int, frozenset[int]]] = {}  # node -> its last question, and what waited before it
        self._found: list[tuple[str, Gap]] = []

    def losses(
        self, node: str, frame: Frame, children: Children, speaks_in: int | None, received_us: int
    ) -> Iterator[Gap]:
        """Declare the losses of a gateway that reports when it began to listen, while frames of an earlier life wait.

        These frames wait for births that will never take effect here, so their content is unknown and none of their
        rows counts. A loss after a line that this parent knows is declared from that line's last frontier on.

        It ends with the record or, as the gateway's clock may have been behind when it began, when the record came.

        frame: one that takes effect. speaks_in: the epoch of the node's newest heartbeat, if frames that it names are
        missing. Without the birth of that epoch, the waiting frames may be of epochs in between; then a later frame or
        heartbeat decides. The same holds if this process has not heard a heartbeat: the node may have another parent
        now, and its frames for this one come in any order. Then its `leave` decides too, or the time that births need
        to come again, because a node that sends frames all the time sends no heartbeat.

        A waiting frame without a time, or with none before the times of the record, or of an epoch that was first heard
        after the question for the journal (no frame is published before its answer, 3.7), may also be of a later epoch
        of this life, ahead of its birth: it counts when a heartbeat shows that the node still sends in an epoch whose
        birth is here; one with a time also with the `leave`, or when the node has promised so much, in so long a time,
        that no birth is overtaken.
        """
        began = [gap for gap in frame.gaps if gap.reason == BEGAN and not gap.detail and gap.nodes == (node,)]
        if not began and node not in self._undecided:
            return
        lines = self._inbox.lines_of(node)
        strangers, own = _strangers(lines, frame.epoch), lines.get(frame.epoch)
        first_us, untimed = _first_us(strangers), _untimed(strangers)
        _, waited = self._asked.get(node, (0, frozenset[int]()))
        came_before = {id(lines[epoch]) for epoch in waited if epoch in lines}
        before_us = _first_us(each for each in strangers if id(each) in came_before)
        first = own is not None and own.predecessor is None and not own.copied
        here = speaks_in in (None, frame.epoch) or (speaks_in in lines and lines[speaks_in].born)
        known = here and (node in self._spoke or frame.leave is not None or self._waited(node, received_us))
        memberships, until_us = children.memberships, children.losses_until(received_us)
        for group, start_us, end_us in [(group, gap.start_us, gap.end_us) for gap in began for group in gap.groups]:
            member = memberships[group].members.get(node) if group in memberships else None
            new = first or member is None or member.frontier_us == NEVER_US
            if not new:
                continue
            if (before_us < start_us and known) or (first_us < end_us and member is None):
                yield loss_records.of_past(group, (node,), max(end_us - 1, until_us))
            elif member is not None and (first_us < end_us or untimed):
                member.began_us = end_us
                before = self._undecided.get(node, Undecided(received_us, NEVER_US, NEVER_US))
                self._undecided[node] = Undecided(before.since_us, max(end_us, before.began_us), until_us)
        undecided = self._undecided.get(node)
        if undecided is not None and undecided.until_us == LATEST_US:  # the first frame after a start of this parent
            self._undecided[node] = undecided._replace(until_us=until_us)
        if undecided is None or untimed or not known:
            return
        promised_us = max((part.frontier_us or NEVER_US for part in frame.groups), default=NEVER_US)
        promised = promised_us > undecided.began_us + OVERTAKEN_US
        # its clock may step, and what it sends after an outage contains hours
        if frame.leave is not None or (promised and self._waited(node, received_us, OVERTAKEN_US)):
            yield from self._decided(node, first_us, memberships, until_us)

    def _waited(self, node: str, received_us: int, for_us: int = WAIT_US) -> bool:
        """Whether a node has been undecided for so long, in which births that were lost on the way have come again."""
        undecided = self._undecided.get(node)
        if undecided is None:
            return False
        since_us = min(undecided.since_us, received_us)
        self._undecided[node] = undecided._replace(since_us=since_us)
        return received_us - since_us >= for_us

    def heard(self, node: str, beat: Heartbeat, children: Children, received_us: int) -> None:
        """Take a heartbeat. If the birth of its epoch is here, decide whether waiting frames are of an earlier life.

        Only a heartbeat that nothing overtook shows in which epoch the node sends: one that names fewer frames of its
        epoch than are here was overtaken by these, and perhaps by frames of the next epoch, whose birth is still to
        come. An epoch that was first heard after the question for the journal may be that next one. Then a heartbeat
        decides only when the node has been undecided for a minute: by then, no older heartbeat is on its way.
        """
        epoch = beat.epoch
        self._spoke.add(node)
        if beat.last_seq < 0 and self._asked.get(node, (-1,))[0] != epoch:  # a question, which may come again
            self._asked[node] = epoch, frozenset(self._inbox.lines_of(node))
        if node not in self._undecided:
            return
        lines = self._inbox.lines_of(node)
        own = lines.get(epoch, EpochFrames())
        until_us = children.losses_until(received_us)
        if self._undecided[node].until_us == LATEST_US:  # the first message after a start of this parent
            self._undecided[node] = self._undecided[node]._replace(until_us=until_us)
        if own.born and beat.last_seq >= own.last_seq:
            strangers = _strangers(lines, epoch)
            _, before = self._asked.get(node, (0, frozenset[int]()))
            known = {id(lines[each]) for each in before if each in lines}
            if any(id(each) not in known for each in strangers) and not self._waited(node, received_us, OVERTAKEN_US):
                return
            first_us = NEVER_US if _untimed(strangers) else _first_us(strangers)
            self._found += ((node, gap) for gap in self._decided(node, first_us, children.memberships, until_us))

    def take_found(self) -> list[tuple[str, Gap]]:
        """Remove and return (child, loss) found by `heard`."""
        out, self._found = self._found, []
        return out

    def _decided(self, node: str, first_us: int, memberships: Memberships, now_us: int) -> Iterator[Gap]:
        """Declare the losses of an undecided node. Its new life may have promised something in the meantime.

        first_us: the earliest content of waiting frames of an earlier life. now_us: the end of losses until now.
        """
        undecided = self._undecided.pop(node, None)
        until_us = now_us if undecided is None else min(undecided.until_us, now_us)
        for group, member in _members_of(node, memberships):
            if first_us < member.began_us:
                end_us = max(member.began_us - 1, until_us)
                yield loss_records.of_past(group, (node,), end_us, loss_records.PAST_LOST)
            member.began_us = NEVER_US

    def restore(self, memberships: Memberships) -> None:
        """Find the undecided nodes from their members, after a start."""
        self._undecided = {}
        for membership in memberships.values():
            for node, member in membership.members.items():
                if member.began_us > NEVER_US:
                    before = self._undecided.get(node)
                    began_us = max(member.began_us, NEVER_US if before is None else before.began_us)
                    self._undecided[node] = Undecided(LATEST_US, began_us, LATEST_US)


def _members_of(node: str, memberships: Memberships) -> Iterator[tuple[Group, Member]]:
    """Yields (group, member of the node) for groups in which it is undecided whether the node lived before."""
    for group, membership in memberships.items():
        member = membership.members.get(node)
        if member is not None and member.began_us > NEVER_US:
            yield group, member


def _first_us(strangers: Iterable[EpochFrames]) -> int:
    """The time of the earliest content of the waiting frames of these epochs.

    If it is before listening began, they are of an earlier life. One time for all groups of all records of a frame: a
    child may send thousands of either.
    """
    return min((_earliest_us(message) for each in strangers for message in each.waiting.values()), default=FAR_US)


def _untimed(strangers: Iterable[EpochFrames]) -> bool:
    """Whether a waiting frame of these epochs contains no time, such as one of a birth that only lists members."""
    return any(_earliest_us(message) == FAR_US for each in strangers for message in each.waiting.values())


def _strangers(lines: Mapping[int, EpochFrames], epoch: int) -> list[EpochFrames]:
    """The epochs with waiting frames that do not belong to the life of `epoch`, according to the births received.

    A birth names only epochs of its own life, as its predecessor or as still held. If `epoch` names no predecessor, a
    birth that names it is of the same life too. If a birth in between is missing, an epoch of the same life may be
    returned.
    """
    others = {other: each for other, each in lines.items() if other != epoch and each.waiting and not each.lost}
    known, own = {epoch}, lines.get(epoch, EpochFrames())
    known.update(own.held or ())
    known.update(own.predecessor[:1] if isinstance(own.predecessor, tuple) else ())
    if own.predecessor is None:
        later = [(other, each.held) for other, each in others.items() if each.held and epoch in each.held]
        known.update(each for other, held in later for each in (other, *held))
    followers: dict[int, list[int]] = {}  # a child decides how many there are, so each is looked at once
    for other, each in others.items():
        if isinstance(each.predecessor, tuple):
            followers.setdefault(each.predecessor[0], []).append(other)
    ahead = [*known]
    while ahead:
        ahead += (following := followers.pop(ahead.pop(), []))
        known.update(following)
    return [each for other, each in others.items() if other not in known]


def _earliest_us(message: Frame | BadFrame) -> int:
    """The time of the earliest content of a frame; FAR_US if it has none. A bad frame may contain any time."""
    if isinstance(message, BadFrame):
        return NEVER_US
    promised = [part.frontier_us for part in message.groups if part.frontier_us is not None]
    rows = [section.span_us[0] for part in message.groups for section in (*part.sections, *part.late)]
    losses = [gap.end_us for gap in message.gaps if gap.groups or has_times(gap)]
    return min((*promised, *rows, *losses), default=FAR_US)
