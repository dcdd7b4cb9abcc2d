"""Keeps and sends the frames for former parents of this node; a `leave` is the last of them (docs/protocol.md 1.5).

A line is all that a node sends to one parent. Its frames are sent again until that parent has receipted them, however
long the parent is away. No other parent gets them, so that nothing counts twice. If the parent answers such frames with
another journal, it has lost its journal, and the frames are in doubt (3.7).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from edge_agent.algebra.frame import Frame, Gap, Leaf, Receipt
from edge_agent.algebra.gap_scope import RETIRED
from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.slots import FormerLineState
from edge_agent.machines.events import Publish
from edge_agent.machines.uplink.encoding import size_bounds
from edge_agent.machines.uplink.encoding.frame_packer import FramePacker
from edge_agent.machines.uplink.pending_frames import FrameKey, Pending, PendingFrames

LAST_GROUP: Final = 2**16 - 1  # group numbers in leave frames count down from here, because the epoch's count up from 0
MARK_AHEAD: Final = 1_000  # most frames of a line marked `sent` without a receipt
OTHER_JOURNALS: Final = 3  # after so many receipts in a row with another journal, which cannot all be late, it is lost


@dataclass(slots=True)
class FormerLine:
    """The line to one parent.

    journal: of the parent; None: the parent has never answered. end: (epoch, seq) of the `leave` that ends the line;
    None: nothing was ever sent to the parent. up: whether the parent can be reached. flying: published, but not
    confirmed by the broker. others: receipts in a row with another journal. left_us: when the node left the parent to
    which the pending frames belong; 0: not known.
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
    """The lines to all former parents. A finished line stays here, because the node may go back to its parent (1.2)."""

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
        """Add the line to a parent that the node leaves, or continue its former line.

        end: see FormerLine. doubtful: (its frame without a receipt, whether ever sent), in order. up: see FormerLine.
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
        """Parent -> number of its frames without a receipt; only parents with such frames."""
        return {parent: len(line.pending) for parent, line in self.lines.items() if len(line.pending)}

    def epochs(self) -> set[int]:
        """The epochs of frames for former parents."""
        return {epoch for line in self.lines.values() for epoch in line.pending.epochs()}

    def of(self, key: FrameKey) -> PendingFrames | None:
        """The pending frames of the line that contains a frame; None if no line does."""
        return next((line.pending for line in self.lines.values() if key in line.pending), None)

    def journal_of(self, key: FrameKey) -> int | None:
        """The journal of the former parent for which a frame is; None: the frame is for the present parent."""
        return next((line.journal for line in self.lines.values() if key in line.pending), None)

    # --- sending ----------------------------------------------------------------------------------------------------

    def link(self, parent: str, *, up: bool) -> None:
        """Note whether a parent can be reached. parent: ''; all former parents."""
        for name, line in self.lines.items():
            if parent in ("", name):
                line.up = up
                line.void()

    def void(self) -> None:
        """Treat all published frames as possibly lost, after a step back of the clock or a command."""
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
        """The frames to send now, each to its own parent. waiting: frames that are not committed yet."""
        return [
            Publish(*key, to=parent)
            for parent, line in self.lines.items()
            if line.up
            for key in line.pending.due(now_us, in_flight, line.flying, waiting, random)
        ]

    def sent(self, key: FrameKey) -> None:
        """Note that the broker has confirmed a frame."""
        for line in self.lines.values():
            line.flying.discard(key)

    # --- receipts ---------------------------------------------------------------------------------------------------

    def line_of(self, receipt: Receipt) -> tuple[str, FormerLine] | None:
        """Returns (parent, line) to which a receipt belongs; None if it names no epoch of these lines."""
        for parent, line in self.lines.items():
            if receipt.epoch in line.pending.epochs():
                return parent, line
        return None

    def knows(self, journal: int, present: str) -> bool:
        """Whether a journal is that of a former parent, so that its receipt may be late.

        present: the parent in use, which may have a finished line here, with the journal that it had then.
        """
        return any(line.journal == journal for parent, line in self.lines.items() if parent != present)

    # --- the spool --------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, FormerLineState]:
        return {
            parent: FormerLineState(line.journal, line.end, sorted(line.pending.epochs()), line.left_us)
            for parent, line in self.lines.items()
        }

    def restore(self, state: Mapping[str, FormerLineState]) -> None:
        """Continue from the result of `snapshot`. Then `home` finds the line of each spooled frame."""
        self.lines = {
            parent: FormerLine(each.journal, each.end, left_us=each.left_us) for parent, each in state.items()
        }
        self._epochs = {epoch: parent for parent, each in state.items() for epoch in each.epochs}

    _epochs: Mapping[int, str] = {}

    def home(self, epoch: int, seq: int) -> PendingFrames | None:
        """The pending frames of the line to which a spooled frame belongs; None: it is for the present parent.

        In the epoch in which a line ends, frames after the end are for the next parent.
        """
        parent = self._epochs.get(epoch)
        if parent is None:
            return None
        line = self.lines[parent]
        return None if line.end is not None and epoch == line.end[0] and seq > line.end[1] else line.pending


def leave_frames(
    end: FrameKey,
    successor: int,
    leaves: Mapping[Group, Iterable[Leaf]],
    frame_bytes: int,
    retired: Collection[str] = (),
) -> Iterator[Frame]:
    """Make the frames that end a line; each has `leave`, and usually one is enough. end: (epoch, seq) of the first.

    They list all leaves again, because the frames that listed them before may never have been sent. Thus the old parent
    can report the leave of every group that the next epoch names. successor: the next epoch. retired: nodes that the
    old parent must not report, because no later line lists them: they go ahead, in frames of their own.
    """
    epoch, seq = end
    for names in size_bounds.chunks(sorted(retired), lambda name: len(name) + 3, frame_bytes * 3 // 4):
        yield Frame(epoch, seq, gaps=(Gap((), 0, 0, 0, names, RETIRED),), leave=successor)
        seq += 1
    packer = FramePacker(frame_bytes)
    for i, (group, listed) in enumerate(leaves.items()):
        packer.define_group(LAST_GROUP - i, group)
        packer.list_leaves(LAST_GROUP - i, tuple(listed))
    for frame in packer.frames(epoch, seq, {}, {}):
        yield replace(frame, leave=successor)
