"""A spool in a folder of its own, and frames for it."""

from __future__ import annotations

from pathlib import Path

from edge_agent.algebra.frame import Frame
from edge_agent.machines.events import Restored
from edge_agent.ports.spool import Spool

EPOCH = 0xFEEDBEEF


def encode(frame: Frame) -> bytes:
    """Not the real bytes, but as different for different frames."""
    return b"%d/%d " % (frame.epoch, frame.seq) * (10 + frame.seq % 7) + (b"gap" if frame.gaps else b"")


def frames(*seqs: int) -> tuple[Frame, ...]:
    return tuple(Frame(EPOCH, seq) for seq in seqs)


def reopened(path: Path, node: str = "gw-1") -> Spool:
    return Spool(path, node, encode)


def keys(restored: Restored) -> list[tuple[int, int]]:
    """(epoch, seq) of every frame of a spool that was opened, in the order found."""
    return [(found.epoch, seq) for found in restored.frames for seq in range(found.seq, found.seq + found.run)]
