"""Limits of the protocol that a seed draws small, so that a short run reaches them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edge_agent.algebra.frame import MAX_FRAME_BYTES, Birth, Frame
from edge_agent.machines.uplink.epoch_encoder import EpochEncoder, KeysExhausted
from edge_agent.machines.uplink.step import Step
from tests.support.simulation.failpoints import Faults

_encode_step = EpochEncoder.encode_step


@contextmanager
def drawn(faults: Faults, frame_bytes: int) -> Iterator[None]:
    """While it lasts, frames of births, flushes and steps have frame_bytes where their failpoint is on.

    A part that is larger by itself (a definition, a plan) still stands in one frame. frame_bytes 0: as much as ever.
    """

    def encode_step(self: Any, epoch: int, seq: int, step: Step, birth: Birth | None = None) -> list[Frame]:
        kind = "birth" if birth is not None else "flush" if step.flush is not None else "step"
        self.frame_bytes = frame_bytes if frame_bytes and faults.on(f"frames.{kind}") else MAX_FRAME_BYTES
        try:
            frames = _encode_step(self, epoch, seq, step, birth)
        except KeysExhausted:
            faults.hits["keys.many"] += 1
            raise
        if len(frames) > 1:
            faults.hits[f"frames.{kind}"] += 1
        return frames

    EpochEncoder.encode_step = encode_step  # type: ignore[method-assign]
    try:
        yield
    finally:
        EpochEncoder.encode_step = _encode_step  # type: ignore[method-assign]
