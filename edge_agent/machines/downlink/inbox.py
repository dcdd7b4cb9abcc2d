"""Custody downward: dedupe, order and receipts for the frames of all children.

Rules (docs/protocol.md): identity of a frame is (node, epoch, seq) and nothing else dedupes (1.1); frames of an epoch
take effect in seq order, those ahead wait and count as received (2.2); a birth waits for the predecessor it names and
for no other (1.2); of an epoch declared lost, what comes applies once each for its data only (1.2); a flush is dropped
whole if any other frame stands above the seq it names (1.3); a bad body is settled where it stands (3.6); dedupe state
is a contiguous prefix and what waits above it, no more (3.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edge_agent.algebra.frame import LOST, Frame, Receipt
from edge_agent.machines.events import BadFrame

KEPT_EPOCHS: Final = 64  # closed epochs of a node whose prefix is kept: duplicates of older ones cannot be in flight


@dataclass(frozen=True, slots=True)
class Effect:
    """A frame that takes effect now. stale: its epoch was declared lost, so its data counts and nothing else does.

    frame is None where a bad body was settled or a flush dropped; `why` says which.
    """

    node: str
    epoch: int
    seq: int
    frame: Frame | None
    stale: bool = False
    why: str = ""


@dataclass(slots=True)
class EpochLine:
    """One (node, epoch): everything below `next` took effect; `waiting` came ahead."""

    next: int = 0
    waiting: dict[int, Frame | BadFrame] = field(default_factory=dict)
    predecessor: tuple[int, int] | str | None = None
    born: bool = False  # frame 0 has come
    closed: bool = False  # its successor took effect
    lost: bool = False  # declared lost: order no longer matters
    applied: set[int] = field(default_factory=set)  # of a lost epoch: seqs above `next` that were applied
    quarantined: set[int] = field(default_factory=set)


class Inbox:
    """Frames of children in the order in which they take effect."""

    def __init__(self, journal: int) -> None:
        """journal: this parent's id of its own durable state (docs/protocol.md 3.7)."""
        self.journal = journal
        self.lines: dict[tuple[str, int], EpochLine] = {}
        self.current: dict[str, int] = {}  # node -> epoch whose birth took effect last
        self.changed: set[tuple[str, int]] = set()  # since the last snapshot of the owner
        self.rivals: dict[str, tuple[int, int]] = {}  # node -> two epochs of it that both go on: two devices, one name
        self._unborn: set[str] = set()  # nodes with frames of an epoch that is not in force yet

    def known(self, node: str, epoch: int) -> bool:
        """Whether any frame of that epoch has come."""
        return (node, epoch) in self.lines

    def take(self, node: str, message: Frame | BadFrame) -> list[Effect]:
        """Store one frame; answer what takes effect now, in order. Duplicates give nothing."""
        frame = message if isinstance(message, Frame) else None
        if frame is not None and frame.birth is not None and frame.birth.journal != self.journal:
            return []  # addressed to a journal that is no more: the sender will be born again for this one
        key = (node, message.epoch)
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = EpochLine()
        seq = message.seq
        if seq < line.next or seq in line.waiting or seq in line.applied:
            return []
        self.changed.add(key)
        if frame is not None and frame.flush is not None and self._beyond(line, frame.flush):
            bad = BadFrame(message.epoch, seq, "flush of a restored spool: later frames are here already", b"")
            line.waiting[seq] = bad
        else:
            line.waiting[seq] = message
        if seq == 0:
            line.born = True
            line.predecessor = frame.birth.predecessor if frame is not None and frame.birth is not None else None
        if self.current.get(node) != message.epoch or line.lost:
            return self._advance(node)
        if seq != line.next:
            return []
        out = self._run(node, message.epoch, line)  # the usual case: in order, of the epoch in force
        return out + self._advance(node) if node in self._unborn else out

    @staticmethod
    def _beyond(line: EpochLine, last: int) -> bool:
        """Whether a frame that is no flush stands above `last` (1.3)."""
        if any(s > last and not (isinstance(f, Frame) and f.flush is not None) for s, f in line.waiting.items()):
            return True
        return line.next > last + 1

    def _advance(self, node: str) -> list[Effect]:
        out: list[Effect] = []
        again = True
        while again:
            again = False
            for (name, epoch), line in list(self.lines.items()):
                if name != node or not line.waiting:
                    continue
                if line.lost:
                    out += self._apply_lost(node, epoch, line)
                    continue
                if line.closed or line.next not in line.waiting:
                    continue
                if line.next == 0:
                    if not self._may_be_born(node, epoch, line, out):
                        continue
                elif epoch != self.current.get(node):
                    self.rivals[node] = (epoch, self.current.get(node, 0))
                out += self._run(node, epoch, line)
                again = True
        ahead = any(n == node and e != self.current.get(n) and line.waiting for (n, e), line in self.lines.items())
        (self._unborn.add if ahead else self._unborn.discard)(node)
        return out

    def _may_be_born(self, node: str, epoch: int, line: EpochLine, out: list[Effect]) -> bool:
        predecessor = line.predecessor
        if predecessor == LOST:
            for (name, other_epoch), other in self.lines.items():
                if name == node and other_epoch != epoch and not other.closed and (other.next > 0 or not other.born):
                    other.lost = other.closed = True
                    self.changed.add((name, other_epoch))
                    out += self._apply_lost(node, other_epoch, other)
        elif isinstance(predecessor, tuple):
            before = self.lines.get((node, predecessor[0]))
            if before is None or (not before.closed and before.next <= predecessor[1]):
                return False
            before.closed = True
            self.changed.add((node, predecessor[0]))
        self.current[node] = epoch
        self._prune(node)
        return True

    def _run(self, node: str, epoch: int, line: EpochLine) -> list[Effect]:
        out = []
        while line.next in line.waiting:
            out.append(self._effect(node, epoch, line, line.next, stale=False))
            line.next += 1
        return out

    def _apply_lost(self, node: str, epoch: int, line: EpochLine) -> list[Effect]:
        out = [self._effect(node, epoch, line, seq, stale=True) for seq in sorted(line.waiting)]
        line.applied.update(e.seq for e in out)
        while line.next in line.applied:
            line.applied.remove(line.next)
            line.next += 1
        return out

    def _effect(self, node: str, epoch: int, line: EpochLine, seq: int, *, stale: bool) -> Effect:
        message = line.waiting.pop(seq)
        self.changed.add((node, epoch))
        if isinstance(message, BadFrame):
            line.quarantined.add(seq)
            return Effect(node, epoch, seq, None, stale, message.reason)
        if message.gaps and not stale:  # one gap record may stand for several frames that were never published (3.5)
            line.next += sum(gap.run - 1 for gap in message.gaps if gap.run > 1)
            for covered in [s for s in line.waiting if s < line.next]:
                del line.waiting[covered]
        return Effect(node, epoch, seq, message, stale)

    def _prune(self, node: str) -> None:
        closed = [k for k, line in self.lines.items() if k[0] == node and line.closed and not line.waiting]
        for key in closed[:-KEPT_EPOCHS]:
            del self.lines[key]
            self.changed.add(key)

    def reached(self, node: str, epoch: int, seq: int) -> bool:
        """Whether everything up to seq of the epoch in force took effect (a heartbeat holds then; 2.5)."""
        line = self.lines.get((node, epoch))
        return line is not None and self.current.get(node) == epoch and line.next > seq

    def receipt(self, node: str, epoch: int) -> Receipt:
        """What is here of an epoch; of an unknown one an empty receipt, which tells the journal (3.2, 3.7)."""
        line = self.lines.get((node, epoch)) or EpochLine()
        above = ranges(sorted({*line.waiting, *line.applied}))
        upto = line.next
        if above and above[0][0] == upto:  # received and not yet in effect: its birth waits for a predecessor (1.2)
            upto, above = above[0][1] + 1, above[1:]
        return Receipt(epoch, self.journal, upto, above, tuple(sorted(line.quarantined)[-16:]))

    def snapshot_line(self, key: tuple[str, int]) -> dict[str, object] | None:
        """Plain values of one line without the frames that wait; None when it was pruned."""
        line = self.lines.get(key)
        if line is None:
            return None
        predecessor = list(line.predecessor) if isinstance(line.predecessor, tuple) else line.predecessor
        return {
            "next": line.next,
            "predecessor": predecessor,
            "born": line.born,
            "closed": line.closed,
            "lost": line.lost,
            "applied": sorted(line.applied),
            "quarantined": sorted(line.quarantined)[-16:],
            "current": self.current.get(key[0]) == key[1],
        }

    def restore_line(
        self, key: tuple[str, int], state: Mapping[str, Any], waiting: Mapping[int, Frame | BadFrame]
    ) -> None:
        """The twin of `snapshot_line`, with the frames that wait."""
        predecessor = state["predecessor"]
        if isinstance(predecessor, (list, tuple)):
            predecessor = (int(predecessor[0]), int(predecessor[1]))
        self.lines[key] = EpochLine(
            state["next"],
            dict(waiting),
            predecessor,
            state["born"],
            state["closed"],
            state["lost"],
            set(state["applied"]),
            set(state["quarantined"]),
        )
        if state["current"]:
            self.current[key[0]] = key[1]
        if waiting:
            self._unborn.add(key[0])

    def check(self) -> None:
        """Invariants, for tests: nothing waits below its prefix; at most one epoch of a node is in force."""
        for key, line in self.lines.items():
            assert all(seq >= line.next for seq in line.waiting), key
            assert not (set(line.waiting) & line.applied), key
        for node, epoch in self.current.items():
            assert not self.lines[node, epoch].closed, (node, epoch)


def ranges(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    """Sorted distinct numbers as inclusive runs.

    >>> ranges([3, 4, 5, 9])
    ((3, 5), (9, 9))
    """
    out: list[tuple[int, int]] = []
    for n in numbers:
        if out and out[-1][1] == n - 1:
            out[-1] = (out[-1][0], n)
        else:
            out.append((n, n))
    return tuple(out)
