"""Landed frames that the root cannot apply yet, with a bound for each child (docs/protocol.md 2.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from edge_agent.algebra.frame import LOST, Birth
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.received_seqs import ReceivedRanges
from edge_agent.machines.downlink.epochs.waiting_frames import MOST_BYTES, MOST_FRAMES
from edge_agent.machines.downlink.losses.let_go import LOOK_US, PAUSE_US, WAIT_US

MOST_EPOCHS: Final = 1_000  # most epochs of one child in which frames may wait; the same as in a merger's inbox
# frames missing for so long, while their child speaks, are settled by the root, which hears less: no refused frames
SETTLED_US: Final = 2 * WAIT_US


class FramesAhead:
    """Counts the frames of each child that the root cannot apply yet (2.2).

    A frame is counted if a frame before it in its epoch is missing, or if its whole epoch waits. An epoch waits if its
    birth names frames of the epoch before that are missing or wait themselves. An epoch counts alone, without its
    frames, if frame 0 does not say what it follows, although its child was heard: the root may keep it for long (1.4).

    Seqs up to the highest that an earlier run received, and those before the first frame of an epoch in this run, do
    not count as missing: a gap record covers them, or their receipt is no longer known, or they arrive soon. For the
    same reason the first birth of a child in this run waits for nothing. Nor does what has been missing for SETTLED_US
    while the child spoke, because the root settles it as lost (1.3) and applies the frames behind it.
    """

    def __init__(self, received: Mapping[EpochKey, ReceivedRanges], *, rebuilt: bool) -> None:
        """received: the ranges of the lander, which it updates itself. rebuilt: the ranges of earlier runs are lost."""
        self._received = received
        self._rebuilt, self._goes_on = rebuilt, rebuilt or bool(received)
        self._lines: dict[EpochKey, ReceivedRanges] = {}
        self._ahead: dict[str, dict[int, list[int]]] = {}  # node -> epoch -> [frames, bytes] that wait
        self._waits: dict[EpochKey, tuple[EpochKey, int]] = {}  # waiting epoch -> (epoch before it, last seq of that)
        self._awaited: dict[EpochKey, list[EpochKey]] = {}  # epoch -> epochs that wait for it
        self._heard: set[str] = set()  # children from which a frame has landed in this run
        self._apart: dict[str, set[int]] = {}  # node -> epochs that do not say what they follow, although it was heard
        # node -> (time of the last look, (epoch, first missing seq; -1: the epoch waits) -> how long it spoke since)
        self._missing: dict[str, tuple[int, dict[tuple[int, int], int]]] = {}

    def heard(self, node: str, now_us: int) -> None:
        """Note that a child speaks, and stop counting what the root has settled by now."""
        if not self._ahead.get(node):
            self._missing.pop(node, None)
            return
        looked_us, before = self._missing.get(node, (now_us, {}))
        if before and 0 <= now_us - looked_us < LOOK_US:
            return
        passed_us, holes = min(max(now_us - looked_us, 0), PAUSE_US), dict(self._holes(node))
        found = {hole: before[hole] + passed_us if hole in before else 0 for hole in holes}
        self._missing[node] = now_us, found
        for (epoch, first), missing_us in found.items():
            if missing_us >= SETTLED_US:
                self._settled(EpochKey(node, epoch), first, holes[epoch, first])

    def _holes(self, node: str) -> Iterator[tuple[tuple[int, int], int]]:
        """Yields ((epoch, first missing seq), last missing seq); ((epoch, -1), -1) for an epoch that waits."""
        for epoch in self._ahead[node]:
            key = EpochKey(node, epoch)
            first = self._lines[key].next
            for low, high in self._lines[key].above:
                yield (epoch, first), low - 1
                first = high + 1
            if key in self._waits:
                yield (epoch, -1), -1

    def _settled(self, key: EpochKey, first: int, last: int) -> None:
        """Stop counting a hole, or waiting for the epoch before if first is -1."""
        if first >= 0:
            self._lines[key].add_run(first, last)
        elif (waits := self._waits.pop(key, None)) is not None:
            self._awaited[waits[0]].remove(key)
            self._release(waits[0])  # it may be awaited by no other
        self._count(key)
        self._release(key)

    def _count(self, key: EpochKey) -> None:
        """Count the frames of an epoch anew: a hole in it is closed, or it waits no longer."""
        epochs, line = self._ahead.get(key.node, {}), self._lines[key]
        if key.epoch in epochs and key not in self._waits:
            if line.ahead:
                epochs[key.epoch][0] = line.ahead
            else:
                del epochs[key.epoch]

    def take(self, key: EpochKey, seq: int, birth: Birth | None, *, run: int, size_bytes: int) -> bool:
        """Count a new frame. Returns False if the frame exceeds the bound and must not land.

        birth: the birth in the frame, if it is for this lander's journal. run: number of seqs that the frame settles.
        """
        line = self._lines.get(key)
        if line is None:
            line = self._new_line(key, seq)
        if seq < line.next:
            return True
        if seq == 0 and key.node in self._heard and (birth is None or birth.predecessor is None):
            apart = self._apart.setdefault(key.node, set())
            if key.epoch not in apart and len(apart) >= MOST_EPOCHS:
                return False
            apart.add(key.epoch)
        before = None if birth is None or key in self._waits else self._lacks(key.node, birth)
        waits = before is not None or key in self._waits
        if (seq > line.next or waits) and not self._room(key, 2 if seq < line.top else 1):
            return False
        self._lines[key] = line
        self._heard.add(key.node)
        if before is not None:
            self._waits[key] = before
            self._awaited.setdefault(before[0], []).append(key)
        elif birth is not None and birth.predecessor == LOST:
            self._forget_all_but(key)
        if run > 1:
            line.add_run(seq, seq + run - 1)
        elif seq not in line:
            line.add(seq)
        epochs = self._ahead.setdefault(key.node, {})
        frames, before_bytes = epochs.get(key.epoch, (0, 0))
        if waits or line.ahead:  # the bytes are reset only when no frame waits any more
            epochs[key.epoch] = [frames + 1 if waits else line.ahead, before_bytes + size_bytes]
        else:
            epochs.pop(key.epoch, None)
        if key in self._awaited:
            self._release(key)
        return True

    def forget(self, key: EpochKey) -> bool:
        """Forget an epoch of which no frame will come. Returns False if frames of it wait, or others wait for it."""
        if key in self._waits or key in self._awaited or key.epoch in self._ahead.get(key.node, ()):
            return False
        self._lines.pop(key, None)
        self._apart.get(key.node, set()).discard(key.epoch)
        return True

    def _new_line(self, key: EpochKey, seq: int) -> ReceivedRanges:
        if key in self._received:
            return ReceivedRanges(max(self._received[key].top, seq))
        return ReceivedRanges(seq if self._rebuilt else 0)

    def _lacks(self, node: str, birth: Birth) -> tuple[EpochKey, int] | None:
        """Returns (the epoch that a birth waits for, the last seq of that epoch); None if it does not wait."""
        if not isinstance(birth.predecessor, tuple) or (self._goes_on and node not in self._heard):
            return None
        before = EpochKey(node, birth.predecessor[0]), birth.predecessor[1]
        return None if self._usable(*before) else before

    def _usable(self, key: EpochKey, last: int) -> bool:
        """Whether an epoch does not wait, and all its frames up to seq `last` have been received."""
        if key not in self._lines:
            return key in self._received and self._received[key].top > last
        return self._lines[key].next > last and key not in self._waits

    def _release(self, key: EpochKey) -> None:
        """Release the epochs that wait for this one if it is usable now, and then those that wait for them."""
        done = [key]
        while done:
            before = done.pop()
            free = [each for each in self._awaited.get(before, ()) if self._usable(*self._waits[each])]
            left = [each for each in self._awaited.pop(before, ()) if each not in free]
            if left:
                self._awaited[before] = left
            for each in free:
                del self._waits[each]
                self._count(each)
            done += free

    def _forget_all_but(self, key: EpochKey) -> None:
        """Stop counting older epochs of the node, because a birth declares its predecessor lost (1.2)."""
        own = self._ahead.get(key.node, {})
        self._ahead[key.node] = {epoch: counts for epoch, counts in own.items() if epoch == key.epoch}
        for epoch in [each for each in self._waits if each.node == key.node]:
            before, _ = self._waits.pop(epoch)
            self._awaited.pop(before, None)

    def _room(self, key: EpochKey, share: int) -> bool:
        """Whether one more frame may wait. share: factor of the bound.

        A frame between others that landed gets twice the bound: the child sent it among 1 000 frames ahead, and would
        give it up if it were refused several times while its neighbours are receipted (3.6).
        """
        epochs = self._ahead.get(key.node, {})
        if key.epoch not in epochs and len(epochs) >= MOST_EPOCHS:
            return False
        frames, size_bytes = (sum(each[i] for each in epochs.values()) for i in (0, 1))
        return frames < MOST_FRAMES * share and size_bytes < MOST_BYTES * share
