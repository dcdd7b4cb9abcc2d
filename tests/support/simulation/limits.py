"""Limits of the protocol that a seed draws small, so that a short run reaches them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from edge_agent.algebra.frame import MAX_FRAME_BYTES, Birth, Frame
from edge_agent.machines.uplink.encoding import promises
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder, KeysExhausted
from edge_agent.machines.uplink.step import Step
from tests.support.simulation.failpoints import Faults

_encode_step, _WHOLE = EpochEncoder.encode_step, promises.WHOLE
NEVER_WHOLE: Final = 2**62  # the few exceptions that a fleet has here would fit nearly always


@contextmanager
def drawn(faults: Faults, frame_bytes: int) -> Iterator[None]:
    """While it lasts, frames of births, flushes and steps have frame_bytes where their failpoint is on.

    A part that is larger by itself (a definition, a plan) still stands in one frame. Exceptions go by their changes
    then, also where they would fit. frame_bytes 0: as much as ever.
    """

    def encode_step(self: Any, epoch: int, seq: int, step: Step, birth: Birth | None = None) -> list[Frame]:
        kind = "birth" if birth is not None else "flush" if step.flush is not None else "step"
        small = frame_bytes and faults.on(f"frames.{kind}")
        self.frame_bytes = frame_bytes if small else MAX_FRAME_BYTES
        promises.WHOLE = NEVER_WHOLE if small else _WHOLE  # type: ignore[misc]
        try:
            frames = _encode_step(self, epoch, seq, step, birth)
        except KeysExhausted:
            faults.hits["keys.many"] += 1
            raise
        finally:
            promises.WHOLE = _WHOLE  # type: ignore[misc]
        if not frames:
            return frames
        if any(part.more or part.ended for frame in frames for part in frame.groups):
            faults.hits["frames.exceptions"] += 1
        if len(frames) > 1:
            faults.hits[f"frames.{kind}"] += 1
        return frames

    EpochEncoder.encode_step = encode_step  # type: ignore[method-assign]
    try:
        yield
    finally:
        EpochEncoder.encode_step = _encode_step  # type: ignore[method-assign]
