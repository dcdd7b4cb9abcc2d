"""The flushes that a lander received, to tell frames of a second device from repeats (docs/protocol.md 1.3, 1.4)."""

from __future__ import annotations

from edge_agent.algebra.frame import Flush
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.ended_epochs import LastFlush, remember_flush


class LandedFlushes:
    """of: child -> epoch -> the first flush of the epoch that landed, for the newest epochs with one.

    Whether a repeated number is of another device, the root judges. It gets such a frame once, or once more after a
    restart of the lander.
    """

    def __init__(self) -> None:
        self.of: dict[str, dict[int, LastFlush]] = {}

    def landed(self, key: EpochKey, seq: int, flush: Flush | None) -> None:
        """Note that a frame lands. flush: of the frame, None: it is of none."""
        if flush is None:
            return
        flushes = self.of.setdefault(key.node, {})
        if key.epoch in flushes:
            flushes[key.epoch].came(seq, flush)
        else:
            remember_flush(flushes, key.epoch, LastFlush(flush))

    def contest(self, key: EpochKey, seq: int, flush: Flush | None) -> bool:
        """Whether a frame with a received number may be of another line than the one that landed."""
        last = self.of.get(key.node, {}).get(key.epoch)
        return last is not None and last.contest(seq, flush)

    def forget(self, key: EpochKey) -> None:
        """Forget an epoch."""
        self.of.get(key.node, {}).pop(key.epoch, None)

    def state(self, key: EpochKey) -> list[int | None]:
        """The flush of an epoch for its slot; [] if there is none."""
        last = self.of.get(key.node, {}).get(key.epoch)
        return [] if last is None else [last.flush.after, last.flush.successor]
