"""Parents that this node has left: frames sent to them stay with them, `leave` at the end (docs/protocol.md 1.5).

A line is all that a node sends to one parent. Its frames are sent again until that parent has receipted them, however
long it is away; no other parent gets them, so that nothing counts twice. A parent that answers for such a frame with
another journal has lost the frames it had: then they are in doubt (3.7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from edge_agent.algebra.frame import Frame, Leaf, Receipt
from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.slots import FormerLineState
from edge_agent.machines.events import Publish
from edge_agent.machines.uplink.frame_packer import FramePacker
from edge_agent.machines.uplink.pending_frames import FrameKey, Pending, PendingFrames

LAST_GROUP: Final = 2**16 - 1  # numbers of groups in leave frames count down from it: those of the epoch count up
MARK_AHEAD: Final = 1_000  # frames of a line marked `sent` and published without a receipt
OTHER_JOURNALS: Final = 3  # receipts in a row that name another journal: a late one names an older one


@dataclass(slots=True)
class FormerLine:
    """The line to one parent. end: its last epoch and seq, the leave; None: the parent was never sent anything.

    journal: None: the parent has never answered. up: whether the parent can be reached. left_us: when it was left, of
    frames that wait now; 0: not known.
    """

    journal: int | None
    end: FrameKey | None
    pending: PendingFrames = field(default_factory=PendingFrames)
    up: bool = False
    flying: set[FrameKey] = field(default_factory=set)
    others: int = 0
    left_us: int = 0

    def void(self) -> None:
        """Treat published frames as possibly lost."""
        self.flying.clear()
        self.pending.void()


class FormerLines:
    """The lines to all parents that were left. A finished line stays here, because the node may come back (1.2)."""

    def __init__(self) -> None:
        self.lines: dict[str, FormerLine] = {}

    def leave(
        self,
        parent: str,
        journal: int | None,
        end: FrameKey | None,
        doubtful: Iterable[tuple[FrameKey, bool]],
        *,
        up: bool,
        now_us: int = 0,
    ) -> FormerLine:
        """Add the line to a parent that is left. doubtful: its frames without a receipt, in order; whether ever
        sent.
        """
        known = self.lines.pop(parent, None)
        if known is not None and len(known.pending):
            now_us = known.left_us
        pending = PendingFrames() if known is None else known.pending
        for key, sent in doubtful:
            if sent:
                pending.marked[key] = Pending()
            else:
                pending.add(*key)
        if known is not None:
            journal, end = (known.journal if journal is None else journal), end or known.end
        self.lines[parent] = line = FormerLine(journal, end, pending, up, left_us=now_us)
        return line

    def waiting(self) -> dict[str, int]:
        """Parent -> number of frames that it has not receipted, if there are any."""
        return {parent: len(line.pending) for parent, line in self.lines.items() if len(line.pending)}

    def epochs(self) -> set[int]:
        """The epochs whose frames are here."""
        return {epoch for line in self.lines.values() for epoch in line.pending.epochs()}

    def of(self, key: FrameKey) -> PendingFrames | None:
        """The pending frames to which a frame belongs."""
        return next((line.pending for line in self.lines.values() if key in line.pending), None)

    def journal_of(self, key: FrameKey) -> int | None:
        """The journal for which a frame was published to a parent that was left; None: it is for the present one."""
        return next((line.journal for line in self.lines.values() if key in line.pending), None)

    # --- sending ----------------------------------------------------------------------------------------------------

    def link(self, parent: str, *, up: bool) -> None:
        """Note whether a parent can be reached; '': all of them."""
        for name, line in self.lines.items():
            if parent in ("", name):
                line.up = up
                line.void()

    def void(self) -> None:
        """Treat all published frames as possibly lost: the connection was lost, or the clock went back."""
        for line in self.lines.values():
            line.void()

    def marks(self) -> list[FrameKey]:
        """Frames to mark as sent in the commit under way (3.3)."""
        return [
            key
            for line in self.lines.values()
            if line.up
            for key in line.pending.mark(max(MARK_AHEAD - len(line.pending.marked), 0))
        ]

    def publish(self, now_us: int, in_flight: int, waiting: Set[FrameKey], random: Random) -> list[Publish]:
        """The frames to send now, each to the parent for which it was written."""
        return [
            Publish(*key, to=parent)
            for parent, line in self.lines.items()
            if line.up
            for key in line.pending.due(now_us, in_flight, line.flying, waiting, random)
        ]

    def sent(self, key: FrameKey) -> None:
        """Note that the broker has a frame."""
        for line in self.lines.values():
            line.flying.discard(key)

    # --- receipts ---------------------------------------------------------------------------------------------------

    def line_of(self, receipt: Receipt) -> tuple[str, FormerLine] | None:
        """The line to which a receipt belongs; None if it is for none of these."""
        for parent, line in self.lines.items():
            if receipt.epoch in line.pending.epochs():
                return parent, line
        return None

    def knows(self, journal: int) -> bool:
        """Whether a journal is of a parent that was left, whose receipts may be late."""
        return any(line.journal == journal for line in self.lines.values())

    # --- the spool --------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, FormerLineState]:
        return {
            parent: FormerLineState(line.journal, line.end, sorted(line.pending.epochs()), line.left_us)
            for parent, line in self.lines.items()
        }

    def restore(self, state: Mapping[str, FormerLineState]) -> None:
        """From what `snapshot` returns; `home` tells to which line frames of the spool belong."""
        self.lines = {
            parent: FormerLine(each.journal, each.end, left_us=each.left_us) for parent, each in state.items()
        }
        self._epochs = {epoch: parent for parent, each in state.items() for epoch in each.epochs}

    _epochs: Mapping[int, str] = {}

    def home(self, epoch: int, seq: int) -> PendingFrames | None:
        """The pending frames of the line to which a spooled frame belongs; None: of the present one.

        In the epoch in which a line ends, frames beyond its end are for the next parent.
        """
        parent = self._epochs.get(epoch)
        if parent is None:
            return None
        line = self.lines[parent]
        return None if line.end is not None and epoch == line.end[0] and seq > line.end[1] else line.pending


def leave_frames(
    end: FrameKey, successor: int, leaves: Mapping[Group, Iterable[Leaf]], frame_bytes: int
) -> Iterator[Frame]:
    """The frames that end a line, from seq end[1] on. Each has `leave`; usually there is one.

    They list all leaves once more, because the frames that listed them may never have been sent. So the old parent
    reports the leave of every group that the successor names.
    """
    packer = FramePacker(frame_bytes)
    for i, (group, listed) in enumerate(leaves.items()):
        packer.define_group(LAST_GROUP - i, group)
        packer.list_leaves(LAST_GROUP - i, tuple(listed))
    for frame in packer.frames(*end, {}, {}):
        yield replace(frame, leave=successor)
